"""Build the Arrow columns of the rows of imports.

Invariant: the columns are the same as if imports were built one at a time, in the order in which they are loaded,
because the fields of one import decide how those of the next are named and typed. If the rows change nothing in the
schema of their table, the order does not matter, and imports of one template are built together. Imports may be built
long before they are loaded: neither the package nor its load id is needed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from connector.extract.records import ImportRead
from connector.extract.spill import SpilledRecords, Spool, batches
from connector.load.flatten_process import Texts, flatten_here
from connector.models import Import, Record
from connector.settings import Settings
from connector.transform.flatten import Flattened
from connector.transform.json_rows import read_rows
from connector.transform.naming import table_name
from connector.transform.row_limits import Limits
from connector.transform.schema import TableSchema
from connector.transform.width import UNBOUNDED, NewFields, Room, TooWide, Width
from connector.warehouse.tables import UTC_US

MOST_BYTES = 16 * 2**20  # of JSON that are flattened at once


class Flatten(Protocol):
    """The signature of `connector.load.flatten_process.flatten_here`, which may run in another process."""

    def __call__(
        self, texts: Texts, schema: TableSchema, hints: Mapping[str, str], /, *, nul_safe: bool, room: Room = ...
    ) -> Flattened: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Some records as columns of equal length: those that raw and typed rows share, and those of only one of them.

    `data` is None without raw rows, `flat` without typed ones, `extra` if no record has any.
    """

    slug: pa.Array[Any]
    sort: pa.Array[Any]
    created_at: pa.Array[Any]
    updated_at: pa.Array[Any]
    data: pa.Array[Any] | None
    flat: Flattened | None
    extra: pa.Array[Any] | None = None

    def __len__(self) -> int:
        return len(self.slug)

    @property
    def nbytes(self) -> int:
        columns = [] if self.flat is None else list(self.flat.columns.values())
        raw = sum(0 if column is None else column.get_total_buffer_size() for column in (self.data, self.extra))
        return max(sum(column.get_total_buffer_size() for column in columns), raw)  # nbytes is ten times slower


@dataclass(frozen=True, slots=True)
class BuiltImports:
    """The rows of one import, or of several of one template; the records are removed from `reads`.

    `sizes` are the numbers of records of each import. The rows of several imports are in one `Batch` at most, one
    import after the other. `refusal` says why the destination cannot hold the rows in a typed table. `deferred` is set
    if the import needs a new column in a table to which this run may not add one.
    """

    reads: tuple[ImportRead, ...]
    sizes: tuple[int, ...]
    table: str | None = None
    refusal: str | None = None
    rows: Iterable[Batch] = ()
    deferred: bool = False

    @classmethod
    def of(
        cls, reads: Sequence[ImportRead], table: str | None, rows: Iterable[Batch], refusal: str | None = None
    ) -> BuiltImports:
        """Take the records out of `reads`."""
        sizes = tuple(len(read.records) for read in reads)
        return cls(tuple(replace(read, records=()) for read in reads), sizes, table, refusal, rows)

    def __len__(self) -> int:
        return sum(self.sizes)


class SpilledRows:
    """Rows in a spool, except their slugs, which stay in memory; they can be iterated more than once."""

    def __init__(self) -> None:
        self._spool = Spool()
        self._slugs: list[pa.Array[Any]] = []
        self._flats: list[tuple[Flattened, tuple[str, ...]] | None] = []
        self._raw = False
        self._extras: list[bool] = []

    def append(self, rows: Batch) -> None:
        flat = rows.flat
        columns = [rows.sort, rows.created_at, rows.updated_at]
        if rows.data is not None:
            columns.append(rows.data)
        self._raw = rows.data is not None
        self._extras.append(rows.extra is not None)
        if rows.extra is not None:
            columns.append(rows.extra)
        self._slugs.append(rows.slug)  # kept to the end of the package; a slice would keep a whole piece
        self._flats.append(None if flat is None else (replace(flat, columns={}), tuple(flat.columns)))
        columns.extend([] if flat is None else flat.columns.values())
        batch = pa.RecordBatch.from_arrays(columns, [str(n) for n in range(len(columns))])
        packed = pa.BufferOutputStream()
        with pa.ipc.new_stream(packed, batch.schema) as stream:
            stream.write_batch(batch)
        self._spool.add(packed.getvalue())

    def __iter__(self) -> Iterator[Batch]:
        for piece, slug, flat, extras in zip(self._spool, self._slugs, self._flats, self._extras, strict=True):
            with pa.ipc.open_stream(piece) as stream:
                sort, created_at, updated_at, *columns = stream.read_next_batch().columns
            data = columns.pop(0) if self._raw else None
            extra = columns.pop(0) if extras else None
            filled = None if flat is None else replace(flat[0], columns=dict(zip(flat[1], columns, strict=True)))
            yield Batch(slug, sort, created_at, updated_at, data, filled, extra)


