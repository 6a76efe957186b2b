"""The public names change only on purpose, and CHANGELOG.md says so."""

from __future__ import annotations

from tests.docs.surface import FILE, surface


def test_the_public_names_are_those_that_are_written_down() -> None:
    known = FILE.read_text(encoding="utf-8").splitlines()
    found = surface()
    changed = sorted(set(known) ^ set(found))
    assert found == known, f"public names changed: {changed}; run `make docs`, and say it in CHANGELOG.md"
