"""The official SDK of Anthropic's API, with its helpers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic, beta_async_tool
from anthropic.types import Message
from pydantic import BaseModel

from tests.fuzz.requests import PIXEL
from tests.http.serving import Proxy, fake_proxy
from tests.waiting import PATIENCE
from tests.weather_tool import MESSAGES_WEATHER

pytestmark = pytest.mark.sampled(every=2)

TEXT = "Hello from the deterministic fake agent."


class GetWeather(BaseModel):
    """The weather in a city."""

    city: str


def request_arguments(text: str, **more: Any) -> dict[str, Any]:
    """The arguments of a request that says this."""
    return {"model": "codex-5", "max_tokens": 1024, "messages": [{"role": "user", "content": text}], **more}


def blocks_of(answer: Message) -> list[tuple[Any, ...]]:
    """The blocks of an answer without what differs from one to the next: ids, and the model's state."""
    found: list[tuple[Any, ...]] = []
    for block in answer.content:
        if block.type == "text":
            found.append(("text", block.text))
        elif block.type == "thinking":
            found.append(("thinking", block.thinking, bool(block.signature)))
        elif block.type == "tool_use":
            found.append(("tool_use", block.name, block.input))
        else:
            found.append((block.type,))
    return found


@pytest.fixture(params=["proto", "app-server"])
async def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy for each dialect of the fake agent."""
    async with fake_proxy(tmp_path, fake_dialect=request.param) as running:
        yield running


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=proxy.url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


# --- the official SDK -----------------------------------------------------------------------------


async def test_create_gives_a_whole_answer(client: AsyncAnthropic) -> None:
    answer = await client.messages.create(**request_arguments("Hello."))
    assert blocks_of(answer) == [("text", TEXT)]
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "codex-5")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    "marker",
    [
        "text",
        "reasoning",
        "tool_call",
        "tool_calls",
        "tool_calls_after_text",
        "long_text",
        "length",
        "unicode",
    ],
)
async def test_a_stream_is_the_whole_answer_for_the_sdk(client: AsyncAnthropic, marker: str) -> None:
    given = request_arguments(f"[[fake:{marker}]]", tools=[MESSAGES_WEATHER], thinking={"type": "adaptive"})
    whole = await client.messages.create(**given)
    async with client.messages.stream(**given) as stream:
        events = [event async for event in stream]
        streamed = await stream.get_final_message()
    assert blocks_of(streamed) == blocks_of(whole)
    assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)
    assert events[0].type == "message_start"
    assert events[-1].type == "message_stop"


async def test_thinking_stands_before_the_text(client: AsyncAnthropic) -> None:
    answer = await client.messages.create(
        **request_arguments("[[fake:reasoning]]", thinking={"type": "adaptive"})
    )
    kinds = [block.type for block in answer.content]
    assert kinds[0] == "thinking"
    assert "text" in kinds
    without = await client.messages.create(
        **request_arguments("[[fake:reasoning]]", thinking={"type": "disabled"})
    )
    assert [block.type for block in without.content] == ["text"]


@beta_async_tool
async def get_weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: The city.
    """
    return f"sunny in {city}"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_sdks_tool_runner_loops_to_the_end_with_the_whole_conversation(
    client: AsyncAnthropic, stream: bool
) -> None:
    """The runner asks for a thread that the server keeps, and sends everything again when it is refused one."""
    asked: list[dict[str, Any]] = []

    async def note(request: Any) -> None:
        asked.append(json.loads(request.content))

    client._client.event_hooks["request"].append(note)
    runner = client.beta.messages.tool_runner(
        **request_arguments("[[fake:tool_calls]]"), tools=[get_weather], stream=stream
    )
    last = await runner.until_done()
    assert last.stop_reason == "end_turn"
    assert "sunny" in str(last.content)
    assert "sunny in Rome" in str(asked[-1]["messages"])
    assert [body.get("thread") for body in asked] == [{"type": "create"}, None, None]
    assert all(body["tools"] for body in asked)
    assert [len(body["messages"]) for body in asked] == [1, 1, 3]


async def test_a_thread_that_is_continued_is_refused_with_the_code_that_sdks_know(
    client: AsyncAnthropic,
) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.beta.messages.create(
            **request_arguments("And in Rome?"),
            thread={"type": "continue", "previous_message_id": "msg_0123456789abcdef0123456789abcdef"},
            betas=["message-threads-2026-08-12"],
        )
    assert raised.value.body["error"]["details"] == {"error_code": "thread_unsupported_request"}  # type: ignore[index]
    assert "send the whole conversation" in raised.value.message


async def test_an_image_of_the_sdk_reaches_the_agent(client: AsyncAnthropic) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "[[fake:echo]] What is it?"}]
    answer = await client.messages.create(
        **{**request_arguments(""), "messages": [{"role": "user", "content": content}]}
    )
    assert "image" in str(blocks_of(answer))


async def test_structured_output_is_parsed(client: AsyncAnthropic) -> None:
    answer = await client.messages.parse(
        **request_arguments("""[[fake:text say='{"city": "Rome"}']]"""), output_format=GetWeather
    )
    assert answer.parsed_output == GetWeather(city="Rome")


async def test_the_beta_client_and_a_bearer_token_are_as_good(proxy: Proxy) -> None:
    async with AsyncAnthropic(base_url=proxy.url, auth_token="none", max_retries=0) as client:
        answer = await client.beta.messages.create(
            **request_arguments("Hello."), betas=["never-heard-of-2027-01-01"]
        )
    assert answer.content[0].type == "text"


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"model": "nobody-knows-it"}, anthropic.NotFoundError),
        (request_arguments("[[fake:quota]]"), anthropic.PaymentRequiredError),
        (request_arguments("[[fake:context_length]]"), anthropic.BadRequestError),
        (request_arguments("[[fake:error_rate_limit]]"), anthropic.RateLimitError),
        (request_arguments("[[fake:error_500]]"), anthropic.InternalServerError),
    ],
    ids=["field", "model", "quota", "context", "limit", "server"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_the_sdks_own(
    client: AsyncAnthropic,
    fields: dict[str, Any],
    error: type[anthropic.APIStatusError],
    stream: bool,
) -> None:
    with pytest.raises(error) as caught:
        await client.messages.create(**{**request_arguments("Hello."), **fields}, stream=stream)
    assert caught.value.request_id is not None
    assert caught.value.response.json()["type"] == "error"


async def test_a_failure_in_mid_stream_is_raised_by_the_sdk(client: AsyncAnthropic) -> None:
    async with client.messages.stream(**request_arguments("[[fake:error_mid_text]]")) as stream:
        texts = aiter(stream.text_stream)
        assert await anext(texts)
        with pytest.raises(anthropic.APIStatusError):
            [text async for text in texts]


@pytest.mark.parametrize(("marker", "tries"), [("auth_401", 1), ("error_500", 2)])
async def test_the_sdk_tries_again_only_where_that_may_help(proxy: Proxy, marker: str, tries: int) -> None:
    asked: list[str] = []

    async def note(request: Any) -> None:
        asked.append(request.url.path)

    async with AsyncAnthropic(base_url=proxy.url, api_key="none", max_retries=1) as client:
        client._client.event_hooks["request"].append(note)
        with pytest.raises(anthropic.APIStatusError):
            await client.messages.create(**request_arguments(f"[[fake:{marker}]]"))
    assert asked == ["/v1/messages"] * tries
