"""Forks with files: a folder gets the files that another one had before or after a turn."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Final

import structlog
from msgspec.structs import replace

from codex_proxy.admission.clients import Client, refuse_protected, resolve_workdir
from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import escape, excerpt
from codex_proxy.core.turn import Turn
from codex_proxy.parts.sessions.files_of_turns import Point
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.parts.snapshots.difference import differences, file_changes, write_files
from codex_proxy.parts.snapshots.folders import FolderSnapshots
from codex_proxy.parts.snapshots.git import GitError, write_fault
from codex_proxy.parts.snapshots.keeper import Keeper, ref_of
from codex_proxy.parts.snapshots.records import TurnFiles
from codex_proxy.parts.snapshots.threads import in_thread
from codex_proxy.parts.snapshots.walk import SnapshotError
from codex_proxy.store.values import StoreUnavailable

log = structlog.get_logger(__name__)

FIELD: Final = "folder"
FORKED: Final = "the session was forked while the turn went on"
NOT_COPIED: Final = "the files could not be kept for the fork, and the server's log says why"


class FilesOfForks:
    """Serves the forks of sessions (`sessions.files_of_turns.FilesOfTurns`)."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    @contextlib.asynccontextmanager
    async def placed(
        self, owner: str, client: Client, session: Session, points: Sequence[Point], folder: str
    ) -> AsyncIterator[str]:
        if session.environment.get("type") != "self_hosted":
            raise bad_request("The session has no folder: leave 'folder' out.", FIELD)
        snapshots, tree, _ = await kept_at(self._keeper, owner, points, FIELD)
        path, is_new = await in_thread(partial(_make_empty, client, session, folder))
        try:
            await self._keeper.write_in(path, partial(write_tree, snapshots, tree, path))
        except (GitError, OSError, SnapshotError) as error:
            if is_new:
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            if isinstance(error, SnapshotError):
                raise bad_request(f"'folder' must be a new or empty folder: {error}.", FIELD) from None
            raise write_fault("The files cannot be written", error) from error
        try:
            yield path
        except BaseException:
            await self._keeper.write_in(path, partial(_remove_tree, snapshots, tree, path, itself=is_new))
            raise

    async def copy(self, owner: str, turns: Iterable[tuple[str, str]], folder: str | None) -> None:
        copies: dict[str, list[TurnFiles]] = {}
        for turn, copy in turns:
            try:
                files = await self._keeper.files(owner, turn)
            except StoreUnavailable as error:
                log.warning("snapshot_failed", when="fork", reason=str(error))
                continue
            if files is not None:
                copied = replace(files, turn=copy, folder=files.folder if folder is None else folder)
                copies.setdefault(files.place, []).append(copied)
        for place, each in copies.items():
            await self._keeper.write(owner, *await self._with_refs(place, each))

    async def _with_refs(self, place: str, copies: Sequence[TurnFiles]) -> list[TurnFiles]:
        """Keeps the trees of copied turns, and returns what is to be stored of them. All refs are set at once, since
        each start of git takes longer than the rest; half of them each if a tree is gone.
        """
        refs: dict[str, str | None] = {}
        for each in copies:
            if each.state == "kept":
                refs |= {ref_of(each.turn, "before"): each.before, ref_of(each.turn, "after"): each.after}
        reason = FORKED
        try:
            if refs:
                await in_thread(partial(self._keeper.snapshots_of(place).set_refs, refs))
        except (GitError, OSError, SnapshotError) as error:
            if isinstance(error, GitError) and (half := len(copies) // 2):
                return [
                    *await self._with_refs(place, copies[:half]),
                    *await self._with_refs(place, copies[half:]),
                ]
            log.warning("snapshot_failed", when="fork", reason=str(error))
            refs, reason = {}, NOT_COPIED
        return [
            each
            if ref_of(each.turn, "after") in refs
            else replace(each, state="failed", before="", after="", reason=each.reason or reason)
            for each in copies
        ]


async def kept_at(
    keeper: Keeper, owner: str, points: Sequence[Point], field: str
) -> tuple[FolderSnapshots, str, Sequence[bytes]]:
    """Returns the snapshots that have the files of the first point whose turn could write, their tree, and the paths
    without a copy. Raises `Fault` with the field.
    """
    for point in points:
        files = await keeper.files(owner, point.turn)
        if files is None:
            continue  # a turn that could not write: the files are those of the point before
        tree = files.before if point.when == "before" else files.after if files.state == "kept" else ""
        if not tree:
            reason = files.reason or "the turn is at work"
            message = f"The files of the moment {point.when} the turn '{point.turn}' are not kept: {reason}."
            raise bad_request(message, field)
        return keeper.snapshots_of(files.place), tree, files.left_out
    message = "No files are kept of this point of the session. GET .../turns/{id}/changes says why."
    raise bad_request(message, field)


def check_may_write(session: Session | None, client: Client, folder: str, field: str) -> None:
    """Raises `Fault` if a client may not write in a folder, with the session's rights if there is one: NOT_ALLOWED, or
    INVALID_REQUEST with the field.
    """
    sandbox = client.settings.sandbox
    if session is not None:
        sandbox = session.sandbox_below(sandbox)
    if sandbox == "read-only":
        raise Fault.of(FaultKind.NOT_ALLOWED, "This API key may not write in the folders of its turns.")
    asked = Turn(model="", history=(), workdir=folder, sandbox=sandbox)
    if resolve_workdir(asked, field, client.workspace).workdir != folder:
        raise bad_request("The folder was replaced by a link.", field)


def _make_empty(client: Client, session: Session, folder: str) -> tuple[str, bool]:
    """Makes a folder, or finds that it is empty. Returns its path without links, and whether it is new. Raises
    `Fault`.
    """
    if not os.path.isabs(folder) or "\0" in folder:
        raise bad_request("'folder' must be the absolute path of a new or empty folder.", FIELD)
    above, name = os.path.split(os.path.normpath(folder))
    above = os.path.realpath(above)
    path = os.path.join(above, name)
    is_there = os.path.isdir(path) and not os.path.islink(path)
    check_may_write(session, client, path if is_there else above, FIELD)
    if session.sandbox_below(client.settings.sandbox) == "workspace-write":
        refuse_protected(path, FIELD, client.workspace)
    try:
        is_new = _is_made(path)
        is_empty = not os.path.islink(path) and not os.listdir(path)
    except OSError as error:
        raise bad_request(f"'folder' cannot be made: {error.strerror}.", FIELD) from None
    if not is_empty:
        raise bad_request("'folder' must be a new or empty folder: this one has files.", FIELD)
    check_may_write(session, client, path, FIELD)
    return path, is_new


def _is_made(path: str) -> bool:
    try:
        os.mkdir(path, 0o777)  # as the folders around it, by the umask: it is the user's
    except FileExistsError:
        return False
    return True


def write_tree(snapshots: FolderSnapshots, tree: str, folder: str) -> None:
    """Writes the files of a tree into an empty folder. Raises `SnapshotError` if two names are one there, or somebody
    else writes there, `GitError`, and `OSError`.
    """
    with snapshots.git.reader() as reader:
        differing = write_files(reader, folder, file_changes(reader, differences(reader, "", tree)))
    if differing:
        name = excerpt(escape(os.fsdecode(differing[0])))
        raise SnapshotError(f"'{name}' is there already, perhaps with another case of its letters")


def _remove_tree(snapshots: FolderSnapshots, tree: str, folder: str, *, itself: bool) -> None:
    """Removes the files of a tree from a folder, unless somebody has changed one of them. `itself`: the folder, too, if
    it is empty then.
    """
    try:
        with snapshots.git.reader() as reader:
            write_files(reader, folder, file_changes(reader, differences(reader, tree, "")))
        if itself:
            os.rmdir(folder)
    except (GitError, OSError) as error:
        log.warning("fork_not_removed", reason=str(error))
