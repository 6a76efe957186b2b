"""Suggest the name that was probably meant instead of an unknown one: settings, templates, imports, states."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

SHOWN = 12


def suggest_known(name: str, known: Collection[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest known names, or all if there are few."""
    if found := nearest(name, known):
        return f"did you mean {' or '.join(found)}?"
    if not known:
        return "there are none."
    rest = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f"known are {', '.join(sorted(known)[:SHOWN])}{rest}."


def nearest(name: str, known: Collection[str], *, alike: float = 0.6) -> list[str]:
    """Return the known names that were probably meant, at most three, at least so much `alike` (0 to 1)."""
    by_lower = {each.lower(): each for each in sorted(known)}
    return [by_lower[each] for each in get_close_matches(name.lower(), by_lower, n=3, cutoff=alike)]
