"""Use dlt's destination `sqlalchemy` for MySQL and MariaDB, with texts of any length, compared byte for byte.

In a server's default collation, `a` and `A`, `e` and `é` or `x` and `x ` are the same key, and one of two records would
replace the other. So each database is created with a collation that distinguishes them, and other databases are
refused.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import sqlalchemy as sa
from dlt.common.destination import DestinationCapabilitiesContext
from dlt.common.destination.typing import PreparedTableSchema
from dlt.common.schema.typing import TColumnSchema
from dlt.destinations.impl.sqlalchemy.db_api_client import SqlalchemyClient
from dlt.destinations.impl.sqlalchemy.factory import sqlalchemy
from dlt.destinations.impl.sqlalchemy.merge_job import SqlalchemyMergeFollowupJob
from dlt.destinations.impl.sqlalchemy.sqlalchemy_job_client import SqlalchemyJobClient
from dlt.destinations.impl.sqlalchemy.type_mapper import MysqlVariantTypeMapper
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.pool import NullPool

from connector.warehouse.adapters.mysql import COLLATIONS

LOCK_TIMEOUT_S = 60
_SORT_LENGTH = 8192  # bytes by which texts are told apart in a window or a group; a slug has at most 2,000
_SESSION = (
    f"SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', max_sort_length = {_SORT_LENGTH}, "
    "innodb_strict_mode = OFF, default_storage_engine = InnoDB, "
    "wait_timeout = 2592000, "  # reading a package may take longer than the usual limit on idle sessions
    f"lock_wait_timeout = {LOCK_TIMEOUT_S}, innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}"
)
_DELETE = re.compile(  # as dlt generates it for the scope of `connector.load.table_rows`
    r"DELETE FROM (?P<table>\S+)\s+WHERE (?P<key>\w+) IN \(SELECT (?P=key) FROM (?P<staged>\S+) UNION ALL "
    r"SELECT (?P=key) FROM \S+ WHERE (?P<import>\w+) IN \(SELECT (?P=import) FROM (?P=staged)\)\)"
)


def collation_of(connection: sa.Connection) -> str:
    """Return the collation that distinguishes all texts, including those that differ in trailing blanks."""
    dialect: Any = connection.dialect
    return COLLATIONS[bool(dialect.is_mariadb)]


class _Types(MysqlVariantTypeMapper):
    def db_type_from_text_type(self, column: TColumnSchema, table: PreparedTableSchema) -> Any:  # noqa: ARG002
        return LONGTEXT()  # in the collation of its database, see `_Client.create_dataset`

    def db_type_from_json_type(self, column: TColumnSchema, table: PreparedTableSchema) -> Any:  # noqa: ARG002
        return LONGTEXT()  # JSON of MySQL reorders keys and rounds numbers


class mysql(sqlalchemy):
    """The destination; its name is in lower case, like dlt's."""

    def __init__(self, address: str | None = None, **kwargs: Any) -> None:
        if address is not None:
            kwargs["credentials"] = _engine(address)
        super().__init__(**{"engine_kwargs": {}, "engine_args": {}, **kwargs})

    @property
    def client_class(self) -> type[SqlalchemyJobClient]:
        return _JobClient

    @classmethod
    def adjust_capabilities(cls, caps: Any, config: Any, naming: Any) -> DestinationCapabilitiesContext:
        able: DestinationCapabilitiesContext = super().adjust_capabilities(caps, config, naming)
        able.type_mapper = _Types
        return able


class _JobClient(SqlalchemyJobClient):
    def __init__(self, schema: Any, config: Any, capabilities: Any) -> None:
        super().__init__(schema, config, capabilities)
        told = self.sql_client
        self.sql_client = _Client(told.dataset_name, told.staging_dataset_name, config.credentials, capabilities)

    def update_stored_schema(self, *args: Any, **kwargs: Any) -> Any:
        """Store the schema under another hash before dlt changes any table, and under its own after all of them.

        Each change ends the transaction. If the process died before dlt stored the schema, nothing would tell that the
        new tables and columns are ours, and their names would count as taken by somebody else.
        """
        begun = f"{self.schema.stored_version_hash} begun"
        versions = self._to_table_object(self.schema.tables[self.schema.version_table_name])  # type: ignore[arg-type]
        if not self.sql_client.compare_storage_table(versions.name)[2]:
            self.sql_client.create_table(versions)
        own = versions.c.version_hash == self.schema.stored_version_hash
        stored = self.sql_client.to_dataset_table
        if self.get_stored_schema_by_hash(self.schema.stored_version_hash) is None:
            with self.sql_client.begin_transaction():
                self._update_schema_in_storage(self.schema)
                self.sql_client.execute_sql(stored(versions).update().where(own).values(version_hash=begun))
        done = super().update_stored_schema(*args, **kwargs)
        self.sql_client.execute_sql(stored(versions).delete().where(versions.c.version_hash == begun))
        return done

    def _create_merge_followup_jobs(self, table_chain: Any) -> Any:
        for table in table_chain:
            self._to_table_object(table)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sa.exc.SAWarning)  # of how dlt writes the order of doubles
            return [_Merge.from_table_chain(table_chain, self.sql_client)]


class _Merge(SqlalchemyMergeFollowupJob):
    @classmethod
    def gen_merge_sql(cls, table_chain: Any, sql_client: Any) -> list[str]:
        return [by_keys(statement) for statement in super().gen_merge_sql(table_chain, sql_client)]


class _Client(SqlalchemyClient):
    def create_dataset(self) -> None:
        untyped: Any = self._current_connection
        name = self.dialect.identifier_preparer.quote_identifier(self.dataset_name)
        self.execute_sql(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE {collation_of(untyped)}")


def by_keys(statement: str) -> str:
    """Return the DELETE of a merge with its keys looked up one by one, and any other statement as it is.

    MySQL cannot read a table that it deletes from, except through a materialized result; and it would scan the keys for
    each row of the table, since it looks up no texts in a set.
    """
    found = _DELETE.fullmatch(statement.strip().rstrip(";"))
    if found is None:
        return statement
    table, key, staged, import_key = found.group("table", "key", "staged", "import")
    imports = f"(SELECT DISTINCT {import_key} FROM {staged}) AS importer_imports"
    keys = (
        f"SELECT {key} AS k FROM {staged} UNION ALL SELECT importer_old.{key} FROM {imports} STRAIGHT_JOIN {table} "
        f"AS importer_old ON importer_old.{import_key} = importer_imports.{import_key}"
    )
    return (
        f"DELETE {table} FROM ({keys}) AS importer_keys STRAIGHT_JOIN {table} "  # an alias needs a default database
        f"ON {table}.{key} = importer_keys.k"
    )


def _engine(address: str) -> sa.Engine:
    # before SQLAlchemy looks at the session: it quotes names as `sql_mode` says then
    return sa.create_engine(address, poolclass=NullPool, connect_args={"init_command": _SESSION})
