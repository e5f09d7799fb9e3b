"""The checks of `doctor`: agent, port, folders, keys, MCP servers. Each says what it found and what to do. Nothing is
created or connected to.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
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
    runs_codex,
)
from codex_proxy.agents.registry import plugin_reference
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.app.keyring import open_to_others, read_keys
from codex_proxy.app.mcp_tools import McpConfigError, Programs, configured_servers
from codex_proxy.app.system import SystemClock
from codex_proxy.commands.ports import reserve_port
from codex_proxy.core.checks import Check, Fact, failed_check
from codex_proxy.core.keys import KeysError, with_default
from codex_proxy.mcp.config import StdioServer
from codex_proxy.process.launch import SpawnError, find_program
from codex_proxy.process.spawner import why_no_spawner
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.protected_paths import write_conflict
from codex_proxy.traces.setup import traces_check


async def agent_checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """Returns the checks of every agent; of several, names begin with the agent's. If the agents cannot be determined,
    the only one is `failed`.
    """
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
    """Returns the checks of one agent; a plugin's error is a `failed` one."""
    spec, reference = named.spec, plugin_reference(named.settings)
    context = context_of(named, context)
    if reference is None:
        return await spec.check(context)
    message = f"{reference} is the agent {spec.name}."
    facts: dict[str, Fact] = {"plugin": reference, "agent": spec.name}
    found = Check(name="agent plugin", status="ok", message=message, facts=facts)
    try:
        return [found, *await spec.check(context)]
    except Exception as error:  # noqa: BLE001  (a plugin's code may raise anything)
        message = (
            f"The check of {reference} failed ({type(error).__name__}: {error}). This is a bug in the plugin."
        )
        return [found, Check(name="agent", status="failed", message=message, advice=message)]


ANSWER_SECONDS = 3.0
"""Seconds to wait for what listens on the port; this server answers in a millisecond."""


async def port_check(settings: Settings) -> Check:
    """Checks whether a server could listen, or codex-proxy does. `failed` if another program has the port, a warning if
    codex-proxy reports trouble.
    """
    facts: dict[str, Fact] = {"host": settings.host, "port": settings.port, "ours": False}
    if settings.port == 0:
        return Check(name="port", status="ok", message="Any free port is used (port 0).", facts=facts)
    health = await health_of(settings.server_url)
    if health is not None:
        facts |= {
            "ours": True,
            "server_version": health.get("version"),
            "server_status": health.get("status"),
            "worker": health.get("worker"),
        }
        return _running(settings, health, facts)
    fault = why_not(settings.host, settings.port)
    where = f"{settings.host}:{settings.port}"
    if fault is None:
        return Check(name="port", status="ok", message=f"{where} is free.", facts=facts)
    advice = "Use another port with --port, or stop the program that listens on this one."
    message = f"A server cannot listen on {where}: {fault}."
    return Check(name="port", status="failed", message=message, advice=advice, facts=facts)


def _running(settings: Settings, health: dict[str, Any], facts: dict[str, Fact]) -> Check:
    where = f"{settings.host}:{settings.port}"
    names = ", ".join(str(agent.get("name")) for agent in _agents_in(health))
    version = f" {health['version']}" if "version" in health else ""  # not told where a key is wanted
    worker = f" (worker {health['worker']} has answered)" if "worker" in health else ""
    message = f"A codex-proxy{version} serves {names} on {where} already{worker}."
    if health.get("status") == "ok":
        return Check(name="port", status="ok", message=message, facts=facts)
    trouble = str(health.get("trouble", "its agent cannot serve turns"))
    return Check(
        name="port", status="warning", message=f"{message} It reports: {trouble}", advice=trouble, facts=facts
    )


async def health_of(server_url: str) -> dict[str, Any] | None:
    """Returns the health report of the codex-proxy at this address, or None."""
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
    """Returns the agents in a health report (`agents` or `agent`); none if it is not codex-proxy's."""
    several = health.get("agents")
    given = several if isinstance(several, list) else [health.get("agent")]
    agents = [agent for agent in given if isinstance(agent, dict) and "fake" in agent]
    return agents if len(agents) == len(given) else []


