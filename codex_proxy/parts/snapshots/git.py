"""The program `git`, on a git directory of the server's own. It is never run in a folder of the user: it gets objects
and gives them back, and so reads none of the configuration, attributes or hooks that lie there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import structlog

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.files.private import create, make_folder, remove_left_folders, replace_file, temporary_folder

log = structlog.get_logger(__name__)

LEAST_VERSION: Final = (2, 25)
"""The oldest git that is used."""
GIT_SECONDS: Final = 120.0
"""Seconds after which a git that works on a folder's objects is killed."""
REPACK_SECONDS: Final = 900.0
"""Seconds after which a git that makes one pack of many is killed."""
MOST_ASKED: Final = 64
"""Maximum objects for which git is asked at once: so many ids fit into any pipe while git waits for its reader."""
MANY_PACKS: Final = 40
"""Packs from which on they become one."""
MANY_REFS: Final = 500
"""Files of refs from which on they become one."""
_MOST_CONFLICTS: Final = 127
"""The highest exit status of `git merge-file` that tells conflicts, and no error."""
_VERSION: Final = re.compile(r"git version (\d+)\.(\d+)")
_SECTIONS: Final = re.compile(rb"^diff --git ", re.MULTILINE)
_OPTIONS: Final = {
    "core.hooksPath": "/dev/null",
    "core.logAllRefUpdates": "false",
    "core.fsmonitor": "false",
    "core.splitIndex": "false",
    "core.bigFileThreshold": "4m",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "pack.threads": "1",
}
ATTRIBUTES: Final = b"* -text -ident !filter !working-tree-encoding !diff\n"
"""With which git leaves every file's bytes as they are."""


class GitError(Exception):
    """Git has failed. The text says how, and names no content. `status`: its exit status, if it told one; `place`: the
    git directory of which it has said something, if any.
    """

    def __init__(self, text: str, status: int | None = None, place: Path | None = None) -> None:
        super().__init__(text)
        self.status, self.place = status, place

    @property
    def of_disk(self) -> str:
        """What it says of a disk, which the operator can mend; empty if it is not that."""
        return next((words for words in _OF_DISKS if words in str(self)), "")


_PASSED_BYTES: Final = 1 << 20
"""Maximum bytes before a range that are read at once."""
_OF_DISKS: Final = ("No space left", "quota exceeded", "Read-only file system", "Input/output error")


def write_fault(what: str, error: Exception) -> Fault:
    """Returns the fault of what could not be written, after a line of the log. The client learns no path of the state
    folder.
    """
    log.warning("files_not_written", what=what, reason=str(error))
    if isinstance(error, OSError):
        return Fault.of(FaultKind.UNAVAILABLE, f"{what}: {error.strerror or 'the disk has failed'}.")
    if isinstance(error, GitError) and error.of_disk:
        return Fault.of(FaultKind.UNAVAILABLE, f"{what}: {error.of_disk}.")
    return Fault.of(FaultKind.INTERNAL, f"{what}: git has failed, and the server's log says how.")


