"""Threads that read, each job on a connection of its own and on one state of the database.

In: jobs, as in `writer`. Out: their values. A read sees every write that was acknowledged before it began.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from codex_proxy.store.base import StoreUnavailable
from codex_proxy.store.sqlite.opening import as_store_error

T = TypeVar("T")

THREADS: Final = 2
"""Reads are short; a second thread lets them pass a long one (an export, a chain of a thousand turns). So many
contexts at most are read at once, whoever asks."""
MAX_WAITING: Final = 1024
"""Reads that may wait: more than requests that may run at once."""
ANSWER_WAIT: Final = 30.0
"""Seconds for a read; only a disk that hangs takes so long."""


class Readers:
    """Opens connections when they are needed, at most one per thread."""

    def __init__(self, opener: Callable[[], sqlite3.Connection], location: str) -> None:
        self._open = opener
        self._location = location
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store-reader")
        self._connections: list[sqlite3.Connection] = []
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """The job's value. Raises what the job raises, or `StoreUnavailable`."""
        if self._closed:
            raise StoreUnavailable(f"the store {self._location} is closed")
        if self._waiting >= MAX_WAITING:
            raise StoreUnavailable(f"the store {self._location} is too far behind; try again later")
        self._waiting += 1
        try:
            async with asyncio.timeout(ANSWER_WAIT):
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, job)
        except TimeoutError:
            raise StoreUnavailable(
                f"the store {self._location} did not answer within {ANSWER_WAIT:g} s; look at the disk"
            ) from None
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Waits for the reads that run; called off the event loop."""
        self._closed = True
        self._threads.shutdown(wait=True)
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection = self._take()
            try:
                connection.execute("BEGIN")
                return job(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                with self._lock:
                    self._idle.append(connection)
        except sqlite3.Error as error:
            unavailable = as_store_error(error, self._location)
            if unavailable is None:
                raise
            raise unavailable from error

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = self._open()
        with self._lock:
            self._connections.append(connection)
        return connection
