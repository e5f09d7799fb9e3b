"""Worktrees: a session works in a folder of its own, with a copy of the files of the folder that it was created for, so
that several agents can work on the same files at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from msgspec.structs import replace

from codex_proxy.admission.clients import Client, resolve_workdir
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.turn import Turn
from codex_proxy.files.private import make_folder
from codex_proxy.parts.sessions.commands import conflict
from codex_proxy.parts.sessions.files_of_turns import NewWorktree, Point
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.parts.snapshots.folders import FolderName, FolderSnapshots, names_in
from codex_proxy.parts.snapshots.forking import check_may_write, kept_at, write_tree
from codex_proxy.parts.snapshots.git import GitError, write_fault
from codex_proxy.parts.snapshots.keeper import REF_OF_WORKTREES, SNAPSHOT_SECONDS, Keeper, id_in
from codex_proxy.parts.snapshots.records import Worktree, worktree_of
from codex_proxy.parts.snapshots.repositories import exclusions_of, make_repository
from codex_proxy.parts.snapshots.threads import in_thread
from codex_proxy.parts.snapshots.walk import NotKeptError, SnapshotError
from codex_proxy.store.store import Store
from codex_proxy.store.values import Record
from codex_proxy.surfaces.requests.options import WORKTREE_HEADER

log = structlog.get_logger(__name__)

FIELD: Final = "environment.workspace_directory"
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_NAME: Final = 40
_MACHINE: Final = "machine"
"""The name of the link that names the machine."""


class SessionWorktrees:
    """Makes the worktrees of sessions (`sessions.files_of_turns.Worktrees`), and removes those of deleted ones."""

    def __init__(self, keeper: Keeper, store: Store, root: str) -> None:
        """`root`: the folder of all worktrees, an absolute path without links."""
        self._keeper, self._store, self._root = keeper, store, root
        self._lost: set[str] = set()
        """The folders that belonged to no session when that was last looked at."""

    @contextlib.asynccontextmanager
    async def made(
        self, client: Client, session: Session, points: Sequence[Point] | None = None
    ) -> AsyncIterator[NewWorktree]:
        of_source = await worktree_of(self._store, client.name, session.forked_from)
        wanted = session.environment["workspace_directory"] if of_source is None else of_source.source
        asked = Turn(model="", history=(), workdir=wanted)
        source = resolve_workdir(asked, FIELD, client.workspace).workdir
        if session.sandbox == "read-only" != client.settings.sandbox:
            message = f"A session whose sandbox is read-only has no worktree: leave the header {WORKTREE_HEADER} out."
            raise Fault(Failure(FaultKind.NOT_ALLOWED, message, param=WORKTREE_HEADER))
        check_may_write(session, client, source, FIELD)
        try:
            machine = await in_thread(partial(_named_machine, self._keeper.root))
        except OSError as error:
            raise write_fault("The worktree cannot be made", error) from error
        folder = os.path.join(client.workspace.own, _name_for(source, machine))
        try:
            try:
                base, left_out = await self._copy(client, session, source, folder, points)
            except (GitError, OSError, NotKeptError) as error:
                raise write_fault("The worktree cannot be made", error) from error
            except SnapshotError as error:
                raise conflict(f"The files of the folder cannot be copied: {error}.") from None
            worktree = Worktree(
                session=session.id, folder=folder, source=source, base=base, left_out=tuple(left_out)
            )
            yield NewWorktree(folder, worktree.record(session.created_at))
        except BaseException:
            await in_thread(partial(shutil.rmtree, folder, ignore_errors=True))
            raise

    async def _copy(
        self, client: Client, session: Session, source: str, folder: str, points: Sequence[Point] | None
    ) -> tuple[str, Sequence[bytes]]:
        """Makes the folder with the files of another one, as they are or were. Returns the tree of them, and the paths
        without a copy.
        """
        keeper, name = self._keeper, FolderName(client.name, source)
        if not await in_thread(keeper.has_room_for_worktrees):
            raise SnapshotError(
                "the snapshots of worktrees have too many bytes (PROXY_SNAPSHOT_MAX_TOTAL_BYTES); delete sessions "
                "with worktrees"
            )
        snapshots: FolderSnapshots
        left_out: Sequence[bytes]
        if points is None:
            await keeper.rest(source)
            kept = await keeper.take(name, [ref_of(session.id, "copied")], SNAPSHOT_SECONDS)
            snapshots, tree, left_out = keeper.snapshots_of(name.place), kept.tree, kept.not_kept
        else:
            snapshots, tree, left_out = await kept_at(keeper, client.name, points, WORKTREE_HEADER)

        def write() -> None:
            make_folder(Path(folder))
            write_tree(snapshots, tree, folder)
            make_repository(keeper.program, snapshots.git, tree, folder, exclusions_of(source))

        await keeper.write_in(folder, write)
        copy = await keeper.take(
            FolderName(client.name, folder), [ref_of(session.id, "base")], SNAPSHOT_SECONDS
        )
        check_may_write(session, client, folder, FIELD)
        return copy.tree, left_out

    async def of_fork(self, owner: str, session: str, fork: str) -> list[Record]:
        found = await worktree_of(self._store, owner, session)
        if found is None:
            return []
        snapshots = self._keeper.snapshots_of(FolderName(owner, found.folder).place)
        try:
            await in_thread(partial(snapshots.set_refs, {ref_of(fork, "base"): found.base}))
        except (GitError, OSError, SnapshotError) as error:
            raise Fault.of(FaultKind.INTERNAL, f"The worktree cannot be shared: {error}.") from error
        return [replace(found, session=fork).record(time.time())]

    async def prune(self) -> None:
        """Removes the folders of deleted sessions, if they were lost the last time, too: a new one belongs to a session
        a moment later.
        """
        try:
            lost = await self._find_lost()
            for folder in lost & self._lost:
                await self._keeper.write_in(folder, partial(shutil.rmtree, folder, ignore_errors=True))
                log.info("worktree_removed", folder=folder)
            self._lost = lost - self._lost
        except (GitError, OSError) as error:
            log.warning("worktrees_not_pruned", reason=str(error))

    async def _find_lost(self) -> set[str]:
        # Other machines with the same store may have theirs here, too.
        paths = await in_thread(lambda: [*Path(self._root).glob(f"*/*-{_machine_of(self._keeper.root)}")])
        there = {str(path) for path in paths}
        for place, name in await in_thread(partial(names_in, self._keeper.root)):
            if name.folder in there and await self._is_wanted(place, name):
                there.discard(name.folder)
        return there

    async def _is_wanted(self, place: str, name: FolderName) -> bool:
        return bool(await worktrees_in(self._store, self._keeper.snapshots_of(place), name))


async def worktrees_in(store: Store, snapshots: FolderSnapshots, name: FolderName) -> list[Worktree]:
    """Returns the worktrees of all sessions that work in a folder, of which these are the snapshots: a session and its
    forks share it.
    """
    refs = await in_thread(partial(snapshots.git.refs, REF_OF_WORKTREES))
    sessions = set(map(id_in, refs))
    found = [await worktree_of(store, name.owner, session) for session in sorted(sessions)]
    return [each for each in found if each is not None and each.folder == name.folder]


def ref_of(session: str, which: str) -> str:
    return f"{REF_OF_WORKTREES}{session}/{which}"


def _named_machine(root: Path) -> str:
    """Returns the name of the machine whose snapshots are in a folder, after giving it one if it has none. It is kept
    as a link, which is made at once with its content.
    """
    make_folder(root)
    with contextlib.suppress(FileExistsError):
        (root / _MACHINE).symlink_to(secrets.token_hex(4))
    return _machine_of(root)


def _machine_of(root: Path) -> str:
    """Returns the name of the machine whose snapshots are in a folder; without one, what no name of a worktree has."""
    try:
        return os.readlink(root / _MACHINE)
    except FileNotFoundError:
        return "none"


def _name_for(source: str, machine: str) -> str:
    """Returns the name of a new worktree: of the folder's name, which people and agents know, and of the machine."""
    name = _NO_NAME.sub("-", os.path.basename(source))[:_MAX_NAME].strip("-")
    return f"{name or 'files'}-{secrets.token_hex(6)}-{machine}"
