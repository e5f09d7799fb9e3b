"""Which paths `.gitignore` files leave out, by git's rules. The files are anybody's: matching costs at most the product
of the lengths of a pattern and a path.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

FILE: Final = ".gitignore"
MAX_BYTES: Final = 1 << 18
"""Maximum bytes of a file of patterns that count."""
MAX_PATTERNS: Final = 2000
"""Maximum patterns of a file that count."""
MAX_ABOVE: Final = 100
"""Maximum folders above the kept one in which a repository is looked for."""
UNREADABLE: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV}
)
"""The errors of what cannot be read as it is there. Others may pass, and tell nothing of it."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Part: TypeAlias = str | re.Pattern[str] | None
"""What a name has to be: this one, or one that matches; None: any number of names (`**`)."""


class Pattern(NamedTuple):
    parts: tuple[Part, ...]
    is_for_names: bool
    """Whether it has one part, which is a name at any depth."""
    only_folders: bool
    includes: bool
    """Whether it takes back what an earlier one leaves out."""

    def matches(self, names: Sequence[str]) -> bool:
        """Whether it is about this path, given by its names below the folder of the pattern's file."""
        if self.is_for_names:
            return _is(self.parts[0], names[-1])
        return _match(self.parts, names)


class IgnoreFile(NamedTuple):
    """A file of patterns."""

    patterns: tuple[Pattern, ...]
    digest: bytes


NOTHING: Final = IgnoreFile((), b"")


class Rules(NamedTuple):
    """The rules for the content of one folder: those of files of patterns above it and in it, the nearest last.
    `files`: each with the number of names down to its folder.
    """

    files: tuple[tuple[int, IgnoreFile], ...] = ()
    names: tuple[str, ...] = ()
    """The names of this folder and those above it, as far up as the rules go."""
    digest: bytes = b""

    def below(self, name: str) -> Rules:
        """Returns the rules for a folder in this one, without those of its own file."""
        # The same file means something else one folder higher.
        return Rules(self.files, (*self.names, name), self.digest + b"/" if self.files else b"")

    def with_file(self, file: IgnoreFile) -> Rules:
        if not file.patterns:
            return self
        digest = hashlib.sha1(self.digest + file.digest, usedforsecurity=False).digest()
        return Rules((*self.files, (len(self.names), file)), self.names, digest)

    def leave_out(self, name: str, *, is_folder: bool) -> bool:
        for depth, file in reversed(self.files):
            names = (*self.names[depth:], name)
            for pattern in reversed(file.patterns):
                if (is_folder or not pattern.only_folders) and pattern.matches(names):
                    return not pattern.includes
        return False


def _is(part: Part, name: str) -> bool:
    return name == part if isinstance(part, str) else part is None or part.match(name) is not None


def _match(parts: Sequence[Part], names: Sequence[str]) -> bool:
    """Whether names match parts, in which `**` stands for any number of them, at the end for at least one."""
    here = there = 0
    star, resumed = -1, 0
    while there < len(names):
        if here < len(parts) and parts[here] is None:
            if here == len(parts) - 1:
                return True
            star, resumed, here = here, there, here + 1
        elif here < len(parts) and _is(parts[here], names[there]):
            here, there = here + 1, there + 1
        elif star >= 0:
            resumed += 1
            here, there = star + 1, resumed
        else:
            return False
    return here == len(parts)


def parse(content: bytes) -> IgnoreFile:
    """Returns the patterns of a file."""
    text = os.fsdecode(content[:MAX_BYTES]).removeprefix("\ufeff")
    found = [pattern for line in text.split("\n") if (pattern := _pattern(line)) is not None]
    digest = hashlib.sha1(content[:MAX_BYTES], usedforsecurity=False).digest()
    return IgnoreFile(tuple(found[:MAX_PATTERNS]), digest) if found else NOTHING


def _pattern(line: str) -> Pattern | None:
    line = line.removesuffix("\r")
    if line.startswith("#"):
        return None
    line = re.sub(r"(?<!\\) +\Z", "", line) if line.endswith(" ") else line
    includes = line.startswith("!")
    line = line[includes:]
    only_folders = line.endswith("/")
    line = line.rstrip("/") if only_folders else line
    is_for_names = "/" not in line
    names = line.removeprefix("/").split("/")
    if not all(names):
        return None
    parts = tuple(_part(name) for name in names)
    if is_for_names and parts == (None,):  # `**` alone is `*`
        parts = (_compiled("*"),)
    return Pattern(parts, is_for_names, only_folders, includes)


def _part(name: str) -> Part:
    if name == "**":
        return None
    if not any(char in name for char in "*?[\\"):
        return name
    # fnmatch knows no escapes, and writes a set's `^` as `!`.
    escaped = re.sub(r"\\(.)", lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], name)
    return _compiled(re.sub(r"\*+", "*", escaped.replace("[^", "[!")))


def _compiled(name: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(name))


def read_file(folder: int, name: str = FILE) -> IgnoreFile:
    """Returns the patterns of a file in the folder with this descriptor: none if it is a link or may not be read.
    Raises `OSError` where reading fails otherwise: without its rules a folder would have other files.
    """
    content = read_content(folder, name)
    return NOTHING if content is None else parse(content)


def read_content(folder: int, name: str) -> bytes | None:
    """Returns the first `MAX_BYTES` of what `read_file` reads, or None; raises what it does."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=folder)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return None
    try:
        return os.read(descriptor, MAX_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    finally:
        os.close(descriptor)


def rules_above(folder: str) -> Rules:
    """Returns the rules for a folder's content from what is outside of it: the files of the folders above, up to the
    root of the repository in which it is, and the exclusions of that; without a repository none. Raises `OSError` as
    `read_file` does.
    """
    above = [*up_to_repository(folder)]
    if not above:
        return Rules()
    rules = Rules().with_file(_read_at(os.path.join(above[-1], ".git", "info"), "exclude"))
    for outer, inner in zip(reversed(above), [*reversed(above)][1:], strict=False):
        rules = rules.with_file(_read_at(outer, FILE)).below(os.path.basename(inner))
    return rules


def up_to_repository(folder: str) -> Iterator[str]:
    """Yields the folder and those above it up to a repository's root; nothing if there is none."""
    found = [folder]
    while len(found) < MAX_ABOVE:
        if os.path.lexists(os.path.join(found[-1], ".git")):
            yield from found
            return
        parent = os.path.dirname(found[-1])
        if parent == found[-1]:
            return
        found.append(parent)


def _read_at(folder: str, name: str) -> IgnoreFile:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return NOTHING
    try:
        return read_file(descriptor, name)
    finally:
        os.close(descriptor)
