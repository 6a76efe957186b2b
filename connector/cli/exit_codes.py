"""Whatever was raised → one sentence and an exit code (CONTRACT §2). No traceback for what a user can cause."""

from __future__ import annotations

import re
import sys

from connector.errors import ConfigError, ConnectorError, LockedError

FAILED, USAGE, PARTIAL, LOCKED = 1, 2, 3, 4
_HELD_FILE = re.compile(r'Could not set lock on file "([^"]+)"[^(]*(?:\((PID \d+)\))?')


def exit_code(error: BaseException) -> int:
    if isinstance(error, LockedError):
        return LOCKED
    return USAGE if isinstance(error, ConfigError) else FAILED


def as_problem(error: Exception) -> ConnectorError:
    """The same as an error of ours, its message a sentence."""
    if isinstance(error, ConnectorError):
        return _held_file(str(error)) or error
    held = _held_file(_text(error))
    if held is not None:
        return held
    if "dlt" in sys.modules:
        known = _of_dlt(error)
        if known is not None:
            return known
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return ConnectorError(f"The system refused ({error.strerror}{where}).")
    if type(error).__module__.split(".")[0] in ("duckdb", "_duckdb", "psycopg2"):
        return ConnectorError(f"The destination refused: {_text(error)}")
    return ConnectorError(
        f"Something unforeseen happened ({type(error).__name__}: {_text(error)}); run again with -v for the traceback."
    )


def _of_dlt(error: Exception) -> ConnectorError | None:
    from dlt.common.configuration.exceptions import ConfigFieldMissingException, ConfigurationException
    from dlt.common.destination.exceptions import DestinationException, UnknownDestinationModule
    from dlt.common.exceptions import MissingDependencyException

    if isinstance(error, ConfigFieldMissingException):
        return missing_keys(error)
    if isinstance(error, MissingDependencyException):
        # our own extra brings the drivers that load exactly as well
        wanted = ("'importer-connector[postgres]'" if p == "dlt[postgres]" else p for p in error.dependencies)
        packages = " ".join(wanted)
        return ConfigError(f"This destination needs a package that is not installed: pip install {packages}.")
    if isinstance(error, UnknownDestinationModule):
        return ConfigError(f"dlt has no destination of that name: {_text(error)}")
    if isinstance(error, ConfigurationException):
        return ConfigError(f"The configuration is not valid: {_text(error)}")
    if isinstance(error, DestinationException):
        return ConnectorError(f"The destination refused: {_text(error)}")
    return None


def missing_keys(error: Exception) -> ConfigError:
    """Names each missing key with the file it belongs in and the environment variable that stands for it."""
    sentences = []
    for field, traces in getattr(error, "traces", {}).items():
        keys = [t for t in traces if hasattr(t, "sections")]
        env = next((t.key for t in keys if t.provider.startswith("Environment")), field.upper())
        table = ".".join(next((t.sections for t in keys if t.sections), ()))
        sentences.append(f"{field} is missing: put it into .dlt/secrets.toml under [{table}], or set {env}")
    return ConfigError("; ".join(sentences or [_text(error)]) + ".")


def _held_file(text: str) -> ConnectorError | None:
    found = _HELD_FILE.search(text)
    if found is None:
        return None
    by = f" ({found[2]})" if found[2] else ""
    return ConnectorError(
        f"Another program{by} has {found[1]} open, and DuckDB lets only one in; close it there and try again."
    )


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
