"""Derive a scenario from a seed: the data, the behaviour of the service, and the events of each run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, get_args

from connector.extract.page_sizes import MAX_PER_PAGE
from connector.sandbox import TEMPLATES, Faults, Service, Switches
from connector.sandbox.switches import Order
from connector.transform.width import Width
from tests.simulation.hinting import make_hints
from tests.simulation.protecting import make_named_rules, make_rules

ORDERS: tuple[Order, ...] = get_args(Order)
SIZES = (0, 0, 1, 1, 2, 3, 7, 20, 49, 99, 100, 101, 150, 200, 300, 350)
KILLS = (("http", 7.0), ("sql", 7.0), ("commit", 4.5), ("commit", 4.5), ("file", 4.0))
ODD_ROWS: tuple[Any, ...] = (
    {"a": 1, "b": "x"},
    {"a": 1.5, "b": 2, "A": "twin"},
    {"a": "text", "b": None, "nested": {"deep": {"deeper": {"deepest": [1, {"k": None}]}}}},
    {"a": True, "": "blank key", "nested": "no object"},
    {"a": [1, 2], "b": "", "größe (cm)": 12.25, "_sort": "system"},
    '{"a":9223372036854775808,"b":0.1000000000000000055511151231257827,"c":1e400}',
    '{"a": 1E2, "b" : "\\u00e9\\n" , "a b": 1, "a_b": 2}',
    {},
)
EDGES = (
    *("0", "-0", "0.0", "-0.0", "-0e5", "1", "1.0", "1E0", "0.1", "true", "null", '""', '"-0"', '"1e400"'),
    *("1e400", "-1e400", "1e-400", "5e-324", "2.2250738585072014e-308", "1.7976931348623157e308"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *("9007199254740993", "9007199254740993.0", "18446744073709551616"),
)
_TABLES = (*((True, True),) * 3, (True, False), (False, True))  # raw, typed
_NAMES = [*sorted(TEMPLATES), "Odd rows"]
# All texts differ: two equal rows without a slug cannot be distinguished from one row that was seen twice.
SPOILED = ('"only a text %d"', '{"slug":null,"data":{},"n":%d}', '{"slug":"x-%d","data":[1]}', "17%d")


@dataclass(frozen=True, slots=True)
class Outage:
    """Seconds of a run in which the service is down; a proxy in front of it may answer with a `status`."""

    begin_s: float
    end_s: float
    status: int | None


@dataclass(frozen=True, slots=True)
class Episode:
    """One run and its events.

    `shifts` is the probability that the list of which a page is requested has changed since, with the same length,
    `moves` that records have moved between imports. `edges_before` rows get numbers at the edge of a type.
    `renames` is the probability that a template has another name since, or two have swapped theirs.
    """

    settings: dict[str, Any]
    scope: str = "incremental"
    faults: Faults = field(default_factory=Faults)
    edits_before: int = 0
    edit_probability: float = 0.0
    edits_at_most: int = 0
    kill: tuple[str, int] | None = None
    stop_at: int | None = None
    lose_directory: bool = False
    clock_jump_s: int = 0
    hide: float = 0.0
    blank_pages: float = 0.0
    failing: float = 0.0
    misrouted: float = 0.0
    outage: Outage | None = None
    mistaken: float = 0.0
    emptied: float = 0.0
    manual_change: bool = False
    away: float = 0.0
    shifts: float = 0.0
    moves_before: int = 0
    moves: float = 0.0
    edges_before: int = 0
    renames_before: int = 0
    renames: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """`honest` services tell the true row_count at the end, `finished` ones have completed all their imports.

    An import of more than `in_memory` records is spilled to disk. `width` bounds the typed tables. From `big_bytes` on
    an import may be what a run dies of. A `coarse` service counts whole seconds, in which much happens, and tells its
    time. `tiny` imports of a few rows come on top, of which most are built together. Pages of `per_page` imports are
    requested. If it is `varied`, more settings than in other scenarios change between runs.
    """

    seed: int
    switches: Switches
    settings: dict[str, Any]
    episodes: tuple[Episode, ...]
    honest: bool
    finished: bool
    many: bool
    in_memory: int
    width: Width
    big_bytes: int
    coarse: bool = False
    tiny: int = 0
    per_page: int = MAX_PER_PAGE
    varied: bool = False


def records_history(seed: int) -> bool:
    """Return whether the world of this seed keeps versions of its rows."""
    return Random(f"history {seed}").random() < 0.25


def changes_settings(seed: int) -> bool:
    """Return whether the runs of this seed's world differ in more of their settings than those of the others."""
    return seed % 8 in (3, 4, 7)


