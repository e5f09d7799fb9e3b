"""Whether this server can serve an agent of the Managed Agents API: its model is one of the key's, and the agent of
that model can do what the definition says. Asked when a definition is stored, so that no program believes in a question
or a limit that nobody keeps. Source: docs/managed-agents.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from codex_proxy.admission.clients import Client, model_not_allowed
from codex_proxy.agents.agent import Agent, agent_for
from codex_proxy.core.faults import Fault
from codex_proxy.core.own_tools import toolset_faults
from codex_proxy.core.turn import Toolset
from codex_proxy.parts.managed_agents.agents import tools_of
from codex_proxy.parts.managed_agents.environments import refused
from codex_proxy.parts.sessions.agents import TOOLSET, AgentSettings
from codex_proxy.parts.sessions.approvals import MAY_NOT_ASK
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.surfaces.models import resolve


def check_served(sessions: Sessions, owner: str, settings: AgentSettings, place: str = "") -> None:
    """Raises `Fault` for an agent that this server cannot serve. `place`: the path of its fields (`agent.`)."""
    client = sessions.responses.clients.by_name(owner)
    resolved = resolve(settings.model, client.catalog)
    if not client.allows(resolved.agent_model, settings.effort or resolved.effort):
        raise model_not_allowed(settings.model)
    agent = agent_for(sessions.responses.runs.agent, resolved.agent_model)
    if settings.subagents and "subagents" not in agent.capabilities:
        message = f"the agent {agent.name} cannot run threads. Leave it out, or use a model of another agent."
        raise refused(message, f"{place}multiagent")
    tools = tools_of(settings.tools)
    for index, tool in enumerate(tools):
        if tool["type"] == "custom" and "client_tools" not in agent.capabilities:
            message = f"the agent {agent.name} takes no tools of the client. Use a model of another agent."
            raise refused(message, f"{place}tools[{index}]")
    if settings.toolset is not None:
        _check_toolset(settings.toolset, agent, client, tools, place)


def _check_toolset(
    toolset: Toolset, agent: Agent, client: Client, tools: Sequence[Mapping[str, Any]], place: str
) -> None:
    index = next((index for index, tool in enumerate(tools) if tool["type"] == TOOLSET), 0)
    for fault in toolset_faults(toolset, agent.own_tools, client.settings.sandbox, agent.name):
        named = [config["name"] for config in tools[index]["configs"]]
        config = f"configs[{named.index(fault.name)}]" if fault.name in named else "default_config"
        raise refused(fault.message, f"{place}tools[{index}].{config}")
    if toolset.asks and not client.has_approver:
        raise Fault(MAY_NOT_ASK)
