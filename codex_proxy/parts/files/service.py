"""The files of all keys on one server: they are received, found, read, and removed when they expire. Raises `Fault`
where the store cannot be read or written.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.interfaces import Clock, IdSource, SessionFiles
from codex_proxy.core.media import GivenFile
from codex_proxy.parts.files import FilesTable
from codex_proxy.parts.files.contents import PIECE_BYTES, Contents
from codex_proxy.parts.files.objects import (
    KIND,
    StoredFile,
    file_of,
    key_of,
    not_found,
    of_session,
    record_of,
    stored_id,
)
from codex_proxy.store.health import store_errors_as_faults
from codex_proxy.store.store import Store
from codex_proxy.store.values import PageRequest, StoreDamaged, StoreUnavailable

log = structlog.get_logger(__name__)

MAX_FILES: Final = 5_000
"""Maximum files of a key."""
UPLOAD_SECONDS: Final = 600.0
"""Seconds for a whole upload: 512 MiB at seven megabits a second."""
SWEEP_SECONDS: Final = 600.0
LEFT_SECONDS: Final = 2 * UPLOAD_SECONDS
"""Seconds after which no server receives a file any more, whose record says so."""
AT_ONCE: Final = 1_000
"""Records that a sweep reads at once."""
_PDF: Final = b"%PDF-"
_OF_ANY_TYPE: Final = re.compile(r"application/(octet-stream|x-pdf)")


class Receiving:
    """A file that is being received: `write` its bytes, then `finish`. Both raise `Fault` above a limit."""

    def __init__(self, files: Files, contents: Contents, owner: str, file: StoredFile, stored: int) -> None:
        """`stored`: the bytes of the owner's other files."""
        self.owner = owner
        self.size = 0
        self.finished = False
        self._files = files
        self._contents = contents
        self._file = file
        self._stored = stored
        self._held = bytearray()
        self._pieces = 0

    async def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        try:
            self._files.check_size(self.size)
            self._files.check_quota(self.owner, self._stored)
        except Fault:
            self.size = 0  # its place is free for the owner's other uploads
            raise
        self._held += chunk
        while len(self._held) >= PIECE_BYTES:
            await self._put(PIECE_BYTES)

    async def _put(self, size: int) -> None:
        piece = bytes(self._held[:size])
        with store_errors_as_faults():
            await self._contents.put(self.owner, self._file, self._pieces, piece)
        del self._held[:size]
        self._pieces += 1

    async def finish(self, *, name: str, media_type: str, purpose: str, lifetime: int | None) -> StoredFile:
        """Returns the file, which is durable. `lifetime`: seconds until it expires."""
        if self._held or not self._pieces:
            await self._put(len(self._held))
        created = self._file.created_at
        file = StoredFile(
            id=self._file.id,
            name=name,
            media_type=media_type,
            size=self.size,
            purpose=purpose,
            created_at=created,
            expires_at=None if lifetime is None else created + lifetime,
        )
        with store_errors_as_faults():
            await self._contents.finish(file)
        await self._files.add(self.owner, file)
        self.finished = True
        return file


