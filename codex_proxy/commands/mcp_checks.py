"""The operator's MCP servers, as `doctor` looks at them: whether their file can be read and their programs are there.

Nothing is started, and nothing is connected to.
"""

from __future__ import annotations

from collections.abc import Mapping

from codex_proxy.commands.checkup import Check, Fact
from codex_proxy.config import Settings
from codex_proxy.mcp.config import StdioServer
from codex_proxy.mcp_setup import McpConfigError, Programs, configured_servers
from codex_proxy.process.launch import SpawnError, find_program

SHOWN = 10  # names of servers in a message


def mcp_checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """One check, or none where the operator has no servers."""
    return [] if settings.mcp_config is None else [_servers_check(settings, environ)]


def _servers_check(settings: Settings, environ: Mapping[str, str]) -> Check:
    """A file that cannot be read keeps the server from starting; a program that is not there costs its tools."""
    name = "mcp servers"
    facts: dict[str, Fact] = {"path": str(settings.mcp_config)}
    try:
        servers = configured_servers(settings, environ)
    except McpConfigError as error:
        advice = f"Mend {settings.mcp_config}: the server does not start with it."
        return Check(name=name, status="failed", message=str(error), advice=advice, facts=facts)
    programs, missing = Programs(settings, environ), []
    for label, server in servers.items():
        if isinstance(server, StdioServer):
            try:
                find_program(programs.command((server.command, *server.args), server.env, server.cwd))
            except SpawnError as error:
                missing.append(f"'{label}' {error}.")
    facts |= {"count": len(servers), "missing": len(missing)}
    if missing:
        advice = "Mend these MCP servers, or set `disabled` for them: there are no tools of theirs."
        return Check(name=name, status="warning", message=" ".join(missing), advice=advice, facts=facts)
    more = ", ..." if len(servers) > SHOWN else ""
    shown = f": {', '.join(list(servers)[:SHOWN])}{more}" if servers else ""
    message = f"{len(servers)} in {settings.mcp_config}{shown}."
    return Check(name=name, status="ok", message=message, facts=facts)
