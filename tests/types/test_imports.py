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


def test_postgres_writes_metadata_without_room_once(postgres_uri: str, tmp_path: Path) -> None:
    service = Service(seed=9)
    first = service.add_import("t", [{"a": 1}])
    texts = {f"text {n}": "a text of some length, more than a pointer takes" for n in range(400)}
    service.set_metadata(first, {"beyond 64 bits": 2**63, **texts})

    def pipeline() -> dlt.Pipeline:
        destination = dlt.destinations.postgres(postgres_uri)
        return dlt.pipeline("once", destination=destination, dataset_name="once", pipelines_dir=str(tmp_path))

    with serve(service) as url:
        made = Settings.load(base_url=url, access_token=service.token)
        assert sync(pipeline(), made).status == "succeeded"
        idle = sync(pipeline(), made)
        assert (idle.status, idle.load_ids) == ("succeeded", [])
        service.add_import("t", [{"a": 1}], metadata={"text 399": "has room", "text 398": 7, "beyond 64 bits": 5})
        assert sync(pipeline(), made).status == "succeeded"
        assert sync(pipeline(), made).load_ids == []
        assert verify(pipeline(), made, deep=True).differences == []
    with pipeline().sql_client() as client:
        sql = "SELECT metadata__text_399, metadata__text_398, metadata__beyond_64_bits FROM imports WHERE slug <> %s"
        assert client.execute_sql(sql, first) == [("has room", 7, 5)]
