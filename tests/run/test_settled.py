"""What may have changed unseen, or was asked for and not read, is read by the next run; nothing is passed over."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from connector.maintain.verify import VerifyReport, verify
from connector.models import EPOCH
from connector.run import session as session_module
from connector.run.ports import Ports
from connector.run.record import RunRecord
from connector.run.sync import sync
from connector.runs import Tally
from connector.sandbox import Request, Response, Service, Switches
from connector.sandbox.switches import StatusFilter
from connector.service.client import ServiceClient
from connector.settings import RunScope, Selection, Settings, Window
from connector.warehouse.ledger_table import DUE
from tests.simulation.kill_switch import KillSwitch
from tests.simulation.machines import ModelMachine
from tests.simulation.manual_changes import go_back_to_the_first_version
from tests.simulation.virtual_time import Wire, virtual_loop
from tests.simulation.world import run_immediately

from .test_guarantees import rows_of_service

NOON = datetime(2026, 3, 1, 12, 3, 20, tzinfo=UTC)  # no full minute: times that all are may be told by the minute
FULL = RunScope(mode="backfill", force=True)


@dataclass
class Place:
    """A service and its clock, which it tells in `Date` where `tells`; our own clock is `ahead` of it."""

    machine: ModelMachine
    now: datetime = NOON
    tells: bool = True
    ahead: timedelta = timedelta(0)
    date: datetime | None = None  # which it tells instead
    requests: list[str] = field(default_factory=list)
    answer: Callable[[Request], Response | None] = lambda request: None

    def __post_init__(self) -> None:
        self.service = Service(seed=1, switches=Switches(time_fraction=0), clock=lambda: self.now)

    def _handle(self, request: Request) -> Response:
        self.requests.append(request.path.removeprefix("/api/v1"))
        return self.answer(request) or self.service.handle(request)

    def _open(self, settings: Settings) -> ServiceClient:
        wire = Wire(
            self._handle, lambda: 0.01, lambda label: None, lambda: (self.date or self.now) if self.tells else None
        )
        return ServiceClient(
            settings.base_url,
            settings.access_token.get_secret_value(),
            max_concurrency=settings.max_concurrency,
            transport=wire,
            monotonic=lambda: asyncio.get_running_loop().time(),
            now=self._ours,
        )

    def _ours(self) -> datetime:
        return self.now + self.ahead

    @property
    def ports(self) -> Ports:
        return Ports(self._open, virtual_loop, self._ours, run_immediately)

    def settings(self, **more: Any) -> Settings:
        return Settings.load(base_url="https://service.example", access_token=self.service.token, **more)

    def run(self, scope: RunScope | None = None, stop: Callable[[], int | None] = lambda: None, **more: Any) -> Tally:
        self.requests.clear()
        with self.machine.process(KillSwitch(lambda where: None), Random(1)) as pipeline:
            return sync(
                cast("Any", pipeline),
                self.settings(**more),
                scope,
                stop=stop,
                ports=self.ports,
                load=self.machine.load,
            )

    def verify(self) -> VerifyReport:
        with self.machine.process(KillSwitch(lambda where: None), Random(1)) as pipeline:
            return verify(cast("Any", pipeline), self.settings(), ports=self.ports)

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = self.machine._database.cursor()
        return connection.execute("USE importer_data").execute(sql, values).fetchall()

    @property
    def read(self) -> set[str]:
        return {path.split("/")[2] for path in self.requests if path.endswith("/records")}

    def names(self) -> list[str]:
        return [name for (name,) in self.query("SELECT name FROM records_t ORDER BY 1")]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """On the model of dlt, whose runs take a twentieth of the time."""
    machine = ModelMachine(tmp_path)
    place = Place(machine)
    machine.clock = place._ours
    yield place
    machine.close()


def rows_of(place: Place) -> list[tuple[str]]:
    found = rows_of_service(place.service)
    return [(data,) for _, data in found.values()]


def rename(place: Place, slug: str, name: str) -> None:
    place.service.edit_row(slug, next(iter(place.service.record_slugs(slug))), {"name": name})


# -- settled -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tells", [True, False], ids=["by its own clock", "by ours"])
def test_an_edit_in_the_second_of_the_last_one_is_seen_by_the_next_run(place: Place, tells: bool) -> None:
    place.tells = tells
    slug = place.service.add_import("t", [{"name": "before"}])
    assert place.run().status == "succeeded"
    rename(place, slug, "after")
    place.now += timedelta(hours=1)
    assert place.run().status == "succeeded"
    assert place.names() == ["after"]

    assert place.run().records_loaded == 0
    assert place.requests
    assert place.read == set(), "settled once it was read later than that"


def assert_an_edit_is_seen(place: Place, later: timedelta) -> None:
    """One within the second that was read is there after the next run, and nothing is read a third time."""
    slug = place.service.add_import("t", [{"name": "before"}])
    assert place.run().status == "succeeded"
    rename(place, slug, "after")
    place.now += later
    assert place.run().status == "succeeded"
    assert place.names() == ["after"]
    place.run()
    assert place.read == set()


def test_an_edit_in_the_quarter_of_an_hour_of_the_last_one_is_seen(place: Place) -> None:
    """The service counts time in quarters of an hour, as all its times together show."""
    quarter = timedelta(minutes=15)
    place.service = Service(
        seed=1, switches=Switches(time_fraction=0), clock=lambda: place.now - (place.now - EPOCH) % quarter
    )
    for _ in range(4):
        place.service.add_import("other", [{"name": "same"}])
        place.now += quarter
    slug = place.service.add_import("t", [{"name": "before"}])
    place.now += timedelta(minutes=5)
    assert place.run().status == "succeeded"
    rename(place, slug, "after")
    place.now += timedelta(hours=1)
    assert place.run().status == "succeeded"
    assert place.names() == ["after"]
    place.run()
    assert place.read == set()


@pytest.mark.parametrize("minutes", [-300, 300])
def test_the_clock_of_the_service_counts_and_not_ours(place: Place, minutes: int) -> None:
    place.ahead = timedelta(minutes=minutes)
    assert_an_edit_is_seen(place, timedelta(seconds=40))


def test_rows_of_a_replica_that_is_behind_the_listing_are_read_again(place: Place) -> None:
    """As many rows as the listing says, on one page, from before the edit."""
    old: list[Response] = []
    behind = False

    def replica(request: Request) -> Response | None:
        reply = place.service.handle(request)
        if request.path.endswith("/records"):
            old.append(reply)
            return old[0] if behind else reply
        return reply

    place.answer = replica
    slug = place.service.add_import("t", [{"name": "before"}])
    place.now += timedelta(minutes=1)
    place.run()
    rename(place, slug, "after")
    place.now += timedelta(seconds=25)
    behind = True
    place.run()
    behind = False
    place.now += timedelta(minutes=1)
    assert place.run().status == "succeeded"
    assert place.names() == ["after"]
    place.run()
    assert place.read == set()


@pytest.mark.parametrize("days", [-30, -3, 3, 30])
def test_an_edit_is_seen_where_a_clock_is_days_off_and_nobody_knows_which(place: Place, days: int) -> None:
    place.ahead = timedelta(days=days)
    assert_an_edit_is_seen(place, timedelta(hours=1))


@pytest.mark.parametrize("hours", [-5, 2])
def test_an_edit_is_seen_where_times_are_local_and_say_no_offset(place: Place, hours: int) -> None:
    def local(request: Request) -> Response | None:
        reply = place.service.handle(request)
        zone = timezone(timedelta(hours=hours))

        def naive(found: re.Match[bytes]) -> bytes:
            at = datetime.fromisoformat(found[1].decode()).astimezone(zone)
            return b'"updated_at":"' + at.replace(tzinfo=None).isoformat().encode() + b'"'

        return replace(reply, body=re.sub(rb'"updated_at": ?"([^"]+)"', naive, bytes(reply.body)))

    place.answer = local
    place.service.add_import("t", [{"name": "other"}])
    place.now += timedelta(minutes=5)
    slug = place.service.add_import("t", [{"name": "before"}])
    assert place.run().status == "succeeded"
    rename(place, slug, "after")
    place.now += timedelta(minutes=5)
    assert place.run().status == "succeeded"
    assert place.names() == ["after", "other"]
    place.now += timedelta(hours=3)
    place.run()
    place.run()
    assert place.read == set()


@pytest.mark.parametrize(
    ("unit", "hours"), [(timedelta(minutes=1), 0), (timedelta(days=1), 0), (timedelta(days=1), 5.5)]
)
def test_an_edit_is_seen_where_the_only_time_there_is_tells_no_seconds(
    place: Place, unit: timedelta, hours: float
) -> None:
    def coarse(request: Request) -> Response | None:
        reply = place.service.handle(request)
        zone = timezone(timedelta(hours=hours))

        def truncated(found: re.Match[bytes]) -> bytes:
            at = datetime.fromisoformat(found[1].decode()).astimezone(zone)
            since = datetime(2026, 1, 1, tzinfo=zone)
            return b'"updated_at":"' + (at - (at - since) % unit).isoformat().encode() + b'"'

        return replace(reply, body=re.sub(rb'"updated_at": ?"([^"]+)"', truncated, bytes(reply.body)))

    place.answer = coarse
    place.now += timedelta(seconds=15)
    slug = place.service.add_import("t", [{"name": "before"}])
    place.now += timedelta(seconds=5)
    assert place.run().status == "succeeded"
    rename(place, slug, "after")
    place.now += unit
    assert place.run().status == "succeeded"
    assert place.names() == ["after"]
    place.now += unit
    place.run()
    place.run()
    assert place.read == set()


@pytest.mark.parametrize("told", ["Age", "Date"])
@pytest.mark.parametrize("age", [timedelta(minutes=20), timedelta(days=3)], ids=str)
def test_rows_that_a_cache_repeats_after_an_edit_are_read_again(place: Place, told: str, age: timedelta) -> None:
    """The rows that the run before last read, for an import of which the listing shows the edit."""
    kept: list[Response] = []
    repeats = False

    def cached(request: Request) -> Response | None:
        reply = place.service.handle(request)
        place.date = None
        if request.path.endswith("/records"):
            kept.append(reply)
            if repeats:
                place.date = place.now - age if told == "Date" else None
                seconds = str(int(age.total_seconds()))
                return replace(kept[0], headers={**reply.headers, **({"Age": seconds} if told == "Age" else {})})
        return reply

    place.answer = cached
    slug = place.service.add_import("t", [{"name": "before"}])
    place.now += timedelta(days=4)
    assert place.run().status == "succeeded"
    rename(place, slug, "after")
    place.now += timedelta(minutes=10)
    repeats = True
    place.run()
    assert place.names() == ["before"], "no reply said that there is anything newer"
    repeats = False
    assert place.run().status == "succeeded"
    assert place.names() == ["after"]
    place.now += timedelta(days=4)
    place.run()
    place.run()
    assert place.read == set()


@pytest.mark.parametrize("date", [datetime(1970, 1, 1, tzinfo=UTC), NOON - timedelta(days=2)])
def test_a_date_that_no_clock_shows_today_is_not_taken_for_the_time(place: Place, date: datetime) -> None:
    place.date = date
    assert_an_edit_is_seen(place, timedelta(minutes=10))


def test_an_import_is_read_again_only_while_it_may_change_unseen(place: Place) -> None:
    place.service.add_import("t", [{"name": "x"}])
    for seconds, again in ((0, True), (1, True), (32, True), (33, False), (34, False)):
        place.now = NOON + timedelta(seconds=seconds)
        place.run(FULL)
        place.run()
        assert bool(place.read) is again, seconds


def test_a_backfill_of_one_import_knows_the_unit_of_all_times(place: Place) -> None:
    """A single time on a full minute would pass for one of seconds, and the import for settled."""
    minutes = Switches(time_fraction=0)
    place.service = Service(seed=1, switches=minutes, clock=lambda: place.now.replace(second=0))
    for minute in range(4):
        place.now = NOON + timedelta(minutes=minute)
        slug = place.service.add_import("t", [{"name": f"before {minute}"}])
    place.now += timedelta(seconds=10)
    place.run()
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset({slug})), force=True))
    rename(place, slug, "after")
    place.now += timedelta(hours=1)
    assert place.run().status == "succeeded"
    assert "after" in place.names()


def test_a_time_that_no_clock_has_shown_yet_is_not_waited_for(place: Place) -> None:
    place.now = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    place.service.add_import("t", [{"name": "x"}])
    place.now = NOON
    place.run()
    place.run()
    assert place.read == set()


def test_an_import_that_vanishes_and_comes_back_is_read_again_and_never_called_failed(place: Place) -> None:
    gone = place.service.add_import("t", [{"name": "x"}])
    place.service.add_import("t", [{"name": "y"}])
    place.now += timedelta(seconds=61)
    place.run()

    def vanish(request: Request) -> None:
        if request.path.endswith(f"{gone}/records") and place.service.find(gone) is not None:
            place.service.delete_import(gone)

    place.answer = vanish
    assert place.run(FULL).status == "succeeded"
    assert place.query("SELECT state, error FROM sync_imports WHERE slug = ?", gone) == [("synced", None)]
    place.answer = lambda request: None
    place.service.restore_import(gone)
    assert place.run().status == "succeeded"
    assert place.read == {gone}
    place.run()
    assert place.read == set()


# -- a backfill is a promise ---------------------------------------------------------------------------------------


def promised(place: Place) -> set[str]:
    return {slug for (slug,) in place.query("SELECT slug FROM sync_imports WHERE due = 'backfill'")}


class Killed(BaseException):
    pass


@contextmanager
def killed_after(packages: int) -> Iterator[None]:
    """The process dies with the package after so many: nothing of what it would still do is done."""
    committed, done = session_module.RunSession.committed, 0

    def dying(self: Any, load_id: str | None) -> None:
        nonlocal done
        done += 1
        if done > packages:
            raise Killed
        committed(self, load_id)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session_module.RunSession, "committed", dying)
        patched.setattr(RunRecord, "finish", lambda self: None)
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize(
    ("scope", "asked"),
    [
        (FULL, {"a", "b", "c"}),
        (RunScope("backfill", selection=Selection(template="t"), force=True), {"a", "b"}),
        (RunScope("backfill", selection=Selection(slugs=frozenset("ac")), force=True), {"a", "c"}),
        (RunScope("backfill", window=Window(since=NOON, until=NOON + timedelta(seconds=1)), force=True), {"a"}),
    ],
    ids=["full", "template", "imports", "window"],
)
@pytest.mark.parametrize("end", ["stopped", "killed", "service down"])
def test_what_a_backfill_has_not_read_is_read_by_the_next_run(
    place: Place, scope: RunScope, asked: set[str], end: str
) -> None:
    for slug, template in (("a", "t"), ("b", "t"), ("c", "u")):
        place.service.add_import(template, [{"name": slug}], slug=slug)
        place.now += timedelta(seconds=61)
    place.run()
    place.query("UPDATE records SET data = '{}'")
    if end == "stopped":
        assert place.run(scope, stop=lambda: 15 if place.read else None, batch_rows=1).status == "interrupted"
    elif end == "killed":
        with killed_after(0):
            place.run(scope, batch_rows=1)
    else:
        place.answer = lambda request: Response(401, {}, b"{}")
        assert place.run(scope).status == "failed"
        place.answer = lambda request: None
    left = promised(place)
    assert left <= asked
    if end == "service down":
        assert left

    assert place.run().status == "succeeded"

    assert place.read == (asked if end == "service down" else left)
    assert promised(place) == set()
    emptied = place.query("SELECT import_slug FROM records WHERE data = '{}'")
    assert {slug for (slug,) in emptied} == set("abc") - asked
    place.run()
    assert place.read == set()


def test_a_promise_is_kept_in_a_ledger_of_an_earlier_version(place: Place) -> None:
    place.service.add_import("t", [{"name": "x"}], slug="a")
    place.now += timedelta(seconds=61)
    place.run()
    place.query(f"ALTER TABLE sync_imports DROP COLUMN {DUE}")
    place.answer = lambda request: Response(401, {}, b"{}")
    assert place.run(FULL).status == "failed"
    place.answer = lambda request: None
    assert promised(place) == {"a"}
    assert place.run().status == "succeeded"
    assert (place.read, promised(place)) == ({"a"}, set())


@pytest.mark.parametrize("matching", ["exact", "ignored", "matches_nothing"])
def test_what_left_the_chosen_status_is_read_again_when_it_is_back_with_the_same_time(
    place: Place, matching: StatusFilter
) -> None:
    place.service.switches = replace(place.service.switches, status_filter=matching)
    slug = place.service.add_import("t", [{"name": "Ada"}])
    begun = place.now
    place.now = begun + timedelta(minutes=2)
    place.run(status="completed")
    place.now = begun
    place.service.set_status(slug, "submitted")
    place.now = begun + timedelta(minutes=4)
    for _ in range(2):
        assert place.run(status="completed").status == "succeeded"
        assert place.query("SELECT state, due FROM sync_imports") == [("synced", "status")]
    place.now = begun
    place.service.edit_row(slug, next(iter(place.service.record_slugs(slug))), {"name": "Bob"})
    place.service.set_status(slug, "completed")
    place.now = begun + timedelta(minutes=6)
    assert place.run(status="completed").status == "succeeded"
    assert place.query("SELECT name FROM records_t") == [("Bob",)]
    assert promised(place) == set()


# -- rows that are there stay --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_count", [5, 0])
@pytest.mark.parametrize("shown", [0, 2])
def test_an_unfinished_import_never_loses_rows_while_it_stands_still(place: Place, shown: int, row_count: int) -> None:
    slug = place.service.add_import("t", [{"name": f"n{n}"} for n in range(5)], status="submitted")
    place.service.set_row_count(slug, row_count)
    place.now += timedelta(seconds=61)
    place.run()
    loaded = place.query("SELECT count(*) FROM records WHERE _deleted_at IS NULL")
    place.answer = lambda request: _only(place, request, shown) if request.path.endswith("/records") else None

    for _ in range(2):
        tally = place.run()
        assert (tally.status, tally.imports_failed) == ("partial", 1)
        assert f"{shown} records were found, fewer than are loaded" in str(tally.error)
        assert place.query("SELECT count(*) FROM records WHERE _deleted_at IS NULL") == loaded == [(5,)]
        assert place.verify().exit_code == 3

    place.answer = lambda request: None
    assert place.run().status == "succeeded"
    assert place.verify().exit_code == 0
    assert sorted(place.query("SELECT data FROM records")) == sorted(rows_of(place))


@pytest.mark.parametrize("reconcile", ["off", "warn", "fail"])
@pytest.mark.parametrize("shown", [0, 2])
def test_a_completed_import_never_loses_rows_while_it_stands_still(place: Place, shown: int, reconcile: str) -> None:
    place.service.add_import("t", [{"name": f"n{n}"} for n in range(5)])
    place.now += timedelta(seconds=61)
    place.run(reconcile=reconcile)
    place.answer = lambda request: _only(place, request, shown) if request.path.endswith("/records") else None

    for scope in (FULL, None):
        tally = place.run(scope, reconcile=reconcile)
        assert (tally.status, tally.imports_failed) == ("partial", 1)
        assert f"{shown} records were found, fewer than are loaded" in str(tally.error)
        assert place.query("SELECT count(*) FROM records WHERE _deleted_at IS NULL") == [(5,)]
    assert place.verify().exit_code == 3

    place.answer = lambda request: None
    assert place.run(reconcile=reconcile).status == "succeeded"
    assert sorted(place.query("SELECT data FROM records")) == sorted(rows_of(place))
    assert place.query("SELECT fewer_found, fewer_since FROM sync_imports") == [(None, None)]
    place.run(reconcile=reconcile)
    assert place.read == set()


@pytest.mark.parametrize("status", ["completed", "submitted"])
def test_rejected_records_do_not_stand_for_loaded_ones(place: Place, status: Any) -> None:
    place.service.add_import("t", [{"name": f"n{n}"} for n in range(6)], status=status)
    shown, spoilt = 6, 2

    def answer(request: Request) -> Response | None:
        if not request.path.endswith("/records"):
            return None
        reply = place.service.handle(request)
        rows = json.loads(reply.body)["data"] if reply.status == 200 else []
        for row in rows[-spoilt:] if spoilt else ():
            row["data"] = None
        return replace(reply, body=json.dumps({"data": rows[-shown:]}).encode()) if rows else reply

    place.answer = answer
    place.now += timedelta(seconds=61)
    place.run()
    assert place.query("SELECT records_loaded, records_rejected FROM sync_imports") == [(4, 2)]

    for fault in ("one is not shown", "one has lost its data"):
        shown, spoilt = (5, 2) if "not shown" in fault else (6, 3)
        tally = place.run(FULL)
        assert "3 records were found, fewer than are loaded" in str(tally.error)
        assert place.query("SELECT count(*) FROM records") == [(4,)]

    shown, spoilt = 6, 0
    assert place.run().status == "succeeded", "it is read again until it is whole"
    assert place.query("SELECT records_loaded, records_rejected FROM sync_imports") == [(6, 0)]


@pytest.mark.parametrize("status", ["completed", "submitted"])
def test_rows_that_are_away_for_a_day_count_as_deleted(place: Place, status: Any) -> None:
    """Deleted at the service without a trace at the import, whose row_count is what was once uploaded."""
    place.service.add_import("t", [{"name": f"n{n}"} for n in range(5)], status=status)
    place.now += timedelta(seconds=61)
    place.run(reconcile="off")
    shown = 3
    place.answer = lambda request: _only(place, request, shown) if request.path.endswith("/records") else None
    for hours, only, left in ((0, 3, 5), (20, 3, 5), (23, 2, 5), (46, 2, 5), (48, 2, 2)):
        shown = only
        place.now = NOON + timedelta(hours=1 + hours)
        assert place.run(FULL, reconcile="off").status == ("succeeded" if left == 2 else "partial")
        assert place.query("SELECT count(*) FROM records") == [(left,)], hours
    assert place.query("SELECT records_loaded, fewer_found, fewer_since FROM sync_imports") == [(2, None, None)]


def test_a_completed_import_with_as_many_records_as_it_says_may_have_fewer_than_before(place: Place) -> None:
    slug = place.service.add_import("t", [{"name": f"n{n}"} for n in range(5)])
    place.service.set_row_count(slug, 3)
    place.now += timedelta(seconds=61)
    place.run()
    assert place.query("SELECT count(*) FROM records") == [(5,)]
    place.answer = lambda request: _only(place, request, 3) if request.path.endswith("/records") else None
    assert place.run().status == "succeeded"
    assert place.query("SELECT count(*) FROM records") == [(3,)]


def _only(place: Place, request: Request, shown: int) -> Response:
    reply = place.service.handle(request)
    if reply.status != 200:
        return reply
    rows = json.loads(reply.body)["data"][:shown]
    return replace(reply, body=json.dumps({"data": rows}).encode())


def test_a_finer_time_at_an_imports_own_url_is_no_change_if_it_is_not_listed(place: Place) -> None:
    place.service.add_import("t", [{"name": f"n{n}"} for n in range(5)], status="submitted")
    place.now += timedelta(seconds=61)
    place.run()

    def answer(request: Request) -> Response | None:
        reply = place.service.handle(request)
        if request.path.endswith("/imports"):
            return replace(reply, body=b'{"data": []}')
        if request.path.endswith("/records"):
            return _only(place, request, 0)
        return replace(reply, body=re.sub(rb'("updated_at": ?"[^"]*:[0-9]{2})Z', rb"\1.014443Z", reply.body))

    place.answer = answer
    tally = place.run(FULL)
    assert "0 records were found, fewer than are loaded" in str(tally.error)
    assert place.query("SELECT count(*) FROM records WHERE _deleted_at IS NULL") == [(5,)]
    place.answer = lambda request: None
    assert place.run().status == "succeeded"
    assert sorted(place.query("SELECT data FROM records")) == sorted(rows_of(place))


def test_a_ledger_of_the_first_version_that_lost_a_column_is_upgraded(place: Place) -> None:
    place.service.add_import("t", [{"name": "x"}], slug="a")
    place.now += timedelta(seconds=61)
    place.run()
    go_back_to_the_first_version(place.machine._database.cursor())
    place.query("ALTER TABLE sync_imports DROP COLUMN state")
    for read in {"a"}, set():
        assert place.run().status == "succeeded"
        assert place.read == read


def test_an_unfinished_import_that_changed_may_have_fewer_rows(place: Place) -> None:
    slug = place.service.add_import("t", [{"name": f"n{n}"} for n in range(5)], status="submitted")
    place.run()
    place.now += timedelta(seconds=61)
    place.service.delete_row(slug, next(iter(place.service.record_slugs(slug))))
    assert place.run().status == "succeeded"
    assert sorted(place.query("SELECT data FROM records")) == sorted(rows_of(place))


def test_an_empty_import_without_an_address_for_its_records_is_empty(place: Place) -> None:
    place.service.add_import("t", [], slug="a")
    place.answer = lambda request: Response(404, {}, b"{}") if request.path.endswith("/records") else None
    assert place.run().status == "succeeded"
    assert place.query("SELECT state, records_loaded FROM sync_imports") == [("synced", 0)]


# -- one import answers for another --------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"status": "completed"}], ids=["all", "with a status"])
def test_an_unlisted_import_that_another_one_answers_for_is_reported(place: Place, settings: dict[str, Any]) -> None:
    for slug in ("a", "b", "c"):
        place.service.add_import("t", [{"name": slug}], slug=slug)
    place.now += timedelta(seconds=61)
    place.run(**settings)
    place.run(**settings)
    usual = len(place.requests)
    _answers_for(place, "b", "a")

    tally = place.run(**settings)

    assert tally.status == "partial"
    assert "with import a where import b is asked for" in str(tally.error)
    assert len(place.requests) <= usual + 2, "it is asked for, and nothing is listed again for it"
    assert place.names() == ["a", "b", "c"]
    assert any("with import a where import b" in line for line in place.verify().unchecked)


@pytest.mark.parametrize("never", [0, 1], ids=["each time one more is listed", "one never is"])
def test_imports_that_are_listed_late_hide_none_that_is_gone(place: Place, never: int) -> None:
    """More are gone than are asked for at once, and what is there is listed only after it was asked for."""
    slugs = [f"{n:03}" for n in range(200)]
    for slug in slugs:
        place.service.add_import("t", [{"name": slug}], slug=slug)
    place.now += timedelta(seconds=61)
    assert place.run().status == "succeeded"
    late = slugs[2::-1]  # one is listed once all before it are
    gone = {*slugs[3:80], "199"}
    ordered = place.service._ordered_imports
    place.service._ordered_imports = lambda: [  # type: ignore[method-assign]
        each for each in ordered() if each.slug not in {*late, *gone}
    ]

    def answer(request: Request) -> Response | None:
        asked = request.path.split("/")[-1]
        if len(late) > never and asked == late[0]:
            late.pop(0)
        return replace(place.service.handle(request), status=404) if asked in gone else None

    place.answer = answer

    tally = place.run()

    left = place.query("SELECT count(*) FROM imports WHERE _deleted_at IS NULL")[0][0]
    if not never:
        assert (tally.status, left) == ("succeeded", 200 - len(gone))
    else:
        assert (tally.status, left) == ("partial", 200)
        assert "1 imports exist that the service does not list" in str(tally.error)


def _answers_for(place: Place, gone: str, other: str) -> None:
    def answer(request: Request) -> Response | None:
        if gone in request.path:
            return place.service.handle(replace(request, path=request.path.replace(f"/{gone}", f"/{other}")))
        return None

    ordered = place.service._ordered_imports
    shown = [found for found in ordered() if found.slug != gone]
    place.service._ordered_imports = lambda: shown  # type: ignore[method-assign]
    place.answer = answer


def test_a_listed_import_that_another_one_answers_for_fails(place: Place) -> None:
    place.service.add_import("t", [{"name": "a"}] * 150, slug="a")
    place.service.add_import("t", [{"name": "b"}] * 150, slug="b")
    place.answer = lambda request: (
        place.service.handle(replace(request, path=request.path.replace("/b", "/a")))
        if request.path.endswith("/b")
        else None
    )

    tally = place.run()

    assert (tally.status, tally.imports_failed) == ("partial", 1)
    assert "with import a where import b is asked for" in str(tally.error)
    assert place.query("SELECT slug, state FROM sync_imports ORDER BY 1") == [
        ("a", "synced"),
        ("b", "failed"),
    ]


# -- what a crashed run did -------------------------------------------------------------------------------------------


def test_the_row_of_a_crashed_run_says_what_it_committed(place: Place) -> None:
    for n in range(4):
        place.service.add_import("t", [{"name": f"{n}"}], slug=f"s{n}")
    with killed_after(2):
        place.run(batch_rows=1)
    place.now += timedelta(seconds=61)
    place.run()

    [(status, records, load_ids, requests)] = place.query(
        "SELECT status, records_loaded, load_ids, requests FROM sync_runs ORDER BY started_at, run_id LIMIT 1"
    )
    assert status == "failed"
    assert (records, len(json.loads(load_ids))) == (2, 2)
    assert requests > 0


# -- an import's own address tells less, or more finely --------------------------------------------------------------


def _own(place: Place, change: Callable[[dict[str, Any]], None]) -> Callable[[Request], Response | None]:
    """Have `change` change what an import's own address shows."""

    def answer(request: Request) -> Response | None:
        reply = place.service.handle(request)
        if request.path.count("/") != 4 or reply.status != 200:
            return None
        shown = json.loads(reply.body)
        change(shown)
        return replace(reply, body=json.dumps(shown).encode())

    return answer