def make_scenario(seed: int, *, varied: bool | None = None) -> Scenario:
    """Return the scenario of a seed; `varied` says whether its settings change, whatever the seed says."""
    varied = changes_settings(seed) if varied is None else varied
    dice = Random(f"scenario {seed}")
    many = dice.random() < 0.2
    settings: dict[str, Any] = {
        "max_concurrency": dice.choice((1, 2, 4, 8)),
        "deletes": dice.choice(("mirror", "mirror", "keep")),
        "mass_delete_limit": dice.choice((0.5, 0.5, 1.0, 0.2)),
        "raw": True,
        "typed": True,
    }
    settings.update(dice.choice(({}, {}, {}, {}, {"raw": False}, {"typed": False})))
    settings["history"] = records_history(seed)
    switches = _switches(dice, many)
    episodes = [_episode(dice, settings) for _ in range(dice.randint(1, 4))]
    for n, before in enumerate(episodes[:-1]):
        if before.kill is not None and dice.random() < 0.3:  # what a crashed run left survives a run over other imports
            scope = dice.choice(("selection", "window", "template"))
            episodes[n + 1] = replace(episodes[n + 1], scope=scope, edits_before=8, kill=None)
    honest, finished = dice.random() < 0.85, dice.random() < 0.8
    in_memory = dice.choice((25_000, 25_000, 100, 10, 0))
    odd = Random(f"odd {seed}")  # a separate generator, so that older seeds do not change
    extra = Random(f"extra {seed}").random() < 0.3
    switches = replace(switches, page_zero=odd.choice(("reject", "first")), extra_fields=extra)
    episodes = [replace(episode, misrouted=odd.choice((0.0,) * 9 + (0.3,))) for episode in episodes]
    end = Random(f"end {seed}")
    past_the_end: Any = end.choice((200, 200, 400, 404, 416, 422))
    # one that counts rows where there are none would have none to show for ever
    no_records: Any = end.choice((200, 404)) if honest else 200
    switches = replace(switches, past_the_end=past_the_end, no_records=no_records)
    away = Random(f"away {seed}")
    episodes = [replace(episode, outage=_outage(away)) for episode in episodes]
    unseen = Random(f"unseen {seed}")
    coarse = unseen.random() < 0.2
    if coarse:
        switches = replace(switches, time_fraction=0)
        # set back by seconds, such a clock shows an edit at the time of an earlier one: nobody can tell them apart
        episodes = [replace(episode, clock_jump_s=max(episode.clock_jump_s, 0)) for episode in episodes]
    chances = (0.0,) * 9 + (0.4,)
    episodes = [
        replace(episode, mistaken=unseen.choice(chances), emptied=unseen.choice(chances)) for episode in episodes
    ]
    hand = Random(f"hand {seed}")
    changes_manually = hand.random() < 0.25
    episodes = [replace(episode, manual_change=changes_manually and hand.random() < 0.5) for episode in episodes]
    later = Random(f"records away {seed}")
    if later.random() < 0.15:  # all is read again while the records of completed imports are away
        again = {**episodes[-1].settings, "status": None, "reconcile": later.choice(("fail", "warn", "off"))}
        episodes.append(Episode(settings=again, scope="full", away=later.choice((0.3, 1.0))))
    paused = Random(f"history paused {seed}")
    episodes = [
        replace(each, settings={**each.settings, "history": False}) if paused.random() < 0.25 else each
        for each in episodes
    ]
    chosen = Random(f"templates {seed}")
    if chosen.random() < 0.2:
        episodes = [replace(each, settings={**each.settings, **_choice(chosen)}) for each in episodes]
    settings["privacy"], episodes = _ruled(Random(f"privacy {seed}"), episodes, 0.6 if settings["history"] else 0.2)
    shifting = Random(f"shifts {seed}")
    episodes = [replace(each, shifts=shifting.choice((0.0,) * 9 + (0.1,))) for each in episodes]
    moving = Random(f"moves {seed}")
    if moving.random() < 0.15:
        episodes = [
            replace(each, moves_before=moving.choice((0, 1, 3)), moves=moving.choice((0.0, 0.0, 0.02, 0.1)))
            for each in episodes
        ]
    edge = Random(f"edges {seed}")
    if edge.random() < 0.1:
        episodes = [replace(each, edges_before=edge.choice((1, 5, 15))) for each in episodes]
    switching = Random(f"deletes {seed}")
    if switching.random() < 0.15:
        episodes = [
            replace(each, settings={**each.settings, "deletes": switching.choice(("mirror", "keep"))})
            for each in episodes
        ]
    renaming = Random(f"renames {seed}")
    if renaming.random() < 0.12:
        if renaming.random() < 0.6:
            settings["privacy"], episodes = _ruled_by_name(renaming, settings["privacy"], episodes)
        episodes = [
            replace(each, renames_before=renaming.choice((0, 0, 1, 2)), renames=renaming.choice((0.0, 0.0, 0.03)))
            for each in episodes
        ]
    if varied:
        settings, episodes = _varied(Random(f"varied {seed}"), settings, episodes)
    narrow = Random(f"width {seed}")
    width = (
        Width() if narrow.random() < 0.7 else Width(narrow.randint(0, 9), narrow.randint(0, 4), narrow.randint(1, 9))
    )
    return Scenario(
        seed,
        switches,
        settings,
        tuple(episodes),
        honest,
        finished,
        many,
        in_memory,
        width,
        narrow.choice((2**18,) * 3 + (1,)),
        coarse,
        Random(f"tiny {seed}").choice((0,) * 14 + (100, 200)),
        Random(f"per page {seed}").choice((MAX_PER_PAGE,) * 9 + (25,)),
        varied,
    )


