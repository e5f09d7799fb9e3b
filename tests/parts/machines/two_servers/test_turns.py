"""Turns that continue on another server: conversations, chains, calls, approvals, sockets."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.serving import Proxy, until
from tests.http_responses.asking import create, prompt_for
from tests.http_responses.test_websocket import answer_to, open_socket
from tests.mcp.serving import web_server
from tests.parts.machines.two_servers.conftest import (
    HELD_PROMPT,
    MakePair,
    Pair,
    let_leases_run_out,
    third_server,
)
from tests.parts.mcp.test_requests import CALLS, settings, weather
from tests.weather_tool import RESPONSES_WEATHER


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with web_server("http", "--only", "get_weather") as (port, _):
        yield port


async def items_of(proxy: Proxy, conversation: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    while True:
        after = f"&after={items[-1]['id']}" if items else ""
        page = await proxy.send("GET", f"/v1/conversations/{conversation}/items?limit=100&order=asc{after}")
        items += page.body["data"]
        if not page.body["has_more"]:
            return items


async def test_a_chain_continues_on_the_other_server(pair: Pair) -> None:
    first = await create(pair.one, prompt_for("Blue."))
    second = await create(pair.two, prompt_for("Red."), previous_response_id=first.body["id"])
    third = await create(pair.one, "[[fake:echo]]", previous_response_id=second.body["id"])
    echo = json.dumps(third.body["output"])
    assert "Blue." in echo
    assert "Red." in echo


async def test_the_next_turn_of_a_conversation_waits_for_the_one_on_the_other_server(pair: Pair) -> None:
    conversation = (await pair.at_one.conversations.create()).id
    first = asyncio.create_task(create(pair.one, HELD_PROMPT, conversation=conversation))
    await until(lambda: pair.one.server.runs.running == 1)
    second = asyncio.create_task(create(pair.two, "[[fake:echo]]", conversation=conversation))
    done, _ = await asyncio.wait({second}, timeout=0.3)
    assert not done
    pair.release.write_text("go")
    assert (await first).status == 200
    assert "one two three" in json.dumps((await second).body["output"])


async def test_a_turn_that_waits_too_long_for_the_other_server_is_a_429(pair_with: MakePair) -> None:
    async with pair_with(queue_wait=0.1) as pair:
        conversation = (await pair.at_one.conversations.create()).id
        first = asyncio.create_task(create(pair.one, HELD_PROMPT, conversation=conversation))
        await until(lambda: pair.one.server.runs.running == 1)
        refused = await create(pair.two, "Hello.", conversation=conversation)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "5")
        pair.release.write_text("go")
        assert (await first).status == 200
        assert (await create(pair.two, "Hello.", conversation=conversation)).status == 200


@pytest.mark.exhaustive
async def test_a_conversation_is_free_again_once_the_lease_of_a_killed_server_has_run_out(
    pair: Pair, postgres_url: str
) -> None:
    conversation = (await pair.at_one.conversations.create()).id
    body = {"model": "codex-5", "input": HELD_PROMPT, "conversation": conversation, "stream": True}
    async with (
        third_server(pair, postgres_url) as (url, process),
        pair.one.session.post(f"{url}/v1/responses", json=body) as reply,
    ):
        await reply.content.readany()
        process.kill()
        await process.wait()
    waiting = asyncio.create_task(create(pair.one, prompt_for("Here."), conversation=conversation))
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    await let_leases_run_out(postgres_url)
    assert (await waiting).status == 200
    assert len(await items_of(pair.two, conversation)) == 2


async def test_a_conversation_that_does_not_exist_is_waited_for_by_nobody(pair: Pair) -> None:
    for id in ("conv_unknown", "conv_" + random.Random(7).randbytes(4000).hex()):
        answers = await asyncio.gather(
            *(create(proxy, "Hello.", conversation=id) for proxy in (pair.one, pair.two))
        )
        assert [answer.status for answer in answers] == [404, 404]


@pytest.mark.exhaustive
async def test_twenty_turns_at_once_on_both_servers_leave_a_conversation_in_one_order(pair: Pair) -> None:
    conversation = (await pair.at_one.conversations.create()).id
    prompts = [prompt_for(f"Answer {number}.") for number in range(20)]
    answers = await asyncio.gather(
        *(
            create((pair.one, pair.two)[number % 2], prompt, conversation=conversation)
            for number, prompt in enumerate(prompts)
        )
    )
    assert {answer.status for answer in answers} == {200}
    items = await items_of(pair.two, conversation)
    assert items == await items_of(pair.one, conversation)
    texts = [item["content"][0]["text"] for item in items]
    asked, answered = texts[::2], texts[1::2]
    assert sorted(asked) == sorted(prompts)
    assert answered == [text.split('"')[1] for text in asked]


async def test_the_output_of_a_call_arrives_at_another_server_than_the_call_was_made_on(pair: Pair) -> None:
    prompt = '[[fake:tool_call args=\'{"city": "Paris"}\' say="Seen: {outputs}"]]'
    first = await create(pair.one, prompt, tools=[RESPONSES_WEATHER])
    (call,) = first.body["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Sunny."}
    second = await create(
        pair.two, [output], tools=[RESPONSES_WEATHER], previous_response_id=first.body["id"]
    )
    assert second.body["output"][0]["content"][0]["text"] == "Seen: Sunny."


async def test_a_socket_continues_what_the_other_server_has_stored(pair: Pair) -> None:
    async with open_socket(pair.one) as socket:
        first = await answer_to(socket, prompt_for("Blue."))
    async with open_socket(pair.two) as socket:
        second = await answer_to(socket, "[[fake:echo]]", previous_response_id=first["id"])
    assert "Blue." in json.dumps(second["output"])


@pytest.mark.exhaustive
async def test_an_approval_at_the_other_server_runs_the_call(pair_with: MakePair, port: int) -> None:
    tools = [weather(port, require_approval="always")]
    async with pair_with(CALLS, **settings(port)) as pair:
        first = await create(pair.one, "Weather?", tools=tools)
        request = first.body["output"][-1]
        assert request["type"] == "mcp_approval_request"
        approval = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        last = await create(pair.two, [approval], tools=tools, previous_response_id=first.body["id"])
    made, message = last.body["output"]
    assert (made["type"], made["output"]) == ("mcp_call", "Sunny in Paris.")
    assert message["content"][0]["text"] == "The tool said: Sunny in Paris."
