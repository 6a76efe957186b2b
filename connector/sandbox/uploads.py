"""Add uploads like those of a company's customers: over the last months, by named people, from named files.

The same seed gives the same rows and slugs; only the times depend on the day of the start.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

from connector.sandbox.service import Service

MONTHS = timedelta(days=90)
AGO = timedelta(minutes=10)  # age of edits, because an edit read within its own second is read again by the next run
LAG = timedelta(days=3, hours=5)  # between templates, so that they are not all uploaded on the same day
PEOPLE = ("maria.silva", "jonas.weber", "aiko.tanaka", "olu.adeyemi", "emma.larsen")


def _same(at: datetime) -> datetime:
    return at


def add_uploads(service: Service, template: str, uploads: int, rows: int) -> None:
    """Add so many uploads of `rows` rows each, the last a few days ago; later edits are dated minutes ago."""
    now = datetime.now(UTC)
    for number in range(uploads):
        at = now - AGO - MONTHS * (1 - (number + 1) / uploads) - LAG * (len(template) % 4)
        service.clock = partial(_same, at)
        person = PEOPLE[(len(template) + number) % len(PEOPLE)]
        metadata = {"uploader": f"{person}@customer.example", "file_name": f"{template} {at:%Y-%m-%d}.xlsx"}
        service.add_generated(template, imports=1, rows=rows, metadata=metadata)
    service.clock = lambda: datetime.now(UTC) - AGO


def add_flaws(service: Service) -> None:
    """Add typical problems of uploads: elements that are not rows, a wrong count, an upload in progress."""

    def uploaded(name: str, person: str) -> dict[str, str]:
        return {"uploader": f"{person}@customer.example", "file_name": name}

    customers = [{"First name": f"Guest {n}", "Country": "FR", "signup date": "2026-01-31"} for n in range(1, 41)]
    service.add_import("customers", [*customers[:20], "[1, 2]", "null"], uploaded("guests (2).csv", "maria.silva"))
    service.add_import("orders", [], uploaded("orders retry.csv", "aiko.tanaka"), status="created")
    service.add_import(
        "customers", customers[20:], uploaded("guests, to be continued.csv", "olu.adeyemi"), status="submitting"
    )
    [short] = service.add_generated("products", imports=1, rows=60, metadata=uploaded("price list.xlsx", "emma.larsen"))
    service.set_row_count(short, 63)
