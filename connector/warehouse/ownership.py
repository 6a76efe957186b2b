"""Decide which tables and columns of the dataset are ours, in one function that every reader and writer calls.

A table is ours if this package names it (in its fixed names, the ledger, `sync_fields`, or the schema that dlt stores
in the dataset in one transaction with every table it creates), if it is not a view, and if it has the columns that
identify its rows. The ledger may name a table that does not exist, because it would have no rows; a history table that
got this name since is not that table. Anything else with a similar name belongs to others: it is neither read nor
written, and its name counts as taken.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from connector.errors import ConfigError, NewerFormatError
from connector.runs import connector_version
from connector.transform.naming import DOUBLE_VARIANT, RULES_COLUMN, SYSTEM_COLUMNS, TEXT_VARIANT, VERSION_COLUMNS
from connector.transform.schema import OVERFLOWED
from connector.warehouse.adapters import Catalog
from connector.warehouse.adapters.base import lower
from connector.warehouse.connection import LOADS, VERSIONS, Connection, batches
from connector.warehouse.tables import (
    FIELDS,
    FORMAT,
    FORMAT_HINT,
    IMPORTS,
    LEDGER,
    LOAD_ID,
    PRIMARY_KEYS,
    RECORDS,
    RECORDS_SCHEMA,
    RUNS,
    SOURCE,
    SYSTEM_SCHEMAS,
    TEMPLATE_HINT,
    TYPED_SCHEMA,
    keys_of,
)

TYPED_PREFIX = "records_"
_HISTORY = re.compile(f"({TYPED_PREFIX}.+)_history(?:_[0-9]+)?", re.DOTALL)
_ANY_HISTORY = re.compile("(.+)_history(?:_[0-9]+)?", re.DOTALL)
REBUILD_TABLE = "sync_rebuild"  # a typed table while it is rebuilt; not `records_…`, so that no run mistakes it for one
REBUILD_SCHEMA = "importer_rebuild"  # dlt's schema of that table
_COLUMNS = {table: set[str](schema.names) for table, schema in {**SYSTEM_SCHEMAS, RECORDS: RECORDS_SCHEMA}.items()}
_FIXED = {table: {*_COLUMNS[table], "_dlt_id", RULES_COLUMN} for table in (IMPORTS, RECORDS)}
_VARIANT_OF = {"has_text": TEXT_VARIANT, "has_double": DOUBLE_VARIANT}
_SYSTEM = (*SYSTEM_SCHEMAS, RECORDS, LOADS, VERSIONS)
_NEEDED = frozenset({LEDGER, RUNS, FIELDS, LOADS, VERSIONS})  # the others may be hidden: they have contents


@dataclass(frozen=True, slots=True)
class Dataset:
    """The contents of the dataset.

    `columns`: of each table and view, with their types; `ours`: our tables; `foreign`: the names of all other objects,
    in lower case, without those of ours; `made`: the columns that dlt created in each table, by all of its schemas;
    `current`: by the newest schema, which lacks a table that was rebuilt since, or as this version creates the table if
    there is no schema; `added`: columns that others added to `imports` and tables of records, which are never handed to
    dlt, kept in versions, emptied or dropped; `templates`: typed table → slug of its template, '' for imports without
    one, by dlt's schema, else by the ledger and `sync_fields`;
    `orphans`: history tables of typed tables of ours that do not exist, because `typed` is false or they were dropped;
    `format`: the format of the warehouse, 0 if it was written before formats had a number.
    """

    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    ours: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    made: Mapping[str, frozenset[str]] = field(default_factory=dict)
    current: Mapping[str, frozenset[str]] = field(default_factory=dict)
    added: Mapping[str, frozenset[str]] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    orphans: frozenset[str] = frozenset()
    format: int = 0

    @property
    def columns_of_ours(self) -> Mapping[str, Mapping[str, str]]:
        return {table: self.columns[table] for table in self.ours}

    @property
    def typed(self) -> frozenset[str]:
        return frozenset(table for table in self.ours if table.startswith(TYPED_PREFIX))

    @property
    def tables_of_records(self) -> frozenset[str]:
        return self.typed | (self.ours & {RECORDS})

    @property
    def older(self) -> frozenset[str]:
        """Return the tables of ours, except typed ones, that an earlier version created with fewer columns."""
        return frozenset(table for table in self.ours & _COLUMNS.keys() if _COLUMNS[table] - self.columns[table].keys())

    def only(self, typed: Collection[str]) -> Dataset:
        """Return the dataset for a shard: typed tables other than these count as foreign."""
        others = self.typed - set(typed)
        return replace(self, ours=self.ours - others, foreign=self.foreign | {table.casefold() for table in others})

    def check(self, *, ignores_case: bool) -> None:
        """Raise ConfigError if a name that this package needs is taken by another object.

        With `ignores_case`, names that differ only in case are the same in the destination.
        """
        names = _as_compared((*(self.foreign if ignores_case else ()), *self.columns), ignores_case=ignores_case)
        for table in _SYSTEM:
            name = names.get(table)
            if name is not None and table not in self.ours:
                there = self.columns.get(name, ())
                other = "being a table" if name == table else f"the name {table!r}"
                lacking = ", ".join(c for c in _identity(table) if c not in there) or other
                raise ConfigError(
                    f"The {name!r} in the dataset is not, or no longer, the connector's own table (it lacks "
                    f"{lacking}). Rename or drop it, or choose another dataset; then run again."
                )


def inspect_dataset(connection: Connection) -> Dataset:
    """Return the contents of the dataset, from the catalog, the small tables and dlt's stored schema.

    No table of records is read. Raises NewerFormatError for a warehouse of a newer format than this version knows, and
    ConfigError for one in which two different keys can be equal, or one of our tables belongs to another role.
    """
    connection.adapter.check(connection.client)
    catalog = connection.catalog()
    columns = catalog.columns
    shaped = {table for table in catalog.tables & set(columns) if set(_identity(table)) <= set(columns[table])}
    stored = _Stored.newest(connection) if VERSIONS in shaped else _Stored()
    if stored.format > FORMAT:
        raise NewerFormatError(_too_new(connection, stored.format, RUNS in shaped))
    named = {*_SYSTEM, REBUILD_TABLE, *stored.columns}
    histories = {table for table in shaped if set(VERSION_COLUMNS) <= set(columns[table])}
    bases = {t: found[1] for t in histories if (found := _HISTORY.fullmatch(t)) and found[1] not in columns}
    if not shaped - histories <= named or bases or catalog.hidden:
        naming = [t for t in (LEDGER, FIELDS) if t in shaped and "table_name" in columns[t]]
        named |= _named_in(connection, naming) - histories
    _check_rights(connection, catalog, named)
    orphans = frozenset(table for table, base in bases.items() if base in named)
    # a load that died may have created columns that no later version of the schema has
    unsure = {
        table
        for table in shaped
        if table.startswith(TYPED_PREFIX) and not set(columns[table]) <= stored.columns.get(table, set())
    }
    older = _Stored.any_version(connection, unsure) if VERSIONS in shaped else _Stored()
    ours = frozenset(shaped & (named | set(older.columns)))
    made = {t: frozenset(stored.columns.get(t, set()) | older.columns.get(t, set())) for t in ours}
    foreign = frozenset(name.casefold() for name in catalog.taken - ours) - {table.casefold() for table in ours}
    typed = {t: set(TYPED_SCHEMA.names) for t in ours if t.startswith(TYPED_PREFIX)}
    current = {t: frozenset(stored.columns.get(t) or _COLUMNS.get(t, set())) | typed.get(t, set()) for t in ours}
    templates = {**older.templates, **stored.templates}
    if untold := typed.keys() - templates.keys():  # dlt's schemas are lost, or an earlier version wrote them
        templates.update(_templates_by_rows(connection, untold, {t: columns[t] for t in (LEDGER, FIELDS) if t in ours}))
    of_records = [t for t in ours if t in _FIXED or t.startswith(TYPED_PREFIX)]
    beyond = {t: left for t in of_records if (left := set(columns[t]) - made[t] - _FIXED.get(t, SYSTEM_COLUMNS))}
    added = _not_fields(connection, beyond, made, columns[FIELDS] if FIELDS in ours else ())
    made.update({t: made[t] | beyond[t] - added.get(t, frozenset()) for t in beyond})
    return Dataset(columns, ours, foreign, made, current, added, templates, orphans, stored.format)


def _check_rights(connection: Connection, catalog: Catalog, named: Set[str]) -> None:
    """Raise ConfigError if a table of ours is hidden: its rows would stay as they are, or another would be made.

    `named` are the names of our tables. Tables with contents may be hidden on purpose from a reader, who may not write
    to the ledger, or, if that is hidden too, may not create it. The others are needed to tell a reader anything.
    """
    loads = bool(catalog.hidden) and connection.may_write(LEDGER if LEDGER in catalog.tables else None)
    for table in sorted(catalog.hidden if loads else catalog.hidden & _NEEDED):
        found = _ANY_HISTORY.fullmatch(table)
        base = table if found is None or table in named else found[1]
        identity = {*VERSION_COLUMNS} if base != table else {*_identity(table)}
        if base in named and identity <= connection.declared(table).keys():
            raise ConfigError(_not_permitted(connection, table) if loads else _not_readable(connection, table))


def _not_readable(connection: Connection, table: str) -> str:
    return (
        f"The role that connects may not read {connection.name(table)}, which shows the state of the warehouse: grant "
        "it SELECT on that table. `importer-sync query` needs only the tables of the query."
    )


def _not_permitted(connection: Connection, table: str) -> str:
    name = connection.name(table)
    return (
        f"The role that connects has no rights on {name}, which a run as another role created. Make it the owner "
        f"(ALTER TABLE {name} OWNER TO …), also of all else that such a run created; then run again. If nothing is to "
        "be loaded into the table any more, it may be moved to another schema. Nothing was changed."
    )


def _templates_by_rows(
    connection: Connection, tables: Collection[str], naming: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """Return typed table → slug of its template as the ledger and `sync_fields`, the tables in `naming`, tell."""
    found: dict[str, str] = {}
    for name, columns in naming.items():
        if {"table_name", "template_slug"} <= set(columns):
            told = connection.rows(f"SELECT DISTINCT table_name, template_slug FROM {connection.name(name)}")
            known = {row["table_name"]: row["template_slug"] for row in told if row["template_slug"]}
            untold = {row["table_name"]: "" for row in told}  # of imports without a template
            found.update({**untold, **known})
    return {table: found[table] for table in tables if table in found}


def _not_fields(
    connection: Connection,
    beyond: Mapping[str, Collection[str]],
    made: Mapping[str, Collection[str]],
    known: Collection[str],
) -> dict[str, frozenset[str]]:
    """Return the columns `beyond` that no field names either: a rebuild creates those of fields without dlt.

    `known` are the columns of `sync_fields`. A field whose keys were lost there names nothing. If all fields of a table
    were lost, the variants of columns that dlt `made` are taken for ours.
    """
    fields: dict[str, set[str]] = defaultdict(set)
    if beyond and {"table_name", "column_name", "keys", "data_type"} <= set(known):
        flags = {flag: variant for flag, variant in _VARIANT_OF.items() if flag in known}
        chosen = ", ".join(["table_name", "column_name", *flags])
        named = f"{connection.column('keys')} IS NOT NULL AND data_type <> '{OVERFLOWED}'"
        for row in connection.rows(f"SELECT {chosen} FROM {connection.name(FIELDS)} WHERE {named}"):
            own = ["", *(variant for flag, variant in flags.items() if row[flag])]
            fields[row["table_name"]] |= {f"{row['column_name']}{variant}" for variant in own}
    for table in beyond.keys() - fields.keys():
        fields[table] = {f"{column}{variant}" for column in made[table] for variant in _VARIANT_OF.values()}
    return {table: frozenset(left) for table, names in beyond.items() if (left := set(names) - fields[table])}


def _too_new(connection: Connection, found: int, has_runs: bool) -> str:
    sql = f"SELECT connector_version FROM {connection.name(RUNS)} ORDER BY started_at DESC LIMIT 1"
    last = connection.rows(sql) if has_runs else []
    by = f", by importer-connector {last[0]['connector_version']}" if last else ""
    return (
        f"The warehouse was written in format {found}{by}; importer-connector {connector_version()} knows formats "
        f"up to {FORMAT}. Install that version or a later one, or choose another dataset; nothing was changed."
    )


def prepare_staging(
    connection: Connection, ours: Collection[str], columns: Mapping[str, Mapping[str, str]] | None = None
) -> frozenset[str]:
    """Return the names, in lower case, that others use in the staging schema, and that no new table may have.

    Given the `columns` of the dataset, drop staging tables that do not fit them.

    dlt empties and drops staging tables by their names, so this raises ConfigError if a table of `ours` would be staged
    into a foreign one, or if the schema itself belongs to others. In a staging schema, dlt stores its own schema, in
    one transaction with the first tables if the destination supports that; but it records no loads there, which it does
    in every dataset.
    """
    whole = connection.client.capabilities.supports_ddl_transactions
    with connection.client.with_staging_dataset():
        found = connection.catalog()
        name = connection.client.dataset_name
        if VERSIONS in found.hidden and LOADS not in found.hidden:  # dlt stages there, as another role
            raise ConfigError(_not_permitted(connection, VERSIONS))
    there = found.tables | found.hidden
    if LOADS in there or (whole and there and VERSIONS not in there):
        raise ConfigError(_not_staged_there(name, min(there), "Rename that schema"))
    others = found.taken - {VERSIONS} - _staged_in(found)
    names = _as_compared(others, ignores_case=connection.traits.ignores_case)
    lost = sorted(names[table] for table in names.keys() & set(ours))
    if lost:
        raise ConfigError(_not_staged_there(name, lost[0], "Rename or drop it, or rename that schema"))
    if columns is not None:
        _drop_outdated(connection, found, columns)
    return frozenset(table.casefold() for table in others)


def _drop_outdated(connection: Connection, found: Catalog, columns: Mapping[str, Mapping[str, str]]) -> None:
    """Drop the staging tables with a column that the dataset has not, or not of that type.

    They outlive the dataset if it is dropped or replaced by a copy, and those of shards outlive a rebuild. Rows that
    pass through a column of an earlier type lose digits or zeros, and no later check would notice. dlt makes the tables
    anew.
    """
    with connection.client.with_staging_dataset():
        for table in sorted(_staged_in(found) - {VERSIONS, LOADS}):
            if not found.columns[table].items() <= columns.get(table, {}).items():
                connection.execute(f"DROP TABLE {connection.name(table)}")


def forget_staged(connection: Connection) -> None:
    """Make dlt look at the staging tables before it loads, because one may be missing and it would not check again."""
    with connection.client.with_staging_dataset():
        if VERSIONS in connection.names()[0]:
            connection.execute(f"DELETE FROM {connection.name(VERSIONS)} WHERE schema_name = %s", SOURCE)


def staged(connection: Connection, schema: str | None = None) -> frozenset[str]:
    """Return the tables in which dlt stages rows, without foreign ones; `schema` may differ from ours."""
    with connection.client.with_alternative_dataset_name(schema or connection.client.staging_dataset_name):
        return _staged_in(connection.catalog())


def _staged_in(catalog: Catalog) -> frozenset[str]:
    """Return the tables that dlt made: their keys cannot be null, because dlt declares that.

    The keys of a copy by CREATE TABLE AS, or of a view, can be null.
    """
    required = catalog.required.items()
    return frozenset(table for table, columns in required if columns >= set(PRIMARY_KEYS.get(table, keys_of(table))))


def _not_staged_there(schema: str, table: str, fix: str) -> str:
    return (
        f"Rows are staged in the schema {schema!r}, and it holds tables that were not staged there, such as {table!r}. "
        f"{fix}, choose another dataset, or have dlt stage elsewhere with staging_dataset_name_layout under "
        "[destination]; then run again. Nothing was changed."
    )


@dataclass(slots=True)
class _Stored:
    """Tables of ours in dlt's stored schema: their columns and templates, and the format of the warehouse.

    A pipeline of the same name stores the tables of others in that schema, too, which may have names and columns like
    ours, such as a copy. Ours have the hint of a template, unless an earlier version stored the schema.
    """

    columns: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    templates: dict[str, str] = field(default_factory=dict)
    format: int = 0

    @classmethod
    def newest(cls, connection: Connection) -> _Stored:
        found = cls()
        rows = connection.rows(
            f"SELECT {connection.column('schema')} AS content FROM {connection.name(VERSIONS)} "
            "WHERE schema_name = %s ORDER BY inserted_at DESC LIMIT 1",
            SOURCE,
        )
        found._add(row["content"] for row in rows)
        return found

    @classmethod
    def any_version(cls, connection: Connection, tables: Collection[str]) -> _Stored:
        """Return the union of all versions for these tables, because dlt's schema may have been recreated since."""
        found = cls()
        content = connection.column("schema")
        for some in batches(sorted(tables)):  # SQLite takes no more than 1,000 conditions
            rows = connection.rows(
                f"SELECT {content} AS content FROM {connection.name(VERSIONS)} WHERE schema_name = %s "
                f"AND ({content} NOT LIKE %s{f' OR {content} LIKE %s' * len(some)}) ORDER BY inserted_at",
                SOURCE,
                "{%",
                *(f'%"{table}"%' for table in some),
            )
            found._add((row["content"] for row in rows), only=some)
        return found

    def _add(self, contents: Iterable[str], only: Collection[str] | None = None) -> None:
        for content in contents:
            tables = _decoded(content).get("tables", {})
            hinted = {name for name, table in tables.items() if isinstance(table.get(TEMPLATE_HINT), str)}
            for name, table in tables.items():
                is_ours = not hinted or name in hinted or name in _SYSTEM
                if is_ours and (only is None or name in only):
                    made = table.get("columns", {}).items()
                    self.columns[name] |= {column for column, hints in made if hints.get("data_type")}
                    if name == LEDGER and isinstance(table.get(FORMAT_HINT), int):
                        self.format = max(self.format, table[FORMAT_HINT])
                    if isinstance(table.get(TEMPLATE_HINT), str):
                        self.templates[name] = table[TEMPLATE_HINT]


