"""Parse the privacy rules under one name: paths, and the action on the values at each (docs/privacy.md)."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connector.text import composed
from connector.transform.json_slices import string_value

ALLOW, PATTERN = "allow", "re:"
STRICTEST = ("drop", "null", "hash", "mask")
_ELEMENT = re.compile(r"\.(?:[0-9]|\[(?!0-9\])[^\]]*[0-9])")  # a step that begins with some digits, and not with any
_ACTION = re.compile(r"(drop|null|hash)|mask:([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Action:
    """The action on a value: `kind` is drop, null, hash or mask; `shown` is the number of characters a mask leaves."""

    kind: str
    shown: int = 0

    @classmethod
    def parse(cls, text: object) -> Action:
        """Parse a rule. Raises ValueError with the valid rules."""
        found = _ACTION.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError("a rule is drop, null, hash or mask:N with N the characters that stay")
        return cls(found[1]) if found[1] else cls("mask", int(found[2]))

    def of(self, text: bytes, key: bytes) -> bytes:
        """Return the JSON text that replaces the value `text`; null stays null."""
        if self.kind == "null" or text == b"null":
            return b"null"
        said = string_value(text) if text[:1] == b'"' else text.decode()
        if self.kind == "hash":
            return b'"' + hmac.digest(key, said.encode("utf-8", "surrogatepass"), "sha256").hex().encode() + b'"'
        hidden = max(len(said) - self.shown, 0)
        return json.dumps("*" * hidden + said[hidden:]).encode()


@dataclass(frozen=True, slots=True)
class Path:
    """A path as it is written in the settings: steps, or a pattern over the whole path."""

    text: str

    @property
    def pattern(self) -> re.Pattern[str] | None:
        return re.compile(self.text.removeprefix(PATTERN)) if self.text.startswith(PATTERN) else None

    @property
    def steps(self) -> tuple[str, ...]:
        return () if self.text.startswith(PATTERN) else tuple(composed(self.text).split("."))

    @property
    def is_literal(self) -> bool:
        return not self.text.startswith(PATTERN) and "*" not in self.steps


@dataclass(frozen=True, slots=True)
class Section:
    """The rules under one name: path → action, and the paths in `allow`; None if all paths stay.

    A pattern that contains `within` is also searched for in the path with this step before it.
    """

    rules: Mapping[str, Action] = field(default_factory=dict)
    allow: tuple[str, ...] | None = None
    within: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Section:
        """Parse the rules under one name. Raises ValueError that names the path which cannot be parsed."""
        rules: dict[str, Action] = {}
        allow: tuple[str, ...] | None = None
        for path, value in _flat(given):
            if path == ALLOW and not isinstance(value, str):
                if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
                    raise ValueError("allow takes a list of paths")
                allow = tuple(map(str, value))
                paths: tuple[str, ...] = allow
            else:
                try:
                    rules[path] = Action.parse(value)
                except ValueError as error:
                    raise ValueError(f"{path}: {error}") from None
                paths = (path,)
            for each in paths:
                try:
                    Path(each).pattern  # noqa: B018
                except re.error as error:
                    raise ValueError(f"{each}: the pattern cannot be read ({error})") from None
        return cls(rules, allow)

    def __bool__(self) -> bool:
        return bool(self.rules) or self.allow is not None

    @property
    def hashes(self) -> bool:
        return any(action.kind == "hash" for action in self.rules.values())

    def beneath(self, name: str) -> Section:
        """Return the section in which the path of a rule may begin with `name`, as in `sync_fields`.

        What `allow` lets through does not grow.
        """
        inner = {path.removeprefix(f"{name}."): action for path, action in self.rules.items()}
        return Section({**inner, **self.rules}, self.allow, name)

    def step_before(self, path: str) -> str:
        """Return the step before a path in which the pattern `path` is searched for too, or ''."""
        return self.within if self.within and self.within in path.casefold() and path.startswith(PATTERN) else ""

    @property
    def has_forms(self) -> bool:
        """Return whether a path may be written in several Unicode forms, or a pattern may match such a path."""
        paths = (*self.rules, *(self.allow or ()))
        return any(not path.isascii() or path.startswith(PATTERN) for path in paths)

    @property
    def names_elements(self) -> bool:
        """Return whether a pattern is probably about single elements of a list."""
        paths = (*self.rules, *(self.allow or ()))
        return any(path.startswith(PATTERN) and _ELEMENT.search(path) for path in paths)

    def as_json(self) -> Any:
        rules = {path: [action.kind, action.shown] for path, action in self.rules.items()}
        searched = [path for path in sorted(rules) if self.step_before(path)]
        told = [searched] if searched else []  # an earlier version took such a pattern for one without that step
        return [sorted(rules.items()), None if self.allow is None else sorted(self.allow), *told]


def _flat(given: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each path with its value; TOML makes a table of each step of a path without quotes."""
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def strictest(sections: Sequence[Section]) -> Section:
    """Return one section with the strictest rule for each path, and every path that any section allows."""
    rules: dict[str, Action] = {}
    for path, action in (each for section in sections for each in section.rules.items()):
        rules[path] = min(rules.get(path, action), action, key=lambda a: (STRICTEST.index(a.kind), a.shown))
    lists = [each.allow for each in sections if each.allow is not None]
    return Section(rules, tuple(sorted({path for each in lists for path in each})) if lists else None)
