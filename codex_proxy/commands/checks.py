"""The checks of `doctor`. They create nothing, and connect only to the port and the store's database."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from codex_proxy.agents.configured.agents import (
    ConfiguredAgent,
    configured_agents,
    context_of,
    is_plain_only,
    is_single,
    plugin_parts,
    runs_codex,
    why_unusable,
)
from codex_proxy.agents.registry import call_plugin_part, plugin_reference
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.app.keyring import others_access, read_keys
from codex_proxy.app.start_checks import NOBODY_APPROVES, listen_error, reserve_port
from codex_proxy.app.store_lifecycle import inspect_store
from codex_proxy.app.system import SystemClock
from codex_proxy.core.checks import Check, CheckBuilder, Fact, failed_check
from codex_proxy.core.faults import UserError
from codex_proxy.core.keys import Key, KeysError, with_default
from codex_proxy.files.private import why_not_created
from codex_proxy.parts import Part, declared
from codex_proxy.process.spawner import why_no_spawner
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.protected_paths import write_conflict


async def agent_checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """Returns the checks of all agents; of several, with the agent's name in front."""
    try:
        agents = configured_agents(settings)
    except NoAgentError as error:
        name = "agent plugin" if is_single(settings) else "agents"
        facts: dict[str, Fact] = {"plugin": plugin_reference(settings)} if name == "agent plugin" else {}
        return [failed_check(name, str(error), facts)]
    context = AgentContext(settings, environ, SystemClock())
    if len(agents) == 1 and not agents[0].name:
        return await _checks_of(agents[0], context)
    checked = await asyncio.gather(*(_checks_of(each, context) for each in agents))
    return [
        msgspec.structs.replace(check, name=f"{each.name}: {check.name}")
        for each, checks in zip(agents, checked, strict=True)
        for check in checks
    ]


async def _checks_of(named: ConfiguredAgent, context: AgentContext) -> list[Check]:
    spec, reference = named.spec, plugin_reference(named.settings)
    context = context_of(named, context)
    if reference is None:
        try:
            return await spec.check(context)
        except OSError as error:
            return [failed_check("agent", why_unusable(error))]
    plugin = CheckBuilder("agent plugin", plugin=reference, agent=spec.name)
    found = plugin.ok(f"{reference} is the agent {spec.name}.")
    try:
        return [found, *await spec.check(context)]
    except Exception as error:  # noqa: BLE001  (a plugin's code may raise anything)
        message = (
            f"The check of {reference} failed ({type(error).__name__}: {error}). This is a bug in the plugin."
        )
        return [found, CheckBuilder("agent").failed(message, message)]


ANSWER_SECONDS = 3.0
"""Seconds for an answer; this server takes a millisecond."""


async def port_check(settings: Settings) -> Check:
    """Checks the port: `failed` if another program has it. A codex-proxy there is fine, or a warning if it reports
    trouble.
    """
    check = CheckBuilder("port", host=settings.host, port=settings.port, ours=False)
    where = f"{settings.host}:{settings.port}"
    health = await health_of(settings.server_url) if settings.port else None
    if health is not None:
        return _check_running(check, where, health)
    try:
        reserve_port(settings.host, settings.port).close()
    except OSError as error:
        return failed_check("port", f"A server {listen_error(settings, error)}", check.facts)
    return check.ok(f"{where} is free." if settings.port else "Any free port is used (port 0).")


def _check_running(check: CheckBuilder, where: str, health: dict[str, Any]) -> Check:
    check.facts |= {
        "ours": True,
        "server_version": health.get("version"),
        "server_status": health.get("status"),
        "worker": health.get("worker"),
    }
    names = ", ".join(str(agent.get("name")) for agent in _agents_in(health))
    version = f" {health['version']}" if "version" in health else ""  # not told where a key is wanted
    worker = f" (worker {health['worker']} has answered)" if "worker" in health else ""
    message = f"A codex-proxy{version} serves {names} on {where} already{worker}."
    if health.get("status") == "ok":
        return check.ok(message)
    trouble = str(health.get("trouble", "its agent cannot serve turns"))
    return check.warning(f"{message} It reports: {trouble}", f"Correct what the server on {where} reports.")


