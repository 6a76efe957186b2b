"""Prove what this package guarantees on a scratch dataset of the user's destination: `check --destination-deep`.

The sandbox is synced into the scratch dataset, changed, synced by runs that are killed, and compared with it digit for
digit after each step. The user's service is not called, the user's datasets are neither read nor written, and the
scratch dataset is dropped at the end.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import dlt
from dlt.pipeline.pipeline import Pipeline

from connector.cli.configuration import open_pipeline
from connector.cli.exit_codes import explain
from connector.errors import ConnectorError, LockedError
from connector.load.dlt_bridge import load_package
from connector.maintain.rebuild import rebuild
from connector.maintain.verify import verify
from connector.reporting.changes import changes
from connector.run.sync import sync
from connector.runs import Status, Tally
from connector.sandbox import Service, serve
from connector.settings import RunScope, Settings
from connector.source import without_warnings_of_json
from connector.warehouse import Warehouse
from connector.warehouse.destination import lake_folders, local_file, open_client
from connector.warehouse.lock import lock_path, sole_writer
from connector.warehouse.unused_file import removed_if_unused

DATASET = "importer_conformance"
ROWS, PACKAGE = 400, 500
KILLED = ("committed", "loading", "loading")  # when each run of the kit is killed
VALUES: Sequence[Any] = (
    *(0, -1, 2**53 + 1, 2**63 - 1, 10**30, -0.0, 0.1, 1e-9, 1.7976931348623157e308, True, False, None, ""),
    *("0", "007", "1e5", "2026-02-30", "2026-03-29T02:30:00+02:00", "0001-01-01", "9999-12-31T23:59:59.999999Z"),
    *("  padded ", "ünï", "\u0130", "🦆", "a\nb\tc", "'; --", '"', "\\", "NaN", "x" * 100_000, [], {}, [1, "a"]),
)
_CHILD = (
    "from connector.cli.environment import prepare_environment; prepare_environment(quiet=True); "
    "from connector.cli.conformance import run_until_killed; run_until_killed()"
)


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One guarantee: whether it was proven, and what was observed."""

    name: str
    proven: bool
    detail: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class DisprovedError(ConnectorError):
    """An observation contradicts the guarantee."""


def prove(arguments: argparse.Namespace) -> Generator[Guarantee, None, None]:
    """Yield each guarantee as it is tested. Raises ConfigError if the destination cannot be used at all."""
    Warehouse(open_pipeline(arguments)).check_writable(experimental=True)
    with tempfile.TemporaryDirectory(prefix="importer-conformance-") as folder:
        place = {"to": arguments.to, "destination": arguments.destination, "folder": folder}
        place |= {"dataset": f"{DATASET}_{secrets.token_hex(4)}"}
        service = _service()
        with serve(service) as url, _dropped(place), _quiet():
            kit = _Kit(place, service, {"base_url": url, "access_token": service.token})
            for name, what in kit.guarantees.items():
                yield _tried(name, what)


def _tried(name: str, what: Callable[[], str]) -> Guarantee:
    try:
        return Guarantee(name, True, what())
    except Exception as error:
        return Guarantee(name, False, str(explain(error)))


