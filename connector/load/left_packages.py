"""Keep dlt from loading an outdated package of this source, and any without the lock.

Invariant: in a process that has imported the source, a package of it that was left in a working directory is loaded
only by the sole writer, and only if dlt has completed no other one since its run began. Otherwise it would double rows,
bring back outdated ones, and change what `sync_fields` says of columns.

dlt loads what was left before it iterates a source, so the method that loads is replaced. This relies on dlt's source
code and may break with a minor version of dlt.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from dlt.common.storages.load_package import destination_state
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.warehouse import Warehouse
from connector.warehouse.destination import prepare_for_loading
from connector.warehouse.loads import count_loads
from connector.warehouse.lock import acquire_sole_writer, check_lock_held, is_writer
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.runs_table import forget_loads_seen
from connector.warehouse.tables import LOADS_SEEN, RUNS, SOURCE

_SEEN = f"{SOURCE}_{LOADS_SEEN}"  # in dlt's state of each package of this source


def note_loads_seen(loads: int | None) -> None:
    """Note in the package that dlt is extracting how many packages dlt had completed when its run began.

    None stands for a run that no other process can continue, because it loads more than this package.
    """
    destination_state()[_SEEN] = loads


def guard_loads() -> None:
    """Make `Pipeline.load` and `Pipeline.run` in this process refuse what was left of this source and is outdated.

    They raise ConfigError then, and LockedError while another run is under way.
    """
    load: Any = Pipeline._load
    if hasattr(load, "__guarded__"):
        return

    @wraps(load)
    def guarded(
        pipeline: Pipeline, destination: Any = None, dataset_name: Any = None, credentials: Any = None, **named: Any
    ) -> Any:
        if is_writer(pipeline):
            check_lock_held(pipeline)
        elif _left(pipeline):
            pipeline._set_destinations(destination=destination, destination_credentials=credentials, staging=None)
            pipeline._set_dataset_name(dataset_name)
            if pipeline.destination:
                with acquire_sole_writer(pipeline):
                    _check_up_to_date(pipeline, _left(pipeline))
                    prepare_for_loading(pipeline)
                    return load(pipeline, None, dataset_name, **named)
        return load(pipeline, destination, dataset_name, credentials, **named)

    guarded.__guarded__ = True  # type: ignore[attr-defined]
    Pipeline._load = guarded  # type: ignore[method-assign,assignment]


def _left(pipeline: Pipeline) -> list[int | None]:
    """Return what the packages of this source that dlt would load have noted."""
    packages = pipeline._get_load_storage().normalized_packages
    ids = [load_id for load_id in pipeline.list_normalized_load_packages() if not packages.has_abort_flag(load_id)]
    states: list[Any] = [packages.get_load_package_state(load_id).get("destination_state") or {} for load_id in ids]
    return [state[_SEEN] for state in states if _SEEN in state]


def _check_up_to_date(pipeline: Pipeline, left: list[int | None]) -> None:
    """Raise ConfigError if a package was completed since these began; else let the next run check all rows.

    The row of the run that is in the package makes up for it, once the package is complete.
    """
    with Warehouse(pipeline).connect() as connection:
        dataset = inspect_dataset(connection)
        loads = count_loads(connection, connection.names()[0])
        if any(seen != loads for seen in left):
            raise ConfigError(
                f"A package that was left in dlt's working directory {pipeline.working_dir} is outdated, because "
                f"something was loaded into dataset {pipeline.dataset_name!r} since, or it is of a run of sync, which "
                "only sync can continue. Nothing was loaded; call sync(pipeline), or pipeline.abort_packages() and "
                "then run again: its imports are read again."
            )
        if RUNS in dataset.ours:
            forget_loads_seen(connection, dataset.columns[RUNS])
