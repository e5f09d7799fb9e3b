"""Makes the spec of each agent that runs Codex: `auto`, and one for each protocol."""

from __future__ import annotations

from typing import Any, Literal

from codex_proxy.agents.codex.spec import CodexAgentName
from codex_proxy.agents.spec import AgentContext, AgentSpec
from codex_proxy.core.checks import Check


def codex_agent_spec(name: Literal["auto"] | CodexAgentName, **more: Any) -> AgentSpec:
    """Returns the spec of an agent that runs Codex. `more` are other fields."""

    async def check(context: AgentContext) -> list[Check]:
        from codex_proxy.agents.codex.checks import codex_checks

        return await codex_checks(context, name)

    return AgentSpec(name=name, check=check, confined=True, uses_codex=True, **more)
