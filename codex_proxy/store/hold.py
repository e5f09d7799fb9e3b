"""One server keeps a store at a time: a second would take the first one's running responses for cut off.

A lock of the operating system on a file beside the store. It ends with the process, however that ends, so nothing is
ever left to be cleaned up; commands that look into the store do not ask for it. Not on the store itself: closing any
descriptor of that file would drop the locks of SQLite.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from codex_proxy.store.base import StoreRefused


class StoreHold:
    """The right to keep a store, until `release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, store: Path) -> StoreHold:
        """Raises `StoreRefused` where another server has it; the text names the file, the server and what to do."""
        path = store.with_name(store.name + ".lock")
        try:
            store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreRefused(f"the store {store} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(descriptor, 0)
            os.write(descriptor, b"%d\n" % os.getpid())
        except BaseException as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise StoreRefused(
                    f"another server{holder} keeps its responses in {store}: end that one, or give this one a store "
                    "of its own (PROXY_STATE_DIR or PROXY_STORE_PATH)"
                ) from error
            if isinstance(error, OSError):
                raise StoreRefused(f"the store {store} cannot be locked: {error.strerror}") from error
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Another server may have it. The file stays: whoever waits for it must meet the same one."""
        os.close(self._descriptor)


def _holder(descriptor: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        return f" (process {int(os.pread(descriptor, 20, 0))})"
    return ""
