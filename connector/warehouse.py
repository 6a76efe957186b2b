"""What the warehouse remembers: ledger, field names, run rows, read and kept with plain SQL through dlt's client.

The ledger decides (CONTRACT §4.2), so what it says has to be earned. A ledger row is trusted only if

1. dlt completed the load it came with (`_dlt_loads.status = 0`), and
2. after a run that did not end properly, the rows of that import are really there: as many live ones as the ledger
   says, each from the ledger row's own load, in its own table and nowhere else. Every run looks again until one finds
   all in order, for the run after a dead one may be bounded, stopped or refused, and not repair what it found.

Everything else is read again; rows of imports the ledger does not know become suspects like vanished imports do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

import duckdb
import pyarrow as pa
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
from dlt.destinations.job_client_impl import SqlJobClientBase
from dlt.destinations.sql_client import SqlClientBase
from dlt.pipeline.pipeline import Pipeline

from connector.allowance import Allowance
from connector.core.names import decode_keys
from connector.core.planning import Known, State
from connector.core.schema import Field, Keys, TableSchema
from connector.errors import ConfigError
from connector.locking import duckdb_file
from connector.runs import SETTLED, UNSETTLED, Status, Tally
from connector.tables import (
    FIELDS,
    FIELDS_SCHEMA,
    IMPORTS,
    LEDGER,
    LOAD_ID,
    RECORDS,
    RUNS,
    RUNS_SCHEMA,
    Arrival,
    keys_of,
)

LOADS = "_dlt_loads"
VERSIONS = "_dlt_version"
SLUGS_PER_QUERY = 500
DIED = "The process ended without a word (killed, or the machine stopped); what it had not committed is read again."


@dataclass(frozen=True, slots=True)
class ImportSeen:
    """An import as the table `imports` has it."""

    content_hash: str | None
    deleted: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything a run needs to know of earlier ones.

    `homes` are the typed tables that hold rows of an import; `miscounted` those whose counts in `sync_fields` came with
    a load that was never completed; `sound` is false while rows contradict the ledger.
    """

    tables: frozenset[str] = frozenset()
    ledger: Mapping[str, Known] = field(default_factory=dict)
    imports: Mapping[str, ImportSeen] = field(default_factory=dict)
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    first_seen: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    template_tables: Mapping[str, str] = field(default_factory=dict)
    homes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    miscounted: frozenset[str] = frozenset()
    repaired: int = 0
    sound: bool = True


