"""Run one sync under supervision, for `run` and `backfill`: its summary, its document, its exit code."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector import telemetry
from connector.cli.configuration import open_pipeline, prepare_file
from connector.cli.exit_codes import FAILED, PARTIAL, exit_code, explain
from connector.cli.notices import Addresses, addresses, notify
from connector.cli.output import Output, amount, duration, size
from connector.cli.progress import progress_of
from connector.cli.redaction import add_secret, scrub, scrubbed
from connector.cli.signals import Stop, supervised
from connector.cli.source_settings import load_settings
from connector.cli.unmatched import unmatched
from connector.reporting.views.applying import keep_current
from connector.run.shards import sync
from connector.runs import Status, Tally
from connector.settings import RunScope, Settings
from connector.source import without_warnings_of_json
from connector.warehouse import Warehouse
from connector.warehouse.destination import location
from connector.warehouse.failures import explain_failure

PROBLEMS_SHOWN = 10


def run_scope(arguments: argparse.Namespace, output: Output, scope: RunScope) -> int:
    """Run a sync over `scope` with the pipeline that the command line names; return the exit code."""
    named = (arguments.to, arguments.destination, arguments.dataset)
    return run_pipeline(arguments.pipeline_name, lambda: open_pipeline(arguments), scope, output, named)


def run_pipeline(
    name: str, opened: Callable[[], Pipeline], scope: RunScope, output: Output, named: Sequence[str | None]
) -> int:
    """Carry out one run of the pipeline over `scope`; return the exit code.

    Raises only errors that kept the run from beginning. `named` tells the notices of runs into one warehouse from those
    into another.
    """
    attempt = _Attempt(name, opened, scope, output, named)
    with telemetry.exporting(scrub):
        try:
            tally = supervised(attempt.work, on_first=attempt.on_first, on_forced=attempt.on_forced)
        except Exception as error:
            problem = explain(error)
            document = document_of_failure(problem, scope.mode)
            output.document(document)
            attempt.send_notices(document, exit_code(problem))
            raise
        output.document(tally.as_json())
        _summarise(output, tally, attempt.where)
        attempt.warn(tally.problems)
        if not tally.refused:
            attempt.send_notices(tally.as_json(), code_of(tally))
    return code_of(tally)


class _Attempt:
    """A run, and the recipients of its notices, as far as the configuration could be read."""

    def __init__(
        self, name: str, opened: Callable[[], Pipeline], scope: RunScope, output: Output, named: Sequence[str | None]
    ) -> None:
        self._pipeline_name = name
        self._opened = opened
        self._named = named
        self._scope = scope
        self._output = output
        self._addresses: Addresses | None = None
        self._unmatched: list[str] = []
        self._views_warning: str | None = None
        self.where = ""

    def work(self, stop: Stop) -> Tally:
        self._addresses = addresses()
        for secret in self._addresses.secrets:
            add_secret(secret)
        settings, pipeline = load_settings(self._pipeline_name), self._opened()
        prepare_file(pipeline)
        self.where = f"{location(pipeline)}, dataset {pipeline.dataset_name}"
        with without_warnings_of_json(), progress_of(self._output) as progress:
            tally = sync(pipeline, settings, self._scope, progress=progress, stop=stop)
        if self._scope.shard is not None:
            return tally  # the run after all shards updates the views
        if settings.views and (tally.load_ids or tally.fatal is None):
            self._views_warning = keep_current(pipeline, loaded=bool(tally.load_ids))
        if tally.fatal is None:
            self._unmatched = _advice(pipeline, settings)
        return tally

    def warn(self, problems: Sequence[str]) -> None:
        if self._views_warning is not None:
            self._output.note(f"warning: {self._views_warning}", level="warning", event="views.stale")
        for sentence in self._unmatched:
            if sentence in problems:
                continue
            self._output.note(f"warning: {sentence}", level="warning", event="hint.unmatched")

    def on_first(self, number: int) -> None:
        self._output.note(
            f"{_name(number)}: stopping after committing what is complete; a second signal exits at once."
        )

    def on_forced(self, number: int) -> None:
        why = f"Exited on {_name(number)} before the run finished; the next run reads again what was not committed."
        document = document_of_failure(InterruptedError(why), self._scope.mode)
        self._output.document({**document, "status": "interrupted"})
        self._output.note(why, level="error", event="run.left")

    def send_notices(self, document: dict[str, Any], code: int) -> None:
        if self._addresses is None:
            return
        told = scrubbed(document), code, self._pipeline_name, scrub(self.where)
        for sentence in notify(self._addresses, *told, self._named):
            self._output.note(f"warning: {sentence}", level="warning", event="notice.undelivered")


def _advice(pipeline: Pipeline, settings: Settings) -> list[str]:
    """Return warnings about settings that match nothing; what keeps it from looking does not make the run fail."""
    try:
        return unmatched(Warehouse(pipeline), settings)
    except Exception as error:
        why = str(explain_failure(error, pipeline)).rstrip(".")
        return [f"Hints, rules and names in the settings were not compared with what is loaded: {why}."]


def _name(number: int) -> str:
    return signal.Signals(number).name


def code_of(tally: Tally) -> int:
    if tally.fatal is not None:
        return exit_code(tally.fatal)
    if tally.interrupted_by is not None:
        return 128 + tally.interrupted_by
    return 0 if tally.status is Status.succeeded else PARTIAL


def document_of_failure(error: Exception, mode: str) -> dict[str, Any]:
    """Return all keys of a run's document, for a run that never began."""
    now = datetime.now(UTC)
    tally = Tally("", mode, now, finished_at=now, fatal=error)
    return {**tally.as_json(), "run_id": None, "started_at": None, "finished_at": None}


def _summarise(output: Output, tally: Tally, where: str) -> None:
    if output.log_json:
        _summarise_in_log(output, tally)
        return
    if tally.refused:
        output.note(f"importer-sync: {tally.error}")
        return
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
    for sentence in _some(tally.schema_changes):
        output.say(f"  schema    {sentence}")
    code = code_of(tally)
    if tally.fatal is not None:
        output.note(f"importer-sync: {explain(_as_exception(tally.fatal))}")
    for problem in tally.problems[:PROBLEMS_SHOWN]:
        output.note(f"  - {problem}")
    if len(tally.problems) > PROBLEMS_SHOWN:
        output.note(f"  … and {len(tally.problems) - PROBLEMS_SHOWN} more")
    if tally.records_rejected:
        output.note("  - Rejected records are in the table sync_rejects, with the reason.")
    if code == PARTIAL:
        output.note(
            "Everything else is loaded. `importer-sync status` lists what is missing; the next run tries it again."
        )
    elif code == FAILED and tally.load_ids:
        output.note("What was committed before is kept, and the next run continues from there.")
    elif code > 128:
        output.note("What was complete is committed; the next run continues from there.")


def _summarise_in_log(output: Output, tally: Tally) -> None:
    """Log what went wrong and what is new in the tables; the counts are in the event run.ended."""
    for sentence in _some(tally.schema_changes):
        output.note(sentence, event="schema.changed")
    if tally.fatal is not None:
        output.note(f"importer-sync: {explain(_as_exception(tally.fatal))}", level="error", event="command.failed")
    for problem in tally.problems[:PROBLEMS_SHOWN]:
        output.note(problem, level="warning", event="run.problem")


def _some(sentences: Sequence[str]) -> Iterator[str]:
    yield from sentences[:PROBLEMS_SHOWN]
    if len(sentences) > PROBLEMS_SHOWN:
        yield f"… and {len(sentences) - PROBLEMS_SHOWN} more changes; they are in sync_fields"


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(str(error))
