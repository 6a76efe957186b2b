"""Build a service, a warehouse and a machine from a seed, which decides all events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from types import MappingProxyType
from typing import Any, TypeVar
from unittest import mock

from connector.errors import ConfigError
from connector.extract import listing, spill
from connector.maintain.compare import Kind
from connector.maintain.verify import verify
from connector.run import crash_suspects
from connector.run.pipeline import FAILURES_IN_A_ROW
from connector.run.plan import FEWER_CONFIRMED_AFTER
from connector.run.ports import Ports
from connector.run.sync import sync
from connector.runs import Tally
from connector.sandbox import Faults, Request, Response, Service
from connector.sandbox.catalogue import StoredImport
from connector.sandbox.messages import json_response
from connector.sandbox.seeding import SeededClock
from connector.service.client import ServiceClient
from connector.settings import RunScope, Selection, Settings, Window
from connector.transform import width
from connector.transform.naming import MORE
from tests.simulation.edits import edge, move, random_edit, rename, shift, template_slug
from tests.simulation.hinting import Hints, given_for
from tests.simulation.holdings import Holdings
from tests.simulation.kill_switch import Killed, KillSwitch
from tests.simulation.machines import Machine, ModelMachine
from tests.simulation.oracle import (
    OVERFLOWED,
    Ran,
    Seen,
    check_equal,
    check_history,
    check_kept,
    check_mirrored,
    check_promise,
    check_run,
    check_width,
    require,
)
from tests.simulation.protecting import KEY, Rules, named_sections, seen_through
from tests.simulation.renaming import ReadUnder
from tests.simulation.scenario import Episode, Outage, Scenario, fill, quiet, records_history
from tests.simulation.virtual_time import Wire, virtual_loop
from tests.simulation.watching import Watch

R = TypeVar("R")

URL = "https://service.example"
START = datetime(2026, 1, 5, 6, 0, tzinfo=UTC)


def _is_calm(each: Episode) -> bool:
    """Return whether every request is answered as it should be."""
    disturbed = (each.hide, each.blank_pages, each.failing, each.misrouted, each.mistaken, each.emptied, each.outage)
    return each.faults == Faults() and not any(disturbed)


class CoarseClock:
    """Many looks at it fall into one second."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"coarse clock {seed}")
        self.now = datetime(2024, 1, 8, 7, 30, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=self._random.choice((0.01, 0.05, 0.3)))
        return self.now.replace(microsecond=0)

    def between_runs(self) -> None:
        self.now += timedelta(seconds=self._random.choice((0, 0.1, 0.1, 1, 10, 100)))


class PatchyService(Service):
    """Lists that leave out what exists: `hidden` imports for the whole run, `blank` pages now and then.

    The addresses of `mistaken` imports answer with another one each, those of `emptied` imports' records with none.
    An import's `own` address may show it by other switches than the listing does, and that it is `gone` by 410.
    """

    own: Mapping[str, Any] = MappingProxyType({})
    gone = 404

    mistaken: Mapping[str, str] = MappingProxyType({})
    emptied: frozenset[str] = frozenset()

    hidden: frozenset[str] = frozenset()
    blank = 0.0
    dice = Random(0)

    def _ordered_imports(self) -> list[StoredImport]:
        return [found for found in super()._ordered_imports() if found.slug not in self.hidden]

    def _answer(self, endpoint: str, slug: str, request: Request) -> Response:
        if endpoint != "import":
            return super()._answer(endpoint, slug, request)
        other = self.mistaken.get(slug, slug)
        listed, self.switches = self.switches, replace(self.switches, **self.own)
        reply = super()._answer(endpoint, other if self.find(slug) and self.find(other) else slug, request)
        self.switches = listed
        return replace(reply, status=self.gone) if reply.status == 404 else reply

    def _list_records(self, found: StoredImport, request: Request) -> Response:
        if found.slug in self.emptied:
            return json_response(200, '{"data":[]}')
        return super()._list_records(found, request)

    def _list_imports(self, request: Request) -> Response:
        if self.blank and self.dice.random() < self.blank:
            return json_response(200, '{"data":[]}')
        return super()._list_imports(request)


