"""One HTTP request → the complete body of its reply, or an `Outcome` in words. aiohttp lives here.

Nothing is raised for what a service or network can do wrong: exceptions of the transport may carry the request's
headers, so none of them leaves this file. A body counts as complete only when its framing (Content-Length, chunks)
and its compression say so.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from typing import Any, Protocol
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from connector.service.retry import Outcome, Trouble
from connector.settings import is_loopback

MAX_BODY_BYTES = 32 * 1024 * 1024  # of a page; a hundred rows of 300 kB
MAX_FEW_BYTES = 256 * 1024 * 1024  # where no shorter page could be asked for, or hardly one
FEW = 10  # elements
BYTES_IN_FLIGHT = 64 * 1024 * 1024  # of all replies together, but for a single large one
MAX_MEMBERS = 100  # of a gzip body: each costs a copy of all that follows it
_TIMEOUTS = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=60.0)
_ATTEMPT_LIMIT_S = 900.0  # against a reply that drips in for ever, each byte just in time
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,40}/[\w.+-]{1,40}", re.ASCII)
# OpenSSL's words for a reply that is no TLS; which of them depends on its version.
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})


@dataclass(frozen=True, slots=True)
class Call:
    """What to ask, and how to name it to people: `endpoint` is the method and path, `operation` the endpoint's kind."""

    operation: str
    method: str
    url: str
    endpoint: str
    page: int | None = None
    import_slug: str | None = None
    content: bytes | None = None
    max_bytes: int = MAX_BODY_BYTES

    @property
    def once(self) -> bool:
        """Whether it must not be carried out twice."""
        return self.method != "GET"

    def fields(self, event: str | None = None, status: int | None = None, **more: Any) -> dict[str, Any]:
        """For logs and traces that programs read, what `words` is for people."""
        named = {
            "event": event,
            "endpoint": self.endpoint,
            "import_slug": self.import_slug,
            "page": self.page,
            "status": status,
        }
        return {name: value for name, value in {**named, **more}.items() if value is not None}

    @property
    def words(self) -> str:
        return self.endpoint if self.page is None else f"{self.endpoint} page {self.page}"


@dataclass(frozen=True, slots=True)
class Body:
    """A complete reply. `framed` when its length was announced, so that a cut could not go unnoticed."""

    content: bytes
    status: int
    media_type: str
    framed: bool
    date: str | None = None  # as sent


class Room:
    """What replies may hold while they arrive: each its share, and one at a time as much as a reply may have.

    Invariant: whoever waits for the rest of a reply holds no more than a share, and whoever holds more waits for
    nobody, so that replies never wait for each other in a circle.
    """

    def __init__(self, replies: int) -> None:
        self.share = BYTES_IN_FLIGHT // replies
        self.large = asyncio.Lock()


class _Unusable(Exception):
    def __init__(self, trouble: Trouble, words: str) -> None:
        super().__init__(words)
        self.trouble = trouble
        self.words = words


class Content(Protocol):
    """The bytes of a body, as they come."""

    def iter_any(self) -> AsyncIterator[bytes]: ...


