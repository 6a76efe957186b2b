"""The imports and records that the fixture server shows: any number of them, from a seed, in little memory.

Records come in blocks of a hundred. A few blocks of each template are rendered once, with marks where a number of the
block's own belongs (in slugs, e-mail addresses, account numbers, scores, times and `sort`); putting it in is all that a
page costs, so ten million distinct rows take no more memory than a thousand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from random import Random
from typing import Any

BLOCK = 100
BLOCKS_OF_A_TEMPLATE = 20
PAGES_KEPT = 4_096  # of about 57 KB each
SHARED_COLUMNS = ("email", "full_name", "company", "address", "tags")  # of all templates; the others are named after it
T0 = datetime(2025, 1, 1, tzinfo=UTC)

# What the marks become keeps its length but for `sort`, and ends in a digit that no float drops.
NUMBER, STAMP, POSITION = "111111111117", "2222-22-22T22:2", '"sort":3'
ROW_END = b",\n"  # a line break stands nowhere within a row

FIRST = ("Ada", "Grace", "Linus", "Edsger", "Barbara", "Donald", "Margaret", "Alan", "Zoë", "José")
LAST = ("Lovelace", "Hopper", "Torvalds", "Dijkstra", "Liskov", "Knuth", "Hamilton", "Turing", "Müller", "García")
CITY = ("Lisbon", "Oslo", "Porto", "Berlin", "Zürich", "Kyoto", "Austin", "Nairobi", "Lima", "Ghent")


@dataclass(frozen=True, slots=True)
class Shape:
    """How much there is: `large` imports of `large_rows`, and `imports` of `rows` each."""

    imports: int = 100
    rows: int = 2_000
    templates: int = 3
    seed: int = 1
    large: int = 0
    large_rows: int = 100_000

    @property
    def all_imports(self) -> int:
        return self.large + self.imports

    @property
    def total_rows(self) -> int:
        return self.large * self.large_rows + self.imports * self.rows

    @property
    def most_rows(self) -> int:
        return max(self.rows, self.large_rows) if self.large else self.rows

    def rows_of(self, number: int) -> int:
        return self.large_rows if number < self.large else self.rows

    def divided(self, by: int) -> Shape:
        """Return the same with that many times fewer imports, of as many rows."""
        return replace(self, imports=max(1, self.imports // by), large=self.large // by)


@dataclass(slots=True)
class Listed:
    """One import; `edits` is how often it was changed since the server started."""

    number: int
    slug: str
    template: int
    created_at: datetime
    user_id: int
    edits: int = field(default=0)


class Workload:
    """Bodies of the service's replies, without the HTTP around them."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._blocks_each = max(1, math.ceil(shape.most_rows / BLOCK))
        self._blocks = [
            [_block(Random(f"{shape.seed}/{template}/{n}"), template) for n in range(BLOCKS_OF_A_TEMPLATE)]
            for template in range(min(shape.templates, shape.all_imports))
        ]
        random = Random(shape.seed)
        self.imports = [_listed(random, number, number % shape.templates) for number in range(shape.all_imports)]
        random.shuffle(self.imports)  # the order is unspecified, but stays
        self.by_slug = {import_.slug: import_ for import_ in self.imports}
        self.records = lru_cache(PAGES_KEPT)(self._records)

    def listing(self, page: int, per_page: int) -> bytes:
        shown = self.imports[(page - 1) * per_page : page * per_page]
        return b'{"data":[%b],"metadata":{}}' % b",".join(map(self.import_, shown))

    def import_(self, import_: Listed) -> bytes:
        updated_at = import_.created_at + timedelta(minutes=10)
        if import_.edits:  # after all others, so that a peer with a watermark finds it
            updated_at = T0 + timedelta(days=302, seconds=import_.edits)
        return (
            f'{{"slug":"{import_.slug}","row_count":{self.shape.rows_of(import_.number)},"created_at":"{_iso(import_.created_at)}",'
            f'"updated_at":"{_iso(updated_at)}","status":"completed",'
            f'"template":{{"name":"Template {import_.template}","slug":"template-{import_.template}"}},'
            f'"metadata":{{"user_id":{import_.user_id},"source":"fixture"}}}}'
        ).encode()

    def _records(self, slug: str, page: int, per_page: int) -> bytes:
        import_ = self.by_slug[slug]
        first, last = (page - 1) * per_page, min(page * per_page, self.shape.rows_of(import_.number))
        if per_page == BLOCK and last - first == BLOCK:
            rows = self._rendered(import_, page - 1)
        else:
            rows = ROW_END.join(self._rows(import_, first, last))
        return b'{"data":[%b],"metadata":{}}' % rows

    def _rows(self, import_: Listed, first: int, last: int) -> Iterator[bytes]:
        for block in range(first // BLOCK, math.ceil(last / BLOCK)):
            start = block * BLOCK
            yield from self._rendered(import_, block).split(ROW_END)[max(first - start, 0) : last - start]

    def _rendered(self, import_: Listed, block: int) -> bytes:
        variant = (import_.number + block) % BLOCKS_OF_A_TEMPLATE
        number = (import_.number * self._blocks_each + block) * 48_271 % 10**11
        stamp = _iso(import_.created_at + timedelta(minutes=10 * block))[: len(STAMP)]
        text = f"{number:011}7".encode().join(self._blocks[import_.template][variant])
        text = text.replace(STAMP.encode(), stamp.encode())
        return text.replace(POSITION.encode(), b'"sort":%d' % (block + 1))


def _block(random: Random, template: int) -> list[bytes]:
    """A hundred rows, cut where the block's number belongs."""
    rows = (json.dumps(_row(random, template, n), ensure_ascii=False, separators=(",", ":")) for n in range(BLOCK))
    text = ROW_END.join(row.encode() for row in rows)
    return text.split(NUMBER.encode())


def _row(random: Random, template: int, n: int) -> dict[str, Any]:
    data = _cells(random, n)
    if template:
        data = {name if name in SHARED_COLUMNS else f"{name}_t{template}": cell for name, cell in data.items()}
    slug = f"{random.getrandbits(32):08x}-{random.getrandbits(16):04x}-4{random.getrandbits(12):03x}"
    return {
        "slug": f"{slug}-a{n:03}-{NUMBER}",
        "data": data,
        "created_at": f"{STAMP}{6 * n // 60}:{6 * n % 60:02}.000000Z",
        "updated_at": f"{STAMP}{(6 * n + 5) // 60}:{(6 * n + 5) % 60:02}.000000Z",
        "sort": int(f"3{n:02}"),
    }


def _cells(random: Random, n: int) -> dict[str, Any]:
    first, last, city = random.choice(FIRST), random.choice(LAST), random.choice(CITY)
    return {
        "email": f"{first}.{last}{n:02}{NUMBER}@example.com".lower(),
        "full_name": f"{first} {last}",
        "company": f'{random.choice(LAST)} & {random.choice(LAST)} "{city}" Ltd',
        "city": None if random.random() < 0.1 else city,
        "quantity": random.randrange(1_000),
        "account_number": int(f"{random.randrange(100, 900)}{NUMBER}"),
        "price": round(random.randrange(10**6) / 100 + 0.001, 3),
        "score": None if random.random() < 0.2 else float(f"0.{random.randrange(10, 99)}{NUMBER}"),
        "active": random.random() < 0.5,
        "signup_date": f"{T0 - timedelta(days=random.randrange(1_500)):%Y-%m-%d}",
        "address": {
            "street": f"{random.randrange(1_000)} {random.choice(LAST)} St",
            "city": random.choice(CITY),
            "zip": str(random.randrange(10_000, 100_000)),
            "geo": {"lat": round(random.uniform(-90, 90), 5), "lng": round(random.uniform(-180, 180), 5)},
        },
        "tags": [random.choice(CITY).lower() for _ in range(random.randrange(5))],
    }


def _listed(random: Random, number: int, template: int) -> Listed:
    slug = f"{random.getrandbits(32):08x}-{random.getrandbits(16):04x}-4000-b000-{number:012}"
    created_at = T0 + timedelta(days=random.randrange(300), minutes=10 * random.randrange(144))
    return Listed(number, slug, template, created_at, random.randrange(10**6))


def _iso(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%S}.000000Z"
