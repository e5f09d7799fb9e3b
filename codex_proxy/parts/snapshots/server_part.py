"""What the part adds to a server, which keeps the files of turns and removes what belongs to no turn any more; to
`doctor`; and to `store export`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog
from aiohttp import web

from codex_proxy.app.server_parts import ServerPart, ServerParts
from codex_proxy.core.checks import Check, CheckBuilder
from codex_proxy.core.faults import UserError
from codex_proxy.core.own_errors import repeat
from codex_proxy.core.safety import find_endangered, is_inside
from codex_proxy.files.private import make_folder
from codex_proxy.http.app_keys import CLIENTS, CLOCK, RUNS, SESSION_FILES
from codex_proxy.parts import own_settings
from codex_proxy.parts.sessions.files_of_turns import FILES_OF_TURNS, LIST_OF_ARTIFACTS, WORKTREES
from codex_proxy.parts.snapshots import SnapshotSettings
from codex_proxy.parts.snapshots.artifacts import PATTERNS, FilesOfSessions, Patterns, list_artifacts
from codex_proxy.parts.snapshots.difference import patch
from codex_proxy.parts.snapshots.forking import FilesOfForks
from codex_proxy.parts.snapshots.git import LEAST_VERSION, GitDirectory, GitError, git_on_path, version_of
from codex_proxy.parts.snapshots.handlers import KEEPER
from codex_proxy.parts.snapshots.keeper import Keeper
from codex_proxy.parts.snapshots.records import KIND, TurnFiles
from codex_proxy.parts.snapshots.worktrees import SessionWorktrees
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.protected_paths import protected_paths
from codex_proxy.store.records import MoreFields

log = structlog.get_logger(__name__)

PRUNE_SECONDS: Final = 900.0
"""Seconds between two looks for what belongs to no turn any more."""
MAX_PATCH: Final = 1 << 20
"""Maximum bytes of a patch in an export."""


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
        _make_worktrees(settings, environ)
    return SnapshotsPart(program)


def _make_worktrees(settings: Settings, environ: Mapping[str, str]) -> None:
    """Makes the folder of worktrees that the operator names. Raises `UserError` if no session could work there."""
    root = worktrees_of(settings)
    above, workdir = os.path.dirname(root), os.path.realpath(settings.workdir)
    if is_inside(root, workdir):
        log.warning(
            "worktrees_in_workspace",
            folder=above,
            reason=f"No turn that may write works in {workdir} itself, for it could change all worktrees.",
        )
    if trouble := _trouble_of(root, settings, environ):
        raise UserError(f"PROXY_WORKTREES {above} cannot be used: {trouble}. Name a folder outside of it.")
    try:
        make_folder(Path(root))
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise UserError(
            f"PROXY_WORKTREES {above} cannot be used: {error.strerror}. Name a folder that this user can write."
        ) from None


def _trouble_of(worktrees: str, settings: Settings, environ: Mapping[str, str]) -> str:
    """Returns why no session could work in a folder of worktrees; empty if one could."""
    found = find_endangered(worktrees, protected_paths(settings, environ))
    return f"no turn may write where {found.what} is ({found.path})" if found else ""


# --- for `doctor` ---------------------------------------------------------------------------------


async def checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """Checks the program `git`, if snapshots are on: a warning without it, for the server works without snapshots."""
    if own_settings(settings, SnapshotSettings).snapshots == "off":
        return []
    return [await asyncio.to_thread(_check_git, environ), *_check_worktrees(settings, environ)]


def _check_worktrees(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """Fails if the folder of all worktrees lies where no turn may write, or where turns would work, which could change
    those of other keys.
    """
    folder = os.path.realpath(settings.workdir)
    worktrees = worktrees_of(settings)
    check = CheckBuilder("worktrees", folder=worktrees)
    trouble = _trouble_of(worktrees, settings, environ)
    if not trouble and is_inside(worktrees, folder):
        trouble = f"it lies in {folder}: no turn that may write works there"
    message = f"{trouble[:1].upper()}{trouble[1:]}."
    return [check.failed(message, "Set PROXY_WORKTREES to a folder outside of it.")] if trouble else []


def _check_git(environ: Mapping[str, str]) -> Check:
    program = shutil.which("git", path=environ.get("PATH"))
    check = CheckBuilder("snapshots", git=program or "")
    if program is None:
        return check.warning("There is no git on the PATH: no snapshots are kept.", "Install git.")
    found = version_of(program)
    if found < LEAST_VERSION:
        least, own = (".".join(map(str, each)) for each in (LEAST_VERSION, found))
        return check.warning(f"{program} is too old ({own}): no snapshots are kept.", f"Install git {least}.")
    return check.ok(f"{program} keeps the files before and after each turn that may write.")


# --- for `store export` ---------------------------------------------------------------------------


def exported(settings: Settings, environ: Mapping[str, str]) -> Mapping[str, MoreFields]:
    """Returns what adds to a record what its turn has done to the files, as a patch, by the kind of record."""
    return {KIND: partial(_fields, git_on_path(environ), folder_of_snapshots(settings))}


def _fields(program: str, root: Path, json: bytes) -> dict[str, object]:
    """Returns the field `patch`, `patch_base64` if it is no UTF-8, or `patch_missing`, which says why."""
    files = msgspec.json.decode(json, type=TurnFiles)
    if files.state != "kept":
        return {}
    git = GitDirectory(program, root / files.place / "git")
    if not program or not git.path.is_dir():
        return {"patch_missing": "there is no git, or the snapshots are on another machine"}
    try:
        found = patch(git, files.before, files.after, MAX_PATCH)
    except OverflowError:
        return {"patch_missing": f"it has more than {MAX_PATCH} bytes"}
    except (GitError, OSError) as error:
        return {"patch_missing": str(error)}
    try:
        return {"patch": found.decode()}
    except UnicodeDecodeError:
        return {"patch_base64": base64.b64encode(found).decode()}