async def health_of(server_url: str) -> dict[str, Any] | None:
    """Returns the health report of the codex-proxy there, or None."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{server_url}/healthz") as reply,
        ):
            body = await reply.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    return body if isinstance(body, dict) and _agents_in(body) else None


def _agents_in(health: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the agents in a health report; none if it is not codex-proxy's."""
    several = health.get("agents")
    given = several if isinstance(several, list) else [health.get("agent")]
    agents = [agent for agent in given if isinstance(agent, dict) and "fake" in agent]
    return agents if len(agents) == len(given) else []


async def machine_checks(settings: Settings, environ: Mapping[str, str], *, runs: bool) -> list[Check]:
    """Returns the checks of spawner, folders and parts. `runs`: whether the server runs already."""
    store, keys = await store_check(settings, in_use=runs)
    folders = await asyncio.to_thread(folder_checks, settings, environ, keys)
    of_parts = [await check(settings, environ) for check in declared("checks")]
    of_plugins = [await _plugin_checks(part, settings, environ) for part in plugin_parts(settings)]
    return [await spawner_check(), store, *folders, *chain.from_iterable([*of_parts, *of_plugins])]


async def _plugin_checks(part: Part, settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    try:
        found = call_plugin_part(part, "checks", settings, environ)
        checks: list[Check] = [] if found is None else await found
    except NoAgentError as error:
        return [failed_check("agent plugin", str(error))]
    except Exception as error:  # noqa: BLE001  (a plugin's code may raise anything)
        message = f"The checks of the part {part.name} failed ({type(error).__name__}: {error})."
        return [failed_check("agent plugin", f"{message} This is a bug in the plugin.")]
    return checks


async def spawner_check() -> Check:
    """Checks the spawner. `ok` also without one: children then only start some milliseconds later."""
    why = await why_no_spawner()
    check = CheckBuilder("spawner", usable=not why)
    return check.ok(
        f"Child processes cannot be forked, and start more slowly: {why}."
        if why
        else "Child processes can be forked."
    )


OTHERS_RIGHTS = stat.S_IRWXG | stat.S_IRWXO
ACCESS_IN_WORDS = {"read": "read", "change": "changed"}
MAX_NAMES_SHOWN = 10  # names in a message


async def store_check(settings: Settings, *, in_use: bool = False) -> tuple[Check, tuple[Key, ...] | None]:
    """Checks the store: `failed` if the server would refuse to start with it. `in_use`: a server may use it. Also
    returns the keys in it; None if they are not known.
    """
    file = settings.store_file
    check = CheckBuilder("store", path=str(file)) if settings.in_file else CheckBuilder("store")
    try:
        keys = await inspect_store(settings, in_use=in_use)
    except UserError as error:
        wrong, _, advice = str(error).partition("; ")
        advice = f"{advice[:1].upper()}{advice[1:]}." if advice else "Correct PROXY_STORE, or what it names."
        return check.failed(f"The server would not start: {wrong}.", advice), None
    if settings.in_database:
        return check.ok("The database can be used."), keys
    if not settings.in_file:
        kept = "nowhere" if settings.store == "off" else "in memory, until the server ends"
        return check.ok(f"Responses are kept {kept}."), ()
    if file.exists():
        return check.ok(f"{file} can be used."), ()
    if why := why_not_created(file):
        return check.failed(f"{file} cannot be created: {why}.", "Set another file with PROXY_STORE."), ()
    return check.ok(f"{file} will be created at the first start."), ()


def folder_checks(
    settings: Settings, environ: Mapping[str, str], stored: Sequence[Key] | None
) -> list[Check]:
    return [
        state_check(settings.state_dir),
        keys_check(settings, stored),
        home_check(settings),
        workspace_check(settings, environ),
    ]


def state_check(folder: Path) -> Check:
    """Checks the state folder: `failed` if this user cannot write to it or make it, a warning if others may read it."""
    check = CheckBuilder("state folder", path=str(folder), exists=folder.exists())
    if not folder.exists():
        if why := why_not_created(folder):
            return check.failed(
                f"{folder} cannot be created: {why}.", "Set another folder with PROXY_STATE_DIR."
            )
        return check.ok(f"{folder} will be created at the first start.")
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return check.failed(
            f"{folder} is not a writable folder.",
            f"Make it writable (`chmod u+rwx {folder}`), or set another folder with PROXY_STATE_DIR.",
        )
    mode = stat.S_IMODE(folder.stat().st_mode)
    check.facts["mode"] = f"{mode:04o}"
    if mode & OTHERS_RIGHTS:
        return check.warning(
            f"Other users can read {folder} (mode {mode:04o}), which contains stored answers.",
            f"Run `chmod 700 {folder}`.",
        )
    return check.ok(f"{folder} is accessible only to you.")


def keys_check(settings: Settings, stored: Sequence[Key] | None = ()) -> Check:
    """Checks the keys in their file and those `stored` in the store (None: not known): `failed` if the file is invalid,
    a warning if others may read or change it, or a needed key is missing.
    """
    file = settings.keys_path
    check = CheckBuilder("keys", path=str(file), exists=file.exists())
    try:
        keys = (*with_default(read_keys(file), settings.default_key), *(stored or ()))
    except KeysError as error:
        return check.failed(
            f"The keys file is invalid: {error}.",
            f"Fix {file}; a running server keeps the keys that it has read before.",
        )
    check.facts["count"] = len(keys)
    others = others_access(file)
    if others:
        return check.warning(
            f"{file} can be {ACCESS_IN_WORDS[others]} by other users.", f"Run `chmod 600 {file}`."
        )
    if settings.approvals == "ask" and stored is not None and not any(key.may_approve for key in keys):
        if not (keys or settings.wants_key or settings.in_database):
            return check.warning(
                "No keys are needed, and only in a terminal a server starts that asks for approvals: there it shows a "
                "key of this start.",
                "Start it in a terminal, or create a key with `codex-proxy keys add NAME --may-approve`.",
            )
        message, advice = NOBODY_APPROVES.split(". ", 1)
        return check.failed(f"{message}.", advice)
    if keys:
        names = ", ".join(key.name for key in keys[:MAX_NAMES_SHOWN])
        approving = [
            key for key in keys if key.may_approve and (key.approvals or settings.approvals) == "ask"
        ]
        asked = ", ".join(key.name for key in approving[:MAX_NAMES_SHOWN])
        more = f" Asked for approvals in sessions: {asked}." if asked else ""
        return check.ok(f"Clients need an API key. Known keys: {names}.{more}")
    if file.exists():
        return check.warning(
            f"{file} has no keys, and clients need one: no client is admitted.",
            "Create one with `codex-proxy keys add NAME`.",
        )
    if stored is None and settings.in_database:
        return check.skipped("There is no key in a file. Those in the store are not known.")
    return check.ok("No keys are needed: only this machine can reach the server.")


def home_check(settings: Settings) -> Check:
    """Checks Codex's home: `failed` if a named one is missing or unreadable, a warning if others can read the sign-in
    or the default home is missing.
    """
    folder = settings.codex_home
    check = CheckBuilder("codex home", path=str(folder), exists=folder.is_dir())
    if not runs_codex(settings):
        return check.skipped("This agent does not use Codex.")
    if not folder.is_dir():
        if "codex_home" in settings.model_fields_set:
            return check.failed(
                f"{folder} does not exist.",
                f"Create {folder} and sign in: run `codex login` with CODEX_HOME={folder}.",
            )
        return check.warning(f"{folder} does not exist: Codex has not been used here yet.")
    if not os.access(folder, os.R_OK | os.X_OK):
        return check.failed(f"{folder} is not readable.", f"Run `chmod u+rx {folder}`.")
    auth = folder / "auth.json"
    if auth.is_file() and stat.S_IMODE(auth.stat().st_mode) & OTHERS_RIGHTS:
        return check.warning(f"{auth} is readable by other users.", f"Run `chmod 600 {auth}`.")
    return check.ok(f"{folder} exists.")


def workspace_check(settings: Settings, environ: Mapping[str, str]) -> Check:
    """Checks the folder of agent turns: `failed` if it is unreadable or protected paths can be written, a warning if
    only the sandbox permits writing.
    """
    folder = settings.workdir
    check = CheckBuilder("workspace", path=str(folder), sandbox=settings.sandbox)
    if is_plain_only(settings):
        return check.skipped("This agent does not use a workspace.")
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        return check.failed(
            f"{folder} is not a readable folder.", "Set the folder to work in with --workdir."
        )
    if settings.sandbox != "read-only" and not os.access(folder, os.W_OK):
        return check.warning(
            f"{folder} is not writable, although --sandbox {settings.sandbox} allows the agent to write.",
            "Set a writable folder with --workdir, or omit --sandbox.",
        )
    conflict = write_conflict(settings, environ)
    if conflict is not None:
        return check.failed(conflict, "Start the server in another folder, or name one with --workdir.")
    return check.ok(f"{folder} (sandbox: {settings.sandbox}).")
