"""`importer-sync status`: show last runs, freshness, and the imports that failed or do not reconcile."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.cli.configuration import open_pipeline
from connector.cli.exit_codes import PARTIAL
from connector.cli.options import age, whole
from connector.cli.output import Output, duration
from connector.dlt_config import configured
from connector.ledger import STATUSES
from connector.load.working_directory import pipelines_dir_of
from connector.runs import CLOCKS_DIFFER
from connector.warehouse.destination import location
from connector.warehouse.status import PastRun, WarehouseStatus, status

EXAMPLES = ("importer-sync status", "importer-sync status --max-age 6h --json")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=whole(1), default=5, metavar="N", help="runs to show (5)")
    parser.add_argument(
        "--max-age",
        type=age,
        metavar="AGE",
        help="exit with 3 unless a successful run (not a backfill) began within this time, e.g. 6h",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    pipeline = open_pipeline(arguments)
    found, now = status(pipeline, runs=arguments.runs), datetime.now(UTC)
    behind = bool(found.runs) and not found.under_way and _views_are_behind(pipeline)
    age_s, ahead = _age_s(found.fresh_as_of, now)
    stale = None
    if arguments.max_age is not None:
        stale = age_s is None or age_s > arguments.max_age.total_seconds()
    where = f"{location(pipeline)}, dataset {arguments.dataset}"
    sentences = list(advice(found, stale=bool(stale), views_behind=behind))
    state = {**asdict(found), "age_seconds": age_s, "ahead": ahead, "stale": stale, "views_behind": behind}
    state["advice"] = sentences
    state["pipelines_dir"] = str(pipelines_dir_of(pipeline))
    output.document(_plain({"warehouse": where, **state}))
    output.say(f"warehouse  {where}")
    if output.verbose:
        output.say(f"dlt        {state['pipelines_dir']}")
    if found.runs:
        output.say(f"imports    {', '.join(f'{n:,} {state}' for state, n in found.imports.items()) or 'none'}")
        rejected = f", and {found.rejects:,} rejected (see sync_rejects)" if found.rejects else ""
        output.say(f"records    {found.records:,}{rejected}")
        output.say(f"fresh      {_freshness(age_s, ahead)}")
        if stale:
            output.say(f"STALE      older than {duration(arguments.max_age.total_seconds())}")
        output.say()
        _print_runs(output, found.runs)
        _print_open(output, found)
    for sentence in sentences:
        output.say(f"→ {sentence}")
    return PARTIAL if stale else 0


def _age_s(fresh_as_of: datetime | None, now: datetime) -> tuple[float | None, bool]:
    """Return the age in seconds, None if unknown, and whether the time is in the future."""
    if fresh_as_of is None:
        return None, False
    if fresh_as_of - now > CLOCKS_DIFFER:
        return None, True
    return max(round((now - fresh_as_of).total_seconds(), 1), 0.0), False


def _freshness(age_s: float | None, ahead: bool) -> str:
    if ahead:
        return "not known: by this machine's clock, the last run that loaded everything began in the future"
    return "never fully synced" if age_s is None else f"as of {duration(age_s)} ago"


def _views_are_behind(pipeline: Pipeline) -> bool:
    """Return whether runs should keep the views and did not; a read-only setup may lack the other settings."""
    from connector.reporting.views.applying import are_outdated  # not needed before the first load

    return configured("sources.importer.views", bool) is not False and are_outdated(pipeline)


def _plain(found: Any) -> Any:
    """Return the document with times as ISO 8601 text."""
    return json.loads(json.dumps(found, default=lambda value: value.isoformat()))


def advice(found: WarehouseStatus, *, stale: bool, views_behind: bool = False) -> Iterator[str]:
    """Yield what to do about each problem, the most urgent first."""
    if not found.runs:
        yield "Nothing has been loaded yet; `importer-sync run` loads it."
        return
    last = found.runs[0]
    if found.under_way:
        yield "A run is under way and has the file open; these figures are from when it began."
    elif last.status == "failed":
        yield (
            f"The last run failed: {last.error or 'no reason was recorded.'} `importer-sync check` says whether "
            "service and destination can be used; once they can, `importer-sync run` continues from what was "
            "committed."
        )
    elif last.status == "partial" and last.error and not found.open:  # otherwise those say why
        yield f"The last run was partial: {last.error}"
    elif last.status == "interrupted":
        yield "The last run was stopped before it finished; `importer-sync run` continues from there."
    elif last.status == "running":
        yield (
            f"Run {last.run_id} is under way or was killed; if it was killed, the next `importer-sync run` reads its "
            "unfinished imports again."
        )
    if stale:
        yield "No run that loaded everything is recent enough: check that the scheduler starts `importer-sync run`."
    if left := found.due.get("backfill"):
        status = configured("sources.importer.status", str)
        elsewhere, once = (
            (f", or they are not {status} now", f" once they are {status}") if status in STATUSES else ("", "")
        )
        yield (
            f"{left:,} imports selected by a backfill have not been read yet: it was stopped or failed before it "
            f"reached them{elsewhere}. `importer-sync run` reads them{once}."
        )
    states = found.standings
    if states.get("failed"):
        yield (
            "Every run tries failed imports again; `importer-sync backfill --import SLUG` tries one now. Report what "
            "keeps failing to the operator of the service: the errors above name the request."
        )
    if states.get("unreconciled"):
        yield (
            "Imports that do not reconcile have more or fewer records than their row_count says, or rows that no typed "
            "table can hold. They are loaded as received, and every run reads them again. If a difference persists, "
            'the service counts wrongly: report it to its operator, or accept it with reconcile = "warn" under '
            "[sources.importer]."
        )
    if states.get("waiting"):
        yield "Waiting imports are listed but not loaded in their current version; `importer-sync run` reads them."
    if views_behind:
        yield (
            "The views for analysts are behind the tables; `importer-sync sql apply` updates them, or says why it "
            "cannot."
        )
    if found.rejects:
        yield (
            "Rejected records are in sync_rejects with the reason: "
            'importer-sync query "SELECT import_slug, reason, payload FROM sync_rejects"'
        )


def _print_open(output: Output, found: WarehouseStatus) -> None:
    """Print each open import: why it is open, what it is, and how often it was tried."""
    for each in found.open:
        if each.state == "waiting":
            output.say(f"waiting: import {each.slug}")
            continue
        output.say(f"{each.state}: {each.error or 'no reason recorded'}")
        output.say(f"    import {each.slug}, attempt {each.attempts}")
    more = sum(found.standings.get(s, 0) for s in ("failed", "unreconciled", "waiting")) - len(found.open)
    if more > 0:
        output.say(f"… and {more:,} more in sync_imports")
    if found.open:
        output.say()


def _print_runs(output: Output, runs: Sequence[PastRun]) -> None:
    output.table(
        "last runs",
        ("started (UTC)", "mode", "status", "took", "changed", "failed", "records"),
        [
            (
                f"{r.started_at:%Y-%m-%d %H:%M:%S}",
                r.mode,
                r.status,
                duration((r.finished_at - r.started_at).total_seconds()) if r.finished_at else None,
                r.imports_changed,
                r.imports_failed,
                r.records_loaded,
            )
            for r in runs
        ],
    )
    for each in runs[1:]:  # the advice has the last error, and open imports explain a partial run
        if each.error and each.status == "failed":
            output.say(f"{each.started_at:%Y-%m-%d %H:%M} {each.status}: {each.error}")
