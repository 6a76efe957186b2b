"""The dlt source: wiring only. `pipeline.run(importer_source())` is a complete and correct sync (CONTRACT §1).

The `imports` and `records` resources share one `Extraction`; whichever of the selected ones ends last adds the row
of `sync_runs`, in the same package as everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import dlt
from dlt.common.typing import TSecretStrValue

from connector.customization import refuse_what_breaks_the_sync
from connector.errors import ConfigError
from connector.given import refuse_unknown_keys, whence
from connector.load.dlt_bridge import Marker, current_load_id, package_state
from connector.load.emission import Emission
from connector.load.working_directory import believe_folders
from connector.run.ports import Outside
from connector.run.session import Extraction
from connector.settings import Scope, Settings, Window
from connector.warehouse import Warehouse
from connector.warehouse.destination import prepare_for_loading

RESOURCES = ("imports", "records")


def _is_worth_reading(record: logging.LogRecord) -> bool:
    # JSON travels as text in Arrow and is hinted as JSON on purpose; dlt warns of that difference at every batch
    return "when merging arrow schema with dlt schema" not in record.getMessage()


logging.getLogger("dlt").addFilter(_is_worth_reading)


@dlt.source(name="importer", section="importer")
def importer_source(
    base_url: str = dlt.config.value,
    access_token: TSecretStrValue = dlt.secrets.value,
    max_concurrency: int | None = None,
    requests_per_second: float | None = None,
    batch_rows: int | None = None,
    deletes: str | None = None,
    reconcile: str | None = None,
    mass_delete_limit: float | None = None,
    raw: bool | None = None,
    typed: bool | None = None,
    status: str | None = None,
    hints: dict[str, Any] | None = None,
    updated_at: Any = None,
) -> Any:
    """Imports and records of the Importer Service, complete or loudly not.

    Every argument is a key of `[sources.importer]` (CONTRACT §1). `updated_at` takes a
    `dlt.sources.incremental("updated_at", initial_value=…, end_value=…)` that bounds the run to imports last updated
    in `[initial_value, end_value)`; a window limits what is read and never decides that something is done.

    Raises ConfigError for settings that make no sense; in extraction AuthError, TransientError and ContractError
    (inside dlt's PipelineStepFailed) if the imports cannot be listed. An import that fails does not raise: it is in
    `sync_imports` and makes the run `partial` in `sync_runs`.
    """
    believe_folders()
    refuse_unknown_keys()
    given = {
        "base_url": base_url,
        "access_token": access_token,
        "max_concurrency": max_concurrency,
        "requests_per_second": requests_per_second,
        "batch_rows": batch_rows,
        "deletes": deletes,
        "reconcile": reconcile,
        "mass_delete_limit": mass_delete_limit,
        "raw": raw,
        "typed": typed,
        "status": status,
        "hints": hints,
    }
    settings = Settings.load_from(whence, given)
    shared = _Shared(settings, Scope(window=_window(updated_at)))

    @dlt.resource(name="imports", write_disposition="merge")
    def imports() -> Iterator[Any]:
        yield from shared.emit("imports", Extraction.import_tables)

    @dlt.resource(name="records", write_disposition="merge")
    def records() -> Iterator[Any]:
        yield from shared.emit("records", Extraction.record_tables)

    return imports, records


class _Shared:
    """One extraction for both resources, made anew for every time dlt iterates them."""

    def __init__(self, settings: Settings, scope: Scope) -> None:
        self._settings = settings
        self._scope = scope
        self._extraction: Extraction | None = None
        self._unfinished: set[str] = set()

    def emit(self, name: str, tables: Callable[[Extraction, str], Iterator[Emission]]) -> Iterator[Any]:
        mark = Marker()
        load_id = current_load_id()
        extraction = self._begin()
        done = False
        try:
            yield from map(mark, tables(extraction, load_id))
            self._unfinished.discard(name)
            if not self._unfinished:
                yield from map(mark, extraction.missing_tables())
                yield mark(extraction.run_row(load_id))
            done = True
        except Exception as error:
            extraction.abort(error)
            raise
        finally:
            if not done or not self._unfinished:
                extraction.close()
                self._extraction = None

    def _begin(self) -> Extraction:
        if self._extraction is None:
            source = dlt.current.source()
            refuse_what_breaks_the_sync(source, package_state())
            self._unfinished = set(RESOURCES) & set(source.selected_resources)
            warehouse = Warehouse(dlt.current.pipeline())
            warehouse.check_writable()
            prepare_for_loading(dlt.current.pipeline())
            self._extraction = Extraction(self._settings, self._scope, warehouse, Outside.real())
            if len(self._unfinished) == 1:
                # `succeeded` promises a whole sync, which half of it is not
                self._extraction.tally.mode = f"{next(iter(self._unfinished))} only"
            self._extraction.open(reading="records" in self._unfinished, listed="imports" in self._unfinished)
        return self._extraction


def _window(updated_at: Any) -> Window:
    if updated_at is None:
        return Window()
    if getattr(updated_at, "cursor_path", "updated_at") != "updated_at":
        raise ConfigError("updated_at takes an incremental on the cursor 'updated_at', and no other.")
    ends = getattr(updated_at, "range_start", "closed"), getattr(updated_at, "range_end", "open")
    if ends != ("closed", "open"):
        raise ConfigError("updated_at bounds a window that begins with initial_value and ends before end_value.")
    return Window(since=_instant(updated_at.initial_value), until=_instant(updated_at.end_value))


def _instant(value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise ConfigError(f"updated_at is bounded by {value!r}, which is not an ISO 8601 date or time.") from None
