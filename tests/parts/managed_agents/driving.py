"""Clients of the Managed Agents API: requests as they are on the wire, and the real SDK. Every object that comes by is
held to the SDK's types.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anthropic
from anthropic.types.beta import BetaEnvironment, BetaManagedAgentsAgent

from tests.http.serving import Answer, Proxy
from tests.parts.sessions.sdk_values import differences

HEADERS: Final = {"anthropic-version": "2023-06-01"}
TOOLSET: Final = {"type": "agent_toolset_20260401"}
WEATHER: Final[dict[str, Any]] = {
    "type": "custom",
    "name": "get_weather",
    "description": "Returns the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_TYPES: Final[Mapping[str, Any]] = {"agent": BetaManagedAgentsAgent, "environment": BetaEnvironment}


def check_object(value: Any) -> None:
    """Fails if an answer differs from the SDK's type of it."""
    if "next_page" in value:
        for each in value["data"]:
            check_object(each)
    elif value["type"] in _TYPES:
        found = differences(value, _TYPES[value["type"]])
        assert not found, (found, value)


async def ask(
    proxy: Proxy, method: str, path: str, body: Any = None, headers: Mapping[str, str] = HEADERS
) -> Answer:
    """Sends a request as on the wire, and checks the object of its answer."""
    answer = await proxy.send(method, path, body, headers=headers)
    if answer.status == 200:
        check_object(answer.body)
    return answer


@asynccontextmanager
async def sdk(proxy: Proxy, key: str = "any") -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(api_key=key, base_url=proxy.url, max_retries=0) as client:
        yield client
