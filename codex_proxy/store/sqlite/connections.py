"""The threads that use the database: one writes, and combines waiting writes into one commit; some read. A job is a
function that gets the connection; one that raises undoes only its own changes.

A write may run twice (`_run_one_by_one`), so it changes nothing but the database. A read sees one state, with every
write that was completed before.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from codex_proxy.store.sqlite.opening import as_store_error, is_full
from codex_proxy.store.values import StoreUnavailable, UnsureWrite

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

MAX_QUEUED: Final = 4096
"""Maximum waiting writes: beyond this the disk must hang."""
MAX_BATCH: Final = 256
"""Maximum jobs in one commit; the first waits for the last."""
ANSWER_WAIT: Final = 30.0
"""Seconds that a caller waits for its commit."""
CLOSE_WAIT: Final = 10.0


class _Write:
    """A queued job and its caller's future; `value` or `error` is set when it has run."""

    __slots__ = ("error", "future", "job", "loop", "value")

    def __init__(self, job: Job[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.value: Any = None
        self.error: Exception | None = None

    def deliver(self) -> None:
        """Resolves the future on the event loop; the caller may be cancelled."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.value)
        else:
            self.future.set_exception(self.error)


async def _answer_of(
    job: asyncio.Future[T], location: str, seconds: float, late: type[StoreUnavailable] = StoreUnavailable
) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await job
    except TimeoutError:
        raise late(f"the store {location} did not answer within {seconds:g} s; check the disk") from None


def _file_removed(location: str) -> StoreUnavailable:
    return StoreUnavailable(f"the store {location} was removed or replaced; start the server again")


class Writer:
    """The thread that writes, and alone uses `connection`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        location: str,
        *,
        has_file: Callable[[], bool] = lambda: True,
        answer_wait: float = ANSWER_WAIT,
    ) -> None:
        """`has_file`: whether `location` still is the connection's file."""
        self._connection = connection
        self._location = location
        self._has_file = has_file
        self._answer_wait = answer_wait
        self._queue: deque[_Write] = deque()
        self._changed = threading.Condition()
        self._closing = False
        # A daemon: a process that ends without closing must not wait for it.
        self._thread = threading.Thread(target=self._work, name="store-writer", daemon=True)
        self._thread.start()

    async def run(self, job: Job[T]) -> T:
        """Returns a job's value when the commit is on disk. Raises what the job raises, with its changes undone,
        `StoreUnavailable`, or `UnsureWrite`.
        """
        write = _Write(job, asyncio.get_running_loop())
        with self._changed:
            if self._closing:
                raise StoreUnavailable(f"the store {self._location} is closed")
            if len(self._queue) >= MAX_QUEUED:
                raise StoreUnavailable(f"the store {self._location} is too far behind; try again later")
            self._queue.append(write)
            self._changed.notify()
        value: T = await _answer_of(write.future, self._location, self._answer_wait, UnsureWrite)
        return value

    def close(self) -> None:
        """Commits the queued writes. Blocks; raises `StoreUnavailable` after `CLOSE_WAIT` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_WAIT)
        if self._thread.is_alive():
            raise StoreUnavailable(f"the store {self._location} did not finish within {CLOSE_WAIT:g} s")
        self._connection.close()

    # --- on the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]
            if not batch:
                return
            self._commit(batch)
            for write in batch:
                with contextlib.suppress(RuntimeError):  # its event loop is closed: nobody waits
                    write.loop.call_soon_threadsafe(write.deliver)

    def _commit(self, batch: list[_Write]) -> None:
        try:
            if not self._has_file():  # SQLite would go on writing into a file that has no name any more
                raise _file_removed(self._location)
            self._transaction(batch)
        except sqlite3.Error as error:
            if len(batch) > 1 and is_full(error):
                self._run_one_by_one(batch)
                return
            self._fail(batch, as_store_error(error, self._location) or error)
        except Exception as error:  # noqa: BLE001 - the callers', and the thread has further writes to do
            self._fail(batch, error)

    def _fail(self, batch: list[_Write], error: Exception) -> None:
        for write in batch:
            write.error = error

    def _run_one_by_one(self, batch: list[_Write]) -> None:
        # Small writes may still succeed.
        for write in batch:
            self._commit([write])

    def _transaction(self, batch: list[_Write]) -> None:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            for write in batch:
                self._apply(write)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _apply(self, write: _Write) -> None:
        connection = self._connection
        write.error = None
        connection.execute("SAVEPOINT job")
        try:
            write.value = write.job(connection)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and as_store_error(error, self._location) is not None:
                raise  # the disk or the file is at fault: the whole transaction is in doubt
            connection.execute("ROLLBACK TO job")
            write.error = error
        connection.execute("RELEASE job")


THREADS: Final = 2
"""Number of reading threads: with two, short reads need not wait for a long one."""
MAX_WAITING: Final = 1024


class Readers:
    def __init__(
        self,
        opener: Callable[[], sqlite3.Connection],
        location: str,
        *,
        has_file: Callable[[], bool] = lambda: True,
    ) -> None:
        """`has_file`: see `Writer`."""
        self._open = opener
        self._location = location
        self._has_file = has_file
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store-reader")
        self._connections: list[sqlite3.Connection] = []
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Returns a job's value. Raises what the job raises, or `StoreUnavailable`."""
        if self._closed:
            raise StoreUnavailable(f"the store {self._location} is closed")
        if self._waiting >= MAX_WAITING:
            raise StoreUnavailable(f"the store {self._location} is too far behind; try again later")
        self._waiting += 1
        try:
            reading = asyncio.get_running_loop().run_in_executor(self._threads, self._read, job)
            return await _answer_of(reading, self._location, ANSWER_WAIT)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Waits for the reads that were begun or queued, blocking."""
        self._closed = True
        self._threads.shutdown(wait=True)
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        if not self._has_file():  # a new connection would make an empty one
            raise _file_removed(self._location)
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