def version_of(program: str) -> tuple[int, int]:
    """Returns the version of a git; (0, 0) if it tells none."""
    try:
        told = subprocess.run(
            [program, "version"], env=_environment(), capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    found = _VERSION.match(told.stdout.decode("ascii", "replace"))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _environment() -> dict[str, str]:
    """Returns the environment of every git, which has nothing of the server's."""
    return {
        "PATH": os.defpath,
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_DEFAULT_REF_FORMAT": "files",  # `has_refs` reads them
        "GIT_NO_REPLACE_OBJECTS": "1",
        # A repository can name a program that would fetch its missing objects. Of the two only the first is known to
        # every git, and stronger than what the repository's configuration allows.
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
    }


class GitDirectory:
    """The objects of one folder's snapshots, and a ref for each snapshot that is kept. Used by one thread at a time.
    All methods raise `GitError`, and `OSError` where files cannot be written.
    """

    def __init__(
        self,
        program: str,
        path: Path,
        more: Mapping[str, str] | None = None,
        *,
        seconds: float = GIT_SECONDS,
    ) -> None:
        """`more`: variables of git's environment; `seconds`: what a command may take."""
        self._program = program
        self.path = path
        self._seconds = seconds
        self._environment = _environment() | dict(more or {})

    def prepare(self) -> None:
        """Creates it if it does not exist, and removes what a killed server has left."""
        if not (self.path / "HEAD").exists():
            make_folder(self.path)
            self.run("init", "--bare", "-q", "--template=", ".")
            self.run("hash-object", "-w", "--stdin")  # the empty text, with which others are compared
        attributes = self.path / "info" / "attributes"
        if not attributes.exists() or attributes.read_bytes() != ATTRIBUTES:
            make_folder(attributes.parent)
            with replace_file(attributes) as out:
                out.write(ATTRIBUTES)
        for pattern in ("objects/pack/tmp_*", "objects/tmp_*", "refs/*.lock", "*.lock"):
            for left in self.path.glob(pattern):
                left.unlink(missing_ok=True)
        remove_left_folders(self.path)

    def sizes(self, digests: Iterable[str]) -> dict[str, int]:
        """Returns the bytes of objects that are there."""
        given = "".join(f"{digest}\n" for digest in digests).encode()
        told = self.run("cat-file", "--batch-check=%(objectname) %(objectsize)", given=given).decode()
        lines = (line.split() for line in told.splitlines())
        return {digest: int(size) for digest, size in lines if size != "missing"}

    def add_pack(self, pack: IO[bytes]) -> None:
        """Adds the objects of a pack, which is read from its beginning."""
        self.run("index-pack", "--stdin", stdin=pack, seconds=GIT_SECONDS)  # gigabytes take their time

    def set_refs(self, refs: Mapping[str, str | None]) -> None:
        """Sets refs (`refs/...`) to objects; None removes one. Locks on them that a killed server has left are
        removed.
        """
        for name in (*refs, "packed-refs"):
            (self.path / f"{name}.lock").unlink(missing_ok=True)
        lines = [
            f"delete {name}\n" if object is None else f"update {name} {object}\n"
            for name, object in refs.items()
        ]
        if lines:
            self.run("update-ref", "--stdin", given="".join(lines).encode())

    def refs(self, *names: str) -> dict[str, str]:
        """Returns all refs with their objects, or those with these names and below them."""
        told = self.run("for-each-ref", "--format=%(refname) %(objectname)", *names).decode()
        return {name: object for name, _, object in (line.partition(" ") for line in told.splitlines())}

    def has_refs(self, name: str) -> bool:
        """Whether there is a ref below this name (`refs/.../`), without a process."""
        if any(each.is_file() for each in self.path.joinpath(name).rglob("*")):
            return True
        try:
            return f" {name}".encode() in (self.path / "packed-refs").read_bytes()
        except FileNotFoundError:
            return False

    def repack(self) -> None:
        """Makes one pack of all objects that a ref reaches, and removes the others."""
        self.run("repack", "-a", "-d", "-q", "--no-write-bitmap-index", seconds=REPACK_SECONDS)
        self.pack_refs()

    @property
    def loose_refs(self) -> int:
        """How many refs have a file of their own."""
        return sum(len(files) for _, _, files in os.walk(self.path / "refs"))

    def pack_refs(self) -> None:
        """Makes one file of all refs."""
        for left in (*self.path.glob("refs/**/*.lock"), self.path / "packed-refs.lock"):
            left.unlink(missing_ok=True)
        self.run("pack-refs", "--all")

    @property
    def packs(self) -> int:
        return len([*self.path.glob("objects/pack/*.pack")])

    @property
    def size(self) -> int:
        """The bytes of its packs."""
        size = 0
        for each in self.path.glob("objects/pack/*"):
            with contextlib.suppress(FileNotFoundError):  # one pack is made of many just now
                size += each.stat().st_size
        return size

    @contextlib.contextmanager
    def reader(self) -> Iterator[ObjectReader]:
        """Yields what reads its objects."""
        process = subprocess.Popen(
            self._command("cat-file", "--batch"),
            cwd=self.path,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield ObjectReader(process, self)
        finally:
            process.kill()
            process.communicate()

    def diff(self, pairs: Sequence[tuple[bytes, bytes]], limit: int) -> list[bytes]:
        """Returns git's patch for each pair of texts, up to `limit` bytes of all; what is not whole is missing. The
        names of the files in them are the numbers of the pairs.
        """
        with self.beside() as own:
            before, after = (own.tree_of_texts([pair[side] for pair in pairs]) for side in (0, 1))
            told = own.compare(before, after, limit)
        sections = _SECTIONS.split(told)[1:]
        return sections[:-1] if len(told) == limit else sections

    @contextlib.contextmanager
    def beside(self) -> Iterator[GitDirectory]:
        """Yields it with a place of its own for new objects, which are removed afterwards."""
        with temporary_folder("objects", self.path) as (folder, _):
            more = {
                "GIT_OBJECT_DIRECTORY": folder,
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self.path / "objects"),
            }
            yield GitDirectory(self._program, self.path, more)

    def merge(self, one: bytes, before: bytes, other: bytes) -> bytes | None:
        """Returns a text with what both texts have changed of an earlier one; None if these are the same lines."""
        with temporary_folder("merge", self.path) as (folder, _):
            names = [os.path.join(folder, name) for name in ("one", "before", "other")]
            for name, text in zip(names, (one, before, other), strict=True):
                with os.fdopen(create(name), "wb") as file:
                    file.write(text)
            done = self._done("merge-file", "-p", "-q", *names)
        if not 0 <= done.returncode <= _MOST_CONFLICTS:
            raise GitError("git merge-file failed")
        return None if done.returncode else done.stdout

    def copy_objects(self, names: Iterable[str], to: GitDirectory) -> None:
        """Adds objects of this directory, with all that they name, to another one."""
        given = "".join(f"{name}\n" for name in names).encode()
        with tempfile.TemporaryFile(dir=self.path) as pack:
            done = self._done("pack-objects", "--revs", "--stdout", "-q", given=given, stdout=pack)
            self._check("pack-objects", done)
            pack.seek(0)
            to.add_pack(pack)

    def patch(self, before: str, after: str, limit: int) -> bytes:
        """Returns what makes the files of a tree those of another one, for `git apply`. Raises `OverflowError` if that
        has more bytes.
        """
        found = self.compare(before, after, limit + 1, "-r", "--binary")
        if len(found) > limit:
            raise OverflowError(limit)
        return found

    def compare(self, before: str, after: str, limit: int, *options: str) -> bytes:
        """Returns the first bytes of a patch."""
        usual = ("-p", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index")
        process = subprocess.Popen(
            self._command("diff-tree", *usual, *options, before, after),
            cwd=self.path,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        slow = threading.Timer(GIT_SECONDS, process.kill)
        slow.start()
        try:
            told = process.stdout.read(limit)
            if len(told) < limit and process.wait():
                raise GitError("git diff-tree failed")
        finally:
            slow.cancel()
            process.kill()
            process.communicate()
        return told

    def tree_of_texts(self, texts: Sequence[bytes]) -> str:
        """Makes a tree of texts, whose names are their numbers. Returns its id."""
        lines = [f"100644 blob {text.decode()}\t{index}\n" for index, text in enumerate(texts)]
        told = self.run("mktree", "--missing", given="".join(lines).encode())
        return told.decode().strip()

    def run(
        self,
        *arguments: str,
        given: bytes | None = None,
        stdin: IO[bytes] | None = None,
        seconds: float | None = None,
    ) -> bytes:
        """Runs a git command, with this input. Returns its output."""
        done = self._done(*arguments, given=given, stdin=stdin, seconds=seconds)
        self._check(arguments[0], done)
        return done.stdout

    def _check(self, command: str, done: subprocess.CompletedProcess[bytes]) -> None:
        """Raises `GitError` with git's last line if it has failed."""
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            reason = lines[-1] if lines else done.returncode
            raise GitError(f"git {command} failed: {reason}", done.returncode, self.path)

    def _done(
        self,
        *arguments: str,
        given: bytes | None = None,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | int = subprocess.PIPE,
        seconds: float | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        seconds = seconds or self._seconds
        source: dict[str, Any] = (
            {"input": given} if given is not None else {"stdin": stdin or subprocess.DEVNULL}
        )
        try:
            return subprocess.run(
                self._command(*arguments),
                cwd=self.path,
                env=self._environment,
                stdout=stdout,
                stderr=subprocess.PIPE,
                timeout=seconds,
                check=False,
                **source,
            )
        except subprocess.TimeoutExpired:
            raise GitError(f"git {arguments[0]} took longer than {seconds:g} s", place=self.path) from None

    def _command(self, *arguments: str) -> list[str]:
        options = [part for name, value in _OPTIONS.items() for part in ("-c", f"{name}={value}")]
        return [self._program, *options, "--git-dir=.", *arguments]


class ObjectReader:
    """Reads the objects of a git directory."""

    def __init__(self, process: subprocess.Popen[bytes], git: GitDirectory) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._ask, self._told = process.stdin, process.stdout
        self.sizes = git.sizes
        self._planned: deque[str] = deque()
        self._asked: deque[str] = deque()
        """What git is asked for, and was not read yet."""

    def plan(self, digests: Iterable[str]) -> None:
        """Says what is read next, in this order: git is asked for several at once, which saves waiting for each."""
        self._planned = deque(digests)

    def read(self, digest: str) -> bytes:
        """Returns an object's content. Raises `GitError` if it is not there."""
        return self._read(digest, 0, None)

    def read_range(self, digest: str, start: int, stop: int) -> bytes:
        """Returns a part of an object's content, up to its end. No other object is read after that. Raises `GitError`
        if it is not there.
        """
        return self._read(digest, start, stop)

    def _read(self, digest: str, start: int, stop: int | None) -> bytes:
        try:
            while self._asked and self._asked[0] != digest:
                self._next(0, None)  # planned, and not read
            if not self._asked:
                self._ask_for(digest)
            content = self._next(start, stop)
        except BrokenPipeError:
            raise GitError("git cat-file has ended") from None
        if content is None:
            raise GitError(f"the object {digest} is missing")
        return content

    def _ask_for(self, digest: str) -> None:
        self._asked.append(digest)
        if self._planned and self._planned[0] == digest:
            self._planned.popleft()
            while self._planned and len(self._asked) < MOST_ASKED:
                self._asked.append(self._planned.popleft())
        self._ask.write("".join(f"{each}\n" for each in self._asked).encode())
        self._ask.flush()

    def _next(self, start: int, stop: int | None) -> bytes | None:
        """Returns the content, or a part of it, of the next object that git is asked for; None if it is missing."""
        self._asked.popleft()
        head = self._told.readline().split()
        if len(head) != 3:
            return None
        size = int(head[2])
        if stop is None:
            wanted, found = size, self._told.read(size + 1)[:size]
        else:
            start, stop = min(start, size), min(stop, size)
            while start and (passed := self._told.read(min(start, _PASSED_BYTES))):
                start, stop = start - len(passed), stop - len(passed)
            wanted, found = stop - start, self._told.read(max(0, stop - start))
        if len(found) < wanted:
            raise GitError("git cat-file has ended")
        return found


def git_on_path(environ: Mapping[str, str]) -> str:
    """Returns the program `git`; empty if there is none that can be used."""
    program = shutil.which("git", path=environ.get("PATH"))
    return program if program is not None and version_of(program) >= LEAST_VERSION else ""
