"""Create the views in a separate schema beside the dataset, replace those that changed, and drop them.

Each view has a comment that marks it as ours and has a digest of its text. So applying twice changes nothing, objects
of others in the schema stay, and a replaced view keeps its grants. A view that cannot be created or replaced does not
prevent the others; its comment says so until it is replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConnectorError, LockedError
from connector.reporting.views import readers
from connector.reporting.views.as_of import drop_function, functions_of_ours, lacks_functions, make_functions
from connector.reporting.views.generated import GENERATED, MISFITS, ready_views
from connector.reporting.views.layout import DIALECTS, VIEWS_SUFFIX, Layout, dialect_of, read_layout
from connector.reporting.views.readers import OURS, OUTDATED
from connector.reporting.views.statements import Ready, standing
from connector.warehouse import Connection, Warehouse
from connector.warehouse.adapters.dialect import literal, quoted
from connector.warehouse.connection import LOADS, OF_ANY_LOAD
from connector.warehouse.destination import no_warehouse
from connector.warehouse.failures import explain_failure
from connector.warehouse.lock import sole_writer
from connector.warehouse.ownership import inspect_dataset

_DIGEST = 12
_TOLD = 3  # reasons in one sentence


@dataclass(frozen=True, slots=True)
class Applied:
    """The names of views by the outcome for them.

    `left_out` are fixed views that cannot exist yet, `blocked` are views that stay outdated until somebody acts, each
    with the reason.
    """

    schema: str
    made: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    blocked: Mapping[str, str] = field(default_factory=dict)
    views: tuple[Ready, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema,
            "made": list(self.made),
            "made_anew": list(self.replaced),
            "kept": list(self.kept),
            "dropped": list(self.dropped),
            "left_out": dict(self.left_out),
            "blocked": dict(self.blocked),
        }


def apply(pipeline: Pipeline) -> Applied:
    """Bring all views up to date, in one transaction, except for those that `blocked` names.

    Raises LockedError while a run is under way.
    """
    warehouse, dialect = opened(pipeline)
    with sole_writer(pipeline), warehouse.connect() as connection:
        return _apply(connection, dialect)


def keep_current(pipeline: Pipeline, *, loaded: bool) -> str | None:
    """Bring the views up to date after a run; return the sentence that says why they are not, or None.

    They are also checked after a run that loaded nothing: views may be missing, blocked, or from an earlier version, or
    rows may have been loaded since by dlt alone or by a run that died.
    """
    if not Warehouse(pipeline).traits.views:
        return None
    try:
        if not (loaded or are_outdated(pipeline)):
            return None
        reasons = list(apply(pipeline).blocked.values())
    except LockedError:
        return None  # the run that has the lock creates them when it ends
    except Exception as error:
        reasons = [str(explain_failure(error, pipeline)).rstrip(".")]
    if not reasons:
        return None
    more = f" (and {len(reasons) - _TOLD} more)" if len(reasons) > _TOLD else ""
    why = "; ".join(reasons[:_TOLD]) + more
    return f"The views for analysts are not up to date: {why}. views = false turns them off."


def are_outdated(pipeline: Pipeline) -> bool:
    """Return whether a view was blocked, or the newest of those that every warehouse has is older than its rows."""
    warehouse = Warehouse(pipeline)
    if not warehouse.traits.views or not warehouse.has_file():
        return False
    with warehouse.connect() as connection:
        tables = connection.names()[0]
        if tables.isdisjoint(OF_ANY_LOAD):
            return False
        there = _relations(connection, warehouse.traits.dialect)
        if not there.get(MISFITS, "").endswith(_made_after(connection, tables)):
            return True
        if any(comment.startswith(OUTDATED) for comment in there.values()):
            return True
        if any(not there.get(name, OURS).startswith(OURS) for name in _fixed_names()):
            return True
        if not any("_history" in table for table in tables):
            return False
        layout = read_layout(connection, warehouse.traits.dialect, names_to_avoid(there))
        return lacks_functions(connection, layout)


def refresh(connection: Connection, dialect: str) -> None:
    """Replace the views, if there are any, after tables changed under them. The caller holds the lock."""
    if dialect in DIALECTS and any(comment.startswith(OURS) for comment in _relations(connection, dialect).values()):
        _apply(connection, dialect)


def drop(pipeline: Pipeline) -> Applied:
    """Drop every view and function that `apply` created; their schema stays, with the rights of its readers.

    Raises LockedError while a run is under way, and NewerFormatError for a warehouse of a newer format.
    """
    warehouse, dialect = opened(pipeline)
    with sole_writer(pipeline), warehouse.connect() as connection:
        inspect_dataset(connection)
        there = _relations(connection, dialect)
        dataset = connection.client.dataset_name
        layout = Layout(dataset, dialect)
        ours = sorted(name for name, comment in there.items() if comment.startswith(OURS))
        functions = functions_of_ours(connection, layout)
        with connection.client.begin_transaction():
            for name in ours:
                _drop(connection, layout, name)
            for name in functions:
                with _dependents_named(layout, name):
                    drop_function(connection, layout, name)
        return Applied(layout.views_schema, dropped=(*ours, *functions))


def opened(pipeline: Pipeline) -> tuple[Warehouse, str]:
    """Return the warehouse and its dialect. Raises ConfigError if there is none yet."""
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()
    dialect = dialect_of(warehouse)
    if not warehouse.exists():
        raise no_warehouse(pipeline)
    return warehouse, dialect


def planned(connection: Connection, dialect: str) -> tuple[Layout, list[Ready]]:
    """Return the views that `apply` would create now."""
    layout = read_layout(connection, dialect, names_to_avoid(_relations(connection, dialect)))
    return layout, ready_views(layout)[0]


def names_to_avoid(there: Mapping[str, str]) -> set[str]:
    """Return names that a template's view cannot have: those of other views and of foreign objects in the schema."""
    return _fixed_names() | {name for name, comment in there.items() if not comment.startswith(OURS)}


