"""Keeps the commands of agent turns from reading protected paths, where Codex can."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import structlog

from codex_proxy.agents.codex.command_sandbox import sandbox_variables
from codex_proxy.agents.codex.program import output_of
from codex_proxy.agents.codex.sandbox_config import Profiles
from codex_proxy.agents.codex.switches import arguments_of
from codex_proxy.core.faults import Fault
from codex_proxy.core.turn import Turn
from codex_proxy.process.launch import child_environment

log = structlog.get_logger(__name__)


class ConfinedReads:
    """Gives such turns a permission profile. Asks Codex once whether it can limit reading, and again after a no."""

    def __init__(self, program: str, profiles: Profiles, environment: Mapping[str, str]) -> None:
        self._profiles = profiles
        self._program = program
        self._environment = environment
        self._asked: asyncio.Task[bool] | None = None

    async def limit(self, turn: Turn) -> Turn:
        """Returns the turn, with a profile if it is an agent turn that must not read protected paths."""
        if turn.mode == "model" or not turn.confine_reads:
            return turn
        if self._asked is None or (self._asked.done() and not self._asked.result()):
            self._asked = asyncio.ensure_future(self.can_confine())
        if not await asyncio.shield(self._asked):
            return turn
        return msgspec.structs.replace(turn, permissions=self._profiles.of(turn.sandbox))

    async def can_confine(self) -> bool:
        """Whether Codex can (bubblewrap and user namespaces, or macOS): runs `true`, in 0.1 s. Logs why not."""
        name, switches = str(self._profiles.of("read-only")), arguments_of(self._profiles.pairs())
        try:
            with sandbox_variables() as variables:
                command = (self._program, "sandbox", *switches, "-P", name, "-C", "/", "--", "true")
                await output_of(command, child_environment(self._environment) | variables)
        except (Fault, OSError) as fault:
            log.warning("agent_reads_not_confined", reason=str(fault))
            return False
        return True

    def close(self) -> None:
        if self._asked is not None:
            self._asked.cancel()
