"""Say how a service numbers its pages: what its listing showed, for whoever requests pages of records after it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageConvention:
    """`first` is the number of the first page, 1 (interface, Pages) or 0; readers count pages from 1 whatever it is."""

    first: int = 1

    def number(self, page: int) -> int:
        """Return the number by which to request the page that is the `page`th, counted from 1."""
        return page - 1 + self.first


FROM_ONE = PageConvention()
