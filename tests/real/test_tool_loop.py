"""Real function calling through the real binary: what the client gets, and what the model sees in each step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.real.codex_home import CodexHome
from tests.real.model_scenarios import items_of, tools_of
from tests.real.model_server import ModelServer, Request
from tests.real.tool_loop import WAYS, loop_of

EVERY_WAY = pytest.mark.parametrize("way", WAYS)


def sunny(name: str, arguments: dict[str, Any]) -> str:
    return f"sunny in {arguments['city']}"


def without_context(call: Request) -> list[dict[str, Any]]:
    """The model's input without the agent's own context, which has a new id in each thread."""
    return [item for item in items_of(call.body) if item["type"] != "additional_tools"]


def outputs(call: Request) -> list[tuple[str, Any]]:
    return [
        (item["call_id"], item["output"])
        for item in items_of(call.body)
        if item["type"] == "function_call_output"
    ]


@EVERY_WAY
async def test_a_call_goes_to_the_client_and_its_output_to_the_model(
    codex_home: CodexHome, model_server: ModelServer, way: str
) -> None:
    async with loop_of(codex_home, way) as loop:
        loop.say("[[model:tool say='It is sunny.']] Weather?")
        first = await loop.ask()
        [call] = first.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert first.choices[0].finish_reason == "tool_calls"
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        loop.output(call.id, "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "It is sunny."
    assert last.choices[0].finish_reason == "stop"
    assert list(tools_of(model_server.calls[0].body)) == ["get_weather"]
    assert outputs(model_server.calls[1]) == [(call.id, "sunny")]
    assert len(model_server.calls) == 2
    assert first.usage is not None
    assert last.usage is not None
    assert last.usage.total_tokens == first.usage.total_tokens


@EVERY_WAY
async def test_each_step_sees_what_the_step_before_saw_and_the_new_items_behind_it(
    codex_home: CodexHome, model_server: ModelServer, way: str
) -> None:
    async with loop_of(codex_home, way) as loop:
        loop.say("[[model:tool n=2 rounds=3 pre='Let me look.' say=Done.]] Weather?")
        last = await loop.run(sunny)
    assert last.choices[0].message.content == "Done."
    inputs = [without_context(call) for call in model_server.calls]
    assert len(inputs) == 4
    for before, after in zip(inputs, inputs[1:], strict=False):
        assert after[: len(before)] == before
        assert len(after) == len(before) + 5
