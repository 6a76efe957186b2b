"""Records and rows that wait on disk are the ones that would have stayed in memory; a full disk stops one import."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import ConnectorError
from connector.extract import spill
from connector.extract.records import ImportRead, Verdict
from connector.extract.spill import LatestRecords, SpilledRecords, Spool, batches
from connector.load.batches import Builder, BuiltImports, SpilledRows
from connector.models import Import, Record, microseconds
from connector.settings import Settings
from connector.transform.row_limits import Limits

START = datetime(2026, 1, 1, tzinfo=UTC)
times = (
    st.none()
    | st.sampled_from([START + timedelta(microseconds=n) for n in range(-1, 3)])
    | st.datetimes(timezones=st.just(UTC))
)
rows = st.dictionaries(
    st.text(max_size=3), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), max_size=4
)
records = st.builds(
    Record,
    st.sampled_from("abcdefgh") | st.text(min_size=1),
    rows.map(msgspec.json.encode),
    times.map(lambda time: None if time is None else microseconds(time)),
    times.map(lambda time: None if time is None else microseconds(time)),
    st.none() | st.sampled_from([-2, -1, 0, 2**61 - 1]) | st.integers(-(2**63), 2**63 - 1),
)

FULL = Path("/dev/full")


def gathered(pages: Sequence[Sequence[Record]], in_memory: int) -> LatestRecords:
    latest = LatestRecords()
    with mock.patch.object(spill, "IN_MEMORY", in_memory), mock.patch.object(spill, "BATCH_ROWS", 3):
        for page in pages:
            latest.add(page)
    return latest


@given(st.lists(st.lists(records, max_size=8), max_size=8), st.integers(0, 8))
def test_the_same_version_of_each_record_comes_out(pages: list[list[Record]], in_memory: int) -> None:
    kept, spilled = gathered(pages, 10_000), gathered(pages, in_memory)
    assert len(kept) == len(spilled)
    assert kept.slugs == spilled.slugs
    expected, found = kept.all(), spilled.all()
    assert isinstance(found, SpilledRecords) == (len(expected) > in_memory)
    assert len(found) == len(expected)
    for _ in range(2):
        assert {record.slug: record for record in found} == {record.slug: record for record in expected}
        assert sum(map(len, batches(found))) == len(expected)


def test_what_comes_again_as_it_was_is_written_once() -> None:
    page = [Record(f"r{n}", b"{}", 5, 5, n) for n in range(10)]
    once, often = gathered([page], 5), gathered([page] * 20, 5)
    assert once._spilling is not None
    assert often._spilling is not None
    assert len(often._spilling._times) == len(once._spilling._times) == 10


def test_the_file_has_no_name_and_closes_with_the_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = Spool()
    made.add(b"a" * 100_000)
    assert list(tmp_path.iterdir()) == []
    descriptor = made._file.fileno()
    del made
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is of Linux")
def test_a_full_disk_is_said_so_that_one_can_act() -> None:
    with FULL.open("r+b", buffering=0) as full:
        spool = Spool()
        spool._file = full
        with pytest.raises(ConnectorError, match=r"No space left on device.*TMPDIR"):
            spool.add(b"piece")


def test_no_directory_for_temporary_files_is_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in any of these places")

    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._get_default_tempdir", nowhere)
    with pytest.raises(ConnectorError, match=r"No usable temporary directory found.*TMPDIR"):
        Spool()


# --- rows


def import_of(size: int) -> Import:
    return Import(slug="i", row_count=size, created_at=START, updated_at=START, status="completed")


def built(read: ImportRead, *, raw: bool, typed: bool, limits: Limits | None) -> BuiltImports:
    settings = Settings.load(base_url="http://localhost", access_token="t", raw=raw, typed=typed)
    return Builder(settings, {}, {}, limits=limits, nul_safe=limits is not None).build(read)


def table_of(found: BuiltImports) -> list[dict[str, object]]:
    made = []
    for some in found.rows:
        columns = {"slug": some.slug, "sort": some.sort, "created": some.created_at, "updated": some.updated_at}
        if some.data is not None:
            columns["data"] = some.data
        if some.flat is not None:
            columns.update({f"flat {name}": column for name, column in some.flat.columns.items()})
            assert set(some.flat.counts) <= set(some.flat.schema.fields)
        made += pa.table(columns).to_pylist()
    return sorted(made, key=lambda row: str(row["slug"]))


@given(st.lists(records, min_size=1, max_size=20, unique_by=lambda r: r.slug), st.booleans(), st.booleans())
def test_the_same_rows_are_built(found: list[Record], raw: bool, narrow: bool) -> None:
    limits = Limits("a narrow one", columns=9, row_bytes=8000) if narrow else None
    with mock.patch.object(spill, "BATCH_ROWS", 3):
        reads = [
            ImportRead(import_of(len(found)), Verdict.complete, gathered([found], in_memory).all())
            for in_memory in (10_000, 0)
        ]
        kept, spilled = (built(read, raw=raw, typed=True, limits=limits) for read in reads)
        assert (len(kept), kept.table, kept.refusal) == (len(spilled), spilled.table, spilled.refusal)
        assert table_of(kept) == table_of(spilled) == table_of(spilled)
        assert len(table_of(spilled)) == len(found)
        assert isinstance(spilled.rows, SpilledRows)
