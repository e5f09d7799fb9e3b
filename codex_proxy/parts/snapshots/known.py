"""What is known of a folder's files since the last snapshot, so that only what has changed is read; kept in a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from codex_proxy.files.changes import StatusMark
from codex_proxy.files.private import replace_file
from codex_proxy.parts.snapshots.objects import FOLDER, NOT_KEPT, TreeEntry, object_digest

_FORMAT: Final = 3
"""The format of the file."""
NO_MARK: Final = (0, 0, 0, 0, 0)
"""That of what cannot be read."""
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Which numbers the file may have: some file systems let anybody set times outside of them."""
_UNWRITABLE: Final = (0, -1, 0, 0, 0)
"""What the file has for a mark with other numbers, and no mark is: what has it is read again."""
_WITH_TIMES: Final = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""File systems that change a folder's times with each new, renamed or removed name. Those of networks and of programs
may not, or tell it late.
"""


class KnownFolder:
    """What is known of a folder; it is not changed once its snapshot is there."""

    __slots__ = ("bytes", "digest", "entries", "folders", "left_out", "mark", "marks", "not_kept", "rules")

    def __init__(self, rules: bytes = b"", mark: StatusMark | None = None) -> None:
        self.digest = b""
        """That of its tree; empty if nothing is known."""
        self.rules = rules
        """The digest of the rules by which names are left out."""
        self.mark = mark
        """Its own, if it has the same names as long as it has the same mark."""
        self.marks: dict[str, StatusMark] = {}
        """Of all that is no folder, and that the rules do not leave out."""
        self.entries: dict[str, TreeEntry] = {}
        """What the tree has of these."""
        self.bytes = 0
        """The bytes of its own files and links that are kept."""
        self.not_kept: list[str] = []
        """The names of those that are not."""
        self.folders: dict[str, KnownFolder | None] = {}
        """None: one that cannot be read."""
        self.left_out: dict[str, bool] = {}
        """The names that the rules leave out, each with whether it is a folder."""

    def __contains__(self, name: object) -> bool:
        return name in self.marks or name in self.folders or name in self.left_out

    @property
    def count(self) -> int:
        return len(self.marks) + len(self.folders) + len(self.left_out)

    def take_files_of(self, other: KnownFolder) -> None:
        """Makes what is known of another one's files and links its own."""
        self.marks, self.entries = other.marks, other.entries
        self.bytes, self.not_kept = other.bytes, other.not_kept

    def tree(self) -> list[tuple[bytes, TreeEntry]]:
        """Returns the entries of its tree with their names."""
        folders = {
            name: entry_of_unkept(NO_MARK) if folder is None else TreeEntry(FOLDER, folder.digest)
            for name, folder in self.folders.items()
        }
        return [(os.fsencode(name), entry) for name, entry in (self.entries | folders).items()]

    def has_tree_of(self, other: KnownFolder) -> bool:
        """Whether its tree is that of the other one."""
        is_like = other.digest != b"" and (self.entries is other.entries or self.entries == other.entries)
        if not self.folders or not is_like:
            return is_like and not other.folders
        return _digests(self.folders) == _digests(other.folders)


def entry_of_unkept(mark: StatusMark) -> TreeEntry:
    """Returns the entry of what is there and is not kept."""
    return TreeEntry(NOT_KEPT, object_digest("blob", repr(mark).encode()))


def device_with_times(folder: int) -> int | None:
    """Returns the device of a folder, given by a descriptor, if in its file system a folder has the same names as long
    as it has the same times of change; None if that is not known.
    """
    try:
        about = Path(f"/proc/self/fdinfo/{folder}").read_text()
        [mount] = [line.split()[1] for line in about.splitlines() if line.startswith("mnt_id:")]
        for line in Path("/proc/self/mountinfo").read_bytes().decode("utf-8", "replace").splitlines():
            before, _, after = line.partition(" - ")
            if before.split()[0] == mount:
                return os.fstat(folder).st_dev if after.split()[0] in _WITH_TIMES else None
    except (OSError, ValueError, IndexError):
        pass  # another system, or a sandbox that tells less
    return None


def _digests(folders: dict[str, KnownFolder | None]) -> dict[str, bytes]:
    return {name: b"" if folder is None else folder.digest for name, folder in folders.items()}


def save(known: KnownFolder, path: Path) -> None:
    """Writes it to a file. Raises `OSError`."""
    with replace_file(path) as out:
        out.write(msgspec.msgpack.encode([_FORMAT, _dump(known)]))


def load(path: Path) -> KnownFolder:
    """Returns what a file says; nothing if there is none, or one in another format."""
    try:
        version, found = msgspec.msgpack.decode(path.read_bytes())
        return _loaded(found) if version == _FORMAT else KnownFolder()
    except (OSError, msgspec.DecodeError, ValueError, TypeError, RecursionError):
        return KnownFolder()


def _dump(known: KnownFolder) -> list[Any]:
    return [
        known.digest,
        known.rules,
        known.mark and _writable(known.mark),
        known.bytes,
        {os.fsencode(name): _writable(mark) for name, mark in known.marks.items()},
        {os.fsencode(name): entry for name, entry in known.entries.items()},
        {
            os.fsencode(name): None if folder is None else _dump(folder)
            for name, folder in known.folders.items()
        },
        {os.fsencode(name): is_folder for name, is_folder in known.left_out.items()},
    ]


def _writable(mark: StatusMark) -> StatusMark:
    return mark if min(mark) >= _LEAST and max(mark) <= _MOST else _UNWRITABLE


def _loaded(found: list[Any]) -> KnownFolder:
    known = KnownFolder()
    known.digest, known.rules, mark, known.bytes, marks, entries, folders, left_out = found
    known.mark = mark and tuple(mark)
    known.marks = {os.fsdecode(name): tuple(mark) for name, mark in marks.items()}
    known.entries = {os.fsdecode(name): TreeEntry(*entry) for name, entry in entries.items()}
    known.not_kept = [name for name, entry in known.entries.items() if not entry.is_kept]
    known.folders = {
        os.fsdecode(name): None if each is None else _loaded(each) for name, each in folders.items()
    }
    known.left_out = {os.fsdecode(name): each for name, each in left_out.items()}
    return known
