"""Define Dagster assets for each template and for the imports, with checks, backfills, a schedule and a sensor.

Run `dagster dev -f pipelines/dagster_defs.py` in the directory that has `.dlt/`. The assets are the templates in the
warehouse: run a sync before (`importer-sync run`), and reload the definitions when a template is new. A partial run
loads what it can, and its check fails. docs/dagster.md says how to set the pool that allows one writer at a time.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dlt
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetSelection,
    AssetSpec,
    Backoff,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    DefaultSensorStatus,
    Definitions,
    Failure,
    FreshnessPolicy,
    MaterializeResult,
    RetryPolicy,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    SensorEvaluationContext,
    SkipReason,
    StaticPartitionsDefinition,
    asset,
    asset_check,
    define_asset_job,
    multi_asset,
    sensor,
)
from dlt.pipeline.pipeline import Pipeline

from connector import (
    AuthError,
    ConfigError,
    ConnectorError,
    DatabaseBusyError,
    LockedError,
    RunSummary,
    Scope,
    TransientError,
    Window,
    plan,
    status,
    sync,
    templates,
    verify,
)

GROUP, BACKFILLS = "importer", "importer_backfills"
POOL = "importer_writer"  # of one slot: the warehouse has one writer, and a DuckDB file one reader besides it
FRESH_FOR = timedelta(hours=6)
FIRST_DAY = "2024-01-01"  # the first day on which imports may have been last updated
LAST_SEEN = Path(".importer-templates.json")  # used when this file is loaded while a run has the DuckDB file open
IMPORTS = AssetKey([GROUP, "imports"])
RETRIES = RetryPolicy(max_retries=3, delay=60, backoff=Backoff.EXPONENTIAL)


def pipeline() -> Pipeline:
    """Return the pipeline of every asset; this line sets the warehouse."""
    return dlt.pipeline("importer", destination="duckdb", dataset_name="importer_data")


def known_templates() -> dict[str, str]:
    """Return typed table → slug of its template, from the warehouse or as last stored."""
    try:
        found = {each.table: each.slug or "" for each in templates(pipeline()) if each.table}
    except DatabaseBusyError:
        return dict(json.loads(LAST_SEEN.read_text())) if LAST_SEEN.exists() else {}
    LAST_SEEN.write_text(json.dumps(found))
    return found


TABLES = known_templates()
KEYS = {AssetKey([GROUP, table]): table for table in TABLES}


def attempted(scope: Scope | None = None) -> RunSummary:
    """Run a sync; an error that no retry can fix ends the step at once, any other is retried."""
    try:
        return sync(pipeline(), scope=scope)
    except (AuthError, ConfigError) as error:
        raise Failure(str(error), allow_retries=False) from error
    except (DatabaseBusyError, LockedError, TransientError) as error:
        raise Failure(str(error), allow_retries=True) from error
    except ConnectorError as error:
        raise Failure(str(error)) from error


def facts(run: RunSummary) -> dict[str, Any]:
    """Return the counts of a run, as metadata."""
    counts = ("imports_listed", "imports_changed", "imports_deleted", "imports_failed", "records_loaded", "requests")
    return {"run_id": run.run_id, "status": run.status, **{name: getattr(run, name) for name in counts}}


def reconciled(run: RunSummary, key: AssetKey) -> AssetCheckResult:
    """Return the check of a whole run: it passes if the run succeeded, not if it was partial."""
    return AssetCheckResult(
        check_name="reconciled",
        asset_key=key,
        passed=run.status == "succeeded",
        severity=AssetCheckSeverity.ERROR,
        metadata={"status": run.status, "error": run.error or ""},
    )


@multi_asset(
    name="importer_sync",
    specs=[
        AssetSpec(
            key,
            group_name=GROUP,
            kinds={"dlt", "table"},
            freshness_policy=FreshnessPolicy.time_window(fail_window=FRESH_FOR),
        )
        for key in (IMPORTS, *KEYS)
    ],
    check_specs=[AssetCheckSpec("reconciled", asset=key) for key in (IMPORTS, *KEYS)],
    can_subset=True,
    pool=POOL,
    retry_policy=RETRIES,
)
def importer_sync(context: AssetExecutionContext) -> Iterator[MaterializeResult | AssetCheckResult]:
    """Run one incremental sync for any selection of assets: read imports that are new, changed or failed before."""
    run = attempted()
    held = {each.slug or "": each for each in templates(pipeline())}
    if unknown := sorted(each.table for each in held.values() if each.table and each.table not in TABLES):
        context.log.warning("Reload the definitions: %s came with this run.", ", ".join(unknown))
    wanted, checks = context.op_execution_context.selected_asset_keys, context.selected_asset_check_keys
    if IMPORTS in wanted:
        yield MaterializeResult(asset_key=IMPORTS, metadata={**facts(run), "dagster/row_count": run.imports_listed})
    if any(check.asset_key == IMPORTS for check in checks):
        yield reconciled(run, IMPORTS)
    for key, table in KEYS.items():
        slug = TABLES[table]
        template = held.get(slug)
        if key in wanted:
            loaded = {"run_id": run.run_id, "records_loaded": run.templates.get(slug, 0)}
            yield MaterializeResult(
                asset_key=key, metadata={**loaded, "dagster/row_count": template.records if template else 0}
            )
        if any(check.asset_key == key for check in checks):
            left = template.open if template else 0
            yield AssetCheckResult(
                check_name="reconciled",
                asset_key=key,
                passed=left == 0,
                severity=AssetCheckSeverity.ERROR,
                metadata={"imports_open": left},
            )


@asset(
    key=[GROUP, "backfill_by_template"],
    group_name=BACKFILLS,
    partitions_def=StaticPartitionsDefinition([table for table, slug in TABLES.items() if slug]),
    check_specs=[AssetCheckSpec("reconciled", asset=AssetKey([GROUP, "backfill_by_template"]))],
    pool=POOL,
    retry_policy=RETRIES,
)
def backfill_by_template(context: AssetExecutionContext) -> Iterator[MaterializeResult | AssetCheckResult]:
    """Read and load again all imports of the template whose table is the partition; imports without one have none."""
    slug = TABLES[context.partition_key]
    run = attempted(Scope(templates=[slug]))
    yield MaterializeResult(metadata=facts(run))
    yield reconciled(run, context.asset_key)


@asset(
    key=[GROUP, "backfill_by_day"],
    group_name=BACKFILLS,
    partitions_def=DailyPartitionsDefinition(start_date=FIRST_DAY, end_offset=1),
    check_specs=[AssetCheckSpec("reconciled", asset=AssetKey([GROUP, "backfill_by_day"]))],
    pool=POOL,
    retry_policy=RETRIES,
)
def backfill_by_day(context: AssetExecutionContext) -> Iterator[MaterializeResult | AssetCheckResult]:
    """Read and load again all imports that were last updated on the day (UTC) that is the partition."""
    day = context.partition_time_window
    run = attempted(Scope(window=Window(since=day.start, until=day.end)))
    yield MaterializeResult(metadata=facts(run))
    yield reconciled(run, context.asset_key)


@asset_check(asset=IMPORTS, name="verified", pool=POOL)
def verified(_: AssetCheckExecutionContext) -> AssetCheckResult:
    """Compare service and warehouse, row by row."""
    found = verify(pipeline(), deep=True)
    sentences = [each.sentence for each in found.differences[:20]] + list(found.unchecked[:20])
    return AssetCheckResult(
        passed=found.equal,
        severity=AssetCheckSeverity.ERROR,
        metadata={"imports": found.imports, "records": found.records, "differences": sentences},
    )


@asset_check(asset=IMPORTS, name="fresh")
def fresh(_: AssetCheckExecutionContext) -> AssetCheckResult:
    """Check whether a run that loaded everything is recent enough; a partial one does not count."""
    as_of = status(pipeline()).fresh_as_of
    return AssetCheckResult(
        passed=as_of is not None and datetime.now(UTC) - as_of < FRESH_FOR,
        severity=AssetCheckSeverity.WARN,
        metadata={"fresh_as_of": as_of.isoformat() if as_of else "never"},
    )


SYNC = define_asset_job("importer_sync_job", selection=AssetSelection.groups(GROUP) - AssetSelection.checks(verified))
VERIFY = define_asset_job("importer_verify_job", selection=AssetSelection.checks(verified))


@sensor(job=SYNC, minimum_interval_seconds=300, default_status=DefaultSensorStatus.STOPPED)
def import_completed(context: SensorEvaluationContext) -> Iterator[RunRequest | SkipReason]:
    """Start a sync when the service has completed an import in a version that was not read yet; costs a listing."""
    waiting = [DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]
    if context.instance.get_runs(RunsFilter(job_name=SYNC.name, statuses=waiting), limit=1):
        yield SkipReason("A sync is under way.")
        return
    try:
        found = plan(pipeline())
    except DatabaseBusyError as error:
        yield SkipReason(str(error))
        return
    if found.imports_completed:
        yield RunRequest(tags={"importer/imports_completed": str(found.imports_completed)})
    else:
        yield SkipReason(f"None of {found.imports_listed} imports turned completed.")


defs = Definitions(
    assets=[importer_sync, backfill_by_template, backfill_by_day],
    asset_checks=[verified, fresh],
    jobs=[SYNC, VERIFY],
    schedules=[
        ScheduleDefinition(name="every_15_minutes", job=SYNC, cron_schedule="*/15 * * * *"),
        ScheduleDefinition(name="verify_each_morning", job=VERIFY, cron_schedule="7 7 * * *"),
    ],
    sensors=[import_completed],
)
