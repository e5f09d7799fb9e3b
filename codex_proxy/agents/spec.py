"""What an agent declares about itself, whether it is built in or comes from another package."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from codex_proxy.process.launch import ChildLimits, child_environment

if TYPE_CHECKING:
    from pathlib import Path

    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.base import Capability
    from codex_proxy.commands.checkup import Check
    from codex_proxy.config import Settings
    from codex_proxy.core.ids import Clock


class NoAgentError(Exception):
    """No agent can serve. The text says what to do."""


class UpstreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the table of one upstream says beyond the settings that there are for a single one."""

    headers: Mapping[str, str] = {}
    """Sent with every request."""
    models: tuple[str, ...] = ()
    """Its models: names, and patterns with `*`. Empty: those that it lists."""
    cannot: frozenset[Capability] = frozenset()
    refuses: frozenset[str] = frozenset()
    """Optional fields that it answers with an error."""
    health_interval: float | None = None
    """Seconds between two looks at its list of models; None: as usual."""


class AgentContext(msgspec.Struct, frozen=True):
    """What an agent is made from: the settings, the server's environment and its clock."""

    settings: Settings
    environ: Mapping[str, str]
    """The server's environment variables. An agent from another package reads its settings from here."""
    clock: Clock
    name: str = ""
    """What the agent is called among several of one server; empty where it serves alone."""
    upstream: UpstreamOptions = UpstreamOptions()
    """Of an agent that is an upstream."""

    @property
    def state_dir(self) -> Path:
        """The folder for what the agent keeps: of several agents each has its own."""
        folder = self.settings.state_dir
        return folder / "agents" / self.name if self.name else folder

    @property
    def child_limits(self) -> ChildLimits:
        """The limits on memory, files and processes that the settings put on each child."""
        return child_limits(self.settings)

    def child_environment(self, *names: str) -> dict[str, str]:
        """Returns the environment of a child: the usual variables, those in PROXY_CHILD_ENV, and `names`."""
        return child_environment(self.environ, extra=(*self.settings.child_env_names, *names))


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One agent: its name, what it can do, and how it is made and checked.

    The module of a spec is imported when its agent is chosen, or when all agents are listed. `make` and `check`
    import what only they need.
    """

    name: str
    """Its name for `--agent`, in answers and in the log."""
    summary: str
    """What it is, in a few words for a table."""
    processes: str
    """Which processes it starts, in a few words for a table."""
    make: Callable[[AgentContext], Awaitable[Agent]]
    """Makes the agent, which is started later. Raises `NoAgentError` or `Fault`, with a text that says what to do."""
    check: Callable[[AgentContext], Awaitable[list[Check]]]
    """Returns the checks of `doctor`: whether a turn would work, found out without running one. Leaves no process."""
    capabilities: frozenset[Capability] = frozenset()
    """What it can do. A request that needs more is refused."""
    variants: Mapping[str, frozenset[Capability]] = {}
    """Where a setting changes what it can do: the capabilities of each case, by its name, for the tables."""
    settings: frozenset[str] = frozenset()
    """The settings of the server that its table of the settings file (`[agents.NAME]`) may have for itself."""
    family: str = ""
    """What agents that are driven in the same way and can do the same are called together: they share a column in
    tables."""
    made_up: bool = False
    """Its answers come from no model. The server warns of that when it starts."""
    confined: bool = False
    """The commands that it runs are kept in the sandbox of the settings. Else the server warns when it starts."""
    plain_only: bool = False
    """It is only ever a plain model: it has no folder, commands or sandbox, and no request can ask for agent mode."""
    bounds_silence: bool = False
    """It has its own time limits for silence, before the first word and after; the server's hold only where the
    operator has set them."""
    uses_codex: bool = False
    """It runs Codex: Codex's home, program and config.toml are protected and read."""


def child_limits(settings: Settings) -> ChildLimits:
    """Returns the limits that the settings put on each child."""
    return ChildLimits(
        open_files=settings.child_open_files,
        address_space=settings.child_address_space,
        processes=settings.child_processes,
    )
