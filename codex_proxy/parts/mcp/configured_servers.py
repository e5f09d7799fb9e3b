"""The MCP servers of the settings: reads and checks their file, and makes them a part of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from codex_proxy.agents.spec import child_limits
from codex_proxy.app.server_parts import ServerPart, ServerParts
from codex_proxy.core.checks import Check, CheckBuilder
from codex_proxy.core.faults import UserError
from codex_proxy.core.tool_names import ToolServerState
from codex_proxy.files.private import read_regular
from codex_proxy.parts import own_settings
from codex_proxy.parts.mcp import McpSettings
from codex_proxy.parts.mcp.config import Definition, StdioServer, parse_servers
from codex_proxy.process.launch import Command, SpawnError, child_environment, find_program
from codex_proxy.settings.fields import Settings

if TYPE_CHECKING:
    from codex_proxy.parts.mcp.tool_source import McpToolSource

NOT_INSTALLED: Final = (
    "MCP servers need the extra `mcp`: install it with `pip install 'codex-openai-proxy[mcp]'`, or remove "
    "PROXY_MCP_CONFIG and PROXY_MCP_ALLOWED_URLS."
)
MAX_FILE_BYTES: Final = 1 << 20
BANNER_SECONDS: Final = 6.0
"""Seconds for which the banner waits for MCP servers: one that cannot be reached is known after some five."""
MAX_NAMES_SHOWN: Final = 10


def configured_servers(settings: Settings, environ: Mapping[str, str]) -> dict[str, Definition]:
    """Returns the servers of PROXY_MCP_CONFIG by name. `environ`: the variables to which its file may refer. Raises
    `UserError`, also if the package for MCP is missing.
    """
    if find_spec("mcp") is None:
        raise UserError(NOT_INSTALLED)
    config = own_settings(settings, McpSettings).mcp_config
    if config is None:
        return {}
    file = config.expanduser()
    try:
        return parse_servers(read_regular(file, MAX_FILE_BYTES), environ)
    except OSError as error:
        raise UserError(f"PROXY_MCP_CONFIG: {file} cannot be read: {error.strerror}.") from error
    except OverflowError as error:
        raise UserError(f"PROXY_MCP_CONFIG: {file} is longer than {MAX_FILE_BYTES >> 20} MiB.") from error
    except ValueError as error:
        raise UserError(f"PROXY_MCP_CONFIG: {file}: {error}.") from error


class Programs:
    """Makes the commands of MCP servers."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._environment = child_environment(environ, extra=settings.child_env_names)
        self._limits = child_limits(settings)
        config = own_settings(settings, McpSettings).mcp_config
        self._folder = (config or Path()).expanduser().absolute().parent

    def command(self, server: StdioServer) -> Command:
        """Returns a server's command. Its `cwd` is relative to the folder of the operator's file."""
        return Command(
            argv=(server.command, *server.args),
            env={**self._environment, **server.env},
            # Relative paths in the file work there. Never `/tmp`: interpreters load files from where they start.
            cwd=str(self._folder / (server.cwd or "")),
            limits=self._limits,
        )


async def checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """Checks the MCP servers: `failed` if their file is invalid, a warning if a program is missing. Returns nothing
    without a file.
    """
    return await asyncio.to_thread(_checks, settings, environ)


def _checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    config = own_settings(settings, McpSettings).mcp_config
    if config is None:
        return []
    check = CheckBuilder("mcp servers", path=str(config))
    try:
        servers = configured_servers(settings, environ)
    except UserError as error:
        return [check.failed(str(error), f"Fix {config}: the server does not start with it.")]
    programs, missing = Programs(settings, environ), []
    for label, server in servers.items():
        if isinstance(server, StdioServer):
            try:
                find_program(programs.command(server))
            except SpawnError as error:
                missing.append(f"'{label}' {error}.")
    check.facts |= {"count": len(servers), "missing": len(missing)}
    if missing:
        advice = "Fix these MCP servers, or set `disabled` for them. Until then their tools are missing."
        return [check.warning(" ".join(missing), advice)]
    more = ", ..." if len(servers) > MAX_NAMES_SHOWN else ""
    shown = f": {', '.join(list(servers)[:MAX_NAMES_SHOWN])}{more}" if servers else ""
    return [check.ok(f"{len(servers)} in {config}{shown}.")]


class McpServers(ServerPart):
    """The MCP servers of one server. `source` has their tools, unless cassettes answer for them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.source: McpToolSource | None = None

    def tools(self, server: ServerParts) -> McpToolSource:
        # Imported here, since most servers have no MCP servers.
        from codex_proxy.parts.mcp.tool_source import tool_source

        definitions = configured_servers(server.settings, self._environ)
        programs = Programs(server.settings, self._environ)
        self.source = tool_source(
            definitions, programs.command, server.settings, server.clock, server.runs.services.checks
        )
        if "mcp_config" not in server.settings_without_effect():
            self.source.start()
        return self.source

    async def before_banner(self) -> None:
        if self.source is not None:
            await self.source.wait_started(BANNER_SECONDS)

    def banner(self) -> list[str]:
        return [] if self.source is None else [_line_of(state) for state in self.source.states]

    async def close(self) -> None:
        if self.source is not None:
            await self.source.close()


def server_part(settings: Settings, environ: Mapping[str, str]) -> McpServers | None:
    own = own_settings(settings, McpSettings)
    return None if own.mcp_config is None and not own.mcp_allowed_urls else McpServers(environ)


def _line_of(state: ToolServerState) -> str:
    if state.status == "failed":
        return f"  TROUBLE    {state.trouble}"
    tools = "still starting" if state.tools is None else f"{state.tools} tool{'s' * (state.tools != 1)}"
    return f"  MCP        {state.name}: {tools}"
