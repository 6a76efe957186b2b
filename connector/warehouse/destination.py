"""Find out where a pipeline's destination is, and prepare it for loading by undocumented parts of dlt.

Only `open_client` opens a connection: another run may hold the DuckDB file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

from dlt.common.configuration.exceptions import ConfigurationException
from dlt.common.storages.exceptions import SchemaNotFoundError
from dlt.destinations.sql_client import SqlClientBase
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.warehouse.s3_address import S3Address

DATASET = "importer_data"  # the default; in SQLite it is the file itself, and any other dataset a file beside it

# The settings of every session with PostgreSQL, ours, dlt's and ADBC's: values are sent and read back unchanged and no
# lock is waited for without end, whatever the role, the database, the environment or the URL says.
_ENCODING = "UTF8"  # the encoding of texts that ADBC sends, and of all replies of PostgreSQL
_FIXED = (
    "-ctimezone=UTC",  # in other time zones the first and last hours of the calendar get a year outside Python's range
    "-cextra_float_digits=3",  # with fewer digits, a double read as text and written again is another one
    "-cquote_all_identifiers=off",  # ADBC looks types up by names without quotes
    "-cstandard_conforming_strings=on",  # otherwise a backslash in the name of a template ends a literal in a view
)

# So that a firewall does not drop the connection of a long run, and the run detects a lost one in two minutes.
KEEPALIVES = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 15, "keepalives_count": 5}
_IDLE_LIMIT_SINCE = 140_000  # the first version of PostgreSQL with a limit on idle sessions

LOCK_TIMEOUT_S = 60
SHORTEST_PASSWORD = 6  # characters; if shorter ones were taken out of messages, parts of words would be
_UNLESS_GIVEN = (f"-clock_timeout={LOCK_TIMEOUT_S}s",)


@dataclass(frozen=True, slots=True)
class _Resolved:
    """The values that dlt resolves for a destination: its configuration, and the name of the dataset there."""

    destination: Any
    asked: str
    config: Any
    dataset: str


_resolved: WeakKeyDictionary[Pipeline, _Resolved] = WeakKeyDictionary()


# -- which destination -------------------------------------------------------------------------------------------------


def destination_type(pipeline: Pipeline) -> str:
    """Return the last part of dlt's name of the kind of destination, such as `duckdb`; '' without a destination."""
    return pipeline.destination.destination_type.rsplit(".", 1)[-1] if pipeline.destination else ""


def destination_name(pipeline: Pipeline) -> str:
    return str(pipeline.destination.destination_name) if pipeline.destination else "none"


def destination_config(pipeline: Pipeline) -> Any:
    """Return the configuration of the pipeline's destination, which dlt resolves again at each call."""
    return _of(pipeline).config


def dataset_name(pipeline: Pipeline) -> str:
    """Return the name that the dataset has in the destination."""
    return _of(pipeline).dataset


def _of(pipeline: Pipeline) -> _Resolved:
    known = _resolved.get(pipeline)
    if known is None or known.destination is not pipeline.destination or known.asked != pipeline.dataset_name:
        try:
            client = pipeline.destination_client()  # not `with`: that would connect, and another run may hold the file
        except SchemaNotFoundError:  # a killed run left the state without the schema; the next run rebuilds both
            pipeline.default_schema_name = None
            client = pipeline.destination_client()
        if destination_type(pipeline) == "postgres":
            from connector.warehouse.postgres_credentials import corrected

            config: Any = client.config
            config.credentials = corrected(config.credentials)
        dataset = getattr(getattr(client, "sql_client", None), "dataset_name", None) or pipeline.dataset_name or ""
        known = _Resolved(pipeline.destination, pipeline.dataset_name, client.config, dataset)
        _resolved[pipeline] = known
    return known


# -- where it is -------------------------------------------------------------------------------------------------------


def duckdb_file(pipeline: Pipeline) -> Path | None:
    """Return the path of the DuckDB file; None for other destinations, and for DuckDB in memory or in the cloud."""
    if destination_type(pipeline) != "duckdb":
        return None
    database = str(getattr(destination_config(pipeline).credentials, "database", ":memory:"))
    return None if database.startswith((":", "md:")) else Path(database)


def local_file(pipeline: Pipeline) -> Path | None:
    """Return the path of the file with the dataset, or with the catalog of its lake; None if there is none."""
    if destination_type(pipeline) == "sqlite":
        return file_of(destination_config(pipeline).credentials.database, dataset_name(pipeline))
    catalog = lake_catalog(pipeline)
    if catalog is not None and catalog.drivername == "sqlite":
        return Path(catalog.database)
    return duckdb_file(pipeline)


def lake_catalog(pipeline: Pipeline) -> Any:
    """Return the credentials of the catalog of a DuckLake; None for another destination."""
    return destination_config(pipeline).credentials.catalog if destination_type(pipeline) == "ducklake" else None


