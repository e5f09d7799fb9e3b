"""Makes a tree of what is in a folder. Folders are opened by descriptors, name by name, and no link is followed. What
is known of a file from the last time (mode, inode, size, times) saves reading it again.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from codex_proxy.files.changes import StatusMark, status_mark
from codex_proxy.files.reading import lasting, read_file
from codex_proxy.files.writing import STAGING_PREFIX
from codex_proxy.parts.snapshots import ignored
from codex_proxy.parts.snapshots.ignored import IgnoreFile, Rules
from codex_proxy.parts.snapshots.known import NO_MARK, KnownFolder, device_with_times, entry_of_unkept
from codex_proxy.parts.snapshots.objects import NewObjects, TreeEntry, encode_tree

MAX_DEPTH: Final = 200
"""Maximum folders in each other."""
MAX_LEFT_OUT: Final = 100
"""Maximum paths that are named of what is there and not kept; one more tells that there are others."""
TIMED: Final = 1000
"""After how many entries of a folder the time is looked at."""
EVERYTHING: Final = Rules().with_file(ignored.parse(b"*"))
REPOSITORY: Final = ".git"
UNKEPT: Final = ignored.UNREADABLE | {errno.EFBIG, errno.EINVAL}
"""The errors of a file that is not kept as it is there. Others may pass."""
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SnapshotError(Exception):
    """There is no snapshot. The text says why, for the folder's owner."""


class NotKeptError(SnapshotError):
    """What the server keeps cannot be written or read, for which its folder or git is the cause."""


