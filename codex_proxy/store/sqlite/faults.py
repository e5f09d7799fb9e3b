"""Which of SQLite's errors are the world's fault, and what a person is told. All others are bugs."""

from __future__ import annotations

import sqlite3

from codex_proxy.store.base import StoreDamaged, StoreUnavailable

_TOLD = {
    sqlite3.SQLITE_BUSY: "is locked by another process; end it, or try again",
    sqlite3.SQLITE_LOCKED: "is locked by another process; end it, or try again",
    sqlite3.SQLITE_PROTOCOL: "is locked by another process; end it, or try again",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full; make room and try again",
    sqlite3.SQLITE_IOERR: "cannot be read or written (input/output error); look at the disk",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; look at the folder and its permissions",
    sqlite3.SQLITE_PERM: "may not be opened; look at its permissions",
    sqlite3.SQLITE_READONLY: "is read-only; look at its permissions",
    sqlite3.SQLITE_NOMEM: "needs more memory than there is",
    sqlite3.SQLITE_CORRUPT: "is damaged; move it away and start again, or restore a copy",
    sqlite3.SQLITE_NOTADB: "is no SQLite database; move it away and start again",
}


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's error code without its details; 0 where the error comes from the Python module itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_full(error: sqlite3.Error) -> bool:
    return primary_code(error) == sqlite3.SQLITE_FULL


def is_damage(error: sqlite3.Error) -> bool:
    return primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def as_store_error(error: sqlite3.Error, location: str) -> StoreUnavailable | None:
    """The error for the caller, or None for a bug."""
    text = _TOLD.get(primary_code(error))
    if text is None:
        return None
    kind = StoreDamaged if is_damage(error) else StoreUnavailable
    return kind(f"the store {location} {text}")
