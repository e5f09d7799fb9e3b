"""The lines of a cassette with what a turn has done to files: they are made of the files before and after it, and are
made changes again of the folder in which the turn is replayed.

A file that was changed is written as the lines that differ, a new one as its text, and what is no text in base64.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from codex_proxy.core.json_values import UNREADABLE, encode_json
from codex_proxy.core.shown_text import excerpt
from codex_proxy.files.changes import FileChange, FileState, digest_of
from codex_proxy.files.foreign import why_refused
from codex_proxy.files.writing import (
    PERMISSIONS,
    PartlyWrittenError,
    content_at,
    differing_paths,
    write_changes,
)
from codex_proxy.parts.cassettes.folder_files import LEFT_OUT, MAX_FILE_BYTES, ChangedFile

MAX_SHOWN: Final = 20
"""Maximum paths in a message."""

_Mode = Annotated[str, msgspec.Meta(pattern="^[0-7]{3}$")]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$")]


class StateBefore(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What was at a path before the turn. `digest`: git's id of the content; without `mode` it is a link."""

    digest: _Digest
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_BYTES)]
    mode: _Mode | None = None


class ChangedLines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lines of a text that differ. `line`: the number of the first one, from 1."""

    line: Annotated[int, msgspec.Meta(ge=1)]
    removed_text: str
    added_text: str


class FileLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One path that a turn has changed. `before`: None where nothing was there. What is there afterwards is `text`,
    `base64`, `patch` (of the content before) or, with another mode alone, what was there; or a link to
    `target_text`; or nothing. What is not UTF-8 is in base64.
    """

    path_text: str | None = None
    path_base64: str | None = None
    before: StateBefore | None = None
    mode: _Mode | None = None
    text: str | None = None
    base64: str | None = None
    patch: ChangedLines | None = None
    target_text: str | None = None
    target_base64: str | None = None

    def __post_init__(self) -> None:
        given = [self.text, self.base64, self.patch, self.target_text, self.target_base64]
        count = sum(each is not None for each in given)
        if (self.path_text is None) is (self.path_base64 is None):
            raise ValueError("a file has one path")
        if count > 1 or (self.is_link and self.mode is not None):
            raise ValueError("a file has one content, and a link no mode")
        if count == 1 and not self.is_link and self.mode is None:
            raise ValueError("a file has a mode")
        if self.before is None and (count == 0 or self.patch is not None):
            raise ValueError("a file that was not there before has a content")
        if self.mode is not None and (count == 0 or self.patch is not None) and self.was_link:
            raise ValueError("a link has no content that could be changed")

    @property
    def is_link(self) -> bool:
        return self.target_text is not None or self.target_base64 is not None

    @property
    def is_there(self) -> bool:
        """Whether something is at the path afterwards."""
        return self.is_link or self.mode is not None

    @property
    def was_link(self) -> bool:
        return self.before is not None and self.before.mode is None

    @property
    def path(self) -> bytes:
        return _bytes_of(self.path_text, self.path_base64)

    @property
    def target(self) -> bytes | None:
        """The target of the link that is there afterwards, if one is."""
        return _bytes_of(self.target_text, self.target_base64) if self.is_link else None

    @property
    def shown(self) -> str:
        """A line about it, for people."""
        kind = "added" if self.before is None else "changed" if self.is_there else "removed"
        return f"{kind} {shown_path(self.path)}"


def _bytes_of(text: str | None, coded: str | None) -> bytes:
    return text.encode() if text is not None else base64.b64decode(coded or "", validate=True)


