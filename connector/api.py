"""Call the commands `run`, `backfill`, `plan` and `verify` as functions, which print nothing and handle no signal.

They raise ConnectorError where a command would exit with code 1 or 2, and LockedError for exit code 4. A partial run
(exit code 3) returns with `status` "partial".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime

from dlt.extract import DltSource
from dlt.pipeline.pipeline import Pipeline

from connector import settings
from connector.errors import ConfigError
from connector.maintain.compare import Difference
from connector.maintain.planning import RunPlan
from connector.maintain.planning import plan as look_ahead
from connector.maintain.verify import verify as compare
from connector.reporting.views.applying import keep_current
from connector.run.shards import sync as run
from connector.runs import Tally
from connector.scope import Scope
from connector.source import configured_settings, settings_of, without_warnings_of_json
from connector.warehouse.failures import explain_failure

log = logging.getLogger("connector.api")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run did: the fields of `importer-sync run --json`.

    Attributes:
        status: "succeeded", or "partial" if something failed, was rejected or does not reconcile.
        error: The first reasons why the run did not succeed, as sentences.
        tables: Table → rows of it that were committed: of `imports`, `records` and the typed tables.
        templates: Slug of a template → records of it that were committed; "" for imports without a template.
    """

    run_id: str
    status: str
    mode: str
    started_at: datetime
    finished_at: datetime | None
    imports_listed: int
    imports_changed: int
    imports_deleted: int
    imports_failed: int
    imports_unreconciled: int
    records_loaded: int
    records_rejected: int
    requests: int
    retries: int
    bytes_received: int
    load_ids: tuple[str, ...]
    error: str | None
    tables: Mapping[str, int]
    templates: Mapping[str, int]

    @classmethod
    def of(cls, tally: Tally) -> RunSummary:
        """Return the summary of a run that has ended."""
        values = {each.name: getattr(tally, each.name) for each in fields(cls)}
        plain = {"status": tally.status.value, "load_ids": tuple(tally.load_ids)}
        return cls(**{**values, **plain, "tables": dict(tally.tables), "templates": dict(tally.templates)})


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What differs between the service and the warehouse.

    Attributes:
        imports: Number of imports compared.
        records: Number of records compared; 0 unless `deep`.
        differences: Each with its `kind`, its import and a `sentence`.
        moved: Imports that changed while they were compared; these are not differences.
        unchecked: What could not be compared, as sentences.
    """

    deep: bool
    imports: int
    records: int
    differences: tuple[Difference, ...]
    moved: tuple[str, ...]
    unchecked: tuple[str, ...]
    requests: int

    @property
    def equal(self) -> bool:
        """Return whether everything was compared and nothing differs."""
        return not (self.differences or self.unchecked)


def sync(pipeline: Pipeline, source: DltSource | None = None, *, scope: Scope | None = None) -> RunSummary:
    """Run one sync, as `importer-sync run` does: lock, bounded load packages, proof of what was loaded.

    Args:
        pipeline: A pipeline with a destination that can replace rows, DuckDB or PostgreSQL.
        source: An `importer_source(...)` with the settings to use; by default dlt's configuration has them.
        scope: What to read again; by default the run is incremental.

    Returns:
        The summary of the run, whose status is "succeeded" or "partial".

    Raises:
        ConfigError: A setting, the source or the destination cannot be used; nothing was done.
        LockedError: Another run into the same dataset is in progress; nothing was done.
        ConnectorError: The run failed; what was committed before stays, and the next run continues from there.
    """
    wanted = _settings(pipeline, source)
    with without_warnings_of_json():
        tally = run(pipeline, wanted, as_run(scope))
    keeps = wanted.views and (scope is None or scope.shard is None) and (tally.load_ids or tally.fatal is None)
    if keeps and (stale := keep_current(pipeline, loaded=bool(tally.load_ids))) is not None:
        log.warning(stale, extra={"event": "views.stale"})
    if tally.fatal is not None:
        raise explain_failure(tally.fatal, pipeline) from tally.fatal
    return RunSummary.of(tally)


def verify(pipeline: Pipeline, source: DltSource | None = None, *, deep: bool = False) -> VerifyResult:
    """Compare the service with the warehouse, as `importer-sync verify` does; write nothing and take no lock.

    Args:
        pipeline: The pipeline that loads the warehouse.
        source: An `importer_source(...)` with the settings to use; by default dlt's configuration has them.
        deep: Read every record again and compare each row and cell, not only the number of records per import.

    Returns:
        The differences, none if the warehouse equals the service.

    Raises:
        ConfigError: A setting or the destination cannot be used.
        ConnectorError: There is no warehouse yet, or the service cannot be read.
    """
    report = compare(pipeline, _settings(pipeline, source), deep)
    return VerifyResult(
        deep=report.deep,
        imports=report.imports,
        records=report.records,
        differences=tuple(report.differences),
        moved=tuple(report.moved),
        unchecked=tuple(report.unchecked),
        requests=report.requests,
    )


def plan(pipeline: Pipeline, source: DltSource | None = None) -> RunPlan:
    """Report what the next run would read and delete, as `importer-sync plan` does; load nothing.

    Args:
        pipeline: The pipeline that loads the warehouse.
        source: An `importer_source(...)` with the settings to use; by default dlt's configuration has them.

    Returns:
        What an incremental run would do now. The service is listed, and one page of records is requested.

    Raises:
        ConfigError: A setting or the destination cannot be used.
        ConnectorError: The service cannot be listed, or the warehouse cannot be read.
    """
    return look_ahead(pipeline, _settings(pipeline, source))


def _settings(pipeline: Pipeline, source: DltSource | None) -> settings.Settings:
    name = pipeline.pipeline_name
    return configured_settings(name) if source is None else settings_of(source, name)


def as_run(scope: Scope | None) -> settings.RunScope:
    """Return the scope of a run: a backfill if anything is selected, else an incremental sync."""
    if not isinstance(scope, Scope | None):
        raise ConfigError("scope takes a connector.Scope.")
    if scope is None or scope == Scope():
        return settings.RunScope()
    if scope.shard is not None:
        return settings.RunScope(mode=f"shard {scope.shard[0]}/{scope.shard[1]}", shard=scope.shard)
    selection = settings.Selection(
        slugs=frozenset(scope.imports or ()), template=next(iter(scope.templates or ()), None)
    )
    return settings.RunScope(mode="backfill", window=scope.window, selection=selection, force=True)
