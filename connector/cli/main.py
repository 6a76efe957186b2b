"""`importer-sync`: find the command, prepare its process, and turn every exception into an exit code.

Only the module of the given command is imported, after the environment that dlt needs is set. Commands can therefore
import what they use at the top, and `--help` and `--version` load neither dlt nor a command.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from types import FrameType, MappingProxyType, ModuleType
from typing import Any, NoReturn

from connector.cli.environment import keep_files_private, prepare_environment
from connector.cli.exit_codes import exit_code, explain
from connector.cli.logs import start_logging
from connector.cli.options import add_global
from connector.cli.output import Output
from connector.cli.signals import exit_in_order, exit_without_finalizing
from connector.nearest import suggest_known
from connector.startup import open_standard_streams, prepare_imports

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "init": "write the settings, asking for what is missing, and check that they work",
        "demo": "sync the sandbox into DuckDB, change the sandbox, sync again; offline, no configuration",
        "run": "run one incremental sync",
        "backfill": "read and load again: a time window, some imports, a template, or everything",
        "check": "test the service, the token and the destination; explain each failure and its fix",
        "plan": "show what the next run would read and delete, and what it costs in requests and time; load nothing",
        "preview": "show imports, templates and fields with sample rows; load nothing",
        "status": "show the last runs, freshness, and the imports that failed or do not reconcile",
        "templates": "list the templates in the warehouse, with their tables and counts; no request",
        "changes": "show what changed in the records, field by field; needs history = true, and no request",
        "report": "write one HTML file: freshness, runs, uploads, reconciliation, rejects, fields",
        "verify": "compare the service with the warehouse, with --deep every row; exit 3 if anything differs",
        "doctor": "explain what is wrong with the warehouse (then exit code 3); --repair does what loses nothing",
        "rebuild": "rebuild typed tables from the raw rows without a request, for hints that were added later",
        "compact": "rewrite the warehouse, so that deleted rows are no longer in its file",
        "hints": "propose types and formats of columns from the texts that are loaded; no request",
        "sql": "apply, run and list the views and checks for analysts",
        "query": "run one SELECT, read-only; tables and views need no schema before their names",
        "dbt": "write sources.yml for a dbt project: tables, columns, tests and freshness",
        "session": "create an importer session token",
        "sandbox": "serve the sandbox implementation of the service on loopback until Ctrl-C",
        "completion": "print the script with which bash, zsh or fish completes commands and options",
    }
)
WITHOUT_DLT = ("sandbox",)
CODES = """exit codes:
  0 all loaded and reconciled    1 failed    2 wrong usage or configuration
  3 partial: something failed, was rejected or does not reconcile; the rest is loaded
  4 another run into this dataset is in progress    130, 143 stopped by a signal after committing what was complete
"""


def main() -> NoReturn:
    """Run the command given on the command line; end the process with its exit code."""
    open_standard_streams()
    keep_files_private()
    signal.signal(signal.SIGTERM, _terminated)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without UTF-8 must not end the command
    try:
        code = invoke(sys.argv[1:])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    exit_in_order(code)


def invoke(argv: Sequence[str]) -> int:
    """Run one command in this process; return its exit code. Raises SystemExit for --help and wrong usage."""
    output = Output.expected(argv)
    try:
        argv = _with_help(argv)
        command = _named(argv)
        parser = make_parser([command] if command else (), output)
        arguments, unknown = parser.parse_known_args(argv)
        if unknown:
            _refuse(_innermost(parser, arguments), unknown)
        if command is None:
            parser.print_help(sys.stderr)
            return 2
        output = Output.of(arguments)
        start_logging(output)
        code: int = arguments.run(arguments, output)
    except KeyboardInterrupt:
        return _interrupted(output)
    except BrokenPipeError:
        # the reader of the output has gone; flushing the rest would raise again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _interrupted(output) if _is_interrupt(error) else _report(output, error)
    return code


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether it is DuckDB's error of Ctrl-C, which DuckDB notices before Python does.

    The type is known by its name, because most commands do not import DuckDB.
    """
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if type(error).__name__ == "InterruptException":
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def _interrupted(output: Output) -> int:
    output.document({"status": "interrupted", "error": "Stopped by SIGINT."})
    return 128 + signal.SIGINT


def _report(output: Output, error: Exception) -> int:
    problem = explain(error)
    if output.verbose:
        text = "".join(traceback.format_exception(error))
        output.note(*text.splitlines(), level="debug", event="traceback")
    output.note(f"importer-sync: {problem}", level="error", event="command.failed")
    output.document({"status": "failed", "error": str(problem)})
    return exit_code(problem)


