"""Record imports that may have killed a run: the largest in progress when it died, in a file beside its lock.

Invariant: an import counts as having killed two runs only if it was in progress when one died, and was the only one in
progress when the next one died. Until then it is a suspect, which a run reads alone after all others are loaded.

The file is written when an import reaches `BIG_BYTES` and when it is loaded, and is deleted by a run that ends by
itself. It has to survive the process, not the machine: when the system kills a process that needs too much memory, the
files that it wrote stay.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from connector.errors import ConnectorError
from connector.files import write_note
from connector.models import Import

BIG_BYTES = 256 * 2**10  # of records of one import, which from then on may be too large for the memory
MAX_NOTED = 20  # the largest imports, in the file
MAX_CRASHES = 2  # runs killed, after which an import is no longer read


class KilledTwice(ConnectorError):
    """Reading the import killed two runs, the second one while nothing else was in progress."""

    def __init__(self, slug: str) -> None:
        super().__init__(
            "reading it killed the run twice, the second time alone (most likely it ran out of memory), so it is "
            f"left out until it changes; `importer-sync backfill --import {slug}` tries again"
        )


def version_of(import_: Import) -> str:
    changed, rows, status = import_.fingerprint
    return f"{changed.isoformat()} {rows} {status}"


class CrashSuspects:
    """The imports in progress in this run and in the last one; without a `path`, nothing is recorded or known."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._sizes: dict[str, int] = {}
        self._read_alone: tuple[str, str] | None = None
        self._lock = threading.Lock()
        left = _read(path)
        self._suspects = {str(slug) for slug in left.get("imports", ())}
        self._fatal_when_alone = {str(slug): str(version) for slug, version in left.get("killers", {}).items()}
        if left.get("alone"):
            slug, version = left["alone"]
            self._suspects.discard(slug)
            self._fatal_when_alone[slug] = version

    @property
    def is_persistent(self) -> bool:
        """Return whether this run can record its imports for the next one; otherwise no import is read alone."""
        return self._path is not None

    def is_suspect(self, slug: str) -> bool:
        """Return whether the import has to be read alone."""
        return slug in self._suspects or slug in self._fatal_when_alone

    def killed_twice(self, import_: Import) -> bool:
        """Return whether this version of the import killed a run while it was read alone."""
        return self._fatal_when_alone.get(import_.slug) == version_of(import_)

    def add_bytes(self, slug: str, size: int) -> None:
        """Count bytes of an import's records as they arrive, before they are decoded."""
        if self._path is None:
            return
        with self._lock:
            before = self._sizes.get(slug, 0)
            self._sizes[slug] = before + size
            if before < BIG_BYTES <= before + size:
                self._write()

    def read_alone(self, import_: Import) -> None:
        """Note that this import is the only one in progress until it is done."""
        with self._lock:
            self._read_alone = import_.slug, version_of(import_)
            self._fatal_when_alone.pop(import_.slug, None)
            self._suspects.add(import_.slug)

    def done(self, slugs: Iterable[str]) -> None:
        """Note that these imports are loaded, or are known to fail."""
        with self._lock:
            noted = {*self._sizes, *self._suspects, *self._fatal_when_alone, *(self._read_alone or ())[:1]}
            for slug in noted.intersection(slugs):
                self._sizes.pop(slug, None)
                self._suspects.discard(slug)
                self._fatal_when_alone.pop(slug, None)
                if self._read_alone is not None and self._read_alone[0] == slug:
                    self._read_alone = None
            self._write()

    def close(self) -> None:
        """Note that the run ended by itself; suspects it did not reach are still to be read alone."""
        with self._lock:
            self._sizes.clear()
            self._read_alone = None
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        big = [slug for slug, size in self._sizes.items() if size >= BIG_BYTES]
        largest = sorted(big, key=lambda slug: (-self._sizes[slug], slug))[:MAX_NOTED]
        alone = self._read_alone if self._read_alone is not None and self._read_alone[0] in largest else None
        note = {"imports": sorted({*self._suspects, *largest}), "alone": alone, "killers": self._fatal_when_alone}
        with suppress(OSError):  # the file only helps the next run; this one continues without it
            if not (largest or self._suspects or self._fatal_when_alone):
                self._path.unlink(missing_ok=True)
                return
            write_note(self._path, json.dumps(note).encode())


def _read(path: Path | None) -> dict[str, Any]:
    with suppress(OSError, ValueError, AttributeError):
        found = json.loads(path.read_text()) if path is not None else {}
        if isinstance(found, dict) and isinstance(found.get("imports"), list):
            return found
    return {}
