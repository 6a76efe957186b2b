"""The service as a fixture for benchmarks: `python -m tests.benchmarks.server --imports 100 --rows 2000`.

It prints one line of JSON with its address. HTTP/1.1 straight on asyncio's protocols, one write a reply, so that it
costs a fraction of whatever reads from it. `GET /__stats` tells what was asked of it, `/__reset` counts anew,
`/__touch?imports=N` changes N imports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections import deque
from dataclasses import asdict, dataclass, field, fields

from tests.benchmarks.workload import Shape, Workload

TOKEN = "benchmark"
MAX_PER_PAGE = 100
TARGET = re.compile(rb"(GET|POST) (?:/api/v1/imports(?:/([\w-]+)(/records)?)?|/__(\w+))/?(?:\?(\S*))? HTTP/1\.1\r\n")
NUMBERS = re.compile(rb"(?:^|&)(page|per_page|imports)=(\d+)")
STATUS = re.compile(rb"(?:^|&)status=(\w+)")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CONTROL = b"GET /__"
REASONS = {200: "OK", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


@dataclass(frozen=True, slots=True)
class Manners:
    """How the service behaves: `rate` requests a second at most, with a burst of `burst`, else 429."""

    latency_s: float = 0.0
    rate: float = 0.0
    burst: float = 10.0
    retry_after_s: int = 1
    token: str = TOKEN


@dataclass(slots=True)
class Stats:
    """What was asked since the start or the last reset; `busiest_second` is the most requests in any one second."""

    listing: int = 0
    one_import: int = 0
    records: int = 0
    not_found: int = 0
    unauthorized: int = 0
    refused: int = 0
    body_bytes: int = 0
    connections: int = 0
    max_in_flight: int = 0
    busiest_second: int = 0
    first_at: float | None = None
    last_at: float | None = None
    cpu_s: float = field(default_factory=time.process_time)

    def as_json(self) -> bytes:
        served = self.listing + self.one_import + self.records + self.not_found + self.unauthorized
        took = (self.last_at or 0.0) - (self.first_at or 0.0)
        cpu_s = time.process_time() - self.cpu_s
        return json.dumps({**asdict(self), "requests": served + self.refused, "took_s": took, "cpu_s": cpu_s}).encode()


class Fixture:
    """Requests in, complete replies out; shared by all connections."""

    def __init__(self, workload: Workload, manners: Manners) -> None:
        self.workload = workload
        self.manners = manners
        self.stats = Stats()
        self.in_flight = 0
        self._recent: deque[float] = deque()
        self._allowance = manners.burst
        self._authorization = b"Bearer " + manners.token.encode() + b"\r\n"

    def answer(self, head: bytes) -> bytes:
        found = TARGET.match(head)
        if found is None:
            self.stats.not_found += 1
            return _reply(404, b'{"error":"not found"}')
        _, slug, records, own, query = found.groups()
        numbers = {name: int(value) for name, value in NUMBERS.findall(query or b"")}
        if own is not None:
            return self._control(own, numbers.get(b"imports", 1))
        if not self._arrived():
            self.stats.refused += 1
            return _reply(429, b'{"error":"slow down"}', f"Retry-After: {self.manners.retry_after_s}\r\n")
        if self._authorization not in head:
            self.stats.unauthorized += 1
            return _reply(401, b'{"error":"unauthorized"}')
        page = max(1, numbers.get(b"page", 1))
        per_page = min(MAX_PER_PAGE, max(1, numbers.get(b"per_page", MAX_PER_PAGE)))
        if slug is None:
            self.stats.listing += 1
            wanted = STATUS.search(query or b"")
            other = wanted is not None and wanted[1] != b"completed"
            return _reply(200, b'{"data":[],"metadata":{}}' if other else self.workload.listing(page, per_page))
        import_ = self.workload.by_slug.get(slug.decode())
        if import_ is None:
            self.stats.not_found += 1
            return _reply(404, b'{"error":"not found"}')
        if records is None:
            self.stats.one_import += 1
            return _reply(200, self.workload.import_(import_))
        self.stats.records += 1
        return _reply(200, self.workload.records(import_.slug, page, per_page))

    def _arrived(self) -> bool:
        """Counts a request; False if it comes too soon after the others."""
        stats, recent, rate, now = self.stats, self._recent, self.manners.rate, time.monotonic()
        before = stats.last_at
        stats.first_at = stats.first_at or now
        stats.last_at = now
        recent.append(now)
        while recent[0] <= now - 1:
            recent.popleft()
        stats.busiest_second = max(stats.busiest_second, len(recent))
        if not rate:
            return True
        self._allowance = min(self.manners.burst, self._allowance + (now - (before or now)) * rate)
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def _control(self, name: bytes, imports: int) -> bytes:
        if name == b"reset":
            self.stats, self._allowance = Stats(), self.manners.burst
        elif name == b"touch":
            for import_ in self.workload.imports[:imports]:
                import_.edits += 1
        elif name != b"stats":
            return _reply(404, b"{}")
        return _reply(200, self.stats.as_json())


class Connection(asyncio.Protocol):
    """One connection; requests are answered in their order, however many arrive at once."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture = fixture
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._fixture.stats.connections += 1

    def data_received(self, received: bytes) -> None:
        self._pending += received
        while (end := self._pending.find(b"\r\n\r\n")) >= 0:
            head = self._pending[: end + 2]
            body = LENGTH.search(head)
            whole = end + 4 + (int(body[1]) if body else 0)
            if len(self._pending) < whole:
                return
            self._pending = self._pending[whole:]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        fixture = self._fixture
        fixture.in_flight += 1
        fixture.stats.max_in_flight = max(fixture.stats.max_in_flight, fixture.in_flight)
        reply = fixture.answer(head)
        if not head.startswith(CONTROL):
            fixture.stats.body_bytes += len(reply) - reply.index(b"\r\n\r\n") - 4
        if fixture.manners.latency_s and not head.startswith(CONTROL):
            asyncio.get_running_loop().call_later(fixture.manners.latency_s, self._send, reply)
        else:
            self._send(reply)

    def _send(self, reply: bytes) -> None:
        self._fixture.in_flight -= 1
        if not self._transport.is_closing():
            self._transport.write(reply)


def _reply(status: int, body: bytes, headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return b"%b%b\r\n%b" % (head.encode(), headers.encode(), body)


async def serve(workload: Workload, manners: Manners, port: int) -> None:
    fixture = Fixture(workload, manners)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(fixture), "127.0.0.1", port, backlog=1_024)
    address = server.sockets[0].getsockname()
    print(json.dumps({"url": f"http://127.0.0.1:{address[1]}", "port": address[1]}), flush=True)
    await server.serve_forever()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.benchmarks.server", description=(__doc__ or "").split("\n")[0])
    for name, default in {**asdict(Shape()), "port": 0, "retry_after": 1}.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    for name, start in {"latency-ms": 0.0, "rate": 0.0, "burst": 10.0}.items():
        made.add_argument(f"--{name}", type=float, default=start)
    made.add_argument("--token", default=TOKEN)
    return made


def main() -> None:
    given = parser().parse_args()
    shape = Shape(**{each.name: getattr(given, each.name) for each in fields(Shape)})
    manners = Manners(given.latency_ms / 1_000, given.rate, given.burst, given.retry_after, given.token)
    asyncio.run(serve(Workload(shape), manners, given.port))


if __name__ == "__main__":
    main()
