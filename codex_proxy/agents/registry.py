"""The registry of agents: the built-in ones by name, and the choice of the agent that serves.

An agent is one line here. A line is read like an entry point: `name: "module:attribute"`, where the attribute is an
`AgentSpec`. A module is imported only when its agent is used, so that a start pays for one agent.

The operator names plugins: with `--agent-plugin module:SPEC`, or with `--agent NAME` where an installed package has
the entry point NAME in the group `codex_proxy.agents`. An installed package that nobody names is not imported, and
none can take the name of a built-in agent.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.spec import AgentContext, AgentSpec
    from codex_proxy.config import Settings

BUILT_IN: Final[Mapping[str, str]] = {
    "codex-app-server": "codex_proxy.agents.codex_app_server.spec:SPEC",
    "codex-proto": "codex_proxy.agents.codex_proto.spec:SPEC",
    "codex-exec": "codex_proxy.agents.codex_exec.spec:SPEC",
    "claude-code": "codex_proxy.agents.claude_code.spec:SPEC",
    "openai-chat": "codex_proxy.agents.openai_chat.spec:SPEC",
    "gemini": "codex_proxy.agents.acp.spec:GEMINI_SPEC",
    "qwen": "codex_proxy.agents.acp.spec:QWEN_SPEC",
    "opencode": "codex_proxy.agents.acp.spec:OPENCODE_SPEC",
    "copilot": "codex_proxy.agents.acp.spec:COPILOT_SPEC",
    "claude-acp": "codex_proxy.agents.acp.spec:CLAUDE_ACP_SPEC",
    "codex-acp": "codex_proxy.agents.acp.spec:CODEX_ACP_SPEC",
    "acp": "codex_proxy.agents.acp.spec:ACP_SPEC",
    "fake": "codex_proxy.agents.fake:SPEC",
}

DEFAULT: Final = "auto"
"""The agent of the plugin where one is named; else the one of `DEFAULT_SPEC`."""
DEFAULT_SPEC: Final = "codex_proxy.agents.codex.spec:AUTO"

GROUP: Final = "codex_proxy.agents"
"""The group of entry points in which installed packages list their agents."""


def names() -> tuple[str, ...]:
    """Returns the names that `--agent` takes without a plugin."""
    return (DEFAULT, *BUILT_IN)


def specs() -> tuple[AgentSpec, ...]:
    """Imports and returns the spec of every built-in agent, in the order of the registry."""
    return tuple(_load(line) for line in BUILT_IN.values())


def agent_able_to(capability: str) -> str | None:
    """Returns the name of the first built-in agent with the capability, to recommend in an error; None where there is
    none."""
    return next((spec.name for spec in specs() if capability in spec.capabilities), None)


def check_name(agent: str, plugin: str | None) -> None:
    """Whether `--agent` can mean something, as far as that is known without importing a plugin. Raises `ValueError`."""
    if agent not in names() and plugin is None and agent not in _entry_points():
        known = ", ".join((*names(), *sorted(_entry_points())))
        raise ValueError(
            f"there is no agent {agent!r} (there are {known}); an agent of a package of your own is named with "
            "--agent-plugin MODULE:SPEC"
        )


def plugin_reference(settings: Settings) -> str | None:
    """Returns the `module:attribute` of the plugin whose agent serves; None where a built-in agent serves."""
    if settings.agent in BUILT_IN:
        return None
    if settings.agent_plugin is not None or settings.agent == DEFAULT:
        return settings.agent_plugin
    return _entry_points().get(settings.agent)


def chosen_spec(settings: Settings) -> AgentSpec:
    """Returns the spec of the agent that the settings choose. Raises `NoAgentError` where its plugin cannot be used."""
    reference = plugin_reference(settings)
    if reference is None:
        return _load(BUILT_IN.get(settings.agent, DEFAULT_SPEC))
    from codex_proxy.agents.plugins import load_plugin

    by_flag = settings.agent_plugin is not None
    wanted = None if by_flag and settings.agent == DEFAULT else settings.agent
    source = (
        "--agent-plugin (PROXY_AGENT_PLUGIN)" if by_flag else f"the entry point of --agent {settings.agent}"
    )
    return load_plugin(reference, source=source, wanted=wanted)


async def make_agent(context: AgentContext) -> Agent:
    """Makes the agent that the settings ask for, or several where they have tables of them. It is not started yet.
    Raises `NoAgentError`, or `Fault` where it cannot be used."""
    if context.settings.agents or context.settings.upstreams:
        from codex_proxy.agents.named import make_several

        return await make_several(context)
    spec, reference = chosen_spec(context.settings), plugin_reference(context.settings)
    if reference is None:
        return await spec.make(context)
    from codex_proxy.agents.plugins import make_plugin_agent

    return await make_plugin_agent(spec, reference, context)


def _load(line: str) -> AgentSpec:
    module, _, attribute = line.partition(":")
    spec: AgentSpec = getattr(importlib.import_module(module), attribute)
    return spec


def _entry_points() -> dict[str, str]:
    """Returns the references of the agents in installed packages, by name."""
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=GROUP)}
