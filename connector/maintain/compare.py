"""Find the differences between what the service shows and the warehouse holds of one import. Pure: no I/O, no clock.

Columns are compared as Arrow arrays, and only unequal ones row by row. A sentence never shows a value of a record:
contents are identified by their hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from connector.extract.spill import BATCH_ROWS, Records, batches
from connector.ledger import LedgerRow, State
from connector.models import Import, Record
from connector.settings import Settings
from connector.standing import Standing, standing
from connector.transform import width
from connector.transform.casting import is_scalar_beside_text
from connector.transform.flatten import Flattened, flatten, leaf_values
from connector.transform.json_rows import has_minus_zero, normal_json, was_kept_as_received, without_minus_zero
from connector.transform.naming import SYSTEM_COLUMNS
from connector.transform.schema import NOT_OURS, Field, TableSchema
from connector.transform.schema import Kind as Type
from connector.transform.width import Room
from connector.transform.written import hints_as_stored
from connector.warehouse.tables import RECORDS, UTC_US

_NOT_FIELDS = SYSTEM_COLUMNS | {"_dlt_id"}


class Kind(StrEnum):
    """The kind of a difference, by which programs can filter."""

    import_missing = "import_missing"
    import_extra = "import_extra"
    import_tombstoned = "import_tombstoned"
    import_differs = "import_differs"
    not_synced = "not_synced"
    not_reconciled = "not_reconciled"
    stale = "stale"
    count_differs = "count_differs"
    record_missing = "record_missing"
    record_extra = "record_extra"
    record_twice = "record_twice"
    record_differs = "record_differs"
    record_rejected = "record_rejected"
    typed_differs = "typed_differs"
    history_differs = "history_differs"
    counts_differ = "counts_differ"


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of the report."""

    kind: Kind
    sentence: str
    import_slug: str | None = None
    record_slug: str | None = None
    table: str | None = None
    column: str | None = None

    def as_json(self) -> dict[str, str]:
        return {name: str(value) for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Holding:
    """The rows of one import in the warehouse: ledger row, row of `imports` or None, live rows by table."""

    known: LedgerRow | None
    deleted: bool | None
    live: Mapping[str, int]


def import_differences(import_: Import, holding: Holding, settings: Settings) -> Iterator[Difference]:
    """Yield the differences that can be found without reading a record."""
    slug, known = import_.slug, holding.known
    if holding.deleted is None:
        yield Difference(Kind.import_missing, f"Import {slug} is not in the table imports.", slug)
    elif holding.deleted:
        yield Difference(Kind.import_tombstoned, f"Import {slug} is marked deleted, but the service lists it.", slug)
    if not settings.includes(import_.template_names):
        return
    if known is None or known.state is State.deleted:
        if holding.deleted is False:
            yield Difference(Kind.not_synced, f"Import {slug} was never synced.", slug)
        return
    if not known.trusted:
        yield Difference(Kind.not_synced, f"Import {slug} was left partly loaded by a run that died.", slug)
    elif known.state is State.excluded:
        yield Difference(Kind.not_synced, f"Import {slug} was left out when it was last listed.", slug)
    elif known.state is State.failed:
        yield Difference(Kind.not_synced, f"Import {slug} failed when it was last read.", slug)
    elif not known.is_at(import_):
        sentence = f"Import {slug} changed since its last sync (row_count {known.row_count} → {import_.row_count})."
        yield Difference(Kind.stale, sentence, slug)
    else:
        yield from _against_row_count(import_, known, settings)
    yield from _counts(slug, known, holding, settings)


def _against_row_count(import_: Import, known: LedgerRow, settings: Settings) -> Iterator[Difference]:
    slug, there = import_.slug, known.records_loaded + known.records_rejected
    if known.records_rejected:
        sentence = f"Import {slug}: {known.records_rejected} records were rejected and are in sync_rejects only."
        yield Difference(Kind.record_rejected, sentence, slug)
    doubtful = standing(known) is Standing.unreconciled
    if (doubtful or standing(known) is Standing.accepted) and not known.adds_up and settings.reconcile != "off":
        sentence = f"Import {slug}: {there} records were read where row_count says {import_.row_count}."
        yield Difference(Kind.not_reconciled, sentence, slug)
    elif doubtful:
        sentence = f"Import {slug} did not reconcile when it was last read; the next run reads it again."
        yield Difference(Kind.not_reconciled, sentence, slug)


def _counts(slug: str, known: LedgerRow, holding: Holding, settings: Settings) -> Iterator[Difference]:
    expected: dict[str, int] = {}
    if settings.raw:
        expected[RECORDS] = known.records_loaded
    if settings.typed:
        if known.table_name is None and known.records_loaded:
            yield Difference(Kind.count_differs, f"Import {slug} is in no typed table.", slug)
        elif known.table_name is not None:
            expected[known.table_name] = known.records_loaded
    others = [t for t in holding.live if t != RECORDS and t != known.table_name and settings.typed]
    for table in [*expected, *sorted(others)]:
        wanted, there = expected.get(table, 0), holding.live.get(table, 0)
        if wanted != there:
            sentence = f"Import {slug}: the ledger says {wanted} rows in {table}, there are {there}."
            yield Difference(Kind.count_differs, sentence, slug, table=table)


def row_differences(key: str, expected: pa.Table, stored: pa.Table) -> Iterator[tuple[str, list[str]]]:
    """Yield (key, differing columns) for each row of `expected` that `stored` has under the same key."""
    aligned = Aligned.of(expected.column(key), stored, key)
    shown = expected.take(aligned.present)
    unlike: dict[int, list[str]] = {}
    for name in expected.column_names:
        there = aligned.rows.column(name) if name in stored.column_names else pa.nulls(shown.num_rows)
        for row in unlike_rows(shown.column(name), there):
            unlike.setdefault(row, []).append(name)
    slugs = shown.column(key)
    yield from ((slugs[row].as_py(), columns) for row, columns in sorted(unlike.items()))


def record_differences(
    import_slug: str,
    table: str,
    records: Records,
    stored: pa.Table,
    columns: Mapping[str, str],
    shared: Mapping[str, str | None] = MappingProxyType({}),
) -> Iterator[Difference]:
    """Compare the service's records with live rows; `columns`: slug, sort, times and maybe data → name in `table`.

    `shared` are columns of the table that have the same value in all rows of an import.
    """
    expected = _expected(records, columns)
    for name, value in shared.items():
        expected = expected.append_column(name, pa.array([value] * len(expected), pa.string()))
    key = columns["slug"]
    live = live_rows(stored)
    aligned = Aligned.of(expected.column(key), live, key)
    marked = set(stored.column(key).to_pylist()) if stored.num_rows else set()
    for slug in aligned.missing:
        why = "is marked deleted in" if slug in marked else "is not in"
        yield _of_record(Kind.record_missing, f"Record {slug} {why} {table}.", import_slug, slug, table)
    for slug in aligned.extra:
        sentence = f"Record {slug} is in {table}, but the service does not show it."
        yield _of_record(Kind.record_extra, sentence, import_slug, slug, table)
    for slug in aligned.twice:
        yield _of_record(Kind.record_twice, f"Record {slug} is in {table} more than once.", import_slug, slug, table)
    for slug, unlike in row_differences(key, expected, live):
        sentence = f"Record {slug} differs in {table}: {', '.join(unlike)}"
        if "data" in unlike:
            hashes = (_hash_of(expected, key, slug), _hash_of(live, key, slug))
            sentence += f" (content hash {hashes[0]} → {hashes[1]})"
        yield _of_record(Kind.record_differs, f"{sentence}.", import_slug, slug, table, ", ".join(unlike))


def typed_differences(
    import_slug: str,
    source: pa.Table,
    stored: pa.Table,
    schema: TableSchema,
    columns: Mapping[str, str],
    hints: Mapping[str, str],
    *,
    nul_safe: bool,
) -> Iterator[Difference]:
    """Compare typed rows with `source` (`slug`, `data`): each leaf has to be in its column or a variant of it.

    `columns` of `source` are compared too, each with the typed column it maps to; without any, slugs are not compared.
    """
    live = live_rows(stored)
    aligned = Aligned.of(source.column("slug"), live, "_record_slug")
    if columns:
        for slug in aligned.missing:
            sentence = f"Record {slug} has no row in {schema.table}."
            yield _of_record(Kind.typed_differs, sentence, import_slug, slug, schema.table)
        for slug in aligned.extra:
            sentence = f"Record {slug} has a row in {schema.table} and no raw row."
            yield _of_record(Kind.typed_differs, sentence, import_slug, slug, schema.table)
        renamed = source.select(list(columns)).rename_columns(list(columns.values()))
        for slug, unlike in row_differences("_record_slug", renamed, live):
            sentence = f"Record {slug} differs from its raw row in {schema.table}: {', '.join(unlike)}."
            yield _of_record(Kind.typed_differs, sentence, import_slug, slug, schema.table, ", ".join(unlike))
    source = source.take(aligned.present)
    for start in range(0, source.num_rows, BATCH_ROWS):
        part, rows = source.slice(start, BATCH_ROWS), aligned.rows.slice(start, BATCH_ROWS)
        slugs: list[Any] = part.column("slug").to_pylist()
        data: list[Any] = part.column("data").cast(pa.binary()).to_pylist()
        for row, column in _unlike_cells(data, rows, schema, hints, nul_safe):
            sentence = f"Record {slugs[row]}: {schema.table}.{column} does not match the value in the row."
            yield _of_record(Kind.typed_differs, sentence, import_slug, slugs[row], schema.table, column)


def _unlike_cells(
    data: Sequence[bytes], rows: pa.Table, schema: TableSchema, hints: Mapping[str, str], nul_safe: bool
) -> Iterator[tuple[int, str]]:
    """Yield (row, column) of each cell that differs from every value that may have been written for it.

    A hint may have been added or removed after a row was written, while the column keeps its type: the value with and
    without the hint is accepted, and the value of the type alone if the hint has a format. The value that an earlier
    version wrote is accepted too, because rows stay unchanged until their import is read again.
    """
    room = Room(columns=width.WIDTH.columns)
    try:
        plain = flatten(data, schema, {}, nul_safe=nul_safe, room=room)
    except (ValueError, TypeError):
        data = _only_objects(data)
        plain = flatten(data, schema, {}, nul_safe=nul_safe, room=room)
    types = {known.column: known.type for known in schema.fields.values() if known.type is not None}
    written = hints_as_stored(schema.fields.values(), hints)
    readings = [types] if written == types else [types, written]
    hinted: dict[int, Flattened] = {}
    theirs = {name for name, kind in schema.physical.items() if kind == NOT_OURS}
    stored = {name: rows.column(name) for name in rows.column_names if name not in theirs}
    explained = set(_NOT_FIELDS)
    earlier: dict[int, Flattened] = {}
    for keys, known in plain.schema.fields.items():
        explained.update((known.column, known.text_column, known.double_column))
        unlike = _unlike_field(known, plain, stored)
        for n, reading in enumerate(readings):
            if unlike:
                if n not in hinted:
                    hinted[n] = flatten(data, schema, {**hints, **reading}, nul_safe=nul_safe, room=room)
                unlike &= _unlike_field(hinted[n].schema.fields[keys], hinted[n], stored)
        for row in sorted(unlike):
            if row not in earlier:
                earlier[row] = _as_written_earlier(data[row], schema, nul_safe, room)
            before = earlier[row]
            own = {name: column.slice(row, 1) for name, column in stored.items() if name.startswith(known.column)}
            if was_kept_as_received(data[row]):
                own = {name: _normal(column) for name, column in own.items()}
            if keys not in before.schema.fields or _unlike_field(before.schema.fields[keys], before, own):
                yield row, known.column
    for name in stored.keys() & schema.physical.keys() - explained:
        filled = stored[name].is_valid().to_pylist()
        yield from ((row, name) for row, value in enumerate(filled) if value)


def _as_written_earlier(text: bytes, schema: TableSchema, nul_safe: bool, room: Room) -> Flattened:
    """Return the row as the first version wrote it: `-0` as 0, a scalar beside text in the column's variant."""
    if has_minus_zero(text):
        text = without_minus_zero(text)
    flat = flatten([text], schema, {}, nul_safe=nul_safe, room=room)
    columns = dict(flat.columns)
    for keys, values in leaf_values([text], flat.schema):
        known = flat.schema.fields[keys]
        if known.type == Type.TEXT and any(map(is_scalar_beside_text, values)):
            columns[known.text_column] = columns.pop(known.column)
    return replace(flat, columns=columns)


def _normal(column: Any) -> Any:
    """Return a column with its JSON as it is written now."""
    if not pa.types.is_string(column.type):
        return column
    return pa.array([_normal_text(each) for each in column.to_pylist()], pa.string())


def _normal_text(text: str | None) -> str | None:
    with suppress(ValueError):
        return text if text is None else normal_json(text)
    return text


def _only_objects(data: Iterable[bytes | None]) -> list[bytes]:
    """Replace raw rows that are no longer JSON objects by empty ones; they differ from the service anyway."""
    kept: list[bytes] = []
    for text in data:
        try:
            flatten([text or b""], TableSchema(""))
            kept.append(text or b"")
        except ValueError:
            kept.append(b"{}")
    return kept


def _unlike_field(known: Field, flat: Flattened, stored: Mapping[str, Any]) -> set[int]:
    unlike: set[int] = set()
    for name in (known.column, known.text_column, known.double_column):
        expected: Any = flat.columns.get(name)
        there = stored.get(name)
        if expected is None and there is not None:
            expected = pa.nulls(len(there))
        elif there is None and expected is not None:
            there = pa.nulls(len(expected))
        elif expected is None:
            continue
        unlike.update(unlike_rows(expected, there))
    return unlike


@dataclass(frozen=True, slots=True)
class Aligned:
    """Stored rows in the order of the expected keys: `rows[i]` belongs to the key at `present[i]`."""

    rows: pa.Table
    present: pa.Array[Any]
    missing: list[Any]
    extra: list[Any]
    twice: list[Any]

    @classmethod
    def of(cls, keys: pa.ChunkedArray[Any], stored: pa.Table, key: str) -> Aligned:
        wanted = _flat(keys).cast(pa.string())
        there = _flat(stored.column(key)).cast(pa.string()) if stored.num_rows else pa.array([], pa.string())
        places = pc.index_in(wanted, value_set=there)
        found = places.is_valid()
        extra = there.filter(pc.invert(pc.is_in(there, value_set=wanted)))
        counted: Any = pc.value_counts(there)
        twice = counted.field(0).filter(pc.greater(counted.field(1), pa.scalar(1)))
        return cls(
            stored.take(places.drop_null()) if stored.num_rows else stored,
            pc.indices_nonzero(found),
            wanted.filter(pc.invert(found)).to_pylist(),
            extra.to_pylist(),
            twice.to_pylist(),
        )


def live_rows(stored: pa.Table) -> pa.Table:
    """Return the rows that the service should show, without those that `deletes = keep` marked."""
    return stored.filter(stored.column("_deleted_at").is_null()) if stored.num_rows else stored


def unlike_rows(expected: Any, stored: Any) -> list[int]:
    """Return the positions at which the two columns differ; null equals null."""
    expected, stored = _flat(expected), _flat(stored)
    if pa.types.is_null(expected.type):
        return list(pc.indices_nonzero(stored.is_valid()).to_pylist())
    comparable: Any = _as_type(stored, expected.type)
    if comparable is None:
        return list(range(len(expected)))
    same: Any = pc.fill_null(pc.equal(expected, comparable), False)
    both_null: Any = pc.and_(expected.is_null(), comparable.is_null())
    return list(pc.indices_nonzero(pc.invert(pc.or_(same, both_null))).to_pylist())


def _as_type(column: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any] | None:
    """Return the column as `kind` if that changes no value, else None; drivers differ in decimals, times and JSON."""
    with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column.cast(kind)
    with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return pa.array(column.to_pylist(), kind)
    return None


def _flat(column: Any) -> pa.Array[Any]:
    whole: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return cast("pa.Array[Any]", whole.storage if isinstance(whole, pa.ExtensionArray) else whole)


def _expected(records: Records, columns: Mapping[str, str]) -> pa.Table:
    slices = [_columns(some) for some in batches(records)] or [_columns(())]
    made = pa.concat_tables(slices)
    return pa.table({name: made.column(what) for what, name in columns.items()})


def _columns(records: Sequence[Record]) -> pa.Table:
    return pa.table(
        {
            "slug": pa.array([r.slug for r in records], pa.string()),
            "sort": pa.array([r.sort for r in records], pa.int64()),
            "created_at": pa.array([r.created_at for r in records], pa.int64()).view(UTC_US),
            "updated_at": pa.array([r.updated_at for r in records], pa.int64()).view(UTC_US),
            "data": pa.array([r.data for r in records], pa.binary()).cast(pa.string()),
            "extra": pa.array([r.extra for r in records], pa.binary()).cast(pa.string()),
        }
    )


def _hash_of(rows: pa.Table, key: str, slug: str) -> str:
    place = pc.index(_flat(rows.column(key)), pa.scalar(slug, rows.schema.field(key).type)).as_py()
    text = rows.column("data")[place].as_py()
    return "none" if text is None else content_hash(text)


def content_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _of_record(
    kind: Kind, sentence: str, import_slug: str, record_slug: str, table: str, column: str | None = None
) -> Difference:
    return Difference(kind, f"Import {import_slug}: {sentence}", import_slug, record_slug, table, column)


def sorted_lines(differences: Iterable[Difference]) -> list[Difference]:
    return sorted(differences, key=lambda d: (d.import_slug or "", d.record_slug or "", d.kind, d.sentence))
