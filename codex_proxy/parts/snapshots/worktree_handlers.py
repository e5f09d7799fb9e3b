"""The handlers of sessions' worktrees. They raise `Fault`: NOT_FOUND for what does not exist or is another key's,
CONFLICT, NOT_ALLOWED for a key that may not write. Source: docs/snapshots.md#worktrees.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.faults import MAX_MESSAGE, Failure, Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.http.body import name_ignored
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.middleware.request_context import CLIENT, NOTES
from codex_proxy.parts.sessions.commands import conflict, require_active
from codex_proxy.parts.sessions.request_values import id_in, parse, sessions_at
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.parts.snapshots import wire
from codex_proxy.parts.snapshots.difference import FilesDifferError
from codex_proxy.parts.snapshots.folders import FolderName, FolderSnapshots
from codex_proxy.parts.snapshots.forking import check_may_write
from codex_proxy.parts.snapshots.git import GitError, write_fault
from codex_proxy.parts.snapshots.handlers import KEEPER, MAX_REVERTED, is_cut, named, shown_paths
from codex_proxy.parts.snapshots.merging import Merged, merge, work_in
from codex_proxy.parts.snapshots.records import Worktree, worktree_of
from codex_proxy.parts.snapshots.repositories import (
    BranchExistsError,
    NoRepositoryError,
    UnusableRepositoryError,
    can_take_branches,
    commit_to_branch,
    is_branch_name,
)
from codex_proxy.parts.snapshots.threads import in_thread
from codex_proxy.parts.snapshots.walk import SnapshotError
from codex_proxy.parts.snapshots.worktrees import FIELD, ref_of, worktrees_in
from codex_proxy.store.health import require_store, store_errors_as_faults
from codex_proxy.store.values import NotStored

log = structlog.get_logger(__name__)

NO_WORKTREE: Final = "This session has no worktree: it works in the folder itself."


async def retrieve_session_worktree(request: web.Request) -> web.Response:
    """Returns the worktree of a session: the folder in which it works, and the one of which that was made."""
    session, worktree = await _worktree(request)
    found = wire.SessionWorktree(
        object="session.worktree",
        session_id=session.id,
        folder=worktree.folder,
        source=worktree.source,
        repository=await in_thread(partial(can_take_branches, request.app[KEEPER].program, worktree.source)),
        left_out=shown_paths(worktree.left_out),
        truncated=is_cut(worktree.left_out),
    )
    return json_response(found)


async def merge_session(request: web.Request) -> web.Response:
    """Brings what was done in a session's worktree into the folder of which that was made. Refused, with the paths, if
    that has other changes of the same lines; then nothing is written.

    `branch`: a new branch of the folder's repository gets it instead, as one commit with the `message`.
    """
    given, _ = await parse(request, wire.MergeBody)
    branch = given.branch
    if branch is not None and not is_branch_name(branch):
        raise bad_request("'branch' must be a name that a branch of git can have, in ASCII.", "branch")
    if given.message is not None and "\0" in given.message:
        raise bad_request("'message' must not have the character U+0000.", "message")
    if given.message is not None and branch is None:
        name_ignored(request, ["message"])
    (sessions, owner), id = sessions_at(request), id_in(request)
    _, worktree = await _worktree(request)
    told: list[wire.SessionMerged] = []

    async def work() -> None:
        # Several sessions may work in one folder: what is merged is merged for all of them.
        async with sessions.changing(owner, f"{worktree.folder}/merge"):
            await request.app[KEEPER].rest(worktree.folder)
            await request.app[KEEPER].rest(worktree.source)
            session, now = await _worktree(request)
            _check(request, session, now)
            told.append(await _Merging(request, session, now).do(branch, given.message or f"Session {id}"))

    await sessions.run(work())
    [answer] = told
    return json_response(answer)


async def _worktree(request: web.Request) -> tuple[Session, Worktree]:
    sessions, owner = sessions_at(request)
    session = await sessions.session(owner, id_in(request))
    request[NOTES] |= {"session": session.id}
    found = None
    if KEEPER in request.app:
        with store_errors_as_faults():
            found = await worktree_of(require_store(sessions.responses.store), owner, session.id)
    if found is None:
        raise Fault.of(FaultKind.NOT_FOUND, NO_WORKTREE)
    return session, found


def _check(request: web.Request, session: Session, worktree: Worktree) -> None:
    """Raises `Fault` if a turn is at work in one of the folders, or the key may not write in that of which the worktree
    was made.
    """
    require_active(session)
    keeper = request.app[KEEPER]
    if session.turn or keeper.is_working_in(worktree.folder):
        raise conflict("A turn is at work in the worktree. Try again when it has ended.")
    if keeper.is_working_in(worktree.source):
        raise conflict(f"A turn is at work in {worktree.source}. Try again when it has ended.")
    if not os.path.isdir(worktree.source):
        raise conflict(
            f"The folder {worktree.source} is gone. Make it again, or work on in {worktree.folder}."
        )
    check_may_write(session, request[CLIENT], worktree.source, FIELD)


class _Merging:
    def __init__(self, request: web.Request, session: Session, worktree: Worktree) -> None:
        sessions, self._owner = sessions_at(request)
        self._keeper, self._store = request.app[KEEPER], require_store(sessions.responses.store)
        self._session, self._worktree, self._now = session, worktree, sessions.epoch()
        self._own = self._snapshots_of(worktree.folder)

    def _snapshots_of(self, folder: str) -> FolderSnapshots:
        return self._keeper.snapshots_of(FolderName(self._owner, folder).place)

    async def do(self, branch: str | None, message: str) -> wire.SessionMerged:
        """Merges into the folder, or into a branch. Returns what was done."""
        merged, commit = await self._merged(branch, message)
        log.info(
            "session_merged", session=self._session.id, files=len(merged.paths), branch=branch is not None
        )
        return wire.SessionMerged(
            object="session.merged",
            session_id=self._session.id,
            source=self._worktree.source,
            paths=shown_paths(merged.paths, MAX_REVERTED),
            branch=branch if commit else None,
            commit=commit or None,
            kept=merged.kept or None,
            left_out=shown_paths(merged.left_out),
            truncated=len(merged.paths) > MAX_REVERTED or is_cut(merged.left_out),
        )

    async def _merged(self, branch: str | None, message: str) -> tuple[Merged, str]:
        """Returns also the commit of the branch."""
        worktree = self._worktree
        try:
            if branch is None:
                merged, commit = await self._into_folder(), ""
            else:
                work = partial(self._into_branch, branch, message)
                merged, commit = await self._keeper.write_in(worktree.source, work, worktree.folder)
        except FilesDifferError as error:
            raise _conflicts(error.paths, worktree.source) from None
        except NoRepositoryError:
            message = f"{worktree.source} is not the root of a git repository of its own."
            raise Fault(Failure(FaultKind.CONFLICT, message, param="branch")) from None
        except BranchExistsError:
            message = (
                "The repository has or will have such a branch, or has one in its way: give another name."
            )
            raise Fault(Failure(FaultKind.CONFLICT, message, param="branch")) from None
        except SnapshotError as error:
            raise conflict(f"The files cannot be read: {error}.") from None
        except UnusableRepositoryError as error:
            message = f"The repository in {worktree.source} can have no branch: {error}. Leave 'branch' out."
            raise Fault(Failure(FaultKind.CONFLICT, excerpt(message, MAX_MESSAGE), param="branch")) from None
        except (GitError, OSError) as error:
            raise write_fault("The session cannot be merged", error) from error
        return merged, commit

    async def _into_folder(self) -> Merged:
        session, limits, worktree = self._session.id, self._keeper.limits, self._worktree
        which, there = f"merged-{time.time_ns()}", self._snapshots_of(worktree.source)

        def work() -> Merged:
            done = work_in(self._own, limits, self._owner, worktree, ref_of(session, which))
            before = ref_of(session, "before-merge")
            return merge(self._own, there, limits, self._owner, worktree, done, before)

        merged = await self._keeper.write_in(worktree.source, work, worktree.folder)
        with store_errors_as_faults():
            await self._note_base(merged.tree, which)
        return merged

    async def _note_base(self, tree: str, which: str) -> None:
        """Makes a tree, which such a ref keeps, the one from which on all sessions in the worktree are merged."""
        sharing = await worktrees_in(self._store, self._own, FolderName(self._owner, self._worktree.folder))
        kept = {ref_of(each.session, which): tree for each in sharing}
        old = [await in_thread(partial(self._own.git.refs, ref_of(each.session, ""))) for each in sharing]
        await in_thread(partial(self._own.set_refs, kept))
        for each in sharing:
            with contextlib.suppress(NotStored):  # the session was deleted meanwhile
                await self._store.write_records(self._owner, [replace(each, base=tree).record(self._now)])
        lost = {ref: None for refs in old for ref in refs if ref not in kept}
        await in_thread(partial(self._own.set_refs, lost))

    def _into_branch(self, branch: str, message: str) -> tuple[Merged, str]:
        ref = ref_of(self._session.id, "in-branch")
        done = work_in(self._own, self._keeper.limits, self._owner, self._worktree, ref)
        merged = Merged([each.path for each in done.changes], done.tree, "", done.left_out)
        if not done.changes:
            return merged, ""
        program, source = self._keeper.program, self._worktree.source
        return merged, commit_to_branch(program, source, self._own.git, done.changes, branch, message)


def _conflicts(paths: Sequence[bytes], source: str) -> Fault:
    message = (
        f"Changed otherwise in {source} meanwhile: {named(paths)}. Nothing was changed. Make them alike in the "
        "worktree, by the agent or by hand, and merge again; or merge into a `branch`, where git shows the conflict."
    )
    return Fault.of(FaultKind.CONFLICT, excerpt(message, MAX_MESSAGE))