@pytest.mark.parametrize("rows", [3, 150])
def test_a_template_that_only_the_listing_shows_is_the_templates_of_all_rows(place: Place, rows: int) -> None:
    slug = place.service.add_import("t", [{"name": f"n{n}"} for n in range(rows)], {"k": 1})
    place.service.add_import("t", [{"name": "other"}])
    place.now += timedelta(seconds=61)
    place.answer = _own(place, lambda shown: shown.update(template=None, metadata=None))
    for scope in (None, FULL, RunScope("backfill", selection=Selection(slugs=frozenset({slug})), force=True), None):
        assert place.run(scope).status == "succeeded"
        assert place.query("SELECT count(*) FROM records_t") == [(rows + 1,)]
        assert place.query("SELECT template__name, metadata__k FROM imports WHERE slug = ?", slug) == [("t", 1)]
    assert place.read == set()
    assert place.verify().exit_code == 0


@pytest.mark.parametrize(("cut", "rest"), [(19, ".123456Z"), (17, "42.5Z")], ids=["seconds", "minutes"])
def test_an_own_address_with_finer_times_has_nothing_read_again(place: Place, cut: int, rest: str) -> None:
    place.now = place.now.replace(second=0, microsecond=0)
    place.service.add_import("t", [{"name": f"n{n}"} for n in range(150)])
    place.now += timedelta(minutes=3)
    place.answer = _own(place, lambda shown: shown.update(updated_at=shown["updated_at"][:cut] + rest))
    assert place.run().status == "succeeded"
    assert place.query("SELECT count(*) FROM records_t") == [(150,)]
    assert place.run().status == "succeeded"
    assert place.read == set()
    assert place.verify().exit_code == 0


def test_an_import_that_answers_410_is_gone(place: Place) -> None:
    gone = place.service.add_import("t", [{"name": "x"}])
    place.service.add_import("t", [{"name": "y"}])
    place.run()
    place.service.delete_import(gone)
    place.answer = lambda request: Response(410, {}, b"{}") if gone in request.path else None
    tally = place.run(mass_delete_limit=1)
    assert (tally.status, tally.imports_deleted) == ("succeeded", 1)
    assert place.names() == ["y"]
