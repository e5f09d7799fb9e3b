"""The handlers of the files of turns. They raise `Fault`: NOT_FOUND for what does not exist or is another key's,
CONFLICT, NOT_ALLOWED for a key that may not write. Source: docs/snapshots.md.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.faults import MAX_MESSAGE, Failure, Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import escape, excerpt
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.listing import list_object
from codex_proxy.http.middleware.request_context import CLIENT, NOTES
from codex_proxy.parts.sessions.commands import conflict, require_active
from codex_proxy.parts.sessions.records import TURN, not_found
from codex_proxy.parts.sessions.request_values import id_in, page_in, parse, sessions_at
from codex_proxy.parts.snapshots import wire
from codex_proxy.parts.snapshots.difference import FilesDifferError, shown_changes
from codex_proxy.parts.snapshots.difference import patch as patch_of
from codex_proxy.parts.snapshots.folders import FolderName
from codex_proxy.parts.snapshots.forking import check_may_write
from codex_proxy.parts.snapshots.git import GitError
from codex_proxy.parts.snapshots.keeper import CUT_OFF, Keeper
from codex_proxy.parts.snapshots.records import KIND, TurnFiles, files_in, record_id
from codex_proxy.parts.snapshots.reverting import revert
from codex_proxy.parts.snapshots.threads import in_thread
from codex_proxy.parts.snapshots.walk import MAX_LEFT_OUT, SnapshotError
from codex_proxy.parts.snapshots.wire import PathChange, TurnChanges
from codex_proxy.store.health import require_store, store_errors_as_faults
from codex_proxy.store.values import NotStored, PageRequest

log = structlog.get_logger(__name__)

KEEPER: Final = web.AppKey("keeper", Keeper)
"""Not set if the server keeps no files of turns."""
MAX_NAMED: Final = 20
"""Maximum paths that an error names."""
MAX_REVERTED: Final = 1000
"""Maximum paths of an answer."""
MAX_SEARCHED: Final = 1000
"""Maximum turns among which those of a request are found."""
UNWRITABLE: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT})
"""The errors of a folder or disk that takes no files: its owner can change that."""
MAX_PATCH: Final = 32 << 20
"""Maximum bytes of a patch."""
PATCH_TYPE: Final = "text/x-patch"


class _Asked(NamedTuple):
    """A turn that a request names. `session`: None outside of sessions; `files`: what is kept of it, if anything."""

    id: str
    session: str | None
    files: TurnFiles | None


async def list_kept_turns(request: web.Request) -> web.Response:
    """Lists the turns outside of sessions whose files were to be kept.

    With `request_id` those of this request, among the newest 1,000.
    """
    keeper, (sessions, owner) = request.app.get(KEEPER), sessions_at(request)
    asked, wanted = page_in(request), request.query.get("request_id")
    if keeper is None:
        return json_response(list_object([], has_more=False))
    page = replace(asked, after=asked.after and record_id(asked.after))
    if wanted is not None:
        page = PageRequest(MAX_SEARCHED, "desc")
    with store_errors_as_faults():
        try:
            found = await require_store(sessions.responses.store).records(owner, KIND, page)
        except NotStored:
            raise bad_request("There is no such turn. Leave 'after' out.", "after") from None
    turns = [(record, files_in(record)) for record in found.items]
    if wanted is not None:
        turns = [each for each in turns if each[1].request == wanted]
    data: list[Any] = [
        _kept_turn(await _with_end(keeper, owner, files), record.created) for record, files in turns
    ]
    return json_response(list_object(data, has_more=found.has_more and wanted is None))


def _kept_turn(files: TurnFiles, created: float) -> wire.KeptTurn:
    return wire.KeptTurn(
        id=files.turn,
        object="turn",
        request_id=files.request or "",
        folder=escape(files.folder),
        created_at=int(created),
        state=files.state,
        reason=files.reason or None,
    )


async def retrieve_turn_changes(request: web.Request) -> web.Response:
    """Returns what a turn has done to the files of its folder."""
    turn = await _turn(request)
    files = turn.files
    if files is None or files.state != "kept":
        return json_response(_changes(turn, [], truncated=False))
    data, truncated = await in_thread(lambda: _compared(request.app[KEEPER], files))
    return json_response(_changes(turn, data, truncated=truncated))


async def _turn(request: web.Request) -> _Asked:
    sessions, owner = sessions_at(request)
    id, keeper = request.match_info["turn_id"], request.app.get(KEEPER)
    if "id" not in request.match_info:
        return await _turn_alone(request, id)
    session = id_in(request)
    request[NOTES] |= {"session": session}
    turn = await sessions.store.get(owner, TURN, id)
    if turn.session != session:
        raise not_found(TURN, id)
    files = None if keeper is None else await keeper.files(owner, id)
    if keeper is not None and files is not None and files.state == "running" and not keeper.works_on(id):
        again = await sessions.store.get(owner, TURN, id)
        if again.completed_at is not None:
            files = replace(files, state="failed", reason=CUT_OFF)
    return _Asked(id, session, files)


async def _turn_alone(request: web.Request, id: str) -> _Asked:
    keeper, (_, owner) = request.app.get(KEEPER), sessions_at(request)
    files = None if keeper is None else await keeper.files(owner, id)
    if keeper is None or files is None or files.request is None:
        raise not_found(TURN, id)
    return _Asked(id, None, await _with_end(keeper, owner, files))


async def _with_end(keeper: Keeper, owner: str, files: TurnFiles) -> TurnFiles:
    with store_errors_as_faults():
        return await keeper.with_end(owner, files)


async def retrieve_session_patch(request: web.Request) -> web.Response:
    """Returns what the turns of a session have done to the files of its folder, as a patch for `git apply`."""
    sessions, owner = sessions_at(request)
    session, keeper = await sessions.session(owner, id_in(request)), request.app.get(KEEPER)
    request[NOTES] |= {"session": session.id}
    kept: list[TurnFiles] = []
    for turn in await sessions.store.all_turns(owner, session.id):
        files = None if keeper is None else await keeper.files(owner, turn.id)
        if files is not None and files.state == "kept":
            kept.append(files)
    if keeper is None or not kept:
        raise conflict("The files of this session's turns are not kept.")
    last = kept[-1]
    first = next(
        each for each in kept if each.place == last.place
    )  # a fork's earlier turns are of another folder
    git = keeper.snapshots_of(last.place).git
    try:
        patch = await in_thread(partial(patch_of, git, first.before, last.after, MAX_PATCH))
    except OverflowError:
        raise conflict(
            f"The patch has more than {MAX_PATCH >> 20} MiB. GET .../changes has each turn's."
        ) from None
    except (GitError, OSError) as error:
        raise _unreadable(error) from error
    return web.Response(body=patch, content_type=PATCH_TYPE)


async def revert_turn(request: web.Request) -> web.Response:
    """Makes the paths that a turn has changed what they were before it. Refused, with their names, for those that were
    changed since.

    `force`: they are overwritten, and a snapshot keeps what was there.
    """
    given, _ = await parse(request, wire.RevertBody)
    turn = await _turn(request)
    files = turn.files
    if files is None or files.state != "kept":
        raise conflict("The files of this turn are not kept. GET .../changes says why.")
    keeper, (_, owner) = request.app[KEEPER], sessions_at(request)
    snapshots = keeper.snapshots_of(files.place)
    own = keeper.snapshots_of(FolderName(owner, files.folder).place)
    work = partial(revert, snapshots, own, keeper.limits, files, owner, force=given.force)
    await keeper.rest(files.folder)
    await _check_may_write(request, turn, files)
    try:
        done = await keeper.write_in(files.folder, work)  # no turn begins between the check and this
    except FilesDifferError as error:
        raise _changed_since(error.paths, force=given.force) from None
    except SnapshotError as error:
        raise conflict(f"What would be overwritten cannot be kept: {error}.") from None
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise _unreadable(error) from error
        raise conflict(f"The files of the turn cannot be written: {error.strerror}.") from None
    except GitError as error:
        raise _unreadable(error) from error
    log.info("turn_reverted", session=turn.session, turn=turn.id, files=len(done.paths))
    reverted = wire.TurnReverted(
        object="turn.reverted",
        session_id=turn.session,
        turn_id=turn.id,
        paths=shown_paths(done.paths, MAX_REVERTED),
        truncated=len(done.paths) > MAX_REVERTED,
        kept=done.kept or None,
    )
    return json_response(reverted)


async def retrieve_kept_turn_changes(request: web.Request) -> web.Response:
    """Returns what a turn outside of sessions has done to the files of its folder."""
    return await retrieve_turn_changes(request)


async def revert_kept_turn(request: web.Request) -> web.Response:
    """Makes the paths that a turn outside of sessions has changed what they were before it, as one of a session."""
    return await revert_turn(request)


async def _check_may_write(request: web.Request, turn: _Asked, files: TurnFiles) -> None:
    """Raises `Fault` if a turn is at work in the folder, or the key may not write there."""
    sessions, owner = sessions_at(request)
    session = None if turn.session is None else await sessions.session(owner, turn.session)
    # Nothing is awaited from here on, so that no turn begins before its caller writes.
    if session is not None:
        require_active(session)
    if (session is not None and session.turn) or request.app[KEEPER].is_working_in(files.folder):
        raise conflict("A turn is at work in the folder. Try again when it has ended.")
    check_may_write(session, request[CLIENT], files.folder, "environment.workspace_directory")


def _changed_since(paths: Sequence[bytes], *, force: bool) -> Fault:
    advice = "" if force else " `force` overwrites them, and keeps what is there."
    message = f"Not as the turn has left them: {named(paths)}. Nothing was changed.{advice}"
    return Fault(Failure(FaultKind.CONFLICT, excerpt(message, MAX_MESSAGE), param="force"))


def _unreadable(error: Exception) -> Fault:
    return Fault(Failure(FaultKind.INTERNAL, f"The files of the turn cannot be read or written: {error}."))


def _compared(keeper: Keeper, files: TurnFiles) -> tuple[list[PathChange], bool]:
    git = keeper.snapshots_of(files.place).git
    try:
        with git.reader() as reader:
            return shown_changes(git, reader, files.before, files.after)
    except (GitError, OSError) as error:
        raise _unreadable(error) from error


def _changes(turn: _Asked, data: list[PathChange], *, truncated: bool) -> TurnChanges:
    files = turn.files
    return TurnChanges(
        object="turn.changes",
        session_id=turn.session,
        turn_id=turn.id,
        before=(files.before or None) if files else None,
        after=(files.after or None) if files else None,
        state=files.state if files else "off",
        reason=(files.reason or None) if files else None,
        others_wrote=files.others_wrote if files else False,
        newly_ignored=shown_paths(files.newly_ignored) if files else [],
        left_out=shown_paths(files.left_out) if files else [],
        truncated=truncated or (files is not None and is_cut(files.newly_ignored, files.left_out)),
        data=data,
    )


def shown_paths(paths: Sequence[bytes], most: int = MAX_LEFT_OUT) -> list[str]:
    """Returns the first paths of some, as texts."""
    return [escape(os.fsdecode(path)) for path in paths[:most]]


def is_cut(*lists: Sequence[bytes]) -> bool:
    """Whether `shown_paths` leaves out a path of one of these."""
    return any(len(paths) > MAX_LEFT_OUT for paths in lists)


def named(paths: Sequence[bytes]) -> str:
    """Returns the first `MAX_NAMED` paths for a message, with how many more there are."""
    more = f" and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else ""
    return ", ".join(shown_paths(paths, MAX_NAMED)) + more
