"""Derive everything random from a seed: same seed, same service, in any process and in any order of requests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from math import gcd
from random import Random
from typing import TypeVar

T = TypeVar("T")


def digest(*parts: object, size: int = 8) -> bytes:
    return blake2b("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass"), digest_size=size).digest()


def number(*parts: object) -> int:
    """Return a 64-bit whole number that depends on nothing but `parts`."""
    return int.from_bytes(digest(*parts), "big")


def share(*parts: object) -> float:
    """Return a number in [0, 1) that depends on nothing but `parts`."""
    return number(*parts) / 2**64


def uuid_from(*parts: object) -> str:
    """Return a valid UUID (version 4) that depends on nothing but `parts`."""
    return f"{_uuid_head(*parts)}{digest('tail', *parts, size=6).hex()}"


def _uuid_head(*parts: object) -> str:
    text = digest("head", *parts).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{'89ab'[int(text[12], 16) & 3]}{text[:3]}-"


class SlugRange:
    """The record slugs of one import: position to UUID and back, without a table."""

    __slots__ = ("_factor", "_head", "_inverse", "_shift")

    def __init__(self, *parts: object) -> None:
        self._head = _uuid_head("records", *parts)
        self._factor = number("factor", *parts) % 2**48 | 1
        self._inverse = pow(self._factor, -1, 2**48)
        self._shift = number("shift", *parts) % 2**48

    def slug(self, index: int) -> str:
        return f"{self._head}{(index * self._factor + self._shift) % 2**48:012x}"

    def index(self, slug: str) -> int | None:
        """Return the position of a slug of this range; None for a slug that is not of this import."""
        tail = slug[len(self._head) :]
        if not slug.startswith(self._head) or len(tail) != 12:
            return None
        try:
            return (int(tail, 16) - self._shift) * self._inverse % 2**48
        except ValueError:
            return None


class Scatter:
    """A seeded permutation of range(count) and its inverse, in constant memory."""

    __slots__ = ("_count", "_factor", "_inverse", "_shift")

    def __init__(self, count: int, *parts: object) -> None:
        self._count = max(count, 1)
        factor = number("scatter", *parts) % self._count
        while gcd(factor, self._count) != 1:
            factor = (factor + 1) % self._count
        self._factor = factor
        self._inverse = pow(factor, -1, self._count)
        self._shift = number("start", *parts) % self._count

    def at(self, rank: int) -> int:
        return (rank * self._factor + self._shift) % self._count

    def rank(self, value: int) -> int:
        return (value - self._shift) * self._inverse % self._count


class Dice:
    """Fast draws from one hash of 512 bits, which is enough for the widest generated row."""

    __slots__ = ("_pool",)

    def __init__(self, *parts: object) -> None:
        self._pool = int.from_bytes(digest(*parts, size=64), "big")

    def below(self, limit: int) -> int:
        self._pool, drawn = divmod(self._pool, limit)
        return drawn

    def pick(self, choices: Sequence[T]) -> T:
        self._pool, drawn = divmod(self._pool, len(choices))
        return choices[drawn]

    def chance(self, percent: int) -> bool:
        self._pool, drawn = divmod(self._pool, 100)
        return drawn < percent


class SeededClock:
    """A clock independent of wall time: each reading moves it on by one to ninety seconds.

    Some instants fall on a whole second or millisecond, for services that leave out the zeros of a fraction.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(number("clock", seed))
        self._now = datetime(2024, 1, 8, 7, 30, tzinfo=UTC)

    def __call__(self) -> datetime:
        self._now += timedelta(microseconds=self._random.randrange(1_000_000, 90_000_000))
        unit = self._random.choice((1, 1, 1_000, 1_000_000))
        self._now -= timedelta(microseconds=self._now.microsecond % unit)
        return self._now
