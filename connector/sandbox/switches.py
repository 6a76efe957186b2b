"""Define a switch for each behaviour that the interface leaves open: the real service may do either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Order = Literal["insertion", "created_asc", "created_desc", "updated_asc", "updated_desc", "arbitrary", "random"]
OverMax = Literal["clamp", "reject"]
Zone = Literal["z", "offset", "naive", "mixed"]
Fraction = Literal[0, 3, 6, "mixed"]
Presence = Literal["object", "absent", "null"]
StatusFilter = Literal["exact", "ignored", "matches_nothing"]
PageZero = Literal["reject", "first", "counts"]
PastTheEnd = Literal[200, 400, 404, 410, 416, 422]
NoRecords = Literal[200, 404]

DOCUMENTED_MAX_PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class Switches:
    """One reading of the interface. Each switch is independent of the others.

    `import_order`, `record_order`: "arbitrary" is stable until the data changes, as a database's heap is;
    "random" differs at every request. `max_per_page` below the documented 100 is applied silently;
    `over_max` says what happens above 100. `time_zone` "mixed" writes the same instant with different
    offsets from value to value, never without one. `short_pages` and `empty_middle_page` are the shares
    of pages that have fewer rows, or none, although more follow: no row is lost, pages just have uneven
    lengths (at most `max_empty_run` empty ones in a row, never the first). They model behaviour that no
    interface documents. `past_the_end` is the status of pages behind the last one, except for the first page;
    `no_records` is that of the records of an import without any. `extra_fields` adds undocumented fields to imports
    and records.
    """

    import_order: Order = "insertion"
    record_order: Order = "insertion"
    default_per_page: int = 25
    max_per_page: int = DOCUMENTED_MAX_PER_PAGE
    over_max: OverMax = "clamp"
    page_zero: PageZero = "reject"
    time_zone: Zone = "z"
    time_fraction: Fraction = 6
    metadata: Presence = "object"
    records_metadata: Presence = "object"
    template: Presence = "object"
    extra_fields: bool = False
    edit_moves_import: bool = True
    status_filter: StatusFilter = "exact"
    gzip: bool = False
    short_pages: float = 0.0
    empty_middle_page: float = 0.0
    max_empty_run: int = 1
    past_the_end: PastTheEnd = 200
    no_records: NoRecords = 200

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name} must be one of {get_args(choices)}, not {getattr(self, name)!r}")
        for name in ("default_per_page", "max_per_page"):
            if not 1 <= getattr(self, name) <= DOCUMENTED_MAX_PER_PAGE:
                raise ValueError(f"{name} must be from 1 to {DOCUMENTED_MAX_PER_PAGE}")
        if not (self.short_pages >= 0 and 0 <= self.empty_middle_page <= 1 - self.short_pages):
            raise ValueError("short_pages and empty_middle_page are shares, together at most 1")


_CHOICES = {
    "import_order": Order,
    "record_order": Order,
    "over_max": OverMax,
    "page_zero": PageZero,
    "time_zone": Zone,
    "time_fraction": Fraction,
    "metadata": Presence,
    "records_metadata": Presence,
    "template": Presence,
    "status_filter": StatusFilter,
    "past_the_end": PastTheEnd,
    "no_records": NoRecords,
}
