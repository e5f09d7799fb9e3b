"""What is in a folder, before and after a turn. Folders are opened by descriptors, name by name, and no link is
followed; a file that was not touched since the last look is not read again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.caches import LruCache
from codex_proxy.core.own_errors import trace_of
from codex_proxy.core.turn import Turn
from codex_proxy.files.changes import FileState, StatusMark, digest_of, status_mark
from codex_proxy.files.reading import lasting, read_file
from codex_proxy.files.writing import PERMISSIONS, STAGING_PREFIX, content_at

log = structlog.get_logger(__name__)

MAX_KNOWN_FOLDERS: Final = 4
MAX_FILES: Final = 20_000
MAX_FOLDER_BYTES: Final = 512 << 20
MAX_FILE_BYTES: Final = 16 << 20
MAX_DEPTH: Final = 100
MAX_SECONDS: Final = 20.0
MAX_CHANGED_BYTES: Final = 32 << 20
"""Maximum bytes of the contents that a turn leaves in what it has changed."""
MAX_KEPT_BYTES: Final = 16 << 20
"""Maximum bytes of the contents that are kept to tell what a turn has changed in them."""
MAX_KEPT_FILE_BYTES: Final = 1 << 18
LEFT_OUT: Final = frozenset(
    {
        *(
            ".git",
            ".hg",
            ".svn",
            ".jj",
            "node_modules",
            ".venv",
            "venv",
            "__pycache__",
            ".pytest_cache",
            ".tox",
        ),
        *(".mypy_cache", ".ruff_cache", ".hypothesis", ".gradle", ".terraform", "target", ".next", ".cache"),
    }
)
"""The names, in lower case, of folders that are not looked into: of version control, and of what programs make anew."""
_OF_THE_SYSTEM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The errors that say nothing about the file at which they come."""
_READ_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderError(Exception):
    """The files of a folder are not recorded. The text says why."""


class FoundFile(NamedTuple):
    mark: StatusMark
    state: FileState
    content: bytes | None
    """None if it is not kept."""


class FolderFiles(NamedTuple):
    """The files and links of a folder, by path."""

    found: Mapping[bytes, FoundFile]
    unreadable: frozenset[bytes]
    """The paths of files and folders that could not be read."""

    def is_unknown(self, path: bytes) -> bool:
        """Whether nobody knows what is at a path."""
        parts = path.split(b"/")
        return any(b"/".join(parts[:end]) in self.unreadable for end in range(1, len(parts) + 1))


NO_FILES: Final = FolderFiles({}, frozenset())


class ChangedFile(NamedTuple):
    """What a turn has done to one file. `content_before`: None also if it was not kept."""

    path: bytes
    before: FileState | None
    content_before: bytes | None
    after: FileState | None
    content_after: bytes


def files_of(folder: str, known: FolderFiles, own: Collection[str] = ()) -> FolderFiles:
    """Returns what is in a folder, given by an absolute path without links. `known`: the last look at it. `own`: such
    paths of folders that are not looked into. What is neither file nor link is left out. Raises `FolderError`.
    """
    if any(is_within(folder, each) for each in own):
        raise FolderError("the folder is that of the cassettes")
    inside = (os.path.relpath(each, folder) for each in own if is_within(each, folder))
    look = _Look(known.found, frozenset(map(os.fsencode, inside)))
    try:
        here = os.open(folder, _READ_FOLDER)
    except OSError as error:
        raise FolderError(f"the folder cannot be read: {error.strerror}") from error
    try:
        look.add_folder(here, b"", 0)
    except OSError as error:
        raise FolderError(f"the folder cannot be read: {error.strerror}") from error
    return FolderFiles(look.found, frozenset(look.unreadable))


def is_within(path: str, folder: str) -> bool:
    """Whether a path is that of a folder, or below it; both absolute and without links."""
    return os.path.commonpath((path, folder)) == folder


def changed_files(folder: str, before: FolderFiles, after: FolderFiles) -> Iterator[ChangedFile]:
    """Yields what has changed between two looks, by path, but what one of them could not read. Raises `FolderError` if
    a file has changed since, or more has changed than is recorded.
    """
    size = 0
    for path in sorted({*before.found, *after.found}):
        old, new = before.found.get(path), after.found.get(path)
        if old is not None and new is not None and old.state == new.state:
            continue
        if before.is_unknown(path) or after.is_unknown(path):
            continue
        size += 0 if new is None else new.state.size
        if size > MAX_CHANGED_BYTES:
            raise FolderError(f"what was changed has more than {MAX_CHANGED_BYTES >> 20} MiB")
        content = b"" if new is None else new.content
        if content is None:
            content = _content_at(folder, path, new)
        yield ChangedFile(
            path,
            None if old is None else old.state,
            None if old is None else old.content,
            None if new is None else new.state,
            content,
        )


class RecordedFolders:
    """The folders in which recorded turns work. What was in them last is remembered, so that little is read anew."""

    def __init__(self, own: Sequence[Path] = ()) -> None:
        """`own`: the folders of cassettes, which are no work of a turn."""
        self._own = [os.path.realpath(each) for each in own]
        self._known: LruCache[str, FolderFiles] = LruCache(MAX_KNOWN_FOLDERS)

    def of_turn(self, turn: Turn) -> RecordedFolder | None:
        """Returns the folder of a turn whose agent may write there; None of others."""
        if turn.mode != "agent" or turn.sandbox == "read-only" or not turn.workdir:
            return None
        return RecordedFolder(os.path.realpath(turn.workdir), self._known, self._own)


