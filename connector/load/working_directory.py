"""Prepare dlt's working directory, which serves one run and is then deleted (docs/guarantees.md, "Working directory").

Invariant: nothing that an earlier run left there is read. dlt fetches everything that a run needs from the warehouse,
so each run recreates the directory under the lock. A command that only reads has its own temporary directory. A run has
one for each pipeline, destination and dataset, because dlt loads every package in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

from dlt.common.pipeline import get_dlt_pipelines_dir
from dlt.common.runtime.run_context import active
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.folders import PRIVATE, check_folder, check_project, check_readable
from connector.warehouse.destination import dataset_fingerprint, destination_config, duckdb_file, local_file

log = logging.getLogger("connector.run")

_PACKAGES = ("normalize/extracted", "load/normalized")
_MARK_OF_FIRST_LAYOUT = "importer_destination.json"
_permanent: WeakKeyDictionary[Pipeline, Path] = WeakKeyDictionary()
_delete_scratch: WeakKeyDictionary[Pipeline, weakref.finalize[..., Pipeline]] = WeakKeyDictionary()


def open_in_scratch(make: Callable[[str], Pipeline]) -> Pipeline:
    """Return the pipeline that `make` opens in an empty directory.

    `rebuild_working_directory` replaces it by the permanent one, so that a killed run leaves nothing in it.
    """
    scratch = tempfile.mkdtemp(prefix="importer-sync-")
    try:
        pipeline = make(scratch)
        permanent = Path(get_dlt_pipelines_dir(), f"warehouse-{dataset_fingerprint(pipeline)}")
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _delete_scratch[pipeline] = weakref.finalize(pipeline, shutil.rmtree, scratch, ignore_errors=True)
    _permanent[pipeline] = permanent
    return pipeline


def pipelines_dir_of(pipeline: Pipeline) -> Path:
    """Return the folder in which runs of this pipeline have their working directory, for dlt's own commands."""
    return _permanent.get(pipeline) or Path(pipeline.pipelines_dir)


def rebuild_working_directory(pipeline: Pipeline) -> None:
    """Empty the working directory: packages that a dead run left in it do not count in the ledger and are read again.

    The caller holds the lock. A pipeline that does not restore its state from the destination keeps it, because it
    exists nowhere else. Raises ConfigError if the warehouse itself would be deleted with the directory.
    """
    file = local_file(pipeline)
    if file is not None and file.is_relative_to(pipeline.working_dir):
        raise ConfigError(
            "The database file lies in dlt's working directory (`:pipeline:`), which each run empties; give it "
            "another path."
        )
    if unfinished(pipeline):
        log.warning(
            "A load package that an earlier run left unfinished is dropped; its imports are read again.",
            extra={"event": "package.dropped"},
        )
    elif not pipeline.config.restore_from_destination:
        return
    permanent = _permanent.get(pipeline)
    if permanent is not None:
        # the lock of a run keeps out the shards, whose directories are beside its own (`use_own_working_directory`)
        of_shards = permanent.parent.glob(f"{permanent.name}-shard-*")
        for left in (permanent / pipeline.pipeline_name, _first_layout(pipeline), *of_shards):
            with suppress(FileNotFoundError):
                shutil.rmtree(left)
        permanent.mkdir(PRIVATE, parents=True, exist_ok=True)
        pipeline.pipelines_dir = str(permanent)
    _empty(pipeline)
    if permanent is not None:
        _delete_scratch[pipeline]()


def _empty(pipeline: Pipeline) -> None:
    """Empty the directory of this pipeline.

    `Pipeline.drop` applies the layout of dataset names and the number of `dev_mode` to a name that has them already. It
    also resets `refresh`, which must stay so: each package would drop the tables of the one before.
    """
    dataset_name = pipeline.dataset_name
    pipeline.drop()
    with pipeline.managed_state():
        pipeline.dataset_name = dataset_name


def use_own_working_directory(pipeline: Pipeline, name: str) -> None:
    """Give the pipeline a separate directory, because others load into the same dataset at the same time."""
    if (permanent := _permanent.get(pipeline)) is not None:
        _permanent[pipeline] = permanent.with_name(f"{permanent.name}-{name}")


def unfinished(pipeline: Pipeline) -> list[Path]:
    """Return the load packages that a crashed run left, complete or not."""
    permanent = _permanent.get(pipeline)
    own = [Path(pipeline.working_dir)]
    places = own if permanent is None else [permanent / pipeline.pipeline_name, _first_layout(pipeline)]
    return [package for place in places for name in _PACKAGES for package in sorted((place / name).glob("*"))]


def _first_layout(pipeline: Pipeline) -> Path:
    """Return the directory that an earlier version used for all datasets of a destination, if last for this one.

    Otherwise return a path that does not exist: packages for another dataset belong to a run into that one.
    """
    file, config = duckdb_file(pipeline), destination_config(pipeline)
    place = [getattr(config.credentials, name, None) for name in ("host", "port", "database")]
    identity = [config.fingerprint(), *place] if file is None else [str(file.absolute())]
    digest = hashlib.blake2b(repr(identity).encode(), digest_size=6).hexdigest()
    left = Path(get_dlt_pipelines_dir(), f"warehouse-{digest}", pipeline.pipeline_name)
    with suppress(OSError, ValueError, TypeError, KeyError):
        if json.loads((left / _MARK_OF_FIRST_LAYOUT).read_text())["dataset"] == pipeline.dataset_name:
            return left
    return left / "none"


def check_folders() -> None:
    """Raise ConfigError if dlt reads settings or packages from a folder of other users, or cannot read settings."""
    context = active()
    check_project(Path(context.settings_dir))
    check_readable(Path(context.global_dir))
    for folder in {context.global_dir, context.data_dir}:
        check_folder(Path(folder))
