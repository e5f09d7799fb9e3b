"""Makes a tree of what is in a folder. Folders are opened by descriptors, name by name, and no link is followed. What
is known of a file from the last time (mode, inode, size, times) saves reading it again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from codex_proxy.files.changes import FRESH, StatusMark, status_mark
from codex_proxy.files.writing import STAGING_PREFIX
from codex_proxy.parts.snapshots import ignored
from codex_proxy.parts.snapshots.ignored import IgnoreFile, Rules
from codex_proxy.parts.snapshots.objects import (
    FOLDER,
    NOT_KEPT,
    NewObjects,
    TreeEntry,
    encode_tree,
    object_digest,
)

MAX_DEPTH: Final = 200
"""Maximum folders in each other."""
MAX_NAMED: Final = 100
"""Maximum paths that are named."""
READS: Final = 3
"""How often a file is read that changes meanwhile."""
TIMED: Final = 1000
"""After how many entries of a folder the time is looked at."""
EVERYTHING: Final = Rules().with_file(ignored.parse(b"*"))
REPOSITORY: Final = ".git"
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

NO_MARK: Final = (0, 0, 0, 0, 0)
KnownFile: TypeAlias = tuple[StatusMark, bool, bytes]
"""The mark of a file or link, whether it is kept, and its digest."""


class SnapshotError(Exception):
    """There is no snapshot. The text says why, for the folder's owner."""


class Limits(NamedTuple):
    files: int
    """Maximum files and folders."""
    bytes: int
    """Maximum bytes of all files that are kept."""
    file_bytes: int
    """Maximum bytes of a file that is kept."""


class KnownFolder:
    """What is known of a folder since the last time."""

    __slots__ = ("digest", "files", "folders", "left_out", "rules")

    def __init__(self) -> None:
        self.digest = b""
        self.rules = b""
        """The digest of the rules by which names are left out."""
        self.files: dict[str, KnownFile] = {}
        self.folders: dict[str, KnownFolder] = {}
        self.left_out: dict[str, bool] = {}
        """The names that the rules leave out, each with whether it is a folder."""


class RulesUsed(NamedTuple):
    """The rules of a snapshot: from outside of the folder, and the files of patterns in it by their folders' paths."""

    outside: Rules
    files: dict[bytes, IgnoreFile]


class Taken(NamedTuple):
    """A snapshot: the tree's digest, and what is known now. `not_kept`: paths of what is there, but not in the tree."""

    digest: bytes
    known: KnownFolder
    rules: RulesUsed
    not_kept: list[bytes]


