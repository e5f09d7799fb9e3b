"""Creates folders and files that only their owner can read, whatever the umask, and removes the rights of other
users from existing ones.

Takes paths; creates folders of mode 0700 and files of mode 0600. Raises `OSError`. Existing files and folders keep
their mode unless a function says otherwise. Symbolic links are not followed when a file is opened or changed,
unless a function says so."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_folder(folder: Path) -> None:
    """Creates the folder, and each missing one above it, with mode 0700. (`mkdir(parents=True)` gives the missing
    ones the mode of the umask.)"""
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=FOLDER_MODE)


def create(path: Path) -> int:
    """Creates an empty file and returns a descriptor for reading and writing. Raises `FileExistsError` if the path
    exists, even as a broken link."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    os.fchmod(descriptor, FILE_MODE)
    return descriptor


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = FILE_MODE) -> Iterator[BinaryIO]:
    """Opens a new file for writing, which replaces the file at `path` when the body of the `with` ends, and is
    deleted if the body raises. The file at `path` is never seen half-written. If `path` is a link, its target is
    replaced. A target that is not a regular file (a pipe, a terminal) is written to directly. `mode` is the mode of
    the new file."""
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
    """Removes all rights of other users on a file or folder of this process's user; returns whether they had any.
    Files of other users are not changed. Never changes the target of a link, nor a file that replaces the checked
    one meanwhile."""
    if not hasattr(os, "O_PATH"):  # not Linux; there `chmod` can be told not to follow a link
        found = path.lstat()
        if not _own_and_open_to_others(found):
            return False
        os.chmod(path, stat.S_IMODE(found.st_mode) & ~OTHERS, follow_symlinks=False)
        return True
    # A descriptor that opens nothing: closing a real one of a database would drop SQLite's locks on it.
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not _own_and_open_to_others(found):
            return False
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(found.st_mode) & ~OTHERS)
        return True
    finally:
        os.close(descriptor)


def _own_and_open_to_others(found: os.stat_result) -> bool:
    return not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and bool(found.st_mode & OTHERS)


def unfit(path: Path) -> str:
    """Returns why the file at `path` may not be used as one of this server's files (a link, no regular file,
    another user's, a second hard link), as the end of a sentence. Returns an empty string if it may be used, or
    does not exist. No file is opened and no link is followed."""
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
