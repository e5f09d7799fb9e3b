"""The official SDKs behind a balancer that gives the requests of a client to two servers in turn."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.http.serving import Proxy, fake_proxy
from tests.http_responses.asking import prompt_for
from tests.http_responses.receiving import SECRET, receiver
from tests.mcp.serving import web_server
from tests.nginx import needs_nginx
from tests.parts.machines.two_servers.balancer import KEY, SETTINGS, balancer
from tests.parts.mcp.test_requests import CALLS, weather
from tests.parts.mcp.test_requests import settings as mcp_settings
from tests.waiting import PATIENCE, poll
from tests.weather_tool import CHAT_WEATHER, RESPONSES_WEATHER

pytestmark = needs_nginx

CALL = '[[fake:tool_call name=get_weather args=\'{"city": "Paris"}\' say="Seen: {outputs}"]]'


@dataclass(frozen=True)
class Front:
    """The two servers, the balancer's URL, and the SDKs' clients of it."""

    servers: tuple[Proxy, Proxy]
    url: str
    openai: Any
    anthropic: Any
    release: Path

    async def both_were_asked(self) -> bool:
        """Whether each server has answered a request for a turn."""
        for server in self.servers:
            metrics = await server.send("GET", "/metrics")
            if 'method="POST"' not in metrics.text:
                return False
        return True


@asynccontextmanager
async def front_of(
    folder: Path, database: str, more: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Front]:
    """`more`: variables of the fake agent."""
    release = folder / "release"
    environment = {"STREAM_RELEASE_FILE": str(release), **(more or {})}
    for name in ("one", "two"):
        (folder / name).mkdir()
    given: dict[str, Any] = {**SETTINGS, "store": database, "metrics": True, **settings}
    async with (
        fake_proxy(folder / "one", environment, **given) as one,
        fake_proxy(folder / "two", environment, **given) as two,
        balancer(folder, (one.server.port, two.server.port)) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE) as openai,
        AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, timeout=PATIENCE) as anthropic,
    ):
        front = Front((one, two), url, openai, anthropic, release)
        yield front
        assert await front.both_were_asked()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with web_server("http", "--only", "get_weather") as (port, _):
        yield port


@pytest.fixture
async def front(tmp_path: Path, postgres_url: str) -> AsyncIterator[Front]:
    async with front_of(tmp_path, postgres_url) as made:
        yield made


async def test_a_tool_loop_of_chat_completions(front: Front) -> None:
    messages: list[Any] = [{"role": "user", "content": CALL}]
    for _ in range(3):
        first = await front.openai.chat.completions.create(
            model="codex-5", messages=messages, tools=[CHAT_WEATHER]
        )
        (call,) = first.choices[0].message.tool_calls
        output = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        answered = [*messages, first.choices[0].message.to_dict(), output]
        last = await front.openai.chat.completions.create(
            model="codex-5", messages=answered, tools=[CHAT_WEATHER]
        )
        assert last.choices[0].message.content == "Seen: sunny"
        messages = [*answered, last.choices[0].message.to_dict(), {"role": "user", "content": CALL}]


@pytest.mark.exhaustive
async def test_a_tool_loop_of_messages_with_thinking(front: Front) -> None:
    function: Any = CHAT_WEATHER["function"]
    tool = {"name": "get_weather", "input_schema": function["parameters"]}
    messages: list[Any] = [{"role": "user", "content": CALL}]
    given: Any = {"model": "codex-5", "max_tokens": 1024, "tools": [tool], "thinking": {"type": "adaptive"}}
    for _ in range(3):
        first = await front.anthropic.messages.create(**given, messages=messages)
        assert first.stop_reason == "tool_use"
        (call,) = [block for block in first.content if block.type == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        answered = [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        async with front.anthropic.messages.stream(**given, messages=[*messages, *answered]) as stream:
            last = await stream.get_final_message()
        assert [block.text for block in last.content if block.type == "text"] == ["Seen: sunny"]
        messages += [
            *answered,
            {"role": "assistant", "content": last.content},
            {"role": "user", "content": CALL},
        ]


async def test_a_chain_of_responses_with_tools(front: Front) -> None:
    previous = None
    for number in range(6):
        first = await front.openai.responses.create(
            model="codex-5", input=CALL, tools=[RESPONSES_WEATHER], previous_response_id=previous
        )
        (call,) = first.output
        output = {"type": "function_call_output", "call_id": call.call_id, "output": f"sunny {number}"}
        last = await front.openai.responses.create(
            model="codex-5", input=[output], tools=[RESPONSES_WEATHER], previous_response_id=first.id
        )
        assert last.output_text == f"Seen: sunny {number}"
        previous = last.id
    listed = await front.openai.responses.input_items.list(previous)
    assert listed.data[0].type == "function_call_output"


@pytest.mark.exhaustive
async def test_a_conversation_and_its_items(front: Front) -> None:
    conversation = (await front.openai.conversations.create()).id
    for number in range(6):
        await front.openai.responses.create(
            model="codex-5", input=prompt_for(f"Answer {number}."), conversation=conversation
        )
    items = [item async for item in front.openai.conversations.items.list(conversation, order="asc")]
    texts = [item.content[0].text for item in items if item.type == "message" and item.role == "assistant"]
    assert texts == [f"Answer {number}." for number in range(6)]
    assert (await front.openai.conversations.delete(conversation)).deleted


async def test_a_background_response_is_followed_resumed_and_cancelled(front: Front) -> None:
    held = '[[fake:text say="one two three" hold=1]]'
    stream = await front.openai.responses.create(model="codex-5", input=held, background=True, stream=True)
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    id = seen[0].response.id
    assert (await front.openai.responses.retrieve(id)).status == "in_progress"
    front.release.touch()
    resumed = await front.openai.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
    seen += [event async for event in resumed]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].response.output_text == "one two three"
    front.release.unlink()
    other = await front.openai.responses.create(model="codex-5", input=held, background=True)
    assert (await front.openai.responses.cancel(other.id)).status == "cancelled"
    for _ in range(2):
        assert (await front.openai.responses.retrieve(other.id)).status == "cancelled"


@pytest.mark.exhaustive
async def test_calls_of_an_mcp_server_wait_for_their_approvals(
    tmp_path: Path, postgres_url: str, port: int
) -> None:
    tools = [weather(port, require_approval="always")]
    async with front_of(tmp_path, postgres_url, CALLS, **mcp_settings(port)) as front:
        previous = None
        for approve in (True, True, False):
            asked = await front.openai.responses.create(
                model="codex-5", input="Weather?", tools=tools, previous_response_id=previous
            )
            assert asked.output[-1].type == "mcp_approval_request"
            answer: Any = {
                "type": "mcp_approval_response",
                "approval_request_id": asked.output[-1].id,
                "approve": approve,
            }
            done = await front.openai.responses.create(
                model="codex-5", input=[answer], tools=tools, previous_response_id=asked.id
            )
            outputs = [each.output for each in done.output if each.type == "mcp_call"]
            assert outputs == (["Sunny in Paris."] if approve else [])
            previous = done.id


@pytest.mark.exhaustive
async def test_webhooks_come_once_each(tmp_path: Path, postgres_url: str) -> None:
    async with (
        receiver() as heard,
        front_of(tmp_path, postgres_url, webhooks={"urls": heard.url, "secret": SECRET}) as front,
    ):
        made = [
            await front.openai.responses.create(model="codex-5", input=prompt_for("ok"), background=True)
            for _ in range(6)
        ]

        await heard.deliveries(len(made))

        async def nothing_left() -> bool:
            body = await front.servers[0].send(
                "GET", "/v1/cluster", headers={"Authorization": f"Bearer {KEY}"}
            )
            return not any(node["responses"] for node in body.body["data"])

        await poll(nothing_left)
        told = [json.loads(body)["data"]["id"] for body, _ in heard.webhooks]
        assert sorted(told) == sorted(each.id for each in made)


async def test_both_machines_are_listed(front: Front) -> None:
    await front.openai.responses.create(model="codex-5", input=prompt_for("ok"))
    await front.openai.responses.create(model="codex-5", input=prompt_for("ok"))
    body = json.loads((await front.openai.get("/cluster", cast_to=bytes)).decode())
    assert {node["url"] for node in body["data"]} == {server.url for server in front.servers}