class World:
    """One seed's world. `trace` has all events, the same at every replay."""

    def __init__(self, scenario: Scenario, machine: Machine) -> None:
        self.scenario = scenario
        self.machine = machine
        self.trace: list[str] = []
        self.dice = Random(f"world {scenario.seed}")
        self.now = START
        if isinstance(machine, ModelMachine):
            machine.clock = lambda: self.now
        self._ticks = CoarseClock(scenario.seed) if scenario.coarse else SeededClock(scenario.seed)
        self._jumped = timedelta(0)
        self._left: Holdings | None = None
        self.service = PatchyService(
            scenario.seed,
            switches=scenario.switches,
            clock=lambda: self._ticks() + self._jumped,
            wall_clock=lambda: self.now,
        )
        self.service.dice = Random(f"blank {scenario.seed}")
        odd = Random(f"own address {scenario.seed}")
        self.service.own = odd.choice(({}, {}, {"template": "absent", "metadata": "absent"}, {"time_fraction": 6}))
        self.service.gone = odd.choice((404, 410))
        self._date_is_absurd = odd.random() < 0.3
        fill(self.service, scenario)
        self.watch = Watch(self.service)
        self.kill_switch = KillSwitch(self._on_kill)
        self.ever: dict[str, str] = {}
        self._completed: list[Seen] = []
        self._rules: list[Rules] = []
        self._hints: list[Hints] = []
        self.ever_typed: set[str] = set()
        self._edits_left = 0
        self._edit_probability = 0.0
        self._shifts = 0.0
        self._shifting = Random(f"shifts of {scenario.seed}")
        self._moves = 0.0
        self._moving = Random(f"moves of {scenario.seed}")
        self._renames = 0.0
        self._renaming = Random(f"renames of {scenario.seed}")
        self._read_under = ReadUnder()
        self._edges = Random(f"edges of {scenario.seed}")
        self._kept_until: datetime | None = None
        self._kept = frozenset[str]()
        self._deletes: list[str] = []
        self._deaths = 0
        self._requests = 0
        self._outage: Outage | None = None
        self.service.on_request = self._between_requests
        self.requests: list[Request] = []

    # -- what happens --------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Run all episodes, then undisturbed runs, then the proof."""
        for episode in self.scenario.episodes:
            self.run(episode)
        self.settle()

    def settle(self) -> None:
        self._end_disturbances()
        peace = quiet({**self.scenario.settings, "privacy": self._rules_by_slug()})
        still = self.scenario.switches.edit_moves_import
        whole = RunScope(allow_mass_delete=True, recheck_days=None if still else 100_000)
        ran = self.run(peace, whole)
        if killers := _left_out(ran.after):
            self.note(f"{len(killers)} imports killed runs and are asked for")
            self.run(peace, RunScope(mode="backfill", selection=Selection(slugs=killers), force=True))
            ran = self.run(peace, whole)
        if any(row.get("fewer_found") is not None for row in ran.after.of_table("sync_imports")):
            self.note("rows that were deleted without a trace have been away for a day")
            self.now += FEWER_CONFIRMED_AFTER
            ran = self.run(peace, whole)
        assert ran.tally is not None
        lies = any(t.shown["row_count"] != len(t.rows) + t.spoiled for t in self.watch.truth.values())
        spoiled = any(t.spoiled for t in self.watch.truth.values())
        wanted = {"succeeded", "partial"} if lies or spoiled else {"succeeded"}
        require(ran.tally.status in wanted, "a quiet run succeeds", ran.tally.as_json())
        check_equal(ran, seen_through(peace.settings["privacy"], self.watch), self._hints)
        self._check_deleted(ran)
        if isinstance(self._ticks, CoarseClock):
            # what may have been edited in the second of its last edit is read once more; where few times are told,
            # and all of them are full quarters, that may be a day of any place
            self._ticks.now += timedelta(days=3)
            self.run(peace)
        again = self.run(peace)
        if self._took_page_0_for_another(again.tally):
            self.note("page 0, which shows other rows each time, looked like a page of its own")
            again = self.run(peace)
        self._check_nothing_to_do(again)
        if self.scenario.varied:
            self._check_verified(again, {Kind.record_rejected, Kind.not_reconciled} if lies or spoiled else set())

    def _took_page_0_for_another(self, tally: Tally | None) -> bool:
        """Return whether a run may have found by chance that pages count from 0, and then that they repeat rows.

        Of a few rows in an order that differs at every request, it cannot tell, and must not leave page 0 out.
        """
        switches, told = self.service.switches, "The listing of imports is not known to be complete: its pages repeat"
        by_chance = switches.import_order == "random" and switches.page_zero == "first" and switches.max_per_page < 6
        return by_chance and tally is not None and [each.startswith(told) for each in tally.problems] == [True]

    def _rules_by_slug(self) -> Rules:
        """Return the final rules, which name templates by their slugs, so that renamed ones are read."""
        rules = dict(self.scenario.settings["privacy"])
        for name in sorted(named_sections(rules)):
            rules[template_slug(self.service, name)] = rules.pop(name)
        return rules

    def _end_disturbances(self) -> None:
        service = self.service
        service.faults, service.hidden, service.blank = Faults(), frozenset(), 0.0
        service.mistaken, service.emptied = {}, frozenset()
        for slug in service.slugs():
            found = service.find(slug)
            assert found is not None
            if self.scenario.honest and found.row_count is not None:
                service.set_row_count(slug, None)
            if self.scenario.finished and found.status != "completed":
                service.set_status(slug, "completed")

    def run(self, episode: Episode, scope: RunScope | None = None) -> Ran:
        if episode.manual_change:
            self.note(self.machine.change_manually(Random(f"hand {self.scenario.seed} {len(self.trace)}")))
        before = self.machine.holdings() if episode.manual_change or self._left is None else self._left
        self._prepare_episode(episode, before)
        scope = scope or self._scope(episode.scope)
        settings = Settings.load(base_url=URL, access_token=self.service.token, privacy_key=KEY, **episode.settings)
        self.watch.begin()
        self.note(f"run {scope.mode} {episode}")
        self._outage = episode.outage
        tally = self._process(settings, scope, episode)
        self._edits_left, self.service.on_request = 0, self._between_requests
        self._shifts = self._moves = self._renames = 0.0
        whole = scope == RunScope() or (scope.mode == "incremental" and scope.window == Window())
        of_all = settings.templates is None and settings.exclude_templates is None
        # a page that is wrongly empty cannot be detected if all its rows are unknown
        whole = whole and not episode.blank_pages
        reads_all = of_all and settings.status is None
        ran = Ran(
            before,
            self.machine.holdings(),
            tally,
            whole and reads_all,
            settings,
            scope.allow_mass_delete,
            whole and not reads_all,
            self.service.hidden,
        )
        self._left = ran.after  # only a manual change or another run changes it
        self.note(f"ended {_summary(tally)}" if tally else "was killed")
        overflowed = sum(row["data_type"] == OVERFLOWED for row in ran.after.of_table("sync_fields"))
        self._deaths += tally is None
        require(self._deaths >= 2 or not _left_out(ran.after), "one death is not enough to leave an import out")
        if overflowed:
            self.note(f"{overflowed} fields without column")
        self._rules.append(episode.settings["privacy"])
        self._deletes.append(settings.deletes)
        self._hints.append(settings.hints)
        if settings.deletes == "keep":
            self._kept_until = self.now
            self._kept |= ran.after.tombstones()
        check_run(ran, seen_through(self._rules[-1], self.watch))
        if not any(each.manual_change for each in self.scenario.episodes):  # which may remove what the ledger knows
            self._read_under.check(ran, self.watch, self._rules[-1])
        check_width(ran.after, self.scenario.width)
        if records_history(self.scenario.seed) and tally is not None and tally.fatal is None:
            changed_manually = any(each.manual_change for each in self.scenario.episodes)
            kept = self._kept & ran.after.tombstones()
            check_history(
                ran,
                self._completed,
                self._rules,
                self._deletes,
                kept=kept,
                changed_manually=changed_manually,
                touched=frozenset(self.watch.touched_records | self.watch.touched_imports),
                # what was read within the second of its last edit may have changed since
                calm=not (self.scenario.coarse or self.watch.touched_imports) and _is_calm(episode),
            )
        if tally is not None and episode.outage is not None:
            unheard = [problem for problem in (*tally.problems, str(tally.fatal)) if "has not answered" in problem]
            # if all remaining imports never answer, that cannot be distinguished from a service that is down
            silent = self.service.faults.failing_imports
            others = [problem for problem in unheard if not any(slug in problem for slug in silent)]
            # nor, if they alone were asked since, from an error that is one of the service's faults
            unheard = others if episode.faults == Faults() or others == unheard else []
            require(not unheard, "a restart of a minute is waited for", unheard)
            named_nothing = isinstance(tally.fatal, ConfigError)  # a template without imports
            calm = episode.faults == Faults() and len(silent) < FAILURES_IN_A_ROW
            require(tally.fatal is None or named_nothing or not calm, "a restart fails no run", tally.fatal)
        if scope == RunScope(mode="backfill", force=True) and self.requests and of_all and settings.status is None:
            check_promise(ran)
        self._remember(ran)
        if isinstance(self._ticks, CoarseClock):
            self._ticks.between_runs()
        self.now += timedelta(hours=1)
        return ran

    def _process(self, settings: Settings, scope: RunScope, episode: Episode) -> Tally | None:
        self._requests = 0
        self.requests.clear()
        self.kill_switch.arm(episode.kill)

        def stop() -> int | None:
            return 15 if episode.stop_at is not None and self._requests >= episode.stop_at else None

        try:
            with self._pipeline() as pipeline:
                return sync(pipeline, settings, scope, stop=stop, ports=self._ports(), load=self.machine.load)
        except Killed:
            return None
        finally:
            if self.kill_switch.killed:
                self.machine.died()
            self.kill_switch.arm(None)

    @contextmanager
    def _pipeline(self) -> Iterator[Any]:
        """Start a process."""
        machine = self.machine.process(self.kill_switch, Random(f"{self.scenario.seed} {len(self.trace)}"))
        with (
            machine as pipeline,
            mock.patch.object(spill, "IN_MEMORY", self.scenario.in_memory),
            mock.patch.object(listing, "MAX_PER_PAGE", self.scenario.per_page),
            mock.patch.object(width, "WIDTH", self.scenario.width),
            mock.patch.object(crash_suspects, "BIG_BYTES", self.scenario.big_bytes),
        ):
            yield pipeline

    def _prepare_episode(self, episode: Episode, before: Holdings) -> None:
        if episode.lose_directory:
            self.machine.lose_directory()
            self.note("the working directory is lost")
        self._jumped += timedelta(seconds=episode.clock_jump_s)
        for _ in range(episode.edits_before):
            self._edit()
        for _ in range(episode.moves_before):
            self._move()
        for _ in range(episode.renames_before):
            self._rename()
        for _ in range(episode.edges_before):
            self.note(f"  {self.watch.edit(lambda: edge(self.service, self._edges))}")
        failing = frozenset(slug for slug in self.service.slugs() if self.dice.random() < episode.failing)
        known = {row["slug"] for row in before.of_table("imports") if row["_deleted_at"] is None}
        hidden = (slug for slug in self.service.slugs() if self.dice.random() < episode.hide and slug in known)
        self.service.hidden = frozenset(hidden)
        odd = Random(f"odd {self.scenario.seed} {len(self.trace)}")
        misrouted = frozenset(slug for slug in self.service.slugs() if odd.random() < episode.misrouted)
        # an import that is neither listed nor at its own URL looks deleted
        misrouted -= self.service.hidden
        self.service.faults = replace(episode.faults, failing_imports=failing, misrouted_imports=misrouted)
        self.service.blank = episode.blank_pages
        self._disturb_imports(episode, before)
        self._edit_probability, self._edits_left = episode.edit_probability, episode.edits_at_most
        self._shifts, self._moves, self._renames = episode.shifts, episode.moves, episode.renames

    def _disturb_imports(self, episode: Episode, before: Holdings) -> None:
        """Choose URLs that answer with another import, and imports that show none of their records."""
        dice = Random(f"unsettle {self.scenario.seed} {len(self.trace)}")
        slugs = sorted(self.service.slugs())
        mistaken = [slug for slug in slugs if dice.random() < episode.mistaken]
        self.service.mistaken = {slug: dice.choice(slugs) for slug in mistaken}
        self.watch.look()
        seen = {
            r["slug"]: tuple(map(r.get, ("updated_at", "row_count", "status", "template_slug")))  # one may be dropped
            for r in before.of_table("sync_imports")
        }
        still = [
            slug
            for slug, each in self.watch.truth.items()
            if seen.get(slug) == (each.updated_at, each.shown["row_count"], each.shown["status"], each.template_slug)
        ]
        edits = episode.edit_probability or episode.shifts or episode.moves
        edited = edits or not self.scenario.switches.edit_moves_import
        finished = {slug for slug in still if self.watch.truth[slug].shown["status"] == "completed"}
        emptied = {slug for slug in still if not edited and dice.random() < episode.emptied} - finished
        loaded = {row["slug"] for row in before.of_table("sync_imports") if row.get("records_loaded")}
        away = Random(f"records away {self.scenario.seed} {len(self.trace)}")
        for slug in sorted(finished & loaded):  # an import that counts no rows and shows none looks empty
            if not edited and away.random() < episode.away and self.watch.truth[slug].shown["row_count"]:
                emptied.add(slug)
        self.service.emptied = frozenset(emptied)
        if emptied:
            self.note(f"  {len(emptied)} imports show no records")

    def _edit(self) -> None:
        self.note(f"  {self.watch.edit(lambda: random_edit(self.service, self.dice))}")

    def _move(self) -> None:
        self.note(f"  {self.watch.edit(lambda: move(self.service, self._moving))}")

    def _rename(self) -> None:
        self.note(f"  {self.watch.edit(lambda: rename(self.service, self._renaming))}")

    def _between_requests(self, request: Request) -> None:
        self._requests += 1
        self.requests.append(request)
        if self._edits_left > 0 and self.dice.random() < self._edit_probability:
            self._edits_left -= 1
            self._edit()
        if self._shifts and self._shifting.random() < self._shifts:
            self.note(f"  {self.watch.edit(lambda: shift(self.service, self._shifting, request.path))}")
        if self._renames and self._renaming.random() < self._renames:
            self._rename()
        if self._moves and self._moving.random() < self._moves:
            self._move()

    def _scope(self, kind: str) -> RunScope:
        slugs = self.service.slugs()
        if kind == "recheck":
            return RunScope(recheck_days=100_000)
        if kind == "full":
            return RunScope(mode="backfill", force=True)
        if kind == "selection" and slugs:
            some = self.dice.sample(slugs, min(2, len(slugs)))
            return RunScope(mode="backfill", selection=Selection(slugs=frozenset(some)), force=True)
        if kind == "template" and self.service.templates():
            template = self.dice.choice(self.service.templates()).slug
            return RunScope(mode="backfill", selection=Selection(template=template), force=True)
        if kind == "window":
            since = datetime(2024, 1, 8, 7, self.dice.randrange(30, 60), tzinfo=UTC)
            return RunScope(mode="backfill", window=Window(since=since), force=True)
        return RunScope()

    # -- the connector's side ------------------------------------------------------------------------------------

    def _ports(self) -> Ports:
        travel = Random(f"travel {self.scenario.seed} {len(self.trace)}")
        ticks, absurd = self._ticks, self._date_is_absurd

        def coarse() -> datetime | None:
            return ticks.now + self._jumped if isinstance(ticks, CoarseClock) else None

        wire = Wire(
            self._answer,
            lambda: travel.uniform(0.001, 0.05),
            lambda label: self.kill_switch.step("http", label),
            lambda: None if (now := coarse()) is None else datetime(1970, 1, 1, tzinfo=UTC) if absurd else now,
        )

        def open_client(settings: Settings) -> ServiceClient:
            return ServiceClient(
                settings.base_url,
                settings.access_token.get_secret_value(),
                max_concurrency=settings.max_concurrency,
                transport=wire,
                privacy=settings.protection,
                monotonic=lambda: asyncio.get_running_loop().time(),
                now=lambda: coarse() or self.now,
                random=Random(self.scenario.seed),
            )

        return Ports(open_client, virtual_loop, lambda: self.now, run_immediately)

    def _answer(self, request: Request) -> Response:
        away = self._outage
        if away is not None and away.begin_s <= asyncio.get_running_loop().time() < away.end_s:
            reply = Response(away.status or 503, {}, b"", fault=None if away.status else "reset")
        else:
            reply = self.service.handle(request)
        query = "&".join(f"{k}={v}" for k, v in request.query.items())
        self.note(f"  {request.path.removeprefix('/api/v1')}?{query} {reply.fault or reply.status}")
        return reply

    def _on_kill(self, where: str) -> None:
        self.note(f"  killed at {where}")
        self.machine.disk_at_death()

    def note(self, line: str) -> None:
        self.trace.append(line)

    # -- what must be true ---------------------------------------------------------------------------------------

    def _remember(self, ran: Ran) -> None:
        after = ran.after
        held = after.by_key("records", "slug").keys()
        typed = {row["_record_slug"] for rows in after.typed.values() for row in rows}
        mirrored = ran.settings.deletes == "mirror"
        # rows that are read again leave a table that is not written; a run that died may not have written the other
        died = ran.tally is None or ran.tally.fatal is not None
        if mirrored or not ran.settings.raw:
            moved = self.ever.keys() if mirrored or died else after.live_typed().keys()
            self.ever = {slug: data for slug, data in self.ever.items() if slug in held or slug not in moved}
        if mirrored or not ran.settings.typed:
            self.ever_typed &= typed if mirrored or died else typed | (self.ever_typed - after.live_records().keys())
        if died:  # it may have taken rows out of the table that their import had, before it wrote the other
            known = ran.before.by_key("sync_imports", "slug")
            truth = self.watch.truth
            elsewhere = {s for s in known.keys() & truth.keys() if known[s]["template_slug"] != truth[s].template_slug}
            left = {
                row["_record_slug"]
                for rows in ran.before.typed.values()
                for row in rows
                if row["_import_slug"] in elsewhere
            }
            self.ever_typed -= left - typed
        self.ever.update({slug: row["data"] for slug, row in after.live_records().items()})
        self.ever_typed.update(after.live_typed())

    def _check_deleted(self, ran: Ran) -> None:
        if ran.settings.deletes == "keep":
            check_kept(ran, self.ever, self.ever_typed, self.watch.truth)
        else:
            check_mirrored(ran.after, self._kept_until)

    def _check_verified(self, ran: Ran, told: Collection[Kind]) -> None:
        """Check that `verify` reports only what cannot be loaded or counted, and what was read by other hints."""
        with self._pipeline() as pipeline:
            report = verify(pipeline, ran.settings, deep=True, ports=self._ports())
        fields = ran.after.by_key("sync_fields", "table_name", "column_name")
        rehinted = {key for key, field in fields.items() if len(given_for(self._hints, field)) > 1}
        rehinted |= {(table, MORE) for table, _ in rehinted}  # what does not fit may be there
        found = [
            each.sentence
            for each in report.differences
            if each.kind not in told and not (each.kind is Kind.typed_differs and (each.table, each.column) in rehinted)
        ]
        require(not (found or report.unchecked or report.moved), "verify finds them equal", found, report.as_json())

    def _check_nothing_to_do(self, ran: Ran) -> None:
        """Check that an unchanged service costs the listing, and imports that are unfinished or do not reconcile."""
        open_ = {
            slug
            for slug, truth in self.watch.truth.items()
            if truth.shown["status"] != "completed" or truth.shown["row_count"] != len(truth.rows) + truth.spoiled
        }
        read = {r.path.split("/")[4] for r in self.requests if r.path.endswith("/records")}
        require(read <= open_, "an unchanged service costs the listing and nothing else", read - open_)
        if not open_:
            require(ran.before.without_runs() == ran.after.without_runs(), "a run with nothing to do writes nothing")
            assert ran.tally is not None
            spoiled = any(truth.spoiled for truth in self.watch.truth.values())
            wanted = "partial" if spoiled else "succeeded"
            require(ran.tally.status == wanted, "a run with nothing to do says how things are", ran.tally.as_json())


def _left_out(after: Holdings) -> frozenset[str]:
    return frozenset(row["slug"] for row in after.of_table("sync_imports") if row.get("killed_runs"))


def _summary(tally: Tally) -> str:
    shown = tally.as_json()
    names = ("status", "imports_listed", "imports_changed", "imports_deleted", "imports_failed", "imports_unreconciled",
             "records_loaded", "records_rejected", "requests", "retries")  # fmt: skip
    return " ".join(f"{name}={shown[name]}" for name in names) + f" {tally.error or ''}"


async def run_immediately(function: Callable[[], R], /) -> R:
    """Run functions outside the event loop at once, so that a seed always gives the same events."""
    return function()
