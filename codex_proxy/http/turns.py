"""What stands between a parsed request and a run: its images, and what the agent can do."""

from __future__ import annotations

from collections.abc import Sequence

from codex_proxy.agents.agent import Agent
from codex_proxy.core.turn import Turn


def agent_headers(
    agent: Agent, turn: Turn, ignored: Sequence[str], search: str | None, verbosity: str, effort: str
) -> dict[str, str]:
    """The headers that name the agent, and what the request asked for in vain.

    `ignored`: parameters that change nothing, whichever agent serves. `search` is the field that asked for a web
    search, if one did, `verbosity` the one that would ask for a verbosity, `effort` the one for an effort: each is
    named where the agent has no such thing.
    """
    able = agent.capabilities
    named = list(ignored)
    if search is not None and not (turn.web_search and "web_search" in able):
        named.append(search)
    if turn.verbosity is not None and "verbosity" not in able:
        named.append(verbosity)
    if "effort" in agent.off:
        asked = {effort: turn.effort or turn.summary, "service_tier": turn.service_tier}
        named += [field for field, value in asked.items() if value is not None]
    headers = {"x-codex-agent": agent.name}
    if named:
        headers["x-codex-ignored-params"] = ", ".join(named)
    if "history" not in able and len(turn.history) > 1:
        headers["x-codex-history"] = "flattened"
    return headers
