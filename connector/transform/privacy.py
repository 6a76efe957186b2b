"""Apply privacy rules to JSON text, so that no value under a rule can be read in the result (docs/privacy.md).

Invariant: a value whose path a rule names is in the result only as the rule says, however its key is spelled and
however often it occurs; every other value keeps its bytes. Text that cannot be parsed is refused (`Unprotectable`),
never let through.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

from connector.nearest import nearest
from connector.transform.escaping import storable
from connector.transform.json_slices import NotJson, array_elements, members_of

ANY_TEMPLATE, METADATA, ALLOW, PATTERN = "*", "metadata", "allow", "re:"
WITHHELD = "[withheld]"
MISSPELT = 0.75  # how much alike two names are of which one may be a slip of the other: one letter of four, say
_STRICTEST = ("drop", "null", "hash", "mask")
_ACTION = re.compile(r"(drop|null|hash)|mask:([0-9]{1,6})")
_DEEPEST = 100  # levels that rules are followed into; each costs a pass over the text
_OPENING = b"{["
_REMEMBERED = 10_000  # keys of one object whose rules are cached
_decode = json.JSONDecoder(strict=False).decode
_GAP = rb"[ \t\n\r]*+"
_TEXT = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_INSIDE = rb'(?:[^"{}\[\]]++|"' + _TEXT + rb'")*+'
for _ in range(3):  # as deep as values are skipped in one step; deeper ones are parsed
    _INSIDE = rb'(?:[^"{}\[\]]++|"' + _TEXT + rb'"|[{\[]' + _INSIDE + rb"[}\]])*+"
_SKIPPED = rb'(?:"' + _TEXT + rb'"|[^"{}\[\], \t\n\r]++|[{\[]' + _INSIDE + rb"[}\]])"
_COLON = _GAP + rb":" + _GAP
_HEAD = rb"(" + _GAP + rb'"(' + _TEXT + rb')"' + _GAP + rb":" + _GAP + rb")"
_MEMBER = _HEAD + rb"(" + _SKIPPED + rb")" + _GAP + rb"([,}])"
_SCALAR = rb'(?:"' + _TEXT + rb'"|[^"{}\[\], \t\n\r]++)' + _GAP
_FLAT = rb"\[" + _GAP + _SCALAR + rb"(?:," + _GAP + _SCALAR + rb")*+\]"
_is_flat = re.compile(_FLAT, re.DOTALL).fullmatch
_next_member = re.compile(rb"()" + _MEMBER, re.DOTALL).match
_MOST_LEARNED, _LESSONS = 200, 20  # keys of one object that are skipped by name; times that the pattern is made anew


class Unprotectable(ValueError):
    """The text cannot be parsed, so its values cannot be protected; the message says why and shows none."""


@dataclass(frozen=True, slots=True)
class Action:
    """What becomes of a value: `kind` is drop, null, hash or mask; `shown` is how many characters a mask leaves."""

    kind: str
    shown: int = 0

    @classmethod
    def parse(cls, text: object) -> Action:
        """Parse a rule. Raises ValueError that says what a rule can be."""
        found = _ACTION.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError("a rule is drop, null, hash or mask:N with N the characters that stay")
        return cls(found[1]) if found[1] else cls("mask", int(found[2]))

    def of(self, text: bytes, key: bytes) -> bytes:
        """Return the JSON text that stands for the value `text`; null stays null."""
        if self.kind == "null" or text == b"null":
            return b"null"
        said = _string(text) if text[:1] == b'"' else text.decode()
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
        return () if self.text.startswith(PATTERN) else tuple(self.text.split("."))

    @property
    def is_literal(self) -> bool:
        return not self.text.startswith(PATTERN) and "*" not in self.steps


@dataclass(frozen=True, slots=True)
class Section:
    """The rules under one name: path → action, and the paths that `allow` leaves; None where all stay."""

    rules: Mapping[str, Action] = field(default_factory=dict)
    allow: tuple[str, ...] | None = None

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

    def as_json(self) -> Any:
        rules = {path: [action.kind, action.shown] for path, action in self.rules.items()}
        return [sorted(rules.items()), None if self.allow is None else sorted(self.allow)]


def _flat(given: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each path with its value; TOML makes a table of each step of a path without quotes."""
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _advanced(steps: tuple[str, ...], at: int, key: str | None) -> Iterator[int]:
    """Yield the positions in `steps` behind `key`, or behind a list element (None).

    A key with dots may be several steps.
    """
    if key is None:
        if steps[at] == "*" or steps[at].isdigit():
            yield at + 1
        return
    if steps[at] == "*":
        yield at + 1
    for spelled in {key, storable(key), storable(key, nul_safe=True)}:
        parts = spelled.split(".")
        wanted = steps[at : at + len(parts)]
        if len(wanted) == len(parts) and all(w in ("*", part) for w, part in zip(wanted, parts, strict=True)):
            yield at + len(parts)


