"""Profile the values of a field: smallest and largest, a small histogram, and repeated texts.

A text that occurs in only one record is not shown, so that names and addresses do not leave the warehouse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from connector.reporting.html.facts import ValueProfile
from connector.transform.schema import Kind, parse_type
from connector.warehouse import Connection

ROWS_READ = 100_000  # of a table
FIELDS_READ = 400
BARS = 12
TOP = 3
LARGEST = 1e300
REPEATS, SHARE = 5, 0.02  # a text is shown if it has at least so many rows and such a share
FREQUENT = 0.05  # and only if the most frequent one has this share: other fields are names, addresses, identifiers
LONGEST = 24
_MEASURED = (Kind.BIGINT, Kind.DOUBLE, Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP)
_COUNTED = (Kind.TEXT, Kind.BOOL)

Ask = Callable[[str], list[dict[str, Any]]]


def profile(connection: Connection, ask: Ask, fields: Sequence[tuple[str, str, str]]) -> Iterator[ValueProfile | None]:
    """Yield a profile for each (table, column, type), None if there is nothing to show."""
    for n, (table, column, data_type) in enumerate(fields):
        kind = parse_type(data_type).kind
        live = f"(SELECT {connection.column(column)} AS c FROM {connection.name(table)} "
        live += f"WHERE {connection.column('_deleted_at')} IS NULL LIMIT {ROWS_READ}) AS t"
        if n >= FIELDS_READ:
            yield None
        elif kind in _MEASURED:
            yield _measured(ask, live, kind)
        elif kind in _COUNTED:
            yield _counted(ask, live)
        else:
            yield None


def _measured(ask: Ask, live: str, kind: Kind) -> ValueProfile | None:
    [ends] = ask(f"SELECT min(c) AS least, max(c) AS most FROM {live}")
    if ends["least"] is None:
        return None
    value = (
        "CAST(EXTRACT(EPOCH FROM c) AS DOUBLE PRECISION)"
        if kind in (Kind.DATE, Kind.TIMESTAMP)
        else "CAST(c AS DOUBLE PRECISION)"
    )
    least, most = _shown(ends["least"]), _shown(ends["most"])
    if not _can_be_divided(ends["least"], ends["most"]):
        return ValueProfile(least, most)
    numbers = f"(SELECT {value} AS v FROM {live} WHERE c IS NOT NULL) AS n"
    bounds = f"(SELECT min(v) AS lo, max(v) AS hi FROM {numbers}) AS b"
    place = f"LEAST(CAST(floor((v - lo) / (hi - lo) * {BARS}) AS INTEGER), {BARS - 1})"
    found = ask(f"SELECT {place} AS place, count(*) AS n FROM {numbers}, {bounds} WHERE hi > lo GROUP BY 1 ORDER BY 1")
    counts = {row["place"]: int(row["n"]) for row in found}
    return ValueProfile(least, most, tuple(counts.get(n, 0) for n in range(BARS)))


def _can_be_divided(least: Any, most: Any) -> bool:
    """Return whether there is a range that can be divided in doubles."""
    if least == most or hasattr(least, "isoformat"):
        return bool(least != most)
    return bool(abs(float(least)) < LARGEST and abs(float(most)) < LARGEST and float(most) - float(least) > 1 / LARGEST)


def _counted(ask: Ask, live: str) -> ValueProfile | None:
    found = ask(
        f"SELECT CAST(c AS VARCHAR) AS value, count(*) AS n, sum(count(*)) OVER () AS total FROM {live} "
        f"WHERE c IS NOT NULL GROUP BY c ORDER BY 2 DESC, 1 LIMIT {TOP}"
    )
    shares = [(row["value"], int(row["n"]), int(row["n"]) / int(row["total"])) for row in found if row["value"]]
    if not shares or shares[0][2] < FREQUENT:
        return None
    top = tuple((_shown(value), share) for value, n, share in shares if n >= REPEATS and share >= SHARE)
    return ValueProfile(top=top) if top else None


def _shown(value: Any) -> str:
    if isinstance(value, float):
        text = f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    elif hasattr(value, "isoformat"):
        text = value.isoformat(sep=" ", timespec="minutes")[:16] if hasattr(value, "hour") else value.isoformat()
    else:
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
