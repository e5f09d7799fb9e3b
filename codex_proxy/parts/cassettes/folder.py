"""Finds the cassette in a folder that answers a turn, or says what differs from the nearest one."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from codex_proxy.parts.cassettes.content import (
    CONTENT_FIELDS,
    MATCHED_FIELDS,
    MAX_DIFFERENCES,
    Content,
    differences,
    has_placeholders,
    key_of,
)
from codex_proxy.parts.cassettes.format import SUFFIX, Cassette, read
from codex_proxy.parts.cassettes.pieces import common_prefix_length
from codex_proxy.parts.cassettes.settings import CassetteError


def names_to_match(text: str) -> tuple[str, ...]:
    """Returns the fields that `--match` names. Raises `CassetteError` for an unknown one."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    wrong = [name for name in names if name not in CONTENT_FIELDS]
    if wrong:
        raise CassetteError(f"--match {wrong[0]} is not known. Name some of {', '.join(CONTENT_FIELDS)}.")
    return names


def paths_in(folder: Path) -> list[Path]:
    """Returns the files of cassettes in and below a folder, sorted. Raises `CassetteError` without the folder."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise CassetteError(
            f"There is no folder {folder}. Record into it first, with `codex-proxy serve --record {folder}`."
        )
    found, left = list[Path](), [str(folder)]
    try:
        while left:  # not by `rglob`, which calls itself for each folder
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.name.endswith(SUFFIX):
                        found.append(Path(entry.path))
                    elif entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
    except OSError as error:
        raise CassetteError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error
    return sorted(found)


class Folder:
    """The cassettes of a folder, read at the start; `refresh` reads those recorded since."""

    def __init__(self, path: Path, matched: Sequence[str] = (), *, may_be_missing: bool = False) -> None:
        """Reads the folder. `matched`: the fields by which a cassette is found; if empty, those that the recording
        names. Raises `CassetteError` if the folder is missing (unless it may be), or a
        cassette cannot be read.
        """
        self._may_be_missing = may_be_missing
        self.path = path
        self.matched = tuple(matched)
        self.cassettes: dict[str, Cassette] = {}
        """The cassettes by name, in order."""
        self._by_key: dict[bytes, list[str]] = defaultdict(list)
        self._played: dict[bytes, int] = defaultdict(int)
        self.refresh()

    def refresh(self) -> None:
        """Reads new cassettes."""
        base = self.path if self.path.is_dir() else self.path.parent
        paths = () if self._may_be_missing and not self.path.exists() else paths_in(self.path)
        names = {str(path.relative_to(base)).removesuffix(SUFFIX): path for path in paths}
        new = [name for name in names if name not in self.cassettes]
        for name in new:
            cassette = read(names[name])
            beside, _, _ = name.rpartition("/")
            after = f"{beside}/{cassette.after}" if beside and cassette.after else cassette.after
            self.cassettes[name] = msgspec.structs.replace(cassette, name=name, after=after)
        if not self.matched:
            recorded = {tuple(each.match) for each in self.cassettes.values() if each.match}
            self.matched = recorded.pop() if len(recorded) == 1 else MATCHED_FIELDS
        for name in new:
            self._by_key[key_of(self.cassettes[name].content, self.matched)].append(name)

    def chain(self, cassette: Cassette) -> list[Cassette]:
        """Returns the cassette, behind those in the folder whose session it continues."""
        found = [cassette]
        while found[0].after and found[0].after in self.cassettes and len(found) <= len(self.cassettes):
            found.insert(0, self.cassettes[found[0].after])
        return found

    def find(self, content: Content) -> Cassette | None:
        """Returns the next recording of a turn with this content, or the last one again after all were used; None
        without any.
        """
        key = key_of(content, self.matched)
        names = self._by_key.get(key) or [
            name
            for name, each in self.cassettes.items()
            if has_placeholders(each.content) and not differences(content, each.content, self.matched)
        ]
        if not names:
            return None
        nth = self._played[key]
        self._played[key] += 1
        return self.cassettes[names[min(nth, len(names) - 1)]]

    def describe_miss(self, content: Content) -> str:
        """Returns the error for a turn that no cassette answers: the nearest one, and the differences."""
        if not self.cassettes:
            return f"No cassette answers this request: {self.path.name} has none. Record it with --record-missing."
        text = _last_text(content)

        def distance(cassette: Cassette) -> tuple[int, int]:
            wrong = differences(content, cassette.content, self.matched)
            return len(wrong), -common_prefix_length(text, _last_text(cassette.content))

        nearest = min(self.cassettes.values(), key=distance)
        wrong = differences(content, nearest.content, self.matched)
        shown = "; ".join(map(str, wrong[:MAX_DIFFERENCES]))
        more = f"; and {len(wrong) - MAX_DIFFERENCES} more" if len(wrong) > MAX_DIFFERENCES else ""
        return (
            f"No cassette answers this request. The nearest is {nearest.name}, which differs in {shown}{more}. "
            "Record the request with --record-missing, or name in --match only what must be equal."
        )


def _last_text(content: Content) -> bytes:
    return str((content["messages"] or [{}])[-1].get("text", "")).encode("utf-8", "replace")
