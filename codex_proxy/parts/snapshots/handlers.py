"""The handlers of the files of turns. They raise `Fault`: NOT_FOUND for what does not exist or is another key's,
CONFLICT, NOT_ALLOWED for a key that may not write. Source: docs/snapshots.md.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.shown_text import escape
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.middleware.request_context import NOTES
from codex_proxy.parts.sessions.records import TURN, not_found
from codex_proxy.parts.sessions.request_values import id_in, sessions_at
from codex_proxy.parts.sessions.sessions import SessionTurn
from codex_proxy.parts.snapshots.difference import shown_changes
from codex_proxy.parts.snapshots.git import GitError
from codex_proxy.parts.snapshots.keeper import Keeper, in_thread
from codex_proxy.parts.snapshots.records import TurnFiles
from codex_proxy.parts.snapshots.wire import PathChange, TurnChanges

KEEPER: Final = web.AppKey("keeper", Keeper)
"""Not set if the server keeps no files of turns."""
CUT_OFF: Final = "the server ended before the turn did"


async def retrieve_turn_changes(request: web.Request) -> web.Response:
    """Returns what a turn has done to the files of its folder."""
    turn = await _turn(request)
    files = await _files(request, turn)
    if files is None or files.state != "kept":
        return json_response(_changes(turn, files, [], truncated=False))
    data, truncated = await in_thread(lambda: _compared(request.app[KEEPER], files))
    return json_response(_changes(turn, files, data, truncated=truncated))


async def _turn(request: web.Request) -> SessionTurn:
    sessions, owner = sessions_at(request)
    session, id = id_in(request), request.match_info["turn_id"]
    request[NOTES] |= {"session": session}
    turn = await sessions.store.get(owner, TURN, id)
    if turn.session != session:
        raise not_found(TURN, id)
    return turn


async def _files(request: web.Request, turn: SessionTurn) -> TurnFiles | None:
    """Returns what is kept of a turn, if anything."""
    keeper = request.app.get(KEEPER)
    if keeper is None:
        return None
    _, owner = sessions_at(request)
    files = await keeper.files(owner, turn.id)
    if files is not None and files.state == "running" and not keeper.works_on(turn.id):
        sessions, _ = sessions_at(request)
        again = await sessions.store.get(owner, TURN, turn.id)
        if again.completed_at is not None:
            return replace(files, state="failed", reason=CUT_OFF)
    return files


def _compared(keeper: Keeper, files: TurnFiles) -> tuple[list[PathChange], bool]:
    git = keeper.snapshots_of(files.place).git
    try:
        with git.reader() as reader:
            return shown_changes(git, reader, files.before, files.after)
    except (GitError, OSError) as error:
        raise Fault(Failure(FaultKind.INTERNAL, f"The files of the turn cannot be read: {error}.")) from error


def _changes(
    turn: SessionTurn, files: TurnFiles | None, data: list[PathChange], *, truncated: bool
) -> TurnChanges:
    return TurnChanges(
        object="turn.changes",
        session_id=turn.session,
        turn_id=turn.id,
        before=(files.before or None) if files else None,
        after=(files.after or None) if files else None,
        state=files.state if files else "off",
        reason=(files.reason or None) if files else None,
        others_wrote=files.others_wrote if files else False,
        newly_ignored=_shown(files.newly_ignored) if files else [],
        left_out=_shown(files.left_out) if files else [],
        truncated=truncated,
        data=data,
    )


def _shown(paths: tuple[bytes, ...]) -> list[str]:
    return [escape(path.decode("utf-8", "surrogateescape")) for path in paths[:100]]
