"""Edit a catalogue by a seeded script: what people do to their imports between two syncs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from random import Random
from typing import Any

from connector.sandbox.catalogue import STATUSES, Catalogue, StoredImport
from connector.sandbox.generator import generated_text
from connector.sandbox.seeding import number
from connector.sandbox.templates import TEMPLATES


def edit_randomly(catalogue: Catalogue, n: int, seed: object) -> list[str]:
    """Make `n` edits; equal catalogues and seeds give equal edits. Return a line for each."""
    dice = Random(number("script", seed))
    edits = [choice for edit, weight in WEIGHTS for choice in [edit] * weight]
    lines = []
    for _ in range(n):
        unfinished = [found for found in catalogue.live() if found.status != "completed"]
        edit = dice.choice(edits)
        if not catalogue.live():
            edit = _add_import
        elif edit is _advance and not unfinished:
            edit = _append
        lines.append(edit(catalogue, dice))
    return lines


def _add_import(catalogue: Catalogue, dice: Random) -> str:
    """Begin an upload: the import exists, but not yet its rows."""
    names = sorted({template.name for template in catalogue.templates()} & set(TEMPLATES)) or ["customers"]
    name = dice.choice(names)
    slug = catalogue.add_import(name, metadata={"source": "script"}, status="created")
    return f"added import {slug} of {name}"


def _advance(catalogue: Catalogue, dice: Random) -> str:
    """Continue an upload: rows arrive while an import is being submitted."""
    found = dice.choice([found for found in catalogue.live() if found.status != "completed"])
    status = STATUSES[STATUSES.index(found.status) + 1]
    catalogue.set_status(found.slug, status)
    if status == "completed":
        return f"import {found.slug} is now completed"
    return f"import {found.slug} is now {status}: {_append_to(catalogue, found, dice)}"


def _append(catalogue: Catalogue, dice: Random) -> str:
    return _append_to(catalogue, dice.choice(catalogue.live()), dice)


def _append_to(catalogue: Catalogue, found: StoredImport, dice: Random) -> str:
    count = dice.randint(1, 5)
    catalogue.append_rows(found.slug, [_row_like(catalogue, found, dice) for _ in range(count)])
    return f"appended {count} rows to {found.slug}"


def _edit_row(catalogue: Catalogue, dice: Random) -> str:
    found = dice.choice(catalogue.live())
    if not len(found.rows):
        return _append_to(catalogue, found, dice)
    index = found.rows.index_at(dice.randrange(len(found.rows)))
    record_slug = found.rows.slug(index)
    catalogue.edit_row(found.slug, record_slug, _changed(_row_at(found, index), dice))
    return f"edited record {record_slug} of {found.slug}"


def _delete_row(catalogue: Catalogue, dice: Random) -> str:
    found = dice.choice(catalogue.live())
    if not len(found.rows):
        return _append_to(catalogue, found, dice)
    record_slug = found.rows.slug(found.rows.index_at(dice.randrange(len(found.rows))))
    catalogue.delete_row(found.slug, record_slug)
    return f"deleted record {record_slug} of {found.slug}"


def _delete_import(catalogue: Catalogue, dice: Random) -> str:
    slug = dice.choice(catalogue.live()).slug
    catalogue.delete_import(slug)
    return f"deleted import {slug}"


WEIGHTS: tuple[tuple[Callable[[Catalogue, Random], str], int], ...] = (
    (_append, 6),
    (_edit_row, 6),
    (_delete_row, 4),
    (_advance, 4),
    (_add_import, 3),
    (_delete_import, 1),
)


def _row_like(catalogue: Catalogue, found: StoredImport, dice: Random) -> str | dict[str, Any]:
    """Return a row that fits the import: generated for known templates, else a changed copy of one it has."""
    template = catalogue.template_of(found)
    if template is not None and template.name in TEMPLATES:
        return generated_text(template.name, dice.randrange(10**6), "script", dice.getrandbits(32))
    if not len(found.rows):
        return {"note": f"added {dice.randrange(1000)}"}
    return _changed(_row_at(found, found.rows.index_at(dice.randrange(len(found.rows)))), dice)


def _row_at(found: StoredImport, index: int) -> Any:
    touched = found.rows.touched.get(index)
    try:
        text = touched.text if touched else found.rows.source.text(index)
        return json.loads(text, parse_float=_finite)
    except ValueError:
        return None


def _finite(digits: str) -> float | str:
    """Return the number, or its text if it exceeds the range of floats, because infinity is not valid JSON."""
    value = float(digits)
    return value if math.isfinite(value) else digits


def _changed(row: Any, dice: Random) -> dict[str, Any]:
    """Return the row with another value in one cell, of the same type if possible."""
    if not isinstance(row, dict) or not row:
        return {"note": f"edited {dice.randrange(1000)}"}
    key = dice.choice(list(row))
    value = row[key]
    changed: Any = f"edited {dice.randrange(1000)}"
    if isinstance(value, bool):
        changed = not value
    elif isinstance(value, int | float):
        changed = value + dice.randint(1, 9)
    elif isinstance(value, list):
        changed = [*value, dice.randrange(1000)]
    return {**row, key: changed}
