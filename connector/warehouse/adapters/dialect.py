"""Pieces of SQL that families of destinations write differently, as text: for who puts statements together."""

from __future__ import annotations

from collections.abc import Mapping

_TEXTS = frozenset({"text", "varchar", "character varying", "longtext"})


class Sql:
    """Standard SQL, as DuckDB and PostgreSQL read it."""

    tries_casts = False  # whether TRY_CAST gives null for what cannot be cast

    def same(self, one: str, other: str) -> str:
        """Return a condition: both are equal, or both null."""
        return f"{one} IS NOT DISTINCT FROM {other}"

    def differs(self, one: str, other: str) -> str:
        """Return the opposite of `same`."""
        return f"{one} IS DISTINCT FROM {other}"

    def joined(self, *texts: str) -> str:
        """Return one text of several; null where one is."""
        return " || ".join(texts)

    def ends_with(self, text: str, end: str) -> str:
        """Return a condition: the text has that end."""
        return f"RIGHT({text}, LENGTH({end})) = {end}"

    def delete(self, table: str, alias: str, where: str) -> str:
        """Return a statement that deletes rows of a table, which goes by `alias` in `where`."""
        return f"DELETE FROM {table} AS {alias} WHERE {where}"

    def update_from(self, table: str, alias: str, values: Mapping[str, str], source: str, where: str) -> str:
        """Return a statement that gives columns of a table new values, from the rows of `source` that `where` pairs."""
        new = ", ".join(f"{column} = {value}" for column, value in values.items())
        return f"UPDATE {table} AS {alias} SET {new} FROM {source} WHERE {where}"

    def restored(self, value: str, was: str, kind: str) -> tuple[str, str] | None:
        """Return a value of one declared type as one of another, and a condition: it is unaltered there.

        None where no value of the one is the same value in the other, or it cannot be told.
        """
        if was == kind:
            return value, "TRUE"
        if not _may_hold(was.lower(), kind.lower()):
            return None
        cast = f"{'TRY_CAST' if self.tries_casts else 'CAST'}({value} AS {kind})"
        return cast, f"CAST({cast} AS {was}) = {value}"


class DuckSql(Sql):
    """A cast may be tried."""

    tries_casts = True


class SqliteSql(Sql):
    """A column takes any value there is, and a cast never fails."""

    def same(self, one: str, other: str) -> str:
        return f"{one} IS {other}"

    def differs(self, one: str, other: str) -> str:
        return f"{one} IS NOT {other}"

    def ends_with(self, text: str, end: str) -> str:
        return f"SUBSTR({text}, -LENGTH({end})) = {end}"

    def restored(self, value: str, was: str, kind: str) -> tuple[str, str] | None:
        return super().restored(value, was, kind) if was == kind else _within_doubles(value, was, kind, kind, was)


class MySqlSql(Sql):
    """A cast names other types than a column has; a table that rows are deleted from is named by its alias."""

    def same(self, one: str, other: str) -> str:
        return f"{one} <=> {other}"

    def differs(self, one: str, other: str) -> str:
        return f"NOT ({one} <=> {other})"

    def joined(self, *texts: str) -> str:
        return f"CONCAT({', '.join(texts)})"

    def ends_with(self, text: str, end: str) -> str:
        return f"RIGHT({text}, CHAR_LENGTH({end})) = {end}"

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
_EXACT = frozenset({"bigint", "double"} | _TEXTS)  # what a cast of SQLite's or MySQL's gives that is no other type


def _within_doubles(value: str, was: str, kind: str, to: str, back: str) -> tuple[str, str] | None:
    """`Sql.restored` where a whole number beyond a double's may come back from one as it was."""
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
    """Return whether a value of one type that comes back from the other unaltered is the same value there."""
    if was == kind or was in _TEXTS:
        return True
    numbers = kind.startswith(("double", "numeric", "decimal"))
    return (was in ("bigint", "boolean") and kind in _TEXTS) or (was == "bigint" and numbers)
