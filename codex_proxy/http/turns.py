"""What stands between a parsed request and a run: its images, and what the agent can do."""

from __future__ import annotations

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.items import ImagePart, SaidMessage
from codex_proxy.core.turn import Turn
from codex_proxy.http.image_fetch import inlined
from codex_proxy.http.service import Service
from codex_proxy.runs.agent import Agent
from codex_proxy.surfaces.models import DEFAULT_NAME


async def with_images(turn: Turn, service: Service, param: str) -> Turn:
    """The turn with every image in it as a data URL, since agents fetch none. A 400 on `param` where one is
    not to be had."""
    try:
        return await inlined(turn, service.images)
    except Fault as fault:
        raise Fault(msgspec.structs.replace(fault.failure, param=param)) from fault


def billed_to(turn: Turn) -> str:
    """The model under which the turn's tokens are summed up: as the agent calls it, where that is known."""
    return turn.model or DEFAULT_NAME


def check_capabilities(turn: Turn, agent: Agent) -> None:
    """A request that needs what the agent has not is a 400 that names the parameter and the agent."""
    able = agent.capabilities
    if turn.tools and "client_tools" not in able:
        raise _missing(agent, "tools", "tools of the client")
    if turn.output_schema is not None and "structured_output" not in able:
        raise _missing(agent, "response_format", "structured output")
    if turn.mode == "model" and "plain_model" not in able and turn.tools:
        raise _missing(agent, "tools", "plain-model turns")
    if "images" not in able:
        for index, item in enumerate(turn.history):
            if isinstance(item, SaidMessage) and any(isinstance(part, ImagePart) for part in item.parts):
                raise _missing(agent, f"messages[{index}].content", "images")


def _missing(agent: Agent, param: str, what: str) -> Exception:
    return bad_request(
        f"The agent {agent.name} cannot do {what}. Start the server with --agent codex-app-server for that.",
        param,
        "unsupported_by_agent",
    )
