"""The check of `doctor`: whether the git of this machine can keep snapshots, where the settings want them."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping

from codex_proxy.core.checks import Check, CheckBuilder
from codex_proxy.core.safety import find_endangered, is_inside
from codex_proxy.parts import own_settings
from codex_proxy.parts.snapshots import SnapshotSettings
from codex_proxy.parts.snapshots.git import LEAST_VERSION, version_of
from codex_proxy.parts.snapshots.server_part import worktrees_of
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.protected_paths import protected_paths


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
    if found := find_endangered(worktrees, protected_paths(settings, environ)):
        message = f"No turn may write where {found.what} is ({found.path})."
        return [check.failed(message, "Set PROXY_WORKTREES to a folder outside of it.")]
    if not is_inside(worktrees, folder):
        return []
    message = f"It lies in {folder}: no turn that may write works there."
    return [check.failed(message, "Set PROXY_WORKTREES to a folder outside of it.")]


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
