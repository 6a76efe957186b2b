"""Choose the format of a new DuckDB file: the newest, or one that older versions of DuckDB can read as well."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb

from connector.errors import ConfigError

SETTING = "duckdb_storage"
_VERSION = re.compile(r"v\d+\.\d+\.\d+")


def checked(version: str) -> str:
    """Return `version`. Raise ConfigError if DuckDB cannot write it."""
    problem = ""
    if _VERSION.fullmatch(version):
        try:
            duckdb.connect(":memory:", config={"storage_compatibility_version": version}).close()
            return version
        except duckdb.Error:
            problem = f"; the DuckDB that is installed is {duckdb.__version__}"
    raise ConfigError(
        f"{SETTING} = {version!r} under [importer_sync] is not a version of DuckDB whose format can be "
        f"written{problem}: use one such as v1.2.0, which that version and all later ones read "
        "(IMPORTER_SYNC__DUCKDB_STORAGE)."
    )


def make_file(file: Path, version: str) -> None:
    """Create an empty DuckDB file that `version` and all later ones can read; an existing file stays as it is.

    Raises ConfigError if there is no such version.
    """
    checked(version)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        duckdb.connect(str(file), config={"storage_compatibility_version": version}).close()
