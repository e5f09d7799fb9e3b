"""Files and folders that only their owner can read.

Folders (0700) and files (0600) are created for their owner, and others' rights removed from existing ones. Existing
files keep their mode, and links are not followed, unless a function says so. Temporary folders are removed even if
their process is killed: one is locked (`flock`) as long as a process that uses it lives, and `remove_left_folders`
removes those that nobody has locked. Functions raise `OSError`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
OTHERS_RIGHTS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_folder(folder: Path) -> None:
    """Creates the folder and missing ones above it with mode 0700, unlike `mkdir(parents=True)`."""
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=FOLDER_MODE)


def why_not_created(path: Path) -> str:
    """Returns why this user cannot create a file or folder that does not exist; empty if it is possible."""
    above = next(each for each in path.parents if each.exists())
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return ""
    return f"{above} is not writable"


def create(path: Path | str) -> int:
    """Returns a descriptor of an empty file. Raises `FileExistsError`, also for a broken link."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    os.fchmod(descriptor, FILE_MODE)
    return descriptor


def read_regular(path: Path, limit: int) -> bytes:
    """Returns a file's bytes, and opens what is no regular file without waiting. Raises `OSError`, also for a pipe, a
    device, a socket or a folder, and `OverflowError` for more than `limit` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    pieces, left = list[bytes](), limit + 1
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        while left and (piece := os.read(descriptor, min(left, 1 << 24))):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(descriptor)
    if not left:
        raise OverflowError(limit)
    return b"".join(pieces)


@contextlib.contextmanager
def replace_file(path: Path, *, mode: int = FILE_MODE) -> Iterator[BinaryIO]:
    """Opens a new file that replaces `path` (or a link's target) at the end of the `with`, or is deleted if the body
    raises. A pipe or terminal is written to directly.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with target.open("wb") as out:
            yield out
        return
    descriptor, new = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # of mode 0600
    try:
        with os.fdopen(descriptor, "wb") as out:
            yield out
            out.flush()
            os.fchmod(out.fileno(), mode)
            os.fsync(out.fileno())
        os.replace(new, target)
    except BaseException:
        os.unlink(new)
        raise


def close_to_others(path: Path) -> bool:
    """Removes others' rights on a file or folder of this user; returns whether they had any. Never changes a link's
    target.
    """
    if not hasattr(os, "O_PATH"):  # not Linux; there `chmod` can be told not to follow a link
        found = path.lstat()
        if not _own_and_open_to_others(found):
            return False
        os.chmod(path, stat.S_IMODE(found.st_mode) & ~OTHERS_RIGHTS, follow_symlinks=False)
        return True
    # A descriptor that opens nothing: closing a real one of a database would drop SQLite's locks on it.
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not _own_and_open_to_others(found):
            return False
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(found.st_mode) & ~OTHERS_RIGHTS)
        return True
    finally:
        os.close(descriptor)


def _own_and_open_to_others(found: os.stat_result) -> bool:
    return (
        not stat.S_ISLNK(found.st_mode)
        and found.st_uid == os.geteuid()
        and bool(found.st_mode & OTHERS_RIGHTS)
    )


def file_problem(path: Path) -> str:
    """Returns why this server must not use a file (a link, not regular, another user's, a second hard link), as the
    end of a sentence; empty if it may, or there is none.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link, which could point anywhere; remove it"
    if not stat.S_ISREG(found.st_mode):
        return "is no file"
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        return "belongs to another user; give a path of your own"
    if found.st_nlink > 1:
        return "has a second name (a hard link), under which another program may use it; remove one of them"
    return ""


SUFFIX: Final = ".temporary"
_NAME: Final = re.compile(r"codex-proxy-[a-z]+-[a-z0-9_]{8}\.temporary")
"""The name of a folder that only this module makes: no other is removed."""


class TemporaryFolder(NamedTuple):
    path: str
    lock: int
    """A descriptor. A child that inherits it (`pass_fds`) keeps the folder until it has ended."""


@contextlib.contextmanager
def temporary_folder(use: str, place: str | Path | None = None) -> Iterator[TemporaryFolder]:
    """Makes a new, empty folder (0700) in `place` (None: the system's temporary folder) for the body of the
    `with`. `use` is a word of its name. In the system's, folders of killed processes are removed first.
    """
    if place is None:
        remove_left_folders()
    folder = _locked_folder(use, place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)
        os.close(folder.lock)


def remove_left_folders(place: str | Path | None = None) -> None:
    """Removes folders in `place` that `temporary_folder` has made for processes that were killed."""
    with contextlib.suppress(OSError), os.scandir(place or tempfile.gettempdir()) as entries:
        for path in [entry.path for entry in entries if _NAME.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _remove_left(path)


def _remove_left(path: str) -> None:
    lock = _opened(path)
    try:
        found = os.fstat(lock)
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == stat.S_IRWXU:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _locked_folder(use: str, place: str | Path | None) -> TemporaryFolder:
    while True:
        path = tempfile.mkdtemp(SUFFIX, f"codex-proxy-{use}-", place)
        try:
            lock = _opened(path)
        except FileNotFoundError:  # taken for one that was left, before it was locked
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # it is being removed
            os.close(lock)
            continue
        except OSError:  # a file system without locks: nobody else can lock it either, and so it stays
            return TemporaryFolder(path, lock)
        if os.fstat(lock).st_nlink:
            return TemporaryFolder(path, lock)
        os.close(lock)


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
