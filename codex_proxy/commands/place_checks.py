"""The folders and the keys file, as `doctor` looks at them: what is there, whose it is, and who else may read it.

Nothing is made.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from codex_proxy.agents.registry import is_plain_only, runs_codex
from codex_proxy.commands.checkup import Check, Fact
from codex_proxy.config import Settings
from codex_proxy.core.keys import KeysError, with_default
from codex_proxy.keys_file import open_to_others, read_keys
from codex_proxy.protected_paths import write_conflict

OTHERS = stat.S_IRWXG | stat.S_IRWXO
OPEN = {"read": "read", "change": "changed"}
SHOWN = 10  # names of keys in a message


def folder_checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """The state folder, the keys in it, Codex's home, and the workspace."""
    return [
        state_check(settings.state_dir),
        keys_check(settings),
        home_check(settings),
        workspace_check(settings, environ),
    ]


def state_check(folder: Path) -> Check:
    """It has to be ours to write, and nobody else's to read: it holds answers."""
    facts: dict[str, Fact] = {"path": str(folder), "exists": folder.exists()}
    if not folder.exists():
        above = next(each for each in folder.parents if each.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            message = f"{folder} will be made at the first start."
            return Check(name="state folder", status="ok", message=message, facts=facts)
        message = f"{folder} cannot be made: {above} is not ours to write in."
        advice = "Name another one with PROXY_STATE_DIR."
        return Check(name="state folder", status="failed", message=message, advice=advice, facts=facts)
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        message = f"{folder} is not a folder that we can write in."
        advice = f"Make it one (`chmod u+rwx {folder}`), or name another with PROXY_STATE_DIR."
        return Check(name="state folder", status="failed", message=message, advice=advice, facts=facts)
    mode = stat.S_IMODE(folder.stat().st_mode)
    facts["mode"] = f"{mode:04o}"
    if mode & OTHERS:
        message = f"{folder} can be entered by others (mode {mode:04o}), and stored answers are in it."
        advice = f"Run `chmod 700 {folder}`."
        return Check(name="state folder", status="warning", message=message, advice=advice, facts=facts)
    return Check(name="state folder", status="ok", message=f"{folder} is ours alone.", facts=facts)


def keys_check(settings: Settings) -> Check:
    """The keys of clients: whole, and for nobody else to change or to read."""
    file = settings.keys_path
    facts: dict[str, Fact] = {"path": str(file), "exists": file.exists()}
    try:
        keys = with_default(
            read_keys(file), settings.api_key.get_secret_value() if settings.api_key else None
        )
    except KeysError as error:
        message = f"The keys file is broken: {error}."
        advice = f"Mend {file}; a server that runs goes on with the keys that it has read before."
        return Check(name="keys", status="failed", message=message, advice=advice, facts=facts)
    facts["count"] = len(keys)
    others = open_to_others(file)
    if others:
        message, advice = f"{file} can be {OPEN[others]} by others.", f"Run `chmod 600 {file}`."
        return Check(name="keys", status="warning", message=message, advice=advice, facts=facts)
    if keys:
        message = f"Clients need one of {len(keys)}: {', '.join(key.name for key in keys[:SHOWN])}."
    elif file.exists():
        message = f"{file} holds none, and clients need one: nobody is let in."
        advice = "Make one with `codex-proxy keys add NAME`."
        return Check(name="keys", status="warning", message=message, advice=advice, facts=facts)
    else:
        message = "None are needed: only this machine reaches the server."
    return Check(name="keys", status="ok", message=message, facts=facts)


def home_check(settings: Settings) -> Check:
    """Codex's own home, and the sign-in in it, which nobody else should be able to read."""
    folder = settings.codex_home
    facts: dict[str, Fact] = {"path": str(folder), "exists": folder.is_dir()}
    if not runs_codex(settings):
        message = "This agent runs no Codex."
        return Check(name="codex home", status="skipped", message=message, facts=facts)
    if not folder.is_dir():
        if "codex_home" in settings.model_fields_set:
            message, advice = f"{folder} is not there.", f"Make {folder} and run `codex login`."
            return Check(name="codex home", status="failed", message=message, advice=advice, facts=facts)
        message = f"{folder} is not there: Codex has not been used here yet."
        return Check(name="codex home", status="warning", message=message, facts=facts)
    if not os.access(folder, os.R_OK | os.X_OK):
        advice = f"Run `chmod u+rx {folder}`."
        message = f"{folder} is not ours to read."
        return Check(name="codex home", status="failed", message=message, advice=advice, facts=facts)
    auth = folder / "auth.json"
    if auth.is_file() and stat.S_IMODE(auth.stat().st_mode) & OTHERS:
        message = f"{auth} can be read by others."
        advice = f"Run `chmod 600 {auth}`."
        return Check(name="codex home", status="warning", message=message, advice=advice, facts=facts)
    return Check(name="codex home", status="ok", message=f"{folder} is there.", facts=facts)


def workspace_check(settings: Settings, environ: Mapping[str, str]) -> Check:
    """Where agent turns work: to be read, and written where the sandbox lets them."""
    folder = settings.workdir
    facts: dict[str, Fact] = {"path": str(folder), "sandbox": settings.sandbox}
    if is_plain_only(settings):
        message = "This agent works in no folder."
        return Check(name="workspace", status="skipped", message=message, facts=facts)
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        message = f"{folder} is not a folder that we can read."
        advice = "Name the folder to work in with --workdir."
        return Check(name="workspace", status="failed", message=message, advice=advice, facts=facts)
    if settings.sandbox != "read-only" and not os.access(folder, os.W_OK):
        message = (
            f"{folder} is not ours to write in, though --sandbox {settings.sandbox} would let the agent."
        )
        advice = "Name a folder that is yours with --workdir, or leave --sandbox out."
        return Check(name="workspace", status="warning", message=message, advice=advice, facts=facts)
    conflict = write_conflict(settings, environ)
    if conflict is not None:
        advice = "Start the server in another folder, or name one with --workdir."
        return Check(name="workspace", status="failed", message=conflict, advice=advice, facts=facts)
    message = f"{folder} (sandbox: {settings.sandbox})."
    return Check(name="workspace", status="ok", message=message, facts=facts)
