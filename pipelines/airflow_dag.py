"""Define DAGs for Airflow 3: a sync every fifteen minutes, verification each morning, a backfill mapped over templates.

Put this file into the folder of DAGs; the settings are in `.dlt/` in IMPORTER_HOME, or in the environment of the
workers. A partial run loads what it can, and its task `reconciled` fails.
"""

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Asset, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

WAREHOUSE = Asset("importer://warehouse")  # DAGs scheduled on this asset run after each sync
FRESH_FOR = timedelta(hours=6)
HOME = os.environ.get("IMPORTER_HOME")
COMMON: dict[str, Any] = {
    "start_date": datetime(2026, 1, 1),
    "catchup": False,
    "max_active_runs": 1,
    "default_args": {"retries": 2, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
    "tags": ["importer"],
}


def pipeline() -> Any:
    """Return the pipeline of every task; its last line sets the warehouse."""
    if HOME:
        os.chdir(HOME)
    import dlt  # imported here, because the scheduler reads this file often

    return dlt.pipeline("importer", destination="duckdb", dataset_name="importer_data")


def run(scope: Any = None) -> dict[str, Any]:
    """Run a sync and return its summary; an error that no retry can fix fails at once."""
    from connector import AuthError, ConfigError, LockedError, sync

    try:
        summary = sync(pipeline(), scope=scope)
    except LockedError as error:
        raise AirflowSkipException(str(error)) from None
    except (AuthError, ConfigError) as error:
        raise AirflowFailException(str(error)) from None
    counts = ("imports_listed", "imports_changed", "imports_failed", "records_loaded", "requests")
    told = {"run_id": summary.run_id, "status": summary.status, "error": summary.error}
    return {**told, **{name: getattr(summary, name) for name in counts}, "templates": dict(summary.templates)}


@task(retries=0)
def reconciled(did: dict[str, Any]) -> None:
    """Fail unless the run succeeded; a partial run loaded everything else, and the next one retries open imports."""
    if did["status"] != "succeeded":
        raise AirflowFailException(f"The run {did['run_id']} is {did['status']}: {did['error']}")


with DAG("importer_sync", schedule="*/15 * * * *", **COMMON):

    @task(outlets=[WAREHOUSE])
    def incremental() -> dict[str, Any]:
        """Read imports that are new, changed or failed before."""
        return run()

    @task(retries=0, trigger_rule="none_failed")
    def fresh() -> None:
        """Fail unless a run that loaded everything is recent."""
        from datetime import UTC

        from connector import status

        as_of = status(pipeline()).fresh_as_of
        if as_of is None or datetime.now(UTC) - as_of > FRESH_FOR:
            raise AirflowFailException(f"The last run that loaded everything began at {as_of}.")

    done = incremental()
    done >> fresh()
    reconciled(done)


with DAG("importer_verify", schedule="7 7 * * *", **COMMON):

    @task(retries=0)
    def equal() -> dict[str, int]:
        """Fail if a row in the warehouse differs from the service."""
        from connector import verify

        found = verify(pipeline(), deep=True)
        if not found.equal:
            sentences = [each.sentence for each in found.differences[:10]] + list(found.unchecked[:10])
            raise AirflowFailException(" ".join(sentences))
        return {"imports": found.imports, "records": found.records}

    equal()


with DAG(
    "importer_backfill",
    schedule=None,
    params={"templates": Param([], type="array", description="Names or slugs of templates; none for all templates.")},
    **COMMON,
):

    @task
    def chosen() -> list[str]:
        """Return the templates that the run names, or all templates in the warehouse."""
        from connector import templates

        named = get_current_context()["params"]["templates"]
        return list(named) or [each.slug for each in templates(pipeline()) if each.slug]

    @task(max_active_tis_per_dag=1, map_index_template="{{ template }}")
    def backfill(template: str) -> dict[str, Any]:
        """Read and load again all imports of a template."""
        from connector import Scope

        get_current_context()["template"] = template  # type: ignore[literal-required,unused-ignore]
        return run(Scope(templates=[template]))

    reconciled.expand(did=backfill.expand(template=chosen()))
