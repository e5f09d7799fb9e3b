"""The official SDK of OpenAI, with all its helpers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, ConfigDict

from tests.http.serving import Proxy, fake_proxy
from tests.waiting import PATIENCE
from tests.weather_tool import CHAT_WEATHER

pytestmark = pytest.mark.sampled(every=2, first=1)

TEXT = "Hello from the deterministic fake agent."


class GetWeather(BaseModel):
    """The weather in a city."""

    model_config = ConfigDict(extra="forbid")
    city: str


def user(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


@pytest.fixture(params=["proto", "app-server"])
async def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy for each dialect of the fake agent, with structured output on."""
    async with fake_proxy(tmp_path, fake_dialect=request.param) as running:
        yield running


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{proxy.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
    ) as client:
        yield client


# --- the official SDK -----------------------------------------------------------------------------


async def test_create_gives_a_whole_answer(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="codex-5", messages=user("Hello."))
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


async def test_create_with_stream_gives_chunks_and_the_usage_last(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="codex-5", messages=user("Hello."), stream=True, stream_options={"include_usage": True}
    )
    *chunks, usage = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None


async def test_the_stream_helper_folds_text_to_the_whole_answer(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="codex-5", messages=user("Hello.")) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert kinds.count("content.done") == 1
    assert final.choices[0].message.content == TEXT


async def test_the_stream_helper_folds_tool_calls_to_the_whole_answer(client: AsyncOpenAI) -> None:
    request: dict[str, Any] = {
        "model": "codex-5",
        "messages": user("[[fake:tool_calls]]"),
        "tools": [openai.pydantic_function_tool(GetWeather, name="get_weather")],
    }
    async with client.chat.completions.stream(**request) as stream:
        done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.parsed_arguments for call in calls] == [
        GetWeather(city="Paris"),
        GetWeather(city="Rome"),
    ]
    assert len(done) == 2
    assert final.choices[0].finish_reason == "tool_calls"


async def test_parse_reads_the_arguments_of_strict_tools(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model="codex-5",
        messages=user("[[fake:tool_call]]"),
        tools=[openai.pydantic_function_tool(GetWeather, name="get_weather")],
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.parsed_arguments == GetWeather(city="Paris")


async def test_parse_reads_structured_output(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model="codex-5",
        messages=user("""[[fake:text say='{"city": "Rome"}']]"""),
        response_format=GetWeather,
    )
    assert answer.choices[0].message.parsed == GetWeather(city="Rome")


async def test_parse_with_a_response_format_is_400_where_the_contract_demands_it(
    tmp_path: Path,
) -> None:
    async with (
        fake_proxy(tmp_path, structured_output=False) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.parse(
                model="codex-5", messages=user("Hello."), response_format=GetWeather
            )
    assert caught.value.param == "response_format"


async def test_the_raw_response_helper_shows_headers_and_parses(client: AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model="codex-5", messages=user("Hello."), temperature=0.1
    )
    assert raw.headers["x-codex-ignored-params"] == "temperature"
    assert raw.request_id == raw.headers["x-request-id"]
    assert raw.parse().choices[0].message.content == TEXT


async def test_a_tool_loop_comes_back_with_the_output(client: AsyncOpenAI) -> None:
    messages: list[Any] = user("[[fake:tool_call]]")
    request: dict[str, Any] = {"model": "codex-5", "tools": [CHAT_WEATHER]}
    first = (await client.chat.completions.create(messages=messages, **request)).choices[0].message
    assert first.tool_calls is not None
    messages.append(first.model_dump())
    messages.append({"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"})
    second = await client.chat.completions.create(messages=messages, **request)
    assert second.choices[0].finish_reason == "stop"
    assert (second.choices[0].message.content or "").startswith("The tool said:")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"n": 99}, openai.BadRequestError),
        ({"messages": user("[[fake:error_rate_limit]]")}, openai.RateLimitError),
        ({"messages": user("[[fake:context_length]]")}, openai.BadRequestError),
        ({"messages": user("[[fake:error_500]]")}, openai.InternalServerError),
    ],
)
async def test_errors_are_the_sdks_own(
    client: AsyncOpenAI, fields: dict[str, Any], error: type[openai.APIStatusError]
) -> None:
    with pytest.raises(error) as caught:
        await client.chat.completions.create(**{"model": "codex-5", "messages": user("Hello."), **fields})
    assert caught.value.request_id is not None


async def test_a_failure_in_mid_stream_is_raised_by_the_sdk(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="codex-5", messages=user("[[fake:error_mid_text]]"), stream=True
    )
    with pytest.raises(openai.APIError):
        [chunk async for chunk in stream]


async def test_the_sdk_sees_when_a_usage_limit_is_reset(proxy: Proxy, client: AsyncOpenAI) -> None:
    await client.chat.completions.create(model="codex-5", messages=user("[[fake:text limits=100]]"))
    with pytest.raises(openai.RateLimitError) as refused:
        await client.chat.completions.create(model="codex-5", messages=user("[[fake:usage_limit]]"))
    assert int(refused.value.response.headers["Retry-After"]) > 0


async def test_the_sdk_does_not_repeat_what_would_fail_again(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as refused:
        await client.with_options(max_retries=2).chat.completions.create(
            model="codex-5", messages=user("[[fake:quota]]")
        )
    assert refused.value.request.headers["x-stainless-retry-count"] == "0"
