"""Writes changes of files below a folder in which others work, too: all of them, or none. No link is followed in any
part of a path.

What is there is compared first with what each change expects. Then all contents are written into a folder beside, whose
name begins with `STAGING_PREFIX`, so that a full disk is found before anything has changed. Only then files change
places: old ones into that folder, new ones out of it; no file is ever written over. If a step fails, those before are
undone. If the program is killed meanwhile, the next writing puts the old files back where nothing is.

A folder that becomes empty by a removal is removed, as git does; other empty folders are not looked at.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from codex_proxy.files.changes import FileChange, FileState, digest_of
from codex_proxy.files.foreign import why_refused
from codex_proxy.files.placed import FileMark, mark_of, opened_below

STAGING_PREFIX: Final = ".codex-proxy-"
"""How the name of the folder begins that exists while changes are written."""
PERMISSIONS: Final = 0o777
"""The bits of a mode that are compared and written."""
INTERRUPTED: Final = b"interrupted"
"""The name of the file in that folder that says where its old files are from, until all changes are written."""
_MAX_NOTED: Final = 64 << 20
_OLD_FILE: Final = re.compile("old[0-9]+")
_READ_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE: Final = 1 << 20

ContentOf = Callable[[FileState], Iterable[bytes]]
"""Returns the pieces of a file's content, or of a link's target."""


class PartlyWrittenError(OSError):
    """Writing has failed, and what was written could not be undone. `paths`: what is not as it was; `staging`: the name
    of the folder below the folder that has the old files.
    """

    def __init__(self, paths: Sequence[bytes], staging: bytes) -> None:
        super().__init__(
            f"{len(paths)} files could not be put back. The old ones are in {os.fsdecode(staging)}."
        )
        self.paths = tuple(paths)
        self.staging = staging


def write_changes(
    folder: str, changes: Iterable[FileChange], content_of: ContentOf, *, exact_modes: bool = True
) -> list[bytes]:
    """Writes changes below a folder, and returns no paths; or writes nothing, and returns the sorted paths at which
    something else is than a change expects.

    `folder`: an absolute path without links. `content_of` is called for what has to be written, only if nothing
    differs. A file whose mode the change leaves keeps the one that it has. `exact_modes`: whether all permission bits
    are compared, or only the owner's right to execute. Raises `ValueError` for a path that is none or comes twice, or
    for a content that is not what the change says; `PartlyWrittenError`, and `OSError`, after which everything is as it
    was.
    """
    ordered = sorted(changes, key=lambda change: change.path)
    removed = _checked(ordered)
    with opened_below("/", _parts_of_folder(folder)) as root:
        put_back_interrupted(root)
        comparison = _Comparison(root, removed, exact_modes=exact_modes)
        differing = comparison.differing(ordered)
        if differing:
            return differing
        todo = [change for change in ordered if change.before != change.after]
        return _Writing(root, comparison).write(todo, content_of) if todo else []


def differing_paths(folder: str, changes: Iterable[FileChange], *, exact_modes: bool = True) -> list[bytes]:
    """Returns the sorted paths at which something else is than a change expects, as `write_changes` does, and writes
    no changes. Raises `ValueError` and `OSError`.
    """
    ordered = sorted(changes, key=lambda change: change.path)
    removed = _checked(ordered)
    with opened_below("/", _parts_of_folder(folder)) as root:
        put_back_interrupted(root)
        return _Comparison(root, removed, exact_modes=exact_modes).differing(ordered)


def content_at(folder: str, path: bytes, expected: FileState) -> bytes | None:
    """Returns the content of a file, or the target of a link, below a folder; None if it is not the expected one.
    Raises `OSError` if it cannot be read.
    """
    *above, name = path.split(b"/")
    try:
        with opened_below("/", _parts_of_folder(folder)) as root, opened_below(".", above, at=root) as place:
            if expected.kind == "link":
                content = os.readlink(name, dir_fd=place)
            else:
                with os.fdopen(os.open(name, _READ_FILE, dir_fd=place), "rb", buffering=0) as file:
                    is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                    content = _read(file, expected.size + 1) if is_file else b""
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL, errno.ENXIO):  # a link, no link, a pipe
            return None
        raise
    return content if _digest([content], len(content)) == expected.digest else None


def _parts_of_folder(folder: str) -> list[str]:
    parts = folder.split("/")
    if parts[0] or ".." in parts:
        raise ValueError("the folder has to be an absolute path without `..`")
    return [part for part in parts if part not in ("", ".")]


def _checked(ordered: Sequence[FileChange]) -> set[bytes]:
    """Returns the paths at which nothing is afterwards. Raises `ValueError` for paths that are wrong, or that cannot
    exist together.
    """
    after = {change.path for change in ordered if change.after is not None}
    if len({change.path for change in ordered}) < len(ordered):
        raise ValueError("a path comes twice")
    for change in ordered:
        if b"\0" in change.path or not {b"", b".", b".."}.isdisjoint(change.path.split(b"/")):
            raise ValueError(f"{change.path!r} is no path below a folder")
        if change.after is not None and not after.isdisjoint(_folders_above(change.path)):
            raise ValueError(f"{change.path!r} is below a file")
    return {change.path for change in ordered if change.after is None}


def _folders_above(path: bytes) -> Iterator[bytes]:
    """Yields the folders above a path, the deepest first."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def _without_case(path: bytes) -> str:
    """Returns what two paths have in common that are one where case does not count. Where it does, the file of the one
    is taken for one that makes room for the other, which then finds its place taken.
    """
    return os.fsdecode(path).casefold()


