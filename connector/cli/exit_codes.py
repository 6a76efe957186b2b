"""Turn every exception into one sentence and an exit code; see docs/guarantees.md, "Errors"."""

from __future__ import annotations

import sys

from connector.errors import ConfigError, ConnectorError, LockedError

FAILED, USAGE, PARTIAL, LOCKED = 1, 2, 3, 4
_DRIVERS = ("duckdb", "_duckdb", "psycopg2", "sqlalchemy", "sqlite3", "pymysql")


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ends with `error`."""
    if isinstance(error, LockedError):
        return LOCKED
    return USAGE if isinstance(error, ConfigError) else FAILED


def explain(error: BaseException) -> ConnectorError:
    """Return the error as a sentence that an operator can act on; a ConnectorError stays as it is."""
    if "connector.warehouse" in sys.modules:  # otherwise neither dlt nor a destination can have raised it
        from connector.warehouse.busy import as_busy

        if (busy := as_busy(error)) is not None:
            return busy
    if isinstance(error, ConnectorError):
        return error
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return ConnectorError(f"The operating system reported an error ({error.strerror}{where}).")
    if "dlt" in sys.modules and (known := _of_dlt(error)) is not None:
        return known
    if type(error).__module__.split(".")[0] in _DRIVERS:
        return _of_destination(error)
    return ConnectorError(
        f"An unexpected error occurred ({type(error).__name__}: {_text(error)}); run again with -v for the traceback."
    )


def _of_destination(error: BaseException) -> ConnectorError:
    from connector.warehouse.failures import explain_failure

    return explain_failure(error)


def _of_dlt(error: BaseException) -> ConnectorError | None:
    from dlt.common.configuration.exceptions import ConfigFieldMissingException, ConfigurationException
    from dlt.common.destination.exceptions import DestinationException, UnknownDestinationModule
    from dlt.common.exceptions import MissingDependencyException

    if isinstance(error, ConfigFieldMissingException):
        return missing_keys(error)
    if isinstance(error, MissingDependencyException):
        # our own extra installs the drivers that load without loss
        wanted = ("'importer-connector[postgres]'" if p == "dlt[postgres]" else p for p in error.dependencies)
        return ConfigError(f"This destination needs a package that is not installed: pip install {' '.join(wanted)}.")
    if isinstance(error, UnknownDestinationModule):
        return ConfigError(f"dlt has no destination of that name; check --destination: {_text(error)}")
    if isinstance(error, ConfigurationException):
        return ConfigError(f"The configuration is not valid: {_text(error)}")
    return _of_destination(error) if isinstance(error, DestinationException) else None


def missing_keys(error: Exception) -> ConfigError:
    """Return a ConfigError that names each missing key, the file it belongs in and its environment variable."""
    sentences = []
    for field, traces in getattr(error, "traces", {}).items():
        keys = [t for t in traces if hasattr(t, "sections")]
        env = next((t.key for t in keys if t.provider.startswith("Environment")), field.upper())
        table = ".".join(next((t.sections for t in keys if t.sections), ()))
        sentences.append(f"{field} is missing: put it into .dlt/secrets.toml under [{table}], or set {env}")
    return ConfigError("; ".join(sentences or [_text(error)]) + ".")


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