def _terminated(number: int, _: FrameType | None) -> None:
    exit_without_finalizing(128 + number)


def make_parser(commands: Collection[str] = COMMANDS, output: Output | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line, with the options of `commands`, whose modules are imported for them.

    Wrong usage is reported to `output`. Raises ConfigError if the environment for dlt cannot be prepared.
    """
    output = output or Output()
    kind = type("Parser", (_Parser,), {"output": output})
    parser: argparse.ArgumentParser = kind(
        prog="importer-sync",
        description="Syncs the Importer Service into a warehouse, and proves that no row is missing.",
        epilog=CODES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action=_Version, nargs=0, help="print the version and exit")
    add_global(parser)
    choices = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, help_text in COMMANDS.items():
        described = f"{help_text[0].upper()}{help_text[1:]}."
        own = choices.add_parser(name, help=help_text, description=described, allow_abbrev=False)
        if name in commands:
            module = _load(name, output)
            module.configure(own)
            usage = own.format_usage().removeprefix("usage: ").rstrip()
            own.usage = f"{usage} [options of every command]".replace("%", "%%")
            _show_examples(own, module.EXAMPLES)
            add_global(own, again=True)
            own.set_defaults(run=module.run)
    return parser


def _with_help(argv: Sequence[str]) -> Sequence[str]:
    """Replace `help COMMAND` by `COMMAND --help`."""
    return [*argv[1:], "--help"] if argv and argv[0] == "help" else argv


def _innermost(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> argparse.ArgumentParser:
    """Return the parser of the given command, or of its subcommand."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = action.choices.get(getattr(arguments, action.dest, None) or "")
            return _innermost(chosen, arguments) if chosen is not None else parser
    return parser


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """End with wrong usage: `unknown` are arguments that the command does not have."""
    options = [name for name in parser._option_string_actions if name.startswith("--")]
    first = unknown[0].partition("=")[0]
    if first.startswith("-"):
        begun = [name for name in options if len(first) > 3 and name.startswith(first)]
        nearest = suggest_known(first, begun or options) if begun or get_close_matches(first, options) else ""
        parser.error(f"there is no option {first}" + (f"; {nearest}" if nearest else ""))
    parser.error(f"{unknown[0]!r} is one argument too many")


def _load(command: str, output: Output) -> ModuleType:
    """Import the module of a command, after preparing the process for dlt if the command uses it."""
    if command not in WITHOUT_DLT:
        prepare_environment(quiet=output.json)
        prepare_imports()
    return importlib.import_module(f"connector.cli.commands.{command}")


def _show_examples(parser: argparse.ArgumentParser, examples: Sequence[str]) -> None:
    """Add to the help of a command, and of each command below it, the examples that begin with its name."""
    own = [example for example in examples if f"{example} ".startswith(f"{parser.prog} ")]
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    if own:
        parser.epilog = "\n  ".join(["example:" if len(own) == 1 else "examples:", *own])
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _show_examples(below, examples)


def _named(argv: Sequence[str]) -> str | None:
    """Return the given command; None if there is none, or an option before it is wrong or asks for help."""
    before = _RaisingParser(add_help=False)
    add_global(before)
    before.add_argument("words", nargs=argparse.REMAINDER)
    try:
        found, unknown = before.parse_known_args(argv)
    except ValueError:
        return None
    return found.words[0] if found.words and found.words[0] in COMMANDS and not unknown else None


class _RaisingParser(argparse.ArgumentParser):
    """A parser that raises ValueError for wrong usage."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class _Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage as one JSON document with --json, and as an object with --log-format json."""

    output = Output()

    def error(self, message: str) -> NoReturn:
        self.output.document({"status": "failed", "error": message})
        if self.output.log_json:
            self.output.note(message, level="error", event="command.failed")
            self.exit(2)
        words = self.prog.split()[1:]
        if words:
            self.print_usage(sys.stderr)
        self.output.note(f"{self.prog}: {message}", level="error")
        what = "explains it" if words else "lists the commands"
        self.output.note(f"`{' '.join(['importer-sync', 'help', *words])}` {what}.")
        self.exit(2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is none of the choices, and name the nearest."""
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"there is no command {value!r}; {suggest_known(str(value), list(action.choices))}")
        raise argparse.ArgumentError(
            action, f"{value!r} is not one of the choices; {suggest_known(str(value), list(action.choices))}"
        )


class _Version(argparse.Action):
    """An option that looks up the version only when it is requested."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version  # 20 ms that no other command needs

        print(f"importer-sync {version('importer-connector')}")
        parser.exit()