def _service() -> Service:
    """Return a service with each value in a column of its own and in one that all share."""
    service = Service(seed=1)
    rows = [{f"v{n}": value, "mixed": value, "nested": {"deep": [value]}} for n, value in enumerate(VALUES)]
    service.add_import("values", rows, {"source": "conformance", "n": 2**53 + 1})
    service.add_import(None, [{"untemplated": value} for value in VALUES])
    for n in range(4):
        service.add_generated("orders", imports=1, rows=ROWS + n)
    return service


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the messages of the runs out of the log: killing them is the purpose of the kit."""
    log = logging.getLogger("connector")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _dropped(place: Mapping[str, Any]) -> Iterator[None]:
    """Drop the scratch dataset afterwards, with its staging dataset, and the file if it did not exist before."""
    pipeline = _pipeline(place)
    file = local_file(pipeline)
    was_there = file is None or file.exists()
    with removed_if_unused(pipeline):
        try:
            yield
        finally:
            _drop(pipeline)
            if place["dataset"] in lock_path(pipeline).name:  # a lake may have one lock for all its datasets
                lock_path(pipeline).unlink(missing_ok=True)
            for folder in () if was_there else lake_folders(pipeline):
                shutil.rmtree(folder, ignore_errors=True)


def _drop(pipeline: Pipeline) -> None:
    with suppress(Exception), open_client(pipeline) as client:
        with client.with_staging_dataset():
            if client.has_dataset():
                client.drop_dataset()
        if client.has_dataset():
            client.drop_dataset()


def _pipeline(place: Mapping[str, Any]) -> Pipeline:
    """Return the pipeline into the scratch dataset, with a working directory of its own."""
    given = argparse.Namespace(
        to=place["to"], destination=place["destination"], dataset=place["dataset"], pipeline_name="conformance"
    )
    return dlt.pipeline(
        "conformance",
        destination=open_pipeline(given).destination,
        dataset_name=place["dataset"],
        pipelines_dir=str(Path(place["folder"], "pipelines")),
    )


def _settings(place: Mapping[str, Any], source: Mapping[str, Any]) -> Settings:
    """Return the settings, with `history` on if the destination supports it, to compare versions with rows."""
    kept = Warehouse(_pipeline(place)).traits.history
    return Settings.load(**source, batch_rows=PACKAGE, history=kept, allow_experimental=True)


@dataclass
class _Kit:
    """The steps, in the required order: each starts from the state that the previous one left."""

    place: Mapping[str, Any]
    service: Service
    source: Mapping[str, Any]
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        self.settings = _settings(self.place, self.source)

    @property
    def guarantees(self) -> Mapping[str, Callable[[], str]]:
        return {
            "values": self._values,
            "idle": self._idle,
            "changes": self._changes,
            "deletes": self._deletes,
            "kills": self._kills,
            "working_directory": self._working_directory,
            "one_writer": self._one_writer,
            "rebuild": self._rebuild,
            **({"history": self._history} if self.settings.history else {}),
        }

    def _values(self) -> str:
        ran = self._run()
        return f"{ran.records_loaded:,} records in {len(ran.load_ids)} packages, {self._equal()}"

    def _idle(self) -> str:
        ran = self._run()
        if ran.load_ids or ran.imports_changed:
            raise DisprovedError(f"a run with nothing new loaded {ran.imports_changed} imports")
        return "a run with nothing new loads nothing"

    def _changes(self) -> str:
        first, second, third = self.service.slugs()[2:5]
        records = list(self.service.record_slugs(first))
        self.service.edit_row(first, records[0], {"order": 2**60, "a new field": "🦆"})
        self.service.delete_row(second, next(iter(self.service.record_slugs(second))))
        self.service.append_rows(third, [{"order": "no number", "a new field": 1.5}])
        return f"{self._run().imports_changed} imports read again for a row edited, deleted, added, {self._equal()}"

    def _deletes(self) -> str:
        self.service.delete_import(self.service.slugs()[-1])
        ran = self._run()
        if ran.imports_deleted != 1:
            raise DisprovedError(f"the service deleted one import, and the run saw {ran.imports_deleted}")
        return f"an import that the service deleted is gone, {self._equal()}"

    def _kills(self) -> str:
        for when in KILLED:
            for slug in self.service.slugs():
                self.service.append_rows(slug, [{"killed": when}])
            self._run_and_kill(when)
            self._run()
            self._equal()
        return (
            f"{len(KILLED)} runs killed (SIGKILL), one behind a package and the others within one; the next run each "
            f"time: {self._equal()}"
        )

    def _working_directory(self) -> str:
        shutil.rmtree(Path(self.place["folder"], "pipelines"))
        self._idle()
        self.service.append_rows(self.service.slugs()[0], [{"v0": 1}])
        self._run()
        return f"lost, and nothing is read again for it, {self._equal()}"

    def _one_writer(self) -> str:
        with sole_writer(_pipeline(self.place)):
            try:
                self._run()
            except LockedError:
                return "a second run at the same time is refused"
        raise DisprovedError("two runs were allowed at the same time")

    def _rebuild(self) -> str:
        with without_warnings_of_json():
            tables = rebuild(_pipeline(self.place), self.settings)
        return f"{len(tables)} typed tables rebuilt from the raw rows, {self._equal()}"

    def _history(self) -> str:
        slug = self.service.slugs()[0]
        [record] = self.service.append_rows(slug, [{"v0": 5}])
        self._run()
        self.service.edit_row(slug, record, {"v0": 6})
        since = self._run().started_at
        self._run(RunScope(mode="backfill", force=True))
        found = [(each.record, each.field, each.old, each.new) for each in changes(_pipeline(self.place), since)]
        if found != [(record, "v0", 5, 6)]:
            raise DisprovedError(f"one value was edited, and the versions say {found[:3]}")
        return f"one value edited is one change, all read again is none, {self._equal()}, and with their versions"

    # -- parts of the steps --------------------------------------------------------------------------------------

    def _run(self, scope: RunScope | None = None) -> Tally:
        with without_warnings_of_json():
            ran = sync(_pipeline(self.place), self.settings, scope)
        if ran.fatal is not None:
            raise ran.fatal
        if ran.status is not Status.succeeded:
            raise DisprovedError(f"the run ended {ran.status.value}: {'; '.join(ran.problems)}")
        return ran

    def _run_and_kill(self, when: str) -> None:
        order = json.dumps({"place": dict(self.place), "source": dict(self.source), "when": when})
        ended = subprocess.run(  # noqa: S603
            [sys.executable, "-c", _CHILD], input=order, capture_output=True, text=True, check=False
        )
        if ended.returncode != -signal.SIGKILL:
            raise DisprovedError(f"a run that was to be killed ended {ended.returncode}: {ended.stderr[-300:]}")

    def _equal(self) -> str:
        found = verify(_pipeline(self.place), self.settings, deep=True)
        if found.differences or found.unchecked:
            first = found.differences[0].sentence if found.differences else found.unchecked[0]
            raise DisprovedError(f"{len(found.differences)} differences between service and warehouse: {first}")
        return f"{found.records:,} records compared digit for digit"


def run_until_killed() -> NoReturn:
    """Run once, as described on the standard input, and be killed after the first package or within it."""
    order = json.load(sys.stdin)

    def load(pipeline: Pipeline, *arguments: Any) -> str | None:
        if order["when"] == "loading":
            threading.Timer(secrets.randbelow(500) / 1000, _kill_self).start()
        load_id = load_package(pipeline, *arguments)
        _kill_self()
        return load_id

    sync(_pipeline(order["place"]), _settings(order["place"], order["source"]), load=load)
    sys.exit(0)


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
