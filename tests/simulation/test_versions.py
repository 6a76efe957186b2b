"""Test that `changes` tells what the service changed and nothing else, whatever happens to the warehouse in between.

A seed draws edits, runs, rebuilds by other hints, new privacy rules and keys, runs without types or versions, backfills
of one import, and deaths in any of them. dlt and DuckDB are real. A failing seed is printed with its events.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from connector.errors import ConfigError
from connector.maintain.rebuild import rebuild
from connector.maintain.verify import verify
from connector.reporting.changes import changes
from connector.run.sync import sync
from connector.runs import Status
from connector.sandbox import Service, serve
from connector.settings import RunScope, Selection, Settings
from tests.simulation.kill_switch import Killed, KillSwitch
from tests.simulation.machines import DltMachine

Row = dict[str, Any]
Told = set[tuple[str, str | None, datetime]]

TABLE = "records_things"
# No two values of a field become equal by any of its hints.
VALUES: dict[str, tuple[Any, ...]] = {
    "who": ("ann", "bob", "cyd", None),
    "day": ("01.02.2024", "13.02.2024", "2024-03-01", 7, None),
    "amount": ("1.234", "12,7", "nan", 5, 2.5, True, None),
    "code": ("17", "x", 18, [1], {"k": 1}, None),
}
HINTS: dict[str, tuple[str, ...]] = {
    "day": ("date:%d.%m.%Y", "date", "text"),
    "amount": ("decimal(12,3):1.234,56", "double", "bigint", "text"),
    "code": ("bigint", "text", "json"),
}
RULES = ("hash", "drop", "mask:1")
STEPS = 14
# The share of each kind of step, beside 35 ordinary runs; a seed leaves some out, and doubles others.
SHARES = {"run without types": 15, "run without versions": 10, "run of a part": 15, "rebuild": 30, "rule": 10, "key": 5}


class Story:
    """A service, a warehouse with versions, and what `changes` has to tell after each run that succeeded."""

    def __init__(self, seed: int, folder: Path, url: str, service: Service) -> None:
        self.dice, self.machine = Random(f"versions {seed}"), DltMachine(folder)
        self.url, self.service = url, service
        self.kill_switch = KillSwitch(lambda moment: self._die(moment))
        self.hints: dict[str, str] = {}
        self.rules: dict[str, str] = {}
        self.ruled: set[str] = set()  # fields that a rule may have emptied in some version
        self.covered: set[str] = set()  # fields with a new rule or key since the last run
        self.unsure: set[str] = set()  # fields whose rule or key first applied while there were no typed rows
        self.taken: set[tuple[str, str]] = set()  # record, field under a rule of which a version took the new value
        self.key = 0
        self.trace: list[str] = []
        self.recorded: dict[str, Row] = {}  # rows of the last run that certainly recorded versions
        self.loaded: list[dict[str, Row]] = []  # rows that runs since then may have loaded
        self.blurred: set[str] = set()  # of these, the records that had changed when the table was rebuilt
        self.mixed: dict[datetime, set[str]] = {}  # when a run began → such records, of which it recorded versions
        self.home: dict[str, str] = {}  # record → its import
        # import → its rows as a run with types read them last; none if one without types read it since
        self.typed: dict[str, dict[str, Row]] = {}
        self.awaited: set[str] = set()  # imports that were read since without types, or before a new rule or key
        self.edited: set[str] = set()  # imports that were edited since the last run
        self.certain = False  # nothing has died since a run that read all
        self.states: list[tuple[datetime, datetime, dict[str, Row], bool]] = []  # begin, end, rows, certainly recorded

    def _die(self, moment: str) -> None:
        self.trace.append(f"killed at {moment}")
        self.machine.disk_at_death()

    def rows(self, *slugs: str) -> dict[str, Row]:
        """Return the rows of these imports, or of all."""
        texts = (json.loads(text) for slug in slugs or self.service.slugs() for text in self.service.record_texts(slug))
        return {record["slug"]: record["data"] for record in texts}

    def settings(self, **changed: Any) -> Settings:
        known: dict[str, Any] = {
            "base_url": self.url,
            "access_token": self.service.token,
            "history": True,
            "hints": {TABLE: self.hints},
            "privacy": {"*": self.rules} if self.rules else None,
            "privacy_key": str(self.key) * 32,
        }
        return Settings.load(**{**known, **changed})

    def within(self, work: Callable[[Any], Any], kill: tuple[str, int] | None) -> Any:
        """Work in a process; return None if it was killed."""
        self.kill_switch.arm(kill)
        try:
            with self.machine.process(self.kill_switch, self.dice) as pipeline:
                done = work(pipeline)
        except Exception:
            if not self.kill_switch.killed:
                raise
        except Killed:
            pass
        killed = self.kill_switch.killed
        if killed:
            self.machine.died()
        self.kill_switch.arm(None)
        return None if killed else done

    def death(self, share: float) -> tuple[str, int] | None:
        kind, most = self.dice.choice((("sql", 120), ("sql", 30), ("commit", 12), ("file", 60)))
        return (kind, self.dice.randint(1, most)) if self.dice.random() < share else None

    # -- what happens --------------------------------------------------------------------------------------------

    def edit(self) -> None:
        slug = self.dice.choice(self.service.slugs())
        self.edited.add(slug)
        for _ in range(self.dice.randint(1, 3)):
            records = sorted(self.service.record_slugs(slug))
            what = self.dice.random()
            if what < 0.1 or not records:
                self.service.append_rows(slug, [self.draw()])
            elif what < 0.2:
                self.service.delete_row(slug, self.dice.choice(records))
            else:
                record = self.dice.choice(records)
                name = self.dice.choice(list(VALUES))
                row = self.rows()[record]
                edited = {**row, name: self.dice.choice(VALUES[name])}
                self.trace.append(f"edit {record}: {name} from {row[name]!r} to {edited[name]!r}")
                self.service.edit_row(slug, record, edited)
        self.home.update(dict.fromkeys(self.service.record_slugs(slug), slug))

    def draw(self) -> Row:
        return {name: self.dice.choice(values) for name, values in VALUES.items()}

    def run(self, kill: tuple[str, int] | None = None, **settings: Any) -> None:
        if self.states and not self.states[-1][-1]:
            kill = None  # an import that was read when two runs died is read only by name
        self.trace.append(f"run {settings} hints {self.hints} rules {self.rules} key {self.key} {kill or ''}")
        begin, rows = datetime.now(UTC), self.rows()
        tally = self.within(lambda pipeline: sync(pipeline, self.settings(**settings), load=self.machine.load), kill)
        if not settings.get("typed", True):
            self.unsure |= self.ruled if self.covered else set()
            self.loaded += [{}] if self.covered else []  # each record differs from its version then
        if tally is not None and self.covered and settings.get("typed", True):
            for record in rows.keys() & self.recorded.keys():
                was, row = self.recorded[record], rows[record]
                self.taken |= {(record, name) for name in self.rules if row[name] != was[name]}
        self.covered = set() if tally is not None else self.covered
        recorded = tally is not None and settings.get("history", True) and settings.get("typed", True)
        if tally is None or recorded:
            self.states.append((begin, datetime.now(UTC), rows, recorded))
        self.loaded.append(rows)
        if recorded:
            self.mixed[tally.started_at] = self.blurred
            self.recorded, self.loaded, self.blurred = rows, [], set()
        self.certain = tally is not None and (recorded or self.certain)
        if tally is not None:
            # versions of the others are erased
            self.recorded = {record: row for record, row in self.recorded.items() if record in rows}
            if settings.get("typed", True):
                self.typed, self.awaited = {slug: self.rows(slug) for slug in self.service.slugs()}, set()
            else:
                self.awaited |= self.edited
                self.typed.update({slug: {} for slug in self.awaited})
            self.edited = set()
            assert tally.status is Status.succeeded, tally.problems
            self.check(rows, complete=recorded)

    def run_part(self) -> None:
        """Read one import again; versions of the others wait if their rows are not in the table under these rules."""
        if not self.certain:
            return
        slug = self.dice.choice(self.service.slugs())
        self.trace.append(f"run of {slug} hints {self.hints} rules {self.rules} key {self.key}")
        scope = RunScope("backfill", selection=Selection(slugs=frozenset([slug])), force=True)
        begin = datetime.now(UTC)
        tally = self.within(lambda pipeline: sync(pipeline, self.settings(), scope, load=self.machine.load), None)
        assert tally.status is Status.succeeded, tally.problems
        self.typed[slug] = self.rows(slug)
        self.awaited.discard(slug)
        self.edited.discard(slug)
        state: dict[str, Row] = {}
        for each, rows in self.typed.items():
            recorded = {record: row for record, row in self.recorded.items() if self.home[record] == each}
            # a row that came while no versions were recorded gets its first one, under whatever rules it is
            state |= {**rows, **recorded} if each in self.awaited else rows
        self.states.append((begin, datetime.now(UTC), state, True))
        self.mixed[tally.started_at] = self.blurred
        self.recorded = state
        self.check(state, complete=False)

    def rebuild(self, kill: tuple[str, int] | None = None) -> None:
        """Rebuild by other hints; they apply from then on, and not if the rebuild died before or was refused."""
        hints = {n: self.dice.choice(each) for n, each in HINTS.items() if self.dice.random() < 0.5}
        earlier, fields = self.hints, self.fields()
        self.trace.append(f"rebuild by {hints} {kill or ''}")
        self.hints = hints
        try:
            done = self.within(lambda pipeline: rebuild(pipeline, self.settings()), kill)
        except ConfigError as refused:
            self.trace.append(f"refused: {refused}")
            self.hints = earlier
            return
        self.certain = self.certain and done is not None
        for rows in self.loaded:
            self.blurred |= {record for record, row in self.recorded.items() if rows.get(record) != row}
        if done is None and self.fields() == fields:
            self.hints = earlier
            if self.dice.random() < 0.5:  # another rebuild makes it whole, else the next run
                self.rebuild()

    def fields(self) -> list[str]:
        """Return the rows of `sync_fields`, which a rebuild replaces together with the table."""
        return sorted(str(row) for row in self.machine.holdings().of_table("sync_fields"))

    def rule(self) -> None:
        name, rules = self.dice.choice([*VALUES]), dict(self.rules)
        self.rules[name] = self.dice.choice(RULES)
        if self.rules != rules:
            self.awaited.update(self.service.slugs())
        self.ruled.add(name)
        self.covered.add(name)

    def change_key(self) -> None:
        self.key += 1
        if "hash" in self.rules.values():
            self.awaited.update(self.service.slugs())
        self.ruled.update(self.rules)
        self.covered.update(self.rules)

    def live(self) -> None:
        for _ in range(2):
            slug = self.service.add_import("Things", [self.draw() for _ in range(self.dice.randint(1, 4))])
            self.home.update(dict.fromkeys(self.service.record_slugs(slug), slug))
        self.run()
        # what one kind of step would hide shows in a seed that leaves it out
        shares = [share * self.dice.choice((0, 1, 2)) for share in SHARES.values()]
        for step in self.dice.choices(["run", *SHARES], [35, *shares], k=STEPS):
            if step.startswith("run"):
                self.edit()
            match step:
                case "run":
                    self.run(self.death(0.4))
                case "run without types":
                    self.run(typed=False)
                case "run of a part":
                    self.run_part()
                case "run without versions":
                    self.run(history=False)
                case "rebuild":
                    self.rebuild(self.death(0.3))
                case "rule":
                    self.rule()
                case "key":
                    self.change_key()
        self.run()
        self.run()
        with self.machine.process(self.kill_switch, self.dice) as pipeline:
            assert verify(pipeline, self.settings(), deep=True).differences == []

    # -- what has to be told -------------------------------------------------------------------------------------

    def check(self, rows: dict[str, Row], *, complete: bool) -> None:
        told = self.told()
        moments = {at for _, _, at in told}
        wanted: Told = set()
        last: dict[str, Row] = {}
        for begin, end, state, recorded in self.states:
            at = next((moment for moment in moments if begin <= moment <= end), None)
            if at is None and not recorded:
                continue  # it died before that
            for record, row in state.items():
                if record not in last:
                    wanted.add((record, None, at or begin))
                else:
                    wanted |= {(record, name, at or begin) for name in VALUES if row[name] != last[record][name]}
            last = state
        wanted = {each for each in wanted if each[0] in rows}  # the versions of deleted rows are erased with them
        seen = {(record, name, at) for record, name, at in told if record in rows}
        assert not complete or seen == told, "what the service erased leaves no version"
        missing, invented = wanted - seen, seen - wanted
        # values that a rule leaves alike are no change, and emptied ones tell of none
        missing = {each for each in missing if each[1] not in self.ruled}
        blurred = {each for each in invented if each[0] in self.mixed.get(each[2], ())}
        invented = {each for each in invented - blurred if each[1] not in self.unsure}
        # an edit that came with a new rule is told no change, and so one that takes it back is one
        invented = {each for each in invented if each[:2] not in self.taken}
        assert not missing, f"not told: {missing}"
        assert not invented, f"nobody changed: {invented}"

    def told(self) -> Told:
        with self.machine.process(self.kill_switch, self.dice) as pipeline:
            found = changes(pipeline, datetime(2000, 1, 1, tzinfo=UTC))
        fields = {(each.record, each.field and each.field.partition(".")[0], each.at) for each in found}  # `code.k`
        return {each for each in fields if each[1] not in ("import", "sort")}


def test_changes_are_those_of_the_service(seeds: list[int], tmp_path: Path) -> None:
    for seed in seeds:
        service = Service(seed)
        (tmp_path / str(seed)).mkdir()
        with serve(service) as url:
            story = Story(seed, tmp_path / str(seed), url, service)
            try:
                story.live()
            except Exception as broken:
                again = f"pytest tests/simulation/test_versions.py --simulation-seed {seed}"
                print("\n".join(story.trace))
                pytest.fail(f"seed {seed}: {type(broken).__name__}: {broken}\nRun it again with: {again}")
            finally:
                story.machine.close()


test_changes_are_those_of_the_service.every = 5  # type: ignore[attr-defined]
