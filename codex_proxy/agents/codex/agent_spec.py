"""Makes the spec of each agent that runs Codex: `auto`, and one for each protocol."""

from __future__ import annotations

from typing import Any, Literal

from codex_proxy.agents.spec import AgentSpec, later

CodexAgentName = Literal["codex-app-server", "codex-proto", "codex-exec"]

CODEX_SETTINGS = frozenset({"codex_bin", "codex_home", "codex_model", "child_env"})
PLAIN_CODEX_SETTINGS = CODEX_SETTINGS | {"agent_confinement", "agent_state_folders"}
"""The settings of agents with plain-model turns."""


def codex_agent_spec(name: Literal["auto"] | CodexAgentName, make: str, **more: Any) -> AgentSpec:
    """Returns the spec of an agent that runs Codex. `make` is the name for `later`, `more` are other fields."""
    check = later("codex_proxy.agents.codex.checks:codex_checks", name)
    return AgentSpec(name=name, make=later(make), check=check, confined=True, uses_codex=True, **more)
