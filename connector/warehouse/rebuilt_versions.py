"""Prepare the versions of a typed table for its rebuild.

Where the destination declares JSON and text alike, a rebuild that would exchange them is refused: nothing would say
which of the two an earlier value is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from connector.errors import ConfigError
from connector.warehouse.connection import Connection
from connector.warehouse.history_tables import (
    VALID_TO,
    R,
    V,
    Versioned,
    align,
    histories,
    is_aligned,
    is_recorded,
    retype,
    same_content,
)
from connector.warehouse.noted_changes import note_changes
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.tables import LOAD_ID, RECORDS

_TYPED = "importer$typed"  # one more alias, as R and V are


@dataclass(frozen=True, slots=True)
class PreparedVersions:
    """The versions of a table that is about to be replaced, as those of its replacement.

    The open versions of recorded imports are to be refreshed from it, and those of the records `unchanged`: they equal
    their version although their import was loaded since it was recorded, by a run that died or while history was off.
    Earlier values may go back into the columns `retyped`, once the table is replaced. `added` are the columns that the
    table did not have.
    """

    versions: Versioned
    unchanged: pa.ChunkedArray[Any]
    retyped: Sequence[str]
    added: Sequence[str]


def check_rebuild(
    connection: Connection, table: str, template: str, types: Mapping[str, tuple[str | None, str | None]]
) -> None:
    """Raise ConfigError if the versions of a table could not be compared with the rebuilt rows of its template.

    That is so if they could not tell the earlier values from those of the new types, or if the table lacks what the raw
    rows have. `types` are the type of each column before and after.
    """
    each = histories(inspect_dataset(connection)).get(table)
    if each is None:
        return
    swapped = sorted(c for c, kinds in types.items() if set(kinds) == {"json", "text"})
    if swapped and not connection.traits.keeps_json:
        hints = ", ".join(f'{column} = "{types[column][0]}"' for column in swapped)
        raise ConfigError(
            f"A rebuild would exchange JSON and text in {table}, whose versions are kept, and this destination cannot "
            f"tell the two apart in {each.history}. Keep the type with a hint ({hints}), or rename {each.history}, and "
            f"the next run begins another one; {table} was not changed."
        )
    if lacking := _only_in_records(connection, each, template):
        raise ConfigError(
            f"{lacking} records of {table} are in {RECORDS} as another load brought them, because a run died while it "
            "loaded them, or typed was false when they were read; a rebuild could not tell which of them have changed "
            f"since their last version. Run `importer-sync run` first; {table} was not changed."
        )


def _only_in_records(connection: Connection, each: Versioned, template: str) -> int:
    """Return the number of records of a template with an open version whose raw row has no typed row of its load."""
    name, key, load = connection.name, connection.column(each.key), connection.column(LOAD_ID)
    [found] = connection.rows(
        f"SELECT count(*) AS n FROM {name(each.history)} AS {V} JOIN {name(RECORDS)} AS {R} ON {R}.slug = {V}.{key} "
        f"LEFT JOIN {name(each.table)} AS {_TYPED} ON {_TYPED}.{key} = {V}.{key} AND {_TYPED}.{load} = {R}.{load} "
        f"WHERE {_TYPED}.{key} IS NULL AND {V}.{connection.column(VALID_TO)} IS NULL "
        f"AND {R}.{connection.column('_deleted_at')} IS NULL AND COALESCE({R}.template_slug, '') = %s",
        template,
    )
    return int(found["n"])


def prepare_for_rebuild(connection: Connection, table: str, replacement: str) -> PreparedVersions | None:
    """Give the versions of a table the types of the table that is about to replace it; None if there are none.

    Their values are only set aside, so that if the rebuild fails, the next run that records versions finds all of them
    and restores the earlier types (`align`, `is_aligned`).
    """
    dataset = inspect_dataset(connection)
    each = histories(dataset).get(table)
    if each is None:
        return None
    if not is_aligned(dataset, each):  # a rebuild died
        align(connection, each, dataset.columns[each.history])
        dataset = inspect_dataset(connection)
    note_changes(connection, each)
    name, column = connection.name, connection.column
    unchanged = connection.query(
        f"SELECT {R}.{column(each.key)} AS slug FROM {name(each.history)} AS {V} JOIN {name(table)} AS {R} "
        f"ON {same_content(connection, each)} "
        f"WHERE {V}.{column(VALID_TO)} IS NULL AND {R}.{column('_deleted_at')} IS NULL "
        f"AND NOT {is_recorded(connection, each)}"
    )["slug"]
    versions = replace(each, table=replacement, columns=tuple(connection.declared(replacement)))
    retyped, _ = retype(connection, versions)
    return PreparedVersions(versions, unchanged, retyped, [c for c in versions.content if c not in each.columns])
