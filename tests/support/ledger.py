"""Make listed imports, and the ledger rows of imports that were synced as listed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from connector.ledger import COMPLETED, LedgerRow, Listed, State

THEN = datetime(2026, 2, 1, 8, 30, 15, 123456, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Shown:
    slug: str = "a"
    row_count: int = 3
    updated_at: datetime = THEN
    status: str = COMPLETED
    template_slug: str | None = "t"


def known(shown: Listed, state: State = State.synced, *, trusted: bool = True) -> LedgerRow:
    return LedgerRow(
        slug=shown.slug,
        state=state,
        updated_at=shown.updated_at,
        row_count=shown.row_count,
        status=shown.status,
        template_slug=shown.template_slug,
        table_name="records_t",
        records_loaded=shown.row_count,
        attempts=1,
        last_synced_at=THEN,
        has_raw=True,
        trusted=trusted,
    )
