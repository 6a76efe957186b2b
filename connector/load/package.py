"""Build the tables of one load package from imports: records, typed rows, ledger, rejects and fields.

Invariant: all rows of an import go into the same package as its ledger row, with the package's load id, and replace
all rows of that import in the warehouse, in every typed table that ever had some.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from connector.extract.records import ImportRead
from connector.ledger import Due, LedgerRow
from connector.load.batches import Batch, BuiltImports
from connector.load.data_dictionary import Catalogue, FieldRows, FieldTotals
from connector.load.disposition import IncomingRows
from connector.load.kept_deletes import KeptDeletes
from connector.load.ledger_rows import LedgerRows
from connector.load.rejects import Rejects
from connector.load.table_rows import TableRows, placeholders
from connector.models import Import
from connector.settings import Settings
from connector.transform.naming import RULES_COLUMN
from connector.transform.schema import Keys, Kind, TableSchema, arrow_type, parse_type
from connector.warehouse import Warehouse
from connector.warehouse.field_counts import TableTotals, replaced_totals, totals
from connector.warehouse.state import WarehouseState
from connector.warehouse.tables import (
    FIELDS,
    FIELDS_SCHEMA,
    LEDGER,
    LOAD_ID,
    RECORDS,
    RECORDS_SCHEMA,
    TYPED_SCHEMA,
    UTC_US,
    ledger_table,
    table_of,
)

FLUSH_ROWS = 20_000


@dataclass(slots=True)
class _Typed:
    """Typed rows of one table waiting to be yielded, and what the package adds to its fields.

    `cleared` are imports whose existing rows may have to be removed: each gets a placeholder.
    """

    batches: list[pa.Table] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)
    rows: int = 0
    live_rows: int = 0
    imports: set[str] = field(default_factory=set)
    counts: dict[Keys, FieldTotals] = field(default_factory=lambda: defaultdict(FieldTotals))


@dataclass(slots=True)
class _Incoming:
    """What the package brings so far for one table; see `IncomingRows`."""

    records: list[pa.Array[Any]] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    replacing: bool = False
    cleared: set[str] = field(default_factory=set)

    @property
    def slugs(self) -> pa.ChunkedArray[Any]:
        return pa.chunked_array(self.records, pa.string())

    def are_distinct(self) -> bool:
        slugs = self.slugs
        found: int = pc.count_distinct(slugs).as_py()
        return found == len(slugs)


class Package:
    """Builds the tables of one load package; `rows` counts the records accepted so far."""

    def __init__(
        self,
        load_id: str,
        run_id: str,
        now: datetime,
        settings: Settings,
        state: WarehouseState,
        catalogue: Catalogue,
        warehouse: Warehouse,
    ) -> None:
        self.load_id = load_id
        self.rows = 0
        self.loaded: Counter[str] = Counter()  # table of records → live rows
        self.of_templates: Counter[str] = Counter()  # slug of the template, '' for none → records
        self.largest_batch_bytes = 0
        self._now = now
        self._settings = settings
        self._state = state
        self._catalogue = catalogue
        self._warehouse = warehouse
        self._raw: list[pa.Table] = []
        self._raw_rows = 0
        self._raw_cleared: list[str] = []
        self._typed: dict[str, _Typed] = defaultdict(_Typed)
        self._incoming: dict[str, _Incoming] = defaultdict(_Incoming)
        self._sources = 0  # imports whose records were added, each as often as that happened
        self._ledger: list[LedgerRow] = []
        self._ledger_rows = LedgerRows(load_id, run_id, now, settings)
        self.rejects = Rejects(load_id, run_id, now, nul_safe=not warehouse.traits.keeps_nul)
        self._kept = KeptDeletes(warehouse, state, load_id, now, keeps=settings.deletes == "keep")
        self._nul_safe = not warehouse.traits.keeps_nul
        self.refusals: list[str] = []

    @property
    def typed_tables(self) -> list[str]:
        return list(self._typed)

    def incoming(self) -> list[IncomingRows]:
        """Return what the package brings for each table of records."""
        incoming = self._incoming
        # no import has a record twice (`LatestRecords`), and with raw rows every typed row has a raw row
        all_distinct = self._sources < 2 or (
            self._settings.raw and RECORDS in incoming and incoming[RECORDS].are_distinct()
        )
        return [
            IncomingRows(table, got.slugs, got.imports, all_distinct or got.are_distinct(), got.replacing, got.cleared)
            for table, got in incoming.items()
        ]

    def __bool__(self) -> bool:
        return bool(self._ledger or self.rejects)

    def add(
        self, built: BuiltImports, known: Sequence[LedgerRow | None], due: Sequence[Due | None]
    ) -> Iterator[TableRows]:
        """Add imports whose records were read, and yield the rows of tables that have enough of them.

        For each import, `known` is its ledger row so far, and `due` is why it was read again.
        """
        table, imports = built.table, [read.import_ for read in built.reads]
        if built.refusal is not None:
            for import_, before in zip(imports, known, strict=True):
                sentence = f"Import {import_.slug} is in no typed table: {built.refusal}."
                self.refusals.append(sentence)
                if not self._settings.raw:
                    self.add_failure(import_, before, sentence)
            if not self._settings.raw:
                return
        if table is not None:
            self._catalogue.template_tables.setdefault(table, imports[0].template_slug or "")
        self._sources += len(imports)
        for import_, before in zip(imports, known, strict=True):
            self._clear(import_, before, table)
        old = self._kept.vanished(built, known)
        text_conflicts: list[Counter[str]] = [Counter() for _ in imports]
        for rows in built.rows:
            self.largest_batch_bytes = max(self.largest_batch_bytes, rows.nbytes)
            self._add_raw(built, rows)
            if table is not None:
                self._add_typed(table, built, rows)
                _count_text_conflicts(rows, built.sizes, text_conflicts)
            if self._raw_rows >= FLUSH_ROWS or (table and self._typed[table].rows >= FLUSH_ROWS):
                yield from self._flush()
        self._carry(old)
        self.rows += len(built)
        self.of_templates[imports[0].template_slug or ""] += len(built)
        for name in ([RECORDS] if self._settings.raw else []) + ([table] if table is not None else []):
            self.loaded[name] += len(built)
        for read, size, before, again, conflicts in zip(
            built.reads, built.sizes, known, due, text_conflicts, strict=True
        ):
            self._note(read, table, conflicts)
            self._ledger.append(self._ledger_rows.read(read, size, table, before, again, conflicts, built.refusal))
        if self._raw_rows >= FLUSH_ROWS:
            yield from self._flush()

    def _note(self, read: ImportRead, table: str | None, text_conflicts: Mapping[str, int]) -> None:
        """Note the rejects of an import that was read, and its text conflicts in place of earlier ones."""
        slug = read.import_.slug
        for reject in read.rejects:
            self.rejects.add(slug, reject.record_slug, reject.reason, reject.payload)
        self._catalogue.text_conflicts.pop(slug, None)
        if table is not None and text_conflicts:
            self._catalogue.text_conflicts[slug] = table, text_conflicts

    def add_failure(
        self,
        import_: Import,
        known: LedgerRow | None,
        error: str,
        killed_runs: int | None = None,
        fewer: int | None = None,
    ) -> None:
        """Note an import that could not be read; see `LedgerRows.failed`."""
        self._ledger.append(self._ledger_rows.failed(import_, known, error, killed_runs, fewer))

    def add_excluded(self, import_: Import, known: LedgerRow | None) -> None:
        """Note an import that the settings leave out."""
        self._ledger.append(self._ledger_rows.excluded(import_, known))

    def add_off_status(self, known: LedgerRow) -> None:
        """Note an import that no longer has the status that the settings select."""
        self._ledger.append(self._ledger_rows.off_status(known))

    def add_deleted(self, slug: str, known: LedgerRow | None) -> None:
        """Note an import that the service answers 404 for: remove its rows, or mark them if `deletes` says so."""
        old = self._kept.vanished_all(known)
        self._clear_rows(slug, known, None)
        self._carry(old)
        self._catalogue.text_conflicts.pop(slug, None)
        self._ledger.append(self._ledger_rows.deleted(slug, known))

    def finish(self) -> Iterator[TableRows]:
        """Yield the remaining rows, then rejects, fields and ledger."""
        self._add_carried()
        yield from self._flush()
        yield from self.rejects.table_rows()
        fields = self._field_rows()
        if fields:
            yield TableRows(FIELDS, table_of(FIELDS_SCHEMA, fields))
        if self._ledger:
            yield TableRows(LEDGER, ledger_table(self._ledger))

    def _add_raw(self, built: BuiltImports, rows: Batch) -> None:
        if rows.data is None:
            return
        n = len(rows)
        columns: list[pa.Array[Any]] = [
            rows.slug,
            _of_imports([read.import_.slug for read in built.reads], built, n),
            pa.repeat(pa.scalar(built.reads[0].import_.template_slug, pa.string()), n),
            rows.sort,
            rows.created_at,
            rows.updated_at,
            rows.data,
            pa.nulls(n, pa.string()) if rows.extra is None else rows.extra,
            pa.nulls(n, UTC_US),
            pa.repeat(pa.scalar(self.load_id), n),
        ]
        self._raw.append(pa.Table.from_arrays(columns, schema=RECORDS_SCHEMA))
        self._raw_rows += n
        self._add_incoming(RECORDS, built, rows)

    def _add_typed(self, table: str, built: BuiltImports, rows: Batch) -> None:
        if rows.flat is None:
            return
        self._catalogue.schemas[table] = rows.flat.schema
        n = len(rows)
        columns: dict[str, pa.Array[Any]] = {
            "_record_slug": rows.slug,
            "_import_slug": _of_imports([read.import_.slug for read in built.reads], built, n),
            "_sort": rows.sort,
            "_created_at": rows.created_at,
            "_updated_at": rows.updated_at,
            "_deleted_at": pa.nulls(n, UTC_US),
            LOAD_ID: pa.repeat(pa.scalar(self.load_id), n),
        }
        protection, imports = self._settings.protection, [read.import_ for read in built.reads]
        rules = [protection.fingerprint_of_records(each.template_slug, each.template_name) for each in imports]
        if any(each is not None for each in rules):
            columns[RULES_COLUMN] = _of_imports(rules, built, n)
        typed = self._typed[table]
        typed.batches.append(_typed_table({**columns, **rows.flat.columns}))
        typed.rows += n
        typed.live_rows += n
        for keys, count in rows.flat.counts.items():
            typed.counts[keys].add(count)
        self._add_incoming(table, built, rows)

    def _add_incoming(self, table: str, built: BuiltImports, rows: Batch) -> None:
        incoming = self._incoming[table]
        incoming.records.append(rows.slug)
        slugs = [read.import_.slug for read, size in zip(built.reads, built.sizes, strict=True) if size]
        if incoming.imports[-1:] != slugs[-1:]:  # otherwise another piece of the same import
            incoming.imports += slugs

    def _clear(self, import_: Import, known: LedgerRow | None, table: str | None) -> None:
        if table is not None:
            self._typed[table].imports.add(import_.slug)
        if known is not None:
            self._clear_rows(import_.slug, known, table)

    def _clear_rows(self, slug: str, known: LedgerRow | None, table: str | None) -> None:
        """Add placeholders, so that the merge removes an import's rows from tables in which it no longer has rows."""
        if self._settings.raw or RECORDS in self._state.tables:
            self._incoming[RECORDS].replacing = True
            self._incoming[RECORDS].cleared.add(slug)
            self._raw_cleared.append(slug)
            self._raw_rows += 1
        tables = set(self._state.tables_by_import.get(slug, ()))
        if known is not None and known.table_name:
            tables.add(known.table_name)
        if table is not None:
            tables.add(table)
        for each in sorted(tables):
            typed = self._typed[each]
            typed.imports.add(slug)
            self._incoming[each].replacing = True
            self._incoming[each].cleared.add(slug)
            typed.cleared.append(slug)
            typed.rows += 1

    def _with_dropped(self, table: str, rows: pa.Table) -> pa.Table:
        """Add the columns that the table lost in the warehouse, all null, so that dlt creates them again."""
        kinds = {n: k for known in self._catalogue.schema(table).fields.values() for n, k in known.columns().items()}
        for column in sorted(self._state.dropped.get(table, frozenset()) & set(kinds)):
            rows = rows.append_column(column, pa.array([None] * rows.num_rows, arrow_type(kinds[column])))
        return rows

    def _carry(self, old: Mapping[str, pa.Table]) -> None:
        for table, rows in old.items():
            self._incoming[table].replacing = True
            self._kept.carry(table, rows)

    def _add_carried(self) -> None:
        for table, rows in self._kept.rows(lambda table: self._incoming[table].slugs):
            if table == RECORDS:
                absent = [f for f in RECORDS_SCHEMA if f.name not in rows.column_names]  # of an earlier version's table
                for column in absent:
                    rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
                self._raw.append(rows.select(RECORDS_SCHEMA.names).cast(RECORDS_SCHEMA))
                self._raw_rows += rows.num_rows
            else:
                self._typed[table].batches.append(_typed_table(self._as_declared(table, rows)))
                self._typed[table].rows += rows.num_rows

    def _as_declared(self, table: str, rows: pa.Table) -> dict[str, pa.Array[Any]]:
        """Return the columns with the types they were written with; a client may infer narrower types from values."""
        fields = self._catalogue.schema(table).fields.values()
        declared = {name: arrow_type(kind) for known in fields for name, kind in known.columns().items()}
        columns = {name: rows.column(name).combine_chunks() for name in rows.column_names}
        return {name: column.cast(declared.get(name, column.type)) for name, column in columns.items()}

    def _flush(self) -> Iterator[TableRows]:
        if self._raw_cleared:
            self._raw.append(placeholders(RECORDS_SCHEMA, RECORDS, self._raw_cleared, self.load_id))
        if self._raw:
            yield TableRows(RECORDS, pa.concat_tables(self._raw))
            self._raw, self._raw_rows, self._raw_cleared = [], 0, []
        for table, typed in self._typed.items():
            if typed.cleared:
                rows = placeholders(TYPED_SCHEMA, table, typed.cleared, self.load_id)
                typed.batches.append(self._with_dropped(table, rows))
            if typed.batches:
                rows = pa.concat_tables(typed.batches, promote_options="default")
                typed.batches, typed.rows, typed.cleared = [], 0, []
                template = self._catalogue.template_tables.get(table)
                yield TableRows(table, rows, self._json_columns(table, rows), template)

    def _json_columns(self, table: str, rows: pa.Table) -> frozenset[str]:
        if not self._warehouse.traits.keeps_json:
            return frozenset()  # other JSON types reorder keys or refuse valid JSON; text keeps everything
        schema = self._catalogue.schema(table)
        known = {f.column for f in schema.fields.values() if f.type and parse_type(f.type).kind is Kind.JSON}
        return frozenset(known | (self._kept.json_columns(table) & set(rows.column_names)))

    def _field_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        catalogue = self._catalogue
        writer = FieldRows(catalogue.first_seen, catalogue.last_seen, self._now, self.load_id, nul_safe=self._nul_safe)
        while self._catalogue.miscounted:  # by a run that died, whose imports may all be gone
            self._typed.setdefault(self._catalogue.miscounted.pop(), _Typed())
        # the run after the shards counts the tables that all of them write
        own = {table: typed for table, typed in self._typed.items() if table not in self._state.shared}
        left = self._totals_left(own) if own else {}
        for table, typed in own.items():
            schema, template = self._catalogue.schema(table), self._catalogue.template_tables.get(table) or None
            in_text = self._catalogue.text_conflicts_of(table)
            elsewhere = self._catalogue.text_conflicts_of(table, typed.imports)
            live = left[table].rows + typed.live_rows
            totals: dict[Keys, tuple[int, int]] = {}
            for known in schema.fields.values():
                values, conflicts = left[table].fields.get(known.keys, (0, 0))
                added = typed.counts.get(known.keys, FieldTotals())
                count = FieldTotals(values + added.values, conflicts + elsewhere[known.column] + added.conflicts)
                rows.append(writer.row(table, known, template, count, live))
                totals[known.keys] = count.values, count.conflicts
            rows += writer.overflowed_rows(schema, template)
            self._catalogue.keep_totals(table, TableTotals(live, totals), in_text)
        return rows

    def _totals_left(self, tables: Mapping[str, _Typed]) -> dict[str, TableTotals]:
        """Return the totals of the rows that this package leaves in each table, by what it replaces if possible."""
        found: dict[str, TableTotals] = {}
        with self._warehouse.connect() as connection:
            columns = connection.columns()
            for table, typed in tables.items():
                physical, imports = columns.get(table, {}), sorted(typed.imports)
                stored = TableSchema(table, self._catalogue.schema(table).fields, physical)
                if not physical:
                    found[table] = TableTotals()
                elif not connection.traits.finds_slugs:
                    found[table] = totals(connection, stored, imports)
                else:
                    present = self._catalogue.totals.get(table) or totals(connection, stored)
                    records = self._incoming.get(table, _Incoming()).slugs  # none of a table that is only counted
                    found[table] = present.without(replaced_totals(connection, stored, imports, records))
        return found


