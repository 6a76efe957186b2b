"""A whole run, as the command does it: lock, leftovers, bounded packages, proof of what was loaded, summary.

Invariant: a run is called `succeeded` only if every package was completed by dlt and the warehouse holds, for every
import of it, exactly as many rows as were accepted from the service.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dlt
from dlt.common.destination.exceptions import DestinationException
from dlt.common.pipeline import LoadInfo
from dlt.pipeline.exceptions import PipelineStepFailed
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConnectorError
from connector.extraction import Extraction, Outside, Progress, Scope
from connector.locking import destination_fingerprint, sole_writer
from connector.runs import Tally
from connector.settings import Settings
from connector.source import Marker, current_load_id
from connector.tables import RUNS, Emission
from connector.warehouse import Warehouse

log = logging.getLogger("connector.run")

SOURCE = "importer"
MARK = "importer_destination.json"


def sync(
    pipeline: Pipeline,
    settings: Settings,
    scope: Scope | None = None,
    *,
    progress: Progress | None = None,
    stop: Callable[[], int | None] = lambda: None,
    outside: Outside | None = None,
) -> Tally:
    """One run. `stop()` returns the number of a signal once one arrived.

    Returns the run's tally whatever its outcome was, `tally.fatal` holding what made it fail. Raises LockedError if
    another run is under way and ConfigError for a destination that cannot be used: in both cases nothing was done.
    """
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()
    with sole_writer(pipeline):
        drop_leftovers(pipeline)
        extraction = Extraction(
            settings, scope or Scope(), warehouse, outside or Outside.real(), progress=progress, stop=stop
        )
        try:
            with warehouse.hold():
                try:
                    _run(pipeline, extraction, settings)
                except Exception as error:
                    extraction.tally.fatal = extraction.tally.fatal or understandable(error)
                    log.debug("The run failed.", exc_info=True)
                finally:
                    _end(extraction)
        except Exception as error:  # the destination could not be opened, or not be closed properly
            extraction.tally.fatal = extraction.tally.fatal or understandable(error)
            log.debug("The destination failed.", exc_info=True)
        return extraction.tally


def _run(pipeline: Pipeline, extraction: Extraction, settings: Settings) -> None:
    extraction.open()
    if RUNS not in extraction.memory.tables:
        _load(pipeline, lambda _: extraction.missing_tables())
        extraction.begin()
    extraction.prepare()
    _load_package(pipeline, extraction, lambda load_id: _first(extraction, load_id, settings.batch_rows), settings)
    while not extraction.exhausted:
        _load_package(
            pipeline, extraction, lambda load_id: extraction.record_tables(load_id, settings.batch_rows), settings
        )


def _first(extraction: Extraction, load_id: str, limit: int) -> Iterator[Emission]:
    yield from extraction.import_tables(load_id)
    yield from extraction.record_tables(load_id, limit)


def _load_package(
    pipeline: Pipeline, extraction: Extraction, tables: Callable[[str], Iterator[Emission]], settings: Settings
) -> None:
    load_id = _load(pipeline, tables)
    extraction.committed(load_id)
    if load_id is None:
        return
    log.info("Committed package %s: %d records so far.", load_id, extraction.tally.records_loaded)
    with extraction.warehouse.connect() as connection:
        wrong = connection.missing_rows(load_id, settings.raw, extraction.typed_tables)
        if wrong:
            connection.distrust([slug for slug, *_ in wrong], "The warehouse does not hold the rows that were loaded.")
    for slug, table, accepted, there in wrong:
        extraction.tally.shortfall = True
        extraction.tally.problems.append(
            f"Import {slug}: {accepted} rows were loaded into {table} but {there} are there; it is read again next run."
        )


def _load(pipeline: Pipeline, tables: Callable[[str], Iterator[Emission]]) -> str | None:
    """One dlt package of what `tables` yields; its load id, or None if there was nothing to load."""

    @dlt.source(name=SOURCE, section=SOURCE)
    def importer() -> Any:
        @dlt.resource(name="records")
        def records() -> Iterator[Any]:
            mark = Marker()
            yield from map(mark, tables(current_load_id()))

        return records

    loaded: LoadInfo = pipeline.run(importer())
    loaded.raise_on_failed_jobs()
    return loaded.loads_ids[-1] if loaded.loads_ids else None


def drop_leftovers(pipeline: Pipeline) -> None:
    """Drops whatever a dead run left in dlt's working directory: the ledger does not count it, so it is read again.

    A working directory that last served another warehouse is dropped whole, lest its packages land in this one.
    """
    mark = Path(pipeline.working_dir) / MARK
    here = {"destination": destination_fingerprint(pipeline), "dataset": pipeline.dataset_name}
    there = None
    with suppress(OSError, ValueError):
        there = json.loads(mark.read_text())
    if there is not None and there != here:
        log.info("The working directory belongs to another warehouse and is made anew.")
        pipeline.drop()
    elif pipeline.has_pending_data:
        log.warning("A load package that an earlier run left unfinished is dropped; its imports are read again.")
        pipeline.drop()
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(json.dumps(here))


def _end(extraction: Extraction) -> None:
    """Writes the run's row and closes the client; a destination that is gone by now does not hide the first error."""
    try:
        extraction.finish()
    except Exception as error:
        extraction.tally.fatal = extraction.tally.fatal or understandable(error)
        log.warning("The row of this run could not be written to sync_runs: %s", understandable(error))
    finally:
        extraction.close()


def understandable(error: BaseException) -> ConnectorError:
    """The cause that an operator can act on, out of dlt's layers of exceptions."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        if isinstance(cause, ConnectorError):
            return cause
        cause = cause.__cause__ or cause.__context__
    root = next((e for e in reversed(seen) if not isinstance(e, PipelineStepFailed)), error)
    step = next((e.step for e in seen if isinstance(e, PipelineStepFailed)), None)
    where = f" while dlt was in its step {step!r}" if step else ""
    destination = any(isinstance(e, DestinationException) or type(e).__module__.startswith("duckdb") for e in seen)
    what = "The destination refused" if destination else "Something unforeseen happened"
    text = " ".join(str(root).split())[:500] or type(root).__name__
    return ConnectorError(f"{what}{where}: {text}")
