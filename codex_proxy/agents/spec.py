"""The declaration of an agent (`AgentSpec`), whether it is built in or comes from another package."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from codex_proxy.core.checks import Check
from codex_proxy.process.launch import ChildLimits, child_environment

if TYPE_CHECKING:
    from pathlib import Path

    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.dialect import Capability
    from codex_proxy.agents.upstream.agent import UpstreamAgent
    from codex_proxy.agents.upstream.config import UpstreamConfig
    from codex_proxy.core.interfaces import Clock
    from codex_proxy.settings.fields import Settings


OF_PROGRAMS: Final = frozenset(
    {
        *("workdir", "workdir_roots", "sandbox", "builtin_tools", "show_activity"),
        *("child_env", "child_limits"),
        *("kept_threads", "kept_thread_seconds"),
    }
)
"""The settings that have an effect only with agents that are programs, which run here and may act."""


class NoAgentError(Exception):
    """The chosen agent does not exist or cannot be used. The text says what to do."""


class AgentContext(msgspec.Struct, frozen=True):
    """Everything from which an agent is created: the settings, the server's environment and its clock."""

    settings: Settings
    """The settings of this agent."""
    environ: Mapping[str, str]
    """The server's environment variables. An agent from another package reads its settings from here."""
    clock: Clock
    """The server's clock."""
    name: str = ""
    """The agent's name if the server has several agents; else empty."""
    upstream: UpstreamConfig | None = None
    """The configuration of the upstream, if the agent is one."""
    upstreams: Mapping[str, UpstreamAgent] = {}
    """All upstreams of the server by name, if it has several agents."""
    upstream_table: str = ""
    """The table that it is in, like `[upstreams.groq]`; empty if settings without a table name its address."""

    @property
    def state_dir(self) -> Path:
        """The folder for the agent's own files. If the server has several agents, each has its own folder."""
        folder = self.settings.state_dir
        return folder / "agents" / self.name if self.name else folder

    def where_set(self, flag: str, key: str = "") -> str:
        """Returns the place where the operator sets a setting for this agent, for an advice in a message: `KEY of
        [agents.NAME]` if the server has several agents, since a flag applies to all of them; else the flag, like
        `--codex-home`. `flag` is its name with `_`, and `key` that of the setting if it is another one.
        """
        return f"{key or flag} of [agents.{self.name}]" if self.name else f"--{flag.replace('_', '-')}"

    @property
    def child_limits(self) -> ChildLimits:
        """The limits on open files, memory and processes that the settings put on each child process."""
        return child_limits(self.settings)

    def child_environment(self, *names: str) -> dict[str, str]:
        """Returns the environment of a child process: the harmless variables of the server's (PATH, HOME, locale,
        proxies and the like), those named in PROXY_CHILD_ENV, and `names`.
        """
        return child_environment(self.environ, extra=(*self.settings.child_env_names, *names))


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Declares an agent: its name, what it can do, and how it is made and checked.

    The module of a spec is imported when its agent is chosen, or when all agents are listed. So imports that only
    `make` and `check` need are inside of these.
    """

    name: str
    """The agent's name: for `--agent`, in answers and in the log."""
    summary: str
    """A few words about the agent, for a table."""
    make: Callable[[AgentContext], Awaitable[Agent]]
    """Returns the agent, not yet started. Raises `NoAgentError` or `Fault`, whose text says what to do."""
    check: Callable[[AgentContext], Awaitable[list[Check]]]
    """Returns the checks of the command `doctor`. They determine whether a turn would work, without running one,
    and end every process that they start.
    """
    capabilities: frozenset[Capability] = frozenset()
    """What the agent can do. A request that needs another capability is refused."""
    variants: Mapping[str, frozenset[Capability]] = {}
    """If a setting changes the agent's capabilities: the capabilities of each case, by its name, for the tables in
    the documentation."""
    settings: frozenset[str] = frozenset()
    """The settings that the agent's table `[agents.NAME]` in the settings file may contain."""
    server_settings: frozenset[str] = frozenset()
    """Further settings, of the server as a whole, that have an effect with this agent but not with every agent."""
    family: str = ""
    """The common name of agents that have the same capabilities. They share a column in the tables of the
    documentation."""
    is_fake: bool = False
    """Whether the answers do not come from a model. If so, the server warns when it starts."""
    confined: bool = False
    """Whether the agent's commands run in the sandbox of the settings. If not, the server warns when it starts."""
    plain_only: bool = False
    """Whether the agent only serves plain models: the model answers without an agent's own prompt and tools. Such
    an agent has no folder, commands or sandbox, and requests cannot ask for agent mode."""
    has_own_timeouts: bool = False
    """Whether the agent limits by itself how long a model may be silent. If so, the server's limits apply only if
    the operator has set them."""
    uses_codex: bool = False
    """Whether the agent runs Codex. If so, Codex's home, program and config.toml are read and protected."""

    @property
    def effective_settings(self) -> frozenset[str]:
        """The settings that have an effect with this agent but not with every agent."""
        return self.settings | self.server_settings | (frozenset() if self.plain_only else OF_PROGRAMS)


def child_limits(settings: Settings) -> ChildLimits:
    """Returns the limits on open files, memory and processes that the settings put on each child process."""
    return ChildLimits(**settings.child_limits)