class _DiffersError(Exception):
    """Something else is at a path than is expected there."""

    def __init__(self, path: bytes) -> None:
        self.path = path


class _Comparison:
    """Compares what is below a folder with what changes expect."""

    def __init__(self, root: int, removed: set[bytes], *, exact_modes: bool) -> None:
        self.marks: dict[bytes, FileMark] = {}
        """The files and links that are there, by path."""
        self.modes: dict[bytes, int] = {}
        self.folders: list[bytes] = []
        """The folders in whose place a file comes."""
        self._root = root
        self._removed = removed
        self._removed_names = set(map(_without_case, removed))
        self._emptied = {_without_case(above) for path in removed for above in _folders_above(path)}
        self._mode_bits = PERMISSIONS if exact_modes else stat.S_IXUSR

    def differing(self, ordered: Sequence[FileChange]) -> list[bytes]:
        """Returns the sorted paths at which something else is than a change expects."""
        removals_first = sorted(ordered, key=lambda change: change.before is None)
        return sorted(change.path for change in removals_first if not self._fits(change))

    def _fits(self, change: FileChange) -> bool:
        *above, name = change.path.split(b"/")
        try:
            with opened_below(".", above, at=self._root) as place:
                found = os.stat(name, dir_fd=place, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    self.folders.append(change.path)
                    return change.before is None and self._may_be_cleared(change.path, place, name)
                if change.before is None:
                    return mark_of(found) in self._removed_marks()
                self.marks[change.path] = mark_of(found)
                self.modes[change.path] = found.st_mode & PERMISSIONS
                return self._is(change.before, place, name, found)
        except FileNotFoundError:
            return change.before is None
        except NotADirectoryError:
            is_cleared = not self._removed_names.isdisjoint(map(_without_case, _folders_above(change.path)))
            return change.before is None and is_cleared

    def _may_be_cleared(self, path: bytes, place: int, name: bytes) -> bool:
        """Whether a folder is empty, or has files that are removed; if it has others, too, it will stay, and the file
        finds its place taken.
        """
        if _without_case(path) in self._emptied:
            return True
        with opened_below(".", [name], at=place) as folder:
            return not _names_in(folder)

    def _removed_marks(self) -> Iterator[FileMark]:
        """Yields the marks of removed files; another path that has one is the same file, if case does not count."""
        return (mark for path, mark in self.marks.items() if path in self._removed)

    def _is(self, expected: FileState, place: int, name: bytes, found: os.stat_result) -> bool:
        if expected.kind == "link":
            is_link = stat.S_ISLNK(found.st_mode)
            return is_link and _digest([os.readlink(name, dir_fd=place)], expected.size) == expected.digest
        if not stat.S_ISREG(found.st_mode) or found.st_size != expected.size:
            return False
        if (found.st_mode ^ expected.mode) & self._mode_bits:
            return False
        with os.fdopen(os.open(name, _READ_FILE, dir_fd=place), "rb", buffering=0) as file:
            is_same = mark_of(os.fstat(file.fileno())) == mark_of(found)
            pieces = iter(lambda: file.read(_PIECE), b"")
            return is_same and _digest(pieces, expected.size) == expected.digest


def _read(file: io.FileIO, most: int) -> bytes:
    pieces: list[bytes] = []
    while most > 0 and (piece := file.read(min(most, _PIECE))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def _names_in(folder: int) -> list[bytes]:
    readable = os.open(".", _READ_FOLDER, dir_fd=folder)
    try:
        return [os.fsencode(name) for name in os.listdir(readable)]
    finally:
        os.close(readable)


def _digest(pieces: Iterable[bytes], size: int) -> str:
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


class _Writing:
    """Writes changes that fit, step by step, and undoes the steps if one fails."""

    def __init__(self, root: int, found: _Comparison) -> None:
        self._root = root
        self._found = found
        self._name = os.fsencode(STAGING_PREFIX + secrets.token_hex(8))
        self._staging = -1
        self._undo: list[tuple[bytes, Callable[[], None]]] = []
        """What undoes each step so far, and the path that it concerns."""

    def write(self, changes: Sequence[FileChange], content_of: ContentOf) -> list[bytes]:
        os.mkdir(self._name, 0o700, dir_fd=self._root)
        keep = False
        try:
            self._staging = os.open(self._name, _READ_FOLDER, dir_fd=self._root)
            self._stage(changes, content_of)
            if _lock(self._staging):
                _note_paths(self._staging, changes)
            self._exchange(changes)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(INTERRUPTED, dir_fd=self._staging)  # from here on the old files are not put back
        except BaseException as error:
            left = self._undo_all()
            if left:
                keep = True
                raise PartlyWrittenError(left, self._name) from error
            if isinstance(error, _DiffersError):
                return [error.path]
            raise
        finally:
            self._end(keep=keep)
        return []

    def _stage(self, changes: Sequence[FileChange], content_of: ContentOf) -> None:
        for index, change in enumerate(changes):
            after = change.after
            if after is None or _is_mode_alone(change):
                continue
            name, pieces = b"new%d" % index, content_of(after)
            if after.kind == "link":
                target = b"".join(pieces)
                if _digest([target], len(target)) != after.digest:
                    raise ValueError(f"the target of {change.path!r} is not what the change says")
                os.symlink(target, name, dir_fd=self._staging)
            else:
                mode = self._mode_of(change)
                _write_file(self._staging, name, pieces, after, mode)

    def _mode_of(self, change: FileChange) -> int:
        before, after = change.before, change.after
        assert after is not None
        is_kept = before is not None and before.kind == "file" and before.mode == after.mode
        return self._found.modes[change.path] if is_kept else after.mode & PERMISSIONS

    def _exchange(self, changes: Sequence[FileChange]) -> None:
        moved = [(index, change) for index, change in enumerate(changes) if not _is_mode_alone(change)]
        for index, change in moved:
            if change.before is not None:
                self._move_away(change.path, b"old%d" % index)
        needed = {above for change in changes if change.after for above in _folders_above(change.path)}
        emptied = {above for change in changes if not change.after for above in _folders_above(change.path)}
        for folder in sorted((emptied - needed) | set(self._found.folders), key=_depth_first):
            self._remove_folder(folder)
        for index, change in moved:
            if change.after is not None:
                self._place(change.path, b"new%d" % index)
        for change in changes:
            if _is_mode_alone(change):
                self._change_mode(change)

    def _move_away(self, path: bytes, staged: bytes) -> None:
        with self._folder_of(path) as (place, name), _differs_without_file(path):
            os.rename(name, staged, src_dir_fd=place, dst_dir_fd=self._staging)
        self._undo.append((path, lambda: self._put(staged, path)))
        if mark_of(os.stat(staged, dir_fd=self._staging, follow_symlinks=False)) != self._found.marks[path]:
            raise _DiffersError(path)

    def _put(self, staged: bytes, path: bytes, *, make: bool = False) -> None:
        """Puts a file of the staging folder at a path at which there is nothing. `make`: with the folders above it.
        Raises `FileExistsError`. On a file system without hard links, a file that others make right before is lost.
        """
        with self._folder_of(path, make=make) as (place, name):
            try:
                os.link(staged, name, src_dir_fd=self._staging, dst_dir_fd=place, follow_symlinks=False)
            except FileExistsError:
                raise
            except OSError:  # a file system without hard links, or a folder of the name
                with contextlib.suppress(FileNotFoundError):
                    os.stat(name, dir_fd=place, follow_symlinks=False)
                    raise FileExistsError(path) from None
                os.rename(staged, name, src_dir_fd=self._staging, dst_dir_fd=place)

    def _place(self, path: bytes, staged: bytes) -> None:
        mark = mark_of(os.stat(staged, dir_fd=self._staging, follow_symlinks=False))
        try:
            self._put(staged, path, make=True)
        except FileExistsError:
            raise _DiffersError(path) from None
        self._undo.append((path, lambda: self._remove(path, mark)))

    def _remove(self, path: bytes, mark: FileMark) -> None:
        with self._folder_of(path) as (place, name):
            if mark_of(os.stat(name, dir_fd=place, follow_symlinks=False)) != mark:
                raise FileExistsError(path)
            os.unlink(name, dir_fd=place)

    def _remove_folder(self, path: bytes) -> None:
        with contextlib.suppress(OSError), self._folder_of(path) as (place, name):  # others may need it
            mode = stat.S_IMODE(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)
            os.rmdir(name, dir_fd=place)
            self._undo.append((path, lambda: self._make_folder(path, mode)))

    def _make_folder(self, path: bytes, mode: int) -> None:
        with self._folder_of(path) as (place, name), contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=place)
            folder = os.open(name, _READ_FOLDER, dir_fd=place)
            try:
                os.fchmod(folder, mode)
            finally:
                os.close(folder)

    def _change_mode(self, change: FileChange) -> None:
        path, after = change.path, change.after
        assert after is not None
        with self._folder_of(path) as (place, name), _differs_without_file(path):
            descriptor = os.open(name, _READ_FILE, dir_fd=place)
        try:
            if mark_of(os.fstat(descriptor)) != self._found.marks[path]:
                raise _DiffersError(path)
            os.fchmod(descriptor, after.mode & PERMISSIONS)
        finally:
            os.close(descriptor)
        self._undo.append((path, lambda: self._change_mode_back(path)))

    def _change_mode_back(self, path: bytes) -> None:
        with self._folder_of(path) as (place, name):
            descriptor = os.open(name, _READ_FILE, dir_fd=place)
        try:
            os.fchmod(descriptor, self._found.modes[path])
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _folder_of(self, path: bytes, *, make: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yields the descriptor of the folder that a path is in, and the path's name there. A link or file in place of
        a folder is a difference.
        """
        *above, name = path.split(b"/")

        def note(index: int) -> None:
            made = b"/".join(above[: index + 1])
            self._undo.append((made, lambda: self._unmake_folder(made)))

        with contextlib.ExitStack() as stack:
            try:
                way = opened_below(".", above, at=self._root, make=0o777 if make else None, on_made=note)
                place = stack.enter_context(way)
            except (NotADirectoryError, FileNotFoundError):
                raise _DiffersError(path) from None
            yield place, name

    def _unmake_folder(self, path: bytes) -> None:
        with contextlib.suppress(FileNotFoundError), self._folder_of(path) as (place, name):
            os.rmdir(name, dir_fd=place)

    def _undo_all(self) -> list[bytes]:
        """Undoes the steps, the last one first, and returns the paths at which that has failed."""
        left: list[bytes] = []
        while self._undo:
            path, undo = self._undo.pop()
            try:
                undo()
            except (OSError, _DiffersError):
                left.append(path)
        return left

    def _end(self, *, keep: bool) -> None:
        """Removes the staging folder; if that fails, it stays, which changes nothing of what was written or undone."""
        with contextlib.suppress(OSError):
            if self._staging >= 0 and not keep:
                for name in sorted(_names_in(self._staging), key=lambda name: name != INTERRUPTED):
                    os.unlink(name, dir_fd=self._staging)
            if not keep:
                os.rmdir(self._name, dir_fd=self._root)
        if self._staging >= 0:
            os.close(self._staging)


def _lock(folder: int) -> bool:
    """Locks a folder until it is closed, or the program is killed. Returns whether that was possible: not if it is
    locked already, or on a file system without locks.
    """
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _note_paths(staging: int, changes: Sequence[FileChange]) -> None:
    """Writes down where the old files are from, so that `put_back_interrupted` finds it."""
    paths = {
        f"old{index}": base64.b64encode(change.path).decode()
        for index, change in enumerate(changes)
        if change.before is not None
    }
    content = msgspec.json.encode(paths)
    state = FileState("file", digest_of(content), len(content))
    _write_file(staging, INTERRUPTED, [content], state, 0o600)
    for name in (INTERRUPTED, b"."):
        noted = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=staging)
        try:
            os.fsync(noted)
        finally:
            os.close(noted)


def put_back_interrupted(root: int) -> None:
    """Puts back the old files of writings that were killed, where nothing is. What programs obey, or has another file
    in its place, stays in the folder beside: such a folder may also have come with a stranger's files.
    """
    for name in _names_in(root):
        if name.startswith(os.fsencode(STAGING_PREFIX)):
            with contextlib.suppress(OSError, ValueError, RecursionError):
                _put_back(root, name)


def _put_back(root: int, name: bytes) -> None:
    staging = os.open(name, _READ_FOLDER, dir_fd=root)
    try:
        if not _lock(staging):
            return
        with os.fdopen(os.open(INTERRUPTED, _READ_FILE, dir_fd=staging), "rb", buffering=0) as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            content = _read(file, _MAX_NOTED) if is_file else b"{}"
            paths = msgspec.json.decode(content, type=dict[str, str])
        for old, coded in paths.items():
            path = base64.b64decode(coded, validate=True)
            if _OLD_FILE.fullmatch(old) and not why_refused(path):
                with contextlib.suppress(OSError):
                    *above, last = path.split(b"/")
                    with opened_below(".", above, at=root, make=0o777) as place:
                        os.link(old, last, src_dir_fd=staging, dst_dir_fd=place, follow_symlinks=False)
                    os.unlink(old, dir_fd=staging)
        if not any(each.startswith(b"old") for each in _names_in(staging)):
            for each in _names_in(staging):
                os.unlink(each, dir_fd=staging)
            os.rmdir(name, dir_fd=root)
    finally:
        os.close(staging)


def _depth_first(path: bytes) -> tuple[int, bytes]:
    return -path.count(b"/"), path


def _is_mode_alone(change: FileChange) -> bool:
    before, after = change.before, change.after
    if before is None or after is None or before.kind != "file" or after.kind != "file":
        return False
    return before.digest == after.digest


@contextlib.contextmanager
def _differs_without_file(path: bytes) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise _DiffersError(path) from None


def _write_file(place: int, name: bytes, pieces: Iterable[bytes], state: FileState, mode: int) -> None:
    digest = hashlib.sha1(b"blob %d\0" % state.size, usedforsecurity=False)
    with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=place), "wb", buffering=0) as out:
        for piece in pieces:
            digest.update(piece)
            rest = memoryview(piece)
            while rest:
                rest = rest[out.write(rest) :]
        os.fchmod(out.fileno(), mode)
    if digest.hexdigest() != state.digest:
        raise ValueError("a content is not what its change says")
