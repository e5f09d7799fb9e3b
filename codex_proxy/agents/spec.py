"""What an agent declares of itself, whether it is built in or comes from a package of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from codex_proxy.process.environment import child_environment
from codex_proxy.process.launch import ChildLimits

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.base import Capability
    from codex_proxy.commands.checkup import Check
    from codex_proxy.config import Settings
    from codex_proxy.core.ids import Clock


class NoAgentError(Exception):
    """There is no agent to serve with. The text says what to do."""


class AgentContext(msgspec.Struct, frozen=True):
    """What an agent is made from: the settings, the environment of the server, and the clock."""

    settings: Settings
    environ: Mapping[str, str]
    """The server's own variables. An agent in a package of its own reads its settings from here."""
    clock: Clock

    @property
    def child_limits(self) -> ChildLimits:
        """What each child may take of the machine, as the settings have it."""
        return child_limits(self.settings)

    def child_environment(self, *names: str) -> dict[str, str]:
        """The variables that a child may see: the usual ones, those of PROXY_CHILD_ENV, and `names`."""
        from codex_proxy.config import split_list

        return child_environment(self.environ, extra=(*split_list(self.settings.child_env), *names))


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One agent: what it is, what it can do, and how it is made and checked.

    The module of a spec is imported when its agent is chosen, or when the agents are listed: what only `make` and
    `check` need is imported in them.
    """

    name: str
    """What `--agent` calls it, and what answers and logs name it by."""
    summary: str
    """What it is, in a few words for a table."""
    processes: str
    """What processes it keeps, in a few words for a table."""
    make: Callable[[AgentContext], Awaitable[Agent]]
    """Makes the agent, which is started afterwards. Raises `NoAgentError`, or a `Fault`, that says what to do."""
    check: Callable[[AgentContext], Awaitable[list[Check]]]
    """What `doctor` finds: whether a turn would work, without running one. Leaves no process."""
    capabilities: frozenset[Capability] = frozenset()
    """What it can do. A request that needs more is refused."""
    variants: Mapping[str, frozenset[Capability]] = {}
    """Where what it can do depends on a setting: each case by name, for the tables."""
    made_up: bool = False
    """Its answers are made up; the server warns of that."""
    confined: bool = False
    """What it runs is kept in the sandbox of the settings. Where it is not, the server says so when it starts."""
    plain_only: bool = False
    """Every turn is one of a plain model: it has no folder, commands or sandbox, and no turn may ask for an agent."""
    bounds_silence: bool = False
    """It has time limits of its own for silence, before the first word and later; those of the server hold only where
    the operator sets them."""
    uses_codex: bool = False
    """It runs Codex, so that Codex's home, program and config.toml are protected and obeyed."""


def child_limits(settings: Settings) -> ChildLimits:
    """What each child may take of the machine, as the settings have it."""
    return ChildLimits(
        open_files=settings.child_open_files,
        address_space=settings.child_address_space,
        processes=settings.child_processes,
    )
