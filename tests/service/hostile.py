"""A service that answers each request with whatever bytes a test wrote down, over a real socket.

It knows nothing of HTTP beyond finding the end of a request, so it can say everything a broken peer says.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reply:
    """Bytes to send, then how to end: `keep` the connection, `close` it, `reset` it, or `hang`.

    `drip` are sent one by one behind the rest, with a pause after each.
    """

    wire: bytes = b""
    then: str = "keep"
    delay_s: float = 0.0
    drip: Sequence[bytes] = ()
    pause_s: float = 0.0


@dataclass(frozen=True)
class Seen:
    line: str
    headers: dict[str, str]
    body: bytes
    at: float


@dataclass
class Hostile:
    """`replies` are sent in order, the last one over and over; `in_flight_peak` counts requests being answered."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    in_flight: int = 0
    in_flight_peak: int = 0


Script = Sequence[Reply] | Callable[[Seen], Reply]


def http(
    status: int, body: bytes | str = b"", headers: Sequence[tuple[str, str]] = (), then: str = "keep", **extra: float
) -> Reply:
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(content)}", *(f"{k}: {v}" for k, v in headers)]
    return Reply("\r\n".join(lines).encode() + b"\r\n\r\n" + content, then, extra.get("delay_s", 0.0))


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n", headers: str = "", then: str = "keep") -> Reply:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    head = f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{headers}\r\n".encode()
    return Reply(head + body + end, then)


def page(*elements: bytes | str) -> Reply:
    """A page whose elements are these exact texts."""
    texts = [element.encode() if isinstance(element, str) else element for element in elements]
    return http(200, b'{"data":[' + b",".join(texts) + b'],"metadata":{}}')


def gzipped(content: bytes, cut: int = 0, tail: bytes = b"") -> Reply:
    packed = gzip.compress(content)
    return http(200, packed[: len(packed) - cut] + tail, [("Content-Encoding", "gzip")])


def row(slug: str = "r1", data: str = '{"a":1}', **fields: object) -> str:
    rest = "".join(f',"{key}":{json.dumps(value)}' for key, value in fields.items())
    return f'{{"slug":{json.dumps(slug)},"data":{data}{rest}}}'


def import_row(slug: str = "i1", *, without: str = "", **fields: object) -> str:
    known: dict[str, object] = {
        "slug": slug,
        "row_count": 3,
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-02T00:00:00.5+02:00",
        "status": "completed",
        **fields,
    }
    known.pop(without, None)
    return json.dumps(known)


@asynccontextmanager
async def hostile(script: Script, port: int = 0) -> AsyncIterator[Hostile]:
    state = Hostile()
    connections: set[asyncio.Task[None]] = set()

    def reply_to(request: Seen) -> Reply:
        if callable(script):
            return script(request)
        return script[min(len(state.seen), len(script)) - 1]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            while (request := await _read(reader)) is not None:
                state.seen.append(request)
                state.in_flight += 1
                state.in_flight_peak = max(state.in_flight_peak, state.in_flight)
                reply = reply_to(request)
                await asyncio.sleep(reply.delay_s)
                state.in_flight -= 1
                writer.write(reply.wire)
                await writer.drain()
                for piece in reply.drip:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(reply.pause_s)
                if reply.then == "hang":
                    await asyncio.sleep(60)
                if reply.then == "reset":
                    writer.transport.abort()
                if reply.then != "keep":
                    return
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (entry.partition(":") for entry in rest)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(line, headers, body, asyncio.get_running_loop().time())