def _choice(dice: Random) -> dict[str, Any]:
    """Return settings that leave some templates out, by names that an import may get or lose; often none."""
    names = dice.sample(_NAMES, dice.randint(1, 2))
    return dice.choice(({}, {"templates": names}, {"exclude_templates": names}, {"exclude_templates": names}))


def _varied(dice: Random, settings: dict[str, Any], episodes: list[Episode]) -> tuple[dict[str, Any], list[Episode]]:
    """Return the final settings and the episodes, between which each of some settings changes now and then."""
    draws: dict[str, Callable[[], dict[str, Any]]] = {
        "tables": lambda: dict(zip(("raw", "typed"), dice.choice(_TABLES), strict=True)),
        "deletes": lambda: {"deletes": dice.choice(("mirror", "mirror", "keep"))},
        "hints": lambda: {"hints": make_hints(dice)},
    }
    if settings["history"]:
        draws["history"] = lambda: {"history": dice.choice((True, True, False, dice.sample(_NAMES, 2)))}
    now = {name: draw() for name, draw in draws.items()}
    varied = []
    for each in [*(episode.settings for episode in episodes), settings]:
        now = {name: draw() if dice.random() < 0.4 else now[name] for name, draw in draws.items()}
        varied.append({**each, **{key: value for some in now.values() for key, value in some.items()}})
    return varied[-1], [replace(each, settings=given) for each, given in zip(episodes, varied[:-1], strict=True)]


def _ruled(dice: Random, episodes: list[Episode], share: float) -> tuple[dict[str, Any], list[Episode]]:
    """Return the final privacy rules, and the episodes with theirs; if there are any, they change sometimes."""
    changing = dice.random() < share
    rules = make_rules(dice) if changing else {}
    ruled = []
    for each in episodes:
        ruled.append(replace(each, settings={**each.settings, "privacy": rules}))
        if changing and dice.random() < 0.5:
            rules = make_rules(dice)
    return rules, ruled


def _ruled_by_name(dice: Random, last: dict[str, Any], episodes: list[Episode]) -> tuple[dict[str, Any], list[Episode]]:
    """Add rules for templates by their first names to those of each episode; often the same."""
    named = make_named_rules(dice, _NAMES)
    ruled = []
    for each in episodes:
        if dice.random() < 0.2:
            named = make_named_rules(dice, _NAMES)
        ruled.append(replace(each, settings={**each.settings, "privacy": {**each.settings["privacy"], **named}}))
    return {**last, **named}, ruled


