"""The names that an agent in another package needs. Import them from here: they may move in the other modules.

The values that a dialect reads and returns are in `codex_proxy.core.turn`, `codex_proxy.core.items`,
`codex_proxy.core.events` and `codex_proxy.core.faults`. docs/adding-an-agent.md is a guide.
"""

from __future__ import annotations

from codex_proxy.agents.agent import Agent, AgentBase, ProcessCounts
from codex_proxy.agents.dialect import NOTHING, Decision, Dialect, Ended, Reply, SingleTurn, Step, ToolReply
from codex_proxy.agents.sessions.child_per_turn import ChildPerTurnAgent, ChildSpec
from codex_proxy.agents.shared.failures import failure_from_exit, failure_from_text
from codex_proxy.agents.spec import AgentContext, AgentSpec, NoAgentError
from codex_proxy.core.account import AgentModel
from codex_proxy.core.checks import Check
from codex_proxy.core.options import Capability
from codex_proxy.parts import Part
from codex_proxy.process.child import Command
from codex_proxy.process.launch import SpawnError, find_program

__all__ = [
    "NOTHING",
    "Agent",
    "AgentBase",
    "AgentContext",
    "AgentModel",
    "AgentSpec",
    "Capability",
    "Check",
    "ChildPerTurnAgent",
    "ChildSpec",
    "Command",
    "Decision",
    "Dialect",
    "Ended",
    "NoAgentError",
    "Part",
    "ProcessCounts",
    "Reply",
    "SingleTurn",
    "SpawnError",
    "Step",
    "ToolReply",
    "failure_from_exit",
    "failure_from_text",
    "find_program",
]