def _string(text: bytes) -> str:
    """Return the value of a JSON string."""
    if b"\\" not in text:
        return text[1:-1].decode()
    said: str = _decode(text.decode())
    return said


_States = frozenset[tuple[int, int]]
_Scanner = Callable[[bytes, int], re.Match[bytes] | None]


class _Node:
    """A path in the data: what the rules say of it, and of what is below."""

    __slots__ = (
        "_allowing", "_below", "_lessons", "_rules", "_spelled", "_states", "action", "following", "kept", "open",
        "paths", "unlearned",
    )  # fmt: skip

    def __init__(
        self,
        rules: Protection,
        paths: tuple[str, str],
        states: _States,
        allowing: _States,
        kept: bool,
        following: _Scanner,
    ):
        self._rules, self.paths, self._states, self._allowing = rules, paths, states, allowing
        self._below: dict[str | None, _Node] = {}
        self._spelled: dict[bytes, _Node] = {}
        self.following = following  # finds the next member that a rule may concern
        self.unlearned = False  # keys have come since it was made
        self._lessons = 0 if following is _next_member else _LESSONS
        self.kept = kept
        self.action: Action | None = None
        self.open = bool(rules.patterns) or not kept or any(at < len(rules.steps[n]) for n, at in states)

    @property
    def concerned(self) -> bool:
        return self.action is not None or self.open

    def below(self, key: str | None) -> _Node:
        found = self._below.get(key)
        if found is None:
            found = self._rules.reached(self.paths, key, self._states, self._allowing, self.kept)
            if len(self._below) < _REMEMBERED:
                self._below[key] = found
        return found

    def spelled(self, key: bytes) -> _Node:
        """Return the node below for a key as JSON spells it, without its quotes."""
        found = self._spelled.get(key)
        if found is None:
            found = self.below(_string(b'"' + key + b'"'))
            if len(self._spelled) < _REMEMBERED:
                self._spelled[key] = found
                self.unlearned = True
        return found

    def learn(self) -> None:
        """Have the members of the next object skipped whose keys no rule concerns, unless objects are in the value."""
        self.unlearned = False
        if self._lessons < _LESSONS:
            self._lessons += 1
            first = islice(self._spelled.items(), _MOST_LEARNED)
            keys = b"|".join(re.escape(key) for key, node in first if node.is_left_alone)
            if keys:
                self.following = _skipping(rb"(?:" + keys + rb')"' + _COLON + rb"(?:" + _SCALAR + rb"|" + _FLAT + rb")")

    @property
    def is_left_alone(self) -> bool:
        """Return whether no rule concerns the value, be it a scalar or a list of such."""
        element = self.below(None)
        return self.action is None and self.kept and element.action is None and element.kept


def _skipping(form: bytes) -> _Scanner:
    """Compile what matches members of the form, from the key on, the member after them, and the delimiter."""
    return re.compile(rb"((?:" + _GAP + rb'"' + form + _GAP + rb",)*+)" + _MEMBER, re.DOTALL).match


