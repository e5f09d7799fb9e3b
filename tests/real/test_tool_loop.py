"""Real function calling through the real binary: what the client gets, and what the model sees in each step."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.real.model_plans import call, plan, say, think
from tests.real.model_scenarios import tools_of
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy, chat_request
from tests.real.release import PLAIN_MODEL
from tests.real.shared import EVERY_WAY, Proxies
from tests.real.tool_loop import (
    ALL_WAYS,
    FORGETTING,
    WEATHER,
    assert_grows,
    call_ids,
    functions_called,
    input_of,
    loop_of,
    outputs_of,
    types_of,
    weather_report,
)

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)


@pytest.mark.sampled(every=3)
@PLAIN_MODEL
@ALL_WAYS
async def test_a_call_goes_to_the_client_and_its_output_to_the_model(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.say("[[model:tool say='It is sunny.']] Weather?")
        first = await loop.ask()
        [called] = functions_called(first)
        assert first.choices[0].finish_reason == "tool_calls"
        assert (called.name, json.loads(called.arguments)) == ("get_weather", {"city": "Paris"})
        [call_id] = call_ids(first)
        loop.output(call_id, "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "It is sunny."
    assert last.choices[0].finish_reason == "stop"
    assert list(tools_of(model_server.calls[0].body)) == ["get_weather"]
    assert outputs_of(model_server.calls[1]) == [(call_id, "sunny")]
    assert len(model_server.calls) == 2


@pytest.mark.exhaustive
@EVERY_WAY
async def test_usage_is_that_of_the_model_calls_of_one_request(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.say("[[model:tool rounds=3 in=70 out=9]] Weather?")
        await loop.run(weather_report)
        loop.say("[[model:text in=30 out=4]] Thanks.")
        await loop.ask()
    spent = [
        (answer.usage.prompt_tokens, answer.usage.completion_tokens)
        for answer in loop.answers
        if answer.usage
    ]
    assert spent == [(70, 9)] * 4 + [(30, 4)]


@EVERY_WAY
async def test_the_argument_text_is_the_model_s_own(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    text = '{"city" : "Z\\u00fcrich", "n": 1e3, "m": 2.50, "big": 12345678901234567890}'
    async with loop_of(proxies, way) as loop:
        loop.say(f"[[model:tool args='{text}' say=Done.]] Weather?")
        [called] = functions_called(await loop.ask())
        assert called.arguments == text
        loop.output(call_ids(loop.answers[0])[0], "sunny")
        await loop.ask()
    [seen] = [item for item in input_of(model_server.calls[1]) if item["type"] == "function_call"]
    assert seen["arguments"] == text


@EVERY_WAY
async def test_each_step_sees_what_the_step_before_saw_and_the_new_items_behind_it(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.say("[[model:tool n=2 rounds=3 pre='Let me look.' say=Done.]] Weather?")
        last = await loop.run(weather_report)
    assert last.choices[0].message.content == "Done."
    assert [len(input_of(each)) for each in model_server.calls] == [1, 6, 11, 16]
    assert_grows(model_server.calls)


@EVERY_WAY
async def test_the_model_sees_its_own_reasoning_again_in_every_step(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    step = [think(), say("Let me look."), call(city="Paris"), call(city="Rome")]
    async with loop_of(proxies, way) as loop:
        loop.say(plan(step, step, step, [think(), say("Done.")]))
        last = await loop.run(weather_report)
    assert last.choices[0].message.content == "Done."
    added = ["reasoning", "message", *["function_call"] * 2, *["function_call_output"] * 2]
    assert [types_of(each) for each in model_server.calls] == [["message"] + added * n for n in range(4)]
    assert_grows(model_server.calls)
    seen = input_of(model_server.calls[3])
    assert [item["encrypted_content"] for item in seen if item["type"] == "reasoning"] == [
        f"sealed-rs_{number}_0" for number in range(3)
    ]
    made = [item["id"] for item in seen if item["type"] == "function_call"]
    assert made == [f"fc_{number}_{place}" for number in range(3) for place in (2, 3)]


@EVERY_WAY
async def test_outputs_in_another_order_than_the_calls_are_put_into_theirs(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.say("[[model:tool n=3 say=Done.]] Weather?")
        ids = call_ids(await loop.ask())
        for place in (2, 0, 1):
            loop.output(ids[place], f"output {place}")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert outputs_of(model_server.calls[1]) == [(id, f"output {place}") for place, id in enumerate(ids)]


@pytest.mark.sampled(every=5)
@EVERY_WAY
@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("Error: no such city", "Error: no such city"),
        ("", ""),
        ([{"type": "text", "text": "one part"}], "one part"),
        (
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        ),
    ],
    ids=["an error", "nothing", "one part", "two parts"],
)
async def test_an_output_reaches_the_model_as_it_was_given(
    proxies: Proxies, model_server: ModelServer, way: str, content: Any, seen: Any
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.say("[[model:tool say=Done.]] Weather?")
        [call_id] = call_ids(await loop.ask())
        loop.output(call_id, content)
        await loop.ask()
    assert outputs_of(model_server.calls[1]) == [(call_id, seen)]


@FORGETTING
async def test_an_image_in_an_output_reaches_the_model(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.say("[[model:tool say=Done.]] Weather?")
        [call_id] = call_ids(await loop.ask())
        image = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "high"}}
        loop.output(call_id, [{"type": "text", "text": "see"}, image])
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    [(_, parts)] = outputs_of(model_server.calls[1])
    assert [part["type"] for part in parts] == ["input_text", "input_image"]
    assert parts[1]["image_url"].startswith("data:image/png;base64,")
    assert parts[1]["detail"] in ("high", "original")  # 0.169 asks for the image as it is


@FORGETTING
async def test_after_an_answer_the_conversation_goes_on_with_more_calls(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.say("[[model:tool say=One.]] Weather?")
        await loop.run(weather_report)
        loop.say("[[model:tool n=2 say=Two.]] And there?")
        last = await loop.run(weather_report)
    assert last.choices[0].message.content == "Two."
    assert len(outputs_of(model_server.calls[-1])) == 3
    assert len(model_server.calls) == 4


async def test_a_stream_has_the_index_id_and_name_of_each_call_and_then_its_arguments(
    proxy: Proxy, model_server: ModelServer
) -> None:
    asked = chat_request("[[model:tool n=2 pre='Let me look.']] Weather?", tools=[WEATHER], stream=True)
    asked["stream_options"] = {"include_usage": True}
    stream = await proxy.client.chat.completions.create(**asked)
    chunks = [chunk async for chunk in stream]
    deltas = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or []]
    heads = [(d.index, d.id, d.type, d.function.name) for d in deltas if d.id and d.function]
    assert heads == [
        (0, "call_0_1", "function", "get_weather"),
        (1, "call_0_2", "function", "get_weather"),
    ]
    assert [d.index for d in deltas] == sorted(d.index for d in deltas), "one call after the other"
    texts = {0: "", 1: ""}
    named: set[int] = set()
    for delta in deltas:
        assert delta.function is not None
        if delta.id:
            named.add(delta.index)
        if delta.function.arguments:
            assert delta.index in named
            texts[delta.index] += delta.function.arguments
    assert [json.loads(text) for text in texts.values()] == [{"city": "Paris"}, {"city": "Rome"}]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Let me look."
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 120


CALLED = {
    "role": "assistant",
    "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        for id in ("a", "b")
    ],
}


@EVERY_WAY
async def test_outputs_that_do_not_fit_leave_the_conversation_as_it_was(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    """A client that has sent nonsense may send the right request after it."""
    async with loop_of(proxies, way) as loop:
        loop.say("[[model:tool n=2 say=Done.]] Weather?")
        ids = call_ids(await loop.ask())
        loop.output(ids[0], "sunny")
        with pytest.raises(openai.BadRequestError):
            await loop.ask()
        loop.output(ids[1], "rainy")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert outputs_of(model_server.calls[-1]) == [(ids[0], "sunny"), (ids[1], "rainy")]
    assert len(model_server.calls) == 2
