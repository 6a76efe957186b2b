"""Uploads as the customers of a company make them: over the last months, by people, from files with names.

The same seed makes the same rows and slugs; only the times follow the day on which it is started.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

from connector.sandbox.service import Service

MONTHS = timedelta(days=90)
AGO = timedelta(minutes=10)  # of edits: one that is read within its own second is read once more by the next run
PEOPLE = ("maria.silva", "jonas.weber", "aiko.tanaka", "olu.adeyemi", "emma.larsen")


def _same(at: datetime) -> datetime:
    return at


def add_uploads(service: Service, template: str, uploads: int, rows: int) -> None:
    """Add so many uploads of `rows` rows each, the last of them today; what is edited later is of minutes ago."""
    now = datetime.now(UTC)
    for number in range(uploads):
        at = now - AGO - MONTHS * (1 - (number + 1) / uploads)
        service.clock = partial(_same, at)
        person = PEOPLE[(len(template) + number) % len(PEOPLE)]
        metadata = {"uploader": f"{person}@customer.example", "file_name": f"{template} {at:%Y-%m-%d}.xlsx"}
        service.add_generated(template, imports=1, rows=rows, metadata=metadata)
    service.clock = lambda: datetime.now(UTC) - AGO