def _switches(dice: Random, many: bool) -> Switches:
    clamp = dice.choice((100, 100, 50, 23, 7) if many else (100, 100, 100, 3, 10, 25, 60, 99))
    uneven = dice.random() < 0.12
    return Switches(
        import_order=dice.choice(ORDERS),
        record_order=dice.choice(ORDERS),
        max_per_page=clamp,
        over_max=dice.choice(("clamp", "reject")),
        time_zone=dice.choice(("z", "offset", "naive", "mixed")),
        time_fraction=dice.choice((0, 3, 6, 6, "mixed")),
        metadata=dice.choice(("object", "object", "object", "absent", "null")),
        records_metadata=dice.choice(("object", "absent", "null")),
        template=dice.choice(("object", "object", "object", "object", "object", "absent", "null")),
        edit_moves_import=dice.random() < 0.85,
        status_filter=dice.choice(("exact", "ignored")),
        gzip=dice.random() < 0.2,
        short_pages=dice.choice((0.1, 0.4)) if uneven else 0.0,
        empty_middle_page=dice.choice((0.0, 0.1)) if uneven else 0.0,
    )


def _episode(dice: Random, settings: dict[str, Any]) -> Episode:
    edits = dice.random() < 0.7
    return Episode(
        settings={
            **settings,
            "batch_rows": dice.choice((1, 50, 200, 500_000, 500_000)),
            "reconcile": dice.choice(("fail", "fail", "warn", "off")),
            "status": dice.choice((None,) * 12 + ("completed",)),
        },
        scope=dice.choice(("incremental",) * 9 + ("recheck", "full", "selection", "template", "window")),
        faults=_faults(dice),
        edits_before=dice.choice((0, 1, 3, 8)),
        edit_probability=dice.choice((0.03, 0.1, 0.3, 0.8)) if edits else 0.0,
        edits_at_most=dice.choice((1, 2, 5, 20, 1000)),
        kill=_kill(dice) if dice.random() < 0.55 else None,
        stop_at=dice.randint(1, 12) if dice.random() < 0.15 else None,
        lose_directory=dice.random() < 0.15,
        clock_jump_s=dice.choice((0,) * 8 + (-86_400, -7, 7, 86_400)),
        hide=dice.choice((0.0,) * 9 + (0.3, 1.0)),
        blank_pages=dice.choice((0.0,) * 9 + (0.2,)),
        failing=dice.choice((0.0,) * 9 + (0.3,)),
    )


def _faults(dice: Random) -> Faults:
    if dice.random() < 0.5:
        return Faults()
    share = dice.choice((0.02, 0.06))
    return Faults(
        rate_limited=share,
        retry_after=dice.choice(("seconds", "date", "zero", "missing", "mixed")),
        server_error=share,
        reset=share,
        cut=share,
        html_200=share,
        # the client gives up after the third garbage reply in a row; a few scenarios reach that
        max_consecutive=None if dice.random() < 0.1 else 2,
    )


def _outage(dice: Random) -> Outage | None:
    if dice.random() < 0.8:
        return None
    begin_s = dice.uniform(0, 2)
    return Outage(begin_s, begin_s + dice.choice((0.5, 5, 20, 60)), dice.choice((None, None, 502, 503)))


def _kill(dice: Random) -> tuple[str, int]:
    kind, log2 = dice.choice(KILLS)
    return kind, int(2 ** dice.uniform(0, log2))


def fill(service: Service, scenario: Scenario) -> None:
    """Return the first imports; later ones are added by edits."""
    dice = Random(f"data {scenario.seed}")
    names = dice.sample(sorted(TEMPLATES), dice.randint(1, 3))
    if scenario.many:
        for _ in range(dice.choice((26, 60, 99, 100, 101, 130))):
            add_import(service, dice, names, sizes=(0, 1, 1, 2, 3))
    else:
        for _ in range(dice.randint(0, 6)):
            add_import(service, dice, names)
    tiny = Random(f"tiny imports {scenario.seed}")
    for _ in range(scenario.tiny):
        add_import(service, tiny, names, sizes=(0, 1, 1, 2, 3))


def add_import(service: Service, dice: Random, names: list[str], sizes: tuple[int, ...] = SIZES) -> str:
    size = dice.choice(sizes)
    status: Any = dice.choice(("completed",) * 6 + ("created", "submitting", "submitted"))
    metadata: Any = dice.choice(({}, {"source": "crm", "n": dice.randrange(5)}, {"n": "x", "deep": {"k": [1]}}))
    if dice.random() < 0.25:
        template = dice.choice((None, "Odd rows", names[0]))
        return service.add_import(template, [dice.choice(ODD_ROWS) for _ in range(min(size, 20))], metadata, status)
    return service.add_generated(dice.choice(names), 1, size, status)[0]


def quiet(settings: dict[str, Any]) -> Episode:
    """Return a run without events."""
    return Episode(settings={**settings, "mass_delete_limit": 1.0})
