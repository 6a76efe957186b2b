"""The public names change only on purpose, and CHANGELOG.md says so."""

from __future__ import annotations

import pytest

from tests.docs.surface import CHANGELOG, FILE, surface, unsaid

KNOWN = ["column sync_fields.path", "option importer-sync run --json", "setting sources.importer.status"]
ENTRIES = """# Changelog

## [0.2.0] - unreleased

- `importer-sync run --quiet` prints
  nothing, and `sync_fields.depth` is new.
- `status` is called `statuses` now.

## [0.1.0] - 2026-12-01

- `importer-sync run --old`, `sync_fields.old`
"""


def test_each_public_name_that_changed_is_in_the_changelog() -> None:
    changed = unsaid(FILE.read_text(encoding="utf-8").splitlines(), surface(), CHANGELOG.read_text(encoding="utf-8"))
    assert changed == [], f"these public names changed; say so in the newest section of CHANGELOG.md: {changed}"


@pytest.mark.parametrize(
    ("gone", "come", "missing"),
    [
        ([], ["column sync_fields.depth", "option importer-sync run --quiet"], []),
        (["setting sources.importer.status"], ["setting sources.importer.statuses"], []),
        ([], ["option importer-sync plan --quiet"], ["option importer-sync plan --quiet"]),
        ([], ["column sync_fields.old"], ["column sync_fields.old"]),
        (["column sync_fields.path"], [], ["column sync_fields.path"]),
    ],
    ids=["said", "renamed", "of another command", "of the release before", "gone"],
)
def test_a_name_counts_as_said_where_one_entry_has_all_of_it(
    gone: list[str], come: list[str], missing: list[str]
) -> None:
    found = [name for name in KNOWN if name not in gone] + come
    assert unsaid(KNOWN, found, ENTRIES) == missing
