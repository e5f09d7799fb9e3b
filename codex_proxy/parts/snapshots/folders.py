"""The snapshots of one folder and owner: a git directory in the state folder, what is known of the folder's files, and
the snapshots that refs keep. Its methods block, and run in threads; one at a time, also of several processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from codex_proxy.files.private import create, make_folder, replace_file
from codex_proxy.parts.snapshots.git import MANY_PACKS, MANY_REFS, GitDirectory
from codex_proxy.parts.snapshots.known import KnownFolder, load, save
from codex_proxy.parts.snapshots.objects import NewObjects
from codex_proxy.parts.snapshots.walk import Limits, RulesUsed, SnapshotError, Taken, Walk

LATEST: Final = "refs/latest"
"""Keeps the objects of the files that are known."""
LOCK_SECONDS: Final = 30.0
"""Seconds that changes of refs wait for a snapshot of the same folder."""
POLL_SECONDS: Final = 0.02


class FolderName(msgspec.Struct, frozen=True):
    """Whose snapshots these are, and of which folder."""

    owner: str
    folder: str

    @property
    def place(self) -> str:
        """The name of their folder in that of all snapshots."""
        return hashlib.sha256(f"{self.owner}\0{self.folder}".encode()).hexdigest()[:32]


class Kept(NamedTuple):
    tree: str
    rules: RulesUsed
    not_kept: list[bytes]


class FolderSnapshots:
    """Raises `SnapshotError`, `GitError`, and `OSError` where the state folder cannot be written."""

    def __init__(self, program: str, root: Path, name: str) -> None:
        """`program`: the git; `root`: the folder of all snapshots; `name`: that of these (`FolderName.place`)."""
        self.path = root / name
        self.git = GitDirectory(program, self.path / "git")
        self._lock = threading.Lock()
        self._known: KnownFolder | None = None
        self._known_mark: tuple[int, int] | None = None
        """Which file of what is known this is of: another process may have written a newer one."""

    def take(
        self,
        name: FolderName,
        limits: Limits,
        until: float,
        refs: Sequence[str],
        rules: RulesUsed | None = None,
    ) -> Kept:
        """Makes a snapshot of the folder, which these refs keep. `until`: the time of `time.monotonic` at which it is
        given up. `rules`: those of an earlier snapshot, which count in place of today's.
        """
        with self._locked(until, name):
            known = self._read_known()
            taken = self._walk(name, limits, until, known, rules=rules)
            tree = taken.digest.hex()
            self.git.set_refs(dict.fromkeys((LATEST, *refs), tree))
            self._note_known(taken, changed=taken.digest != known.digest)
        return Kept(tree, taken.rules, taken.not_kept)

    def take_with(
        self, name: FolderName, limits: Limits, until: float, ref: str, paths: Sequence[bytes]
    ) -> Kept:
        """Makes a snapshot of the folder, which the ref keeps, with these paths also where its rules leave them out."""
        with self._locked(until, name):
            taken = self._walk(name, limits, until, self._read_known(), wanted=paths)
            # What is known stays as it was: the next snapshot leaves the paths out again.
            tree = taken.digest.hex()
            self.git.set_refs({ref: tree})
        return Kept(tree, taken.rules, taken.not_kept)

    def _walk(
        self,
        name: FolderName,
        limits: Limits,
        until: float,
        known: KnownFolder,
        rules: RulesUsed | None = None,
        wanted: Sequence[bytes] = (),
    ) -> Taken:
        """Makes a tree of what is in the folder, and adds what is new to the objects of git."""
        objects = NewObjects(self.path)
        try:
            taken = Walk(objects, limits, until).take(name.folder, known, rules, wanted)
            objects.save(self.git)
        finally:
            objects.close()
        return taken

    def is_known(self) -> bool:
        """Whether the next snapshot reads only what has changed."""
        if not (self.path / "known").exists():
            return False
        with self._locked(time.monotonic() + LOCK_SECONDS):
            return self._read_known().digest != b""

    def has(self, tree: str) -> bool:
        """Whether a ref keeps this tree here."""
        return self.is_known() and tree in self.git.refs().values()

    def tidy(self) -> None:
        """Makes one pack of many, and one file of many refs. Snapshots of the folder wait meanwhile."""
        has_many_packs = self.git.packs > MANY_PACKS
        if has_many_packs or self.git.loose_refs > MANY_REFS:
            with self._locked(time.monotonic() + LOCK_SECONDS):
                if has_many_packs:
                    self.git.repack()
                else:
                    self.git.pack_refs()

    def set_refs(self, refs: Mapping[str, str | None]) -> None:
        with self._locked(time.monotonic() + LOCK_SECONDS):
            self.git.set_refs(refs)

    def remove(self, refs: Sequence[str], *, with_objects: bool = True) -> None:
        """Removes refs, and the objects that only they kept: if no turn's ref is left, all that there is. Snapshots of
        the folder wait meanwhile. `with_objects`: False leaves objects for a later time, if another ref is left.
        """
        with self._locked(time.monotonic() + LOCK_SECONDS):
            if refs:
                self.git.set_refs(dict.fromkeys(refs))
            if not self.refs().keys() - {LATEST}:
                self._remove_all()
            elif refs and with_objects:
                self.git.repack()

    def _remove_all(self) -> None:
        removed = self.path / "removed"
        for path in (removed, self.git.path):  # what is left of the first one, if the server was killed here
            with contextlib.suppress(FileNotFoundError):
                path.rename(removed)
                shutil.rmtree(removed)
        for name in ("known", "name.json", "lock"):  # the lock last: whoever waits for it begins anew then
            (self.path / name).unlink(missing_ok=True)
        self.forget()
        with contextlib.suppress(OSError):  # another process has begun anew already
            self.path.rmdir()

    def refs(self, *names: str) -> dict[str, str]:
        """Returns all refs with their objects, or those with these names and below them."""
        return self.git.refs(*names) if self.git.path.exists() else {}

    @contextlib.contextmanager
    def _locked(self, until: float, name: FolderName | None = None) -> Iterator[None]:
        """Holds it alone. `name`: makes it, if it does not exist."""
        if not self._lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise SnapshotError("another snapshot of the folder takes too long")
        try:
            with self._lock_file(until, name):
                if name is not None:
                    self.git.prepare()
                yield
        finally:
            self._lock.release()

    def _lock_file(self, until: float, name: FolderName | None) -> IO[bytes]:
        """Returns the file that locks out other processes, until it is closed."""
        while True:
            try:
                if name is not None:
                    self._make(name)
                lock = open(self.path / "lock", "rb")  # noqa: SIM115 - the caller closes it
            except FileNotFoundError:
                if name is None or time.monotonic() > until:
                    raise
                time.sleep(POLL_SECONDS)  # another process removes all of it just now
                continue
            try:
                self._wait_for(lock, until)
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name)):
                    return lock
            except FileNotFoundError:
                pass
            except BaseException:
                lock.close()
                raise
            lock.close()

    def _wait_for(self, lock: IO[bytes], until: float) -> None:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise SnapshotError("another process takes too long with the folder") from None
                time.sleep(POLL_SECONDS)

    def _make(self, name: FolderName) -> None:
        make_folder(self.path)
        with contextlib.suppress(FileExistsError):
            os.close(create(self.path / "lock"))
        if not (self.path / "name.json").exists():
            with replace_file(self.path / "name.json") as out:
                out.write(msgspec.json.encode(name))

    # --- what is known --------------------------------------------------------------------------

    def _read_known(self) -> KnownFolder:
        mark, known = self._mark(), self._known  # which `forget` may take away meanwhile
        if known is None or mark != self._known_mark:
            known = load(self.path / "known")
            self._known, self._known_mark = known, mark
        if not known.digest or self.git.refs(LATEST).get(LATEST) != known.digest.hex():
            return KnownFolder()  # its objects may be gone
        return known

    def _note_known(self, taken: Taken, *, changed: bool) -> None:
        self._known = taken.known
        if changed:
            save(taken.known, self.path / "known")
            self._known_mark = self._mark()

    def _mark(self) -> tuple[int, int] | None:
        try:
            found = (self.path / "known").stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def forget(self) -> None:
        """Frees the memory of what is known: the next snapshot reads it from its file."""
        self._known = None


def names_in(root: Path) -> list[tuple[str, FolderName]]:
    """Returns the folders that have snapshots, each with the name of its place."""
    found = []
    for path in root.glob("*/name.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found.append((path.parent.name, msgspec.json.decode(path.read_bytes(), type=FolderName)))
    return found