class Builder:
    """A builder that keeps the schemas that typed tables will have once all it built is loaded; not thread-safe."""

    def __init__(
        self,
        settings: Settings,
        schemas: Mapping[str, TableSchema],
        template_tables: Mapping[str, str],
        *,
        foreign: frozenset[str] = frozenset(),
        frozen: frozenset[str] = frozenset(),
        limits: Limits | None,
        nul_safe: bool,
        width: Width | None = None,
        flatten: Flatten = flatten_here,
    ) -> None:
        self._settings = settings
        self._schemas = dict(schemas)
        self._template_tables = dict(template_tables)
        self._foreign = foreign
        self._frozen = frozen  # tables that must not change
        self._limits = limits
        self._nul_safe = nul_safe
        self._width = width
        self._flatten = flatten

    def build_all(self, reads: Iterable[ImportRead]) -> Iterator[BuiltImports]:
        """Build imports whose records are in memory, those of one template together if possible."""
        by_template: dict[str | None, list[ImportRead]] = {}
        for read in reads:
            by_template.setdefault(read.import_.template_slug, []).append(read)
        for of_one in by_template.values():
            parts = [of_one]
            while parts:
                some = parts.pop()
                if len(some) == 1:
                    yield self.build(some[0])
                    continue
                found = self._build_unit(some)
                if isinstance(found, BuiltImports):
                    yield found
                else:
                    parts += reversed(found)

    def build(self, read: ImportRead) -> BuiltImports:
        """Build one import and remove the records from `read`, whatever its verdict.

        Raises ConnectorError if the disk is full.
        """
        table = self._table_for(read.import_) if self._settings.typed else None
        before = self._schemas.get(table or "")
        rows, refusal = self._all_rows(read, table)
        if before is not None and table in self._frozen and self._schemas[table] != before:
            self._schemas[table] = before
            return BuiltImports((replace(read, records=()),), (0,), deferred=True)
        if refusal is not None:
            table = None
            rows, _ = self._all_rows(read, None)
        return BuiltImports.of((read,), table, rows, refusal)

    def _build_unit(self, reads: list[ImportRead]) -> BuiltImports | list[list[ImportRead]]:
        """Build the imports at once, or return the parts to build instead if one of them affects the others.

        A schema grows up to its limits and then no more, so bisection finds the import that extends it at little cost;
        a refusal may occur any number of times.
        """
        records = [record for read in reads for record in read.records]
        texts = _texts(records)
        table = self._table_for(reads[0].import_) if self._settings.typed else None
        if table is None or not records:
            return BuiltImports.of(reads, table, [self._rows(records, texts, None)] if records else ())
        schema = self._schemas.get(table) or TableSchema(table)
        if not any(schema.fields):
            return [reads[:1], reads[1:]]
        flat = self._flattened_as_known(texts, schema)
        if flat is None:
            half = len(reads) // 2
            return [reads[:half], reads[half:]]
        if self._limits is not None and self._limits.refusal(schema, [flat.columns]) is not None:
            return [[read] for read in reads]
        return BuiltImports.of(reads, table, [self._rows(records, texts, flat)])

    def _flattened_as_known(self, texts: Texts, schema: TableSchema) -> Flattened | None:
        """Flatten rows into a table as it is.

        Return None if the rows need a change of the schema, or if other rows would affect their text.
        """
        hints = self._settings.hints.get(schema.table, {})
        room = Room(0, UNBOUNDED.columns if self._width is None else self._width.columns)
        try:
            flat = self._flatten(texts, schema, hints, nul_safe=self._nul_safe, room=room)
        except TooWide:
            return None
        return flat if flat.schema == schema else None

    def _all_rows(self, read: ImportRead, table: str | None) -> tuple[Iterable[Batch], str | None]:
        """Build all rows, typed if there is a `table`, or return why the destination cannot hold them typed."""
        if table is None:
            rows = _row_store(read)
            for some in batches(read.records):
                rows.append(self._rows(some, _texts(some), None))
            return rows, None
        schema = self._schemas.get(table) or TableSchema(table)
        room = UNBOUNDED if self._width is None else self._width.room(schema)
        try:
            return self._typed_rows(read, schema, room)
        except TooWide:
            narrowed = self._narrowed(read, schema, room)
            return self._typed_rows(read, narrowed, Room(0, room.columns))

    def _typed_rows(self, read: ImportRead, schema: TableSchema, room: Room) -> tuple[Iterable[Batch], str | None]:
        """Build all rows with typed columns, as `_all_rows` does.

        Raises TooWide for more new fields than there is room for.
        """
        rows, table, most = _row_store(read), schema.table, schema.size + room.new_fields
        hints = self._settings.hints.get(table, {})
        for some in _pieces(read):
            texts = _texts(some)
            # Variants that earlier pieces created leave less room for the fields of later pieces.
            left = Room(max(min(most - schema.size, room.columns - schema.width), 0), room.columns)
            flat = self._flatten(texts, schema, hints, nul_safe=self._nul_safe, room=left)
            refusal = self._limits.refusal(flat.schema, [flat.columns]) if self._limits is not None else None
            if refusal is not None:
                return (), refusal
            rows.append(self._rows(some, texts, flat))
            schema = flat.schema
        self._schemas[table] = schema
        return rows, None

    def _narrowed(self, read: ImportRead, schema: TableSchema, room: Room) -> TableSchema:
        """Return the table with as many new fields of these records as there is room for."""
        width = self._width or Width()
        new = NewFields(schema, room.new_fields + width.listed)
        for some in batches(read.records):
            for record in some:
                new.add(read_rows([record.data]))
        return width.narrowed(schema, new, room)

    def _table_for(self, import_: Import) -> str:
        table = table_name(import_.template_name, import_.template_slug, self._template_tables, self._foreign)
        self._template_tables.setdefault(table, import_.template_slug or "")
        return table

    def _rows(self, records: Sequence[Record], texts: Texts, flat: Flattened | None) -> Batch:
        created_at = [r.created_at for r in records]
        updated_at = [r.updated_at for r in records]
        created = pa.array(created_at, pa.int64()).view(UTC_US)
        extras = [r.extra for r in records] if self._settings.raw else []
        return Batch(
            pa.array([r.slug for r in records], pa.string()),
            pa.array([r.sort for r in records], pa.int64()),
            created,
            created if updated_at == created_at else pa.array(updated_at, pa.int64()).view(UTC_US),
            texts.column.cast(pa.string()) if self._settings.raw else None,
            flat,
            pa.array(extras, pa.binary()).cast(pa.string()) if any(extras) else None,
        )


def _row_store(read: ImportRead) -> list[Batch] | SpilledRows:
    return SpilledRows() if isinstance(read.records, SpilledRecords) else []


def _pieces(read: ImportRead) -> Iterator[Sequence[Record]]:
    """Yield the records in pieces to flatten at once: decoded, they take ten times the memory of their text."""
    for some in batches(read.records):
        start = size = 0
        for at, record in enumerate(some):
            if size + len(record.data) > MOST_BYTES and at > start:
                yield some[start:at]
                start, size = at, 0
            size += len(record.data)
        yield some[start:] if start else some


def _texts(records: Sequence[Record]) -> Texts:
    return Texts([record.data for record in records])
