"""The agent, as `doctor` looks at it: whether its plugin can be used, and what the agent finds itself."""

from __future__ import annotations

from collections.abc import Mapping

from codex_proxy.agents.registry import chosen_spec, plugin_reference
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.app import SystemClock
from codex_proxy.commands.checkup import Check, Fact
from codex_proxy.config import Settings


async def agent_checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """What there is to find of the agent that the settings ask for."""
    reference = plugin_reference(settings)
    facts: dict[str, Fact] = {"plugin": reference}
    try:
        spec = chosen_spec(settings)
    except NoAgentError as error:
        message = str(error)
        return [Check(name="agent plugin", status="failed", message=message, advice=message, facts=facts)]
    context = AgentContext(settings, environ, SystemClock())
    if reference is None:
        return await spec.check(context)
    message = f"{reference} is the agent {spec.name}."
    found = Check(name="agent plugin", status="ok", message=message, facts={**facts, "agent": spec.name})
    try:
        return [found, *await spec.check(context)]
    except Exception as error:  # noqa: BLE001  (a plugin's code may raise anything)
        message = f"The check of {reference} failed ({type(error).__name__}: {error}): that is a fault of the plugin."
        return [found, Check(name="agent", status="failed", message=message, advice=message)]
