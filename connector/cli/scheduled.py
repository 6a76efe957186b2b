"""A run started by a script of one's own: the supervision, the summary and the exit codes of the command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from connector.cli import configuration
from connector.cli.exit_codes import as_problem, exit_code
from connector.cli.logs import start_logging
from connector.cli.output import Output
from connector.cli.run_command import run_pipeline
from connector.cli.signals import finish
from connector.errors import ConfigError

if TYPE_CHECKING:
    from dlt.pipeline.pipeline import Pipeline

    from connector.settings import Scope

__all__ = ["prepare_environment", "scheduled"]


def prepare_environment() -> None:
    """Prepare the environment for dlt as the command does. Ends the process for a folder of others."""
    try:
        configuration.prepare_environment()
    except ConfigError as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        finish(exit_code(error))


def scheduled(opened: Callable[[], Pipeline], scope: Scope | None = None) -> NoReturn:
    """One run of the pipeline that `opened` returns. Ends the process with the exit code of the run."""
    from connector.settings import Scope

    output = Output(argparse.Namespace(json=False, verbose=False))
    start_logging(output, steps=True)
    try:
        code = run_pipeline(opened, scope or Scope(), output)
    except Exception as error:
        problem = as_problem(error)
        print(f"{sys.argv[0]}: {problem}", file=sys.stderr)
        code = exit_code(problem)
    finish(code)