def _of_imports(values: Sequence[str | None], built: BuiltImports, n: int) -> pa.Array[Any]:
    """Return the value of its import for each of `n` rows: some rows of a single import, or all rows of several."""
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], pa.string()), n)
    ends = pa.array(accumulate(built.sizes, initial=0), pa.int32())
    kernels: Any = pc  # their stubs do not know `list_parent_indices`
    return pa.array(values, pa.string()).take(kernels.list_parent_indices(pa.ListArray.from_arrays(ends, pa.nulls(n))))


def _count_text_conflicts(rows: Batch, sizes: Sequence[int], counts: Sequence[Counter[str]]) -> None:
    """Return for each import: column → number of scalars that the column stores as their text."""
    if rows.flat is None:
        return
    ends = list(accumulate(sizes))
    for keys, count in rows.flat.counts.items():
        if count.kept_rows:
            column = rows.flat.schema.fields[keys].column
            if len(sizes) == 1:
                counts[0][column] += count.kept
                continue
            for row in count.kept_rows:
                counts[bisect_right(ends, row)][column] += 1


def _typed_table(columns: Mapping[str, pa.Array[Any]]) -> pa.Table:
    own = {**{f.name: f for f in TYPED_SCHEMA}, RULES_COLUMN: pa.field(RULES_COLUMN, pa.string())}
    fields = [own.get(name) or pa.field(name, column.type) for name, column in columns.items()]
    typed = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns.values(), fields, strict=True)]
    return pa.Table.from_arrays(typed, schema=pa.schema(fields))
