"""Adapt PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any, ClassVar

import pyarrow as pa

from connector.warehouse.adapters.base import ANY_TABLE, MICROSECONDS, Adapter, Client, Traits, lower
from connector.warehouse.adapters.dialect import PostgresSql, Sql

log = logging.getLogger("connector.warehouse")

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class Postgres(Adapter):
    """A schema of a database; every session is set as `connector.warehouse.destination.session_options` says."""

    traits: ClassVar[Traits] = Traits(
        dialect="postgres",
        knows_types=True,
        finds_slugs=True,
        indexes=True,
        counts_rows=True,
        views=True,
        functions=True,
        binds_views=True,
        history=True,
        temporary="pg_temp",
    )
    sql: ClassVar[Sql] = PostgresSql()
    _precision: ClassVar[str] = "COALESCE(numeric_precision, datetime_precision)"

    def may_write(self, client: Client, table: str | None) -> bool:
        if table is not None:
            name = client.make_qualified_table_name(table)
            return bool(self.fetch(client, "SELECT has_table_privilege(%s, 'INSERT') AS may", [name])[0]["may"])
        sql = "SELECT has_schema_privilege(oid, 'CREATE') AS may FROM pg_catalog.pg_namespace WHERE nspname = %s"
        return any(row["may"] for row in self.fetch(client, sql, [client.dataset_name]))

    def declared(self, client: Client, table: str) -> dict[str, str]:
        sql = (
            "SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS kind FROM pg_catalog.pg_attribute a "
            "JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 "
            "AND NOT a.attisdropped"
        )
        rows = self.fetch(client, sql, [client.dataset_name, table])
        return {lower(row["name"]): row["kind"] for row in rows}

    def counted_columns(self, client: Client, table: str) -> int:
        """Count dropped columns too, which PostgreSQL never reuses."""
        sql = (
            "SELECT count(*) AS n FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0"
        )
        return int(self.fetch(client, sql, [client.dataset_name, table])[0]["n"])

    def _names_sql(self, client: Client) -> str:
        """Return the SELECT of the names, also of those of indexes and of objects that are not visible."""
        objects = "pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s"
        kind = f"CASE WHEN c.relkind IN ('r', 'p') THEN '{ANY_TABLE}' END"
        return f"{super()._names_sql(client)} UNION ALL {self._select_names('c.relname', kind, objects)}"

    def type_of(self, declared: str, precision: int | None, scale: int | None) -> str:
        if declared in ("json", "jsonb"):  # JSON is stored as the text that was received, which these do not keep
            return f"pg_catalog.{declared}"
        kind = super().type_of(declared, precision, scale)
        return f"{declared}({precision})" if kind == "timestamp" and precision != MICROSECONDS else kind

    def made_type(self, kind: str) -> str:
        return "TEXT" if kind == "json" else super().made_type(kind)

    def ask_rows(self, client: Client, table: str, sql: str, args: Sequence[Any]) -> pa.Table:  # noqa: ARG002
        return self.ask(client, sql, args)  # it may have two names that differ only in case

    def indexed(self, client: Client) -> dict[str, set[str]]:
        rows = self.fetch(
            client,
            "SELECT t.relname AS table_name, a.attname AS column_name FROM pg_index i "
            "JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace "
            "JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = i.indkey[0] "
            "WHERE n.nspname = %s AND i.indisvalid AND i.indpred IS NULL",
            [client.dataset_name],
        )
        found: dict[str, set[str]] = {}
        for row in rows:
            found.setdefault(row["table_name"], set()).add(row["column_name"])
        return found

    def index(self, client: Client, table: str, column: str) -> None:
        client.execute_sql(
            f"CREATE INDEX ON {client.make_qualified_table_name(table)} ({client.escape_column_name(column)})"
        )

    def replace_table(self, client: Client, table: str, replacement: str) -> None:
        """Replace the table, and give the new one exactly the rights and indexes of the old one.

        An index that does not fit the new types is left out, with a warning.
        """
        rights, indexes = self._rights(client, table), self._indexes(client, table)
        super().replace_table(client, table, replacement)
        name = client.make_qualified_table_name(table)
        for by_default in {row["role"] for row in self._rights(client, table)}:
            client.execute_sql(f"REVOKE ALL ON {name} FROM {by_default}")
        for row in rights:
            also = " WITH GRANT OPTION" if row["is_grantable"] else ""
            client.execute_sql(f"GRANT {row['privilege_type']} ON {name} TO {row['role']}{also}")
        for definition in indexes:
            with client.native_connection.cursor() as cursor:  # after an error dlt would end the transaction
                cursor.execute("SAVEPOINT importer_index")
                try:
                    cursor.execute(definition)
                except Exception as error:
                    cursor.execute("ROLLBACK TO SAVEPOINT importer_index")
                    reason = str(error).partition("\n")[0]
                    log.warning("An index of %s does not fit the rebuilt table (%s): %s", table, reason, definition)

    def _attached_sql(self, client: Client) -> str:  # noqa: ARG002
        selects = {
            "policy": "polname FROM pg_policy x WHERE x.polrelid = t.oid",
            "trigger": "tgname FROM pg_trigger x WHERE x.tgrelid = t.oid AND NOT x.tgisinternal",
            "constraint": "conname FROM pg_constraint x WHERE t.oid IN (x.conrelid, x.confrelid) AND x.contype <> 'n'",
            "rule": "rulename FROM pg_rewrite x WHERE x.ev_class = t.oid",
            "right to the column": "attname FROM pg_attribute x WHERE x.attrelid = t.oid AND x.attacl IS NOT NULL",
            "place in the publication": "pubname FROM pg_publication x JOIN pg_publication_rel y ON y.prpubid = x.oid "
            "WHERE y.prrelid = t.oid",
            "row-level security of": "relname FROM pg_class x WHERE x.oid = t.oid AND x.relrowsecurity",
        }
        found = " UNION ALL ".join(f"SELECT '{kind}' AS kind, x.{select}" for kind, select in selects.items())
        ours = "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        named = f"({ours} WHERE n.nspname = %s AND c.relname = %s) AS t"
        return f"SELECT a.kind, a.name FROM {named}, LATERAL ({found}) AS a (kind, name)"

    def _rights(self, client: Client, table: str) -> list[dict[str, Any]]:
        sql = (
            "SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role, "
            "a.privilege_type, a.is_grantable FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, "
            "aclexplode(c.relacl) a WHERE n.nspname = %s AND c.relname = %s AND a.grantee <> c.relowner"
        )
        return self.fetch(client, sql, [client.dataset_name, table])

    def _indexes(self, client: Client, table: str) -> list[str]:
        sql = (
            "SELECT pg_get_indexdef(i.indexrelid) AS definition FROM pg_index i "
            "JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace "
            "WHERE n.nspname = %s AND t.relname = %s AND i.indisvalid "
            "AND NOT EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = i.indexrelid)"
        )
        return [row["definition"] for row in self.fetch(client, sql, [client.dataset_name, table])]

    @contextmanager
    def relations(self, client: Client, slugs: Mapping[str, pa.ChunkedArray[Any]]) -> Iterator[None]:
        """Copy the slugs into temporary tables, because parameters would each be parsed and planned."""
        try:
            for name, values in slugs.items():
                client.execute_sql(f"CREATE TEMPORARY TABLE {name} (slug text NOT NULL)")
                with client.native_connection.cursor() as cursor:
                    for chunk in values.chunks:
                        lines = "\n".join(str(slug).translate(_ESCAPES) for slug in chunk.to_pylist())
                        cursor.copy_expert(f"COPY pg_temp.{name} FROM STDIN", StringIO(lines))
                client.execute_sql(f"ANALYZE pg_temp.{name}")
            yield
        finally:
            for name in slugs:
                client.execute_sql(f"DROP TABLE IF EXISTS pg_temp.{name}")