class Protection:
    """The rules for one template, or for metadata. Sections are in the order in which they count."""

    def __init__(self, sections: Sequence[Section], key: bytes) -> None:
        self._key = key
        ranked = [(rank, path, action) for rank, each in enumerate(sections) for path, action in each.rules.items()]
        stepped = [each for each in ranked if not each[1].startswith(PATTERN)]
        self.steps = [Path(path).steps for _, path, _ in stepped]
        self._actions = [(self._order(*each), each[2]) for each in stepped]
        self.patterns = [
            (re.compile(path.removeprefix(PATTERN)), (self._order(rank, path, action), action))
            for rank, path, action in ranked
            if path.startswith(PATTERN)
        ]
        allow = next((each.allow for each in sections if each.allow is not None), None)
        self._allow_steps = [Path(path).steps for path in allow or () if not path.startswith(PATTERN)]
        self._allow_patterns = [re.compile(p.removeprefix(PATTERN)) for p in allow or () if p.startswith(PATTERN)]
        self._allows = allow is not None
        self._root = _Node(
            self,
            ("", ""),
            frozenset((n, 0) for n in range(len(self.steps))),
            frozenset((n, 0) for n in range(len(self._allow_steps))),
            not self._allows,
            self._first_scanner(),
        )

    @staticmethod
    def _order(rank: int, path: str, action: Action) -> tuple[int, bool, int, int]:
        """Return the sort key of a rule; the lowest counts.

        The template's rules come before those of `*`, a literal path before a pattern, and then the stricter rule.
        """
        return rank, not Path(path).is_literal, _STRICTEST.index(action.kind), action.shown

    def _first_scanner(self) -> _Scanner:
        """Compile what skips the members of a row that no rule can concern, as far as the rules alone tell."""
        firsts = {steps[0] for steps in self.steps}
        if self.patterns or self._allows or "*" in firsts:
            return _next_member
        ruled = b"|".join(re.escape(each.encode("utf-8", "replace")) for each in sorted(firsts))
        return _skipping(rb"(?!(?:" + ruled + rb')[".])[^"\\]*+"' + _COLON + _SKIPPED)

    def reached(self, paths: tuple[str, str], key: str | None, states: _States, allowing: _States, kept: bool) -> _Node:
        """Return the node behind one step; a list's element is written `*` or `0` in the path of a pattern."""
        steps = ("*", "0") if key is None else (key, key)
        here = (f"{paths[0]}.{steps[0]}", f"{paths[1]}.{steps[1]}")
        whole = [text[1:] for text in here]
        moved = frozenset((n, to) for n, at in states for to in _steps_on(self.steps[n], at, key))
        allowed = frozenset(
            (n, to)
            for n, at in allowing
            for to in _steps_on(self._allow_steps[n], at, key)
            if key is not None or self._allow_steps[n][at] == "*"
        )
        kept = kept or any(to == len(self._allow_steps[n]) for n, to in allowed)
        kept = kept or any(pattern.fullmatch(text) for pattern in self._allow_patterns for text in whole)
        node = _Node(self, here, moved, allowed, kept, _next_member)
        found = [self._actions[n] for n, to in moved if to == len(self.steps[n])]
        found += [rule for pattern, rule in self.patterns if any(map(pattern.search, whole))]
        node.action = min(found, key=lambda rule: rule[0])[1] if found else None
        return node

    def concerns(self, keys: Sequence[str], *, nested: bool) -> bool:
        """Return whether a rule may concern the value behind these keys, or, with `nested`, something inside it."""
        node = self._root
        for key in keys:
            node = node.below(key)
            if node.action is not None:
                return True
        return not node.kept or (nested and node.open)

    def of(self, text: bytes) -> bytes:
        """Return the object with every rule applied, or raise Unprotectable."""
        try:
            scanned = self._scanned(text, self._root, 0)
            return self._container(text, self._root, 0) if scanned is None else scanned
        except (NotJson, ValueError, RecursionError) as why:
            raise why if isinstance(why, Unprotectable) else Unprotectable("it is not JSON") from None

    def _scanned(self, text: bytes, parent: _Node, depth: int) -> bytes | None:
        """Protect an object as `_container` does, but several times as fast; None if it is nested too deeply."""
        kept: list[bytes] = []  # each ends with a comma
        at, changed, following = 1, False, parent.following
        while found := following(text, at):
            skipped, head, spelled, value, after = found.groups()
            node = parent.spelled(spelled)
            protected: bytes | None = value
            if node.concerned and (node.action is not None or not node.kept or value[0] in _OPENING):
                protected = self._value(value, node, depth + 1)
                changed |= protected != value
            kept.append(skipped)
            if protected is not None:
                kept += (head, protected, b",")
            at = found.end()
            if after == b"}":
                if at != len(text):
                    return None
                if parent.unlearned:
                    parent.learn()
                return b"{" + b"".join(kept)[:-1] + b"}" if changed else text
        return None

    def _value(self, text: bytes, node: _Node, depth: int) -> bytes | None:
        """Return what replaces the value; None if it is dropped with its key."""
        nested = text[:1] in (b"{", b"[")
        if not (node.kept or nested):
            return None
        action = node.action
        if action is not None and action.kind == "drop":
            return None
        if nested and node.open and (action is None or action.kind != "null"):
            text = self._nested(text, node, depth)
        if not node.kept and not text[1:-1].strip():
            return None
        return text if action is None else action.of(text, self._key)

    def _nested(self, text: bytes, node: _Node, depth: int) -> bytes:
        """Return what `_container` returns, by a faster way if there is one."""
        if text[:1] == b"{":
            scanned = self._scanned(text, node, depth)
            return self._container(text, node, depth) if scanned is None else scanned
        element = node.below(None)
        if element.action is None and element.kept and _is_flat(text):
            return text
        return self._container(text, node, depth)

    def _container(self, text: bytes, node: _Node, depth: int) -> bytes:
        """Return the object or list with its members protected, or unchanged if none of them is."""
        if depth > _DEEPEST:
            raise Unprotectable(f"it is nested deeper than {_DEEPEST} levels")
        kept: list[bytes] = []
        changed = False
        if text[:1] == b"[":
            for part in array_elements(text):
                found = self._value(part, node.below(None), depth + 1)
                changed |= found != part
                kept += [] if found is None else [found]
            return b"[" + b",".join(kept) + b"]" if changed else text
        for head, key, value in members_of(text):
            found = self._value(value, node.below(key), depth + 1)
            changed |= found != value
            kept += [] if found is None else [head + found]
        return b"{" + b",".join(kept) + b"}" if changed else text


