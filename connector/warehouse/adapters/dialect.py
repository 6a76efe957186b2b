"""Generate the pieces of SQL that differ between families of destinations, as text for composing statements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_AT_ONCE = 50
_TEXTS = frozenset({"text", "varchar", "character varying", "longtext"})


def quoted(name: str) -> str:
    """Return a name as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str | None) -> str:
    """Return a text as a literal in SQL."""
    return "CAST(NULL AS TEXT)" if text is None else "'" + text.replace("'", "''") + "'"


def exactly(path: str) -> str:
    """Return the pattern for DuckDB that only this path matches."""
    return re.sub(r"([*?[])", r"[\1]", path)


def all_of(conditions: Iterable[str]) -> str:
    """Return a condition: all of these hold; there may be one for each column of a wide table."""
    return _combined(conditions, " AND ")


def any_of(conditions: Iterable[str]) -> str:
    """Return a condition: one of these holds; there may be one for each column of a wide table."""
    return f"({_combined(conditions, ' OR ')})"


def _combined(conditions: Iterable[str], operator: str) -> str:
    """Combine groups of groups, because each condition in a row is one level deeper for SQLite, which takes 1,000."""
    found = list(conditions)
    while len(found) > _AT_ONCE:
        groups = (found[start : start + _AT_ONCE] for start in range(0, len(found), _AT_ONCE))
        found = [f"({operator.join(group)})" for group in groups]
    return operator.join(found)


class Sql:
    """Standard SQL, as DuckDB and PostgreSQL accept it."""

    tries_casts = False  # whether TRY_CAST gives null for what cannot be cast
    ordered_join = "JOIN"  # reads the left side first, if the planner does not choose that by itself

    def same(self, one: str, other: str) -> str:
        """Return a condition: both are equal, or both are null."""
        return f"{one} IS NOT DISTINCT FROM {other}"

    def differs(self, one: str, other: str) -> str:
        """Return the opposite of `same`."""
        return f"{one} IS DISTINCT FROM {other}"

    def joined(self, *texts: str) -> str:
        """Return an expression that concatenates the texts; null if one of them is."""
        return " || ".join(texts)

    def rows_with_keys(self, table: str, alias: str, key: str, keys: str) -> str:
        """Return a FROM clause: the rows of a table whose `key` is among the column `slug` that the SELECT `keys` has.

        The keys are listed first, and each is looked up in the table.
        """
        listed = f"(SELECT DISTINCT slug FROM ({keys}) AS importer_listed) AS importer_keys"
        return f"{listed} {self.ordered_join} {table} AS {alias} ON {alias}.{key} = importer_keys.slug"

    def equals_one_of(self, column: str, values: str) -> str:
        """Return a condition: the column equals one of the few values that a SELECT returns."""
        return f"{column} IN ({values})"

    def delete(self, table: str, alias: str, where: str) -> str:
        """Return a statement that deletes rows of a table, which is called `alias` in `where`."""
        return f"DELETE FROM {table} AS {alias} WHERE {where}"

    def update_from(self, table: str, alias: str, values: Mapping[str, str], source: str, where: str) -> str:
        """Return a statement that sets columns of a table from the rows of `source` that `where` matches."""
        new = ", ".join(f"{column} = {value}" for column, value in values.items())
        return f"UPDATE {table} AS {alias} SET {new} FROM {source} WHERE {where}"

    def restored(self, value: str, was: str, kind: str) -> tuple[str, str] | None:
        """Return a value of declared type `was` cast to type `kind`, and a condition: the cast does not alter it.

        Return None if no value of the one type equals a value of the other, or that cannot be decided.
        """
        if was == kind:
            return value, "TRUE"
        if not _may_hold(was.lower(), kind.lower()):
            return None
        cast = f"{'TRY_CAST' if self.tries_casts else 'CAST'}({value} AS {kind})"
        return cast, f"CAST({cast} AS {was}) = {value}"


class PostgresSql(Sql):
    """A dialect whose planner assumes that a SELECT without statistics returns many values, and an array few."""

    def equals_one_of(self, column: str, values: str) -> str:
        return f"{column} = ANY(ARRAY(SELECT DISTINCT * FROM ({values}) AS importer_values))"


class DuckSql(Sql):
    """A dialect with TRY_CAST."""

    tries_casts = True


class SqliteSql(Sql):
    """A dialect in which a column takes any value, and a cast never fails."""

    ordered_join = "CROSS JOIN"

    def same(self, one: str, other: str) -> str:
        return f"{one} IS {other}"

    def differs(self, one: str, other: str) -> str:
        return f"{one} IS NOT {other}"

    def restored(self, value: str, was: str, kind: str) -> tuple[str, str] | None:
        return super().restored(value, was, kind) if was == kind else _within_doubles(value, was, kind, kind, was)


class MySqlSql(Sql):
    """A dialect whose casts use other names of types than columns, and whose DELETE names the table by its alias."""

    ordered_join = "STRAIGHT_JOIN"

    def same(self, one: str, other: str) -> str:
        return f"{one} <=> {other}"

    def differs(self, one: str, other: str) -> str:
        return f"NOT ({one} <=> {other})"

    def joined(self, *texts: str) -> str:
        return f"CONCAT({', '.join(texts)})"

    def delete(self, table: str, alias: str, where: str) -> str:
        return f"DELETE {alias} FROM {table} AS {alias} WHERE {where}"

    def update_from(self, table: str, alias: str, values: Mapping[str, str], source: str, where: str) -> str:
        new = ", ".join(f"{alias}.{column} = {value}" for column, value in values.items())
        return f"UPDATE {table} AS {alias}, {source} SET {new} WHERE {where}"

    def restored(self, value: str, was: str, kind: str) -> tuple[str, str] | None:
        if was == kind:
            return super().restored(value, was, kind)
        return _within_doubles(value, was, kind, _CASTS.get(_bare(kind), kind), _CASTS.get(_bare(was), was))


_CASTS = {"bigint": "SIGNED", "longtext": "CHAR"}
_EXACT = frozenset({"bigint", "double"} | _TEXTS)  # types that a cast in SQLite or MySQL returns as such


def _within_doubles(value: str, was: str, kind: str, to: str, back: str) -> tuple[str, str] | None:
    """Return `Sql.restored` for types in which a whole number beyond a double's range may survive a round trip."""
    if not {_bare(was), _bare(kind)} <= _EXACT or not _may_hold(_bare(was), _bare(kind)):
        return None
    held = f"CAST(CAST({value} AS {to}) AS {back}) = {value}"
    if (_bare(was), _bare(kind)) == ("bigint", "double"):
        held += f" AND {value} BETWEEN -{2**53} AND {2**53}"
    return f"CAST({value} AS {to})", held


def _bare(kind: str) -> str:
    """Return a type without its length."""
    return kind.lower().partition("(")[0]


def _may_hold(was: str, kind: str) -> bool:
    """Return whether a value of type `was` that survives a round trip through `kind` is the same value there."""
    if was == kind:
        return True
    if was in _TEXTS:  # a rebuild reads a text as the hint of its field says, and a text without a hint as a misfit
        return kind in _TEXTS
    numbers = kind.startswith(("double", "numeric", "decimal"))
    return (was in ("bigint", "boolean") and kind in _TEXTS) or (was == "bigint" and numbers)
