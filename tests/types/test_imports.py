"""The table `imports` on the stricter destination, where a row lives in one page."""

from __future__ import annotations

from pathlib import Path

import dlt

from connector.maintain.verify import verify
from connector.run.sync import sync
from connector.sandbox import Service, Switches, serve
from connector.settings import Settings


def test_postgres_holds_metadata_of_any_width(postgres_uri: str, tmp_path: Path) -> None:
    service = Service(seed=9, switches=Switches(extra_fields=True))
    wide = {f"wide {n}": "a text of some length, more than a pointer takes" for n in range(900)}
    service.add_import("t", [{"a": 1}], metadata=wide)
    service.add_import("t", [{"a": 1}], metadata={f"wide {n}": n for n in range(900)})
    for n in range(8):
        service.add_import("t", [{"a": n}], metadata={f"key {n} {m}": m for m in range(100)})

    def pipeline() -> dlt.Pipeline:
        destination = dlt.destinations.postgres(postgres_uri)
        return dlt.pipeline("wide", destination=destination, dataset_name="wide", pipelines_dir=str(tmp_path))

    with serve(service) as url:
        made = Settings.load(base_url=url, access_token=service.token)
        for _ in range(2):
            tally = sync(pipeline(), made)
            assert (tally.status, tally.error) == ("succeeded", None)
        assert verify(pipeline(), made, deep=True).differences == []
