"""What the part adds to a server: it keeps the files of turns, and removes what belongs to no turn any more."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from codex_proxy.app.server_parts import ServerPart, ServerParts
from codex_proxy.core.faults import UserError
from codex_proxy.core.own_errors import repeat
from codex_proxy.core.safety import find_endangered, is_inside
from codex_proxy.files.private import make_folder
from codex_proxy.http.app_keys import CLIENTS, CLOCK, RUNS, SESSION_FILES
from codex_proxy.parts import own_settings
from codex_proxy.parts.sessions.files_of_turns import FILES_OF_TURNS, LIST_OF_ARTIFACTS, WORKTREES
from codex_proxy.parts.snapshots import SnapshotSettings
from codex_proxy.parts.snapshots.artifacts import PATTERNS, Patterns, list_artifacts
from codex_proxy.parts.snapshots.forking import FilesOfForks
from codex_proxy.parts.snapshots.git import git_on_path
from codex_proxy.parts.snapshots.handlers import KEEPER
from codex_proxy.parts.snapshots.keeper import Keeper
from codex_proxy.parts.snapshots.session_files import FilesOfSessions
from codex_proxy.parts.snapshots.worktrees import SessionWorktrees
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.protected_paths import protected_paths

log = structlog.get_logger(__name__)

PRUNE_SECONDS: Final = 900.0
"""Seconds between two looks for what belongs to no turn any more."""


class SnapshotsPart(ServerPart):
    def __init__(self, program: str) -> None:
        self._program = program

    async def start(self, server: ServerParts) -> None:
        self._settings = server.settings
        self._store = None if server.store_lifecycle is None else server.store_lifecycle.store

    def add_to(self, app: web.Application) -> None:
        if self._store is None:
            return
        root = folder_of_snapshots(self._settings)
        own = own_settings(self._settings, SnapshotSettings)
        max_age = self._settings.store_max_age or None
        app[KEEPER] = keeper = Keeper(self._program, root, self._store, own, app[CLOCK], max_age)
        app[FILES_OF_TURNS] = FilesOfForks(keeper)
        worktrees = worktrees_of(self._settings)
        app[CLIENTS].add_own_folders(worktrees)
        app[WORKTREES] = made = SessionWorktrees(keeper, self._store, worktrees)
        if own.snapshot_artifacts:
            app[PATTERNS], app[LIST_OF_ARTIFACTS] = Patterns(own.snapshot_artifacts), list_artifacts
            app[SESSION_FILES] = FilesOfSessions(app)
        app[RUNS].preparers.append(keeper)
        app.cleanup_ctx.append(partial(_run, keeper, made))


def folder_of_snapshots(settings: Settings) -> Path:
    """Returns the folder of all snapshots: one for each store, which alone knows whose they are."""
    return settings.state_dir.expanduser().absolute() / "snapshots" / _name_of_store(settings)


def worktrees_of(settings: Settings) -> str:
    """Returns the folder of all worktrees, without links: one for each store. It is outside of the state folder, in
    which agents may neither read nor write.
    """
    state = settings.state_dir.expanduser().absolute()
    given = own_settings(settings, SnapshotSettings).worktrees
    root = state.with_name(f"{state.name}-worktrees") if given is None else given.expanduser().absolute()
    return os.path.realpath(root / _name_of_store(settings))


def _name_of_store(settings: Settings) -> str:
    """Returns the name of what belongs to the store. Of a database's URL neither user nor password count, so that it
    tells nothing of them.
    """
    store = str(settings.store_file) if settings.in_file else _without_user(settings.store)
    return hashlib.sha256(store.encode()).hexdigest()[:16]


def _without_user(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"


async def _run(keeper: Keeper, worktrees: SessionWorktrees, _: web.Application) -> AsyncIterator[None]:
    async def prune() -> None:
        await keeper.prune()
        await worktrees.prune()

    async def run() -> None:
        try:
            await prune()
        except Exception:
            log.exception("snapshots_not_pruned")
        await repeat(prune, after=partial(asyncio.sleep, PRUNE_SECONDS), failed="snapshots_not_pruned")

    task = asyncio.create_task(run())
    yield
    task.cancel()
    await keeper.close()


def server_part(settings: Settings, environ: Mapping[str, str]) -> ServerPart | None:
    """Returns what keeps the files of turns; None if it is off, or there is no git."""
    if own_settings(settings, SnapshotSettings).snapshots == "off":
        return None
    program = git_on_path(environ)
    if not program:
        log.warning("snapshots_off", reason="There is no git on the PATH that can be used.")
        return None
    if own_settings(settings, SnapshotSettings).worktrees is not None:
        _check_worktrees(settings, environ)
    return SnapshotsPart(program)


def _check_worktrees(settings: Settings, environ: Mapping[str, str]) -> None:
    """Makes the folder of worktrees that the operator names. Raises `UserError` if no session could work there."""
    root = worktrees_of(settings)
    above, workdir = os.path.dirname(root), os.path.realpath(settings.workdir)
    if is_inside(root, workdir):
        log.warning(
            "worktrees_in_workspace",
            folder=above,
            reason=f"No turn that may write works in {workdir} itself, for it could change all worktrees.",
        )
    if found := find_endangered(root, protected_paths(settings, environ)):
        raise UserError(
            f"PROXY_WORKTREES {above} cannot be used: no turn may write where {found.what} is ({found.path}). Name "
            "a folder outside of it."
        )
    try:
        make_folder(Path(root))
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise UserError(
            f"PROXY_WORKTREES {above} cannot be used: {error.strerror}. Name a folder that this user can write."
        ) from None