class Files:
    """The files of one server's store."""

    def __init__(
        self,
        store: Store,
        contents: Contents,
        limits: FilesTable,
        *,
        clock: Clock,
        ids: IdSource,
        of_sessions: Callable[[], SessionFiles | None] = lambda: None,
    ) -> None:
        """`of_sessions` returns those that agents have made, if the server keeps them."""
        self._of_sessions = of_sessions
        self._store = store
        self._contents = contents
        self._quota = limits.quota
        self.max_bytes = min(limits.max_bytes, contents.max_bytes or limits.max_bytes)
        self._clock = clock
        self._ids = ids
        self._receiving: dict[str, Receiving] = {}

    # --- reading ----------------------------------------------------------------------------------

    async def all_of(self, owner: str) -> list[StoredFile]:
        """Returns an owner's files, oldest first."""
        with store_errors_as_faults():
            page = await self._store.records(owner, KIND, PageRequest(MAX_FILES * 2, "asc"))
        now = self._clock.epoch()
        files = (file_of(record) for record in page.items if not record.busy)
        return [file for file in files if not file.is_expired(now)]

    async def of_session(self, owner: str, session: str) -> list[StoredFile]:
        """Returns the files that a session's agent has made, oldest first."""
        made = self._of_sessions()
        return [] if made is None else list(map(of_session, await made.of_session(owner, session)))

    async def find(self, owner: str, id: str) -> StoredFile:
        """Returns a file by its id in either form. Raises `Fault` NOT_FOUND."""
        known = stored_id(id)
        made = self._of_sessions()
        if made is not None and (of_agent := await made.find(owner, known)) is not None:
            return of_session(of_agent)
        with store_errors_as_faults():
            record = await self._store.record(owner, *key_of(known)) if known else None
        if record is None or record.busy:
            raise not_found(id)
        file = file_of(record)
        if file.is_expired(self._clock.epoch()):
            raise not_found(id)
        return file

    async def read(self, owner: str, file: StoredFile, start: int, stop: int) -> AsyncIterator[bytes]:
        """Yields the bytes of a file from `start` to before `stop`. Raises `Fault` NOT_FOUND if it is removed
        meanwhile.
        """
        if file.session:
            if start < stop:  # else it is for HEAD
                yield await self._made(owner, file.id, start, stop)
            return
        with store_errors_as_faults():
            try:
                async for chunk in self._contents.read(owner, file, start, stop):
                    yield chunk
            except StoreDamaged:
                if await self._store.record(owner, *key_of(file.id)) is None:
                    raise not_found(file.id) from None
                raise

    async def _made(self, owner: str, id: str, start: int, stop: int) -> bytes:
        made = self._of_sessions()
        content = None if made is None else await made.read(owner, id, start, stop)
        if content is None:
            raise not_found(id)
        return content

    async def load(self, owner: str, id: str, limit: int) -> GivenFile | None:
        """Returns a whole file; None if there is none. Raises `Fault` REQUEST_TOO_LARGE above `limit` bytes."""
        file = await self._known(owner, id)
        if file is None:
            return None
        if file.size > limit:
            message = (
                f"With the {file.size} bytes of the file '{id}' the request is larger than this server takes"
            )
            raise Fault.of(FaultKind.REQUEST_TOO_LARGE, f"{message} (PROXY_BODY_LIMIT).")
        try:
            data = b"".join([chunk async for chunk in self.read(owner, file, 0, file.size)])
        except Fault as fault:
            if fault.failure.kind is FaultKind.NOT_FOUND:
                return None
            raise
        media_type = file.media_type
        if data.startswith(_PDF) and _OF_ANY_TYPE.fullmatch(media_type):
            media_type = "application/pdf"
        return GivenFile(file.name, media_type, data)

    async def open(self, owner: str, id: str) -> tuple[int, AsyncIterator[bytes]] | None:
        """Returns the size of a file, and its bytes in pieces; None if there is none."""
        file = await self._known(owner, id)
        return None if file is None else (file.size, self.read(owner, file, 0, file.size))

    async def _known(self, owner: str, id: str) -> StoredFile | None:
        try:
            return await self.find(owner, id)
        except Fault as fault:
            if fault.failure.kind is FaultKind.NOT_FOUND:
                return None
            raise

    # --- receiving and removing -------------------------------------------------------------------

    @asynccontextmanager
    async def receive(self, owner: str) -> AsyncIterator[Receiving]:
        """Returns a new file for the `with`; without `finish` nothing of it stays. Raises `Fault` NOT_ALLOWED for one
        file too many.
        """
        others = await self.all_of(owner)
        if len(others) >= MAX_FILES:
            message = f"This key has {MAX_FILES} files, which is the limit. Delete some."
            raise Fault.of(FaultKind.NOT_ALLOWED, message)
        id, now = self._ids.new("file-"), int(self._clock.epoch())
        file = StoredFile(id=id, name="", media_type="", size=0, purpose="", created_at=now)
        receiving = Receiving(self, self._contents, owner, file, _bytes_of(others))
        self._receiving[id] = receiving
        try:
            yield receiving
        finally:
            if not receiving.finished:
                await asyncio.shield(self._discard(owner, id))
            del self._receiving[id]

    async def _discard(self, owner: str, id: str) -> None:
        try:
            await self._remove(owner, id)
        except StoreUnavailable as error:
            log.warning("upload_not_removed", reason=str(error))  # a sweep will

    async def add(self, owner: str, file: StoredFile) -> None:
        """Stores the record of a file whose bytes are durable. Raises `Fault` NOT_ALLOWED above the quota."""
        # Others may have ended since this one began.
        self.check_quota(owner, _bytes_of(await self.all_of(owner)))
        with store_errors_as_faults():
            await self._store.write_records(owner, [record_of(file)])

    def check_size(self, size: int) -> None:
        """Raises `Fault` REQUEST_TOO_LARGE for a file that is too large."""
        if size > self.max_bytes:
            message = f"The file is larger than {self.max_bytes} bytes, the limit of this server (PROXY_FILES_MAX_BYTES"
            by_store = (
                ", and 32 MiB where the store is a database or in memory" if self._contents.max_bytes else ""
            )
            raise Fault.of(FaultKind.REQUEST_TOO_LARGE, f"{message}{by_store}).", param="file")

    def check_quota(self, owner: str, stored: int) -> None:
        """Raises `Fault` NOT_ALLOWED if `stored` bytes, and those that are being received, exceed the quota."""
        size = stored + sum(each.size for each in self._receiving.values() if each.owner == owner)
        if size > self._quota:
            message = f"With this file the files of this key would have more than {self._quota} bytes"
            raise Fault.of(
                FaultKind.NOT_ALLOWED, f"{message} (PROXY_FILES_QUOTA). Delete some.", param="file"
            )

    async def delete(self, owner: str, id: str) -> StoredFile:
        """Removes a file, and returns what it was. Raises `Fault` NOT_FOUND, CONFLICT for an agent's."""
        file = await self.find(owner, id)
        if file.session:
            message = f"This file belongs to the session {file.session}, and goes with it."
            raise Fault.of(FaultKind.CONFLICT, message, param="id")
        with store_errors_as_faults():
            if not await self._remove(owner, file.id):
                raise not_found(id)
        return file

    async def _remove(self, owner: str, id: str) -> bool:
        """Removes a file; returns False if another request has removed it."""
        removed = await self._store.delete_record(owner, *key_of(id))
        await self._contents.remove(id)
        return removed

    async def sweep(self) -> None:
        """Removes expired files, and what is left of uploads that were cut off. Raises `StoreUnavailable`."""
        found, receiving = await self._contents.ids(), set(self._receiving)
        known, after, now = set[str](), 0, self._clock.epoch()
        while rows := await self._store.records_of_kind(KIND, after, AT_ONCE):
            after = rows[-1][0]
            for _, owner, record in rows:
                cut_off = record.busy and (
                    not self._contents.is_shared or record.created < now - LEFT_SECONDS
                )
                if (cut_off and record.id not in self._receiving) or file_of(record).is_expired(now):
                    await self._remove(owner, record.id)
                known.add(record.id)
        for id in found - known - receiving - set(self._receiving):
            await self._contents.remove(id)


def _bytes_of(files: list[StoredFile]) -> int:
    return sum(file.size for file in files)