def _steps_on(steps: tuple[str, ...], at: int, key: str | None) -> Iterator[int]:
    return _advanced(steps, at, key) if at < len(steps) else iter(())


def _strictest(sections: Sequence[Section]) -> Section:
    """Return one section with the strictest rule for each path, and every path that one of them allows."""
    rules: dict[str, Action] = {}
    for path, action in (each for section in sections for each in section.rules.items()):
        rules[path] = min(rules.get(path, action), action, key=lambda a: (_STRICTEST.index(a.kind), a.shown))
    lists = [each.allow for each in sections if each.allow is not None]
    return Section(rules, tuple(sorted({path for each in lists for path in each})) if lists else None)


@dataclass(frozen=True)
class Privacy:
    """All rules: by the name or slug of a template or `*`, and those for metadata; `bare` are sections without any."""

    sections: Mapping[str, Section] = field(default_factory=dict)
    key: bytes = field(default=b"", repr=False)
    bare: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, given: Mapping[str, Any], key: str | None) -> Privacy:
        """Parse all rules.

        Raises ValueError that names the rule which cannot be parsed, or says that the key is missing.
        """
        sections: dict[str, Section] = {}
        for name, rules in given.items():
            if not isinstance(rules, Mapping):
                raise ValueError(f'privacy.{name} is not valid: rules belong under a template, as [privacy."{name}"]')
            try:
                sections[str(name)] = Section.parse(rules)
            except ValueError as error:
                raise ValueError(f"privacy.{name} is not valid: {error}") from None
        if not key and any(section.hashes for section in sections.values()):
            raise ValueError("hash needs privacy_key, which belongs in .dlt/secrets.toml under [sources.importer]")
        ruled = {name: each for name, each in sections.items() if each}
        return cls(ruled, (key or "").encode(), frozenset(sections.keys() - ruled))

    def __bool__(self) -> bool:
        return bool(self.sections)

    @property
    def templates(self) -> tuple[str, ...]:
        """Return the names and slugs of templates that have rules."""
        return tuple(sorted(self.sections.keys() - {ANY_TEMPLATE, METADATA}))

    def misspelt(
        self, templates: Iterable[tuple[str | None, str | None]], others: Collection[str] = ()
    ) -> Mapping[str, Sequence[str]]:
        """Return the sections that fit no template, each with the names of those that it was probably meant for.

        `templates` are the slugs and names of those to be read, and `others` further names that are right. A template
        with a section of its own, with rules or without, is not meant by another one.
        """
        there = set(templates)
        known = {name for each in there for name in each}.union(others)
        titles = self.sections.keys() | self.bare
        free = {name for slug, name in there if name and not titles & {slug, name}}
        found = {title: nearest(title.strip(), free, alike=MISSPELT) for title in self.templates if title not in known}
        return {title: names for title, names in found.items() if names}

    def _sections(self, slug: str | None, name: str | None) -> list[Section]:
        """Return the sections that count for a template.

        An import without a template may be of any: for it, all sections are merged into one.
        """
        if slug is None and name is None:
            every = [each for title, each in sorted(self.sections.items()) if title != METADATA]
            return [_strictest(every)] if every else []
        wanted = dict.fromkeys(each for each in (slug, name) if each not in (None, ANY_TEMPLATE, METADATA))
        return [self.sections[each] for each in (*wanted, ANY_TEMPLATE) if each in self.sections]

    def of_template(self, slug: str | None, name: str | None) -> Protection | None:
        """Return the protection of the records of a template; None if no rule concerns them."""
        known = self._protections.get((slug, name))
        if known is None:
            sections = self._sections(slug, name)
            known = self._protections[slug, name] = Protection(sections, self.key) if sections else None
        return known

    @cached_property
    def _protections(self) -> dict[tuple[str | None, str | None], Protection | None]:
        return {}

    @cached_property
    def of_metadata(self) -> Protection | None:
        """Return the protection of the metadata of imports and of replies with records; None if no rule concerns it."""
        return Protection([self.sections[METADATA]], self.key) if METADATA in self.sections else None

    def fingerprint(self, slug: str | None, name: str | None) -> str | None:
        """Return a fingerprint that changes only with the rules for imports of a template; None if there are none."""
        if (slug, name) not in self._fingerprints:
            self._fingerprints[slug, name] = self._fingerprint(slug, name)
        return self._fingerprints[slug, name]

    @cached_property
    def _fingerprints(self) -> dict[tuple[str | None, str | None], str | None]:
        return {}

    def _fingerprint(self, slug: str | None, name: str | None) -> str | None:
        sections = self._sections(slug, name)
        metadata = self.sections.get(METADATA)
        if not sections and metadata is None:
            return None
        hashed = any(each.hashes for each in (*sections, metadata or Section()))
        key = hmac.digest(self.key, b"fingerprint of privacy_key", "sha256").hex() if hashed else None
        rules = [[each.as_json() for each in sections], metadata and metadata.as_json(), key]
        return hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:32]


def unread(title: str, names: Sequence[str]) -> str:
    """Return the sentence about a section that is probably misspelt, and the templates that are left alone for it."""
    return (
        f"privacy has rules for {title!r}, which no template is called: did you mean {' or '.join(names)}? Nothing is "
        f"read of what they may be for. Correct the name, or add an empty section, "
        f'[sources.importer.privacy."{names[0]}"], if that template needs no rules.'
    )


def withheld(payload: str, key: bytes) -> str:
    """Return what replaces the payload of a reject: the same for the same payload, so that each still counts once."""
    return f"{WITHHELD} {hmac.digest(key, payload.encode('utf-8', 'surrogatepass'), 'sha256').hex()[:16]}"