class Reply(Protocol):
    """What is read of an `aiohttp.ClientResponse`; the names of headers are looked up whatever their case."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> Content: ...


class Transport(Protocol):
    """What is used of an `aiohttp.ClientSession`."""

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str], data: bytes | None, allow_redirects: bool
    ) -> AbstractAsyncContextManager[Reply]: ...
    async def close(self) -> None: ...


def open_transport(base_url: str, max_concurrency: int) -> Transport:
    """On the running loop; certificates and proxies as the environment says, cookies never."""
    url = URL(base_url)
    if url.scheme == "https":
        from httpx import create_ssl_context  # it knows where certificates may lie

        context = create_ssl_context()
    else:  # needs no trust store, which takes longer to read than a small sync
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=max_concurrency, ssl=context),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=_TIMEOUTS,
        proxy=_proxy(url),
    )
    # aiohttp would repeat a request by itself, past the ceiling on requests a second; the retries are ours
    session._retry_connection = False
    return session


def _proxy(url: URL) -> str | None:
    proxies = getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    if not address or url.host is None or is_loopback(url.host) or proxy_bypass(url.host):
        return None
    return address if "://" in address else f"http://{address}"


async def exchange(
    transport: Transport,
    call: Call,
    headers: Mapping[str, str],
    received: Callable[[int], None],
    room: Room,
) -> Body | Outcome:
    """Sends `call`; `received` hears of the bytes of the body as they come."""
    status: int | None = None
    try:
        async with (
            asyncio.timeout(_ATTEMPT_LIMIT_S),
            transport.request(
                call.method, call.url, headers=headers, data=call.content, allow_redirects=False
            ) as reply,
        ):
            status = reply.status
            if status // 100 != 2 or status == HTTPStatus.PARTIAL_CONTENT:
                return Outcome(Trouble.STATUS, f"answered {status}", status, reply.headers.get("retry-after"))
            async with AsyncExitStack() as until_read:
                return await _body(reply, call.max_bytes, received, room, until_read)
    except _Unusable as why:
        return Outcome(why.trouble, why.words, status)
    except (aiohttp.ClientError, OSError) as problem:
        return _lost(problem, status)


async def _body(
    reply: Reply, most: int, received: Callable[[int], None], room: Room, until_read: AsyncExitStack
) -> Body:
    gathered = BytesIO()  # gives its bytes away without a copy
    size = 0
    alone = False
    async for part in reply.content.iter_any():
        if size + len(part) > room.share and not alone:
            await until_read.enter_async_context(room.large)
            alone = True
        size += gathered.write(part)
        received(len(part))
        if size > most:
            raise _too_large(most)
    content = gathered.getvalue()
    del gathered
    headers = reply.headers
    announced = headers.get("content-length")
    if announced is not None and announced.isdecimal() and int(announced) != size:
        raise _Unusable(Trouble.CUT, f"sent {size} of {announced} bytes")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding in ("gzip", "x-gzip"):
        content = _gunzip(content, most)
    elif coding not in ("identity", ""):
        raise _Unusable(Trouble.GARBAGE, "sent a compression that was not asked for")
    if not content.strip():
        raise _Unusable(Trouble.CUT, "sent an empty body")
    found = _MEDIA_TYPE.match(headers.get("content-type", ""))
    framed = announced is not None or "transfer-encoding" in headers or coding not in ("identity", "")
    media_type = found[0] if found else "no content type"
    return Body(content, reply.status, media_type, framed, headers.get("date"))


def _gunzip(packed: bytes, most: int) -> bytes:
    """All members of a gzip body; zlib alone would take a truncated one for complete."""
    unpacked: list[bytes] = []
    room = most
    while packed:
        if len(unpacked) >= MAX_MEMBERS:
            raise _Unusable(Trouble.GARBAGE, f"sent gzip data of more than {MAX_MEMBERS} parts")
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(packed, room + 1)
        except zlib.error:
            raise _Unusable(Trouble.CUT, "sent damaged gzip data") from None
        unpacked.append(part)
        room -= len(part)
        if room < 0:
            raise _too_large(most)
        if not member.eof:
            raise _Unusable(Trouble.CUT, "sent truncated gzip data")
        packed = member.unused_data.lstrip(b"\0")  # padding after the last member is customary
    return b"".join(unpacked)


def _answered_without_tls(problem: aiohttp.ClientConnectorSSLError) -> bool:
    return str(getattr(problem.os_error, "reason", "")).replace(" ", "_").upper() in _NOT_TLS


def _too_large(most: int) -> _Unusable:
    return _Unusable(Trouble.TOO_LARGE, f"sent more than {most // 2**20} MiB in one reply")


def _lost(problem: Exception, status: int | None) -> Outcome:
    if isinstance(problem, aiohttp.ClientConnectorSSLError) and _answered_without_tls(problem):
        return Outcome(Trouble.PLAIN, "answered without TLS", status)
    if isinstance(problem, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return Outcome(Trouble.CERTIFICATE, "showed a certificate that could not be verified", status)
    if isinstance(problem, TimeoutError):
        return Outcome(Trouble.TIMEOUT, "did not answer in time", status)
    if isinstance(problem, aiohttp.ClientConnectorDNSError):
        return Outcome(Trouble.CONNECTION, "could not be found (its host name does not resolve)", status)
    if isinstance(problem, aiohttp.ClientConnectorError | aiohttp.ClientHttpProxyError):
        number = getattr(problem, "errno", None)
        reason = os.strerror(number).lower() if isinstance(number, int) and number > 0 else "no connection"
        return Outcome(Trouble.CONNECTION, f"could not be reached ({reason})", status)
    if isinstance(problem, aiohttp.ClientResponseError):
        return Outcome(Trouble.GARBAGE, "sent something that is not HTTP", status)
    if status is not None:
        return Outcome(Trouble.CUT, "cut its reply short", status)
    return Outcome(Trouble.CONNECTION, "closed the connection without a reply", status)