class RecordedFolder:
    """The folder of one turn. If it cannot be read, or has too much in it, a line of the log says so, and the turn is
    recorded without its files.
    """

    def __init__(self, folder: str, known: LruCache[str, FolderFiles], own: Sequence[str]) -> None:
        self._folder = folder
        self._own = own
        self._known = known
        self._before: FolderFiles | None = None

    async def look(self) -> None:
        """Notes what is there before the turn."""
        with _not_recorded():
            self._before = await beside_the_loop(self._files, long=True)

    async def changes(self) -> list[ChangedFile]:
        """Returns what has changed since `look`."""
        found: list[ChangedFile] = []
        if self._before is not None:
            with _not_recorded():
                found = await beside_the_loop(partial(self._changes, self._before), long=True)
        return found

    def _files(self) -> FolderFiles:
        found = files_of(self._folder, self._known.get(self._folder) or NO_FILES, self._own)
        self._known.put(self._folder, found)
        return found

    def _changes(self, before: FolderFiles) -> list[ChangedFile]:
        return [*changed_files(self._folder, before, self._files())]


@contextlib.contextmanager
def _not_recorded() -> Iterator[None]:
    try:
        yield
    except FolderError as error:
        log.warning("files_not_recorded", reason=str(error))
    except Exception as error:  # noqa: BLE001 - no turn fails by its recording
        log.error("internal_error", **trace_of(error))


def _content_at(folder: str, path: bytes, found: FoundFile | None) -> bytes:
    content = None if found is None else content_at(folder, path, found.state)
    if content is None:
        raise FolderError("a file has changed while it was recorded")
    return content


class _Look:
    """One look at a folder."""

    def __init__(self, known: Mapping[bytes, FoundFile], own: frozenset[bytes]) -> None:
        """`own`: the paths of folders that are not looked into."""
        self.found: dict[bytes, FoundFile] = {}
        self.unreadable: set[bytes] = set()
        self._known = known
        self._own = own
        self._until = time.monotonic() + MAX_SECONDS
        self._bytes = self._kept = self._folders = 0

    def add_folder(self, here: int, path: bytes, depth: int) -> None:
        """Adds what is in a folder, given by a descriptor, which is closed, and by its path with a `/` behind."""
        try:
            if depth > MAX_DEPTH:
                raise FolderError(f"more than {MAX_DEPTH} folders are in each other")
            if time.monotonic() > self._until:
                raise FolderError(f"it took longer than {MAX_SECONDS:g} s to read the folder")
            with os.scandir(here) as entries:
                for entry in entries:
                    try:
                        self._add(here, path, entry.name, entry.stat(follow_symlinks=False), depth)
                    except (FileNotFoundError, NotADirectoryError):
                        continue  # it is gone by now
                    except OSError as error:
                        if error.errno in _OF_THE_SYSTEM:
                            raise
                        self.unreadable.add(path + os.fsencode(entry.name))
        finally:
            os.close(here)

    def _add(self, here: int, path: bytes, name: str, status: os.stat_result, depth: int) -> None:
        key = path + os.fsencode(name)
        if stat.S_ISDIR(status.st_mode):
            if not (name.lower() in LEFT_OUT or name.startswith(STAGING_PREFIX) or key in self._own):
                self._folders += 1
                self._check_count()
                self.add_folder(os.open(name, _READ_FOLDER, dir_fd=here), key + b"/", depth + 1)
            return
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            return
        mark = status_mark(status)
        self._count(status.st_size)
        known = self._known.get(key)
        if known is None or known.mark != mark:
            known = self._read(here, name, status)
        if known.content is not None:
            self._kept += len(known.content)
            if self._kept > MAX_KEPT_BYTES:
                known = known._replace(content=None)
        self.found[key] = known
        self._check_count()

    def _count(self, size: int) -> None:
        self._bytes += size
        if size > MAX_FILE_BYTES or self._bytes > MAX_FOLDER_BYTES:
            most = f"{MAX_FILE_BYTES >> 20} MiB in a file, {MAX_FOLDER_BYTES >> 20} MiB in all"
            raise FolderError(f"the folder has more than is recorded: {most}")

    def _check_count(self) -> None:
        if len(self.found) + self._folders > MAX_FILES:
            raise FolderError(f"there are more than {MAX_FILES} files and folders")

    def _read(self, here: int, name: str, status: os.stat_result) -> FoundFile:
        mark = status_mark(status)
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(name, dir_fd=here))
            return FoundFile(lasting(mark), FileState("link", digest_of(content), len(content)), content)
        try:
            content, mark = read_file(here, name, MAX_FILE_BYTES)
        except OSError as error:
            if error.errno in (errno.EFBIG, errno.EINVAL):
                raise FolderError("a file grew while it was read") from error
            raise
        state = FileState("file", digest_of(content), len(content), mark[0] & PERMISSIONS)
        return FoundFile(mark, state, content if len(content) <= MAX_KEPT_FILE_BYTES else None)
