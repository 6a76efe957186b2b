"""Apply privacy rules as documented (docs/privacy.md), without using the connector's code.

There are only rules of one or two literal steps, and none that masks or hashes an object or a list, because their text
depends on the service's formatting.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from random import Random
from typing import Any

from tests.simulation.leaves import Literal, parse, written
from tests.simulation.watching import ImportTruth, Watch

Rules = Mapping[str, Mapping[str, str]]  # section → path → rule


class Protected(str):
    """JSON text that a rule changed: its data is as received, but its blanks may differ."""

    __slots__ = ()


KEY = "a key of the simulation"
ANY = ("drop", "null")  # for values of any kind
STRICTEST = ("drop", "null", "hash", "mask:2")
SCALARS = (*ANY, "mask:2", "hash")
PATHS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("a", "b", "nested", "nested.deep", "tags", "address", "address.city", "batch"), ANY),
    **dict.fromkeys(("First name", "phone", "Country", "Order ID", "comment", "item", "on hand", "row"), SCALARS),
}
METADATA: Mapping[str, tuple[str, ...]] = {"n": ANY, "source": SCALARS, "Key": SCALARS}


def make_rules(dice: Random) -> dict[str, dict[str, str]]:
    """Draw rules for the data of the simulated services; sometimes a section has none."""
    sections = {"*": PATHS, "metadata": METADATA}
    chosen = {name: dice.sample(sorted(paths), dice.randint(0, 3)) for name, paths in sections.items()}
    rules = {name: {path: dice.choice(sections[name][path]) for path in paths} for name, paths in chosen.items()}
    return {name: each for name, each in rules.items() if each}


def make_named_rules(dice: Random, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Draw a section for some of these templates; one without rules is possible."""
    chosen = dice.sample(names, dice.randint(1, 2))
    paths = {name: dice.sample(sorted(PATHS), dice.randint(0, 4)) for name in chosen}
    return {name: {path: dice.choice(PATHS[path]) for path in some} for name, some in paths.items()}


def rules_of(rules: Rules, slug: str | None, name: str | None) -> Mapping[str, str]:
    """Return path → rule for the data of a template; those of all templates, the strictest, if it is unknown."""
    if slug is not None:
        return {**rules.get("*", {}), **rules.get(name or "", {}), **rules.get(slug, {})}
    found: dict[str, str] = {}
    for section in named_sections(rules) | {"*"}:
        for path, rule in rules.get(section, {}).items():
            found[path] = min(rule, found.get(path, rule), key=STRICTEST.index)
    return found


def named_sections(rules: Rules) -> set[str]:
    """Return the sections that are for one template."""
    return rules.keys() - {"*", "metadata"}


def seen_through(rules: Rules, watch: Watch) -> Watch:
    """Return the data of a service that a warehouse under these rules has to have.

    A run keeps to the name of a template that it saw first, so records of a template that changed are not compared.
    """
    if not rules:
        return watch
    renamed = watch.touched_imports if named_sections(rules) else ()
    uncertain = {record for slug in renamed if slug in watch.at_start for record in watch.at_start[slug].rows}
    return replace(
        watch,
        touched_records=watch.touched_records | uncertain,
        truth={slug: _import(rules, each) for slug, each in watch.truth.items()},
        at_start={slug: _import(rules, each) for slug, each in watch.at_start.items()},
    )


def _import(rules: Rules, truth: ImportTruth) -> ImportTruth:
    shown = dict(truth.shown)
    of_records = rules_of(rules, *(shown["template"] or (None, None)))
    for name in ("metadata", "records_metadata"):
        if shown[name]:
            shown[name] = json.loads(protected(rules.get("metadata", {}), json.dumps(shown[name])))
    rows = {slug: replace(row, data=protected(of_records, row.data)) for slug, row in truth.rows.items()}
    return replace(truth, shown=shown, rows=rows)


def is_protected(value: Any, rule: str) -> bool:
    """Return whether a stored value can be the result of a rule."""
    if value is None:
        return True
    if rule == "hash":
        return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return rule == "mask:2" and value == int(value) and len(str(int(value))) <= 2  # a hint read what is left
    return rule == "mask:2" and isinstance(value, str) and set(value[:-2]) <= {"*"}


def protected(rules: Mapping[str, str], text: str) -> str:
    """Return the JSON object with the rules applied; the text itself if no rule applies."""
    return _protected(tuple(sorted(rules.items())), text) if rules else text


@lru_cache(maxsize=20_000)
def _protected(rules: tuple[tuple[str, str], ...], text: str) -> str:
    found = parse(text)
    changed = [_apply(found, path.split("."), rule) for path, rule in rules]
    return Protected(_written(found)) if any(changed) else text


def _written(value: Any) -> str:
    """Return the JSON of a parsed value, each number as it was written."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(key)}:{_written(member)}' for key, member in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return str(value) if isinstance(value, Literal) else json.dumps(value)


def _apply(value: Any, steps: list[str], rule: str) -> bool:
    if not isinstance(value, dict) or steps[0] not in value:
        return False
    if len(steps) > 1:
        return _apply(value[steps[0]], steps[1:], rule)
    if rule == "drop":
        del value[steps[0]]
    else:
        value[steps[0]] = _stored(value[steps[0]], rule)
    return True


def _stored(value: Any, rule: str) -> Any:
    if value is None or rule == "null":
        return None
    text = value if isinstance(value, str) else written(value)
    if rule == "hash":
        return hmac.digest(KEY.encode(), text.encode(), "sha256").hex()
    hidden = max(len(text) - int(rule.removeprefix("mask:")), 0)
    return "*" * hidden + text[hidden:]