def lake_place(pipeline: Pipeline) -> str | None:
    """Return the folder or address below which tables in files are; None for another destination."""
    if destination_type(pipeline) not in ("delta", "parquet"):
        return None
    return str(destination_config(pipeline).credentials.database)


def lake_folder(pipeline: Pipeline) -> Path | None:
    """Return the folder below which tables in files are; None for another destination, and for one in the cloud."""
    place = lake_place(pipeline)
    return None if place is None or "://" in place else Path(place)


def location(pipeline: Pipeline) -> str:
    """Return where the data is, for a person: a file or folder, or an address without its password."""
    file = local_file(pipeline) or lake_folder(pipeline)
    if file is not None:
        inside = file.is_relative_to(Path.cwd())
        return str(file.relative_to(Path.cwd()) if inside else file)
    if (place := lake_place(pipeline)) is not None:
        return str(S3Address.of(place))
    credentials = lake_catalog(pipeline) or destination_config(pipeline).credentials
    host, database = getattr(credentials, "host", None), getattr(credentials, "database", None)
    named = "/".join(unquote(str(part)) for part in (host, database) if part)
    kind = pipeline.destination.destination_name if pipeline.destination else ""
    return f"{kind} {named}".strip()


def without_password(pipeline: Pipeline, text: str) -> str:
    """Return the text without the password of the destination: drivers quote addresses in their messages."""
    with suppress(ConfigurationException):
        credentials = lake_catalog(pipeline) or destination_config(pipeline).credentials
        password = getattr(credentials, "password", None)
        if isinstance(password, str) and len(password) >= SHORTEST_PASSWORD:
            for form in (password, quote(password, safe=""), quote(password, safe=" +")):
                text = text.replace(form, "***")
    return text


def no_warehouse(pipeline: Pipeline) -> ConfigError:
    """Return the error about a warehouse that nothing was loaded into yet."""
    return ConfigError(
        f"There is no warehouse at {location(pipeline)} (dataset {dataset_name(pipeline)}): name it with --to, or "
        "create it with `importer-sync run`."
    )


def lake_files(pipeline: Pipeline) -> Path | None:
    """Return the folder in which a DuckLake has its files; None for another destination, and for one in the cloud."""
    if destination_type(pipeline) != "ducklake":
        return None
    credentials = destination_config(pipeline).credentials
    return Path(credentials.storage_url) if credentials.storage.is_local_filesystem else None


def postgres_credentials(pipeline: Pipeline) -> Any:
    """Return how to connect to the PostgreSQL with the dataset or the catalog of its lake; None if there is none."""
    catalog = lake_catalog(pipeline)
    if catalog is not None:
        return catalog if catalog.drivername in ("postgres", "postgresql") else None
    return destination_config(pipeline).credentials if destination_type(pipeline) == "postgres" else None


def lake_folders(pipeline: Pipeline) -> list[Path]:
    """Return the folders with a DuckLake's files for the dataset and for the rows staged for it."""
    files = lake_files(pipeline)
    return [] if files is None else [files / dataset_name(pipeline), files / staging_name(pipeline)]


def file_of(path: str, dataset: str) -> Path:
    """Return the file of a dataset in SQLite: the named one for the default dataset, else one beside it."""
    named = Path(path)
    return named if dataset == DATASET else named.with_name(f"{named.stem}__{dataset}{named.suffix}")


def destination_fingerprint(pipeline: Pipeline) -> str:
    """Return an id of the warehouse that does not reveal its address and has no password or user."""
    return _digest(destination_type(pipeline), _data_location(pipeline))


def dataset_fingerprint(pipeline: Pipeline) -> str:
    """Return an id of the dataset, distinct from all others in any warehouse."""
    return _digest(destination_fingerprint(pipeline), dataset_name(pipeline))


def _data_location(pipeline: Pipeline) -> str:
    """Return where the data is, in dlt's words: a file, or `host:port/database`."""
    file, config = local_file(pipeline) or lake_folder(pipeline), destination_config(pipeline)
    if file is not None:
        return str(file.resolve())
    if (place := lake_place(pipeline)) is not None:
        return S3Address.of(place).identity
    with suppress(ConfigurationException):  # the place is unknown, e.g. of a database in memory
        location = config.data_location()
        if location is not None:
            return str(location)
    return f"{config.fingerprint()} {getattr(config.credentials, 'database', '')}"


def _digest(*parts: str) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=6).hexdigest()


# -- preparing it for a load -------------------------------------------------------------------------------------------


def prepare_for_loading(pipeline: Pipeline) -> None:
    """Make dlt merge each table atomically, in sessions with our settings.

    Call it once before a pipeline loads: it changes the pipeline's destination.
    """
    _merge_in_transactions(pipeline)
    _set_sessions(pipeline)


