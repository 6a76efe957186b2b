"""Define what a user asks a run to read again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from zlib import crc32

from connector.errors import ConfigError
from connector.window import Window

MOST_SHARDS = 64


@dataclass(frozen=True, slots=True)
class Scope:
    """The imports that `sync` reads and loads again, as `importer-sync backfill` does; all given conditions must hold.

    Attributes:
        window: Imports whose `updated_at` lies in the window.
        imports: Imports with one of these slugs.
        templates: Imports of this template, by name or slug; one at most.
        full: Every import; cannot be combined with other conditions.
        shard: Number and count, such as (2, 4): one part of all imports, while other shards read the rest concurrently.
    """

    window: Window = field(default_factory=Window)
    imports: Collection[str] | None = None
    templates: Collection[str] | None = None
    full: bool = False
    shard: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        since, until = self.window.since, self.window.until
        if since is not None and until is not None and since >= until:
            raise ConfigError(f"The window ends ({until}) before it begins ({since}): since has to be before until.")
        for name in ("imports", "templates"):
            given = getattr(self, name)
            if isinstance(given, str | bytes):
                raise ConfigError(f"{name} takes a list of texts, such as ['{name[:-1]}'].")
            if given is not None:
                object.__setattr__(self, name, tuple(given))
            if given is not None and not getattr(self, name):
                raise ConfigError(f"{name} is an empty list, which selects nothing: leave it out, or do not call sync.")
        selects = self.window != Window() or self.imports or self.templates
        if self.full and selects:
            raise ConfigError(
                "A scope that is full selects every import: remove full, or window, imports and templates."
            )
        if self.shard is not None:
            number, shards = self.shard
            if selects:
                raise ConfigError(
                    "Shards divide all imports among them: remove shard, or window, imports and templates."
                )
            if not (2 <= shards <= MOST_SHARDS and 1 <= number <= shards):
                raise ConfigError(
                    f"There is no shard {number}/{shards}: give the number of the shard and the count of shards, 2 to "
                    f"{MOST_SHARDS}; of four shards the first is 1/4, the last 4/4."
                )
        if len(self.templates or ()) > 1:
            raise ConfigError(
                "templates takes a list with one name, such as ['customers']: call sync once for each template."
            )


@dataclass(frozen=True, slots=True)
class Part:
    """The part of one of several shards: all imports of its `templates`, and its share of those of the `shared` ones.

    Both have slugs of templates, '' for imports without one.
    """

    number: int
    shards: int
    templates: frozenset[str]
    shared: frozenset[str] = frozenset()

    def contains(self, template_slug: str | None, slug: str) -> bool:
        template = template_slug or ""
        return template in self.templates or (template in self.shared and shard_of(slug, self.shards) == self.number)


def shard_of(slug: str, shards: int) -> int:
    """Return the shard, counted from 1, that reads the import if its template is shared: the same in every process."""
    return crc32(slug.encode("utf-8", "surrogatepass")) % shards + 1
