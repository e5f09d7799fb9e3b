"""A client's tool loop through the proxy: with threads kept, with every step replayed, and over restarts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion_message_function_tool_call import Function

from tests.real.codex_home import MODEL
from tests.real.model_scenarios import items_of
from tests.real.model_server import Request
from tests.real.proxy import Proxy
from tests.real.shared import WAYS, Proxies, Restarts

FORGETTING = pytest.mark.parametrize("way", [*WAYS, pytest.param("forgotten", marks=pytest.mark.exhaustive)])
"""The last: restarted, and nothing is known but what the client echoes."""
ALL_WAYS = pytest.mark.parametrize("way", ["kept", "replayed", "restarted", "forgotten"])
"""Of the test that shows each of them also in a quick run."""
SETTINGS: dict[str, dict[str, Any]] = {
    "kept": {},
    "replayed": {"kept_threads": 0},
    "restarted": {"kept_threads": 0},
    "forgotten": {"kept_threads": 0, "tool_memory": "off"},
}
RESTARTED = ("restarted", "forgotten")


def function(name: str, *, strict: bool = False, **properties: Any) -> dict[str, Any]:
    """A client's tool; all of its properties are required, and it takes no other."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}


WEATHER = function("get_weather", city={"type": "string"})
STRICT_WEATHER = function("get_weather", strict=True, city={"type": "string"})


def weather_report(name: str, arguments: dict[str, Any]) -> str:
    """What the client's tool answers."""
    return f"sunny in {arguments['city']}"


def functions_called(answer: ChatCompletion) -> list[Function]:
    """The functions that the client is to call."""
    found = []
    for call in answer.choices[0].message.tool_calls or []:
        assert call.type == "function"
        found.append(call.function)
    return found


def call_ids(answer: ChatCompletion) -> list[str]:
    return [call.id for call in answer.choices[0].message.tool_calls or []]


def input_of(call: Request) -> list[dict[str, Any]]:
    """The model's input without the agent's own context, which has a new id in each thread."""
    return [item for item in items_of(call.body) if item["type"] != "additional_tools"]


def outputs_of(call: Request) -> list[tuple[str, Any]]:
    """What the model saw of its calls' outputs, by call id."""
    return [
        (item["call_id"], item["output"])
        for item in items_of(call.body)
        if item["type"] == "function_call_output"
    ]


def types_of(call: Request) -> list[str]:
    """The types of the model's input."""
    return [item["type"] for item in input_of(call)]


def assert_grows(calls: list[Request]) -> None:
    """Each model call saw what the one before saw, to the byte, and new items behind it."""
    inputs = [input_of(call) for call in calls]
    for before, after in pairwise(inputs):
        assert json.dumps(after[: len(before)]) == json.dumps(before)
        assert len(after) > len(before)


@dataclass
class Loop:
    """One conversation. `way` says what happens to the proxy between its requests."""

    shared: Proxies
    way: str
    settings: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=lambda: {"model": MODEL, "tools": [WEATHER]})
    """What every request of it says beside the messages."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[ChatCompletion] = field(default_factory=list)
    restarts: Restarts | None = None
    proxy: Proxy | None = None

    async def serve(self) -> Proxy:
        """The proxy for the next request."""
        settings = SETTINGS[self.way] | self.settings
        if self.way in RESTARTED:
            self.restarts = self.restarts or self.shared.restarts(**settings)
            self.proxy = await self.restarts.next()
        elif self.proxy is None:
            self.proxy = await self.shared.of(**settings)
        return self.proxy

    async def ask(self, **request: Any) -> ChatCompletion:
        """One request with the conversation so far; its answer is echoed into the conversation."""
        given = self.request | {"messages": self.messages} | request
        client = (await self.serve()).client
        answer: ChatCompletion = await client.chat.completions.create(**given)
        self.answers.append(answer)
        echo = answer.choices[0].message.model_dump(exclude_none=True)
        self.messages.append({"role": "assistant", **echo})
        return answer

    def lose_threads(self) -> None:
        """Every thread that was kept is forgotten, as if its time were up."""
        assert self.proxy is not None
        self.proxy.server.runs.services.idle_sessions.close()

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def output(self, call_id: str, content: Any) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    async def run(self, tool: Callable[[str, dict[str, Any]], Any], **request: Any) -> ChatCompletion:
        """Asks until there is an answer without calls, 50 times at most."""
        for _ in range(50):
            answer = await self.ask(**request)
            called = functions_called(answer)
            if not called:
                return answer
            for id, each in zip(call_ids(answer), called, strict=True):
                self.output(id, tool(each.name, json.loads(each.arguments)))
        raise AssertionError("the loop does not end")


@asynccontextmanager
async def loop_of(shared: Proxies, way: str, **settings: Any) -> AsyncIterator[Loop]:
    loop = Loop(shared, way, settings)
    try:
        yield loop
    finally:
        if loop.restarts is not None:
            await loop.restarts.close()
