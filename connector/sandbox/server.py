"""Serve the service on a socket: a thin ASGI app, and uvicorn around it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from connector.sandbox.messages import Request, Response
from connector.sandbox.service import Service

TRANSPORT = "sandbox.transport"
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0


def make_app(service: Service) -> Starlette:
    """Return an ASGI app that calls `service`. Resets and cuts need the server of `serve` and `run`."""

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        request = Request(scope["method"], scope["path"], query, headers, await http.body())
        reply = service.handle(request)
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        await _send(reply, scope, receive, send)

    return Starlette(routes=[Mount("/", app=endpoint)])


async def _send(reply: Response, scope: Scope, receive: Receive, send: Send) -> None:
    transport: asyncio.Transport | None = scope.get("state", {}).get(TRANSPORT)
    if reply.fault and transport is None:
        raise RuntimeError("connection faults need the sandbox's own server")
    if reply.fault == "reset" and transport is not None:
        _reset(transport)
        await _until_gone(receive)
        return
    headers = {**reply.headers, "content-length": str(len(reply.body))}
    await send(
        {
            "type": "http.response.start",
            "status": reply.status,
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        }
    )
    if reply.fault == "cut" and transport is not None:
        half = reply.body[: len(reply.body) // 2]
        await send({"type": "http.response.body", "body": half, "more_body": True})
        transport.close()
        await _until_gone(receive)
        return
    await send({"type": "http.response.body", "body": reply.body})


def _reset(transport: asyncio.Transport) -> None:
    """Close the connection with a linger time of zero, so that the peer gets RST instead of FIN."""
    peer: socket.socket = transport.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _until_gone(receive: Receive) -> None:
    """Wait until the server notices; otherwise it would log an unfinished reply."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _OpenProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which gives the app access to the connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.app_state = {**self.app_state, TRANSPORT: transport}
        super().connection_made(transport)


class _Server(uvicorn.Server):
    """uvicorn's server, which ends as soon as it is told to if no request is under way.

    uvicorn looks every tenth of a second whether to end, and sleeps that long again before it does.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        ticks = asyncio.ensure_future(super().main_loop())
        told = asyncio.ensure_future(self._told.wait())
        await asyncio.wait((ticks, told), return_when=asyncio.FIRST_COMPLETED)
        ticks.cancel()
        told.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
        for connection in [*self.server_state.connections]:
            connection.shutdown()

    def end(self) -> None:
        """Tell the server, from another thread, to end."""
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._told.set)


def _server(service: Service) -> _Server:
    config = uvicorn.Config(
        make_app(service),
        http=_OpenProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
    )
    return _Server(config)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small writes at once only on sockets declared as TCP; otherwise a reply takes 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def _url(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def serve(service: Service, port: int = 0, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve from a thread while the block runs; yield the base URL, which is `service.base_url` too."""
    server, listener = _server(service), _listen(host, port)
    thread = threading.Thread(target=server.run, args=([listener],), name="sandbox", daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the sandbox server did not start")
            time.sleep(0.002)
        service.base_url = _url(listener)
        yield service.base_url
    finally:
        server.end()
        thread.join(STOP_TIMEOUT_S)
        listener.close()
        service.base_url = None


def run(
    service: Service,
    host: str = "127.0.0.1",
    port: int = 8080,
    on_ready: Callable[[str], Any] | None = None,
) -> None:
    """Serve until interrupted. Print nothing; `on_ready` gets the base URL once the port is bound."""
    listener = _listen(host, port)
    listener.listen()
    service.base_url = _url(listener)
    try:
        if on_ready is not None:
            on_ready(service.base_url)
        _server(service).run([listener])
    finally:
        listener.close()
