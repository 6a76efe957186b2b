"""Open a pipeline from dlt's configuration and the options of the command."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import dlt
from dlt.common.configuration.exceptions import ConfigFieldMissingException
from dlt.common.destination.exceptions import UnknownDestinationModule
from dlt.common.exceptions import DltException
from dlt.common.normalizers.naming.snake_case import NamingConvention
from dlt.pipeline.pipeline import Pipeline

from connector.cli.exit_codes import explain
from connector.cli.redaction import add_password_of, add_secret
from connector.dlt_config import configured
from connector.errors import ConfigError
from connector.load.working_directory import open_in_scratch
from connector.warehouse.destination import (
    destination_config,
    duckdb_file,
    lake_catalog,
)
from connector.warehouse.s3_address import S3Address
from connector.warehouse.storage_version import SETTING, checked, make_file
from connector.warehouse.suitability import PROVEN, check_proven

DUCKDB_FILE = "importer.duckdb"
NO_PASSWORD = "not-given"  # noqa: S105


def open_pipeline(arguments: argparse.Namespace) -> Pipeline:
    """Return the pipeline that --pipeline-name, --dataset, --destination and --to describe, without connecting."""
    destination = _destination(arguments)
    _refuse_unsupported(destination, arguments.pipeline_name)
    _refuse_names(arguments)

    def in_folder(folder: str) -> Pipeline:
        return dlt.pipeline(
            arguments.pipeline_name, destination=destination, dataset_name=arguments.dataset, pipelines_dir=folder
        )

    try:
        pipeline = open_in_scratch(in_folder)
        credentials = lake_catalog(pipeline) or getattr(destination_config(pipeline), "credentials", None)
    except ConfigFieldMissingException as error:
        named = arguments.destination or ("postgres" if arguments.to else _configured_destination() or "duckdb")
        raise _missing_destination(named, error.fields) from None
    except UnknownDestinationModule:
        named = arguments.destination or _configured_destination()
        raise ConfigError(
            f"dlt has no destination {named!r}; use {', '.join(PROVEN)}, or a name that you gave one "
            f"with destination_type under [destination.{named}] in .dlt/config.toml."
        ) from None
    except (DltException, ValueError, ImportError) as error:
        problem = explain(error)
        raise problem if isinstance(problem, ConfigError) else ConfigError(str(problem)) from None
    if getattr(credentials, "password", None) != getattr(credentials, "username", None):
        add_secret(str(getattr(credentials, "password", None) or ""))
    return pipeline


def _refuse_unsupported(destination: Any, pipeline: str) -> None:
    """Raise ConfigError for a destination that is not supported, before dlt asks for its credentials."""
    if not isinstance(destination, str):
        return
    given = configured(f"destination.{destination}.destination_type", pipeline=pipeline)
    kind = (destination if given is None else str(given)).rsplit(".", 1)[-1]
    experimental = configured("sources.importer.allow_experimental", bool, pipeline=pipeline)
    check_proven(kind, destination, experimental=bool(experimental))


def _refuse_names(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for names that dlt refuses, or changes with a warning each time it sees them."""
    if not re.fullmatch(r"[^\W\d_]\w{0,63}", arguments.pipeline_name, re.ASCII):
        raise ConfigError(
            f"--pipeline-name {arguments.pipeline_name!r} is not a valid name: use letters, digits and _, a letter "
            "first, at most 64 characters."
        )
    kept = NamingConvention().normalize_path(arguments.dataset) if arguments.dataset else "importer_data"
    if kept != arguments.dataset and dlt.config.get("schema.naming") is None:
        raise ConfigError(
            f"--dataset {arguments.dataset!r} is not a valid name; use {kept}, which dlt would turn it into."
        )


def _missing_destination(name: str, fields: list[str]) -> ConfigError:
    return ConfigError(
        f"The {', '.join(fields)} of destination {name} are missing: set them in .dlt/secrets.toml under "
        f"[destination.{name}], or as DESTINATION__{name.upper()}__CREDENTIALS."
    )


def _configured_destination() -> str | None:
    """Return the destination given to `init`, for commands that are given none."""
    found: Any = dlt.config.get("importer_sync.destination")
    return None if found is None else str(found)


