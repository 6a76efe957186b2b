"""What the typed tables say, read without the connector: `json` for the rows, `decimal` for the numbers, plain SQL.

`assert_rows` holds a warehouse against the service: every record's raw text byte for byte, and every leaf of it in
exactly the cells that the data dictionary names, with nothing in any other cell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from connector.sandbox import Service
from tests.types.conftest import Row, Warehouse

Path = tuple[str, ...]
SYSTEM = {"_record_slug", "_import_slug", "_sort", "_created_at", "_updated_at", "_deleted_at", "_dlt_load_id"}
LEVELS = 3


@dataclass(frozen=True)
class Literal:
    """A number as it was written."""

    text: str

    @property
    def whole(self) -> bool:
        return self.text.lstrip("-").isdigit()


def parse(text: str) -> Any:
    """JSON with numbers as literals; of two equal keys the last one counts."""
    return json.loads(text, parse_int=_whole, parse_float=Literal, parse_constant=_no_constant)


def _whole(text: str) -> Literal:
    return Literal(text)


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def leaves(members: Mapping[str, Any], prefix: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, value in members.items():
        path = (*prefix, key)
        if isinstance(value, dict) and value and len(path) < LEVELS:
            yield from leaves(value, path)
        else:
            yield path, value


def escaped(text: str, holds_nul: bool) -> str:
    """A string as the destination has to spell it if it cannot hold it."""
    unstorable = [c for c in text if "\ud800" <= c <= "\udfff" or (c == "\0" and not holds_nul)]
    if not unstorable:
        return text
    return "".join("\\\\" if c == "\\" else f"\\u{ord(c):04x}" if c in unstorable else c for c in text)


def escaped_throughout(value: Any, holds_nul: bool) -> Any:
    if isinstance(value, str):
        return escaped(value, holds_nul)
    if isinstance(value, list):
        return [escaped_throughout(each, holds_nul) for each in value]
    if isinstance(value, dict):
        return {escaped(k, holds_nul): escaped_throughout(v, holds_nul) for k, v in value.items()}
    return value


def says(cell: Any, declared: str, value: Any, warehouse: Warehouse) -> bool:
    """Whether a cell of this type gives back exactly this value."""
    value = escaped_throughout(value, warehouse.holds_nul)
    if declared == "json":
        return bool(parse(cell) == value) and _order(parse(cell)) == _order(value)
    if declared == "text":
        if isinstance(value, Literal):
            return bool(cell == value.text)
        return bool(cell == value) if isinstance(value, str) else bool(parse(cell) == value)
    if declared == "bool":
        return type(cell) is bool and cell is (value == "true" if isinstance(value, str) else value)
    text = value.text if isinstance(value, Literal) else value
    if not isinstance(text, str):
        return False
    if declared == "bigint":
        return type(cell) is int and str(cell) == text
    if declared == "double":
        if isinstance(value, Literal) and value.whole:
            return type(cell) is float and cell == int(text)
        same_sign = (math.copysign(1, cell) < 0) == text.startswith("-") or not (cell or warehouse.signs_zero)
        return type(cell) is float and Decimal(repr(cell)) == Decimal(text) and same_sign
    if declared.startswith("decimal"):
        return type(cell) is Decimal and cell == Decimal(text)
    if declared == "date":
        return type(cell) is date and cell.isoformat() == text
    assert declared == "timestamp"
    moment = datetime.fromisoformat(text.replace(",", "."))
    return bool(cell == (moment if moment.tzinfo else moment.replace(tzinfo=UTC)))


def _order(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _order(each)) for key, each in value.items()]
    return [_order(each) for each in value] if isinstance(value, list) else None


def dictionary(warehouse: Warehouse, table: str) -> dict[Path, Row]:
    rows = warehouse.rows("SELECT * FROM sync_fields WHERE table_name = %s", table)
    return {tuple(json.loads(row["keys"])): row for row in rows}


def service_rows(service: Service) -> dict[str, tuple[str, str, str | None]]:
    """Record slug → (import slug, text of `data`, template slug), for texts without blanks around `data`."""
    found = {}
    for import_ in service.imports():
        template = import_.get("template")
        slugs, texts = service.record_slugs(import_["slug"]), service.record_texts(import_["slug"])
        for slug, text in zip(slugs, texts, strict=True):
            found[slug] = (import_["slug"], _data(text), template["slug"] if template else None)
    return found


def _data(text: str) -> str:
    start = text.index('"data":') + len('"data":')
    start += len(text[start:]) - len(text[start:].lstrip())
    level, at, quoted = 0, start, False
    while True:
        char = text[at]
        if quoted:
            at += char == "\\"
            quoted = char != '"'
        elif char == '"':
            quoted = True
        else:
            level += {"{": 1, "}": -1, "[": 1, "]": -1}.get(char, 0)
        at += 1
        if not level:
            return text[start:at]


def raw_rows(warehouse: Warehouse) -> dict[str, tuple[str, str, str | None]]:
    rows = warehouse.tuples("SELECT slug, import_slug, data, template_slug FROM records WHERE _deleted_at IS NULL")
    assert len({slug for slug, *_ in rows}) == len(rows)
    return {slug: (import_slug, data, template) for slug, import_slug, data, template in rows}


def typed_rows(warehouse: Warehouse) -> dict[str, tuple[str, Row]]:
    """Record slug → (its table, its row)."""
    found: dict[str, tuple[str, Row]] = {}
    for table in warehouse.tables():
        for row in warehouse.rows(f'SELECT * FROM "{table}" WHERE _deleted_at IS NULL'):
            assert row["_record_slug"] not in found, "a record is in two typed tables"
            found[row["_record_slug"]] = table, row
    return found


def assert_rows(
    warehouse: Warehouse, service: Service, *, raw: bool = True, typed: bool = True, hinted: bool = False
) -> None:
    """`hinted`: a hint may have asked that numbers and booleans become text."""
    expected = service_rows(service)
    assert not warehouse.pending()
    with warehouse.held():
        if raw:
            assert raw_rows(warehouse) == expected
        if typed:
            _assert_typed(warehouse, expected, hinted)


def _assert_typed(warehouse: Warehouse, expected: Mapping[str, tuple[str, str, str | None]], hinted: bool) -> None:
    there = typed_rows(warehouse)
    assert set(there) == set(expected)
    fields = {table: dictionary(warehouse, table) for table in {table for table, _ in there.values()}}
    parsed = {slug: parse(text) for slug, (_, text, _) in expected.items()}
    for slug, (table, row) in there.items():
        assert row["_import_slug"] == expected[slug][0]
        assert_cells(row, parsed[slug], fields[table], warehouse)
    for table, known in fields.items():
        within = [slug for slug, (where, _) in there.items() if where == table]
        rows = [there[slug][1] for slug in within]
        assert_dictionary([parsed[slug] for slug in within], rows, known, warehouse.columns(table), hinted=hinted)


def assert_cells(row: Row, data: Any, fields: Mapping[Path, Row], warehouse: Warehouse) -> None:
    filled = {name for name, cell in row.items() if cell is not None} - SYSTEM
    for path, value in leaves(data):
        assert path in fields, f"{path} is not in sync_fields"
        known = fields[path]
        name, declared = known["column_name"], known["data_type"]
        cells = {name: declared, f"{name}__v_text": "text", f"{name}__v_double": "double"}
        holding = [each for each in cells if row.get(each) is not None]
        if value is None or (value == "" and declared not in ("text", "json")):
            assert not holding, f"{path}: nothing is expected in {holding}"
            continue
        assert len(holding) == 1, f"{path} = {str(value)[:99]!r} ({declared}) is in {holding}"
        cell = row[holding[0]]
        fits = declared != "text" or isinstance(value, list | dict) == (holding[0] != name)
        assert fits, f"{path} = {value!r:.200} is in {holding}"
        assert says(cell, cells[holding[0]], value, warehouse), f"{path} = {value!r:.200} is {cell!r:.200} in {holding}"
        filled.discard(holding[0])
    assert not filled, f"cells that no leaf accounts for: {filled}"


def assert_dictionary(
    rows: list[Any], live: list[Row], fields: Mapping[Path, Row], columns: list[str], *, hinted: bool = False
) -> None:
    """Counts, types and columns of sync_fields against the service's rows and the live typed ones."""
    physical = set(columns) - SYSTEM
    values: dict[Path, int] = {}
    kept: dict[Path, int] = {}  # scalars that a text column took
    for row in rows:
        for path, value in leaves(row):
            blank = value == "" and fields[path]["data_type"] not in ("text", "json")
            values[path] = values.get(path, 0) + (value is not None and not blank)
            if fields[path]["data_type"] == "text" and isinstance(value, bool | Literal) and not hinted:
                kept[path] = kept.get(path, 0) + 1
    named: set[str] = set()
    for path, known in fields.items():
        name = known["column_name"]
        variants = {f"{name}__v_text", f"{name}__v_double"}
        conflicts = sum(row.get(each) is not None for row in live for each in variants)
        conflicts += kept.get(path, 0)
        counted = known["value_count"], known["null_count"], known["conflict_count"]
        expected = values.get(path, 0), len(rows) - values.get(path, 0), conflicts
        assert counted == expected, f"{path}: sync_fields says {counted}, the rows {expected}"
        assert (name in physical) == (known["data_type"] is not None)
        assert f"{name}__v_text" not in physical or known["has_text"]
        named |= {name} | variants
    assert physical <= named, f"columns that sync_fields does not know: {physical - named}"
    assert len({known["column_name"] for known in fields.values()}) == len(fields)
