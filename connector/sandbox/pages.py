"""Decide which rows a page holds, and validate the query parameters of a list."""

from __future__ import annotations

import re
from dataclasses import dataclass

from connector.sandbox.messages import Request, Response, error_response
from connector.sandbox.seeding import share
from connector.sandbox.switches import DOCUMENTED_MAX_PER_PAGE, Switches

WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,1000}")


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a list that one page shows."""

    start: int
    size: int


def asked_window(request: Request, switches: Switches, seed: int) -> Window | Response:
    """Return the rows that a request selects, or the 422 it gets instead."""
    page = _whole_number(request, "page", 1)
    if switches.page_zero == "counts" and page is not None:
        page += 1
    if page == 0 and switches.page_zero == "first":
        page = 1
    if page is None or page < 1:
        return _invalid("page", "a whole number from 1")
    per_page = _whole_number(request, "per_page", switches.default_per_page)
    if per_page is None or per_page < 1:
        return _invalid("per_page", "a whole number from 1")
    if per_page > DOCUMENTED_MAX_PER_PAGE and switches.over_max == "reject":
        return _invalid("per_page", f"at most {DOCUMENTED_MAX_PER_PAGE}")
    per_page = min(per_page, switches.max_per_page)
    if switches.short_pages or switches.empty_middle_page:
        return _uneven(request.path, page, per_page, switches, seed)
    return Window((page - 1) * per_page, per_page)


def past_the_end(window: Window, rows: int, switches: Switches) -> Response | None:
    """Return the refusal of a page behind the last one of a list of `rows`, if the service refuses such pages."""
    if switches.past_the_end == 200 or not 0 < window.start >= rows:
        return None
    return error_response(switches.past_the_end, "no_such_page", "There is no such page.")


def _uneven(path: str, page: int, per_page: int, switches: Switches, seed: int) -> Window:
    """Return a page if pages have uneven lengths: the lengths are drawn once per list, and no row is lost."""
    start = empty_run = size = 0
    for place in range(1, page + 1):
        start += size
        drawn = share(seed, path, per_page, place)
        size = per_page
        if drawn < switches.empty_middle_page:
            if place > 1 and empty_run < switches.max_empty_run:
                size = 0
        elif drawn < switches.empty_middle_page + switches.short_pages and per_page > 1:
            size = 1 + int(share("size", seed, path, per_page, place) * (per_page - 1))
        empty_run = 0 if size else empty_run + 1
    return Window(start, size)


def _whole_number(request: Request, name: str, default: int) -> int | None:
    text = request.query.get(name)
    if text is None:
        return default
    return int(text) if WHOLE_NUMBER.fullmatch(text) else None


def _invalid(name: str, wanted: str) -> Response:
    return error_response(422, "invalid_parameter", f"{name} must be {wanted}.")