class Warehouse:
    """The destination of one pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._held: Connection | None = None

    @property
    def destination(self) -> str:
        return str(self._pipeline.destination.destination_name) if self._pipeline.destination else "none"

    @property
    def is_duckdb(self) -> bool:
        return self.destination_type == "duckdb"

    @property
    def destination_type(self) -> str:
        kind = self._pipeline.destination.destination_type if self._pipeline.destination else ""
        return kind.rsplit(".", 1)[-1]

    def check_supported(self) -> None:
        """Raises ConfigError for a destination that cannot replace the rows of an import, e.g. plain files."""
        destination = self._pipeline.destination
        if destination is None or not issubclass(destination.client_class, SqlJobClientBase):
            raise ConfigError(
                f"The destination {self.destination!r} cannot replace rows, so deletes and corrections would be lost; "
                "use duckdb, postgres or another SQL destination of dlt."
            )

    def check_writable(self) -> None:
        """Raises ConfigError where loading is not possible, or not without loss, e.g. PostgreSQL without ADBC.

        Without Parquet dlt loads Arrow tables by way of CSV, where an empty text and none are the same
        (`dlt.destinations._adbc_jobs._loader_file_format_selector` says of what is installed).
        """
        self.check_supported()
        file, dataset = duckdb_file(self._pipeline), self._pipeline.dataset_name
        if file is not None and file.name.partition(".")[0].lower() == dataset.lower():
            raise ConfigError(
                f"DuckDB cannot tell the dataset {dataset!r} from the file {file.name}, which it calls the same; "
                "choose another name for one of them."
            )
        pipeline: Any = self._pipeline  # most of what it and its destination have may be None, and is not typed so
        if pipeline.staging is not None:
            return
        able = pipeline.destination.capabilities()
        formats: Sequence[str] = able.supported_loader_file_formats or ()
        if able.loader_file_format_selector is not None:
            _, formats = able.loader_file_format_selector("parquet", list(formats), table_schema={"name": RECORDS})
        if "parquet" not in formats:
            cure = (
                "install its drivers: pip install 'importer-connector[postgres]'"
                if self.destination_type == "postgres"
                else "install the ADBC driver that dlt's documentation names for it, or use another destination"
            )
            raise ConfigError(
                f"The destination {self.destination!r} cannot load Parquet here, and without it empty texts would "
                f"become null; {cure}."
            )

    def exists(self) -> bool:
        """Whether a run has been here; asks without making a database file."""
        file = duckdb_file(self._pipeline)
        if file is not None and not file.exists():
            return False
        with self.connect() as connection:
            return {LEDGER, LOADS} <= set(connection.columns())

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection for several calls: the one that is held, if there is one."""
        if self._held is not None:
            yield self._held
            return
        with self._pipeline.sql_client() as client:
            yield Connection(client)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keeps one connection open: DuckDB writes its file anew whenever the last one closes, which dlt does often."""
        with self.connect() as connection:
            native = connection.client.native_connection
            self._held = replace(connection, allowance=Allowance(native)) if self.is_duckdb else connection
            try:
                yield
            finally:
                self._held = None


@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection to the dataset; all SQL of this package that is not dlt's is in this class."""

    client: SqlClientBase[Any]
    allowance: Allowance | None = None

    def name(self, table: str) -> str:
        return self.client.make_qualified_table_name(table)

    def column(self, name: str) -> str:
        return self.client.escape_column_name(name)

    def query(self, sql: str, *args: Any) -> pa.Table:
        if isinstance(self.client, DuckDbSqlClient):
            try:
                return self._ask_duckdb(sql, args)
            except duckdb.OutOfMemoryException:
                if self.allowance is None or not self.allowance.lift():
                    raise
                return self._ask_duckdb(sql, args)
        with self.client.execute_query(sql, *args) as cursor:
            table = cursor.arrow()
        return table if table is not None else pa.table({})

    def _ask_duckdb(self, sql: str, args: Sequence[Any]) -> pa.Table:
        # dlt's own way to Arrow asks DuckDB for a method that DuckDB 2 no longer has
        relation = self.client.native_connection.sql(sql.replace("%s", "?"), params=args)
        return cast("pa.Table", relation.to_arrow_table())

    def execute(self, sql: str, *args: Any) -> None:
        self.client.execute_sql(sql, *args)

    def pack_raw_rows(self) -> None:
        """Has DuckDB keep `data` as zstd, which takes a third less of its file and less time to write.

        A column's compression is chosen when its table is made, so an empty one is made anew as dlt made it.
        """
        native: duckdb.DuckDBPyConnection = self.client.native_connection
        found: Any = native.execute(
            "SELECT sql FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = ? "
            "AND table_name = ?",
            [self.client.dataset_name, RECORDS],
        ).fetchall()
        before, column, after = found[0][0].partition('"data" VARCHAR') if found else ("", "", "")
        if not column or self.query(f"SELECT 1 FROM {self.name(RECORDS)} LIMIT 1").num_rows:
            return
        native.begin()
        try:
            native.execute(f"DROP TABLE {self.name(RECORDS)}").fetchall()
            native.execute(f"{before}{column} USING COMPRESSION ZSTD{after}").fetchall()
            native.commit()
        except duckdb.BinderException:  # a file in the format of an older DuckDB, which knows no zstd
            native.rollback()
        except BaseException:
            native.rollback()
            raise

    def columns(self) -> dict[str, dict[str, str]]:
        """Table → column → type, as `connector.core.schema.parse_type` reads it where it can."""
        rows = self.query(
            "SELECT table_name, column_name, data_type, numeric_precision, numeric_scale "
            "FROM information_schema.columns WHERE table_schema = %s",
            self.client.dataset_name,
        ).to_pylist()
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for row in rows:
            found[row["table_name"]][row["column_name"]] = _type_of(
                row["data_type"], row["numeric_precision"], row["numeric_scale"]
            )
        return dict(found)

    def recall(self) -> Memory:
        """Reads everything; audits the rows themselves unless all runs ended properly and all loads completed."""
        memory = self.remembered()
        clean = all(known.trusted for known in memory.ledger.values()) and self._ended_properly(memory.tables)
        return memory if clean else self._recovered(memory)

    def remembered(self) -> Memory:
        """What the tables of this package say, taken at their word."""
        physical = self.columns()
        tables = frozenset(physical)
        if LEDGER not in tables or LOADS not in tables:
            return Memory(tables, schemas=_schemas(physical, []))
        fields = self._fields(tables)
        ledger = self._ledger()
        homes = {k.slug: frozenset({k.table_name} if k.table_name else ()) for k in ledger.values()}
        return Memory(
            tables=tables,
            ledger=ledger,
            imports=self._imports(tables),
            schemas=_schemas(physical, fields),
            first_seen={(f["table_name"], f["column_name"]): f["first_seen_at"] for f in fields},
            template_tables=_template_tables(ledger.values(), fields),
            homes=homes,
            miscounted=frozenset(f["table_name"] for f in fields if not f["trusted"]) - {IMPORTS},
        )

    def _ledger(self) -> dict[str, Known]:
        rows = self.query(
            "SELECT s.slug, s.state, s.updated_at, s.row_count, s.status, s.template_slug, s.table_name, s.has_raw, "
            "s.records_loaded, s.records_rejected, s.attempts, s.last_synced_at, "
            f"CASE WHEN l.load_id IS NULL THEN 0 ELSE 1 END AS trusted FROM {self.name(LEDGER)} s "
            f"LEFT JOIN (SELECT DISTINCT load_id FROM {self.name(LOADS)} WHERE status = 0) l "
            f"ON l.load_id = s.{self.column(LOAD_ID)}"
        )
        return {row["slug"]: _known(row) for row in rows.to_pylist()}

    def _imports(self, tables: frozenset[str]) -> dict[str, ImportSeen]:
        if IMPORTS not in tables:
            return {}
        # a row of a load that was never completed counts as neither written nor deleted, but its import is known:
        # it may have been deleted since, and nothing else may speak of it
        rows = self.query(
            f"SELECT i.slug, CASE WHEN l.load_id IS NULL THEN NULL ELSE i.{self.column('_content_hash')} END "
            f"AS content_hash, CASE WHEN l.load_id IS NULL OR i.{self.column('_deleted_at')} IS NULL "
            f"THEN 0 ELSE 1 END AS deleted FROM {self.name(IMPORTS)} i "
            f"LEFT JOIN (SELECT DISTINCT load_id FROM {self.name(LOADS)} WHERE status = 0) l "
            f"ON l.load_id = i.{self.column(LOAD_ID)}"
        )
        return {r["slug"]: ImportSeen(r["content_hash"], bool(r["deleted"])) for r in rows.to_pylist()}

    def _fields(self, tables: frozenset[str]) -> list[dict[str, Any]]:
        if FIELDS not in tables:
            return []
        return list(
            self.query(
                "SELECT f.table_name, f.column_name, f.template_slug, f.keys, f.data_type, f.has_text, f.has_double, "
                "f.first_seen_at, CASE WHEN l.load_id IS NULL THEN 0 ELSE 1 END AS trusted "
                f"FROM {self.name(FIELDS)} f "
                f"LEFT JOIN (SELECT DISTINCT load_id FROM {self.name(LOADS)} WHERE status = 0) l "
                f"ON l.load_id = f.{self.column(LOAD_ID)}"
            ).to_pylist()
        )

    def _ended_properly(self, tables: frozenset[str]) -> bool:
        if RUNS not in tables:
            return False
        rows = self.query(
            f"SELECT count(*) AS n, sum(CASE WHEN status = '{Status.running}' OR error_kind = '{UNSETTLED}' OR "
            f"({self.column(LOAD_ID)} IS NOT NULL AND {self.column(LOAD_ID)} <> '' AND {self.column(LOAD_ID)} "
            f"NOT IN (SELECT load_id FROM {self.name(LOADS)} WHERE status = 0)) THEN 1 ELSE 0 END) AS dead "
            f"FROM {self.name(RUNS)}"
        ).to_pylist()
        return bool(rows[0]["n"]) and not rows[0]["dead"] and not self.loaded_late()

    def loaded_late(self) -> bool:
        """Whether a package was completed after the last run had ended: dlt alone finishes what a dead run left.

        That package may have been superseded since. The one that brings the row of its run is always completed later.
        """
        rows = self.query(
            f"SELECT count(*) AS n FROM {self.name(LOADS)} WHERE status = 0 AND "
            f"inserted_at > (SELECT max(finished_at) FROM {self.name(RUNS)}) AND "
            f"load_id NOT IN (SELECT COALESCE({self.column(LOAD_ID)}, '') FROM {self.name(RUNS)})"
        ).to_pylist()
        return bool(rows[0]["n"])

    def rows_by_import(
        self, memory: Memory, only: Collection[str] | None = None
    ) -> dict[str, dict[str, tuple[int, set[str]]]]:
        """Table → import → (live rows, loads its rows came with), by one scan of each table."""
        found: dict[str, dict[str, tuple[int, set[str]]]] = {}
        tables = {RECORDS, *memory.schemas} & memory.tables - {IMPORTS}
        for table in sorted(tables if only is None else tables & set(only)):
            key = "import_slug" if table == RECORDS else "_import_slug"
            rows = self.query(
                f"SELECT {self.column(key)} AS slug, {self.column(LOAD_ID)} AS load_id, "
                f"sum(CASE WHEN {self.column('_deleted_at')} IS NULL THEN 1 ELSE 0 END) AS live "
                f"FROM {self.name(table)} GROUP BY 1, 2"
            ).to_pylist()
            counts: dict[str, tuple[int, set[str]]] = {}
            for row in rows:
                live, loads = counts.get(row["slug"], (0, set()))
                counts[row["slug"]] = (live + int(row["live"]), loads | {row["load_id"]})
            found[table] = counts
        return found

    def audit(self, memory: Memory, only: Collection[str] | None = None) -> dict[str, frozenset[str]]:
        """Imports whose rows are not exactly those their ledger row speaks of → the tables that hold rows of them.

        `only` some tables may be looked at.
        """
        present = self.rows_by_import(memory, only)
        loads = self.ledger_loads() if memory.ledger else {}
        where: dict[str, set[str]] = defaultdict(set)
        for table, counts in present.items():
            for slug in counts:
                where[slug].add(table)
        return {
            slug: frozenset(where[slug])
            for slug in sorted({*memory.ledger, *where})
            if slug not in memory.ledger or not _agrees(memory.ledger[slug], loads.get(slug), slug, present)
        }

    def _recovered(self, memory: Memory) -> Memory:
        """Distrusts every import whose rows are not exactly those its ledger row speaks of."""
        ledger, homes = dict(memory.ledger), dict(memory.homes)
        repaired = 0
        wrong = self.audit(memory)
        for slug, where in wrong.items():
            known = ledger.get(slug)
            repaired += known is None or known.trusted
            ledger[slug] = _distrusted(slug, known)
            homes[slug] = homes.get(slug, frozenset()) | (where - {RECORDS})
        return replace(memory, ledger=ledger, homes=homes, repaired=repaired, sound=not wrong)

    def ledger_loads(self) -> dict[str, str]:
        rows = self.query(f"SELECT slug, {self.column(LOAD_ID)} AS load_id FROM {self.name(LEDGER)}").to_pylist()
        return {row["slug"]: row["load_id"] for row in rows}

    def dead_runs(self) -> list[str]:
        """Runs that never ended, or whose load never completed."""
        rows = self.query(
            f"SELECT run_id FROM {self.name(RUNS)} WHERE status = '{Status.running}' OR ({self.column(LOAD_ID)} <> '' "
            f"AND {self.column(LOAD_ID)} NOT IN (SELECT load_id FROM {self.name(LOADS)} WHERE status = 0)) ORDER BY 1"
        ).to_pylist()
        return [row["run_id"] for row in rows]

    def bury_dead_runs(self, now: datetime) -> list[str]:
        """Marks runs that never ended as failed; returns their ids. The caller holds the lock."""
        found = self.dead_runs()
        for run_id in found:
            self.execute(
                f"UPDATE {self.name(RUNS)} SET status = '{Status.failed}', error = %s, error_kind = '{UNSETTLED}', "
                f"{self.column(LOAD_ID)} = '', finished_at = COALESCE(finished_at, %s) WHERE run_id = %s",
                DIED,
                now,
                run_id,
            )
        return found

    def settle_dead_runs(self) -> None:
        """Nothing that dead runs left is in disorder any more: the next run need not look again."""
        self.execute(
            f"UPDATE {self.name(RUNS)} SET error_kind = '{SETTLED}' WHERE error_kind = '{UNSETTLED}'",
        )

    def write_run(self, tally: Tally, status: Status | None = None) -> None:
        """Replaces this run's row."""
        self.execute(f"DELETE FROM {self.name(RUNS)} WHERE run_id = %s", tally.run_id)
        self._insert(RUNS, RUNS_SCHEMA.names, {**tally.as_row(status), LOAD_ID: ""})

    def _insert(self, table: str, names: Sequence[str], row: Mapping[str, Any]) -> None:
        columns = ", ".join(self.column(name) for name in names)
        marks = ", ".join(["%s"] * len(names))
        self.execute(f"INSERT INTO {self.name(table)} ({columns}) VALUES ({marks})", *[row[name] for name in names])

    def rows_of(self, table: str, import_key: str, slugs: Sequence[str]) -> pa.Table:
        """All rows of these imports in one table, with all its columns."""
        parts = [
            self.query(
                f"SELECT * FROM {self.name(table)} WHERE {self.column(import_key)} IN "
                f"({', '.join(['%s'] * len(some))})",
                *some,
            )
            for some in _batches(slugs)
        ]
        return pa.concat_tables(parts, promote_options="default") if parts else pa.table({})

    def raw_counts(self, template_slug: str) -> dict[str, int]:
        """Import → raw rows of this template, deleted ones too; '' stands for rows without a template."""
        rows = self.query(
            f"SELECT import_slug, count(*) AS n FROM {self.name(RECORDS)} "
            f"WHERE COALESCE(template_slug, '') = %s GROUP BY 1 ORDER BY 1",
            template_slug,
        ).to_pylist()
        return {row["import_slug"]: int(row["n"]) for row in rows}

    def raw_rows(self, template_slug: str, slugs: Sequence[str]) -> pa.Table:
        """The raw rows of these imports that are of this template."""
        rows = self.rows_of(RECORDS, "import_slug", slugs)
        if not rows.num_rows:
            return rows
        templates: Any = rows.column("template_slug").to_pylist()
        return rows.filter(pa.array([(value or "") == template_slug for value in templates]))

    def without_raw_row(self, table: str) -> int:
        """Rows of a typed table that no raw row stands behind."""
        rows = self.query(
            f"SELECT count(*) AS n FROM {self.name(table)} t WHERE NOT EXISTS "
            f"(SELECT 1 FROM {self.name(RECORDS)} r WHERE r.slug = t.{self.column('_record_slug')})"
        ).to_pylist()
        return int(rows[0]["n"])

    def drop_table(self, table: str) -> None:
        self.execute(f"DROP TABLE IF EXISTS {self.name(table)}")

    def discard(self, beside: str, schema_name: str) -> None:
        """Drops a half-written table, and what dlt noted of it: else it would believe that it is there."""
        self.drop_table(beside)
        self._forget_schema(schema_name)

    def _forget_schema(self, schema_name: str) -> None:
        for table in (LOADS, VERSIONS):
            self.execute(f"DELETE FROM {self.name(table)} WHERE schema_name = %s", schema_name)

    def count(self, table: str, key: str) -> tuple[int, int]:
        """(rows, distinct keys)."""
        row = self.query(
            f"SELECT count(*) AS n, count(DISTINCT {self.column(key)}) AS d FROM {self.name(table)}"
        ).to_pylist()[0]
        return int(row["n"]), int(row["d"])

    def swap(self, table: str, beside: str, fields: Sequence[Mapping[str, Any]], schema_name: str) -> None:
        """In one transaction: `beside` becomes `table`, `fields` its rows of `sync_fields`; dlt's staging copy of the
        table goes, for its columns have the types of before, and so do the traces of the schema that made `beside`."""
        with self.client.begin_transaction():
            self.drop_table(table)
            self.execute(f"ALTER TABLE {self.name(beside)} RENAME TO {self.column(table)}")
            self.execute(f"DELETE FROM {self.name(FIELDS)} WHERE table_name = %s", table)
            for row in fields:
                self._insert(FIELDS, FIELDS_SCHEMA.names, row)
            self._forget_schema(schema_name)
            with self.client.with_staging_dataset():
                if self.client.has_dataset():
                    self.drop_table(table)

    def totals(self, schema: TableSchema, without: Sequence[str]) -> tuple[int, dict[Keys, tuple[int, int]]]:
        """Live rows of a typed table that belong to other imports, and (values, conflicts) of each field in them."""
        fields = [f for f in schema.fields.values() if any(c in schema.physical for c in f.columns())]
        counts = [f"count({self.column(c)})" for f in fields for c in f.columns() if c in schema.physical]
        marks = ", ".join(["%s"] * len(without))
        kept = f" AND {self.column('_import_slug')} NOT IN ({marks})" if without else ""
        selected = ", ".join(f"{what} AS c{n}" for n, what in enumerate(["count(*)", *counts]))
        row = self.query(
            f"SELECT {selected} FROM {self.name(schema.table)} WHERE {self.column('_deleted_at')} IS NULL{kept}",
            *without,
        ).to_pylist()[0]
        numbers = iter([row[f"c{n}"] for n in range(len(counts) + 1)])
        rows = next(numbers)
        totals: dict[Keys, tuple[int, int]] = {}
        for f in fields:
            by_column = {c: next(numbers) for c in f.columns() if c in schema.physical}
            values = sum(by_column.values())
            totals[f.keys] = (values, values - by_column.get(f.column, 0))
        return rows, totals

    def is_new(self, arrival: Arrival) -> bool:
        """Whether the table holds no row of these records or imports (DuckDB only: it reads Arrow where it lies)."""
        record, import_ = map(self.column, keys_of(arrival.table))
        return not self._count_of(
            arrival,
            f"{import_} IN (SELECT slug FROM arriving_imports) OR {record} IN (SELECT slug FROM arriving_records)",
        )

    def are_elsewhere(self, arrival: Arrival) -> bool:
        """Whether the table holds some of these records as another import's (DuckDB only, as above)."""
        record, import_ = map(self.column, keys_of(arrival.table))
        return bool(
            self._count_of(
                arrival,
                f"{import_} NOT IN (SELECT slug FROM arriving_imports) AND {self.column('_deleted_at')} IS NULL "
                f"AND {record} IN (SELECT slug FROM arriving_records)",
            )
        )

    def _count_of(self, arrival: Arrival, where: str) -> int:
        native = self.client.native_connection
        native.register("arriving_records", pa.table({"slug": arrival.records}))
        native.register("arriving_imports", pa.table({"slug": pa.array(arrival.imports, pa.string())}))
        try:
            rows = self.query(f"SELECT count(*) AS n FROM {self.name(arrival.table)} WHERE {where}").to_pylist()
        finally:
            native.unregister("arriving_records")
            native.unregister("arriving_imports")
        return int(rows[0]["n"])

    def missing_rows(self, load_id: str, raw: bool, typed_tables: Sequence[str]) -> list[tuple[str, str, int, int]]:
        """After a load: (import, table, rows accepted, rows that are there) wherever the two differ."""
        ledger = {
            r["slug"]: r
            for r in self.query(
                f"SELECT slug, table_name, records_loaded FROM {self.name(LEDGER)} "
                f"WHERE {self.column(LOAD_ID)} = %s AND state IN ('{State.synced}', '{State.unreconciled}')",
                load_id,
            ).to_pylist()
        }
        wrong: list[tuple[str, str, int, int]] = []
        tables = self.columns()  # a template whose imports have no rows has no table yet
        for table in [RECORDS] * raw + sorted(typed_tables):
            key = self.column("import_slug" if table == RECORDS else "_import_slug")
            there: dict[str, int] = {}
            if table in tables:
                rows = self.query(
                    f"SELECT {key} AS slug, count(*) AS n FROM {self.name(table)} WHERE {self.column(LOAD_ID)} = %s "
                    f"AND {self.column('_deleted_at')} IS NULL GROUP BY 1",
                    load_id,
                ).to_pylist()
                there = {r["slug"]: int(r["n"]) for r in rows}
            for slug, row in ledger.items():
                if table in (RECORDS, row["table_name"]) and there.get(slug, 0) != row["records_loaded"]:
                    wrong.append((slug, table, row["records_loaded"], there.get(slug, 0)))
        return wrong

    def distrust(self, slugs: Sequence[str], why: str) -> None:
        """Makes the next run read these imports again."""
        for some in _batches(slugs):
            self.execute(
                f"UPDATE {self.name(LEDGER)} SET state = '{State.failed}', error = %s "
                f"WHERE slug IN ({', '.join(['%s'] * len(some))})",
                why,
                *some,
            )

    def doubt(self, slugs: Sequence[str], known: Collection[str], why: str) -> None:
        """Takes their load from the ledger rows of these imports, and gives those without a row one that has none:
        the next run then audits all rows, and reads these imports again."""
        for some in _batches([slug for slug in slugs if slug in known]):
            self.execute(
                f"UPDATE {self.name(LEDGER)} SET {self.column(LOAD_ID)} = '', error = %s "
                f"WHERE slug IN ({', '.join(['%s'] * len(some))})",
                why,
                *some,
            )
        for slug in slugs:
            if slug not in known:
                row = {"slug": slug, "state": State.failed.value, "error": why, LOAD_ID: ""}
                self._insert(LEDGER, list(row), row)

    def errors(self) -> list[tuple[str, str, str | None]]:
        """(import, state, error) of every import that is not as it should be."""
        rows = self.query(
            f"SELECT slug, state, error FROM {self.name(LEDGER)} "
            f"WHERE state IN ('{State.failed}', '{State.unreconciled}') ORDER BY slug"
        ).to_pylist()
        return [(row["slug"], row["state"], row["error"]) for row in rows]


