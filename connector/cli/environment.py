"""Prepare the environment that dlt needs before it is imported: folders that can be trusted, and faster defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from connector.cli.redaction import add_configured_secrets
from connector.folders import TOML_FILES, check_project, check_readable, dlt_folder, use_private_folders

# Settings that were measured to load Arrow into one warehouse fastest, or that keep tokens out of dlt's traces.
DLT_DEFAULTS: Mapping[str, str] = {
    "RUNTIME__DLTHUB_TELEMETRY": "false",
    "RUNTIME__LOG_LEVEL": "WARNING",
    "ENABLE_RUNTIME_TRACE": "false",
    "NORMALIZE__WORKERS": "1",
    "LOAD__WORKERS": "2",
    "LOAD__DELETE_COMPLETED_JOBS": "true",
    "DATA_WRITER__BUFFER_MAX_ITEMS": "20000",
    "DATA_WRITER__COMPRESSION": "none",
    # Arrow's own pool does not return memory to the system, which adds up in a long load.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    # numpy, where it is installed, starts one thread per further processor, each of which spins for 0.1 s.
    "OPENBLAS_NUM_THREADS": "1",
}

GROUP_READABLE = "SOURCES__IMPORTER__GROUP_READABLE"


def keep_files_private() -> None:
    """Make the files that this process creates readable by this user only, or with `group_readable` by the group.

    Only for a process of our own, as its first step: dlt and DuckDB create files of their own.
    """
    given = os.environ.get(GROUP_READABLE) or _configured(_own_config(), GROUP_READABLE)
    os.umask(0o027 if str(given).lower() in ("true", "1", "yes", "on", "t", "y") else 0o077)


def prepare_environment(*, quiet: bool = False) -> None:
    """Set folders and defaults for dlt, which reads them when it is imported; a user's own settings take precedence.

    Only for a process of our own. Raises ConfigError for folders that others can write to, and for settings that cannot
    be read.
    """
    check_project(settings_folder())
    use_private_folders(settings_folder())
    check_readable(dlt_folder())
    add_configured_secrets(folder / name for folder in (settings_folder(), dlt_folder()) for name in TOML_FILES)
    os.environ.pop("PGTZ", None)  # it would override the UTC that dlt requests from PostgreSQL
    configured = _own_config()
    for name, value in DLT_DEFAULTS.items():
        if _configured(configured, name) is None:
            os.environ.setdefault(name, "ERROR" if quiet and name == "RUNTIME__LOG_LEVEL" else value)


def settings_folder() -> Path:
    """Return the folder in which dlt looks for config.toml and secrets.toml."""
    return Path(os.environ.get("DLT_PROJECT_DIR", "."), os.environ.get("DLT_CONFIG_FOLDER", ".dlt"))


def _configured(config: Any, variable: str) -> Any:
    """Return the value in `config` of an environment variable's key; None if it is not set."""
    return reduce(
        lambda table, key: table.get(key) if isinstance(table, dict) else None, variable.lower().split("__"), config
    )


def _own_config() -> Any:
    try:
        return tomllib.loads((settings_folder() / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # dlt itself reports what is wrong with the file
