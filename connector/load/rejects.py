"""Collect the rows of `sync_rejects` of one load package: what could not be loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from connector.load.table_rows import TableRows
from connector.transform.escaping import storable
from connector.warehouse.tables import LOAD_ID, REJECTS, REJECTS_SCHEMA, table_of


class Rejects:
    """The rejects of a package; a reject that occurs twice in a run has the same key."""

    def __init__(self, load_id: str, run_id: str, now: datetime, *, nul_safe: bool) -> None:
        self._load_id = load_id
        self._run_id = run_id
        self._now = now
        self._nul_safe = nul_safe
        self._rows: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, import_slug: str | None, record_slug: str | None, reason: str, payload: str) -> None:
        identity = json.dumps([self._run_id, import_slug, record_slug, reason, payload])
        self._rows.append(
            {
                "reject_id": hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest(),
                "run_id": self._run_id,
                "import_slug": import_slug,
                "record_slug": None if record_slug is None else storable(record_slug, nul_safe=self._nul_safe),
                "reason": reason,
                "payload": storable(payload, nul_safe=self._nul_safe),
                "seen_at": self._now,
                LOAD_ID: self._load_id,
            }
        )

    def table_rows(self) -> Iterator[TableRows]:
        if self._rows:
            yield TableRows(REJECTS, table_of(REJECTS_SCHEMA, self._rows))
