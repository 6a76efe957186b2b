"""Whether a page that was read of a spoilt reply is what the standard library reads of it, neighbours and all."""

from __future__ import annotations

import json
from typing import Any

from connector.models import ImportPage, RecordPage
from tests.service.fuzzing import Spoilt


def wrong(made: Spoilt, page: RecordPage | ImportPage) -> str | None:
    """What a page that was read of the reply has and should not, or lacks; None if nothing."""
    rows = _of_imports(page) if isinstance(page, ImportPage) else _of_records(page)
    if page.size != len(rows) + len(page.rejects):
        return f"{page.size} elements, of which {len(rows)} are read and {len(page.rejects)} are rejects"
    if any(_NOT_JSON in row for row in rows):
        return "something of a row is not JSON"
    elements = None if made.body is None else _elements(made.body)
    if made.body is None or elements is _TOO_DEEP:
        return None
    if elements is None:
        return None if page.rejects else "a body that is not JSON was read without a reject"
    if page.size != len(elements):
        return f"{page.size} elements were read of {len(elements)}"
    fields = ("slug", "row_count", "status", "metadata") if isinstance(page, ImportPage) else ("slug", "data")
    sent = [tuple(map(each.get, fields)) for each in elements if isinstance(each, dict)]
    if altered := [row[0] for row in rows if _TOO_DEEP not in row and row not in sent]:
        return f"{altered[0]} was not sent like that"
    slugs = {row[0] for row in rows}
    untouched = [row for row in made.rows if row in made.body]
    lost = [row for row in untouched if json.loads(row, strict=False)["slug"] not in slugs]
    return f"a row that nobody touched was not read: {lost[0]!r}" if lost else None


def _of_records(page: RecordPage) -> list[tuple[Any, ...]]:
    return [(each.slug, _parsed(each.data)) for each in page.records]


def _of_imports(page: ImportPage) -> list[tuple[Any, ...]]:
    return [
        (each.slug, str(each.row_count), each.status, _parsed(each.metadata_json or b"null")) for each in page.imports
    ]


def was_sent(made: Spoilt, slug: str, data: str) -> bool:
    """Whether the body has this record, as far as the standard library can tell."""
    elements = _TOO_DEEP if made.body is None else _elements(made.body)
    if not isinstance(elements, list):
        return True
    read = _parsed(data.encode())
    return read is _TOO_DEEP or any(
        (e.get("slug"), e.get("data")) == (slug, read) for e in elements if isinstance(e, dict)
    )


_NOT_JSON, _TOO_DEEP = object(), object()


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _parsed(text: bytes) -> Any:
    """By the standard library, numbers digit for digit; what is nested too deeply for it is not compared."""
    try:
        return json.loads(text.decode(), parse_int=str, parse_float=str, parse_constant=_refuse)
    except RecursionError:
        return _TOO_DEEP
    except ValueError:
        return _NOT_JSON


def _elements(body: bytes) -> Any:
    found = _parsed(body.removeprefix(b"\xef\xbb\xbf"))
    if found is _TOO_DEEP:
        return found
    if found is _NOT_JSON or not isinstance(found, dict):
        return None
    data = found.get("data")
    return data if isinstance(data, list) else None
