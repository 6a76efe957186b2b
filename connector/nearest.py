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
    """Return the known names that were probably meant, at least so much `alike` (0 to 1).

    They are at most three, and all those that differ from these in case alone.
    """
    by_lower: dict[str, list[str]] = {}
    for each in sorted(known):
        by_lower.setdefault(each.lower(), []).append(each)
    alike_names = get_close_matches(name.lower(), by_lower, n=3, cutoff=alike)
    return [each for lower in alike_names for each in by_lower[lower]]