def _batches(slugs: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(slugs), SLUGS_PER_QUERY):
        yield slugs[start : start + SLUGS_PER_QUERY]


def _known(row: Mapping[str, Any]) -> Known:
    return Known(
        slug=row["slug"],
        state=State(row["state"]),
        updated_at=row["updated_at"],
        row_count=row["row_count"],
        status=row["status"],
        template_slug=row["template_slug"],
        table_name=row["table_name"],
        records_loaded=row["records_loaded"] or 0,
        records_rejected=row["records_rejected"] or 0,
        attempts=row["attempts"] or 0,
        last_synced_at=row["last_synced_at"],
        trusted=bool(row["trusted"]),
        has_raw=bool(row["has_raw"]),
    )


def _distrusted(slug: str, known: Known | None) -> Known:
    if known is None:
        return Known(slug, State.failed, None, None, None, None, None, 0, 0, 0, None, trusted=False)
    return replace(known, trusted=False)


def _agrees(
    known: Known, load_id: str | None, slug: str, present: Mapping[str, Mapping[str, tuple[int, set[str]]]]
) -> bool:
    for table, counts in present.items():
        live, loads = counts.get(slug, (0, set()))
        here = known.has_raw if table == RECORDS else table == known.table_name
        if known.state is State.failed:  # read again in any case; only where its rows are has to be known
            if live and not here:
                return False
            continue
        wanted = known.records_loaded if here and known.state is not State.deleted else 0
        # rows elsewhere that are marked deleted stay where `deletes = keep` left them
        if live != wanted or (here and loads - {load_id}):
            return False
    return known.trusted


