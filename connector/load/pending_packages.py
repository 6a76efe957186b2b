"""Refuse pending packages of this source that are outdated, and load the others only under the lock.

A package is pending from its extraction until it is loaded; if that fails or the process is killed, it stays so.
Invariant: in a process that has imported the source, a pending package of it is loaded only by the sole writer, and
only into the dataset that it was extracted for, if the last package that dlt has completed there is the one before its
run. Otherwise it would double rows, bring back outdated ones or those of another service, and change what `sync_fields`
says of columns.

dlt loads pending packages before it iterates a source, so the method that loads is replaced. This relies on dlt's
source code and may break with a minor version of dlt.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from dlt.common.storages.load_package import destination_state
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.warehouse import Warehouse
from connector.warehouse.destination import dataset_fingerprint, prepare_for_loading
from connector.warehouse.loads import count_loads
from connector.warehouse.lock import acquire_sole_writer, check_lock_held, is_writer
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.runs_table import forget_loads_seen
from connector.warehouse.tables import LOADS_SEEN, RUNS, SOURCE

_SEEN = f"{SOURCE}_{LOADS_SEEN}"  # in dlt's state of each package of this source


def note_origin(origin: str | None) -> None:
    """Note in the package that dlt is extracting what `origin_of` returned when its run began.

    None stands for a run that no other process can continue, because it loads more than this package.
    """
    destination_state()[_SEEN] = origin


def origin_of(pipeline: Pipeline, loads: int, last_load: str) -> str:
    """Return an id of the dataset as it is with so many completed packages, of which this is the last id.

    A dataset that was begun anew, put back or is another one can have as many.
    """
    return f"{dataset_fingerprint(pipeline)} {loads} {last_load}"


def guard_loads() -> None:
    """Make `Pipeline.load` and `Pipeline.run` in this process refuse outdated pending packages of this source.

    They raise ConfigError then, and LockedError while another run is under way.
    """
    load: Any = Pipeline._load
    if hasattr(load, "__guarded__"):
        return

    @wraps(load)
    def guarded(
        pipeline: Pipeline, destination: Any = None, dataset_name: Any = None, credentials: Any = None, **named: Any
    ) -> Any:
        noted = _pending(pipeline)
        if noted:
            pipeline._set_destinations(destination=destination, destination_credentials=credentials, staging=None)
            pipeline._set_dataset_name(dataset_name)
        if is_writer(pipeline):
            check_lock_held(pipeline)
            _check_dataset(pipeline, noted)
        elif noted and pipeline.destination:
            with acquire_sole_writer(pipeline):
                _check_up_to_date(pipeline, noted)
                prepare_for_loading(pipeline)
                return load(pipeline, None, dataset_name, **named)
        return load(pipeline, destination, dataset_name, credentials, **named)

    guarded.__guarded__ = True  # type: ignore[attr-defined]
    Pipeline._load = guarded  # type: ignore[method-assign,assignment]


def _pending(pipeline: Pipeline) -> list[str | None]:
    """Return what the pending packages of this source have noted, without those that are aborted."""
    packages = pipeline._get_load_storage().normalized_packages
    ids = [load_id for load_id in pipeline.list_normalized_load_packages() if not packages.has_abort_flag(load_id)]
    states: list[Any] = [packages.get_load_package_state(load_id).get("destination_state") or {} for load_id in ids]
    return [state[_SEEN] for state in states if _SEEN in state]


def _check_dataset(pipeline: Pipeline, noted: list[str | None]) -> None:
    """Raise ConfigError if dlt is to load these packages, which this process extracted, into another dataset.

    While dlt extracts, the pipeline has the dataset of its last run, whatever name this one was given.
    """
    place = dataset_fingerprint(pipeline) if noted else None
    if any(origin is not None and origin.partition(" ")[0] != place for origin in noted):
        raise ConfigError(
            f"The sync was compared with another dataset than {pipeline.dataset_name!r}, into which it was to be "
            "loaded. Nothing was loaded. Give dataset_name to dlt.pipeline, with a pipeline name of its own for each "
            "dataset, and call pipeline.abort_packages() before you run this one again."
        )


def _check_up_to_date(pipeline: Pipeline, noted: list[str | None]) -> None:
    """Raise ConfigError if these packages are of another dataset, or another one was completed since their runs began.

    Otherwise empty what runs have seen, so that the next run checks all rows if a package is loaded only in part. The
    row in a package has the number that is right once the package is complete.
    """
    with Warehouse(pipeline).connect() as connection:
        dataset = inspect_dataset(connection)
        origin = origin_of(pipeline, *count_loads(connection, connection.names()[0]))
        if any(seen != origin for seen in noted):
            raise ConfigError(
                f"The pending package in dlt's working directory {pipeline.working_dir} is outdated: something was "
                f"loaded into dataset {pipeline.dataset_name!r} since, or it belongs to another dataset or to a sync "
                "that did not end. "
                "Nothing was loaded. Call sync(pipeline), or call pipeline.abort_packages() and run again: either "
                "drops it and reads its imports again."
            )
        if RUNS in dataset.ours:
            forget_loads_seen(connection, dataset.columns[RUNS])
