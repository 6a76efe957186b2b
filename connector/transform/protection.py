"""Apply privacy rules to JSON text, so that no value under a rule can be read in the result (docs/privacy.md).

Invariant: a value whose path a rule names is in the result only as the rule says, however its key is spelled and
however often it occurs; every other value keeps its bytes. Text that cannot be parsed is refused (`Unprotectable`),
never let through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from connector.transform.escaping import storable
from connector.transform.json_slices import NotJson, array_elements, members_of, string_value
from connector.transform.privacy_rules import PATTERN, STRICTEST, Action, Path, Section

_DEEPEST = 100  # levels that rules are followed into; each costs a pass over the text
_OPENING = b"{["
_REMEMBERED = 10_000  # keys of one object whose rules are cached
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
            found = self.below(string_value(b'"' + key + b'"'))
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
        return rank, not Path(path).is_literal, STRICTEST.index(action.kind), action.shown

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
