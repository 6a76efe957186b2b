"""Define how a service numbers its pages, as its listing showed, for requests of pages of records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageConvention:
    """`first` is the number of the first page, 1 (interface, Pages) or 0; readers always count pages from 1."""

    first: int = 1

    def number(self, page: int) -> int:
        """Return the number with which to request the `page`th page, counted from 1."""
        return page - 1 + self.first


FROM_ONE, FROM_ZERO = PageConvention(), PageConvention(first=0)
