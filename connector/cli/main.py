"""`importer-sync`: finds the command, prepares its surroundings, and turns whatever it raises into an exit code."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise
from types import FrameType, ModuleType
from typing import Any, NoReturn

from connector.cli.configuration import prepare_environment
from connector.cli.exit_codes import as_problem, exit_code
from connector.cli.logs import start_logging
from connector.cli.options import add_global
from connector.cli.output import Output
from connector.cli.signals import depart, finish
from connector.startup import defer_parts_of_dlt, few_collections

COMMANDS = (
    "init",
    "demo",
    "run",
    "backfill",
    "check",
    "preview",
    "status",
    "report",
    "verify",
    "doctor",
    "rebuild",
    "sql",
    "query",
    "dbt",
    "session",
    "sandbox",
    "completion",
)
WITHOUT_DLT = ("sandbox", "completion")
CODES = """exit codes:
  0 all loaded and reconciled    1 failed    2 wrong usage or configuration
  3 partial: something failed, was rejected or does not reconcile; the rest is loaded
  4 another run into this dataset is under way    130, 143 stopped by a signal, what was complete is committed
"""


def main() -> NoReturn:
    """The entry point of the command. Ends the process."""
    signal.signal(signal.SIGTERM, _terminated)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without UTF-8 is no reason to end
    try:
        code = invoke(sys.argv[1:])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finish(code)


def invoke(argv: Sequence[str]) -> int:
    """One command, in this process; returns the exit code. Raises SystemExit for --help and wrong usage."""
    few_collections()
    parser = make_parser(argv)
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    output = Output(arguments)
    try:
        if arguments.command not in WITHOUT_DLT:
            prepare_environment(quiet=output.json)
            defer_parts_of_dlt()
        start_logging(output)
        code: int = arguments.run(arguments)
    except KeyboardInterrupt:
        output.document({"status": "interrupted", "error": "Stopped by SIGINT."})
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # whoever read the output has seen enough; flushing the rest would raise once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _report(output, error)
    return code


def _report(output: Output, error: Exception) -> int:
    problem = as_problem(error)
    if output.verbose:
        text = "".join(traceback.format_exception(error))
        output.note(text.rstrip("\n"), level="debug", event="traceback")
    output.note(f"importer-sync: {problem}", level="error", event="command.failed")
    output.document({"status": "failed", "error": str(problem)})
    return exit_code(problem)


def _terminated(number: int, _: FrameType | None) -> None:
    depart(128 + number)


def make_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    log_json = "--log-format=json" in argv or ("--log-format", "json") in pairwise(argv)
    kind = type("Parser", (_Parser,), {"json": "--json" in argv, "log_json": log_json})
    parser: argparse.ArgumentParser = kind(
        prog="importer-sync",
        description="Syncs the Importer Service into a warehouse, and proves that no row is missing.",
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    add_global(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for module in _modules(argv):
        help_text: str = module.HELP
        own = commands.add_parser(
            module.NAME,
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}.",
        )
        module.configure(own)
        _show_examples(own, module.EXAMPLES)
        add_global(own, again=True)
        own.set_defaults(run=module.run)
    return parser


def _show_examples(parser: argparse.ArgumentParser, examples: Sequence[str]) -> None:
    """At the end of the help of a command, and of those below it the ones that are theirs."""
    own = [example for example in examples if f"{example} ".startswith(f"{parser.prog} ")]
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    if own:
        parser.epilog = "\n  ".join(["example:" if len(own) == 1 else "examples:", *own])
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _show_examples(below, examples)


def _modules(argv: Sequence[str]) -> list[ModuleType]:
    """Import the module of the command that was named; of all of them where none was, for their help."""
    named = _named(argv)
    return [importlib.import_module(f"connector.cli.commands.{name}") for name in ([named] if named else COMMANDS)]


def _named(argv: Sequence[str]) -> str | None:
    """Return the command that is named; None where options before it are wrong or ask for help, and all are needed."""
    before = _Silent(add_help=False)
    add_global(before)
    before.add_argument("words", nargs=argparse.REMAINDER)
    try:
        found, unknown = before.parse_known_args(argv)
    except ValueError:
        return None
    return found.words[0] if found.words and found.words[0] in COMMANDS and not unknown else None


class _Silent(argparse.ArgumentParser):
    """Raises ValueError for wrong usage."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class _Parser(argparse.ArgumentParser):
    """With --json, wrong usage is one document too, and an object where the log is for programs."""

    json = False
    log_json = False

    def error(self, message: str) -> NoReturn:
        log_format = "json" if self.log_json else "text"
        output = Output(argparse.Namespace(json=self.json, verbose=False, log_format=log_format))
        output.document({"status": "failed", "error": message})
        if self.log_json:
            output.note(message, level="error", event="command.failed")
            self.exit(2)
        super().error(message)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version

        print(f"importer-sync {version('importer-connector')}")
        parser.exit()