class Limits(NamedTuple):
    files: int
    """Maximum files and folders."""
    bytes: int
    """Maximum bytes of all files that are kept."""
    file_bytes: int
    """Maximum bytes of a file that is kept."""


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
        self._count = self._bytes = 0
        self._not_kept: list[bytes] = []
        self._rules: RulesUsed
        self._is_given = False
        self._wanted: set[bytes] = set()
        """The paths that no rule leaves out, with the folders above them."""
        self._device: int | None = None
        """The file system in which a folder's times tell whether it has the same names; None: they may not."""

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
            if not self._wanted:
                self._device = device_with_times(here)
            found = self._folder(here, (), known, self._rules.outside)
        finally:
            os.close(here)
        return Taken(found.digest, found, self._rules, self._not_kept)

    def _folder(self, here: int, path: tuple[str, ...], known: KnownFolder, rules: Rules) -> KnownFolder:
        """Returns what is now in a folder, given by a descriptor and its path below the kept one."""
        if len(path) > MAX_DEPTH:
            raise SnapshotError(f"more than {MAX_DEPTH} folders are in each other")
        mark = self._mark_of(here)
        if mark is not None and mark == known.mark:
            # Most folders are as they were: this is what a snapshot's time is spent for.
            own = rules.with_file(self._own_rules(here, path, known))
            if own.digest == known.rules and self._has_known_files(here, known):
                return self._as_known(here, path, known, own)
        mark = mark and lasting(mark)  # before its names are read: what comes meanwhile is seen the next time
        found = _entries(here)
        self._count_in(len(found), 0)
        rules = rules.with_file(self._own_rules(here, path, found))
        now = KnownFolder(rules.digest, mark)
        has_old_rules = known.rules == rules.digest
        marks, folders = self._look(found, known.left_out if has_old_rules and not self._wanted else {}, now)
        if has_old_rules and marks == known.marks and self._are_final(known):
            now.take_files_of(known)
            self._count_in(0, now.bytes)
        else:
            self._add_files(here, path, marks, known, now, rules)
        self._add_folders(here, path, folders, known, now, rules)
        return now

    def _mark_of(self, folder: int) -> StatusMark | None:
        """Returns the mark of a folder, if it has the same names as long as it has the same mark."""
        status = os.fstat(folder)
        return status_mark(status) if status.st_dev == self._device else None

    def _has_known_files(self, here: int, known: KnownFolder) -> bool:
        """Whether the files and links of a folder that has the same names are as they are known."""
        here_status, marks = partial(os.lstat, dir_fd=here), iter(known.marks.items())
        try:
            while some := dict(islice(marks, TIMED)):
                if [*map(status_mark, map(here_status, some))] != [*some.values()]:
                    return False
                self._check_time()
        except OSError:
            return False
        return self._are_final(known)

    def _as_known(self, here: int, path: tuple[str, ...], known: KnownFolder, rules: Rules) -> KnownFolder:
        """As `_folder`, of one in which only what is below its folders may have changed."""
        self._count_in(known.count, known.bytes)
        if not known.folders:
            self._name_not_kept(path, known)
            return known
        now = KnownFolder(known.rules, known.mark)
        now.take_files_of(known)
        now.left_out = known.left_out
        self._add_folders(here, path, known.folders, known, now, rules)
        return now

    def _add_folders(
        self,
        here: int,
        path: tuple[str, ...],
        names: Iterable[str],
        known: KnownFolder,
        now: KnownFolder,
        rules: Rules,
    ) -> None:
        """Adds the folders below, and the tree of all."""
        for name in names:
            self._check_time()
            self._add_folder(here, (*path, name), known, now, rules)
        self._name_not_kept(path, now)
        is_old = now.has_tree_of(known)
        now.digest = known.digest if is_old else self._objects.add("tree", encode_tree(now.tree()))

    def _look(
        self, found: Mapping[str, os.DirEntry[str]], left_out: Mapping[str, bool], now: KnownFolder
    ) -> tuple[dict[str, StatusMark], list[str]]:
        """Returns the marks of what is there and is no folder, and the names of folders, but what was `left_out` the
        last time; notes this as left out.
        """
        marks: dict[str, StatusMark] = {}
        folders: list[str] = []
        for name, entry in found.items():
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
                if name in left_out and left_out[name] is is_folder:
                    now.left_out[name] = is_folder
                elif is_folder:
                    folders.append(name)
                else:
                    marks[name] = status_mark(entry.stat(follow_symlinks=False))
                    if len(marks) % TIMED == 0:
                        self._check_time()
            except FileNotFoundError:
                continue  # it is gone by now
            except OSError as error:
                if error.errno not in ignored.UNREADABLE:
                    raise SnapshotError(f"a file cannot be looked at: {error.strerror}") from None
                marks[name] = NO_MARK
        return marks, folders

    def _own_rules(self, here: int, path: tuple[str, ...], found: Container[str]) -> IgnoreFile:
        if self._is_given:
            return self._rules.files.get(_bytes_of(path), ignored.NOTHING)
        if ignored.FILE not in found:
            return ignored.NOTHING
        try:
            own = ignored.read_file(here)
        except OSError as error:
            raise SnapshotError(f"a {ignored.FILE} cannot be read: {error.strerror}") from None
        if own.patterns:
            self._rules.files[_bytes_of(path)] = own
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
    ) -> None:
        """Adds a folder below, unless the rules leave it out."""
        name = path[-1]
        if name.lower() == REPOSITORY or name.startswith(STAGING_PREFIX):  # this server writes changes there
            return
        if _is_left_out(name, known, now, rules, is_folder=True):
            if _bytes_of(path) not in self._wanted:
                now.left_out[name] = True
                return
            rules = EVERYTHING  # of a folder that is left out nothing else is kept
        try:
            below = os.open(name, _OPEN_FOLDER, dir_fd=here)
        except OSError as error:  # it may not be read, or is gone or a link by now
            if error.errno not in ignored.UNREADABLE:
                raise SnapshotError(f"a folder cannot be read: {error.strerror}") from None
            now.folders[name] = None
            self._name(path)
            return
        try:
            last = known.folders.get(name) or KnownFolder()
            now.folders[name] = self._folder(below, path, last, rules.below(name))
        finally:
            os.close(below)

    def _add_files(
        self,
        here: int,
        path: tuple[str, ...],
        marks: Mapping[str, StatusMark],
        known: KnownFolder,
        now: KnownFolder,
        rules: Rules,
    ) -> None:
        """Adds what is no folder, but what the rules leave out."""
        for name, mark in marks.items():
            self._check_time()  # many patterns take long also for what they leave out
            if name.lower() == REPOSITORY:
                now.marks[name] = mark
                continue
            is_left_out = _is_left_out(name, known, now, rules, is_folder=False)
            if is_left_out and _bytes_of((*path, name)) not in self._wanted:
                now.left_out[name] = False
                continue
            is_known = known.marks.get(name) == mark and name in known.entries and self._is_final(known, name)
            mark, entry = (mark, known.entries[name]) if is_known else self._entry(here, name, mark)
            now.marks[name], now.entries[name] = mark, entry
            if entry.is_kept:
                now.bytes += mark[2]
                self._count_in(0, mark[2])
            else:
                now.not_kept.append(name)

    def _are_final(self, known: KnownFolder) -> bool:
        return not known.not_kept or all(self._is_final(known, name) for name in known.not_kept)

    def _is_final(self, known: KnownFolder, name: str) -> bool:
        """Whether nothing else comes of a file with the same mark: that it is not kept may have another reason, and
        the most bytes may be others by now.
        """
        mode, _, size, *_ = known.marks[name]
        return known.entries[name].is_kept or not stat.S_ISREG(mode) or size > self._limits.file_bytes

    def _entry(self, here: int, name: str, mark: StatusMark) -> tuple[StatusMark, TreeEntry]:
        """Reads a file or link. Returns its mark and entry."""
        try:
            if stat.S_ISLNK(mark[0]):
                content, mark = os.fsencode(os.readlink(name, dir_fd=here)), lasting(mark)
            elif stat.S_ISREG(mark[0]):
                content, mark = read_file(here, name, self._limits.file_bytes)
            else:
                return mark, entry_of_unkept(mark)
        except OSError as error:
            if error.errno not in UNKEPT:
                raise SnapshotError(f"a file cannot be read: {error.strerror}") from None
            return mark, entry_of_unkept(mark)
        return mark, TreeEntry(_mode_in_tree(mark[0]), self._objects.add("blob", content))

    def _name_not_kept(self, path: tuple[str, ...], folder: KnownFolder) -> None:
        for name in folder.not_kept:
            self._name((*path, name))

    def _name(self, path: tuple[str, ...]) -> None:
        if len(self._not_kept) <= MAX_LEFT_OUT:
            self._not_kept.append(_bytes_of(path))

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            raise SnapshotError("it took too long")


def _entries(folder: int) -> dict[str, os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return {entry.name: entry for entry in found}
    except OSError as error:
        raise SnapshotError(f"a folder cannot be read: {error.strerror}") from None


def _is_left_out(name: str, known: KnownFolder, now: KnownFolder, rules: Rules, *, is_folder: bool) -> bool:
    if known.rules == now.rules and name in (known.folders if is_folder else known.entries):
        return False
    return rules.leave_out(name, is_folder=is_folder)


def _mode_in_tree(mode: int) -> int:
    return stat.S_IFLNK if stat.S_ISLNK(mode) else stat.S_IFREG | stat.S_IMODE(mode)


def _bytes_of(path: tuple[str, ...]) -> bytes:
    return os.fsencode("/".join(path))
