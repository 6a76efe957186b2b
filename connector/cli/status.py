"""`importer-sync status`: last runs, freshness, and the imports that failed or do not reconcile."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from connector.cli.options import age, whole

if TYPE_CHECKING:
    from dlt.pipeline.pipeline import Pipeline

    from connector.cli.output import Output
    from connector.warehouse import Connection

NAME = "status"
HELP = "last runs, freshness, imports that failed or do not reconcile"
EXAMPLES = ("importer-sync status", "importer-sync status --max-age 6h --json")
WAIT_S = 5.0
OPEN_SHOWN = 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=whole(1), default=5, metavar="N", help="runs to show (5)")
    parser.add_argument(
        "--max-age",
        type=age,
        metavar="AGE",
        help="exit with 3 unless a run that succeeded began within this time, e.g. 6h",
    )


def run(arguments: argparse.Namespace) -> int:
    from connector.cli.configuration import location, open_pipeline
    from connector.cli.output import Output
    from connector.cli.problems import PARTIAL

    output = Output(arguments)
    pipeline = open_pipeline(arguments)
    now = datetime.now(UTC)
    found = _patiently(pipeline, arguments.runs)
    fresh: datetime | None = found["fresh_as_of"]
    stale = arguments.max_age is not None and (fresh is None or now - fresh > arguments.max_age)
    found["age_seconds"] = round((now - fresh).total_seconds(), 1) if fresh else None
    found["stale"] = stale if arguments.max_age is not None else None
    found["advice"] = list(_advice(found))
    where = f"{location(pipeline)}, dataset {arguments.dataset}"
    output.document(_plain({"warehouse": where, **found}))
    _tell(output, found, where, arguments.max_age)
    return PARTIAL if stale else 0


def _patiently(pipeline: Pipeline, runs: int) -> dict[str, Any]:
    """A run under way holds a DuckDB file again and again, but for moments only."""
    from connector.cli.problems import as_problem
    from connector.warehouse import Warehouse

    warehouse = Warehouse(pipeline)
    warehouse.check_supported()
    until = time.monotonic() + WAIT_S
    while True:
        try:
            if not warehouse.exists():
                return {"fresh_as_of": None, "runs": [], "imports": {}, "records": 0, "rejects": 0, "open": []}
            with warehouse.connect() as connection:
                return _found(connection, runs)
        except Exception as error:
            if "only one in" not in str(as_problem(error)) or time.monotonic() > until:
                raise
            time.sleep(0.1)


def _found(connection: Connection, runs: int) -> dict[str, Any]:
    from connector.tables import LEDGER, RECORDS, REJECTS, RUNS

    tables = set(connection.columns())

    def rows(sql: str, table: str) -> list[dict[str, Any]]:
        return connection.query(sql.replace("{t}", connection.name(table))).to_pylist() if table in tables else []

    def count(table: str, where: str = "") -> int:
        return next((int(row["n"]) for row in rows(f"SELECT count(*) AS n FROM {{t}} {where}", table)), 0)

    fresh = rows(
        "SELECT max(started_at) AS at FROM {t} WHERE status = 'succeeded' AND mode = 'incremental' "
        "AND window_since IS NULL AND window_until IS NULL",
        RUNS,
    )
    return {
        "fresh_as_of": fresh[0]["at"] if fresh else None,
        "runs": rows(
            "SELECT run_id, status, mode, started_at, finished_at, imports_listed, imports_changed, imports_deleted, "
            "imports_failed, imports_unreconciled, records_loaded, records_rejected, requests, error FROM {t} "
            f"ORDER BY started_at DESC LIMIT {runs}",
            RUNS,
        ),
        "imports": {
            row["state"]: int(row["n"])
            for row in rows("SELECT state, count(*) AS n FROM {t} GROUP BY state ORDER BY state", LEDGER)
        },
        "records": count(RECORDS, f"WHERE {connection.column('_deleted_at')} IS NULL"),
        "rejects": count(REJECTS),
        "open": rows(
            "SELECT slug, state, attempts, error, last_synced_at FROM {t} WHERE state IN ('failed', 'unreconciled') "
            f"ORDER BY state, slug LIMIT {OPEN_SHOWN}",
            LEDGER,
        ),
    }


def _plain(found: Any) -> Any:
    """Times as ISO 8601 text."""
    return json.loads(json.dumps(found, default=lambda value: value.isoformat()))


def _advice(found: dict[str, Any]) -> Iterator[str]:
    """What to do about what is not as it should be, the most urgent first."""
    if not found["runs"]:
        yield "Nothing was loaded yet; `importer-sync run` does it."
        return
    last = found["runs"][0]
    if last["status"] == "failed":
        yield (
            f"The last run failed: {last['error'] or 'it left no reason.'} `importer-sync check` says whether service "
            "and destination can be used; once they can, `importer-sync run` goes on from what was committed."
        )
    if last["status"] == "interrupted":
        yield "The last run was stopped before its end; `importer-sync run` goes on from there."
    if last["status"] == "running":
        yield (
            f"Run {last['run_id']} is under way, or was killed: then the next `importer-sync run` notices and reads "
            "its unfinished imports again."
        )
    if found["stale"]:
        yield "No run that loaded everything is recent enough: see that the scheduler starts `importer-sync run`."
    states = found["imports"]
    if states.get("failed"):
        yield (
            "Failed imports are tried again by every run; `importer-sync backfill --import SLUG` tries one now. What "
            "fails each time is for whoever runs the service: the errors above name the request."
        )
    if states.get("unreconciled"):
        yield (
            "Imports that do not reconcile have more or fewer records than their row_count says. They are loaded as "
            "they came, and every run reads them again. If that changes nothing, the service counts wrongly: tell "
            'whoever runs it, or accept it with reconcile = "warn" under [sources.importer].'
        )
    if found["rejects"]:
        yield (
            "Rejected records are in sync_rejects with the reason: "
            'importer-sync query "SELECT import_slug, reason, payload FROM sync_rejects"'
        )


def _tell(output: Output, found: dict[str, Any], where: str, max_age: timedelta | None) -> None:
    output.say(f"warehouse  {where}")
    if found["runs"]:
        _tell_state(output, found, max_age)
        _tell_runs(output, found["runs"])
        for row in found["open"]:
            reason = row["error"] or "no reason kept"
            output.say(f"  {row['state']}: import {row['slug']} (attempt {row['attempts']}): {reason}")
        more = sum(found["imports"].get(state, 0) for state in ("failed", "unreconciled")) - len(found["open"])
        if more > 0:
            output.say(f"  … and {more:,} more in sync_imports")
    for sentence in found["advice"]:
        output.say(f"→ {sentence}")


def _tell_state(output: Output, found: dict[str, Any], max_age: timedelta | None) -> None:
    from connector.cli.output import duration

    states = ", ".join(f"{n:,} {state}" for state, n in found["imports"].items())
    output.say(f"imports    {states or 'none'}")
    rejected = f", and {found['rejects']:,} rejected (see sync_rejects)" if found["rejects"] else ""
    output.say(f"records    {found['records']:,}{rejected}")
    fresh = found["age_seconds"]
    output.say(f"fresh      {'never fully synced' if fresh is None else f'as of {duration(fresh)} ago'}")
    if found["stale"] and max_age is not None:
        output.say(f"STALE      older than {duration(max_age.total_seconds())}")
    output.say()


def _tell_runs(output: Output, runs: list[dict[str, Any]]) -> None:
    from connector.cli.output import duration

    output.table(
        "last runs",
        ("started (UTC)", "mode", "status", "took", "listed", "changed", "failed", "records", "error"),
        [
            (
                f"{r['started_at']:%Y-%m-%d %H:%M:%S}",
                r["mode"],
                r["status"],
                duration((r["finished_at"] - r["started_at"]).total_seconds()) if r["finished_at"] else None,
                r["imports_listed"],
                r["imports_changed"],
                r["imports_failed"],
                r["records_loaded"],
                r["error"],
            )
            for r in runs
        ],
    )
