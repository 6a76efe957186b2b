"""Send one HTTP request; return the complete body of its reply, or an `AttemptFailure` in words. Wraps aiohttp.

Failures of the service or the network are returned, not raised: exceptions of the transport may have the request's
headers, so none of them leaves this file. A body counts as complete only if its framing (Content-Length, chunks) and
its compression show that.
"""

from __future__ import annotations

import asyncio
import errno
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

from connector.service.limits import LIMITS, MIB, Limits
from connector.service.retry import AttemptFailure, Trouble
from connector.settings import is_loopback

_PIECE = 64 * 1024  # of compressed bytes that are unpacked in one step
_PADDING = re.compile(rb"\0*")
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,40}/[\w.+-]{1,40}", re.ASCII)
_OF_A_PROXY = "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
_REFUSED = "nothing listens there: base_url may name the wrong host or port, or it may be down, try again later"
# OpenSSL's errors for a reply that is not TLS; which one depends on its version.
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})


@dataclass(frozen=True, slots=True)
class Call:
    """A request, with its names for people: `endpoint` is the method and path, `operation` the endpoint's kind."""

    operation: str
    method: str
    url: str
    endpoint: str
    page: int | None = None
    per_page: int | None = None
    import_slug: str | None = None
    content: bytes | None = None
    max_bytes: int = LIMITS.reply_bytes

    @property
    def once(self) -> bool:
        """Return whether it must not be executed twice."""
        return self.method != "GET"

    def fields(self, event: str | None = None, status: int | None = None, **more: Any) -> dict[str, Any]:
        """Return the fields of a log entry or trace, for programs; `words` is for people."""
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
    """A complete reply. `framed` if its length was announced, so that truncation could not go unnoticed."""

    content: bytes
    status: int
    media_type: str
    framed: bool
    date: str | None = None  # as sent
    age: str | None = None  # as sent by a cache on the way


class ReplyMemory:
    """The memory for replies as they arrive: a share for each, and for one reply at a time up to its limit.

    Invariant: a reply that waits has no more than its share, and a reply that has more waits for no other, so that
    there is no deadlock.
    """

    def __init__(self, most: int, replies: int) -> None:
        self.share = most // replies
        self.large = asyncio.Lock()


class Unusable(Exception):
    """A reply that cannot be used, or none at all, in words without any part of the request."""

    def __init__(self, trouble: Trouble, words: str) -> None:
        super().__init__(words)
        self.trouble = trouble
        self.words = words


class Content(Protocol):
    """The bytes of a body, as they arrive."""

    def iter_any(self) -> AsyncIterator[bytes]: ...


class Reply(Protocol):
    """The used parts of an `aiohttp.ClientResponse`; names of headers are case-insensitive."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> Content: ...


class Transport(Protocol):
    """The used parts of an `aiohttp.ClientSession`; `own_client` has the same for an httpx client."""

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str], data: bytes | None, allow_redirects: bool
    ) -> AbstractAsyncContextManager[Reply]: ...
    async def close(self) -> None: ...


class _Connections(aiohttp.TCPConnector):
    """A connector that does not reuse a connection with unexpected bytes, which would be read as the next reply."""

    async def _get(self, key: Any, traces: Any) -> Any:
        while True:
            kept: Any = await super()._get(key, traces)
            if kept is None or not kept.protocol.should_close:
                return kept
            kept.close()


def open_transport(base_url: str, max_concurrency: int, limits: Limits) -> Transport:
    """Open a session on the running loop, with the environment's certificates and proxies, and without cookies."""
    url = URL(base_url)
    if url.scheme == "https":
        from httpx import create_ssl_context  # it finds the certificates

        context = create_ssl_context()
    else:  # no trust store, which takes longer to load than a small sync
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    session = aiohttp.ClientSession(
        connector=_Connections(limit=max_concurrency, ssl=context),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s, sock_read=limits.silence_s),
        proxy=_proxy(url),
    )
    # aiohttp would retry by itself, regardless of the maximum rate; `retry` decides instead
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
    memory: ReplyMemory,
    limits: Limits,
) -> Body | AttemptFailure:
    """Send `call` and return its body or failure; `received` is called with the size of each piece of the body."""
    status: int | None = None
    try:
        async with (
            asyncio.timeout(limits.attempt_s) as deadline,
            transport.request(
                call.method, call.url, headers=headers, data=call.content, allow_redirects=False
            ) as reply,
        ):
            status = reply.status
            if status // 100 != 2 or status == HTTPStatus.PARTIAL_CONTENT:
                return AttemptFailure(Trouble.STATUS, f"answered {status}", status, reply.headers.get("retry-after"))
            async with AsyncExitStack() as until_read:
                turn = _Turn(memory, until_read, deadline)
                return await _body(reply, call.max_bytes, received, turn, limits)
    except Unusable as why:
        return AttemptFailure(why.trouble, why.words, status)
    except (aiohttp.ClientError, OSError) as problem:
        return _lost(problem, status)


class _Turn:
    """The turn of a reply with more than its share, until it is read; waiting for it does not count as time."""

    def __init__(self, memory: ReplyMemory, until_read: AsyncExitStack, deadline: asyncio.Timeout) -> None:
        self._memory, self._until_read, self._deadline = memory, until_read, deadline
        self._has_come = False
        self.waited_s = 0.0

    async def wait(self, size: int) -> None:
        if size <= self._memory.share or self._has_come:
            return
        clock = asyncio.get_running_loop().time
        began_s, ends_s = clock(), self._deadline.when()
        self._deadline.reschedule(None)
        await self._until_read.enter_async_context(self._memory.large)
        self._has_come = True
        self.waited_s = clock() - began_s
        self._deadline.reschedule(None if ends_s is None else ends_s + self.waited_s)


