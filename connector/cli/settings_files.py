"""Edit dlt's `config.toml` and `secrets.toml`, and keep everything else in them, including comments."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tomlkit import TOMLDocument, comment, document, parse, table
from tomlkit.exceptions import TOMLKitError

from connector.errors import ConfigError
from connector.files import append

PRIVATE = 0o600
FRESH = {
    "config.toml": "Settings of importer-sync; docs/settings.md lists them. The environment overrides this file.",
    "secrets.toml": "Do not share this file: anyone who can read it can use the service and the warehouse as you.",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One value and its place."""

    file: str
    keys: tuple[str, ...]
    value: str

    @property
    def words(self) -> str:
        return f"{self.keys[-1]} under [{'.'.join(self.keys[:-1])}]"


class SettingsFile:
    """One of the two files, as it is or will be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shown = str(
            path.relative_to(Path.cwd()) if path.is_absolute() and path.is_relative_to(Path.cwd()) else path
        )
        self._document = self._read()

    def _read(self) -> TOMLDocument:
        try:
            return parse(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            fresh = document()
            fresh.add(comment(FRESH[self.path.name]))
            return fresh
        except TOMLKitError as error:
            raise ConfigError(f"{self.shown} is not valid TOML ({error}); correct it first.") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self.shown} is not text in UTF-8; correct it first.") from None
        except OSError as error:
            raise ConfigError(f"{self.shown} cannot be read ({error.strerror}); check its owner and mode.") from None

    def get(self, keys: tuple[str, ...]) -> Any:
        found: Any = self._document.unwrap()
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def set(self, keys: tuple[str, ...], value: str) -> None:
        place: MutableMapping[str, Any] = self._document
        for depth, key in enumerate(keys[:-1]):
            if key not in place:
                place[key] = table(is_super_table=depth < len(keys) - 2)
            place = place[key]
            if not isinstance(place, MutableMapping):
                raise ConfigError(f"{'.'.join(keys[: depth + 1])} in {self.shown} is not a table; correct it first.")
        place[keys[-1]] = value

    def save(self, *, private: bool) -> None:
        """Write the file completely or not at all; a private file is never readable by others, not even empty."""
        target = self.path.resolve()  # a link is kept
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            fresh.unlink()
        try:
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE if private else 0o666)
            with os.fdopen(handle, "w", encoding="utf-8") as writing:
                writing.write(self._document.as_string())
            before = _mode(target)
            if before is not None and not private:
                fresh.chmod(before)
            fresh.replace(target)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise ConfigError(f"{self.shown} cannot be written ({error.strerror}); check its owner and mode.") from None

    def close_to_others(self) -> bool:
        """Restrict the file to its owner; return True if others could read it."""
        mode = _mode(self.path)
        if os.name == "nt" or mode is None or not mode & (stat.S_IRWXG | stat.S_IRWXO):
            return False
        self.path.chmod(PRIVATE)
        return True


DUCKDB_FILES = "*.duckdb*"  # with their logs, locks and notes


def _mode(path: Path) -> int | None:
    with suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    return None


def open_folder(folder: Path) -> Path:
    """Return dlt's folder for its files, created if there is none.

    Raises ConfigError if it cannot be created, or if everybody can write into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"{folder} is a file, and dlt needs a folder of that name; move the file away.") from None
    except OSError as error:
        raise ConfigError(f"The folder {folder} cannot be created ({error.strerror}).") from None
    mode = _mode(folder) or 0
    if os.name != "nt" and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise ConfigError(f"Every user can write to {folder}, so secrets are not safe there; run `chmod o-w {folder}`.")
    return folder


def ignore_in_git(secrets: Path) -> Path | None:
    """Add lines for the file of secrets and for DuckDB files to `.gitignore`; return that file if it lacked one.

    A project that already has a line on DuckDB files there has decided about them.
    """
    project = secrets.parent.parent
    line = f"{secrets.parent.name}/{secrets.name}"
    file = project / ".gitignore"
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError):
        return None
    enough = {line, secrets.parent.name, f"{secrets.parent.name}/", f"{secrets.parent.name}/*", secrets.name}
    known = {each.strip().removeprefix("/").removeprefix("**/") for each in text.splitlines()}
    lacking = [] if enough & known else [line]
    lacking += [] if "duckdb" in text else [DUCKDB_FILES]
    if not lacking:
        return None
    break_before = "" if not text or text.endswith("\n") else "\n"
    try:
        append(file, "".join([break_before, *(f"{each}\n" for each in lacking)]).encode())
    except OSError:
        return None
    return file
