"""What a client asked of the calls and the agent cannot keep: what the client sees of it, and what the model."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.real.model_plans import PutOut, call, call_with, plan, say, think
from tests.real.model_scenarios import text_of, tools_of
from tests.real.model_server import ModelServer, Request
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
)

TIME = function("get_time", zone={"type": "string"})
PARIS = call(city="Paris")
ROME = call(city="Rome")
WRONG = call(town="Paris")
"""Breaks the schema of the tool."""


def cities(loop: Loop) -> list[str]:
    """What the client was asked for in its last answer."""
    return [json.loads(each.arguments)["city"] for each in functions_called(loop.answers[-1])]


def tokens_per_request(loop: Loop) -> list[int]:
    """Tokens of each request; one model call has 120."""
    return [answer.usage.total_tokens for answer in loop.answers if answer.usage]


def developer_text(call: Request) -> str:
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
    assert tokens_per_request(loop) == [240, 120]
    [(call_id, words)] = outputs_of(model_server.calls[1])
    assert call_id == "call_0_1"
    assert "schema" in words
    assert "town" in words or "city" in words
    assert_grows(model_server.calls)
    assert outputs_of(model_server.calls[2]) == [("call_0_1", words), ("call_1_1", "sunny")]


async def test_what_the_agent_removes_from_a_schema_is_kept_all_the_same(
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
    assert tokens_per_request(loop) == [360, 120]
    assert list(proxies.home.workdir.iterdir()) == []
    assert_grows(model_server.calls)


@EVERY_WAY
async def test_an_invalid_call_after_a_valid_one_has_the_same_output_whether_the_agent_gave_it_or_not(
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


async def test_a_tool_with_a_schema_that_the_agent_refuses_is_offered_in_a_form_that_it_takes(
    proxies: Proxies, model_server: ModelServer
) -> None:
    schema = {"type": "object", "properties": []}
    tool = {"type": "function", "function": {"name": "odd", "parameters": schema}}
    async with loop_of(proxies, "kept") as loop:
        loop.say("[[model:text]]")
        await loop.ask(tools=[WEATHER, tool])
    assert "odd" in tools_of(model_server.calls[0].body)


async def test_a_schema_of_no_object_is_refused_before_the_agent_sees_it(proxies: Proxies) -> None:
    tool = {"type": "function", "function": {"name": "odd", "parameters": {"type": "null"}}}
    async with loop_of(proxies, "kept") as loop:
        loop.say("[[model:text]]")
        with pytest.raises(openai.BadRequestError) as caught:
            await loop.ask(tools=[WEATHER, tool])
    expected = ("tools[1].function.parameters", "invalid_function_parameters")
    assert (caught.value.param, caught.value.code) == expected


# --- tool_choice ----------------------------------------------------------------------------------


def named_choice(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed_choice(mode: str, *names: str) -> dict[str, Any]:
    tools = [named_choice(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "offered", "must"),
    [
        ("auto", ["get_weather", "get_time"], False),
        ("required", ["get_weather", "get_time"], True),
        (named_choice("get_weather"), ["get_weather"], True),
        (allowed_choice("auto", "get_weather"), ["get_weather"], False),
        (allowed_choice("required", "get_weather"), ["get_weather"], True),
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
    assert ("`get_weather`" in developer_text(first)) is must
    assert developer_text(second) == ""
    assert sorted(tools_of(second.body)) == ["get_time", "get_weather"]


MUST = ["required", named_choice("get_weather"), allowed_choice("required", "get_weather")]
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
    assert tokens_per_request(loop) == [240]
    assert len(model_server.calls) == 2
    assert "thrown away" in developer_text(model_server.calls[1])
    assert "Why should I?" not in json.dumps(input_of(model_server.calls[1])[1:])