def _fixed_names() -> set[str]:
    return {each.name for each in standing() if each.kind == "view"} | GENERATED


def foreign_readers(connection: Connection, tables: Sequence[str]) -> list[str]:
    """Return the views in PostgreSQL, with their schemas, that read one of these tables and are not ours."""
    dataset = connection.client.dataset_name
    return sorted({reader.name for reader in readers.readers_of(connection, dataset, tables) if not reader.ours})


@contextmanager
def recreated_views(connection: Connection, dialect: str, table: str) -> Iterator[None]:
    """Drop our views on a table of PostgreSQL, and create them again for the changed table on exit.

    Enter it in a transaction, so that nobody sees them missing. PostgreSQL does not drop a table that a view reads.
    """
    if dialect != "postgres":
        yield
        return
    layout = Layout(connection.client.dataset_name, dialect)
    away = [reader.view for reader in readers.readers_of(connection, layout.dataset, [table]) if reader.ours]
    grants = {view: _grants(connection, layout, view) for view in away}
    if away:
        connection.client.execute_sql(f"DROP VIEW {', '.join(map(layout.view_name, away))}")
    yield
    if away:
        there = _relations(connection, dialect)
        _carry_out(connection, *_planned(connection, dialect, there), there, grants)


def _apply(connection: Connection, dialect: str) -> Applied:
    there = _relations(connection, dialect)
    layout, views, left_out = _planned(connection, dialect, there)
    with connection.client.begin_transaction():
        return _carry_out(connection, layout, views, left_out, there, {})


def _planned(
    connection: Connection, dialect: str, there: Mapping[str, str]
) -> tuple[Layout, Sequence[Ready], Mapping[str, str]]:
    layout = read_layout(connection, dialect, names_to_avoid(there))
    return layout, *ready_views(layout)


def _make_schema(connection: Connection, layout: Layout) -> None:
    """Create the schema if it does not exist; a user without the right to create one can still use an existing one."""
    there = "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s"
    if not connection.query(there, layout.views_schema).num_rows:
        connection.client.execute_sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(layout.views_schema)}")


