"""What a part that keeps the files of turns does for new sessions: for forks, and for those with a worktree."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, NamedTuple, Protocol

from aiohttp import web

from codex_proxy.admission.clients import Client
from codex_proxy.parts.sessions.sessions import Entry, Session
from codex_proxy.store.values import Record


class Point(NamedTuple):
    """A moment in a session."""

    turn: str
    when: Literal["before", "after"]


class FilesOfTurns(Protocol):
    def placed(
        self, owner: str, client: Client, session: Session, points: Sequence[Point], folder: str
    ) -> AbstractAsyncContextManager[str]:
        """Writes the files of a session's folder into the new or empty folder that the client names, as they were at
        the first of the points whose turn could write. Yields the folder's path without links; what was written is
        removed if something is raised there. Raises `Fault` with the field `folder`.
        """

    async def copy(self, owner: str, turns: Iterable[tuple[str, str]], folder: str | None) -> None:
        """Keeps the files of `turns` for copies of the turns, too, such as those in a fork. Each pair is the id of a
        turn and that of its copy. `folder`: the folder of the copied turns; None: the same folder.
        """


class NewWorktree(NamedTuple):
    """The worktree of a session that is not stored yet. `folder`: its path without links; `record`: what is stored with
    the session.
    """

    folder: str
    record: Record


class Worktrees(Protocol):
    """Makes folders in which sessions work, with the files of the folders that they were created for."""

    def made(
        self, client: Client, session: Session, points: Sequence[Point] | None = None
    ) -> AbstractAsyncContextManager[NewWorktree]:
        """Makes the worktree of a new session, with the files that its folder has. `points`: of a fork, which gets the
        files as they were at the first of them whose turn could write. What was made is removed if something is raised
        there. Raises `Fault`.
        """

    async def of_fork(self, owner: str, session: str, fork: str) -> list[Record]:
        """Returns what is stored with a fork that works in the folder of a session: it shares the worktree, if the
        session has one.
        """


WORKTREES: Final = web.AppKey("worktrees", Worktrees)
"""Not set if the server keeps no files."""
LIST_OF_ARTIFACTS: Final[web.AppKey[Callable[[web.Request], Awaitable[web.Response]]]] = web.AppKey(
    "list_of_artifacts"
)
"""The handler that lists the artifacts of a session. Not set if the server keeps none."""
FILES_OF_TURNS: Final = web.AppKey("files_of_turns", FilesOfTurns)
"""Not set if the server keeps none."""


def points_before(entries: Sequence[Entry], cut: int) -> list[Point]:
    """Returns the points in time from which a fork with the first `cut` entries may take its files, the best one first.

    Files are kept only before and after a whole turn. A fork that is cut within a turn gets the files from before it.
    """
    found = [Point(entries[cut].turn, "before")] if cut < len(entries) else []
    earlier = dict.fromkeys(entry.turn for entry in reversed(entries[:cut]))
    return found + [Point(turn, "after") for turn in earlier if not found or turn != found[0].turn]
