"""Render imports and records as the JSON texts of the API, under the current switches."""

from __future__ import annotations

import json
from typing import Any

from connector.sandbox.catalogue import Catalogue, StoredImport
from connector.sandbox.switches import Switches
from connector.sandbox.times import time_text


def import_fields(catalogue: Catalogue, found: StoredImport, switches: Switches) -> dict[str, Any]:
    zone, fraction = switches.time_zone, switches.time_fraction
    shown: dict[str, Any] = {
        "slug": found.slug,
        "row_count": found.shown_row_count(),
        "created_at": time_text(found.created_at, zone, fraction),
        "updated_at": time_text(found.updated_at, zone, fraction),
        "status": found.status,
    }
    if switches.template != "absent":
        template = None if switches.template == "null" else catalogue.template_of(found)
        shown["template"] = template and {"name": template.name, "slug": template.slug}
    if switches.metadata != "absent":
        shown["metadata"] = None if switches.metadata == "null" else found.metadata
    if switches.extra_fields:
        shown["file_name"] = f"{found.slug}.csv"
        shown["uploader"] = {"rows": len(found.rows)}
    return shown


def import_text(catalogue: Catalogue, found: StoredImport, switches: Switches) -> str:
    return json.dumps(import_fields(catalogue, found, switches))


def record_extra_text(index: int, switches: Switches) -> str | None:
    """Return a record's undocumented fields, as members of an object; every third record has none."""
    if not switches.extra_fields or index % 3 == 2:
        return None
    return f'"row_errors":[{{"line":{index}.10}}],"valid":{"true" if index % 2 else "null"}'


def record_text(found: StoredImport, index: int, switches: Switches) -> str:
    """Return one record; its row is inserted as text, so that digits, escapes and repeated keys are kept."""
    rows = found.rows
    touched = rows.touched.get(index)
    if touched is None:
        data = rows.source.text(index)
    elif touched.whole:
        return touched.text
    else:
        data = touched.text
    created_at, updated_at = rows.times(index)
    zone, fraction = switches.time_zone, switches.time_fraction
    extra = record_extra_text(index, switches)
    end = "" if extra is None else f",{extra}"
    return (
        f'{{"slug":"{rows.slug(index)}","data":{data},'
        f'"created_at":"{time_text(created_at, zone, fraction)}",'
        f'"updated_at":"{time_text(updated_at, zone, fraction)}","sort":{index}{end}}}'
    )


def records_metadata_text(found: StoredImport, switches: Switches) -> str:
    """Return the end of a records reply, from the comma on."""
    if switches.records_metadata == "absent":
        return ""
    if switches.records_metadata == "null":
        return ',"metadata":null'
    return f',"metadata":{json.dumps(found.metadata or {})}'