def _template_tables(ledger: Any, fields: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Typed table → slug of its template ('' for imports without one)."""
    found = {k.table_name: k.template_slug or "" for k in ledger if k.table_name}
    found.update({f["table_name"]: f["template_slug"] or "" for f in fields if f["table_name"] != IMPORTS})
    return found


def _schemas(physical: Mapping[str, Mapping[str, str]], fields: Sequence[Mapping[str, Any]]) -> dict[str, TableSchema]:
    by_table: dict[str, dict[Keys, Field]] = defaultdict(dict)
    for row in fields:
        keys = decode_keys(row["keys"])
        by_table[row["table_name"]][keys] = Field(
            keys, row["column_name"], row["data_type"], bool(row["has_text"]), bool(row["has_double"])
        )
    typed = {t for t in physical if t.startswith("records_")}
    return {
        table: TableSchema(table, by_table.get(table, {}), physical.get(table, {}))
        for table in {*typed, *by_table, IMPORTS}
    }


_STORED_TYPES = {
    "bigint": "bigint",
    "hugeint": "decimal(38,0)",
    "double": "double",
    "double precision": "double",
    "boolean": "bool",
    "varchar": "text",
    "character varying": "text",
    "text": "text",
    "json": "json",
    "jsonb": "json",
    "date": "date",
    "timestamp with time zone": "timestamp",
}


def _type_of(declared: str, precision: int | None, scale: int | None) -> str:
    """The destination's name of a type → ours; one we never write stays as it is and its column is avoided."""
    name = declared.lower()
    if name.startswith(("decimal", "numeric")):
        return f"decimal({precision},{scale})"
    return _STORED_TYPES.get(name, name)
