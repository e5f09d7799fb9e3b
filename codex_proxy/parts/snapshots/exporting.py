"""What `codex-proxy store export` adds to the record of a turn's files: what the turn has done to them, as a patch."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from codex_proxy.parts.snapshots.difference import patch
from codex_proxy.parts.snapshots.git import GitDirectory, GitError, git_on_path
from codex_proxy.parts.snapshots.records import KIND, TurnFiles
from codex_proxy.parts.snapshots.server_part import folder_of_snapshots
from codex_proxy.settings.fields import Settings
from codex_proxy.store.records import MoreFields

MAX_PATCH: Final = 1 << 20
"""Maximum bytes of a patch."""


def exported(settings: Settings, environ: Mapping[str, str]) -> Mapping[str, MoreFields]:
    """Returns what adds the patches, by the kind of record."""
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
