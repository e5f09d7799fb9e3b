"""What stands between a parsed request and a run: its images, and what the agent can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codex_proxy.agents.agent import Agent
from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import ImagePart, SaidMessage
from codex_proxy.core.turn import Turn
from codex_proxy.http.image_fetch import inlined
from codex_proxy.http.service import Service
from codex_proxy.surfaces.models import DEFAULT_NAME


async def with_images(turn: Turn, service: Service, places: Mapping[str, str], param: str) -> Turn:
    """The turn with every image in it as a data URL, since agents fetch none. A 400 where one is not to be had:
    it names the field in which the request has the address (`places`), or else `param`."""
    return await inlined(turn, service.images, places, param)


def billed_to(turn: Turn) -> str:
    """The model under which the turn's tokens are summed up: as the agent calls it, where that is known."""
    return turn.model or DEFAULT_NAME


def check_capabilities(turn: Turn, service: Service) -> None:
    """A request that needs what the agent has not is a 400 that names the parameter and the agent."""
    able = service.manager.agent.capabilities
    if turn.tools and "client_tools" not in able:
        raise cannot(service, "client_tools", "do tools of the client", "tools")
    if turn.output_schema is not None and "structured_output" not in able:
        raise cannot(service, "structured_output", "do structured output", "response_format")
    if turn.mode == "model" and "plain_model" not in able and turn.tools:
        raise cannot(service, "plain_model", "do plain-model turns", "tools")
    if "images" not in able:
        for index, item in enumerate(turn.history):
            if isinstance(item, SaidMessage) and any(isinstance(part, ImagePart) for part in item.parts):
                raise cannot(service, "images", "do images", f"messages[{index}].content")


def agent_headers(
    agent: Agent, turn: Turn, ignored: Sequence[str], search: str | None, verbosity: str
) -> dict[str, str]:
    """The headers that name the agent, and what the request asked for in vain.

    `ignored`: parameters that change nothing, whichever agent serves. `search` is the field that asked for a web
    search, if one did, `verbosity` the one that would ask for a verbosity: both are named where the agent has no such
    thing.
    """
    able = agent.capabilities
    named = list(ignored)
    if search is not None and not (turn.web_search and "web_search" in able):
        named.append(search)
    if turn.verbosity is not None and "verbosity" not in able:
        named.append(verbosity)
    headers = {"x-codex-agent": agent.name}
    if named:
        headers["x-codex-ignored-params"] = ", ".join(named)
    if "history" not in able and len(turn.history) > 1:
        headers["x-codex-history"] = "flattened"
    return headers


def cannot(service: Service, capability: str, what: str, param: str) -> Exception:
    """The 400 for what the agent has no capability for. It says which agent has it, where one has."""
    able = service.agent_able_to(capability)
    advice = (
        f"Start the server with --agent {able} for that." if able is not None else "No agent can do that."
    )
    message = f"The agent {service.manager.agent.name} cannot {what}. {advice}"
    return bad_request(message, param, "unsupported_by_agent")
