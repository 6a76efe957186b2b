"""Rebuild typed tables from the raw rows, without a request: for hints added later and unsuitable first types.

Two passes read the raw rows of a template: the first counts every value towards the type of its column, the second
writes. A table is written beside the existing one and replaces it in one transaction, together with its rows of
`sync_fields`. Each typed row keeps the load id of its raw row, which connects it to the ledger.

dlt lets no column change its type, and keeps types in three places: its schema, here and in the warehouse, and the
columns of its staging table. So dlt is first made to forget the table, which is safe at any time, because dlt adopts an
unknown table as it is. If the process is killed before the swap, only the incomplete table is left, which nobody reads
and the next rebuild drops; if it is killed after the swap, nothing is left to do.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError, ConnectorError
from connector.extract.spill import BATCH_ROWS
from connector.load.data_dictionary import Catalogue, FieldRows, FieldTotals
from connector.load.dlt_bridge import forget_tables, load_replacement
from connector.load.working_directory import rebuild_working_directory
from connector.reporting.views.applying import foreign_readers, recreated_views, refresh
from connector.run.versions import apply_rules
from connector.settings import Settings
from connector.source import without_warnings_of_json
from connector.transform import width
from connector.transform.casting import Votes, json_text
from connector.transform.flatten import flatten, leaf_values
from connector.transform.json_rows import read_rows
from connector.transform.row_limits import LIMITS
from connector.transform.schema import OVERFLOW_KEYS, Field, Keys, Kind, TableSchema, arrow_type, hint_for, parse_type
from connector.transform.width import NewFields, Room
from connector.transform.written import parse_hint
from connector.warehouse import Connection, Warehouse
from connector.warehouse.destination import prepare_for_loading
from connector.warehouse.failures import explain_failure
from connector.warehouse.field_counts import totals
from connector.warehouse.history_tables import refresh_open, restore_values
from connector.warehouse.loads import make_newest
from connector.warehouse.lock import check_lock_held, sole_writer
from connector.warehouse.noted_changes import note_fields_with_own_columns
from connector.warehouse.ownership import REBUILD_SCHEMA, REBUILD_TABLE, forget_staged, inspect_dataset, prepare_staging
from connector.warehouse.rebuilt_versions import check_rebuild, prepare_for_rebuild
from connector.warehouse.state import WarehouseState, load_state
from connector.warehouse.tables import LEDGER, LOAD_ID, RECORDS, SOURCE, TYPED_SCHEMA
from connector.warehouse.typed_tables import (
    copy_rules,
    count_rows,
    discard_rebuild,
    raw_counts,
    raw_rows,
    swapped,
    without_raw_row,
)

log = logging.getLogger("connector.maintain.rebuild")

ROWS_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """One table: its rows, including deleted ones, and each column whose type changed, with type before and after."""

    table: str
    rows: int
    retyped: tuple[tuple[str, str | None, str | None], ...]
    conflicts_before: int
    conflicts: int

    def as_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "rows": self.rows,
            "retyped": [{"column": c, "before": b, "after": a} for c, b, a in self.retyped],
            "conflicts_before": self.conflicts_before,
            "conflicts": self.conflicts,
        }


@dataclass(slots=True)
class _Written:
    """What the second pass counts while it writes."""

    schema: TableSchema
    rows: int = 0
    live: int = 0
    counts: dict[Keys, FieldTotals] = field(default_factory=lambda: defaultdict(FieldTotals))
    text_conflicts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def rebuild(pipeline: Pipeline, settings: Settings, tables: Sequence[str] = ()) -> list[Rebuilt]:
    """Rebuild these typed tables, or all; afterwards each is either rebuilt or unchanged.

    Raises LockedError while a run is under way, and ConfigError if there is nothing to rebuild from.
    """
    if not settings.raw:
        raise ConfigError(
            "A rebuild reads the raw rows, and raw = false keeps none; run `importer-sync backfill --full`."
        )
    if not settings.typed:
        raise ConfigError("typed = false, so there are no typed tables to rebuild.")
    warehouse = Warehouse(pipeline)
    warehouse.check_writable(experimental=settings.allow_experimental)
    prepare_for_loading(pipeline)
    try:
        if not warehouse.exists():
            raise ConfigError("There is no warehouse to rebuild yet; run `importer-sync run` first.")
        with sole_writer(pipeline), without_warnings_of_json():
            rebuild_working_directory(pipeline)
            return list(_Rebuild(pipeline, settings, warehouse, datetime.now(UTC)).run(tables))
    except Exception as error:
        raise explain_failure(error, pipeline) from None


@dataclass(frozen=True, slots=True)
class _Rebuild:
    pipeline: Pipeline
    settings: Settings
    warehouse: Warehouse
    now: datetime

    def run(self, wanted: Sequence[str]) -> Iterator[Rebuilt]:
        with self.warehouse.connect() as connection:
            state = load_state(connection)
            prepare_staging(connection, state.tables)
            forget_staged(connection)
            if REBUILD_TABLE in state.foreign:
                raise ConfigError(
                    f"The dataset has a {REBUILD_TABLE!r} that is not the connector's; rename it, then rebuild."
                )
            discard_rebuild(connection, state.tables)
            dataset = inspect_dataset(connection)
            if LEDGER in dataset.ours:  # so that versions differ from their rows only in what changed
                apply_rules(connection, dataset, self.settings, state)
        tables = self._checked(wanted, state)
        if not tables:
            return
        load_id = forget_tables(self.pipeline, tables, self.now)
        if SOURCE in self.pipeline.schemas:
            with self.warehouse.connect() as connection:
                make_newest(connection, SOURCE, self.pipeline.schemas[SOURCE].stored_version_hash)
        for table in tables:
            done = self._rebuild(table, state, load_id)
            log.info("Rebuilt %s: %d rows, %d columns of another type.", table, done.rows, len(done.retyped))
            yield done
        with self.warehouse.connect() as connection:
            refresh(connection, connection.traits.dialect)

    def _checked(self, wanted: Sequence[str], state: WarehouseState) -> list[str]:
        """Return the tables to rebuild, in which every row has a raw row."""
        known = sorted(set(state.template_tables) & state.tables)
        unknown = sorted(set(wanted) - set(known))
        if unknown:
            raise ConfigError(f"There is no typed table {', '.join(unknown)}; there are: {', '.join(known) or 'none'}.")
        if RECORDS not in state.tables:
            raise ConfigError("The warehouse has no raw rows; run `importer-sync backfill --full` with raw = true.")
        tables = [table for table in known if table in wanted or not wanted]
        with self.warehouse.connect() as connection:
            for table in tables:
                lost, moved = without_raw_row(connection, table, state.template_tables[table])
                if lost > moved:
                    raise ConfigError(
                        f"{lost - moved} rows of {table} have no raw row, so a rebuild would lose them; nothing was "
                        "changed. Run `importer-sync run`, or if they were loaded with raw = false, `backfill --full`; "
                        "move those that deletes = keep has marked in _deleted_at to a table of your own."
                    )
                if moved:
                    raise ConfigError(
                        f"{moved} rows of {table} are of records that moved to another template, and a rebuild would "
                        "lose them, because the raw rows moved too: these are marked in _deleted_at. Move them to a "
                        "table of your own, or name other tables with --table; nothing was changed."
                    )
            filled = [t for t in tables if raw_counts(connection, state.template_tables[t])]
            for table in filled:
                if added := sorted(state.added.get(table, ())):
                    raise ConfigError(
                        f"{table} has columns that are not the connector's, and a rebuild would drop them: "
                        f"{', '.join(added)}. Move them to a table of your own, by _record_slug; nothing was changed."
                    )
                if attached := connection.attached(table):
                    raise ConfigError(
                        f"A rebuild would drop what you added to {table}: {', '.join(attached)}. Drop it, rebuild, and "
                        "create it again; nothing was changed."
                    )
            self._check_unread(connection, filled)
        return filled

    def _check_unread(self, connection: Connection, tables: Sequence[str]) -> None:
        """Raise ConfigError if views of the user's read a table, because PostgreSQL would not drop it."""
        views = foreign_readers(connection, tables) if tables and self.warehouse.traits.binds_views else []
        if views:
            raise ConfigError(
                f"PostgreSQL does not replace a table that views read, and views of yours do: {', '.join(views)}. Drop "
                "them, rebuild, and create them again; nothing was changed."
            )

    def _rebuild(self, table: str, state: WarehouseState, load_id: str | None) -> Rebuilt:
        before = state.schemas[table]
        hints, template = self.settings.hints.get(table, {}), state.template_tables[table]
        named = self._named(before, template, state)
        if OVERFLOW_KEYS in before.fields and table in state.histories:  # versions have values in theirs
            named = named.with_overflow_column()
        schema = self._typed(before, named, self._votes(template, named, state), hints)
        types = {f.column: (f.type, schema.fields[k].type) for k, f in before.fields.items() if k in schema.fields}
        with self.warehouse.connect() as connection:
            check_rebuild(connection, table, template, types)
        written = _Written(schema)
        batches = self._batches(template, written, hints, state)
        declared = json_columns(schema) if self.warehouse.traits.keeps_json else []
        load_replacement(self.pipeline, REBUILD_SCHEMA, REBUILD_TABLE, batches, declared)
        with self.warehouse.connect() as connection:
            rows, distinct = count_rows(connection, REBUILD_TABLE, "_record_slug")
            if not rows == distinct == written.rows:
                raise ConnectorError(
                    f"{table} was left as it was: {written.rows} raw rows became {rows} rows of {distinct} records."
                )
            fields = list(self._fields(table, template, written, state, load_id))
            old = totals(connection, before)
            in_text = Catalogue.of(state).text_conflicts_of(table, ()).total()
            known = [slug for slug, each in state.ledger.items() if each.table_name == table and each.text_conflicts]
            found = {slug: json.dumps(c, sort_keys=True) for slug, c in written.text_conflicts.items()}
            text_conflicts = {**dict.fromkeys(known), **found}
            check_lock_held(self.pipeline)
            views = recreated_views(connection, connection.traits.dialect, table)
            copy_rules(connection, table, REBUILD_TABLE)
            prepared = prepare_for_rebuild(connection, table, REBUILD_TABLE)
            with swapped(connection, table, fields, text_conflicts, views):
                if prepared is not None:
                    refresh_open(connection, prepared.versions, unchanged=prepared.unchanged)
                    if rest := before.fields.get(OVERFLOW_KEYS):
                        note_fields_with_own_columns(
                            connection,
                            prepared.versions,
                            prepared.added,
                            rest.column,
                            _keys_in_json(written.schema, before),
                        )
            if prepared is not None:
                versions = replace(prepared.versions, table=table)
                restore_values(connection, versions, prepared.retyped, json_columns(written.schema))
        retyped = tuple(
            (f.column, f.type, written.schema.fields[keys].type)
            for keys, f in before.fields.items()
            if keys != OVERFLOW_KEYS and f.type != written.schema.fields[keys].type
        )
        conflicts = sum(count.conflicts for count in written.counts.values())
        return Rebuilt(
            table, rows, retyped, sum(conflicts for _, conflicts in old.fields.values()) + in_text, conflicts
        )

    # -- the raw rows --------------------------------------------------------------------------------------------

    def _raw(self, template: str, state: WarehouseState) -> Iterator[pa.Table]:
        """Yield all raw rows of a template, import by import, in tables of limited size.

        Live rows of an import that the destination refuses in a typed table are left to the next run, which reads it
        again.
        """
        refused = pa.array([slug for slug, known in state.ledger.items() if known.is_refused], pa.string())

        def fitting(slugs: Sequence[str]) -> pa.Table:
            rows = raw_rows(connection, template, slugs)
            imports: Any = rows.column("import_slug").cast(pa.string())
            fits = pc.invert(pc.is_in(imports, value_set=refused))
            return rows.filter(pc.or_(rows.column("_deleted_at").is_valid(), fits)) if len(refused) else rows

        with self.warehouse.connect() as connection:
            waiting: list[str] = []
            rows = 0
            for slug, count in raw_counts(connection, template).items():
                if waiting and rows + count > ROWS_AT_ONCE:
                    yield fitting(waiting)
                    waiting, rows = [], 0
                waiting.append(slug)
                rows += count
            if waiting:
                yield fitting(waiting)

    def _named(self, before: TableSchema, template: str, state: WarehouseState) -> TableSchema:
        """Return the fields that have a column, and as many of those without one as there is room for."""
        schema = before.retyped()
        room = max(width.WIDTH.columns - schema.size, 0)
        new = NewFields(schema, room + width.WIDTH.listed)
        for rows in self._raw(template, state):
            for text in _texts(rows):
                new.add(read_rows([text]))
        named = width.WIDTH.narrowed(schema, new, Room(room))
        return named.with_overflow_column() if named.is_bounded else named

    def _votes(self, template: str, schema: TableSchema, state: WarehouseState) -> dict[Keys, Votes]:
        votes: dict[Keys, Votes] = {}
        for rows in self._raw(template, state):
            for start in range(0, rows.num_rows, BATCH_ROWS):
                for keys, values in leaf_values(_texts(rows.slice(start, BATCH_ROWS)), schema):
                    votes.setdefault(keys, Votes()).add(values)
        return votes

    def _typed(
        self, before: TableSchema, schema: TableSchema, votes: Mapping[Keys, Votes], hints: Mapping[str, str]
    ) -> TableSchema:
        """Return the types that hints and votes give; a field without any value keeps its type."""
        typed: list[Field] = []
        for keys, known in schema.fields.items():
            if keys == OVERFLOW_KEYS:
                continue
            hint, cast = hint_for(known, hints), votes.get(keys)
            if cast is None or not cast.counted:
                kept = before.fields[keys].type if keys in before.fields else None
                typed.append(replace(known, type=kept and str(parse_hint(hint or kept).type)))
            else:
                typed.append(replace(known, type=str(parse_hint(hint or cast.kind.value).type)))
        return schema.with_fields(typed)

    def _batches(
        self, template: str, written: _Written, hints: Mapping[str, str], state: WarehouseState
    ) -> Iterator[pa.Table]:
        for rows in self._raw(template, state):
            deleted = rows.column("_deleted_at").is_valid()
            for part, live in ((rows.filter(pc.invert(deleted)), True), (rows.filter(deleted), False)):
                for start in range(0, part.num_rows, BATCH_ROWS):
                    yield self._batch(part.slice(start, BATCH_ROWS), live, written, hints)

    def _batch(self, rows: pa.Table, live: bool, written: _Written, hints: Mapping[str, str]) -> pa.Table:
        room, nul_safe = Room(columns=width.WIDTH.columns), not self.warehouse.traits.keeps_nul
        flat = flatten(_texts(rows), written.schema, hints, nul_safe=nul_safe, room=room)
        limits = LIMITS.get(self.warehouse.destination_type)
        if limits is not None and (why := limits.refusal(flat.schema, [flat.columns])) is not None:
            raise ConfigError(f"A rebuild is not possible: {why}. The table was left as it was.")
        written.schema = flat.schema
        if live and any(count.kept for count in flat.counts.values()):
            self._count_by_import(rows, written, hints)
        written.rows += rows.num_rows
        if live:
            written.live += rows.num_rows
            for keys, count in flat.counts.items():
                written.counts[keys].add(count)
        columns = {name: rows.column(raw).cast(TYPED_SCHEMA.field(name).type) for name, raw in _FROM_RAW.items()}
        made = pa.table(columns, schema=TYPED_SCHEMA)
        for known in flat.schema.fields.values():
            for name, kind in known.columns().items():
                column: Any = flat.columns.get(name)
                if column is None:
                    column = pa.array([None] * rows.num_rows, arrow_type(kind))
                made = made.append_column(name, column)
        return made

    def _count_by_import(self, rows: pa.Table, written: _Written, hints: Mapping[str, str]) -> None:
        imports: Any = rows.column("import_slug")
        for slug in pc.unique(imports).to_pylist():
            own = rows.filter(pc.equal(imports, pa.scalar(slug, imports.type)))
            flat = flatten(_texts(own), written.schema, hints)
            for keys, count in flat.counts.items():
                if count.kept:
                    written.text_conflicts[slug][flat.schema.fields[keys].column] += count.kept

    def _fields(
        self, table: str, template: str, written: _Written, state: WarehouseState, load_id: str | None
    ) -> Iterator[dict[str, Any]]:
        nul_safe = not self.warehouse.traits.keeps_nul
        seen = dict(state.first_seen), dict(state.last_seen)
        writer = FieldRows(*seen, self.now, load_id or "", nul_safe=nul_safe)
        for keys, known in written.schema.fields.items():
            count = written.counts.get(keys, FieldTotals())
            yield writer.row(table, known, template or None, count, written.live)
        yield from writer.overflowed_rows(written.schema, template or None)


_FROM_RAW = {
    "_record_slug": "slug",
    "_import_slug": "import_slug",
    "_sort": "sort",
    "_created_at": "created_at",
    "_updated_at": "updated_at",
    "_deleted_at": "_deleted_at",
    LOAD_ID: LOAD_ID,
}


def _keys_in_json(schema: TableSchema, before: TableSchema) -> dict[str, str]:
    """Return the column of each field that had none before → the field's last key, as the JSON of `_more` has it."""
    new = ((keys, known) for keys, known in schema.fields.items() if keys not in before.fields)
    return {column: f"{json_text(keys[-1])}:" for keys, known in new for column in known.columns()}


def _texts(rows: pa.Table) -> list[bytes]:
    texts: list[Any] = rows.column("data").cast(pa.binary()).to_pylist()
    return texts


def json_columns(schema: TableSchema) -> list[str]:
    """Return the columns with values of JSON."""
    kinds = {f.column: parse_type(f.type).kind for f in schema.fields.values() if f.type is not None}
    return sorted(c for c, kind in kinds.items() if kind is Kind.JSON)
