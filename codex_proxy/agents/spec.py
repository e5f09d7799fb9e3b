"""The declaration of an agent (`AgentSpec`), whether it is built in or comes from another package."""

from __future__ import annotations

import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from codex_proxy.core.checks import Check, Installation
from codex_proxy.core.faults import UserError
from codex_proxy.process.launch import ChildLimits, child_environment

if TYPE_CHECKING:
    from pathlib import Path

    from codex_proxy.agents.agent import Agent
    from codex_proxy.core.interfaces import Clock
    from codex_proxy.core.options import Capability
    from codex_proxy.settings.fields import Settings


PROGRAM_SETTINGS: Final = frozenset({
    "workdir", "workdir_roots", "sandbox", "builtin_tools", "show_activity",
    "child_env", "child_limits",
    "kept_threads", "kept_thread_seconds",
})  # fmt: skip


class NoAgentError(UserError):
    """The chosen agent cannot be used. The message says what to do."""


class AgentContext(msgspec.Struct, frozen=True):
    settings: Settings
    environ: Mapping[str, str]
    clock: Clock
    name: str = ""
    """The agent's name if it is one of several; else empty."""
    table: str = ""
    """The table in which the agent's address is, like `[upstreams.groq]`; empty if it is a setting outside of tables.
    """
    peers: Mapping[str, Agent] = {}
    """The agents of a server that has several, by name, as they are made."""

    @property
    def state_dir(self) -> Path:
        folder = self.settings.state_dir
        return folder / "agents" / self.name if self.name else folder

    def where_set(self, flag: str, key: str = "") -> str:
        """Returns where a setting is set, for messages: `KEY of [agents.NAME]` if the server has several agents, else
        the flag. `flag` is its name with `_`; `key` the setting's, if it differs.
        """
        return f"{key or flag} of [agents.{self.name}]" if self.name else f"--{flag.replace('_', '-')}"

    @property
    def child_limits(self) -> ChildLimits:
        return child_limits(self.settings)

    def child_environment(self, *names: str) -> dict[str, str]:
        """Returns a child's variables: harmless ones, those named in PROXY_CHILD_ENV, and `names`."""
        return child_environment(self.environ, extra=(*self.settings.child_env_names, *names))


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Declares an agent. Its module is also imported when agents are listed, so what only `make` and `check` need is
    imported when they are called (see `later`).
    """

    name: str
    """The name for `--agent`, answers and the log."""
    summary: str
    make: Callable[[AgentContext], Awaitable[Agent]]
    """Returns the agent, not yet started. Raises `NoAgentError` or `Fault`, or `OSError` for its files and folders."""
    check: Callable[[AgentContext], Awaitable[list[Check]]]
    """Returns the checks of `doctor`: whether a turn would work, without running one. Ends every process that it
    starts. Raises `OSError` for the agent's files and folders.
    """
    installation: Callable[[AgentContext], Awaitable[Installation]] | None = None
    """Returns what is known of the agent without a start of it, for `codex-proxy agents`; None: it is not in that list.
    Asks at most the program for its release, and nobody over a network.
    """
    capabilities: frozenset[Capability] = frozenset()
    """What the agent can do. A request that needs more is refused."""
    variants: Mapping[str, frozenset[Capability]] = {}
    """Capabilities that depend on a setting, by its value, or that are known only when the agent has started."""
    settings: frozenset[str] = frozenset()
    """The keys that its table `[agents.NAME]` may contain."""
    server_settings: frozenset[str] = frozenset()
    """Settings of the server that have an effect with this agent but not with every one."""
    family: str = ""
    """The common name of agents with the same capabilities, for the documentation."""
    is_fake: bool = False
    """Whether the answers come from no model. The server warns then."""
    confined: bool = False
    """Whether the agent's commands run in the sandbox of the settings. If not, the server warns."""
    plain_only: bool = False
    """Whether the agent only serves plain models: no folder, commands or sandbox, and no agent mode."""
    has_own_timeouts: bool = False
    """Whether the agent itself limits a model's silence. The server's limits then apply only if they are set."""
    made_at_start: bool = False
    """Whether the agent of a server with several is made before a turn needs it, since making it starts and reads
    nothing.
    """
    uses_codex: bool = False
    """Whether the agent runs Codex, whose home, program and config.toml are read and protected."""

    def possible_capabilities(self, settings: Settings) -> frozenset[Capability]:
        """All capabilities that the agent may have with these settings."""
        values = {str(getattr(settings, name, "")) for name in self.settings}
        chosen = self.variants.keys() & values or self.variants.keys()
        return frozenset().union(*(self.variants[name] for name in chosen)) or self.capabilities

    @property
    def effective_settings(self) -> frozenset[str]:
        """All settings that have an effect with this agent but not with every one."""
        return self.settings | self.server_settings | (frozenset() if self.plain_only else PROGRAM_SETTINGS)


def child_limits(settings: Settings) -> ChildLimits:
    return ChildLimits(**settings.child_limits)


def later(function: str, *first: Any) -> Callable[[AgentContext], Awaitable[Any]]:
    """Returns a coroutine function of an `AgentContext`: when called, it imports `function` (`module:function`), and
    calls that with the arguments `first` and the context.
    """

    async def call(context: AgentContext) -> Any:
        return await pkgutil.resolve_name(function)(*first, context)

    return call
