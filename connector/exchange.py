"""One HTTP request → the complete body of its reply, or an `Outcome` in words. httpx and aiohttp live here.

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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from connector.retry import Outcome, Trouble

MAX_BODY_BYTES = 256 * 1024 * 1024
_TIMEOUTS = {"timeout": {"connect": 10.0, "read": 60.0, "write": 60.0, "pool": None}}
_ATTEMPT_LIMIT_S = 900.0  # against a reply that drips in for ever, each byte just in time
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,40}/[\w.+-]{1,40}", re.ASCII)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


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


class _Unusable(Exception):
    def __init__(self, trouble: Trouble, words: str) -> None:
        super().__init__(words)
        self.trouble = trouble
        self.words = words


def open_transport(base_url: str, max_concurrency: int) -> httpx.AsyncBaseTransport:
    """aiohttp under httpx's interface; certificates and proxies as the environment says, cookies never."""
    url = httpx.URL(base_url)
    # plain HTTP needs no trust store, which takes longer to read than a small sync
    context = httpx.create_ssl_context() if url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def open_session() -> aiohttp.ClientSession:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=max_concurrency, ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        # aiohttp would repeat a request by itself, past the ceiling on requests a second; the retries are ours
        session._retry_connection = False
        return session

    return AiohttpTransport(verify=context, client=open_session, proxy=_proxy(url))


def _proxy(url: httpx.URL) -> httpx.Proxy | None:
    proxies = getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    if not address or url.host in _LOOPBACK or proxy_bypass(url.host):
        return None
    return httpx.Proxy(address if "://" in address else f"http://{address}")


async def exchange(
    transport: httpx.AsyncBaseTransport,
    call: Call,
    headers: httpx.Headers,
    received: Callable[[int], None],
) -> Body | Outcome:
    """Sends `call`; `received` hears of the bytes of the body as they come."""
    request = httpx.Request(call.method, call.url, headers=headers, content=call.content, extensions=_TIMEOUTS)
    status: int | None = None
    try:
        async with asyncio.timeout(_ATTEMPT_LIMIT_S):
            response = await transport.handle_async_request(request)
            status = response.status_code
            try:
                if not response.is_success or status == httpx.codes.PARTIAL_CONTENT:
                    return _refusal(response)
                return await _body(response, received)
            finally:
                await response.aclose()
    except _Unusable as why:
        return Outcome(why.trouble, why.words, status)
    except (httpx.HTTPError, aiohttp.ClientError, OSError) as problem:
        return _lost(problem, status)


def _refusal(response: httpx.Response) -> Outcome:
    status = response.status_code
    return Outcome(Trouble.STATUS, f"answered {status}", status, response.headers.get("retry-after"))


async def _body(response: httpx.Response, received: Callable[[int], None]) -> Body:
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    parts: list[bytes] = []
    size = 0
    async for part in stream:
        parts.append(part)
        size += len(part)
        received(len(part))
        if size > MAX_BODY_BYTES:
            raise _too_large()
    content = parts[0] if len(parts) == 1 else b"".join(parts)
    headers = response.headers
    announced = headers.get("content-length")
    if announced is not None and announced.isdecimal() and int(announced) != size:
        raise _Unusable(Trouble.CUT, f"sent {size} of {announced} bytes")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding in ("gzip", "x-gzip"):
        content = _gunzip(content)
    elif coding not in ("identity", ""):
        raise _Unusable(Trouble.GARBAGE, "sent a compression that was not asked for")
    if not content.strip():
        raise _Unusable(Trouble.CUT, "sent an empty body")
    found = _MEDIA_TYPE.match(headers.get("content-type", ""))
    framed = announced is not None or "transfer-encoding" in headers or coding not in ("identity", "")
    return Body(content, response.status_code, found[0] if found else "no content type", framed)


def _gunzip(packed: bytes) -> bytes:
    """All members of a gzip body; zlib alone would take a truncated one for complete."""
    unpacked: list[bytes] = []
    room = MAX_BODY_BYTES
    while packed:
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(packed, room + 1)
        except zlib.error:
            raise _Unusable(Trouble.CUT, "sent damaged gzip data") from None
        unpacked.append(part)
        room -= len(part)
        if room < 0:
            raise _too_large()
        if not member.eof:
            raise _Unusable(Trouble.CUT, "sent truncated gzip data")
        packed = member.unused_data.lstrip(b"\0")  # padding after the last member is customary
    return b"".join(unpacked)


def _too_large() -> _Unusable:
    return _Unusable(Trouble.TOO_LARGE, f"sent more than {MAX_BODY_BYTES // 2**20} MiB in one reply")


def _lost(problem: Exception, status: int | None) -> Outcome:
    """The transport maps nearly every lost connection to a connect time-out, so its cause is what is judged."""
    cause = problem.__cause__ if isinstance(problem, httpx.HTTPError) else None
    origin = cause or problem
    if isinstance(origin, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return Outcome(Trouble.CERTIFICATE, "showed a certificate that could not be verified", status)
    if isinstance(origin, TimeoutError | httpx.TimeoutException):
        return Outcome(Trouble.TIMEOUT, "did not answer in time", status)
    if isinstance(origin, aiohttp.ClientConnectorDNSError):
        return Outcome(Trouble.CONNECTION, "could not be found (its host name does not resolve)", status)
    if isinstance(origin, aiohttp.ClientConnectorError | httpx.ConnectError | httpx.ProxyError):
        number = getattr(origin, "errno", None)
        reason = os.strerror(number).lower() if isinstance(number, int) and number > 0 else "no connection"
        return Outcome(Trouble.CONNECTION, f"could not be reached ({reason})", status)
    if isinstance(origin, aiohttp.ClientResponseError | httpx.DecodingError):
        return Outcome(Trouble.GARBAGE, "sent something that is not HTTP", status)
    if status is not None:
        return Outcome(Trouble.CUT, "cut its reply short", status)
    return Outcome(Trouble.CONNECTION, "closed the connection without a reply", status)