def _merge_in_transactions(pipeline: Pipeline) -> None:
    """Declare that a destination which can create tables in a transaction has transactions.

    dlt does not define this for DuckDB and PostgreSQL and assumes it has none, unless the statements of a job contain
    the word CREATE (`SqlLoadJob.maybe_transaction`). A process that dies after the DELETE of a merge would then lose
    rows.
    """
    destination: Any = pipeline.destination  # may be None, and is not typed so
    if destination is None:
        return
    able = destination.capabilities()
    if able.supports_ddl_transactions and able.supports_transactions is None:
        destination.caps_params["supports_transactions"] = True


def _set_sessions(pipeline: Pipeline) -> None:
    """Make every session with PostgreSQL that the pipeline's destination opens use `session_options`.

    The encoding is a separate parameter, because PGCLIENTENCODING and a parameter in the URL override an option.
    """
    destination: Any = pipeline.destination
    if destination_type(pipeline) != "postgres":
        return
    try:
        credentials = destination_config(pipeline).credentials
    except ConfigurationException:  # whoever connects is told what is missing
        return
    credentials.client_encoding = _ENCODING
    given = credentials.query or {}
    kept = {name: str(value) for name, value in KEEPALIVES.items()}
    credentials.query = {**kept, **given, "options": session_options(given.get("options", ""))}
    destination.config_params["credentials"] = credentials


def staging_name(pipeline: Pipeline) -> str:
    """Return the name of the schema in which dlt stages rows."""
    return str(destination_config(pipeline).staging_dataset_name_layout).replace("%s", dataset_name(pipeline))


def use_own_staging(pipeline: Pipeline, name: str) -> None:
    """Make dlt stage rows in a separate schema: pipelines that share one empty each other's tables."""
    destination: Any = pipeline.destination
    layout = destination_config(pipeline).staging_dataset_name_layout
    destination.config_params["staging_dataset_name_layout"] = f"{layout}_{name}"
    _resolved.pop(pipeline, None)


def session_options(given: str) -> str:
    """Return the options of a session: those given in the URL, and ours, each once.

    Of two equal options the last one counts, so a URL can set its own lock_timeout. dlt writes the blank between them
    into the URL as a plus, which PostgreSQL does not decode.
    """
    ours = {*_UNLESS_GIVEN, *_FIXED}
    return "\t".join([*_UNLESS_GIVEN, *(each for each in given.split() if each not in ours), *_FIXED])


def is_writable(pipeline: Pipeline) -> bool:
    """Return False if the dataset is in an existing file or folder that this user cannot write."""
    file = local_file(pipeline) or lake_folder(pipeline)
    return file is None or not file.exists() or os.access(file, os.W_OK)


@contextmanager
def open_client(pipeline: Pipeline) -> Iterator[SqlClientBase[Any]]:
    """Yield dlt's client of the destination, connected; a session with PostgreSQL has our settings.

    A DuckDB file that cannot be written is opened for reading: `sole_writer` has already refused writers.
    """
    _set_sessions(pipeline)
    opened: Any = pipeline.sql_client()
    if duckdb_file(pipeline) is not None and not is_writable(pipeline):
        opened.credentials.read_only = True
    with opened as client:
        if destination_type(pipeline) == "postgres":
            _set_what_options_cannot(client)
        yield client


def _set_what_options_cannot(client: SqlClientBase[Any]) -> None:
    """Set the time zone and the limit on idle sessions, which not every server takes as an option."""
    session: Any = client.native_connection
    # PGTZ overrides an option; the server reports the setting in effect without being asked
    if session.get_parameter_status("TimeZone") != "UTC":
        client.execute_sql("SET TimeZone = 'UTC'")
    # Reading a package may take longer than the limit; earlier servers would refuse the option.
    if session.server_version >= _IDLE_LIMIT_SINCE:
        client.execute_sql("SET idle_session_timeout = 0")


@contextmanager
def capabilities_resolved_once(pipeline: Pipeline) -> Iterator[None]:
    """Make dlt resolve the capabilities of the destination once, not some twenty times a package.

    Each time it reads the whole configuration of the destination: a run with one small package takes 0.97 s of
    processor time instead of 1.25 (medians of six on a busy machine).
    """
    destination: Any = pipeline.destination
    resolve = destination.capabilities
    known: dict[Any, Any] = {}

    def once(config: Any = None, naming: Any = None) -> Any:
        if config is not None:
            return resolve(config, naming)
        key = (type(naming), getattr(naming, "max_length", None))
        if key not in known:
            known[key] = resolve(None, naming)
        return known[key].copy()

    destination.capabilities = once
    try:
        yield
    finally:
        del destination.capabilities