async def _body(reply: Reply, most: int, received: Callable[[int], None], turn: _Turn, limits: Limits) -> Body:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    gathered = BytesIO()  # passes on its bytes without a copy
    size = 0
    async for part in reply.content.iter_any():
        await turn.wait(size + len(part))
        size += gathered.write(part)
        received(len(part))
        if size > most:
            raise _too_large(most)
        lasted_s = clock() - began_s - turn.waited_s
        if lasted_s > limits.slow_start_s and size < limits.least_rate * lasted_s:
            raise Unusable(Trouble.TIMEOUT, f"sent less than {limits.least_rate:,} bytes a second")
    content = gathered.getvalue()
    del gathered
    headers = reply.headers
    announced = headers.get("content-length")
    if announced is not None and announced.isdecimal() and int(announced) != size:
        raise Unusable(Trouble.CUT, f"sent {size} of {announced} bytes")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding in ("gzip", "x-gzip"):
        content = _gunzip(content, most, limits.gzip_members)
    elif coding not in ("identity", ""):
        raise Unusable(Trouble.GARBAGE, "sent a compression that was not requested")
    if not content.strip():
        raise Unusable(Trouble.CUT, "sent an empty body")
    found = _MEDIA_TYPE.match(headers.get("content-type", ""))
    framed = announced is not None or "transfer-encoding" in headers or coding not in ("identity", "")
    media_type = found[0] if found else "no content type"
    return Body(content, reply.status, media_type, framed, headers.get("date"), headers.get("age"))


def _gunzip(packed: bytes, most: int, most_members: int) -> bytes:
    """Unpack all members of a gzip body. Raises Unusable for a truncated one, which zlib accepts as complete."""
    unpacked = BytesIO()
    at = members = 0
    while at < len(packed):
        members += 1
        if members > most_members:
            raise Unusable(Trouble.GARBAGE, f"sent gzip data of more than {most_members:,} parts")
        at = _member(packed, at, unpacked, most)
        at = _PADDING.match(packed, at).end()  # type: ignore[union-attr]  # customary after the last member
    return unpacked.getvalue()


def _member(packed: bytes, at: int, unpacked: BytesIO, most: int) -> int:
    """Unpack the member that begins at `at`, and return where it ends.

    It is unpacked in pieces, because zlib copies everything behind the end.
    """
    member = zlib.decompressobj(wbits=31)
    view = memoryview(packed)
    while not member.eof:
        piece = view[at : at + _PIECE]
        if not piece:
            raise Unusable(Trouble.CUT, "sent truncated gzip data")
        try:
            unpacked.write(member.decompress(piece, most + 1 - unpacked.tell()))
        except zlib.error:
            raise Unusable(Trouble.CUT, "sent damaged gzip data") from None
        if unpacked.tell() > most:
            raise _too_large(most)
        at += len(piece) - len(member.unused_data)
    return at


def _answered_without_tls(problem: aiohttp.ClientConnectorSSLError) -> bool:
    return str(getattr(problem.os_error, "reason", "")).replace(" ", "_").upper() in _NOT_TLS


def _too_large(most: int) -> Unusable:
    return Unusable(Trouble.TOO_LARGE, f"sent more than {most // MIB} MiB in one reply")


def _lost(problem: Exception, status: int | None) -> AttemptFailure:
    if isinstance(problem, aiohttp.ClientConnectorSSLError) and _answered_without_tls(problem):
        return AttemptFailure(Trouble.PLAIN, "answered without TLS", status)
    if isinstance(problem, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return AttemptFailure(Trouble.CERTIFICATE, "showed a certificate that could not be verified", status)
    if isinstance(problem, TimeoutError):
        return AttemptFailure(Trouble.TIMEOUT, "did not answer in time", status)
    if isinstance(problem, aiohttp.ClientConnectorDNSError):
        words = f"could not be found (the host name {problem.host} does not resolve)"
        return AttemptFailure(
            Trouble.CONNECTION, words, status, advice="check how it is spelt, and the DNS of this machine"
        )
    if isinstance(problem, aiohttp.ClientHttpProxyError):
        words = f"could not be reached (the proxy of the environment answered {problem.status})"
        return AttemptFailure(Trouble.CONNECTION, words, status, advice=_OF_A_PROXY)
    if isinstance(problem, aiohttp.ClientConnectorError):
        number = getattr(problem, "errno", None)
        reason = os.strerror(number).lower() if isinstance(number, int) and number > 0 else "no connection"
        if isinstance(problem, aiohttp.ClientProxyConnectionError):
            words = f"could not be reached (the proxy {problem.host}:{problem.port} of the environment: {reason})"
            return AttemptFailure(Trouble.CONNECTION, words, status, advice=_OF_A_PROXY)
        advice = _REFUSED if number == errno.ECONNREFUSED else None
        return AttemptFailure(Trouble.CONNECTION, f"could not be reached ({reason})", status, advice=advice)
    if isinstance(problem, aiohttp.ClientResponseError):
        return AttemptFailure(Trouble.GARBAGE, "sent something that is not HTTP", status)
    if status is not None:
        return AttemptFailure(Trouble.CUT, "cut its reply short", status)
    return AttemptFailure(Trouble.CONNECTION, "closed the connection without a reply", status)
