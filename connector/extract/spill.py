"""Spill the records of one import that exceed memory to an unnamed temporary file, which vanishes with the process.

Invariant: for every slug the same version is returned, whether the records stayed in memory or not.
"""

from __future__ import annotations

import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, KeysView, Sequence
from dataclasses import dataclass
from itertools import compress
from threading import Lock
from typing import Final

import msgspec
import pyarrow as pa

from connector.errors import ConnectorError
from connector.models import Record

IN_MEMORY = 25_000  # records of one import
BATCH_ROWS = 2_000  # they stay in the processor's cache between decoding and Arrow

_CODEC: Final = "lz4"
_NO_TIME = -(2**63)


@dataclass(frozen=True, slots=True)
class _Span:
    offset: int
    packed: int
    unpacked: int


class Spool:
    """Pieces of bytes, read in the order in which they were added. Raises ConnectorError if there is no disk space."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._end = 0
        try:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it lives as long as the spool does
        except OSError as error:
            raise _no_room(error) from None
        self._at_one_place = Lock()
        weakref.finalize(self, self._file.close)

    def add(self, piece: bytes | pa.Buffer) -> None:
        packed = pa.compress(piece, codec=_CODEC, asbytes=True)
        try:
            with self._at_one_place:
                self._file.seek(self._end)
                written = 0
                while written < len(packed):
                    written += self._file.write(packed[written:])
        except OSError as error:
            raise _no_room(error) from None
        self._spans.append(_Span(self._end, len(packed), len(piece)))
        self._end += len(packed)

    def __iter__(self) -> Iterator[pa.Buffer]:
        for span in self._spans:
            with self._at_one_place:
                self._file.seek(span.offset)
                packed = self._file.read(span.packed)
            yield pa.decompress(packed, decompressed_size=span.unpacked, codec=_CODEC)


class SpilledRecords:
    """Records in a spool, some of them outdated; they can be iterated more than once."""

    def __init__(self, spool: Spool, counts: bytearray, size: int) -> None:
        self._spool = spool
        self._counts = counts
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Record]:
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[Sequence[Record]]:
        at = 0
        for piece in self._spool:
            batch = _decode(piece)
            kept = list(compress(batch, self._counts[at : at + len(batch)]))
            at += len(batch)
            if kept:
                yield kept


Records = tuple[Record, ...] | SpilledRecords


def batches(records: Records) -> Iterator[Sequence[Record]]:
    """Yield about `BATCH_ROWS` records at a time."""
    if isinstance(records, SpilledRecords):
        yield from records.batches()
        return
    for at in range(0, len(records), BATCH_ROWS):
        yield records[at : at + BATCH_ROWS]


class LatestRecords:
    """The latest record for each slug of one import, by `updated_at` if both have it, otherwise by order of arrival."""

    def __init__(self) -> None:
        self._kept: dict[str, Record] = {}
        self._spilling: _Spilling | None = None

    def __len__(self) -> int:
        return len(self.slugs)

    @property
    def slugs(self) -> KeysView[str]:
        return self._kept.keys() if self._spilling is None else self._spilling.places.keys()

    def add(self, records: Iterable[Record]) -> None:
        if self._spilling is not None:
            self._spilling.add(records)
            return
        kept = self._kept
        for record in records:
            before = kept.get(record.slug)
            if before is None or _replaces(before.updated_at, record.updated_at):
                kept[record.slug] = record
        if len(kept) > IN_MEMORY:
            self._spilling = _Spilling()
            self._spilling.add(kept.values())
            self._kept = {}

    def all(self) -> Records:
        """Return all records; nothing can be added afterwards."""
        return tuple(self._kept.values()) if self._spilling is None else self._spilling.all()


class _Spilling:
    """A spill that keeps the slug, time and hash of each record in memory, so that an unchanged one is written once."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self._times = array("q")
        self._hashes = array("q")
        self._batch: list[Record] = []
        self._spool = Spool()

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            time = _NO_TIME if record.updated_at is None else record.updated_at
            sort = str(record.sort)  # the hashes of the numbers -1 and -2 are equal
            content = hash((record.data, record.created_at, sort, record.extra))
            place = self.places.get(record.slug)
            if place is not None:
                before = self._times[place]
                outdated = time < before and time != _NO_TIME
                if outdated or (time == before and content == self._hashes[place]):
                    continue
            self.places[record.slug] = len(self._times)
            self._times.append(time)
            self._hashes.append(content)
            self._batch.append(record)
            if len(self._batch) >= BATCH_ROWS:
                self._write()

    def _write(self) -> None:
        self._spool.add(_encode(self._batch))
        self._batch = []

    def all(self) -> SpilledRecords:
        self._write()
        counts = bytearray(len(self._times))
        for place in self.places.values():
            counts[place] = 1
        return SpilledRecords(self._spool, counts, len(self.places))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Record]).decode


def _replaces(before: int | None, after: int | None) -> bool:
    return before is None or after is None or after >= before


def _no_room(error: OSError) -> ConnectorError:
    place = tempfile.tempdir or "the directory for temporary files"  # finding it may be what failed
    return ConnectorError(
        f"An import is too large for memory and {place} cannot hold it ({error.strerror or error}); free space there, "
        "or set TMPDIR to another directory."
    )
