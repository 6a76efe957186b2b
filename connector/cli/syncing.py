"""What `run` and `backfill` share: one sync under supervision, its summary, its document, its exit code."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from connector.cli.configuration import load_settings, location, open_pipeline
from connector.cli.output import Output, amount, duration, size
from connector.cli.problems import FAILED, PARTIAL, as_problem, exit_code
from connector.cli.progress import progress_of
from connector.cli.signals import Stop, supervised

if TYPE_CHECKING:
    from dlt.pipeline.pipeline import Pipeline

    from connector.extraction import Scope
    from connector.runs import Tally

PROBLEMS_SHOWN = 10


def run_scope(arguments: argparse.Namespace, scope: Scope) -> int:
    """One run over `scope` as the command line has it; returns the exit code."""
    return run_pipeline(lambda: open_pipeline(arguments), scope, Output(arguments))


def run_pipeline(opened: Callable[[], Pipeline], scope: Scope, output: Output) -> int:
    """One run over `scope`; returns the exit code. Raises only what kept the run from beginning."""
    try:
        tally, where = _supervised_sync(opened, scope, output)
    except Exception as error:
        output.document(document_of_failure(as_problem(error), scope.mode))
        raise
    output.document(tally.as_json())
    _summarise(output, tally, where)
    return code_of(tally)


def _supervised_sync(opened: Callable[[], Pipeline], scope: Scope, output: Output) -> tuple[Tally, str]:
    from connector.sync import sync

    def work(stop: Stop) -> tuple[Tally, str]:
        settings, pipeline = load_settings(), opened()
        where = f"{location(pipeline)}, dataset {pipeline.dataset_name}"
        with progress_of(output) as progress:
            return sync(pipeline, settings, scope, progress=progress, stop=stop), where

    def on_first(number: int) -> None:
        output.note(f"{_name(number)}: stopping after committing what is complete; once more to leave at once.")

    def on_forced(number: int) -> None:
        why = f"Left at {_name(number)} before the end; what was not committed is read again by the next run."
        output.document({**document_of_failure(InterruptedError(why), scope.mode), "status": "interrupted"})
        output.note(why)

    return supervised(work, on_first=on_first, on_forced=on_forced)


def _name(number: int) -> str:
    return signal.Signals(number).name


def code_of(tally: Tally) -> int:
    from connector.runs import Status

    if tally.fatal is not None:
        return exit_code(tally.fatal)
    if tally.interrupted_by is not None:
        return 128 + tally.interrupted_by
    return 0 if tally.status is Status.succeeded else PARTIAL


def document_of_failure(error: Exception, mode: str) -> dict[str, Any]:
    """All keys of a run's document, for a run that never began."""
    from datetime import UTC, datetime

    from connector.runs import Tally

    now = datetime.now(UTC)
    tally = Tally("", mode, now, finished_at=now, fatal=error)
    return {**tally.as_json(), "run_id": None, "started_at": None, "finished_at": None}


def _summarise(output: Output, tally: Tally, where: str) -> None:
    took = (tally.finished_at - tally.started_at).total_seconds() if tally.finished_at else 0.0
    output.say(f"{tally.mode} run {tally.status.value} in {duration(took)}")
    output.say(
        f"  imports   {tally.imports_listed:,} listed, {tally.imports_changed:,} changed, "
        f"{tally.imports_deleted:,} deleted, {tally.imports_failed:,} failed, "
        f"{tally.imports_unreconciled:,} not reconciled"
    )
    output.say(f"  records   {tally.records_loaded:,} loaded, {tally.records_rejected:,} rejected")
    retried = f", {amount(tally.retries, 'retry', 'retries')}" if tally.retries else ""
    output.say(f"  service   {amount(tally.requests, 'request')}{retried}, {size(tally.bytes_received)}")
    output.say(f"  warehouse {where}")
    code = code_of(tally)
    if tally.fatal is not None:
        output.note(f"importer-sync: {as_problem(_as_exception(tally.fatal))}")
    for problem in tally.problems[:PROBLEMS_SHOWN]:
        output.note(f"  - {problem}")
    if len(tally.problems) > PROBLEMS_SHOWN:
        output.note(f"  … and {len(tally.problems) - PROBLEMS_SHOWN} more")
    if tally.records_rejected:
        output.note("  - What was rejected is in the table sync_rejects, with the reason.")
    if code == PARTIAL:
        output.note(
            "Everything else is loaded. `importer-sync status` lists what is open; the next run tries it again."
        )
    elif code == FAILED and tally.load_ids:
        output.note("What was committed before stays, and the next run goes on from there.")
    elif code > 128:
        output.note("What was complete is committed; the next run goes on from there.")


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(str(error))
