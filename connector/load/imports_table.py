"""Build rows of the table `imports`: those that changed, with their metadata as columns, and tombstones.

Invariant: a row shows the latest listing and the latest reply with the records. If only one of them was read, the part
of the other stays unchanged; `_content_hash` has a hash of each part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from connector.load.data_dictionary import Catalogue, FieldRows
from connector.load.table_rows import TableRows
from connector.models import Import
from connector.transform.escaping import storable
from connector.transform.members import flatten_members
from connector.transform.naming import RULES_COLUMN
from connector.transform.row_limits import Limits
from connector.transform.schema import OVERFLOWED, Field, TableSchema
from connector.warehouse.tables import (
    FIELDS,
    FIELDS_SCHEMA,
    IMPORTS,
    IMPORTS_SCHEMA,
    LOAD_ID,
    TOMBSTONE,
    mark_deleted,
    table_of,
)

METADATA, EXTRA = "metadata", "extra"
SYSTEM_BYTES = 800  # at most, of a row in PostgreSQL without its columns of metadata and extra
_FORMAT = 2  # incremented when the same import gives another row than before, so that all rows are written again


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """The column `records_metadata` of a row, and the privacy rules that all its values are under, if known."""

    text: str | None
    rules: str | None


@dataclass(frozen=True, slots=True)
class ImportRow:
    """An import, and the other contents of the reply with its records when it was last read.

    `rules` is the fingerprint of the privacy rules for metadata, and `mixed` says that `records_metadata` may have been
    read under others.
    """

    import_: Import
    records_metadata: str | None
    rules: str | None
    mixed: bool = False

    @property
    def content_hash(self) -> str:
        """Return a hash that changes whenever a column of the row changes."""
        if self.records_metadata is None:
            return listing_hash(self.import_, self.rules)
        text = f"{'mixed ' if self.mixed else ''}{self.records_metadata}"
        return f"{listing_hash(self.import_, self.rules)}:{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def read_row(import_: Import, records_metadata: bytes | None, rules: str | None) -> ImportRow:
    """Return the row of an import whose records were just read."""
    text = None if records_metadata is None else records_metadata.decode("utf-8", "backslashreplace")
    return ImportRow(import_, text, rules)


def listed_row(import_: Import, stored: StoredMetadata | None, rules: str | None) -> ImportRow:
    """Return the row of an import whose records were not read; `stored` is in its row now."""
    if stored is None or stored.text is None:
        return ImportRow(import_, None, rules)
    return ImportRow(import_, stored.text, rules, mixed=stored.rules != rules)


def listing_hash(import_: Import, rules: str | None) -> str:
    """Return the hash of an import as the listing shows it: the first part of the row's `_content_hash`."""
    parts: list[Any] = [
        _FORMAT,
        import_.slug,
        import_.row_count,
        import_.created_at.isoformat(),
        import_.updated_at.isoformat(),
        import_.status,
        import_.template_slug,
        import_.shown_template_name,
        (import_.metadata_json or b"").decode(),
        (import_.extra_json or b"").decode(),
        *(() if rules is None else (rules,)),
    ]
    return hashlib.blake2b(json.dumps(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def is_listed_as(stored_hash: str | None, import_: Import, rules: str | None) -> bool:
    """Return whether the row with this `_content_hash` equals the import in the listing."""
    return stored_hash is not None and stored_hash.partition(":")[0] == listing_hash(import_, rules)


def import_table_rows(
    imports: Sequence[ImportRow],
    catalogue: Catalogue,
    load_id: str,
    now: datetime,
    *,
    limits: Limits | None,
    nul_safe: bool,
) -> Iterable[TableRows]:
    """Yield the rows of these imports, and the rows of `sync_fields` for the columns in which they have a value."""
    if not imports:
        return
    rows = table_of(IMPORTS_SCHEMA, [_row(each, load_id, nul_safe) for each in imports])
    if any(each.rules is not None for each in imports):
        marks = [None if each.mixed else each.rules for each in imports]
        rows = rows.append_column(RULES_COLUMN, pa.array(marks, pa.string()))
    known = catalogue.schema(IMPORTS)
    free = [{METADATA: each.import_.metadata_json, EXTRA: each.import_.extra_json} for each in imports]
    members = flatten_members(
        free,
        known,
        other_columns={*IMPORTS_SCHEMA.names, RULES_COLUMN},
        row_bytes=None if limits is None else limits.row_bytes - SYSTEM_BYTES,
        most_columns=None if limits is None else limits.columns,
        nul_safe=nul_safe,
    )
    flat = members.flat
    for name, column in flat.columns.items():
        rows = rows.append_column(name, column)
    catalogue.schemas[IMPORTS] = TableSchema(IMPORTS, {**known.fields, **flat.schema.fields}, known.physical)
    yield TableRows(IMPORTS, rows)
    seen = [flat.schema.fields[keys] for keys in flat.counts]
    seen += [Field((name,), name, OVERFLOWED) for name in sorted(members.overflowed)]
    writer = FieldRows(catalogue.first_seen, catalogue.last_seen, now, load_id, nul_safe=nul_safe)
    fields = [writer.row(IMPORTS, each) for each in seen]
    if fields:
        yield TableRows(FIELDS, table_of(FIELDS_SCHEMA, fields))


def records_metadata_of(rows: pa.Table) -> dict[str, StoredMetadata]:
    """Return slug → `records_metadata` of stored rows; a table of an earlier version has none."""
    if not rows.num_rows or "records_metadata" not in rows.column_names:
        return {}
    texts, marks = (
        rows.column(name).cast(pa.string()).to_pylist() if name in rows.column_names else [None] * rows.num_rows
        for name in ("records_metadata", RULES_COLUMN)
    )
    slugs: list[Any] = rows.column("slug").to_pylist()
    return dict(zip(slugs, map(StoredMetadata, texts, marks), strict=True))


def tombstones(old: pa.Table, slugs: Sequence[str], load_id: str, now: datetime, *, keeps: bool) -> TableRows:
    """Return the stored rows of deleted imports, marked as deleted.

    An import without a row gets one with its slug. Unless `keeps`, only the columns in `TOMBSTONE` are kept.
    """
    rows = old if keeps else old.select([name for name in old.column_names if name in TOMBSTONE])
    if rows.num_rows:
        rows = mark_deleted(rows, now, load_id)
        fields = [
            IMPORTS_SCHEMA.field(f.name) if f.name in IMPORTS_SCHEMA.names else pa.field(f.name, f.type)
            for f in rows.schema
        ]
        rows = rows.cast(pa.schema(fields))
    there = set(rows.column("slug").to_pylist()) if rows.num_rows else set()
    missing = [{"slug": s, "_deleted_at": now, LOAD_ID: load_id} for s in slugs if s not in there]
    parts = [part for part in (rows, table_of(IMPORTS_SCHEMA, missing)) if part.num_rows]
    return TableRows(IMPORTS, pa.concat_tables(parts, promote_options="default"))


def _row(row: ImportRow, load_id: str, nul_safe: bool) -> dict[str, Any]:
    import_ = row.import_
    name = import_.shown_template_name
    return {
        "slug": import_.slug,
        "row_count": import_.row_count,
        "created_at": import_.created_at,
        "updated_at": import_.updated_at,
        "status": storable(import_.status, nul_safe=nul_safe),
        "template__slug": import_.template_slug,
        "template__name": None if name is None else storable(name, nul_safe=nul_safe),
        "metadata": None if import_.metadata_json is None else import_.metadata_json.decode(),
        "extra": None if import_.extra_json is None else import_.extra_json.decode(),
        "records_metadata": row.records_metadata,
        "_content_hash": row.content_hash,
        LOAD_ID: load_id,
    }