class Walk:
    """Takes one snapshot of a folder."""

    def __init__(self, objects: NewObjects, limits: Limits, until: float) -> None:
        """`until`: the time of `time.monotonic` at which it is given up."""
        self._objects, self._limits, self._until = objects, limits, until
        self._fresh = time.time_ns() - FRESH
        self._count = self._bytes = 0
        self._not_kept: list[bytes] = []
        self._rules: RulesUsed
        self._is_given = False
        self._wanted: set[bytes] = set()
        """The paths that no rule leaves out, with the folders above them."""

    def take(
        self,
        folder: str,
        known: KnownFolder,
        rules: RulesUsed | None = None,
        wanted: Sequence[bytes] = (),
    ) -> Taken:
        """Makes a tree of a folder, given by its absolute path, and adds what is new to the objects. `rules`: those of
        an earlier snapshot, which count in place of today's. `wanted`: paths that no rule leaves out. Raises
        `SnapshotError`, and `OSError` where objects cannot be written.
        """
        for path in wanted:
            while path and path not in self._wanted:
                self._wanted.add(path)
                path = path.rpartition(b"/")[0]
        self._is_given = rules is not None
        try:
            self._rules = rules or RulesUsed(ignored.rules_above(folder), {})
            here = os.open(folder, _OPEN_FOLDER)
        except OSError as error:
            raise SnapshotError(f"the folder cannot be read: {error.strerror}") from None
        try:
            found = self._folder(here, (), known, self._rules.outside)
        finally:
            os.close(here)
        return Taken(found.digest, found, self._rules, self._not_kept)

    def _folder(self, here: int, path: tuple[str, ...], known: KnownFolder, rules: Rules) -> KnownFolder:
        """Returns what is now in a folder, given by a descriptor and its path below the kept one."""
        if len(path) > MAX_DEPTH:
            raise SnapshotError(f"more than {MAX_DEPTH} folders are in each other")
        rules = rules.with_file(self._own_rules(here, path))
        now = KnownFolder()
        now.rules = rules.digest
        changed, size = not known.digest, 0
        files, last_files = now.files, known.files if known.rules == rules.digest else {}
        for place, entry in enumerate(_entries(here)):
            if place % TIMED == 0:
                self._check_time()
            name = entry.name
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # it is gone by now
            except OSError:
                changed |= self._leave((*path, name), NO_MARK, known, now)
                continue
            last = last_files.get(name)
            # Most files are as they were: this is what a snapshot's time is spent for.
            if last is not None and last[1] and last[0] == status_mark(status):
                files[name] = last
                size += status.st_size
            elif name.lower() != REPOSITORY and not _is_staging(name, status):
                changed |= self._add(here, (*path, name), status, known, now, rules)
        self._count_in(len(files), size)
        if changed or len(known.files) != len(files) or len(known.folders) != len(now.folders):
            entries = [(os.fsencode(name), _entry(each)) for name, each in files.items()]
            entries += [
                (os.fsencode(name), TreeEntry(FOLDER, each.digest)) for name, each in now.folders.items()
            ]
            now.digest = self._objects.add("tree", encode_tree(entries))
        else:
            now.digest = known.digest
        return now

    def _add(
        self,
        here: int,
        path: tuple[str, ...],
        status: os.stat_result,
        known: KnownFolder,
        now: KnownFolder,
        rules: Rules,
    ) -> bool:
        """Adds what is there at a path, unless the rules leave it out. Returns whether it has changed."""
        name, is_folder = path[-1], stat.S_ISDIR(status.st_mode)
        if _is_left_out(name, is_folder, known, rules):
            if _bytes_of(path) not in self._wanted:
                now.left_out[name] = is_folder
                self._count_in(1, 0)
                return False
            rules = EVERYTHING  # of a folder that is left out nothing else is kept
        if is_folder:
            self._count_in(1, 0)
            return self._add_folder(here, path, known, now, rules)
        return self._add_file(here, path, status, known, now)

    def _own_rules(self, here: int, path: tuple[str, ...]) -> IgnoreFile:
        key = _bytes_of(path)
        if self._is_given:
            return self._rules.files.get(key, ignored.NOTHING)
        try:
            own = ignored.read_file(here)
        except OSError as error:
            raise SnapshotError(f"a {ignored.FILE} cannot be read: {error.strerror}") from None
        if own.patterns:
            self._rules.files[key] = own
        return own

    def _count_in(self, count: int, size: int) -> None:
        self._count += count
        self._bytes += size
        if self._count > self._limits.files:
            raise SnapshotError(f"there are more than {self._limits.files} files (PROXY_SNAPSHOT_MAX_FILES)")
        if self._bytes > self._limits.bytes:
            raise SnapshotError(
                f"the files have more than {self._limits.bytes} bytes (PROXY_SNAPSHOT_MAX_BYTES)"
            )

    def _add_folder(
        self, here: int, path: tuple[str, ...], known: KnownFolder, now: KnownFolder, rules: Rules
    ) -> bool:
        """Adds a folder below. Returns whether it has changed."""
        name = path[-1]
        before = known.folders.get(name)
        try:
            below = os.open(name, _OPEN_FOLDER, dir_fd=here)
        except OSError as error:  # it may not be read, or is gone or a link by now
            if error.errno not in ignored.UNREADABLE:
                raise SnapshotError(f"a folder cannot be read: {error.strerror}") from None
            return self._leave(path, NO_MARK, known, now)
        try:
            found = self._folder(below, path, before or KnownFolder(), rules.below(name))
        finally:
            os.close(below)
        now.folders[name] = found
        return before is None or before.digest != found.digest

    def _add_file(
        self, here: int, path: tuple[str, ...], status: os.stat_result, known: KnownFolder, now: KnownFolder
    ) -> bool:
        """Adds what is no folder. Returns whether it has changed."""
        name = path[-1]
        mark = status_mark(status)
        last = known.files.get(name)
        if last is not None and last[0] == mark:
            now.files[name] = last
            if not last[1]:
                self._name(path)
            return False
        try:
            if stat.S_ISLNK(mark[0]):
                content = os.fsencode(os.readlink(name, dir_fd=here))
            elif stat.S_ISREG(mark[0]) and mark[2] <= self._limits.file_bytes:
                content, mark = self._content(here, name)
            else:
                return self._leave(path, mark, known, now)
        except OSError:
            return self._leave(path, mark, known, now)
        self._count_in(0, len(content))
        digest = self._objects.add("blob", content)
        if mark[3] >= self._fresh or mark[4] >= self._fresh:
            mark = (mark[0], -1, *mark[2:])  # is read again the next time
        now.files[name] = (mark, True, digest)
        return last is None or last[1:] != (True, digest) or last[0][0] != mark[0]

    def _content(self, here: int, name: str) -> tuple[bytes, StatusMark]:
        """Returns a file's content, and its mark. Raises `OSError`, also for one that is too large by now."""
        for _ in range(READS):
            self._check_time()
            descriptor = os.open(name, _OPEN_FILE, dir_fd=here)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                before = status_mark(os.fstat(descriptor))
                if not stat.S_ISREG(before[0]):
                    raise OSError("it is no regular file any more")
                content = file.read(self._limits.file_bytes + 1)
                while piece := file.read(self._limits.file_bytes + 1 - len(content)):
                    content += piece
                after = status_mark(os.fstat(descriptor))
            if len(content) > self._limits.file_bytes:
                raise OSError("it is too large")
            if before == after:
                return content, after
        return content, (after[0], -1, *after[2:])

    def _leave(self, path: tuple[str, ...], mark: StatusMark, known: KnownFolder, now: KnownFolder) -> bool:
        """Notes what is there and is not kept. Returns whether that has changed."""
        self._name(path)
        found = (mark, False, object_digest("blob", repr(mark).encode()))
        now.files[path[-1]] = found
        return known.files.get(path[-1]) != found

    def _name(self, path: tuple[str, ...]) -> None:
        if len(self._not_kept) < MAX_NAMED:
            self._not_kept.append(_bytes_of(path))

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            raise SnapshotError("it took too long")


def _entries(folder: int) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return [*found]
    except OSError as error:
        raise SnapshotError(f"a folder cannot be read: {error.strerror}") from None


def _is_left_out(name: str, is_folder: bool, known: KnownFolder, rules: Rules) -> bool:
    if known.rules == rules.digest:
        if name in (known.folders if is_folder else known.files):
            return False
        if known.left_out.get(name) is is_folder:
            return True
    return rules.leave_out(name, is_folder=is_folder)


def _is_staging(name: str, status: os.stat_result) -> bool:
    """Whether this server writes changes of files there, or was killed while it did."""
    return name.startswith(STAGING_PREFIX) and stat.S_ISDIR(status.st_mode)


def _entry(file: KnownFile) -> TreeEntry:
    mark, is_kept, digest = file
    return TreeEntry(_mode_in_tree(mark[0]) if is_kept else NOT_KEPT, digest)


def _mode_in_tree(mode: int) -> int:
    return stat.S_IFLNK if stat.S_ISLNK(mode) else stat.S_IFREG | stat.S_IMODE(mode)


def _bytes_of(path: tuple[str, ...]) -> bytes:
    return os.fsencode("/".join(path))
