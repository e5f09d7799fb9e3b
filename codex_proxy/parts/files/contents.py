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
_NAME: Final = re.compile(r"file-[0-9a-f]{32}")


class Writing(ABC):
    """Takes the bytes of a new file. Ends with `finish` or `discard`."""

    @abstractmethod
    async def write(self, chunk: bytes) -> None: ...

    @abstractmethod
    async def finish(self) -> None:
        """Returns when all bytes are durable."""

    @abstractmethod
    async def discard(self) -> None:
        """Frees what the writing needs. What was written is removed with `Contents.remove` and the file's record."""


class Contents(ABC):
    max_bytes: int | None = None
    """Maximum bytes of a file here."""
    is_shared: bool
    """Whether other servers may have the same files."""

    @abstractmethod
    async def create(self, owner: str, file: StoredFile) -> Writing: ...

    @abstractmethod
    def read(self, owner: str, file: StoredFile, start: int, stop: int) -> AsyncIterator[bytes]:
        """Yields the bytes from `start` to before `stop`, not empty ones."""

    @abstractmethod
    async def remove(self, id: str) -> None:
        """Removes the bytes of a file whose record has been removed."""

    @abstractmethod
    async def ids(self) -> frozenset[str]:
        """Returns the files whose bytes `remove` would remove."""


# --- in a folder ----------------------------------------------------------------------------------


class Folder(Contents):
    """One file for each (0600), which is called by its id."""

    is_shared = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def create(self, owner: str, file: StoredFile) -> Writing:
        return _FileWriting(self._folder, file.id)

    async def read(self, owner: str, file: StoredFile, start: int, stop: int) -> AsyncIterator[bytes]:
        descriptor = await _in_thread(lambda: self._open(file))
        try:
            while start < stop:
                size = min(PIECE_BYTES, stop - start)
                chunk = await _in_thread(partial(os.pread, descriptor, size, start))
                if not chunk:
                    raise _missing(file)
                yield chunk
                start += len(chunk)
        finally:
            os.close(descriptor)

    def _open(self, file: StoredFile) -> int:
        try:
            descriptor = os.open(
                self._folder / file.id, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            )
        except FileNotFoundError:
            raise _missing(file) from None
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != file.size:
            os.close(descriptor)
            raise _missing(file)
        return descriptor

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


class _FileWriting(Writing):
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._descriptor: int | None = None

    async def write(self, chunk: bytes) -> None:
        await _in_thread(lambda: self._write(chunk))

    def _write(self, chunk: bytes) -> None:
        descriptor, left = self._opened(), memoryview(chunk)
        while left:
            left = left[os.write(descriptor, left) :]

    def _opened(self) -> int:
        if self._descriptor is None:
            make_folder(self._folder)
            self._descriptor = create(self._folder / self._name)
        return self._descriptor

    async def finish(self) -> None:
        await _in_thread(self._finish)

    def _finish(self) -> None:
        os.fsync(self._opened())
        self._close()
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def discard(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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

    async def create(self, owner: str, file: StoredFile) -> Writing:
        await self._store.write_records(owner, [record_of(file, receiving=True)])
        return _PieceWriting(self._store, owner, file)

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

    async def remove(self, id: str) -> None: ...

    async def ids(self) -> frozenset[str]:
        return frozenset()


class _PieceWriting(Writing):
    def __init__(self, store: Store, owner: str, file: StoredFile) -> None:
        self._store = store
        self._owner = owner
        self._file = file
        self._held = bytearray()
        self._count = 0

    async def write(self, chunk: bytes) -> None:
        self._held += chunk
        while len(self._held) >= PIECE_BYTES:
            piece = bytes(self._held[:PIECE_BYTES])
            del self._held[:PIECE_BYTES]
            await self._put(piece)

    async def finish(self) -> None:
        if self._held:
            await self._put(bytes(self._held))

    async def _put(self, piece: bytes) -> None:
        id, parent = _piece_id(self._file, self._count), self._file.id
        json = b'"%b"' % encode_base64(piece).encode()
        record = Record(kind=PIECE, id=id, json=json, created=float(self._file.created_at), parent=parent)
        self._count += 1
        try:
            await self._store.write_records(self._owner, [record], require=key_of(parent))
        except NotStored as error:
            raise StoreUnavailable(f"the file {parent} was removed while it was received") from error

    async def discard(self) -> None:
        self._held.clear()


def _piece_id(file: StoredFile, number: int) -> str:
    return f"{file.id}/{number}"


def _missing(file: StoredFile) -> StoreDamaged:
    return StoreDamaged(f"bytes of the uploaded file {file.id} are missing")