def _carry_out(
    connection: Connection,
    layout: Layout,
    views: Sequence[Ready],
    left_out: Mapping[str, str],
    there: Mapping[str, str],
    grants: Mapping[str, Sequence[str]],
) -> Applied:
    """Bring the views up to date in the caller's transaction; `grants` are those of views dropped for now."""
    wanted = {view.name: _comment(view) for view in views}
    gone = sorted(n for n, comment in there.items() if comment.startswith(OURS) and n not in wanted)
    due = [view for view in views if not there.get(view.name, "").startswith(wanted[view.name])]
    theirs = {name for name, comment in there.items() if not comment.startswith(OURS)}
    names = [*(view.name for view in due), *gone]
    in_the_way = [name for name in names if name in there and name not in theirs]
    blocked = dict(readers.blocked(connection, layout, theirs.intersection(names), in_the_way))
    dropped = [name for name in gone if name not in blocked]
    changed = [view for view in due if view.name not in blocked]
    _make_schema(connection, layout)
    for name in blocked:
        if name not in theirs:
            _comment_on(connection, layout, name, OUTDATED + blocked[name])
    for name in dropped:
        _drop(connection, layout, name)
    for view in changed:
        name = layout.view_name(view.name)
        rights = grants.get(view.name, ())
        if view.name in there:
            rights = _grants(connection, layout, view.name)
            _drop(connection, layout, view.name)
        connection.client.execute_sql(f"CREATE VIEW {name} AS\n{view.sql}")
        _comment_on(connection, layout, view.name, wanted[view.name])
        for grant in rights:
            connection.client.execute_sql(grant)
    blocked |= make_functions(connection, layout)
    if MISFITS not in blocked:
        _comment_on(connection, layout, MISFITS, wanted[MISFITS] + _made_after(connection, connection.names()[0]))
    return Applied(
        layout.views_schema,
        tuple(view.name for view in changed if view.name not in there),
        tuple(view.name for view in changed if view.name in there),
        tuple(view.name for view in views if view not in due),
        tuple(dropped),
        left_out,
        blocked,
        tuple(views),
    )


def _comment_on(connection: Connection, layout: Layout, view: str, comment: str) -> None:
    connection.client.execute_sql(f"COMMENT ON VIEW {layout.view_name(view)} IS {literal(comment)}")


def _comment(view: Ready) -> str:
    digest = sha256(view.sql.encode()).hexdigest()[:_DIGEST]
    return f"{OURS}{digest}: {view.summary} Grain: {view.grain}"


def _made_after(connection: Connection, tables: Collection[str]) -> str:
    """Return the end of a comment that says which loads existed when the views were created."""
    if LOADS not in tables:
        return " Made before any load."
    sql = f"SELECT max(load_id) AS load_id FROM {connection.name(LOADS)} WHERE status = 0"
    return f" Made after load {connection.query(sql).to_pylist()[0]['load_id']}."


def _drop(connection: Connection, layout: Layout, view: str) -> None:
    with _dependents_named(layout, view):
        connection.client.execute_sql(f"DROP VIEW {layout.view_name(view)}")


@contextmanager
def _dependents_named(layout: Layout, name: str) -> Iterator[None]:
    """Raise ConnectorError that names the dependents if an object dropped within has any."""
    try:
        yield
    except Exception as error:
        if "depend" not in str(error):
            raise
        raise ConnectorError(
            f"{layout.views_schema}.{name} cannot be dropped, because something of yours depends on it; nothing was "
            f"changed. Drop that first: {' '.join(str(error).split())}"
        ) from None


def _relations(connection: Connection, dialect: str) -> dict[str, str]:
    """Return each name in the views' schema → its comment."""
    schema = connection.client.dataset_name + VIEWS_SUFFIX
    if dialect == "duckdb":
        sql = (
            "SELECT view_name AS name, comment FROM duckdb_views() WHERE database_name = current_database() AND "
            "schema_name = %s UNION ALL SELECT table_name, 'a table' FROM duckdb_tables() "
            "WHERE database_name = current_database() AND schema_name = %s"
        )
        rows = connection.query(sql, schema, schema).to_pylist()
    else:
        sql = (
            "SELECT c.relname AS name, "
            "CASE WHEN c.relkind = 'v' THEN obj_description(c.oid, 'pg_class') END AS comment "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind <> 'i'"
        )
        rows = connection.query(sql, schema).to_pylist()
    return {row["name"]: row["comment"] or "" for row in rows}


def _grants(connection: Connection, layout: Layout, view: str) -> list[str]:
    """Return the statements that restore the rights of others on a view; DuckDB has none."""
    if layout.dialect != "postgres":
        return []
    rows = connection.query(
        "SELECT grantee, privilege_type, is_grantable FROM information_schema.role_table_grants "
        "WHERE table_schema = %s AND table_name = %s AND grantee <> current_user ORDER BY 1, 2",
        layout.views_schema,
        view,
    ).to_pylist()
    return [
        f"GRANT {row['privilege_type']} ON {layout.view_name(view)} TO "
        f"{'PUBLIC' if row['grantee'] == 'PUBLIC' else quoted(row['grantee'])}"
        + (" WITH GRANT OPTION" if row["is_grantable"] == "YES" else "")
        for row in rows
    ]