def _destination(arguments: argparse.Namespace) -> Any:
    if arguments.to is not None:
        return _destination_at(arguments.to)
    name, pipeline = arguments.destination or _configured_destination(), arguments.pipeline_name
    if name is not None and name in _OWN:
        return _OWN[name](_address(name, pipeline))
    if name is not None:
        return name
    own = "destination.duckdb.credentials"
    if any(configured(key, pipeline=pipeline, secret=True) is not None for key in (own, f"{own}.database")):
        return "duckdb"
    return dlt.destinations.duckdb(str(Path.cwd() / DUCKDB_FILE))


def _destination_at(uri: str) -> Any:
    kind, credentials = address_of(uri)
    if kind == "postgres":
        return dlt.destinations.postgres(credentials)
    if kind in _OWN:
        return _OWN[kind](credentials)
    return dlt.destinations.duckdb(credentials)


def _sqlite(path: str) -> Any:
    require("sqlalchemy", "sqlite")
    from connector.warehouse.adapters.sqlite_destination import sqlite

    return sqlite(path)


def _mysql(address: str) -> Any:
    require("pymysql", "mysql")
    from connector.warehouse.adapters.mysql_destination import mysql

    return mysql(address)


def _ducklake(address: str) -> Any:
    from connector.warehouse.adapters.ducklake_destination import ducklake

    catalog, given = _without(address, *_LAKE)
    if catalog.startswith("postgresql:"):
        require("psycopg2", "ducklake")
    return ducklake(catalog, data=given["data"], schema=given.get("schema", "ducklake"))


def _delta(folder: str) -> Any:
    require("deltalake", "delta")
    from connector.warehouse.adapters.delta_destination import delta

    return delta(folder)


def _parquet(place: str) -> Any:
    if "://" in place:
        require("obstore", "s3")
    from connector.warehouse.adapters.parquet_destination import parquet

    return parquet(place)


# Schemes whose destination is built here, because dlt has no suitable one.
_OWN: Mapping[str, Callable[[str], Any]] = {
    "sqlite": _sqlite,
    "mysql": _mysql,
    "ducklake": _ducklake,
    "delta": _delta,
    "parquet": _parquet,
}
_LAKE = ("data", "schema")


def _address(name: str, pipeline: str) -> str:
    """Return the URL that `init` was given, or the one in dlt's configuration of a destination."""
    given = configured(f"destination.{name}.credentials", pipeline=pipeline, secret=True)
    if not isinstance(given, str):
        raise _missing_destination(name, ["credentials"])
    return address_of(given)[1] if given.partition(":")[0] == name else given


def require(module: str, extra: str) -> None:
    """Raise ConfigError if an extra of the distribution is not installed."""
    if find_spec(module) is None:
        raise ConfigError(f"{extra} needs a package that is not installed: pip install 'importer-connector[{extra}]'")


def address_of(uri: str) -> tuple[str, str]:
    """Return dlt's name of the destination that --to gives, and its credentials; for a file, its absolute path."""
    add_password_of(uri)
    scheme, _, rest = uri.partition(":")
    if scheme == "duckdb" and rest.strip("/"):
        return "duckdb", str(_path(rest))
    if scheme == "sqlite" and rest.strip("/"):
        return "sqlite", str(_path(rest))
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        return "postgres", _postgres_address(rest)
    if scheme in ("mysql", "mariadb") and rest.startswith("//"):
        return "mysql", f"mysql+pymysql:{rest}"
    if scheme == "ducklake":
        return "ducklake", _lake_address(rest)
    if scheme == "delta" and rest.strip("/"):
        return "delta", str(_folder(rest))
    if scheme == "filesystem" and rest.strip("/"):
        return "parquet", str(_path(rest))
    if scheme == "s3" and rest.startswith("//"):
        S3Address.of(uri)  # or an error
        return "parquet", uri
    raise ConfigError(
        f"--to {scheme}:… is not supported; use duckdb:///dir/file.duckdb, sqlite:///dir/file.db, "
        "postgresql://user:password@host/database, mysql://user:password@host/, "
        "ducklake:sqlite:///dir/catalog.sqlite, delta:///dir, filesystem:///dir or s3://bucket/prefix."
    )


