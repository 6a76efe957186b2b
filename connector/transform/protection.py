"""Apply privacy rules to JSON text, so that no value under a rule can be read in the result (docs/privacy.md).

Invariant: a value whose path matches a rule is in the result only as the rule says, however its key is escaped and
however often it occurs; every other value keeps its bytes. Text that cannot be parsed is refused (`Unprotectable`),
never passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from connector.text import composed
from connector.transform.escaping import storable
from connector.transform.json_slices import NotJson, array_elements, members_of
from connector.transform.privacy_rules import PATTERN, STRICTEST, Action, Path, Section

_DEEPEST = 100  # levels to which rules apply; each costs a pass over the text
_OPENING = b"{["
_DIGITS = "0123456789"  # how an element of a list is written, or as *, in the path that a pattern is searched for in
_MOST_FORMS = 2_000  # of a path: those of three lists in each other
_KEYS_CACHED = 10_000  # keys of one object whose rules are cached
_LESSONS = 1_000  # attempts to learn how the members of an object at one path are written
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Unprotectable(ValueError):
    """The text cannot be parsed, so its values cannot be protected; the message says why and shows none."""


_States = frozenset[tuple[int, int]]
_Form = tuple[str, int, int]  # a path as a pattern sees it, and how many elements of lists are written * and as a digit


class _Node:
    """A path in the data, with the rules for it and for paths below it."""

    __slots__ = (
        "_allowing",
        "_below",
        "_lessons",
        "_rules",
        "_states",
        "_style",
        "action",
        "kept",
        "members",
        "open",
        "paths",
    )

    def __init__(self, rules: Protection, paths: Sequence[_Form], states: _States, allowing: _States, kept: bool):
        self._rules, self.paths, self._states, self._allowing = rules, paths, states, allowing
        self._below: dict[str | None, _Node] = {}
        self.members: dict[str, tuple[bytes, _Node | None]] = {}  # the text before a value, and the node if concerned
        self._style = (b"{", b",", b"}")  # what is before, between and behind the members
        self._lessons = 0
        self.kept = kept
        self.action: Action | None = None
        self.open = bool(rules.patterns) or not kept or any(at < len(rules.steps[n]) for n, at in states)

    @property
    def rules_scalars(self) -> bool:
        return self.action is not None or not self.kept

    @property
    def concerned(self) -> bool:
        return self.action is not None or self.open

    def below(self, key: str | None) -> _Node:
        found = self._below.get(key)
        if found is None:
            found = self._rules.reached(self.paths, key, self._states, self._allowing, self.kept)
            if len(self._below) < _KEYS_CACHED:
                self._below[key] = found
        return found

    def joined(self, members: Iterable[bytes]) -> bytes:
        """Return the object with these members, each with the text before its value, in the style last learned."""
        before, between, behind = self._style
        return before + between.join(members) + behind

    def learn(self, text: bytes) -> bool:
        """Note how the members of the object `text` are written; return whether that may help."""
        self._lessons += 1
        if self._lessons > _LESSONS:
            return False
        members, tail = _taken_apart(text)
        for _, head, key, _ in members:
            if len(self.members) < _KEYS_CACHED:
                below = self.below(key)
                self.members[key] = head, below if below.concerned else None
        if members:
            self._style = members[0][0], members[-1][0] if len(members) > 1 else self._style[1], tail
        return True


class Protection:
    """The rules for one template, or for metadata. Sections are in the order of precedence.

    With `strictest_first` the strictest rule for a path applies, however the path is written: for records that may be
    of any template.
    """

    def __init__(self, sections: Sequence[Section], key: bytes, *, strictest_first: bool = False) -> None:
        self._key = key
        self._strictest_first = strictest_first
        ranked = [(rank, path, action) for rank, each in enumerate(sections) for path, action in each.rules.items()]
        stepped = [each for each in ranked if not each[1].startswith(PATTERN)]
        self.steps = [Path(path).steps for _, path, _ in stepped]
        self._actions = [(self._order(*each), each[2]) for each in stepped]
        self.patterns = [
            (re.compile(pattern), sections[rank].step_before(path), (self._order(rank, path, action), action))
            for rank, path, action in ranked
            if path.startswith(PATTERN)
            for pattern in dict.fromkeys([path.removeprefix(PATTERN), composed(path.removeprefix(PATTERN))])
        ]
        allow = next((each.allow for each in sections if each.allow is not None), None)
        self._allow_steps = [Path(path).steps for path in allow or () if not path.startswith(PATTERN)]
        patterns = [path.removeprefix(PATTERN) for path in allow or () if path.startswith(PATTERN)]
        self._allow_patterns = [re.compile(each) for each in dict.fromkeys([*patterns, *map(composed, patterns)])]
        self._allows = allow is not None
        self._root = _Node(
            self,
            [("", 0, 0)] if self.patterns or self._allow_patterns else (),
            frozenset((n, 0) for n in range(len(self.steps))),
            frozenset((n, 0) for n in range(len(self._allow_steps))),
            not self._allows,
        )

    def _order(self, rank: int, path: str, action: Action) -> tuple[int, bool, int, int]:
        """Return the sort key of a rule; the rule with the lowest one applies.

        The template's rules come before those of `*`, a literal path before a pattern, and then the stricter rule.
        """
        strictness = STRICTEST.index(action.kind), action.shown
        return (0, False, *strictness) if self._strictest_first else (rank, not Path(path).is_literal, *strictness)

    def reached(self, paths: Sequence[_Form], key: str | None, states: _States, allowing: _States, kept: bool) -> _Node:
        """Return the node behind one step: a key, or None for the element of a list.

        A rule for one element is for all of them. A pattern in `allow` has to fit any element.
        """
        here = [form for path in paths for form in _one_step_on(path, key, len(paths))]
        moved = frozenset((n, to) for n, at in states for to in _steps_on(self.steps[n], at, key))
        allowed = frozenset(
            (n, to)
            for n, at in allowing
            for to in _steps_on(self._allow_steps[n], at, key)
            if key is not None or self._allow_steps[n][at] == "*"
        )
        kept = kept or any(to == len(self._allow_steps[n]) for n, to in allowed)
        alike = [(composed(text), starred, numbered) for text, starred, numbered in here]
        kept = kept or any(_fits_any_element(p, forms) for p in self._allow_patterns for forms in (here, alike))
        node = _Node(self, here, moved, allowed, kept)
        found = [self._actions[n] for n, to in moved if to == len(self.steps[n])]
        for pattern, step, rule in self.patterns:
            forms = {form for text, *_ in here for form in (text, composed(text))}
            if any(pattern.search(form[1:]) or (step and pattern.search(step + form)) for form in forms):
                found.append(rule)
        node.action = min(found, key=lambda rule: rule[0])[1] if found else None
        return node

    def concerns(self, keys: Sequence[str], *, nested: bool) -> bool:
        """Return whether a rule may cover the value at these keys, or, with `nested`, a value inside it."""
        node = self._root
        for key in keys:
            node = node.below(key)
            if node.action is not None:
                return True
        return not node.kept or (nested and node.open)

    def of(self, text: bytes) -> bytes:
        """Return the object with every rule applied, or raise Unprotectable."""
        try:
            return self._nested(text, self._root, 0)
        except (NotJson, ValueError, RecursionError) as why:
            raise why if isinstance(why, Unprotectable) else Unprotectable("it is not JSON") from None

    def _object(self, text: bytes, parent: _Node, depth: int) -> bytes | None:
        """Protect an object as `_container` does, but several times as fast; None if that cannot be done."""
        found = self._members(text, parent)
        if found is None and parent.learn(text):
            found = self._members(text, parent)
        if found is None:
            return None
        members, concerned = found
        changed = False
        for at, head, value, node in concerned:
            protected = self._value(value, node, depth + 1)
            if protected != value:
                changed = True
                members[at] = b"" if protected is None else head + protected
        return parent.joined(filter(None, members)) if changed else text

    @staticmethod
    def _members(text: bytes, parent: _Node) -> tuple[list[bytes], list[tuple[int, bytes, bytes, _Node]]] | None:
        """Return the text of each member of an object, and those that a rule may concern; None if not all are known."""
        members: list[bytes] = []
        concerned: list[tuple[int, bytes, bytes, _Node]] = []
        known = parent.members
        try:
            for key, raw in _decode_object(text).items():
                head, node = known[key]
                member = head + raw
                if node is not None and (node.rules_scalars or member[len(head)] in _OPENING):
                    concerned.append((len(members), head, bytes(raw), node))
                members.append(member)
        except (KeyError, ValueError, RecursionError):
            return None
        return (members, concerned) if parent.joined(members) == text else None

    def _value(self, text: bytes, node: _Node, depth: int) -> bytes | None:
        """Return the replacement of the value; None if it is dropped with its key."""
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
        """Return the result of `_container`, in a faster way if possible."""
        if depth > _DEEPEST:
            raise Unprotectable(f"it is nested deeper than {_DEEPEST} levels")
        if text[:1] == b"{":
            found = self._object(text, node, depth)
            return self._container(text, node, depth) if found is None else found
        element = node.below(None)
        if element.action is None and element.kept and _is_of_scalars(text):
            return text
        return self._container(text, node, depth)

    def _container(self, text: bytes, node: _Node, depth: int) -> bytes:
        """Return the object or list with its members protected, or unchanged if none of them is."""
        kept: list[bytes] = []
        changed = False
        if text[:1] == b"[":
            for part in array_elements(text):
                found = self._value(part, node.below(None), depth + 1)
                changed |= found != part
                kept += [] if found is None else [found]
            return b"[" + b",".join(kept) + b"]" if changed else text
        members, tail = _taken_apart(text)
        for gap, head, key, value in members:
            found = self._value(value, node.below(key), depth + 1)
            changed |= found != value
            kept += [] if found is None else [(gap if kept else b"") + head + found]
        return members[0][0] + b"".join(kept) + tail if changed else text


def _one_step_on(form: _Form, key: str | None, forms: int) -> Iterator[_Form]:
    """Yield the forms of a path after a key, or after an element of a list (None); `forms` are there before."""
    path, starred, numbered = form
    if key is not None:
        yield f"{path}.{key}", starred, numbered
        return
    few = forms * (len(_DIGITS) + 1) > _MOST_FORMS
    if not few or not numbered:
        yield f"{path}.*", starred + 1, numbered
    for digit in _DIGITS[: 1 if few else None] if not (few and starred) else ():
        yield f"{path}.{digit}", starred, numbered + 1


def _fits_any_element(pattern: re.Pattern[str], forms: Sequence[_Form]) -> bool:
    """Return whether the pattern matches the whole path with * for each element, or with any digits."""
    starred = (text for text, _, numbered in forms if not numbered)
    numbered = (text for text, starred, _ in forms if not starred)
    fits = [bool(forms) and all(pattern.fullmatch(text[1:]) for text in some) for some in (starred, numbered)]
    return any(fits)


def _steps_on(steps: tuple[str, ...], at: int, key: str | None) -> Iterator[int]:
    return _advanced(steps, at, key) if at < len(steps) else iter(())


def _advanced(steps: tuple[str, ...], at: int, key: str | None) -> Iterator[int]:
    """Yield the positions in `steps` behind `key`, or behind a list element (None).

    A key with dots may be several steps. `steps` and keys are compared composed.
    """
    if key is None:
        if steps[at] == "*" or steps[at].isdigit():
            yield at + 1
        return
    if steps[at] == "*":
        yield at + 1
    for spelled in {key, storable(key), storable(key, nul_safe=True)}:
        parts = composed(spelled).split(".")
        wanted = steps[at : at + len(parts)]
        if len(wanted) == len(parts) and all(w in ("*", part) for w, part in zip(wanted, parts, strict=True)):
            yield at + len(parts)


def _taken_apart(text: bytes) -> tuple[list[tuple[bytes, bytes, str, bytes]], bytes]:
    """Return each member of an object as (text before it, its text up to the value, key, value), and what is behind."""
    found: list[tuple[bytes, bytes, str, bytes]] = []
    at = 0
    for head, key, value in members_of(text):
        begin = text.index(head, at)
        found.append((text[at:begin], head, key, value))
        at = begin + len(head) + len(value)
    return found, text[at:]


def _is_of_scalars(text: bytes) -> bool:
    """Return whether the list `text` has neither an object nor a list in it."""
    try:
        return not any(bytes(each)[0] in _OPENING for each in _decode_list(text))
    except (ValueError, RecursionError):
        return False
