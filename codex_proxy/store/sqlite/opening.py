"""Opens the database: creates the file with its permissions, refuses files that are damaged or not a store, and
decides which SQLite errors are reported to the operator; all others are bugs.

Takes a path; returns connections in autocommit mode, in which the caller begins and ends transactions. Raises
`StoreRefused` with the path and what to do, and `StoreUnavailable` if another process locks the file for too long.
A file that is refused is not written to.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from codex_proxy.files.private import close_to_others, create, make_folder, unfit
from codex_proxy.store.interface import StoreDamaged, StoreRefused, StoreUnavailable
from codex_proxy.store.sqlite.migrations import APPLICATION_ID, LATEST, migrate, version_of

_EXPLANATIONS = {
    sqlite3.SQLITE_BUSY: "is locked by another process; end it, or try again",
    sqlite3.SQLITE_LOCKED: "is locked by another process; end it, or try again",
    sqlite3.SQLITE_PROTOCOL: "is locked by another process; end it, or try again",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full; make room and try again",
    sqlite3.SQLITE_IOERR: "cannot be read or written (input/output error); check the disk",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check the folder and its permissions",
    sqlite3.SQLITE_PERM: "may not be opened; check its permissions",
    sqlite3.SQLITE_READONLY: "is read-only; check its permissions",
    sqlite3.SQLITE_NOMEM: "needs more memory than is available",
    sqlite3.SQLITE_CORRUPT: "is damaged; move it away and start again, or restore a copy",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; move it away and start again",
}


def primary_code(error: sqlite3.Error) -> int:
    """Returns SQLite's primary error code (`SQLITE_BUSY`); 0 for an error that Python's module has raised itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_full(error: sqlite3.Error) -> bool:
    return primary_code(error) == sqlite3.SQLITE_FULL


def is_damage(error: sqlite3.Error) -> bool:
    return primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def as_store_error(error: sqlite3.Error, location: str) -> StoreUnavailable | None:
    """Returns the error to raise for an SQLite error, with a text that says what to do; None if the SQLite error is
    a bug of this program. `location` names the store.
    """
    text = _EXPLANATIONS.get(primary_code(error))
    if text is None:
        return None
    kind = StoreDamaged if is_damage(error) else StoreUnavailable
    return kind(f"the store {location} {text}")


Connect: TypeAlias = Callable[[str, float], sqlite3.Connection]
"""Opens a database by name, with the seconds to wait for a lock. Tests pass their own."""

CHECKED_BYTES: Final = 64 << 20
"""Up to this size the whole file is checked when it is opened (some 100 ms). Damage in a larger file is noticed when
the damaged rows are read."""

WAL_BYTES: Final = 64 << 20
"""The size to which the write-ahead log is truncated after a burst of writes."""

_TRIES_FOR_WAL: Final = 50
"""How often to try to change the journal mode when two processes create the same file at once. SQLite does not wait
for locks in that statement, so waiting for a lock comes between two tries."""


def connect(name: str, lock_wait: float) -> sqlite3.Connection:
    """Opens a connection to the database file `name`. Different threads may use it, one at a time
    (`check_same_thread` is False). `lock_wait` is how many seconds SQLite waits for another process's lock.
    """
    return sqlite3.connect(name, timeout=lock_wait, isolation_level=None, check_same_thread=False)


def open_writer(path: Path, lock_wait: float, opener: Connect = connect) -> sqlite3.Connection:
    """Returns a connection for writing to a file. Creates the file if it does not exist; otherwise checks it, and
    migrates it to the version of this program. `lock_wait`: the seconds to wait for another process's lock.
    `opener` is called instead of `connect` in tests. Raises `StoreRefused` if the file is damaged, of a newer
    version or no store, and `StoreUnavailable` if it is locked or the disk is full.
    """
    path = Path(os.path.realpath(path))  # a link to a store is the store; SQLite takes it so too
    _prepare(path)
    connection = opener(str(path), lock_wait)
    try:
        _inspect(connection, path)
        _close_to_others(path)
        _set_up(connection, path)
        migrate(connection)
    except sqlite3.Error as error:
        connection.close()
        if is_damage(error):
            raise _damaged(path) from error
        unavailable = as_store_error(error, str(path))
        if unavailable is None:
            raise
        raise unavailable from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path, lock_wait: float, opener: Connect = connect) -> sqlite3.Connection:
    """Returns a read-only connection to a file that `open_writer` has opened. The parameters are those of
    `open_writer`.
    """
    connection = opener(str(path), lock_wait)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def open_in_memory(opener: Connect = connect) -> sqlite3.Connection:
    """Returns a database without a file, which ends with its connection. `opener` is called instead of `connect` in
    tests.
    """
    connection = opener(":memory:", 0.0)
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA foreign_keys = ON")
    migrate(connection)
    return connection


def _prepare(path: Path) -> None:
    """Creates the file if it does not exist. Raises `StoreRefused` for a file that cannot be used, such as one with
    a hard link: SQLite names the write-ahead log after the file, so two names would have two logs, which destroys
    the file.

    An existing file is not opened here, because closing it would release the locks of every SQLite connection that
    this process has to it.
    """
    try:
        make_folder(path.parent)
        try:
            os.close(create(path))
        except FileExistsError:
            reason = unfit(path)
            if reason:
                raise StoreRefused(f"the store {path} {reason}") from None
    except OSError as error:
        raise StoreRefused(f"the store {path} cannot be opened: {error.strerror}") from error


def _close_to_others(path: Path) -> None:
    """Removes all permissions of other users on the file and its write-ahead log. Called when the file is known to
    be a store. SQLite gives a new log the permissions of the file.
    """
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
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
    if version > LATEST:
        raise StoreRefused(
            f"the store {path} was written by a newer version (its schema is {version}, this "
            f"version supports {LATEST}); run that version, or set another folder with "
            "PROXY_STATE_DIR"
        )
    if path.stat().st_size <= CHECKED_BYTES:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise _damaged(path)


def _damaged(path: Path) -> StoreRefused:
    return StoreRefused(
        f"the store {path} is damaged or not a database, and was not changed; move it away to "
        "start with an empty one, or restore a copy"
    )


def _set_up(connection: sqlite3.Connection, path: Path) -> None:
    # Before the first table, and before the journal mode; afterwards it has no effect.
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    if _write_ahead(connection) != "wal":
        raise StoreRefused(
            f"the file system of {path} cannot hold a store (no shared memory for SQLite's "
            "write-ahead log); set a folder on a local disk with PROXY_STATE_DIR"
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")  # nothing of a conversation lands in /tmp
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")


def _write_ahead(connection: sqlite3.Connection) -> str:
    for left in reversed(range(_TRIES_FOR_WAL)):
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or not left:
                raise
            connection.execute("BEGIN IMMEDIATE")  # waits until the other one is done
            connection.execute("ROLLBACK")
    raise AssertionError("unreachable")
