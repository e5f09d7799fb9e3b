"""The tokens of turns, and the limits of the agent's account."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from codex_proxy.agents.agent import Agent, all_agents
from codex_proxy.http.app_keys import CLOCK, RUNS, USAGE
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.middleware.request_context import CLIENT, OWNER
from codex_proxy.store.health import store_errors_as_faults
from codex_proxy.store.usage import UsageQuery
from codex_proxy.surfaces.answers.usage_report import (
    UsageLimits,
    UsageLimitsList,
    limits_object,
    page_of,
    report_of,
)

NEW_SECONDS: Final = 60.0
"""Seconds after which a report of limits is too old, so that the agent is asked; each call of the model reports
them, too.
"""
NO_LIMITS_YET: Final = (
    "The agent has reported no limits. It does so after its first turn, if its provider reports limits: those of a "
    "ChatGPT account are reported, those of an API key are not."
)


async def retrieve_usage(request: web.Request) -> web.Response:
    """Returns the token usage of the request's key, by hour or day.

    Raises `Fault` INVALID_REQUEST, or UNAVAILABLE.
    """
    recorder = request.app[USAGE]
    report = report_of(request.query.items(), now=request.app[CLOCK].epoch())
    query = UsageQuery(
        owner=request[OWNER],
        start=report.first,
        end=report.after,
        width=report.width,
        by_model=report.by_model,
    )
    with store_errors_as_faults():
        await recorder.flush()
        found = await recorder.ledger.usage(query)
    return json_response(
        page_of(report, found, key=request[OWNER], durable=recorder.durable, since=recorder.since)
    )


async def retrieve_usage_limits(request: web.Request) -> web.Response:
    """Returns the limits of the agent's account, as the agent reports them.

    An agent is asked if its last report is older than `NEW_SECONDS`.
    """
    whole, now = request.app[RUNS].agent, request.app[CLOCK].epoch()
    allowed = request[CLIENT].catalog.members
    agents = [agent for agent in all_agents(whole) if not whole.members or agent.name in allowed]
    await asyncio.gather(*(agent.ask_limits() for agent in agents if agent.limits.claim_request(NEW_SECONDS)))
    limits = [_limits_of(agent, now) for agent in agents]
    if not whole.members:
        return json_response(limits[0])
    found: UsageLimitsList = {"object": "list", "data": limits}
    return json_response(found)


def _limits_of(agent: Agent, now: float) -> UsageLimits:
    known, age = agent.limits.newest()
    return limits_object(agent.name, known, reported_at=now - age, now=now, reason=NO_LIMITS_YET)