def why_not(host: str, port: int) -> str | None:
    """Returns the system's error if a server cannot listen here, else None."""
    try:
        reserve_port(host, port).close()
    except OSError as error:
        return str(error.strerror)
    return None


async def machine_checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """Returns the checks of what the server finds on its machine: spawner, folders, MCP servers, traces."""
    folders = await asyncio.to_thread(folder_checks, settings, environ)
    servers = await asyncio.to_thread(mcp_checks, settings, environ)
    return [await spawner_check(), *folders, *servers, *traces_check(environ)]


async def spawner_check() -> Check:
    """Checks whether a spawner can fork children; otherwise starts take some milliseconds more."""
    why = await why_no_spawner()
    message = (
        f"Child processes start one interpreter more each: {why}."
        if why
        else "Child processes can be forked."
    )
    return Check(name="spawner", status="ok", message=message, facts={"usable": not why})


OTHERS = stat.S_IRWXG | stat.S_IRWXO
OPEN = {"read": "read", "change": "changed"}
SHOWN = 10  # names in a message


def folder_checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """Returns the checks of state folder, keys, Codex's home, and workspace."""
    return [
        state_check(settings.state_dir),
        keys_check(settings),
        home_check(settings),
        workspace_check(settings, environ),
    ]


def state_check(folder: Path) -> Check:
    """Checks the state folder: `failed` if this user cannot write to it or make it, a warning if others may read it."""
    facts: dict[str, Fact] = {"path": str(folder), "exists": folder.exists()}
    if not folder.exists():
        above = next(each for each in folder.parents if each.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            message = f"{folder} will be created at the first start."
            return Check(name="state folder", status="ok", message=message, facts=facts)
        message = f"{folder} cannot be created: {above} is not writable."
        advice = "Set another folder with PROXY_STATE_DIR."
        return Check(name="state folder", status="failed", message=message, advice=advice, facts=facts)
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        message = f"{folder} is not a writable folder."
        advice = f"Make it writable (`chmod u+rwx {folder}`), or set another folder with PROXY_STATE_DIR."
        return Check(name="state folder", status="failed", message=message, advice=advice, facts=facts)
    mode = stat.S_IMODE(folder.stat().st_mode)
    facts["mode"] = f"{mode:04o}"
    if mode & OTHERS:
        message = f"{folder} is accessible to other users (mode {mode:04o}), and it contains stored answers."
        advice = f"Run `chmod 700 {folder}`."
        return Check(name="state folder", status="warning", message=message, advice=advice, facts=facts)
    return Check(
        name="state folder", status="ok", message=f"{folder} is accessible only to you.", facts=facts
    )


def keys_check(settings: Settings) -> Check:
    """Checks the keys file: `failed` if it is invalid, a warning if others may read or change it, or a needed key is
    missing.
    """
    file = settings.keys_path
    facts: dict[str, Fact] = {"path": str(file), "exists": file.exists()}
    try:
        keys = with_default(
            read_keys(file), settings.api_key.get_secret_value() if settings.api_key else None
        )
    except KeysError as error:
        message = f"The keys file is invalid: {error}."
        advice = f"Fix {file}; a running server keeps the keys that it has read before."
        return Check(name="keys", status="failed", message=message, advice=advice, facts=facts)
    facts["count"] = len(keys)
    others = open_to_others(file)
    if others:
        message, advice = f"{file} can be {OPEN[others]} by other users.", f"Run `chmod 600 {file}`."
        return Check(name="keys", status="warning", message=message, advice=advice, facts=facts)
    if keys:
        message = f"Clients need one of {len(keys)}: {', '.join(key.name for key in keys[:SHOWN])}."
    elif file.exists():
        message = f"{file} has no keys, and clients need one: no client is admitted."
        advice = "Create one with `codex-proxy keys add NAME`."
        return Check(name="keys", status="warning", message=message, advice=advice, facts=facts)
    else:
        message = "No keys are needed: only this machine can reach the server."
    return Check(name="keys", status="ok", message=message, facts=facts)


def home_check(settings: Settings) -> Check:
    """Checks Codex's home and sign-in: `failed` if a named home is missing or cannot be read, a warning if others can
    read the sign-in or the default home is missing, `skipped` without Codex.
    """
    folder = settings.codex_home
    facts: dict[str, Fact] = {"path": str(folder), "exists": folder.is_dir()}
    if not runs_codex(settings):
        message = "This agent does not use Codex."
        return Check(name="codex home", status="skipped", message=message, facts=facts)
    if not folder.is_dir():
        if "codex_home" in settings.model_fields_set:
            message, advice = (
                f"{folder} is not there.",
                f"Create {folder} and sign in: run `codex login` with CODEX_HOME={folder}.",
            )
            return Check(name="codex home", status="failed", message=message, advice=advice, facts=facts)
        message = f"{folder} does not exist: Codex has not been used here yet."
        return Check(name="codex home", status="warning", message=message, facts=facts)
    if not os.access(folder, os.R_OK | os.X_OK):
        advice = f"Run `chmod u+rx {folder}`."
        message = f"{folder} is not readable."
        return Check(name="codex home", status="failed", message=message, advice=advice, facts=facts)
    auth = folder / "auth.json"
    if auth.is_file() and stat.S_IMODE(auth.stat().st_mode) & OTHERS:
        message = f"{auth} is readable by other users."
        advice = f"Run `chmod 600 {auth}`."
        return Check(name="codex home", status="warning", message=message, advice=advice, facts=facts)
    return Check(name="codex home", status="ok", message=f"{folder} is there.", facts=facts)


def workspace_check(settings: Settings, environ: Mapping[str, str]) -> Check:
    """Checks the folder of agent turns: `failed` if it cannot be read or protected paths can be written, a warning if
    it is writable for the sandbox only, `skipped` without agents that work in a folder.
    """
    folder = settings.workdir
    facts: dict[str, Fact] = {"path": str(folder), "sandbox": settings.sandbox}
    if is_plain_only(settings):
        message = "This agent does not use a workspace."
        return Check(name="workspace", status="skipped", message=message, facts=facts)
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        message = f"{folder} is not a readable folder."
        advice = "Set the folder to work in with --workdir."
        return Check(name="workspace", status="failed", message=message, advice=advice, facts=facts)
    if settings.sandbox != "read-only" and not os.access(folder, os.W_OK):
        message = (
            f"{folder} is not writable, although --sandbox {settings.sandbox} allows the agent to write."
        )
        advice = "Set a writable folder with --workdir, or omit --sandbox."
        return Check(name="workspace", status="warning", message=message, advice=advice, facts=facts)
    conflict = write_conflict(settings, environ)
    if conflict is not None:
        advice = "Start the server in another folder, or name one with --workdir."
        return Check(name="workspace", status="failed", message=conflict, advice=advice, facts=facts)
    message = f"{folder} (sandbox: {settings.sandbox})."
    return Check(name="workspace", status="ok", message=message, facts=facts)


def mcp_checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """Returns the check of the operator's MCP servers, if configured."""
    return [] if settings.mcp_config is None else [_servers_check(settings, environ)]


def _servers_check(settings: Settings, environ: Mapping[str, str]) -> Check:
    """Checks the file of MCP servers, which are not started: `failed` if it is invalid (the server does not start), a
    warning if a program is missing.
    """
    name = "mcp servers"
    facts: dict[str, Fact] = {"path": str(settings.mcp_config)}
    try:
        servers = configured_servers(settings, environ)
    except McpConfigError as error:
        advice = f"Fix {settings.mcp_config}: the server does not start with it."
        return Check(name=name, status="failed", message=str(error), advice=advice, facts=facts)
    programs, missing = Programs(settings, environ), []
    for label, server in servers.items():
        if isinstance(server, StdioServer):
            try:
                find_program(programs.command(server))
            except SpawnError as error:
                missing.append(f"'{label}' {error}.")
    facts |= {"count": len(servers), "missing": len(missing)}
    if missing:
        advice = "Fix these MCP servers, or set `disabled` for them: there are no tools of theirs."
        return Check(name=name, status="warning", message=" ".join(missing), advice=advice, facts=facts)
    more = ", ..." if len(servers) > SHOWN else ""
    shown = f": {', '.join(list(servers)[:SHOWN])}{more}" if servers else ""
    message = f"{len(servers)} in {settings.mcp_config}{shown}."
    return Check(name=name, status="ok", message=message, facts=facts)
