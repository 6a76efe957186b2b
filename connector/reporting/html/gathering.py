"""Gather the Facts from the warehouse: from the views in `sql/` and from an audit of the rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from connector.reporting.html.facts import (
    DAYS_OF_CHANGES,
    DOUBTFUL,
    Capped,
    Facts,
    FieldChanges,
    FieldProfile,
    OpenImport,
    Reject,
    Run,
    Template,
    Upload,
)
from connector.reporting.html.profiling import profile
from connector.reporting.views import select
from connector.reporting.views import standing as standing_views
from connector.reporting.views.changed import changes_view
from connector.reporting.views.layout import dialect_of, read_layout, recorded
from connector.runs import connector_version
from connector.standing import Shown, Standing, standing
from connector.transform.schema import NOT_OURS, parse_type
from connector.warehouse import Connection, Warehouse
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.runs_table import full_run_sql
from connector.warehouse.standings import unread_in_listing
from connector.warehouse.state import WarehouseState, audit, unaudited_state
from connector.warehouse.tables import FIELDS, REJECTS

RUNS_KEPT = 300
OPEN_KEPT = 200
TEMPLATES_KEPT = 500
REASONS_KEPT = 50
FIELDS_KEPT = 2000
CHANGES_KEPT = 500
TEXT_KEPT = 600
NO_TEMPLATE = "(no template)"

Row = dict[str, Any]


def gather(
    warehouse: Warehouse,
    where: str,
    dataset: str,
    now: datetime,
    hide: Callable[[str], str] = lambda text: text,
    *,
    values: bool = True,
) -> Facts:
    """Read all facts over one connection; `hide` removes secrets from every text.

    With `values`, the profiles of fields show values.
    """
    empty = Facts(hide(where), dataset, now, connector_version())
    if not warehouse.exists():
        return empty
    dialect = dialect_of(warehouse)
    with warehouse.connect() as connection:
        return _Reader(connection, dialect, dataset, hide, values).facts(empty)


class _Reader:
    def __init__(
        self, connection: Connection, kind: str, dataset: str, hide: Callable[[str], str], values: bool
    ) -> None:
        self._connection = connection
        self._kind = kind
        self._dataset = dataset
        self._hide = hide
        self._shows_values = values
        self._tables = inspect_dataset(connection).ours
        self._views = {each.name: each for each in standing_views()}

    def facts(self, empty: Facts) -> Facts:
        state = unaudited_state(self._connection)
        wrong = set(audit(self._connection, state))
        imports = [_judged(row, state, wrong) for row in self._imports()]
        uploads, undated = self._uploads()
        return Facts(
            warehouse=empty.warehouse,
            dataset=empty.dataset,
            made_at=empty.made_at,
            version=empty.version,
            synced=True,
            fresh_as_of=self._fresh(),
            records=sum(row["rows_loaded"] for row in imports),
            rejected=sum(row["rows_rejected"] for row in imports) + unread_in_listing(self._connection, self._tables),
            undated=undated,
            unknown_imports=len(wrong - set(state.ledger) - set(state.imports)),
            templates=Capped.of(_templates(imports), TEMPLATES_KEPT),
            standings=dict(Counter(row["standing"] for row in imports)),
            runs=self._runs(),
            uploads=uploads,
            open_imports=Capped.of(_open(imports), OPEN_KEPT),
            rejects=self._rejects(),
            fields=self._fields(),
            typed=FIELDS in self._tables and any(table.startswith("records_") for table in self._tables),
            changes=self._changes(empty.made_at),
        )

    def _rows(self, columns: str, view: str, rest: str = "") -> list[Row]:
        statement = select(self._views[view], self._kind, self._dataset, self._tables)
        return self._plain(f"SELECT {columns} FROM ({statement}) AS v {rest}")

    def _plain(self, sql: str) -> list[Row]:
        """Return rows with redacted and shortened texts, times in UTC, and Python numbers."""
        found: list[Row] = self._connection.query(sql).to_pylist()
        return [{name: self._value(value) for name, value in row.items()} for row in found]

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            text = self._hide(value)
            return text if len(text) <= TEXT_KEPT else text[: TEXT_KEPT - 1] + "…"
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return value

    def _imports(self) -> list[Row]:
        return self._rows(
            "import_slug, template, template_slug, uploaded_at, changed_at, status, state, "
            "row_count, rows_loaded, rows_rejected, attempts, error, last_synced_at, file_name, uploader",
            "v_imports",
            "ORDER BY import_slug",
        )

    def _uploads(self) -> tuple[tuple[Upload, ...], int]:
        rows = self._rows("upload_day, template, template_slug, imports, rows_loaded", "v_uploads_per_day")
        dated = [row for row in rows if row["upload_day"] is not None]
        uploads = tuple(
            Upload(row["upload_day"], _name(row), int(row["imports"]), int(row["rows_loaded"] or 0)) for row in dated
        )
        return uploads, sum(int(row["imports"]) for row in rows if row["upload_day"] is None)

    def _fresh(self) -> datetime | None:
        rows = self._rows("max(started_at) AS at", "v_runs", f"WHERE {full_run_sql()}")
        found: datetime | None = rows[0]["at"]
        return found

    def _runs(self) -> Capped[Run]:
        total = self._rows("count(*) AS n", "v_runs")[0]["n"]
        rows = self._rows("*", "v_runs", f"ORDER BY started_at DESC, run_id DESC LIMIT {RUNS_KEPT}")
        return Capped(tuple(_run(row) for row in rows), int(total))

    def _rejects(self) -> Capped[Reject]:
        if REJECTS not in self._tables:
            return Capped()
        rows = self._plain(
            "SELECT reason, count(*) AS records, count(DISTINCT import_slug) AS imports, "
            "min(seen_at) AS first_seen_at, max(seen_at) AS last_seen_at, max(import_slug) AS example "
            f"FROM {self._connection.name(REJECTS)} "
            "GROUP BY reason ORDER BY 2 DESC, 1"
        )
        return Capped.of(
            (
                Reject(
                    row["reason"] or "no reason recorded",
                    int(row["records"]),
                    int(row["imports"]),
                    row["first_seen_at"],
                    row["last_seen_at"],
                    row["example"],
                )
                for row in rows
            ),
            REASONS_KEPT,
        )

    def _fields(self) -> Capped[FieldProfile]:
        """Return the fields by template, as the table shows them; if not all are kept, those with conflicts first."""
        if FIELDS not in self._tables:
            return Capped()
        total = self._rows("count(*) AS n", "v_fields")[0]["n"]
        order = "conflict_share DESC NULLS LAST, template, table_name, column_name"
        rows = self._rows("*", "v_fields", f"ORDER BY {order} LIMIT {FIELDS_KEPT}")
        profiles = [
            FieldProfile(
                template=_name(row),
                table=row["table_name"],
                path=row["field"] or "",
                column=row["column_name"],
                data_type=row["data_type"],
                values=int(row["value_count"]),
                nulls=int(row["null_count"]),
                conflicts=int(row["conflict_count"]),
                first_seen_at=row["first_seen_at"],
            )
            for row in rows
        ]
        profiles.sort(key=lambda f: (f.template, f.table, f.path, f.column))
        return Capped(tuple(self._with_values(profiles)), int(total))

    def _with_values(self, fields: Sequence[FieldProfile]) -> Iterator[FieldProfile]:
        """Yield the fields with a profile of their values, if the warehouse has their columns with the right type."""
        there = self._connection.columns() if self._shows_values else {}
        there = {name: columns for name, columns in there.items() if name in self._tables and "_deleted_at" in columns}
        wanted = [f for f in fields if f.values and _is_as_it_should(f, there.get(f.table, {}).get(f.column))]
        looks = profile(self._connection, self._plain, [(f.table, f.column, str(f.data_type)) for f in wanted])
        found = dict(zip(((f.table, f.column) for f in wanted), looks, strict=True))
        for each in fields:
            yield replace(each, looks=found.get((each.table, each.column)))

    def _changes(self, now: datetime) -> Capped[FieldChanges] | None:
        """Return the changes, latest day first, most frequent first within a day; None if no version is kept."""
        layout = read_layout(self._connection, self._kind)
        versions = list(recorded(layout))
        if not versions:
            return None
        since = f"TIMESTAMP WITH TIME ZONE '{now - timedelta(days=DAYS_OF_CHANGES)}'"
        rows = self._plain(
            "SELECT CAST(changed_at AT TIME ZONE 'UTC' AS DATE) AS on_day, template, field, change, count(*) AS n "
            f"FROM ({changes_view(layout, versions).sql}) AS v WHERE changed_at >= {since} GROUP BY 1, 2, 3, 4 "
            "ORDER BY 1 DESC, 5 DESC, 2, 3, 4"
        )
        found = (
            FieldChanges(r["on_day"], r["template"] or NO_TEMPLATE, r["field"], r["change"], int(r["n"])) for r in rows
        )
        return Capped.of(found, CHANGES_KEPT)


def _is_as_it_should(known: FieldProfile, physical: str | None) -> bool:
    """Return whether the column exists with the type in the dictionary: somebody may have altered it."""
    if known.data_type is None or physical is None or physical == NOT_OURS:
        return False
    with suppress(ValueError):
        return parse_type(physical).kind is parse_type(known.data_type).kind
    return False


def _judged(row: Row, state: WarehouseState, wrong: set[str]) -> Row:
    """Return the row of an import with its standing; unknown counts become 0."""
    numbers = {name: int(row[name] or 0) for name in ("rows_loaded", "rows_rejected", "attempts")}
    return {**row, **numbers, "standing": _standing(row, state, wrong)}


def _standing(row: Row, state: WarehouseState, wrong: set[str]) -> Standing:
    found = standing(state.ledger.get(row["import_slug"]), Shown(row["changed_at"], row["row_count"]))
    damaged = row["import_slug"] in wrong and found not in (Standing.failed, Standing.waiting)
    return Standing.damaged if damaged else found


def _name(row: Row) -> str:
    return str(row["template"] or row["template_slug"] or NO_TEMPLATE)


def _templates(imports: Sequence[Row]) -> list[Template]:
    """Return the templates that need attention first, then the largest."""
    by_slug: dict[str, list[Row]] = defaultdict(list)
    for row in imports:
        by_slug[row["template_slug"] or ""].append(row)
    found = [_template(slug, rows) for slug, rows in by_slug.items()]
    return sorted(found, key=lambda t: (-t.doubtful, -t.loaded, t.name))


def _template(slug: str, rows: Sequence[Row]) -> Template:
    begin = datetime.min.replace(tzinfo=UTC)
    newest = max(rows, key=lambda row: row["changed_at"] or begin)
    return Template(
        slug=slug,
        name=_name(newest),
        imports=len(rows),
        expected=sum(int(row["row_count"] or 0) for row in rows),
        loaded=sum(row["rows_loaded"] for row in rows),
        rejected=sum(row["rows_rejected"] for row in rows),
        standings=dict(Counter(row["standing"] for row in rows)),
        uploaded_at=_latest(row["uploaded_at"] for row in rows),
        synced_at=_latest(row["last_synced_at"] for row in rows),
    )


def _latest(times: Iterable[datetime | None]) -> datetime | None:
    return max((time for time in times if time is not None), default=None)


def _open(imports: Sequence[Row]) -> list[OpenImport]:
    found = [
        OpenImport(
            slug=row["import_slug"],
            template=_name(row),
            standing=row["standing"],
            expected=None if row["row_count"] is None else int(row["row_count"]),
            loaded=row["rows_loaded"],
            attempts=row["attempts"],
            error=row["error"],
            synced_at=row["last_synced_at"],
            file_name=row["file_name"],
            uploader=row["uploader"],
        )
        for row in imports
        if row["standing"] in DOUBTFUL
    ]
    return sorted(found, key=lambda each: (DOUBTFUL.index(each.standing), each.slug))


def _run(row: Row) -> Run:
    counts = ("listed", "changed", "deleted")
    return Run(
        run_id=row["run_id"],
        status=row["status"] or "running",
        mode=row["mode"] or "",
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        seconds=None if row["duration_s"] is None else max(0.0, float(row["duration_s"])),
        **{f"imports_{name}": int(row[f"imports_{name}"] or 0) for name in counts},
        records_loaded=int(row["records_loaded"] or 0),
        records_rejected=int(row["records_rejected"] or 0),
        requests=int(row["requests"] or 0),
        retries=int(row["retries"] or 0),
        error=row["error"],
    )