def check_file_line(line: FileLine) -> None:
    """Checks what the types leave open. Raises `ValueError`."""
    try:
        path, target = line.path, line.target
        base64.b64decode(line.base64 or "", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("a path, target or content is not in base64") from None
    why = why_refused(path, target)
    folders = path.lower().split(b"/")[:-1]
    if not why and not LEFT_OUT.isdisjoint(map(os.fsdecode, folders)):
        why = "no recording looks into such a folder"
    if why:
        raise ValueError(f"{shown_path(path)} is not written: {why}")


class CheckedLines:
    """The lines of one turn, which can be written together."""

    def __init__(self) -> None:
        self._paths: set[bytes] = set()
        self._after: set[bytes] = set()
        """The paths at which something is afterwards."""
        self._folders: set[bytes] = set()
        """The folders that are there for them."""

    def add(self, line: FileLine) -> None:
        """Adds a line that `check_file_line` allows. Raises `ValueError` if it contradicts those before."""
        path, parts = line.path, line.path.split(b"/")
        above = {b"/".join(parts[:end]) for end in range(1, len(parts))}
        if path in self._paths:
            raise ValueError(f"{shown_path(path)} comes twice")
        if line.is_there and (path in self._folders or not self._after.isdisjoint(above)):
            raise ValueError(f"{shown_path(path)} is a file and a folder")
        self._paths.add(path)
        if line.is_there:
            self._after.add(path)
            self._folders |= above


def shown_path(path: bytes) -> str:
    return excerpt(path.decode("utf-8", "backslashreplace"))


# --- recording --------------------------------------------------------------------------------------


def file_line_of(changed: ChangedFile, scrub: Callable[[bytes], bytes]) -> FileLine:
    """Returns the line of a changed file. `scrub` returns a text without secrets: if lines that were changed have any,
    the content is written whole, since it is another one then. Digests stay what they are.
    """
    before, after = changed.before, changed.after
    given: dict[str, Any] = _coded("path", scrub(changed.path))
    if before is not None:
        mode = None if before.kind == "link" else _mode_text(before)
        given["before"] = StateBefore(before.digest, before.size, mode)
    if after is None:
        return FileLine(**given)
    if after.kind == "link":
        return FileLine(**given | _coded("target", scrub(changed.content_after)))
    given["mode"] = _mode_text(after)
    if before is not None and (before.kind, before.digest) == ("file", after.digest):
        return FileLine(**given)
    text = _text_of(changed.content_after)
    if text is None:
        return FileLine(**given, base64=base64.b64encode(scrub(changed.content_after)).decode())
    old = None if changed.content_before is None else _text_of(changed.content_before)
    if before is not None and before.kind == "file" and old is not None:
        patch = _changed_lines(old, text)
        size = len(patch.removed_text) + len(patch.added_text)
        if (
            size < len(text)
            and _has_no_secret(patch.removed_text, scrub)
            and _has_no_secret(patch.added_text, scrub)
        ):
            return FileLine(**given, patch=patch)
    return FileLine(**given, text=_scrubbed(text, scrub))


def _has_no_secret(text: str, scrub: Callable[[bytes], bytes]) -> bool:
    return _scrubbed(text, scrub) == text


def _scrubbed(text: str, scrub: Callable[[bytes], bytes]) -> str:
    """Returns a text without the secrets that are found in it, or in its JSON, which is one line."""
    found = scrub(text.encode()).decode("utf-8", "replace")
    written = encode_json(found)[1:-1]
    scrubbed = scrub(written)
    if scrubbed == written:
        return found
    try:
        return msgspec.json.decode(b'"%b"' % scrubbed, type=str)
    except UNREADABLE:  # an expression has cut an escape
        return "<scrubbed>"


def _mode_text(state: FileState) -> str:
    return f"{state.mode & PERMISSIONS:03o}"


def _text_of(content: bytes) -> str | None:
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


def _coded(name: str, content: bytes) -> dict[str, str]:
    text = _text_of(content)
    if text is None:
        return {f"{name}_base64": base64.b64encode(content).decode()}
    return {f"{name}_text": text}


def _changed_lines(before: str, after: str) -> ChangedLines:
    """Returns the lines between those that begin and those that end both texts."""
    old, new = _lines(before), _lines(after)
    begin = 0
    while begin < min(len(old), len(new)) and old[begin] == new[begin]:
        begin += 1
    end = 0
    while end < min(len(old), len(new)) - begin and old[-1 - end] == new[-1 - end]:
        end += 1
    removed, added = old[begin : len(old) - end], new[begin : len(new) - end]
    return ChangedLines(begin + 1, "".join(removed), "".join(added))


def _lines(text: str) -> list[str]:
    return [f"{line}\n" for line in text.split("\n")[:-1]] + [text.rpartition("\n")[2]]


# --- replaying --------------------------------------------------------------------------------------


class WorkspaceError(Exception):
    """The files of a cassette are not written. The text says why; `paths` those at which something else is."""

    def __init__(self, why: str, paths: Sequence[bytes] = ()) -> None:
        super().__init__(why)
        self.paths = tuple(paths)


class FolderChanges:
    """What a cassette changes in the folder of a turn."""

    def __init__(self, folder: str, lines: Sequence[FileLine]) -> None:
        """`folder`: an absolute path without links. Raises `WorkspaceError` if something else is there than before the
        recorded turn.
        """
        self._folder = folder
        self._contents: dict[str, bytes] = {}
        differing: list[bytes] = []
        self._changes: list[FileChange] = []
        try:
            for line in lines:
                change = self._change(line)
                if change is None:
                    differing.append(line.path)
                else:
                    self._changes.append(change)
            differing += differing_paths(self._folder, self._changes, exact_modes=False)
        except OSError as error:
            raise WorkspaceError(f"the folder cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise WorkspaceError(str(error)) from error
        if differing:
            raise _differs(differing)

    def write(self) -> None:
        """Writes the changes, all or none. Raises `WorkspaceError`."""
        try:
            differing = write_changes(self._folder, self._changes, self._content_of, exact_modes=False)
        except PartlyWrittenError as error:
            raise WorkspaceError(str(error), error.paths) from error
        except OSError as error:
            raise WorkspaceError(f"the folder cannot be written: {error.strerror}") from error
        if differing:
            raise _differs(differing)

    def _content_of(self, state: FileState) -> list[bytes]:
        return [self._contents[state.digest]]

    def _change(self, line: FileLine) -> FileChange | None:
        """Returns the change of a line; None if the content that it changes is not there."""
        was, before, after = line.before, None, None
        if was is not None:
            before = FileState("link" if line.was_link else "file", was.digest, was.size, _mode_of(was.mode))
        if line.target is not None:
            after = self._kept(line.target, "link", None)
        elif line.mode is not None:
            content = self._content_after(line, before)
            if content is None:
                return None
            after = self._kept(content, "file", line.mode)
        return FileChange(line.path, before, after)

    def _kept(self, content: bytes, kind: Literal["file", "link"], mode: str | None) -> FileState:
        digest = digest_of(content)
        self._contents[digest] = content
        return FileState(kind, digest, len(content), _mode_of(mode))

    def _content_after(self, line: FileLine, before: FileState | None) -> bytes | None:
        if line.text is not None:
            return line.text.encode()
        if line.base64 is not None:
            return base64.b64decode(line.base64)
        old = None if before is None else content_at(self._folder, line.path, before)
        if old is None or line.patch is None:
            return old
        return _patched(old, line.patch)


def _mode_of(text: str | None) -> int:
    return 0o644 if text is None else int(text, 8)


def _patched(old: bytes, patch: ChangedLines) -> bytes | None:
    lines, removed = old.split(b"\n"), patch.removed_text.encode()
    start = sum(len(line) + 1 for line in lines[: patch.line - 1])
    if old[start : start + len(removed)] != removed:
        return None
    return old[:start] + patch.added_text.encode() + old[start + len(removed) :]


def _differs(paths: Sequence[bytes]) -> WorkspaceError:
    shown = ", ".join(map(shown_path, sorted(set(paths))[:MAX_SHOWN]))
    more = len(set(paths)) - MAX_SHOWN
    return WorkspaceError(f"something else is at {shown}" + (f" and {more} more" if more > 0 else ""), paths)
