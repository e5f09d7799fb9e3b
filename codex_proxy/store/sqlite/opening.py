"""Opens the database, in autocommit mode, creates its tables, and decides which SQLite errors the operator gets; all
others are bugs. A refused file is not written to.

`StoreLock` lets only one server use a file: a second would take the responses that the first runs for interrupted ones.
The lock (`flock`) ends with the process. It is on a file beside the store, because closing another descriptor of the
store would release SQLite's locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from codex_proxy.files.private import close_to_others, create, file_problem, make_folder
from codex_proxy.store.rows import checksum
from codex_proxy.store.values import StoreDamaged, StoreInUse, StoreRefused, StoreUnavailable

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


_EXPLANATIONS = {
    sqlite3.SQLITE_BUSY: "is locked by another process; end it, or try again",
    sqlite3.SQLITE_LOCKED: "is locked by another process; end it, or try again",
    sqlite3.SQLITE_PROTOCOL: "is locked by another process; end it, or try again",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full; make room and try again",
    sqlite3.SQLITE_IOERR: "cannot be read or written (input/output error); check the disk",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check the folder and its permissions",
    sqlite3.SQLITE_PERM: "may not be opened; check its permissions",
    sqlite3.SQLITE_READONLY: "is read-only; check its permissions and its folder's",
    sqlite3.SQLITE_NOMEM: "needs more memory than is available",
    sqlite3.SQLITE_CORRUPT: "is damaged; move it away and start again, or restore a copy",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; move it away and start again",
}


def primary_code(error: sqlite3.Error) -> int:
    """Returns SQLite's error code; 0 for an error of Python's module."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_full(error: sqlite3.Error) -> bool:
    return primary_code(error) == sqlite3.SQLITE_FULL


def is_damage(error: sqlite3.Error) -> bool:
    return primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def as_store_error(error: sqlite3.Error, location: str) -> StoreUnavailable | None:
    """Converts an error of SQLite to the error that the operator gets; None if it is a bug of this server. `location`
    names the store.
    """
    text = _EXPLANATIONS.get(primary_code(error))
    if text is None:
        return None
    kind = StoreDamaged if is_damage(error) else StoreUnavailable
    return kind(f"the store {location} {text}")


Connect: TypeAlias = Callable[[str, float], sqlite3.Connection]
"""The type of a function that opens a database by name, with the seconds to wait for a lock."""

CHECKED_BYTES: Final = 64 << 20
"""The size up to which the whole file is checked, in some 100 ms."""

WAL_BYTES: Final = 64 << 20
"""The size to which the write-ahead log is truncated."""

_TRIES_FOR_WAL: Final = 50
"""Maximum tries to change the journal mode, for which SQLite does not wait for locks."""


def connect(name: str, lock_wait: float) -> sqlite3.Connection:
    """Opens a connection for several threads, one at a time."""
    return sqlite3.connect(name, timeout=lock_wait, isolation_level=None, check_same_thread=False)


def open_writer(path: Path, lock_wait: float, opener: Connect = connect) -> sqlite3.Connection:
    """Creates the file, or checks and migrates it. Raises `StoreRefused` or `StoreUnavailable`, with what to do."""
    path = Path(os.path.realpath(path))  # a link to a store is the store; SQLite takes it so too
    _prepare(path)
    if _log_of(path).exists():
        inspect_file(path)  # a connection that may write would put the log into a file that is refused
    connection = opener(str(path), lock_wait)
    try:
        with _errors_of(path):
            _inspect(connection, path)
            _close_to_others(path)
            _set_up(connection, path)
            migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Converts SQLite's errors to `StoreRefused` or `StoreUnavailable`, unless they are bugs."""
    try:
        yield
    except sqlite3.Error as error:
        if is_damage(error):
            raise _damage_error(path) from error
        unavailable = as_store_error(error, str(path))
        if unavailable is None:
            raise
        raise unavailable from error


def inspect_file(path: Path) -> None:
    """Raises what `open_writer` would raise for this existing file, and writes nothing."""
    path = Path(os.path.realpath(path))
    if reason := file_problem(path):
        raise StoreRefused(f"the store {path} {reason}")
    if not (os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)):
        raise StoreUnavailable(f"the store {path} {_EXPLANATIONS[sqlite3.SQLITE_READONLY]}")
    # Without a log nobody uses the file, and reading it as immutable creates none.
    mode = "mode=ro" if _log_of(path).exists() else "mode=ro&immutable=1"
    with (
        _errors_of(path),
        closing(sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, isolation_level=None)) as connection,
    ):
        _inspect(connection, path)