def _decoded(content: str) -> dict[str, Any]:
    """Return a stored schema; dlt compresses it if the destination's texts are short."""
    with suppress(ValueError, zlib.error):
        content = zlib.decompress(base64.b64decode(content, validate=True)).decode()
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _named_in(connection: Connection, tables: Sequence[str]) -> set[str]:
    """Return the tables named by rows of these tables."""
    if not tables:
        return set()
    rows = connection.rows(" UNION ".join(f"SELECT table_name FROM {connection.name(table)}" for table in tables))
    return {row["table_name"] for row in rows} - {None}


def _as_compared(names: Iterable[str], *, ignores_case: bool) -> dict[str, str]:
    """Return each name by the one of ours that it would be for the destination."""
    return {lower(name) if ignores_case else name: name for name in names}


def _identity(table: str) -> tuple[str, ...]:
    """Return the columns that identify the rows of the table."""
    if table == LOADS:
        return "load_id", "schema_name", "status", "inserted_at"
    if table == VERSIONS:
        return "schema_name", "inserted_at", "version_hash", "schema"
    if table == RUNS:  # without the others, no run knows how the earlier ones ended
        return "run_id", LOAD_ID, "status", "mode", "started_at", "finished_at", "error_kind"
    if table in SYSTEM_SCHEMAS:
        return tuple(column.name for column in SYSTEM_SCHEMAS[table] if not column.nullable)
    return (*keys_of(table), "_deleted_at", LOAD_ID)
