"""Generate uploads: each row is computed only from seed, import and position, and never stored."""

from __future__ import annotations

import json
from dataclasses import dataclass

from connector.sandbox.seeding import Dice
from connector.sandbox.templates import TEMPLATES

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class GeneratedRows:
    """The rows of one generated import. `seed` distinguishes imports and services."""

    template: str
    seed: tuple[object, ...]
    count: int

    def text(self, index: int) -> str:
        return generated_text(self.template, index, *self.seed)


def generated_text(template: str, index: int, *seed: object) -> str:
    """Return one row of a template as JSON text, always the same for the same arguments."""
    return encode(TEMPLATES[template](Dice(template, index, *seed), index))
