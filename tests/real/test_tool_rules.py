"""What a client asked of the calls and the agent cannot keep: what the client sees of it, and what the model."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.real.model_plans import PutOut, call, call_with, plan, say, think
from tests.real.model_scenarios import text_of, tools_of
from tests.real.model_server import ModelServer, Request
from tests.real.proxy import Proxy, ask
from tests.real.shared import EVERY_WAY, Proxies
from tests.real.tool_loop import (
    STRICT_WEATHER,
    WEATHER,
    Loop,
    assert_grows,
    call_ids,
    function,
    functions_called,
    input_of,
    loop_of,
    outputs_of,
    sunny,
)

TIME = function("get_time", zone={"type": "string"})
PARIS = call(city="Paris")
ROME = call(city="Rome")
WRONG = call(town="Paris")
"""Breaks the schema of the tool."""


def cities(loop: Loop) -> list[str]:
    """What the client was asked for in its last answer."""
    return [json.loads(each.arguments)["city"] for each in functions_called(loop.answers[-1])]


def spent(loop: Loop) -> list[int]:
    """Tokens of each request; one model call has 120."""
    return [answer.usage.total_tokens for answer in loop.answers if answer.usage]


def told(call: Request) -> str:
    """What developer messages tell the model."""
    return "\n".join(text_of(item) for item in input_of(call) if item.get("role") == "developer")


# --- strict ---------------------------------------------------------------------------------------


@EVERY_WAY
async def test_a_call_that_breaks_a_strict_schema_goes_back_to_the_model_unseen(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.request["tools"] = [STRICT_WEATHER]
        loop.say(plan([think(), WRONG], [think(), PARIS], [say("Done.")]))
        await loop.ask()
        assert cities(loop) == ["Paris"]
        assert loop.answers[0].choices[0].finish_reason == "tool_calls"
        loop.output(call_ids(loop.answers[0])[0], "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert spent(loop) == [240, 120]
    [(call_id, words)] = outputs_of(model_server.calls[1])
    assert call_id == "call_0_1"
    assert "schema" in words
    assert "town" in words or "city" in words
    assert_grows(model_server.calls)
    assert outputs_of(model_server.calls[2]) == [("call_0_1", words), ("call_1_1", "sunny")]


@EVERY_WAY
async def test_a_model_that_does_not_learn_has_its_call_handed_on_as_it_is(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.request["tools"] = [STRICT_WEATHER]
        loop.say(plan([WRONG], [WRONG], [WRONG], [say("Done.")]))
        first = await loop.ask()
        [called] = functions_called(first)
        assert json.loads(called.arguments) == {"town": "Paris"}
        assert call_ids(first) == ["call_2_0"]
        loop.output("call_2_0", "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert spent(loop) == [360, 120]


@EVERY_WAY
async def test_a_violation_beside_a_valid_call_reaches_the_model_with_the_valid_one_s_output(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.request["tools"] = [STRICT_WEATHER]
        loop.say(plan([think(), WRONG, ROME, WRONG], [say("Done.")]))
        first = await loop.ask()
        assert cities(loop) == ["Rome"]
        assert len(model_server.calls) == 1
        loop.output(call_ids(first)[0], "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    seen = outputs_of(model_server.calls[1])
    assert [id for id, _ in seen] == ["call_0_1", "call_0_2", "call_0_3"]
    assert seen[1] == ("call_0_2", "sunny")
    assert all("break the tool's schema" in seen[place][1] for place in (0, 2))
    assert_grows(model_server.calls)


async def test_what_the_agent_thins_out_of_a_schema_is_kept_all_the_same(
    proxies: Proxies, model_server: ModelServer
) -> None:
    """The model never sees `pattern`; a call that breaks it is broken."""
    tool = function("get_weather", strict=True, city={"type": "string", "pattern": "^[A-Z]"})
    async with loop_of(proxies, "kept") as loop:
        loop.request["tools"] = [tool]
        loop.say(plan([call(city="paris")], [PARIS]))
        await loop.ask()
        assert cities(loop) == ["Paris"]
    offered = tools_of(model_server.calls[0].body)["get_weather"]
    assert "pattern" not in json.dumps(offered)
    assert "does not match" in outputs_of(model_server.calls[1])[0][1]


async def test_a_tool_that_is_not_strict_gets_whatever_the_model_said(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.say(plan([WRONG], [say("Done.")]))
        [called] = functions_called(await loop.ask())
    assert json.loads(called.arguments) == {"town": "Paris"}
    assert len(model_server.calls) == 1


# --- one call at a time ---------------------------------------------------------------------------


@EVERY_WAY
async def test_without_parallel_calls_the_second_is_refused_and_the_model_gets_an_error(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.request["parallel_tool_calls"] = False
        loop.say(plan([think(), PARIS, ROME, call(city="Oslo")], [ROME], [say("Done.")]))
        first = await loop.ask()
        assert cities(loop) == ["Paris"]
        loop.output(call_ids(first)[0], "sunny")
        second = await loop.ask()
        assert cities(loop) == ["Rome"]
        loop.output(call_ids(second)[0], "rainy")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    outputs = outputs_of(model_server.calls[1])
    assert [id for id, _ in outputs] == ["call_0_1", "call_0_2", "call_0_3"]
    assert outputs[0][1] == "sunny"
    assert [words.startswith("Deferred: one call at a time") for _, words in outputs[1:]] == [True, True]
    assert outputs_of(model_server.calls[2])[3:] == [("call_1_0", "rainy")]
    assert_grows(model_server.calls)


# --- calls that the agent answers by itself -------------------------------------------------------


BAD_CALLS = [
    pytest.param(call_with("get_weather", '{"city": Paris'), "failed to parse", id="no JSON"),
    pytest.param(call_with("launch_rockets", "{}"), "unsupported call", id="not offered"),
    pytest.param(call_with("exec_command", '{"cmd": "touch here"}'), "unsupported call", id="a shell"),
]


@EVERY_WAY
@pytest.mark.parametrize(("bad", "words"), BAD_CALLS)
async def test_a_call_that_nobody_can_answer_goes_back_to_the_model_unseen(
    proxies: Proxies, model_server: ModelServer, way: str, bad: PutOut, words: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.say(plan([bad], [bad], [think(), PARIS], [say("Done.")]))
        first = await loop.ask()
        assert cities(loop) == ["Paris"]
        assert [words in output for _, output in outputs_of(model_server.calls[2])] == [True, True]
        loop.output(call_ids(first)[0], "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert spent(loop) == [360, 120]
    assert list(proxies.home.workdir.iterdir()) == []
    assert_grows(model_server.calls)


@pytest.mark.parametrize(("bad", "words"), BAD_CALLS)
async def test_a_model_that_keeps_making_such_calls_fails_the_turn(
    proxies: Proxies, model_server: ModelServer, bad: PutOut, words: str
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.say(plan(*[[bad]] * 30, [PARIS]))
        with pytest.raises(openai.InternalServerError) as failed:
            await loop.ask()
        assert (failed.value.status_code, failed.value.code) == (502, "invalid_tool_calls")
        # The third is the last; the agent answers some by itself, and may ask again before it is stopped.
        assert len(model_server.calls) < 30


@EVERY_WAY
async def test_such_a_call_behind_a_valid_one_has_the_same_output_whether_the_agent_gave_it_or_not(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    """Some releases of the agent do one call after the other: the second is not answered before the first."""
    async with loop_of(proxies, way) as loop:
        loop.say(plan([PARIS, call("launch_rockets")], [say("Done.")]))
        first = await loop.ask()
        assert cities(loop) == ["Paris"]
        loop.output(call_ids(first)[0], "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    expected = [("call_0_0", "sunny"), ("call_0_1", "unsupported call: launch_rockets")]
    assert outputs_of(model_server.calls[1]) == expected


@EVERY_WAY
@pytest.mark.parametrize(("bad", "words"), BAD_CALLS)
async def test_such_a_call_beside_a_valid_one_reaches_the_model_with_the_valid_one_s_output(
    proxies: Proxies, model_server: ModelServer, way: str, bad: PutOut, words: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.say(plan([think(), bad, PARIS], [say("Done.")]))
        first = await loop.ask()
        assert cities(loop) == ["Paris"]
        loop.output(call_ids(first)[0], "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    outputs = outputs_of(model_server.calls[1])
    assert [id for id, _ in outputs] == ["call_0_1", "call_0_2"]
    assert words in outputs[0][1]
    assert outputs[1][1] == "sunny"
    assert_grows(model_server.calls)


async def test_a_schema_that_the_agent_does_not_take_is_the_client_s_fault(proxies: Proxies) -> None:
    schema = {"type": "object", "properties": []}
    tool = {"type": "function", "function": {"name": "odd", "parameters": schema}}
    async with loop_of(proxies, "kept") as loop:
        loop.say("[[model:text]]")
        with pytest.raises(openai.BadRequestError, match="odd") as caught:
            await loop.ask(tools=[WEATHER, tool])
    assert (caught.value.param, caught.value.code) == ("tools", "invalid_tool_schema")


async def test_a_schema_of_no_object_is_refused_before_the_agent_sees_it(proxies: Proxies) -> None:
    tool = {"type": "function", "function": {"name": "odd", "parameters": {"type": "null"}}}
    async with loop_of(proxies, "kept") as loop:
        loop.say("[[model:text]]")
        with pytest.raises(openai.BadRequestError) as caught:
            await loop.ask(tools=[WEATHER, tool])
    expected = ("tools[1].function.parameters", "invalid_function_parameters")
    assert (caught.value.param, caught.value.code) == expected


# --- tool_choice ----------------------------------------------------------------------------------


async def test_tool_choice_none_offers_no_tool(proxies: Proxies, model_server: ModelServer) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.say("[[model:text say=Words.]]")
        answer = await loop.ask(tool_choice="none")
    assert answer.choices[0].message.content == "Words."
    assert tools_of(model_server.calls[0].body) == {}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "offered", "must"),
    [
        ("auto", ["get_weather", "get_time"], False),
        ("required", ["get_weather", "get_time"], True),
        (named("get_weather"), ["get_weather"], True),
        (allowed("auto", "get_weather"), ["get_weather"], False),
        (allowed("required", "get_weather"), ["get_weather"], True),
    ],
    ids=["auto", "required", "named", "allowed auto", "allowed required"],
)
async def test_a_tool_choice_decides_which_tools_are_offered_and_what_the_prompt_says_of_it(
    proxies: Proxies, model_server: ModelServer, choice: Any, offered: list[str], must: bool
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.request["tools"] = [WEATHER, TIME]
        loop.say(plan([PARIS], [say("Done.")]))
        answer = await loop.ask(tool_choice=choice)
        assert cities(loop) == ["Paris"]
        loop.output(call_ids(answer)[0], "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    first, second = model_server.calls
    assert sorted(tools_of(first.body)) == sorted(offered)
    assert ("`get_weather`" in told(first)) is must
    assert told(second) == ""
    assert sorted(tools_of(second.body)) == ["get_time", "get_weather"]


MUST = ["required", named("get_weather"), allowed("required", "get_weather")]
EVERY_MUST = pytest.mark.parametrize("choice", MUST, ids=["required", "named", "allowed"])


@EVERY_MUST
async def test_words_instead_of_a_required_call_are_thrown_away_and_asked_for_once_more(
    proxies: Proxies, model_server: ModelServer, choice: Any
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.say(plan([say("Why should I?")], again=[say("Well then."), PARIS]))
        answer = await loop.ask(tool_choice=choice)
    assert cities(loop) == ["Paris"]
    assert answer.choices[0].message.content == "Well then."
    assert spent(loop) == [240]
    assert len(model_server.calls) == 2
    assert "thrown away" in told(model_server.calls[1])
    assert "Why should I?" not in json.dumps(input_of(model_server.calls[1])[1:])


@EVERY_MUST
async def test_words_twice_instead_of_a_required_call_are_a_502(
    proxies: Proxies, model_server: ModelServer, choice: Any
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.say(plan([say("No.")], again=[say("Never.")]))
        with pytest.raises(openai.InternalServerError) as failed:
            await loop.ask(tool_choice=choice)
        assert (failed.value.status_code, failed.value.code) == (502, "tool_choice_not_honoured")
    assert len(model_server.calls) == 2


@EVERY_WAY
async def test_a_required_call_in_a_later_step_has_the_earlier_ones_before_it_also_when_tried_twice(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.say(plan([think(), PARIS], [say("Enough.")], again=[ROME]))
        await loop.ask()
        loop.output(call_ids(loop.answers[0])[0], "sunny")
        await loop.ask(tool_choice="required")
    assert cities(loop) == ["Rome"]
    first, _, again = model_server.calls
    seen = input_of(again)
    assert seen[: len(input_of(first))] == input_of(first)
    assert [item["type"] for item in seen[1:4]] == ["reasoning", "function_call", "function_call_output"]
    assert spent(loop) == [120, 240]


async def test_a_stream_holds_nothing_of_the_words_that_were_thrown_away(
    proxy: Proxy, model_server: ModelServer
) -> None:
    prompt = plan([say("Why should I?")], again=[PARIS])
    asked = ask(prompt, tools=[WEATHER], tool_choice="required", stream=True)
    chunks = [chunk async for chunk in await proxy.client.chat.completions.create(**asked)]
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == ""
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert len(model_server.calls) == 2


@EVERY_WAY
async def test_strict_tools_run_a_whole_loop(proxies: Proxies, model_server: ModelServer, way: str) -> None:
    async with loop_of(proxies, way) as loop:
        loop.request |= {"tools": [STRICT_WEATHER], "parallel_tool_calls": False}
        loop.say("[[model:tool rounds=3 say=Done.]] Weather?")
        last = await loop.run(sunny)
    assert last.choices[0].message.content == "Done."
    assert_grows(model_server.calls)
