"""Send requests with the user's httpx client and its proxies, client certificates, auth, hooks or mock transport.

A request costs three times the CPU time of one with the default transport (CONTRIBUTING.md, "Requirements").
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property

import httpx

from connector.errors import ConfigError
from connector.service.limits import LIMITS
from connector.service.retry import Trouble
from connector.service.transport import Reply, Unusable

_ENDED = "disconnected without sending a response"  # httpcore identifies it only in its message


class OwnClient:
    """A transport over the client that `make` returns, created and closed on the event loop that uses it."""

    def __init__(self, make: Callable[[], httpx.AsyncClient]) -> None:
        self._make = make
        self._timeout = httpx.Timeout(None, connect=LIMITS.connect_s, read=LIMITS.silence_s)

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        made = self._make()
        if not isinstance(made, httpx.AsyncClient):
            raise ConfigError(f"http_client has to return an httpx.AsyncClient, and returned a {type(made).__name__}.")
        return made

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], data: bytes | None, allow_redirects: bool
    ) -> AsyncIterator[Reply]:
        request = self._client.build_request(method, url, headers=headers, content=data, timeout=self._timeout)
        with _in_words(begun=False):
            try:
                reply = await self._client.send(request, stream=True, follow_redirects=allow_redirects)
            except httpx.HTTPStatusError as refused:  # by a hook that calls raise_for_status
                reply = refused.response
        try:
            yield _Reply(reply)
        finally:
            await reply.aclose()

    async def close(self) -> None:
        if "_client" in vars(self):
            await self._client.aclose()


class _Reply:
    """A reply as it was sent, without decompression."""

    def __init__(self, reply: httpx.Response) -> None:
        self.status = reply.status_code
        self.headers: Mapping[str, str] = reply.headers
        self.content = self
        self._reply = reply

    async def iter_any(self) -> AsyncIterator[bytes]:
        with _in_words(begun=True):
            async for part in self._reply.aiter_raw():
                yield part


@contextmanager
def _in_words(*, begun: bool) -> Iterator[None]:
    """Raise Unusable for an exception of httpx, because those have the request and therefore the token.

    `begun` tells whether the headers of the reply have arrived.
    """
    try:
        yield
    except httpx.TimeoutException:
        raise Unusable(Trouble.TIMEOUT, "did not answer in time") from None
    except httpx.ProxyError:
        raise Unusable(Trouble.CONNECTION, "could not be reached (the proxy of http_client refused)") from None
    except httpx.ConnectError as problem:
        if _is_about_a_certificate(problem):
            raise Unusable(Trouble.CERTIFICATE, "showed a certificate that could not be verified") from None
        raise Unusable(Trouble.CONNECTION, "could not be reached (no connection)") from None
    except httpx.HTTPError as problem:
        if begun:
            raise Unusable(Trouble.CUT, "cut its reply short") from None
        if isinstance(problem, httpx.NetworkError) or _ENDED in str(problem):
            raise Unusable(Trouble.CONNECTION, "closed the connection without a reply") from None
        raise Unusable(Trouble.GARBAGE, "sent something that is not HTTP") from None


def _is_about_a_certificate(problem: BaseException | None) -> bool:
    while problem is not None:
        if isinstance(problem, ssl.SSLCertVerificationError):
            return True
        problem = problem.__cause__ or problem.__context__
    return False
