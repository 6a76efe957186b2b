"""Rows of the table `imports`: what changed in the listing, with its metadata flattened, and tombstones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from connector.core.flatten import flatten
from connector.core.names import display_path, encode_keys
from connector.core.schema import Field, Kind, TableSchema, parse_type
from connector.core.texts import storable
from connector.loading import Catalogue
from connector.models import Import
from connector.tables import (
    FIELDS,
    FIELDS_SCHEMA,
    IMPORTS,
    IMPORTS_SCHEMA,
    LOAD_ID,
    UTC_US,
    Emission,
    table_of,
)

METADATA = "metadata"
_WRITTEN = 2  # raised with each change of how the same import is written: its row is then written anew


def content_hash(import_: Import) -> str:
    """Changes whenever a column of the import's row does."""
    parts: list[Any] = [
        _WRITTEN,
        import_.slug,
        import_.row_count,
        import_.created_at.isoformat(),
        import_.updated_at.isoformat(),
        import_.status,
        import_.template_slug,
        import_.template_name,
    ]
    digest = hashlib.blake2b(json.dumps(parts).encode("utf-8", "surrogatepass"), digest_size=16)
    digest.update(import_.metadata_json or b"")
    return digest.hexdigest()


def import_emissions(
    imports: Sequence[Import], catalogue: Catalogue, load_id: str, now: datetime, *, nul_safe: bool
) -> Iterable[Emission]:
    """The rows of these imports, and the data dictionary of their metadata."""
    if not imports:
        return
    rows = table_of(IMPORTS_SCHEMA, [_row(import_, load_id, nul_safe) for import_ in imports])
    known = catalogue.schema(IMPORTS)
    flat = flatten([b'{"metadata":' + (i.metadata_json or b"null") + b"}" for i in imports], known, nul_safe=nul_safe)
    scalars = {f.keys: f for f in flat.schema.fields.values() if _is_scalar_of_metadata(f)}
    for each in scalars.values():
        for column in each.columns():
            if column in flat.columns:
                rows = rows.append_column(column, flat.columns[column])
    catalogue.schemas[IMPORTS] = TableSchema(IMPORTS, {**known.fields, **scalars}, known.physical)
    yield Emission(IMPORTS, rows)
    fields = [_field_row(each, catalogue, load_id, now, nul_safe) for each in scalars.values()]
    if fields:
        yield Emission(FIELDS, table_of(FIELDS_SCHEMA, fields))


def tombstones(old: pa.Table, slugs: Sequence[str], load_id: str, now: datetime) -> Emission:
    """The rows of deleted imports as the warehouse has them, marked; one it never had gets a row of its slug."""
    rows = old
    if rows.num_rows:
        deleted_at = [value or now for value in rows.column("_deleted_at").to_pylist()]
        rows = rows.set_column(rows.column_names.index("_deleted_at"), "_deleted_at", pa.array(deleted_at, UTC_US))
        loads = pa.repeat(pa.scalar(load_id), rows.num_rows)
        rows = rows.set_column(rows.column_names.index(LOAD_ID), LOAD_ID, loads)
        fields = [
            IMPORTS_SCHEMA.field(f.name) if f.name in IMPORTS_SCHEMA.names else pa.field(f.name, f.type)
            for f in rows.schema
        ]
        rows = rows.cast(pa.schema(fields))
    there = set(rows.column("slug").to_pylist()) if rows.num_rows else set()
    missing = [{"slug": s, "_deleted_at": now, LOAD_ID: load_id} for s in slugs if s not in there]
    parts = [part for part in (rows, table_of(IMPORTS_SCHEMA, missing)) if part.num_rows]
    return Emission(IMPORTS, pa.concat_tables(parts, promote_options="default"))


def _row(import_: Import, load_id: str, nul_safe: bool) -> dict[str, Any]:
    return {
        "slug": import_.slug,
        "row_count": import_.row_count,
        "created_at": import_.created_at,
        "updated_at": import_.updated_at,
        "status": storable(import_.status, nul_safe=nul_safe),
        "template__slug": import_.template_slug,
        "template__name": None if import_.template_name is None else storable(import_.template_name, nul_safe=nul_safe),
        "metadata": None if import_.metadata_json is None else import_.metadata_json.decode(),
        "_content_hash": content_hash(import_),
        LOAD_ID: load_id,
    }


def _is_scalar_of_metadata(known: Field) -> bool:
    named = len(known.keys) == 2 and known.keys[0] == METADATA
    return named and (known.type is None or parse_type(known.type).kind is not Kind.JSON)


def _field_row(known: Field, catalogue: Catalogue, load_id: str, now: datetime, nul_safe: bool) -> dict[str, Any]:
    return {
        "table_name": IMPORTS,
        "column_name": known.column,
        "path": storable(display_path(known.keys), nul_safe=nul_safe),
        "keys": encode_keys(known.keys),
        "data_type": known.type,
        "has_text": known.has_text,
        "has_double": known.has_double,
        "first_seen_at": catalogue.first_seen.setdefault((IMPORTS, known.column), now),
        "last_seen_at": now,
        LOAD_ID: load_id,
    }
