"""What the store has of files: a record below each turn, with the ids of the trees before and after it, and one below
each session with a worktree.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from codex_proxy.store.store import Store
from codex_proxy.store.values import Record

KIND: Final = "turn_files"
"""The kind of the records."""


class TurnFiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The files of a turn. `before`, `after`: the ids of trees in the git directory `place`; empty: there is none."""

    turn: str
    folder: str
    """The absolute path of the folder."""
    place: str
    state: Literal["running", "kept", "failed"]
    before: str = ""
    after: str = ""
    reason: str = ""
    """Why there is none, or why something is missing, for people; empty if all is there."""
    others_wrote: bool = False
    """Whether another turn that may write worked in the folder meanwhile."""
    newly_ignored: tuple[bytes, ...] = ()
    """The changed paths that a `.gitignore` leaves out now, and did not before the turn."""
    left_out: tuple[bytes, ...] = ()
    """Paths that are in no tree: files that are too large, cannot be read, or are neither a file nor a link."""
    server: str = ""
    """The server that has begun it, or gone on with it: `NODE/ID`, with that of its node of the store."""
    request: str | None = None
    """The id of the request of a turn outside of sessions; None: it is a session's."""

    def record(self, now: float) -> Record:
        """Returns its record. `now`: seconds since 1970."""
        json = msgspec.json.encode(self)
        return Record(
            kind=KIND,
            id=record_id(self.turn),
            json=json,
            created=now,
            parent=self.turn if self.request is None else "",
        )


def record_id(turn: str) -> str:
    """Returns the id of the record of a turn."""
    return f"{turn}/files"


async def files_of(store: Store, owner: str, turn: str) -> TurnFiles | None:
    """Returns what the store has of a turn's files, if anything."""
    found = await store.record(owner, KIND, record_id(turn))
    return None if found is None else files_in(found)


def files_in(record: Record) -> TurnFiles:
    return msgspec.json.decode(record.json, type=TurnFiles)


WORKTREE: Final = "session_worktree"
"""The kind of the records of worktrees."""


class Worktree(msgspec.Struct, frozen=True, kw_only=True):
    """The worktree of a session. `base`: the tree, in the snapshots of the worktree's folder, with the files that it
    was made with, or that were last merged.
    """

    session: str
    folder: str
    source: str
    """The folder whose files it had in the beginning. Both are absolute paths without links."""
    base: str
    left_out: tuple[bytes, ...] = ()
    """Paths of the folder's files that it did not get: too large, not to be read, or neither a file nor a link."""

    def record(self, now: float) -> Record:
        """Returns its record. `now`: seconds since 1970."""
        json = msgspec.json.encode(self)
        id = f"{self.session}/worktree"
        return Record(kind=WORKTREE, id=id, json=json, created=now, parent=self.session)


async def worktree_of(store: Store, owner: str, session: str) -> Worktree | None:
    """Returns the worktree of a session, if it has one."""
    found = await store.record(owner, WORKTREE, f"{session}/worktree")
    return None if found is None else msgspec.json.decode(found.json, type=Worktree)
