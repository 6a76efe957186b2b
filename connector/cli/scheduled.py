"""One run for a scheduler, started by a Python script: signals, summary and exit code are those of the command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

from connector.cli.environment import keep_files_private, prepare_environment
from connector.cli.exit_codes import exit_code, explain
from connector.cli.logs import start_logging
from connector.cli.output import Output
from connector.cli.signals import exit_in_order
from connector.startup import open_standard_streams

if TYPE_CHECKING:
    from connector.scope import Scope


def run_and_exit(
    pipeline_name: str = "importer",
    *,
    destination: Any = "duckdb",
    dataset_name: str = "importer_data",
    scope: Scope | None = None,
) -> NoReturn:
    """Run one sync of a pipeline, as `importer-sync run` does, and end the process with its exit code.

    Call it only from a separate script: it sets dlt's environment, logging and signal handlers for the whole process.

    Args:
        pipeline_name: The name of the pipeline.
        destination: A destination of dlt, or its name; the configuration has its credentials.
        dataset_name: The dataset to load into.
        scope: What to read again, as `importer-sync backfill` does; by default the run is incremental.
    """
    open_standard_streams()
    output = Output()
    try:
        keep_files_private()
        prepare_environment()
        start_logging(output, steps=True)
        # dlt reads the environment when it is imported, so the environment is set before that
        import dlt

        from connector.api import as_run
        from connector.cli.run_command import run_pipeline

        code = run_pipeline(
            pipeline_name,
            lambda: dlt.pipeline(pipeline_name, destination=destination, dataset_name=dataset_name),
            as_run(scope),
            output,
            (destination if isinstance(destination, str) else None, dataset_name),
        )
    except Exception as error:
        problem = explain(error)
        output.note(f"{sys.argv[0]}: {problem}", level="error")
        code = exit_code(problem)
    exit_in_order(code)
