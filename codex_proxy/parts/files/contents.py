"""The bytes of files: in a folder beside a store that is a file, else in records of the store, so that every server on
a database has them. Raises `StoreUnavailable` where they cannot be read or written, `StoreDamaged` where some are
missing.

Whatever has no finished record (`objects`) is what an upload has left that was cut off, and is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.media import decode_base64, encode_base64
from codex_proxy.files.private import create, make_folder
from codex_proxy.parts.files.objects import StoredFile, key_of, record_of
from codex_proxy.store.store import Store
from codex_proxy.store.values import NotStored, Record, StoreDamaged, StoreUnavailable

R = TypeVar("R")

PIECE_BYTES: Final = 1 << 20
"""Bytes of a file in one record, or that are read at once."""
MAX_BYTES_IN_RECORDS: Final = 32 << 20
PIECE: Final = "file_piece"
"""The kind of the records with bytes, below that of their file: base64 as a JSON text."""
_CLOSELY: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NAME: Final = re.compile(r"file-[0-9a-f]{32}")


class Contents(ABC):
    """Keeps files in pieces of `PIECE_BYTES`, of which the last may be shorter."""

    max_bytes: int | None = None
    """Maximum bytes of a file here."""
    is_shared = False
    """Whether other servers may have the same files."""

    @abstractmethod
    async def put(self, owner: str, file: StoredFile, number: int, piece: bytes) -> None:
        """Stores the next piece, from number 0 on, of a file that is being received."""

    @abstractmethod
    async def finish(self, file: StoredFile) -> None:
        """Returns when all pieces are durable."""

    @abstractmethod
    def read(self, owner: str, file: StoredFile, start: int, stop: int) -> AsyncIterator[bytes]:
        """Yields the bytes from `start` to before `stop`, not empty ones."""

    async def remove(self, id: str) -> None:  # noqa: B027 - those in records go with them
        """Removes the bytes of a file whose record has been removed."""

    async def ids(self) -> frozenset[str]:
        """Returns the files whose bytes only `remove` removes."""
        return frozenset()


# --- in a folder ----------------------------------------------------------------------------------


class Folder(Contents):
    """One file for each (0600), which is called by its id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, owner: str, file: StoredFile, number: int, piece: bytes) -> None:
        def write() -> None:
            if number == 0:
                make_folder(self._folder)
                descriptor = create(self._folder / file.id)
            else:
                descriptor = os.open(self._folder / file.id, os.O_WRONLY | _CLOSELY)
            try:
                written = 0
                while written < len(piece):
                    place = number * PIECE_BYTES + written
                    written += os.pwrite(descriptor, memoryview(piece)[written:], place)
            finally:
                os.close(descriptor)

        await _in_thread(write)

    async def finish(self, file: StoredFile) -> None:
        def sync() -> None:
            for path in (self._folder / file.id, self._folder):
                descriptor = os.open(path, os.O_RDONLY | _CLOSELY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

        await _in_thread(sync)

    async def read(self, owner: str, file: StoredFile, start: int, stop: int) -> AsyncIterator[bytes]:
        while start < stop:
            chunk = await _in_thread(partial(self._piece, file, start, min(PIECE_BYTES, stop - start)))
            yield chunk
            start += len(chunk)

    def _piece(self, file: StoredFile, start: int, size: int) -> bytes:
        try:
            descriptor = os.open(self._folder / file.id, os.O_RDONLY | _CLOSELY)
        except FileNotFoundError:
            raise _missing(file) from None
        with open(descriptor, "rb", buffering=0):
            state = os.fstat(descriptor)
            whole = stat.S_ISREG(state.st_mode) and state.st_size == file.size
            piece = os.pread(descriptor, size, start) if whole else b""
        if not piece:
            raise _missing(file)
        return piece

    async def remove(self, id: str) -> None:
        await _in_thread(lambda: (self._folder / id).unlink(missing_ok=True))

    async def ids(self) -> frozenset[str]:
        def names() -> frozenset[str]:
            try:
                with os.scandir(self._folder) as entries:
                    return frozenset(each.name for each in entries if _NAME.fullmatch(each.name))
            except FileNotFoundError:
                return frozenset()

        return await _in_thread(names)


async def _in_thread(work: Callable[[], R]) -> R:
    """Returns what `work` returns. Whoever is cancelled waits for its end, so that nobody closes what it uses."""
    with _os_errors():
        return await beside_the_loop(work, long=True)


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"the folder of uploaded files: {error.strerror}") from error


# --- in records -----------------------------------------------------------------------------------


class Pieces(Contents):
    """Records of `PIECE_BYTES` below the record of their file, with which they are removed."""

    max_bytes = MAX_BYTES_IN_RECORDS

    def __init__(self, store: Store, *, is_shared: bool) -> None:
        self._store = store
        self.is_shared = is_shared

    async def put(self, owner: str, file: StoredFile, number: int, piece: bytes) -> None:
        json = b'"%b"' % encode_base64(piece).encode()
        id, created = _piece_id(file, number), float(file.created_at)
        written = [Record(kind=PIECE, id=id, json=json, created=created, parent=file.id)]
        if number == 0:
            written.insert(0, record_of(file, receiving=True))
        try:
            await self._store.write_records(owner, written, require=key_of(file.id) if number else None)
        except NotStored as error:
            raise StoreUnavailable(f"the file {file.id} was removed while it was received") from error

    async def finish(self, file: StoredFile) -> None: ...

    async def read(self, owner: str, file: StoredFile, start: int, stop: int) -> AsyncIterator[bytes]:
        while start < stop:
            number, skipped = divmod(start, PIECE_BYTES)
            found = await self._store.record(owner, PIECE, _piece_id(file, number))
            if found is None:
                raise _missing(file)
            data = decode_base64(msgspec.json.decode(found.json, type=str))
            if len(data) != min(PIECE_BYTES, file.size - number * PIECE_BYTES):
                raise _missing(file)
            chunk = data[skipped : skipped + stop - start]
            yield chunk
            start += len(chunk)


def _piece_id(file: StoredFile, number: int) -> str:
    return f"{file.id}/{number}"


def _missing(file: StoredFile) -> StoreDamaged:
    return StoreDamaged(f"bytes of the uploaded file {file.id} are missing")
