"""Lets only one server use a store: a second would take the responses that the first runs for interrupted ones. The
lock (`flock`) ends with the process. It is on a file beside the store, because closing another descriptor of the store
would release SQLite's locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from pathlib import Path

from codex_proxy.files.private import file_problem, make_folder
from codex_proxy.store.values import StoreInUse, StoreRefused

WAIT_SECONDS, RETRY_SECONDS = 1.0, 0.02
"""The seconds to wait for the lock, which children of a killed server hold for a moment, and those between two
attempts.
"""


class StoreLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    async def take(cls, store: Path, *, within: float = WAIT_SECONDS) -> StoreLock:
        """Locks a store. Raises `StoreRefused`; `StoreInUse` if another process holds it after `within` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        descriptor = _open(store)
        try:
            while not _try_lock(descriptor):
                if loop.time() >= deadline:
                    raise _in_use(store, descriptor)
                await asyncio.sleep(RETRY_SECONDS)
            os.truncate(descriptor, 0)
            os.write(descriptor, b"%d\n" % os.getpid())
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise StoreRefused(f"the store {store} cannot be locked: {error.strerror}") from error
            raise
        return cls(descriptor)

    def write_address(self, url: str) -> None:
        """Writes this server's address, for a second server's error."""
        os.pwrite(self._descriptor, b"%d %b\n" % (os.getpid(), url.encode()), 0)

    def release(self) -> None:
        """Releases the lock; its file stays."""
        # Another process may be waiting for a lock on the file.
        os.close(self._descriptor)


def check_lock(store: Path) -> None:
    """Raises what `StoreLock.take` would, for a store that exists, and creates nothing."""
    try:
        descriptor = os.open(_path_of(store), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_open(store, error) from error
    try:
        if not _try_lock(descriptor):
            raise _in_use(store, descriptor)
    finally:
        os.close(descriptor)


def _open(store: Path) -> int:
    try:
        make_folder(Path(os.path.realpath(store)).parent)
        return os.open(_path_of(store), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _cannot_open(store, error) from error


def _path_of(store: Path) -> Path:
    # Beside the file itself, whatever links lead to it. A hard link is refused when the store is opened.
    path = Path(os.path.realpath(store) + ".lock")
    if reason := file_problem(path):
        raise StoreRefused(f"the lock {path} of the store {reason}")
    return path


def _cannot_open(store: Path, error: OSError) -> StoreRefused:
    return StoreRefused(f"the store {store} cannot be opened: {error.strerror}")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_use(store: Path, descriptor: int) -> StoreInUse:
    holder = ""
    with contextlib.suppress(OSError, ValueError):
        process, _, url = os.pread(descriptor, 300, 0).decode().strip().partition(" ")
        holder = f" (process {int(process)}{f', {url}' if url else ''})"
    return StoreInUse(f"another server{holder} keeps its responses in {store}")