def _folder(rest: str) -> Path:
    """Return the folder of Delta tables; raise ConfigError for an object store and for a name that cannot be opened."""
    if re.match(r"\w+://", rest):
        raise ConfigError(
            f"--to delta:{rest}: Delta tables have to be in a folder of this machine (delta:///dir), because a commit "
            "to several of them is not one step; in S3 use plain Parquet, --to s3://bucket/prefix."
        )
    path = _path(rest)
    if found := re.search("%[0-9A-Fa-f]{2}", str(path)):
        raise ConfigError(
            f"deltalake cannot open {path}, because it takes {found[0]} for another character; rename it."
        )
    return path


def _lake_address(rest: str) -> str:
    """Return the address of the catalog, with the absolute path of the folder of the files in its query.

    The default for a catalog in SQLite is `catalog.sqlite.files` beside it; for one in PostgreSQL it has to be given.
    """
    catalog, given = _without(rest, *_LAKE)
    scheme = catalog.partition(":")[0]
    if scheme not in ("sqlite", "postgresql", "postgres"):
        raise ConfigError(
            "--to ducklake: needs the address of the catalog behind it, in SQLite or PostgreSQL: "
            "ducklake:sqlite:///dir/catalog.sqlite or ducklake:postgresql://user@host/database?data=/dir; a catalog "
            "that is a DuckDB file lets nobody read during a run."
        )
    kind, place = address_of(catalog)
    if kind == "sqlite":
        given.setdefault("data", f"{place}.files")
        place = f"sqlite:///{place}"
    elif "data" not in given:
        raise ConfigError(
            "--to ducklake:postgresql://… needs the folder of the lake's files as well: add ?data=/dir to it."
        )
    if "://" in given["data"]:
        raise ConfigError(
            f"--to ducklake:…?data={given['data']}: the files of a lake have to be in a folder; give its path. It is "
            "not proven elsewhere that no row is missing."
        )
    given["data"] = str(Path.cwd() / given["data"])
    return f"{place}{'&' if '?' in place else '?'}{urlencode(given)}"


def _without(address: str, *names: str) -> tuple[str, dict[str, str]]:
    """Return an address without these parameters of its query, and the parameters."""
    place, _, query = address.partition("?")
    parts = parse_qsl(query)
    left = urlencode([part for part in parts if part[0] not in names])
    return f"{place}?{left}" if left else place, {name: value for name, value in parts if name in names}


def _postgres_address(rest: str) -> str:
    """Return the URL as dlt needs it, with a host and a password.

    The host may be a socket's directory, given as `?host=`; the password may be one that the server ignores.
    """
    url = urlsplit(f"postgresql:{rest}")
    query = dict(parse_qsl(url.query))
    host = quote(query.pop("host", ""), safe="") or url.netloc.rpartition("@")[2]
    password = url.password or quote(os.environ.get("PGPASSWORD", ""), safe="") or NO_PASSWORD
    user = url.username or quote(os.environ.get("PGUSER", "postgres"), safe="")
    return f"postgresql://{user}:{password}@{host}{url.path}" + (f"?{urlencode(query)}" if query else "")


def _path(rest: str) -> Path:
    """Return the path of a URI.

    `///dir/file` is absolute, as in any URI; a bare `///file` or anything without `//` is in the working directory.
    Four slashes mean an absolute path, as SQLAlchemy writes it.
    """
    path = unquote(rest.removeprefix("//"))
    absolute = path.startswith("/") and "/" in path.strip("/")
    return Path("/" + path.lstrip("/")) if absolute or path.startswith("//") else Path.cwd() / path.lstrip("/")


def storage_version() -> str | None:
    """Return the version of DuckDB whose format a new file gets; None for the newest.

    Raises ConfigError if there is no such version.
    """
    found: Any = dlt.config.get(f"importer_sync.{SETTING}")
    return None if found is None else checked(str(found))


def prepare_file(pipeline: Pipeline) -> None:
    """Create the folder of the DuckDB file, and the file itself if it is to have another format than the newest."""
    version, file = storage_version(), duckdb_file(pipeline)
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The folder {file.parent} cannot be created ({error.strerror}); name another one with --to."
            ) from None
    if version is not None and file is not None:
        make_file(file, version)
