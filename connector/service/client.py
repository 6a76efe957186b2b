"""Call the four endpoints of the service, with retries and pacing, and return pages.

Each attempt ends in a value, a page or an `AttemptFailure`. Errors are raised only from failures, outside any `except`,
so that no exception of the transport, whose request has the token, becomes the cause or context of our own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

from pydantic import SecretStr
from yarl import URL

from connector import telemetry
from connector.errors import AuthError, ConfigError, ConnectorError, NotFoundError, TransientError
from connector.models import Import, ImportPage, RecordPage, Session, Template
from connector.service.decode import (
    WrongShape,
    decode_import,
    decode_import_page,
    decode_record_page,
    decode_session,
)
from connector.service.guard import Guard
from connector.service.limits import FEW, LIMITS, Limits, Stopwatch
from connector.service.outage import Outage
from connector.service.rate_limit import RateLimiter
from connector.service.retry import (
    AttemptFailure,
    Budget,
    Raise,
    Retry,
    RetryPolicy,
    Trouble,
    budget_of,
    decide,
    error_of,
    is_reachable,
    is_unreachable,
    retry_after_s,
    without_endless_wait,
)
from connector.service.service_clock import ServiceClock
from connector.service.transport import (
    Body,
    Call,
    ReplyMemory,
    Transport,
    exchange,
    open_transport,
)
from connector.text import composed
from connector.transform.json_slices import NotJson
from connector.transform.privacy import Privacy

log = logging.getLogger("connector.service.client")
_T = TypeVar("_T")
_Page = TypeVar("_Page", ImportPage, RecordPage)
_TOKEN = re.compile(r"[\x21-\x7e]+", re.ASCII)
_PREFIX = "/api/v1"
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip",
    "Cache-Control": "no-cache",  # caches on the way have to revalidate
    "Content-Type": "application/json",
    "User-Agent": "importer-connector",
}
_RECORDS, _IMPORTS, _IMPORT, _SESSION = "list_records", "list_imports", "get_import", "create_session"


@dataclass(slots=True)
class ClientStats:
    """The work of the client so far; `requests` counts attempts, `bytes_received` bodies as received."""

    requests: int = 0
    retries: int = 0
    bytes_received: int = 0
    throttled: int = 0
    by_endpoint: Counter[str] = field(default_factory=Counter)


class ServiceClient:
    """The service's endpoints; use it with `async with`. The token is sent to `base_url` and never shown."""

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        max_concurrency: int = 8,
        requests_per_second: float | None = None,
        transport: Transport | None = None,
        retry: RetryPolicy | None = None,
        until_first_reply: RetryPolicy | None = None,
        limits: Limits = LIMITS,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        random: Random | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        if max_concurrency < 1:
            raise ConfigError("max_concurrency must be at least 1.")
        if requests_per_second is not None and not 0 < requests_per_second < float("inf"):
            raise ConfigError("requests_per_second must be above 0.")
        self.stats = ClientStats()
        self.largest_page = 0  # elements in the longest page so far: the page size that the service is known to send
        self.largest_page_of_records = 0
        # called for each page of records before it is decoded
        self.on_records_received: Callable[[str, int], None] | None = None
        self._base_url = _base_url(base_url)
        self._token = SecretStr(_sendable(token))
        self._guard = Guard(privacy, self._token) if privacy else None
        self._max_concurrency = max_concurrency
        self._given_transport = transport
        self._transport: Transport | None = None
        self._policy_after_reply = retry or RetryPolicy()
        self._policy = until_first_reply or self._policy_after_reply  # until the service has answered anything
        self._limits = limits
        self._memory = ReplyMemory(limits.in_flight_bytes, max_concurrency)
        self._limiter = RateLimiter(max_concurrency, requests_per_second, sleep=sleep, monotonic=monotonic)
        self._sleep = sleep
        self._monotonic = monotonic
        self._now = now
        self._random = random or Random()
        self._outage = Outage(self._policy.outage_s, sleep=sleep, monotonic=monotonic, now=now, random=self._random)
        self.clock = ServiceClock(now)
        self._instruments = telemetry.find()

    def __repr__(self) -> str:
        return f"ServiceClient({self._base_url!r})"

    async def __aenter__(self) -> Self:
        self._transport = self._given_transport or open_transport(self._base_url, self._max_concurrency, self._limits)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    def service_time(self) -> datetime:
        """Return an instant that the service's clock has passed."""
        return self.clock.time()

    async def list_imports(self, page: int, per_page: int | None = 100, status: str | None = None) -> ImportPage:
        """Return one page of the listing; without `per_page` the service chooses the page size."""
        query = f"?page={page}" if per_page is None else f"?page={page}&per_page={per_page}"
        if status is not None:
            query += f"&status={quote(status, safe='')}"
        decode = decode_import_page if self._guard is None else self._guard.import_page
        return self._measured(await self._call(self._get(_IMPORTS, "/imports", query, page, per_page), decode))

    def with_one_name(self, imports: Collection[Import]) -> list[Import]:
        """Return the imports with one name for each template, and use it from now on.

        The service may show several names of a template: while it is renamed, or because an import keeps the name that
        its template had. Otherwise the settings would apply to some of its imports only. The name is that of the newest
        import; if privacy rules are for some of the names, it is one of these, even if the template had it only before.
        """
        ruled = frozenset[str]() if self._guard is None else self._guard.titles
        seen = [
            (name in ruled, i.created_at, i.slug, name == shown, i.template.slug, name)
            for i in imports
            if i.template is not None
            for shown in [composed(i.shown_template_name or "")]
            for name in {i.template.name, shown}
        ]
        names = defaultdict[str, set[str]](set)
        for *_, slug, name in seen:
            names[slug].add(name)
        named = {
            slug: Template(slug=slug, name=name, also=frozenset(names[slug] - {name}))
            for *_, slug, name in sorted(seen)
        }
        decided = [i if i.template is None else i.named(named[i.template.slug]) for i in imports]
        if self._guard is not None:
            self._guard.adopt(decided)
        return decided

    async def get_import(self, slug: str) -> Import:
        decode = decode_import if self._guard is None else self._guard.import_
        return await self._call(self._get(_IMPORT, f"/imports/{_segment(slug)}", slug=slug), decode)

    async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        """Return one page of the records of an import; `page` is the number as the service counts."""
        path = f"/imports/{_segment(import_slug)}/records"
        query = f"?page={page}&per_page={per_page}"
        most = self._limits.short_reply_bytes if per_page <= FEW else self._limits.reply_bytes

        guard = self._guard
        if guard is not None and not guard.knows(import_slug):
            guard.learn(import_slug, await self.get_import(import_slug))

        def decode(body: bytes) -> RecordPage:
            if self.on_records_received is not None:
                self.on_records_received(import_slug, len(body))
            return decode_record_page(body) if guard is None else guard.record_page(import_slug, body)

        found = await self._call(self._get(_RECORDS, path, query, page, per_page, import_slug, most), decode)
        self.largest_page_of_records = max(self.largest_page_of_records, found.size)
        return self._measured(found)

    def _measured(self, page: _Page) -> _Page:
        self.largest_page = max(self.largest_page, page.size)
        return page

    async def create_session(self, importer_slug: str, metadata: Mapping[str, Any] | None) -> Session:
        """Create an importer session; retry only a 429 or 503, because after other failures it may already exist."""
        path = "/importer/sessions"
        wanted: dict[str, Any] = {"importer_slug": importer_slug}
        if metadata is not None:
            wanted["metadata"] = dict(metadata)
        try:
            content = json.dumps(wanted, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            content = b""
        if not content:
            raise ConfigError("The session's metadata can't be written as JSON; nothing was sent.")
        call = Call(_SESSION, "POST", self._base_url + path, f"POST {path}", content=content)
        return await self._call(call, decode_session)

    def _get(
        self,
        operation: str,
        path: str,
        query: str = "",
        page: int | None = None,
        per_page: int | None = None,
        slug: str | None = None,
        max_bytes: int | None = None,
    ) -> Call:
        url = f"{self._base_url}{path}{query}"
        most = self._limits.reply_bytes if max_bytes is None else max_bytes
        return Call(operation, "GET", url, f"GET {path}", page, per_page, slug, max_bytes=most)

    async def _call(self, call: Call, decode: Callable[[bytes], _T]) -> _T:
        if self._instruments is None:
            return await self._call_with_retries(call, decode)
        with self._instruments.request(call.operation, call.fields()) as watched:
            return await self._call_with_retries(call, decode, watched)

    async def _call_with_retries(
        self, call: Call, decode: Callable[[bytes], _T], watched: telemetry.Request | None = None
    ) -> _T:
        drawn: dict[Budget, int] = {}
        outages: set[int] = set()
        waited_s, attempts = 0.0, 0
        stopwatch = Stopwatch(self._monotonic)
        while True:
            left_s = self._limits.call_s - stopwatch.s - waited_s
            result = await self._attempt(call, decode, watched, stopwatch, left_s)
            if not isinstance(result, AttemptFailure):
                return result
            attempts += 1
            result = without_endless_wait(result, self._policy, self._now())
            budget = budget_of(result)
            during_outage = budget is Budget.ERRORS and self._outage.began and not call.once
            if not during_outage or self._outage.number not in outages:
                drawn[budget] = drawn.get(budget, 0) + 1
            nth = drawn.get(budget, 0)
            verdict = decide(result, nth, waited_s, self._policy, self._random, self._now(), once=call.once)
            if during_outage:
                outages.add(self._outage.number)
                verdict = self._during_outage(verdict)
            if isinstance(verdict, Retry) and stopwatch.s + waited_s + verdict.delay_s >= self._limits.call_s:
                verdict = Raise(error_of(result))
            if isinstance(verdict, Raise):
                raise _error(verdict.kind, result, call, attempts, self._outage.since if during_outage else None)
            self.stats.retries += 1
            log.log(
                logging.WARNING if verdict.delay_s else logging.DEBUG,
                "%s: the service %s (attempt %d); trying again in %.2f s",
                call.words, result.words, attempts, verdict.delay_s,
                extra=call.fields(
                    "request.retried", result.status, attempt=attempts, delay_s=verdict.delay_s, reason=result.words
                ),
            )  # fmt: skip
            if watched is not None:
                watched.repeated(result.words, result.status, attempts, verdict.delay_s)
            await self._sleep(verdict.delay_s)
            waited_s += verdict.delay_s

    def _during_outage(self, verdict: Retry | Raise) -> Retry | Raise:
        """Adapt the verdict on an attempt made during an outage.

        All requests fail in the same way, and the outage has been reported, so the attempt is repeated when its turn
        comes and fails only once the outage has lasted too long.
        """
        if self._outage.is_over_limit:
            return Raise(TransientError)
        return Retry(0.0) if self._outage.is_waited_for and isinstance(verdict, Retry) else verdict

    async def _attempt(
        self,
        call: Call,
        decode: Callable[[bytes], _T],
        watched: telemetry.Request | None,
        stopwatch: Stopwatch,
        left_s: float,
    ) -> _T | AttemptFailure:
        if self._transport is None:
            raise RuntimeError("ServiceClient is used with `async with`")
        started = await self._limiter.enter(urgent=call.operation == _IMPORTS)
        try:
            async with self._outage.turn():  # while it counts as in flight, so that no other request starts meanwhile
                with stopwatch:
                    reply = await self._send(self._transport, call, watched, left_s)
                self._adapt(reply, started, call.import_slug)
        finally:
            self._limiter.leave()
        if isinstance(reply, AttemptFailure):
            return reply
        if log.isEnabledFor(logging.DEBUG):
            fields = call.fields("request.answered", reply.status, bytes=len(reply.content))
            log.debug("%s: %d, %d bytes", call.words, reply.status, len(reply.content), extra=fields)
        try:
            return decode(reply.content)
        except WrongShape as why:
            return AttemptFailure(Trouble.SHAPE, f"sent {why}", reply.status)
        except NotJson as why:
            return _not_json(reply, why)

    async def _send(
        self, transport: Transport, call: Call, watched: telemetry.Request | None, left_s: float
    ) -> Body | AttemptFailure:
        self.stats.requests += 1
        self.stats.by_endpoint[call.operation] += 1
        if watched is not None:
            watched.sent()

        def received(size: int) -> None:
            self.stats.bytes_received += size
            if watched is not None:
                watched.received(size)

        headers = {"Authorization": f"Bearer {self._token.get_secret_value()}", **_HEADERS}
        limits = self._limits
        if left_s < limits.attempt_s:
            limits = replace(limits, attempt_s=left_s)
        reply = await exchange(transport, call, headers, received, self._memory, limits)
        if watched is not None:
            watched.answered(reply.status)
        return reply

    def _adapt(self, reply: Body | AttemptFailure, started: float, import_slug: str | None) -> None:
        if isinstance(reply, Body) or is_reachable(reply):
            if self._policy is not self._policy_after_reply:
                self._policy = self._policy_after_reply
                self._outage.wait_for(self._policy.outage_s)
            self._outage.answered()
        elif is_unreachable(without_endless_wait(reply, self._policy, self._now())):
            self._outage.failed(reply.words)
        if isinstance(reply, Body):
            self._limiter.went_well()
            self.clock.note(reply.date, reply.age, import_slug)
        elif reply.status == HTTPStatus.TOO_MANY_REQUESTS:
            self.stats.throttled += 1
            pause_s = retry_after_s(reply.retry_after, self._now()) or 0.0
            patient = pause_s <= self._policy.wait_budget_s
            self._limiter.throttled(started, min(pause_s, self._policy.retry_after_cap_s) if patient else 0.0)


def _not_json(reply: Body, why: NotJson) -> AttemptFailure:
    if why.cut and not reply.framed:
        return AttemptFailure(Trouble.CUT, "cut its reply short", reply.status)
    words = f"answered {reply.status} with something that is not JSON ({reply.media_type}: {why})"
    return AttemptFailure(Trouble.GARBAGE, words, reply.status)


def _base_url(given: str) -> str:
    """Return the URL ending in `/api/v1`, without a slash. Errors do not show the input, which may hold a password."""
    try:
        given = given.strip().rstrip("/")
        url = URL(given) if given.isprintable() else URL()
        host = url.host or ""
    except (TypeError, AttributeError, ValueError):
        url, host = URL(), ""
    if url.scheme not in ("http", "https") or not host or " " in host:
        raise ConfigError("base_url must be an address such as https://service.example.")
    if url.raw_user or url.raw_password or url.raw_query_string or url.raw_fragment:
        raise ConfigError("base_url must not hold a user, a password, a query or a fragment.")
    base = str(url).rstrip("/")
    return base if base.endswith(_PREFIX) else base + _PREFIX


def _sendable(token: str) -> str:
    token = token.strip()
    if not _TOKEN.fullmatch(token):
        raise ConfigError("access_token is empty or has characters that can't stand in a header.")
    return token


def _segment(slug: str) -> str:
    """Return a slug as one segment of a path.

    Raises ConfigError for an empty slug, and for `.` and `..`, which would change the path.
    """
    encoded = quote(slug, safe="", errors="replace")
    if encoded in ("", ".", ".."):
        raise ConfigError(f"{slug!r} is not the slug of an import; nothing was sent.")
    return encoded


def _error(
    kind: type[ConnectorError], outcome: AttemptFailure, call: Call, attempts: int, silent_since: datetime | None = None
) -> ConnectorError:
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    if outcome.trouble is Trouble.STATUS:
        what = f"The service {outcome.words} to {call.words}{tried}"
    else:
        what = f"The service {outcome.words} at {call.words}{tried}"
    silent = f"it has not answered since {silent_since:%H:%M:%S} UTC, " if silent_since else ""
    advice = _advice(kind, replace(outcome, advice=None) if silent else outcome, call)
    return kind(
        f"{what}; {silent}{advice}.",
        endpoint=call.endpoint,
        status=outcome.status,
        page=call.page,
        per_page=call.per_page,
    )


def _advice(kind: type[ConnectorError], outcome: AttemptFailure, call: Call) -> str:
    if kind is AuthError:
        return "check access_token" if outcome.status == HTTPStatus.UNAUTHORIZED else "ask for access"
    if kind is NotFoundError:
        return "it does not exist, or base_url is wrong"
    if outcome.trouble is Trouble.PLAIN:
        return "it may speak plain HTTP there, then base_url has to begin with http://"
    if kind is ConfigError:
        return "check base_url and the trusted certificates"
    if kind is TransientError and call.once and outcome.trouble is not Trouble.STATUS:
        return "it is not known whether the request was carried out, so it was not repeated"
    if kind is TransientError:
        return outcome.advice or "it may be down, try again later"
    if outcome.status is not None and outcome.status // 100 == 3:
        return "redirects are not followed, check base_url"
    return "this does not match the interface, check the service"
