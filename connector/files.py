"""Write files completely or not at all, for this user alone, and never through a link.

Invariant: a file is written only to a path that has a file or nothing. Links, devices and pipes are neither followed
nor replaced, wherever they point; only `write_out`, for a place that the user named, writes into devices and pipes.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from connector.errors import ConfigError

PRIVATE = 0o600
OF_GROUP = 0o640
# Endings of what DuckDB and SQLite keep beside a file.
_OF_DATABASES = r"\.(wal|tmp)(\..*)?|-(wal|shm|journal)"
_note_mode = PRIVATE


def let_group_read() -> None:
    """Make the notes that this process will write readable by the user's group."""
    global _note_mode
    _note_mode = OF_GROUP


def write_note(path: Path, content: bytes) -> None:
    """Replace a file of our own in one step. Raises OSError if the path is a link or anything but a file."""
    _replace(path, content, _note_mode)


def write_out(path: Path, content: bytes) -> None:
    """Write to the path that a user named: replace a file in one step and keep its mode, or write into a device.

    Raises OSError if the place is a link, except those of /dev, is a pipe of another user, or cannot be written.
    """
    of_system = path.is_relative_to("/dev") or path.is_relative_to("/proc")
    if of_system or (not path.is_symlink() and path.exists() and not path.is_file()):
        if not of_system and _is_strangers(path.lstat()):
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
        with path.open("ab" if path.is_file() else "wb") as device:
            device.write(content)
        return
    _replace(path, content, _mode_of(path), durable=True)


def may_be_replaced(path: Path, *starts: bytes) -> bool:
    """Return whether a file at the path is empty or begins, in any case, as what is to replace it does."""
    start = b""
    with suppress(OSError):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                start = file.read(200)
    return not start.strip() or start.lstrip().lower().startswith(starts)


def append(path: Path, content: bytes) -> None:
    """Append to a file, created if needed. Raises OSError if the path is a link or anything but a file."""
    _refuse_others(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    with os.fdopen(descriptor, "ab") as file:
        file.write(content)


def check_owners(file: Path) -> None:
    """Raise ConfigError if another user owns the file of a database, or what the database and we keep beside it.

    A database follows links, also those at the paths of its log and its temporary files, and keeps the mode of a file
    that exists. Root and the owner of the folder count as this user.
    """
    for place in dict.fromkeys((file, file.resolve())):
        name = re.escape(place.name)
        beside = re.compile(rf"{name}({_OF_DATABASES})?|\.{name}\..*")
        with suppress(OSError):
            owner = place.parent.stat().st_uid
            for each in place.parent.iterdir():
                if not beside.fullmatch(each.name):
                    continue
                if (found := each.lstat()).st_uid != owner and _is_strangers(found):
                    raise ConfigError(
                        f"{each} belongs to another user (uid {found.st_uid}), who could read rows there, have them "
                        "written elsewhere or block every run; remove it, and make sure that other users cannot write "
                        "to its folder."
                    )


def make_lock_file(path: Path) -> None:
    """Create the file of a lock, or make sure that nobody else can hold the existing one.

    Anyone who can open a file can hold its lock, and then every run would find another one under way. Raises
    ConfigError for a link, for anything but a file, and for a file of a user who is neither this one, root nor the
    owner of the folder.
    """
    if os.name != "posix":
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, PRIVATE)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.ENOENT, errno.ENOSPC) or not os.access(path.parent, os.W_OK):
            raise ConfigError(
                f"The folder {path.parent} cannot be written ({error.strerror}), and a run's lock file has to be "
                "there; make it writable, or choose another place for the warehouse."
            ) from None
        what = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"The lock file {path} cannot be opened ({what}); check what it is, and remove it.") from None
    try:
        found = os.fstat(descriptor)
        if found.st_uid != path.parent.stat().st_uid and _is_strangers(found):
            raise ConfigError(
                f"The lock file {path} belongs to another user (uid {found.st_uid}), who could block every run with "
                "it; remove it, and make sure that other users cannot write to its folder."
            )
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise ConfigError(
                f"The lock file {path} is not a regular file with a single name; check what it is, and remove it."
            )
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != PRIVATE:
            os.fchmod(descriptor, PRIVATE)
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes, mode: int, *, durable: bool = False) -> None:
    _refuse_others(path)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        part.chmod(mode)
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink()


def _is_strangers(found: os.stat_result) -> bool:
    return os.name == "posix" and found.st_uid not in (0, os.geteuid())


def _refuse_others(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "it is a link, and nothing is written through links", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EEXIST, "it is not a file", str(path))


def _mode_of(path: Path) -> int:
    """Return the mode of this user's file; of another, that of any file that this process creates."""
    with suppress(OSError):
        if not _is_strangers(found := path.stat()):
            return stat.S_IMODE(found.st_mode) & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