def _log_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def open_reader(path: Path, lock_wait: float, opener: Connect = connect) -> sqlite3.Connection:
    """Opens the file read-only, after `open_writer`."""
    connection = opener(str(path), lock_wait)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def names_same_file(path: Path) -> Callable[[], bool]:
    """Returns a function that tells whether the path still names the same file as now."""
    opened = os.stat(path)

    def check() -> bool:
        try:
            return os.path.samestat(os.stat(path), opened)
        except OSError:
            return False

    return check


def open_in_memory(opener: Connect = connect) -> sqlite3.Connection:
    connection = opener(":memory:", 0.0)
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA foreign_keys = ON")
    migrate(connection)
    return connection


def _prepare(path: Path) -> None:
    """Creates the file, or raises `StoreRefused` for one that cannot be used, such as one with a hard link: SQLite
    names its log after the file, and two logs destroy it.
    """
    try:
        make_folder(path.parent)
        try:
            os.close(create(path))
        except FileExistsError:
            reason = file_problem(path)
            if reason:
                raise StoreRefused(f"the store {path} {reason}") from None
    except OSError as error:
        raise StoreRefused(f"the store {path} cannot be opened: {error.strerror}") from error


def _close_to_others(path: Path) -> None:
    for name in (path, _log_of(path), Path(f"{path}-shm")):
        try:
            close_to_others(name)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreRefused(f"{name} cannot be made private: {error.strerror}") from error


def _inspect(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # one moment: another process may be making the tables
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    version = version_of(connection)
    connection.execute("ROLLBACK")
    if owner != APPLICATION_ID and (tables or owner or version):
        raise StoreRefused(f"{path} is another program's database; set another folder with PROXY_STATE_DIR")
    if version > LATEST_VERSION:
        raise StoreRefused(
            f"the store {path} was written by a newer version (its schema is {version}, this "
            f"version supports {LATEST_VERSION}); run that version, or set another folder with "
            "PROXY_STATE_DIR"
        )
    if path.stat().st_size <= CHECKED_BYTES:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise _damage_error(path)


def _damage_error(path: Path) -> StoreRefused:
    return StoreRefused(
        f"the store {path} is damaged or not a database, and was not changed; move it away to "
        "start with an empty one, or restore a copy; if it is a copy, remove the -wal and -shm of the old file"
    )


def _set_up(connection: sqlite3.Connection, path: Path) -> None:
    # Before the first table, and before the journal mode; afterwards it has no effect.
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    if _enable_write_ahead(connection) != "wal":
        raise StoreRefused(
            f"the file system of {path} cannot hold a store (no shared memory for SQLite's "
            "write-ahead log); set a folder on a local disk with PROXY_STATE_DIR"
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")  # nothing of a conversation lands in /tmp
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")


def _enable_write_ahead(connection: sqlite3.Connection) -> str:
    for left in reversed(range(_TRIES_FOR_WAL)):
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or not left:
                raise
            connection.execute("BEGIN IMMEDIATE")  # waits until the other one is done
            connection.execute("ROLLBACK")
    raise AssertionError("unreachable")


# --- the tables -----------------------------------------------------------------------------------
# They are made by the files in `migrations` in the order of their numbers; a published file never changes.
# `user_version` counts a store's files; missing ones run in one transaction, so that a process that dies leaves the
# store unchanged.

FILES: Final = sorted((Path(__file__).parent / "migrations").glob("*.sql"))
LATEST_VERSION: Final = len(FILES)

APPLICATION_ID: Final = 0x63787078
"""The id in the file's header ("cxpx")."""


def version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, to: int = LATEST_VERSION) -> None:
    """Brings an older store to version `to`."""
    if version_of(connection) >= to:
        return
    connection.create_function("checksum", 1, checksum, deterministic=True)
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have migrated the file meanwhile, so the version is read again.
        for file in FILES[version_of(connection) : to]:
            for statement in file.read_text().split(";\n"):  # `executescript` would commit
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {max(to, version_of(connection))}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
