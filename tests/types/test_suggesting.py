"""Hints proposed by the texts in a warehouse: live ones only, none that is configured, without a request."""

from __future__ import annotations

import pytest

from connector.maintain.suggesting import Suggestion, suggest
from connector.sandbox import Service
from tests.types.conftest import Warehouse


@pytest.mark.dialect
def test_the_live_texts_of_text_columns_decide(recording: Warehouse) -> None:
    service = Service(seed=1)
    rows = [{"on": f"{n}.12.2026", "note": "x" * 41, "n": n, "mixed": "1,5"} for n in range(13, 32)]
    service.add_import("bills", [*rows, {"on": "", "mixed": 7, "note": "1,5"}])
    gone = service.add_import("bills", [{"on": "unknown", "mixed": "x"}] * 5)
    assert recording.run(service).status == "succeeded"
    assert suggest(recording.pipeline(), {}) == []
    service.delete_import(gone)
    assert recording.run(service, deletes="keep").status == "succeeded"
    assert suggest(recording.pipeline(), {}) == [
        Suggestion("records_bills", "mixed", "decimal(12,2):1234,56", 1.0, 20),
        Suggestion("records_bills", "on", "date:%d.%m.%Y", 1.0, 19),
    ]
    assert suggest(recording.pipeline(), {"records_bills": {"on": "text", "mixed": "text"}}) == []
