"""Clients as people have them: the official SDK with pydantic tools and formats, and LangChain's tools."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.real.codex_home import MODEL
from tests.real.model_plans import call, plan, say, think
from tests.real.model_scenarios import tools_of
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy
from tests.real.shared import EVERY_WAY, Proxies
from tests.real.tool_loop import assert_grows, loop_of, outputs_of, types_of
from tests.waiting import PATIENCE


class GetWeather(pydantic.BaseModel):
    """The weather of a city."""

    city: str
    days: int


class Report(pydantic.BaseModel):
    city: str
    sunny: bool


STEP = [think(), call("GetWeather", city="Paris", days=2)]


@pytest.mark.exhaustive
@EVERY_WAY
async def test_the_sdk_parses_arguments_and_answer_into_pydantic_models(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    """`pydantic_function_tool` is strict: a call that does not parse goes back to the model."""
    wrong = call("GetWeather", city="Paris", days="two")
    report = '{"city": "Paris", "sunny": true}'
    messages: list[Any] = [{"role": "user", "content": plan([wrong], STEP, STEP, [say(report)])}]
    asked: dict[str, Any] = {"model": MODEL, "tools": [openai.pydantic_function_tool(GetWeather)]}
    async with loop_of(proxies, way, structured_output=True) as loop:
        for _ in range(2):
            client = (await loop.serve()).client
            answer = await client.chat.completions.parse(**asked, messages=messages, response_format=Report)
            [made] = answer.choices[0].message.tool_calls or []
            assert made.function.parsed_arguments == GetWeather(city="Paris", days=2)
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": made.id, "content": "sunny"})
        client = (await loop.serve()).client
        last = await client.chat.completions.parse(**asked, messages=messages, response_format=Report)
    assert last.choices[0].message.parsed == Report(city="Paris", sunny=True)
    assert_grows(model_server.calls)


async def test_the_sdk_s_stream_helper_gathers_calls_and_text(
    proxy: Proxy, model_server: ModelServer
) -> None:
    prompt = plan([say("Let me look."), *STEP[1:], call("GetWeather", city="Rome", days=1)])
    tools: list[Any] = [openai.pydantic_function_tool(GetWeather)]
    async with proxy.client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": prompt}], tools=tools
    ) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [each.function.parsed_arguments for each in calls] == [
        GetWeather(city="Paris", days=2),
        GetWeather(city="Rome", days=1),
    ]
    assert final.choices[0].message.content == "Let me look."
    assert final.choices[0].finish_reason == "tool_calls"
    assert "tool_calls.function.arguments.done" in kinds


@pytest.mark.parametrize("way", ["kept", "replayed"])
async def test_function_calls_which_have_no_ids_continue_what_the_model_saw(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    step = [think(), say("Let me look."), call("GetWeather", city="Paris", days=2)]
    messages: list[Any] = [{"role": "user", "content": plan(step, step, [say("Done.")])}]
    functions: Any = [{"name": "GetWeather", "parameters": GetWeather.model_json_schema()}]
    async with loop_of(proxies, way) as loop:
        client = (await loop.serve()).client
        for _ in range(3):
            answer = await client.chat.completions.create(model=MODEL, messages=messages, functions=functions)
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "function", "name": "GetWeather", "content": "sunny"})
    assert answer.choices[0].message.content == "Done."
    assert len(model_server.calls) == 3
    assert_grows(model_server.calls)
    assert types_of(model_server.calls[-1]).count("reasoning") == 2


async def test_a_client_that_joins_the_calls_of_all_steps_continues_what_the_model_saw(
    proxies: Proxies, model_server: ModelServer
) -> None:
    question = {"role": "user", "content": plan(STEP, STEP, STEP, [say("Done.")])}
    tools: list[Any] = [openai.pydantic_function_tool(GetWeather)]
    calls: list[Any] = []
    async with loop_of(proxies, "replayed") as loop:
        for _ in range(4):
            client = (await loop.serve()).client
            outputs = [{"role": "tool", "tool_call_id": each["id"], "content": "sunny"} for each in calls]
            joined = [{"role": "assistant", "content": None, "tool_calls": calls}] if calls else []
            messages: Any = [question, *joined, *outputs]
            answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
            calls += [each.model_dump() for each in answer.choices[0].message.tool_calls or ()]
    assert answer.choices[0].message.content == "Done."
    assert len(model_server.calls) == 4
    assert_grows(model_server.calls)
    assert types_of(model_server.calls[-1]).count("reasoning") == 3


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def langchain_model(url: str) -> Any:
    model = ChatOpenAI(
        model=MODEL, base_url=f"{url}/v1", api_key=SecretStr("no key"), max_retries=0, timeout=PATIENCE
    )
    return model.bind_tools([get_weather])


@pytest.mark.exhaustive
@EVERY_WAY
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
async def test_a_langchain_loop_with_bound_tools_ends_with_the_answer(
    proxies: Proxies, model_server: ModelServer, way: str, streaming: bool
) -> None:
    step = [say("Let me look."), call(city="Paris"), call(city="Rome")]
    messages: list[BaseMessage] = [HumanMessage(plan(step, step, [say("Done.")]))]
    async with loop_of(proxies, way) as loop:
        while True:
            model = langchain_model((await loop.serve()).url)
            answer = await _streamed(model, messages) if streaming else await model.ainvoke(messages)
            messages.append(answer)
            if not answer.tool_calls:
                break
            for made in answer.tool_calls:
                output = get_weather.invoke(made["args"])
                messages.append(ToolMessage(output, tool_call_id=made["id"]))
    assert answer.text == "Done."
    assert list(tools_of(model_server.calls[0].body)) == ["get_weather"]
    assert len(model_server.calls) == 3
    assert [output for _, output in outputs_of(model_server.calls[2])] == [
        "sunny in Paris",
        "sunny in Rome",
    ] * 2
    assert_grows(model_server.calls)


async def _streamed(model: Any, messages: list[BaseMessage]) -> AIMessage:
    whole: Any = None
    async for chunk in model.astream(messages):
        whole = chunk if whole is None else whole + chunk
    assert isinstance(whole, AIMessage)
    return whole


@pytest.mark.exhaustive
async def test_langchain_s_structured_output_is_a_pydantic_model(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with loop_of(proxies, "kept", structured_output=True) as loop:
        url = (await loop.serve()).url
        model = ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key=SecretStr("no key"), max_retries=0)
        structured: Any = model.with_structured_output(Report, method="json_schema")
        report = await structured.ainvoke(plan([say('{"city": "Oslo", "sunny": false}')]))
    assert report == Report(city="Oslo", sunny=False)
    assert json.dumps(model_server.calls[0].body["text"]["format"]["schema"])
