"""The keyring, which reads the keys file again when it changes."""

from __future__ import annotations

import secrets
import stat
from pathlib import Path

import structlog

from codex_proxy.core.interfaces import Clock
from codex_proxy.core.keys import Key, KeysError, KeySet, parse_keys, with_default
from codex_proxy.files.private import read_regular

log = structlog.get_logger(__name__)

CHECK_SECONDS = 0.5
"""Seconds between checks of the file: a removed key is accepted for this long."""

MAX_FILE_BYTES = 1 << 20
"""The largest keys file; a thousand keys take a third of that."""

PREFIX = "cpx_"
"""The prefix by which people and secret scanners recognise keys."""
RANDOM_BYTES = 32
"""The random bytes of a key: with 256 bits a plain hash is safe (`core.keys`)."""

Stamp = tuple[int, int, int] | None
"""A version of the keys file; None if there is no file."""
UNREAD: Stamp = (-1, -1, -1)
"""A stamp that no file has."""


def new_secret() -> str:
    """Returns a new random key, as text."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def read_keys(path: Path) -> tuple[Key, ...]:
    """Returns the keys in the file; none without a file. Raises `KeysError`, with the file's path."""
    try:
        content = read_regular(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise KeysError(f"{path} cannot be read: {error.strerror}") from error
    except OverflowError as error:
        raise KeysError(f"{path} is larger than {MAX_FILE_BYTES} bytes") from error
    try:
        return parse_keys(content)
    except KeysError as error:
        raise KeysError(f"{path}: {error}") from error


def others_access(path: Path) -> str:
    """Returns what other users may do with the file: `read`, `change`, or nothing (an empty string)."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return ""
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "change"
    return "read" if mode & (stat.S_IRGRP | stat.S_IROTH) else ""


class Keyring:
    """The valid keys, of file, store and PROXY_API_KEY."""

    def __init__(self, path: Path, api_key: str | None, clock: Clock, start_digest: str = "") -> None:
        """The file at `path` need not exist. `start_digest`: see `KeySet`. Raises `KeysError`."""
        self.trouble: str | None = None
        """Why the newest keys could not be read, if so; older ones then stay valid."""
        self._path = path
        self._api_key = api_key
        self._clock = clock
        self._start_digest = start_digest
        self._looked = clock.monotonic()
        self._stamp = _stamp_of(path)
        self._stored: tuple[Key, ...] | None = None
        """The keys of the store; None if it has never had any."""
        self._read()

    def use_stored(self, keys: tuple[Key, ...]) -> None:
        """Replaces the keys of the store. A key of the same name in the file or in PROXY_API_KEY has priority."""
        self._stored = keys
        self._merge()

    def current(self) -> KeySet:
        """Returns the valid keys. A change of the file takes effect within a second; if it is removed or becomes
        invalid, its last keys stay valid, and `trouble` says why.
        """
        now = self._clock.monotonic()
        if now - self._looked >= CHECK_SECONDS:
            self._looked = now
            self._check_file()
        return self._keys

    def _check_file(self) -> None:
        stamp = _stamp_of(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            if stamp is None:
                raise KeysError(f"{self._path} is gone")
            self._read()
        except KeysError as error:
            if isinstance(error.__cause__, OSError):
                self._stamp = UNREAD  # a server out of descriptors, say: that passes without a change
            if self.trouble != str(error):
                self.trouble = str(error)
                log.error("keys_not_read", reason=self.trouble, in_force=len(self._keys.keys))
            return
        self.trouble = None
        log.info("keys_read", count=len(self._keys.keys))

    def _read(self) -> None:
        self._own = with_default(read_keys(self._path), self._api_key)
        self._merge()

    def _merge(self) -> None:
        taken = {value for key in self._own for value in (key.name, key.sha256)}
        stored = [key for key in self._stored or () if taken.isdisjoint((key.name, key.sha256))]
        required = any(each is not None for each in (self._stamp, self._api_key, self._stored))
        self._keys = KeySet((*self._own, *stored), required, "" if required else self._start_digest)


def _stamp_of(path: Path) -> Stamp:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
