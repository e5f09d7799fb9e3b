"""The operator's MCP servers as the settings name them: read from their file, and started as programs.

Part of the wiring, like `app`. Nothing is started by reading; `commands.doctor` looks at the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from codex_proxy.agents.spec import child_limits
from codex_proxy.config import Settings, split_list
from codex_proxy.mcp.config import Definition, parse_servers
from codex_proxy.mcp.interfaces import Process, ProcessListener, StartError
from codex_proxy.process.child import Command, SpawnError, spawn
from codex_proxy.process.environment import child_environment


class McpConfigError(Exception):
    """The operator's servers cannot be read. The text says what is wrong, and in which file."""


def configured_servers(settings: Settings, environ: Mapping[str, str]) -> dict[str, Definition]:
    """The servers of PROXY_MCP_CONFIG by name; none without it. Raises `McpConfigError`."""
    if settings.mcp_config is None:
        return {}
    file = settings.mcp_config.expanduser()
    try:
        return parse_servers(file.read_bytes(), environ)
    except OSError as error:
        raise McpConfigError(f"PROXY_MCP_CONFIG: {file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise McpConfigError(f"PROXY_MCP_CONFIG: {file}: {error}.") from error


class Programs:
    """Starts servers that are programs, under the warden, with what every child may see and take.

    They start in the folder of the file that names them, from which relative paths lead on. Not in that for temporary
    files: interpreters and package runners load what lies where they start, and there anybody may put something.
    """

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._environment = child_environment(environ, extra=split_list(settings.child_env))
        self._limits = child_limits(settings)
        self._folder = (settings.mcp_config or Path()).expanduser().absolute().parent

    def command(self, argv: tuple[str, ...], env: Mapping[str, str], cwd: str | None) -> Command:
        """What is started for a server."""
        folder = str(self._folder / (cwd or ""))
        return Command(argv=argv, env={**self._environment, **env}, cwd=folder, limits=self._limits)

    async def __call__(
        self, argv: tuple[str, ...], env: Mapping[str, str], cwd: str | None, listener: ProcessListener
    ) -> Process:
        try:
            return await spawn(self.command(argv, env, cwd), listener)
        except SpawnError as error:
            raise StartError(str(error)) from error
