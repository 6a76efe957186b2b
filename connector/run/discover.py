"""List the imports, and request what the listing leaves open (docs/guarantees.md, "Deletes").

An import missing from the listing is requested by its slug. If it exists, the service is listed again or the import is
read anyway; if the service answers 404, it is gone; if another import is returned, that is reported. A bounded run
deletes nothing; with the setting `status` a run requests the imports known at that status.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from msgspec import structs

from connector.errors import AuthError, ConnectorError, NotFoundError
from connector.extract.concurrency import run_concurrently
from connector.extract.convention import FROM_ONE
from connector.extract.imports import ImportLister
from connector.extract.listing import Listing
from connector.extract.records import is_same_time, request_import
from connector.models import Import, Reject
from connector.run.choice import Choice, missing_import_message
from connector.run.decision import Decision, Discovered, Found
from connector.run.ports import Progress
from connector.runs import Tally
from connector.service.client import ServiceClient
from connector.settings import RunScope, Settings
from connector.warehouse.state import WarehouseState

log = logging.getLogger("connector.run")

MAX_LISTING_ROUNDS = 3
REQUESTS_AT_ONCE = 64


class Discovery:
    """The listing of one run. What keeps it from being complete goes into the tally."""

    def __init__(
        self,
        settings: Settings,
        scope: RunScope,
        state: WarehouseState,
        client: ServiceClient,
        tally: Tally,
        *,
        progress: Progress,
        stop: Callable[[], int | None],
        now: datetime,
    ) -> None:
        self._settings = settings
        self._scope = scope
        self._choice = Choice(settings, scope)
        self._decision = Decision(settings, self._choice, state, tally, now=now)
        self._state = state
        self._client = client
        self._tally = tally
        self._progress = progress
        self._stop = stop
        self.convention = FROM_ONE  # as the listing showed
        self._listed: Mapping[str, datetime] = {}  # import → its `updated_at`
        self._template_unknown = False  # an import is not read, because its template is unknown
        self._found: set[str] = set()  # imports that are not listed and exist

    async def make(self) -> Discovered:
        """List the imports, request those that are not listed, and return the decisions."""
        found = await self._find()
        self._listed = _times(found.listing.rows)
        return self._decision.make(replace(found, template_unknown=self._template_unknown))

    async def _find(self) -> Found:
        if self._scope.selection.slugs:
            return await self._find_by_slug()
        known = self._state.known
        lister = self._lister(len(known))
        listing = await lister.all()
        self.convention = listing.convention
        if self._choice.selects:
            return Found(self._named(listing, ()), listing, unseen=self._unseen(listing))
        if self._settings.status is not None:
            gone, hidden, left = await self._unlisted_at_status(listing, self._settings.status)
            unseen = self._unseen(listing)
            return Found(self._named(listing, ()), listing, (), gone, hidden, unseen=unseen, left_status=left)
        rounds = 0
        while True:
            listed = {_slug_of(row) for row in listing.rows}
            is_last = rounds == MAX_LISTING_ROUNDS
            alive, gone = await self._request_unlisted(sorted(known - listed), request_all=is_last)
            if is_last or not alive:
                return Found(self._named(listing, alive), listing, alive, gone, unseen=self._unseen(listing))
            log.warning(
                "%d imports exist but were not listed; listing again.", len(alive), extra={"event": "listing.again"}
            )
            listing = await lister.again()
            self.convention = listing.convention
            rounds += 1

    async def confirm_deleted(self, slugs: Sequence[str]) -> frozenset[str]:
        """Return the imports that answered 404 while they were read and that are neither found nor listed any more.

        An import that is still listed exists, whatever its own URL answers, and must not be skipped.
        """
        try:
            answers: list[Import | ConnectorError | None] = []
            for start in range(0, len(slugs), REQUESTS_AT_ONCE):
                answers += await run_concurrently(
                    self._request(slug) for slug in slugs[start : start + REQUESTS_AT_ONCE]
                )
            listing = await self._lister(self._tally.imports_listed).all()
        except ConnectorError:
            return frozenset()
        listed = {_slug_of(row) for row in listing.rows}
        absent = {slug for slug, answer in zip(slugs, answers, strict=True) if answer is None}
        return frozenset(absent - listed) if listing.complete else frozenset()

    async def is_unchanged(self, read: Mapping[str, datetime]) -> bool:
        """Return whether the service lists what it listed before, but for imports that were `read` as they are now.

        `read` has the `updated_at` of those that had changed when they were read.
        """
        try:
            listing = await self._lister(len(self._listed)).all()
        except ConnectorError:
            return False
        if not listing.complete or any(isinstance(row, Reject) for row in listing.rows):
            return False
        return _times(listing.rows) == {**self._listed, **read}

    def _lister(self, expected: int) -> ImportLister:
        return ImportLister(
            self._client,
            self._settings.status,
            self._progress.listed,
            expected=expected,
            stop=lambda: self._stop() is not None,
        )

    async def _find_by_slug(self) -> Found:
        """Return the imports that were requested by slug, as the listing shows them.

        Their own URLs may leave out fields, and the next run compares their rows in `imports` with the listing.
        """
        found = {i.slug: i for i in await self._by_slug()}
        listing = await self._lister(len(self._state.ledger)).all()
        self.convention = listing.convention
        listed = [row for row in listing.rows if isinstance(row, Import)]
        named = {i.slug: i for i in self._client.with_one_name(listed)}
        unlisted = [i for i in found.values() if i.slug not in named]
        known = self._as_known([i for i in unlisted if self._choice.wants(i)])
        others = [i for i in unlisted if not self._choice.wants(i)]  # of another status than the settings select
        imports = [*(named[slug] for slug in found if slug in named), *known, *others]
        return Found(imports, Listing(tuple(imports), True, 0), unseen=self._unseen(listing))

    def _unseen(self, listing: Listing[Any]) -> int:
        """Return how many of the known imports are not listed and were not found by a request either."""
        seen = {_slug_of(row) for row in listing.rows} | self._found
        return len(self._state.known - self._state.half_deleted - seen)

    async def _by_slug(self) -> tuple[Import, ...]:
        slugs = sorted(self._scope.selection.slugs)
        found = await run_concurrently(self._answer(self._client.get_import(slug)) for slug in slugs)
        errors = [answer for answer in found if isinstance(answer, ConnectorError)]
        if errors and not any(isinstance(answer, Import) for answer in found):
            raise errors[0]
        meant: list[Import] = []
        for slug, import_ in zip(slugs, found, strict=True):
            known = self._state.ledger.get(slug)
            if isinstance(import_, ConnectorError):
                self._tally.shortfall = True
                self._tally.problems.append(f"Import {slug} is not read, because the request for it failed: {import_}")
            elif import_ is None:
                self._tally.shortfall = True
                self._tally.problems.append(missing_import_message(slug, self._state.ledger))
            elif known is not None and known.live and import_.slug != slug:
                self._tally.shortfall = True
                self._tally.problems.append(f"The service answers with import {import_.slug} for import {slug}.")
            else:
                meant.append(import_)
        return tuple(meant)

    def _may_lack_its_template(self, import_: Import) -> bool:
        """Return whether an import shown without a template may have one, and a decision depends on it.

        A missing template must not make a selection or a privacy rule miss an import, nor move its rows to another
        table.
        """
        settings, known = self._settings, self._state.ledger.get(import_.slug)
        chosen = settings.templates is not None or settings.exclude_templates is not None
        counts = chosen or bool(settings.protection.templates) or bool(known is not None and known.template_slug)
        return import_.template is None and counts

    def _as_known(self, unlisted: Sequence[Import]) -> tuple[Import, ...]:
        """Return imports whose template is known or does not matter; report the others, which are not read.

        Their own URLs may show finer times than the listing, which do not mean that they changed.
        """
        without_template = [i for i in unlisted if self._may_lack_its_template(i)]
        for import_ in without_template:
            self._tally.shortfall = self._template_unknown = True
            self._tally.problems.append(
                f"Import {import_.slug} is not listed, and its own URL does not say its template, so it is not read."
            )
        known = self._state.ledger
        return tuple(
            structs.replace(i, updated_at=at)
            if i.slug in known and (at := known[i.slug].updated_at) is not None and is_same_time(at, i.updated_at)
            else i
            for i in unlisted
            if i not in without_template
        )

    async def _unlisted_at_status(
        self, listing: Listing[Any], status: str
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Return imports known at the requested status that the service no longer has, that it hides, and the others.

        If there are any that it hides, which are reported, none is gone. The others exist at another status, listed or
        not, and are not what the run is about.
        """
        known, listed = self._state.known_at(status), {_slug_of(row): row for row in listing.rows}
        shown = (listed[slug] for slug in sorted(known & listed.keys()))
        others = [row.slug for row in shown if isinstance(row, Import) and not self._choice.wants(row)]
        unlisted = known - listed.keys()
        alive, gone = await self._request_unlisted(sorted(unlisted), request_all=True)
        hidden = tuple(import_.slug for import_ in alive if self._choice.wants(import_))
        for slug in hidden:
            self._tally.shortfall = True
            self._tally.problems.append(f"Import {slug} exists, but the service does not list it.")
        left = (*others, *(import_.slug for import_ in alive if import_.slug not in hidden))
        return () if hidden else gone, hidden, left

    async def _request_unlisted(
        self, suspects: list[str], *, request_all: bool
    ) -> tuple[list[Import], tuple[str, ...]]:
        """Request each import that was not listed; return (those that exist, those that the service answers 404 for).

        Once some exist, the rest is requested only with `request_all`, because the service is listed again first.
        """
        alive: list[Import] = []
        gone: list[str] = []
        for start in range(0, len(suspects), REQUESTS_AT_ONCE):
            some = suspects[start : start + REQUESTS_AT_ONCE]
            for slug, answer in zip(some, await run_concurrently(self._request(slug) for slug in some), strict=True):
                if isinstance(answer, Import):
                    alive.append(answer)
                    self._found.add(slug)
                elif answer is None:
                    gone.append(slug)
                    self._found.discard(slug)  # an earlier round may have found it
                else:
                    self._tally.shortfall = True
                    self._tally.problems.append(f"Import {slug} is not listed, and the request for it failed: {answer}")
            if alive and not request_all:
                break
        return alive, tuple(gone)

    async def _request(self, slug: str) -> Import | ConnectorError | None:
        return await self._answer(request_import(self._client, slug))

    @staticmethod
    async def _answer(request: Awaitable[Import]) -> Import | ConnectorError | None:
        """Return the import, None if the service has none, or the error, unless it would be that of each request."""
        try:
            return await request
        except NotFoundError:
            return None
        except AuthError as error:
            if error.status == 401:
                raise
            return error
        except ConnectorError as error:
            return error

    def _named(self, listing: Listing[Any], unlisted: Sequence[Import]) -> list[Import]:
        """Return all imports, each template with one name."""
        listed = [row for row in listing.rows if isinstance(row, Import)]
        return self._client.with_one_name([*listed, *self._as_known(unlisted)])


def _times(rows: Iterable[Import | Reject]) -> dict[str, datetime]:
    return {row.slug: row.updated_at for row in rows if isinstance(row, Import)}


def _slug_of(row: Import | Reject) -> str | None:
    return row.slug if isinstance(row, Import) else row.record_slug
