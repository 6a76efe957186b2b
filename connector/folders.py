"""Decide which folders can be trusted: those of this user or root that only their owner can write.

dlt reads addresses and secrets from its folders, and loads whatever packages are there. If the user has no writable
home directory, dlt (`run_context.global_dir`) uses the folder `dlt` in the temporary directory, which anybody may have
created.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from connector.errors import ConfigError

PRIVATE = 0o700
TOML_FILES = ("secrets.toml", "config.toml")
# Files that libpq looks for in the home directory, and the variables that name them instead.
_OF_POSTGRES = {
    "PGPASSFILE": ".pgpass",
    "PGSERVICEFILE": ".pg_service.conf",
    "PGSSLCERT": ".postgresql/postgresql.crt",
    "PGSSLKEY": ".postgresql/postgresql.key",
    "PGSSLROOTCERT": ".postgresql/root.crt",
    "PGSSLCRL": ".postgresql/root.crl",
}


def use_private_folders(settings: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make dlt, which is not imported yet, read and write folders of this user only.

    Raises ConfigError for a folder of dlt that others own or can write, and if no folder can be created.
    """
    if os.name != "posix":
        return
    check_folder(settings, _owner(settings.parent), fix="remove what does not belong to you")
    home = Path("~").expanduser() if environment.get("HOME") or _has_passwd_entry() else None
    if os.geteuid() and not _writable(home):
        data = Path(environment.get("DLT_DATA_DIR") or settings / "data").absolute()
        _make(data)
        _keep_files_of_postgres(home, environment)
        of_home = dlt_folder(environment) if home is not None else None
        environment["HOME"] = str(data)
        environment.setdefault("DLT_DATA_DIR", str(data))
        if of_home is not None:
            _keep_settings(of_home, dlt_folder(environment))
    global_dir = dlt_folder(environment)
    for folder in {Path(environment.get("DLT_DATA_DIR") or global_dir), global_dir}:
        if _everybody_writes(folder.parent):  # e.g. HOME=/tmp: create it before anybody else does
            _make(folder)
        check_folder(folder)


def check_project(settings: Path) -> None:
    """Raise ConfigError if the settings of a project cannot be read, or if it is not there."""
    if not settings.parent.is_dir():
        raise ConfigError(
            f"There is no folder {settings.parent}, in which dlt looks for settings: create it, or correct "
            "DLT_PROJECT_DIR."
        )
    check_readable(settings)


def check_readable(settings: Path) -> None:
    """Raise ConfigError if a folder or file of settings is there that cannot be read: dlt would take it for none.

    It may be a folder of another user, a link that leads nowhere, or the folder that a container engine creates where a
    file to be mounted is missing.
    """
    if os.path.lexists(settings) and not (settings.is_dir() and os.access(settings, os.X_OK)):
        raise ConfigError(
            f"{settings} is there, but not a folder that this user can enter, so the settings in it cannot be read: "
            "correct its owner or mode, or remove it."
        )
    for file in (settings / name for name in TOML_FILES):
        if os.path.lexists(file) and not (file.is_file() and os.access(file, os.R_OK)):
            raise ConfigError(
                f"{file} is there, but not a file that this user can read, so the settings in it would be ignored: "
                "correct its owner, mode or mount, or remove it."
            )


def check_folder(folder: Path, owner: int | None = None, fix: str = "set DLT_DATA_DIR to a folder of your own") -> None:
    """Raise ConfigError if anybody but this user, `owner` and root owns the folder or can write to it."""
    if os.name != "posix":
        return
    try:
        found = folder.stat()
    except OSError:
        return
    if found.st_uid not in (0, os.geteuid(), owner):
        raise ConfigError(
            f"The folder {folder} belongs to another user (uid {found.st_uid}), who could change there what is loaded "
            f"and where; chown it to uid {os.geteuid()}, or {fix}."
        )
    shared = found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid())
    if shared or found.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"Other users can write to the folder {folder}, and so change what is loaded and where; chmod go-w "
            f"{folder}, or {fix}."
        )


def dlt_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that `run_context.global_dir` returns if there is a home directory."""
    if os.name == "posix" and os.geteuid() == 0:
        return Path("/var/dlt")
    own = Path("~").expanduser() / ".dlt"
    elsewhere = environment.get("XDG_DATA_HOME")
    return Path(elsewhere, "dlt") if elsewhere is not None and not own.is_dir() else own


def _has_passwd_entry() -> bool:
    import pwd

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def _writable(home: Path | None) -> bool:
    """Return whether dlt considers the home directory writable, by the same test."""
    if home is None:
        return False
    try:
        with tempfile.TemporaryFile(dir=home):
            return True
    except OSError:
        return False


def _everybody_writes(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None


def _make(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(PRIVATE, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"dlt needs a folder for its files: there is no writable home directory, and {folder} cannot be created "
            f"({error.strerror}); set DLT_DATA_DIR to a folder that uid {os.geteuid()} can write."
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"The folder {folder} cannot be written; set DLT_DATA_DIR to one that uid {os.geteuid()} can write."
        )


def _keep_settings(given: Path, used: Path) -> None:
    """Link dlt's settings in a home directory that is not writable, which dlt would not read any more.

    Those in a folder that cannot be entered belong to somebody else.
    """
    for name in TOML_FILES:
        if os.path.isfile(given / name) and used != given and not os.path.lexists(used / name):  # noqa: PTH113
            try:
                _make(used)
                (used / name).symlink_to(given / name)
            except OSError as error:
                raise ConfigError(
                    f"The home directory cannot be written, and {given / name} not be linked in {used} "
                    f"({error.strerror}), so its settings would be ignored: set DLT_DATA_DIR to a folder that uid "
                    f"{os.geteuid()} can write."
                ) from None


def _keep_files_of_postgres(home: Path | None, environment: MutableMapping[str, str]) -> None:
    """Name the files of a read-only home directory in variables, because libpq would look for them in the new one."""
    for variable, name in _OF_POSTGRES.items():
        if home is not None and os.path.exists(home / name):  # noqa: PTH110, not Path.exists, which may raise
            environment.setdefault(variable, str(home / name))
