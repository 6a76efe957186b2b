"""Answer requests as the Importer Service does: a request in, a reply out, without sleeping and without sockets."""

from __future__ import annotations

import gzip
import hmac
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from connector.sandbox.catalogue import Catalogue, StoredImport
from connector.sandbox.faults import FaultGenerator, Faults
from connector.sandbox.messages import Request, Response, error_response, json_response
from connector.sandbox.ordering import record_ranks, shuffled
from connector.sandbox.pages import asked_window, past_the_end
from connector.sandbox.rendering import import_fields, import_text, record_text, records_metadata_text
from connector.sandbox.script import edit_randomly
from connector.sandbox.seeding import digest, share
from connector.sandbox.sessions import session_token
from connector.sandbox.switches import Switches

IMPORTS_PATH = "/api/v1/imports"
SESSIONS_PATH = "/api/v1/importer/sessions"
METHODS = {"sessions": "POST", "imports": "GET", "import": "GET", "records": "GET"}
LOGGED_REQUESTS = 10_000
DEFAULT_BEARER = "sandbox-token"

LogEntry = tuple[str, str, Mapping[str, str], int]


class Service(Catalogue):
    """The Importer Service in one object. `handle` answers; everything else changes what it answers.

    `requests` counts by endpoint ("imports", "import", "records", "sessions", "unknown"), faults included.
    `on_request` is called before each request is answered and may edit the service.
    """

    def __init__(
        self,
        seed: int = 0,
        token: str = DEFAULT_BEARER,
        switches: Switches | None = None,
        faults: Faults | None = None,
        *,
        clock: Callable[[], datetime] | None = None,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(seed, clock)
        self.token = token
        self.switches = switches or Switches()
        self.faults = faults or Faults()
        self.session_key = digest("session", seed, token, size=32).hex()
        self.base_url: str | None = None
        self.on_request: Callable[[Request], None] | None = None
        self.requests: Counter[str] = Counter()
        self.log: deque[LogEntry] = deque(maxlen=LOGGED_REQUESTS)
        self._wall_clock = wall_clock
        self._fault_generator = FaultGenerator(seed, wall_clock, monotonic)
        self._answered = 0
        self._scripts = 0
        self._listing: tuple[tuple[int, str], list[StoredImport]] | None = None

    @property
    def switches(self) -> Switches:
        return self._switches

    @switches.setter
    def switches(self, switches: Switches) -> None:
        self._switches = switches
        self.edit_moves_import = switches.edit_moves_import

    def handle(self, request: Request) -> Response:
        """Answer one request, with its fault if one is due."""
        with self._lock:
            if self.on_request is not None:
                self.on_request(request)
            endpoint, slug = _route(request.path)
            self.requests[endpoint] += 1
            self._answered += 1
            draw = self._fault_generator.draw(self.faults, request)
            reply = self._fault_generator.before(self.faults, draw) or self._answer(endpoint, slug, request)
            reply = self._fault_generator.after(draw, self._compressed(request, reply))
            self.log.append((request.method, request.path, request.query, reply.status))
            return reply

    def imports(self) -> list[dict[str, Any]]:
        """Return the live imports as the API shows them, oldest first."""
        with self._lock:
            return [import_fields(self, found, self.switches) for found in self.live()]

    def records(self, slug: str) -> Iterator[Any]:
        """Yield an import's records as the API shows them, parsed; one that is not JSON as its text."""
        for text in self.record_texts(slug):
            try:
                yield json.loads(text)
            except ValueError:
                yield text

    def record_texts(self, slug: str) -> Iterator[str]:
        """Yield an import's records as the exact texts that the API sends, in insertion order."""
        found = self._live(slug)
        for rank in range(len(found.rows)):
            yield record_text(found, found.rows.index_at(rank), self.switches)

    def edit_randomly(self, n: int = 1, seed: int | None = None) -> list[str]:
        """Make `n` seeded edits of all kinds; return a line for each. Without a seed, each call differs."""
        with self._lock:
            self._scripts += 1
            return edit_randomly(self, n, (self.seed, self._scripts if seed is None else ("seed", seed)))

    def _answer(self, endpoint: str, slug: str, request: Request) -> Response:
        if endpoint == "unknown":
            return error_response(404, "not_found", "There is nothing at this address.")
        if request.method != METHODS[endpoint]:
            wanted = METHODS[endpoint]
            return error_response(405, "method_not_allowed", f"Only {wanted} works here.", allow=wanted)
        if not self._authorized(request):
            message = "A valid bearer token is required."
            return error_response(401, "unauthorized", message, www_authenticate="Bearer")
        if endpoint == "sessions":
            return self._create_session(request)
        if endpoint == "imports":
            return self._list_imports(request)
        found = self.find(slug)
        if found is None or (endpoint == "import" and slug in self.faults.misrouted_imports):
            return error_response(404, "not_found", "There is no such import.")
        if endpoint == "import":
            return json_response(200, import_text(self, found, self.switches))
        return self._list_records(found, request)

    def _authorized(self, request: Request) -> bool:
        scheme, _, token = (request.header("authorization") or "").partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(given, self.token.encode())

    def _create_session(self, request: Request) -> Response:
        try:
            body = json.loads(request.body)
        except ValueError:
            return error_response(422, "invalid_body", "The body must be a JSON object.")
        if not isinstance(body, dict):
            return error_response(422, "invalid_body", "The body must be a JSON object.")
        importer_slug, metadata = body.get("importer_slug"), body.get("metadata", {})
        if not isinstance(importer_slug, str) or not importer_slug:
            return error_response(422, "invalid_body", "importer_slug must be a string.")
        if not isinstance(metadata, dict):
            return error_response(422, "invalid_body", "metadata must be an object.")
        if importer_slug not in self.importers:
            return error_response(404, "not_found", "There is no such importer.")
        token = session_token(self.session_key, importer_slug, metadata, self._wall_clock())
        return json_response(201, json.dumps({"token": token}))

    def _list_imports(self, request: Request) -> Response:
        window = asked_window(request, self.switches, self.seed)
        if isinstance(window, Response):
            return window
        listed = self._ordered_imports()
        status = request.query.get("status")
        if status and self.switches.status_filter != "ignored":
            exact = self.switches.status_filter == "exact"
            listed = [found for found in listed if exact and found.status == status]
        if (refusal := past_the_end(window, len(listed), self.switches)) is not None:
            return refusal
        shown = listed[window.start : window.start + window.size]
        return json_response(
            200, f'{{"data":[{",".join(import_text(self, found, self.switches) for found in shown)}]}}'
        )

    def _ordered_imports(self) -> list[StoredImport]:
        order = self.switches.import_order
        if order == "random":
            live = self.live()
            return list(map(live.__getitem__, map(shuffled(len(live), self.seed, self._answered), range(len(live)))))
        key = (self.version, order)
        if self._listing is None or self._listing[0] != key:
            self._listing = (key, self._sorted_imports(order))
        return self._listing[1]

    def _sorted_imports(self, order: str) -> list[StoredImport]:
        listed = self.live()
        if order == "arbitrary":
            listed.sort(key=lambda found: share(self.seed, found.slug, found.revision))
        elif order != "insertion":
            updated = order.startswith("updated")
            listed.sort(key=lambda found: found.updated_at if updated else found.created_at)
            if order.endswith("desc"):
                listed.reverse()
        return listed

    def _list_records(self, found: StoredImport, request: Request) -> Response:
        if found.slug in self.faults.failing_imports:
            return error_response(500, "internal_error", "The records of this import can't be read.")
        window = asked_window(request, self.switches, self.seed)
        if isinstance(window, Response):
            return window
        if not found.rows and self.switches.no_records == 404:
            return error_response(404, "not_found", "This import has no records.")
        if (refusal := past_the_end(window, len(found.rows), self.switches)) is not None:
            return refusal
        seed = f"{self.seed} {found.slug}"
        ranks = record_ranks(found.rows, self.switches.record_order, seed, self._answered)
        records = [record_text(found, index, self.switches) for index in ranks.window(window.start, window.size)]
        end = records_metadata_text(found, self.switches)
        return json_response(200, f'{{"data":[{",".join(records)}]{end}}}')

    def _compressed(self, request: Request, reply: Response) -> Response:
        if not (self.switches.gzip and reply.body and "gzip" in (request.header("accept-encoding") or "")):
            return reply
        headers = {**reply.headers, "content-encoding": "gzip", "vary": "accept-encoding"}
        return replace(reply, headers=headers, body=gzip.compress(reply.body, compresslevel=1, mtime=0))


def _route(path: str) -> tuple[str, str]:
    """Return the endpoint's name and the import slug of a path."""
    if path == SESSIONS_PATH:
        return "sessions", ""
    if path == IMPORTS_PATH:
        return "imports", ""
    if path.startswith(f"{IMPORTS_PATH}/"):
        slug, slash, rest = path[len(IMPORTS_PATH) + 1 :].partition("/")
        if slug and not slash:
            return "import", slug
        if slug and rest == "records":
            return "records", slug
    return "unknown", ""
