"""Responses through the real binary: what its model sees of stored turns, on kept threads, replayed, restarted."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from openai.types.responses import Response, ResponseFunctionToolCall

from tests.real.codex_home import MODEL
from tests.real.model_plans import call, plan, say, think
from tests.real.model_server import ModelServer, Request
from tests.real.proxy import Proxy
from tests.real.shared import EVERY_WAY, Proxies, Restarts
from tests.real.tool_loop import assert_grows, input_of, types_of
from tests.waiting import eventually, poll
from tests.weather_tool import RESPONSES_WEATHER

PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9aw"
    "AAAABJRU5ErkJggg=="
)


@dataclass
class Talk:
    """Turns on one proxy, or on a new one for each. `way` says what happens between them."""

    shared: Proxies
    way: str
    request: dict[str, Any]
    restarts: Restarts | None = None

    async def client(self) -> AsyncOpenAI:
        if self.way == "restarted":
            self.restarts = self.restarts or self.shared.restarts(kept_threads=0)
            return (await self.restarts.next()).client
        return (await self.shared.of(**({} if self.way == "kept" else {"kept_threads": 0}))).client

    async def ask(self, input: Any, **fields: Any) -> Response:
        client = await self.client()
        answer: Response = await client.responses.create(**(self.request | {"input": input} | fields))
        return answer


@asynccontextmanager
async def talk_of(shared: Proxies, way: str, **request: Any) -> AsyncIterator[Talk]:
    talk = Talk(shared, way, {"model": MODEL, "instructions": "Be brief.", **request})
    try:
        yield talk
    finally:
        if talk.restarts is not None:
            await talk.restarts.close()


def calls_of(response: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]


def outputs_for(response: Response) -> list[dict[str, Any]]:
    """What the client's tool answers to each call."""
    return [
        {
            "type": "function_call_output",
            "call_id": each.call_id,
            "output": f"sunny in {json.loads(each.arguments)['city']}",
        }
        for each in calls_of(response)
    ]


@EVERY_WAY
async def test_a_chain_shows_the_model_all_that_it_saw_and_said_and_new_items_behind_it(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with talk_of(proxies, way) as talk:
        first = await talk.ask(plan([think(), say("One.")]))
        second = await talk.ask(plan([think(), say("Two.")]), previous_response_id=first.id)
        third = await talk.ask("[[model:text say=Three.]]", previous_response_id=second.id)
    assert [each.output_text for each in (first, second, third)] == ["One.", "Two.", "Three."]
    assert_grows(model_server.calls)
    answer = ["reasoning", "message"]
    assert types_of(model_server.calls[2]) == ["message", "message", *answer, "message", *answer, "message"]


@EVERY_WAY
async def test_a_tool_loop_by_previous_id_sees_its_reasoning_and_outputs_in_order(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    step = [think(), say("Let me look."), call(city="Paris"), call(city="Rome")]
    async with talk_of(proxies, way, tools=[RESPONSES_WEATHER]) as talk:
        answer = await talk.ask(plan(step, step, [think(), say("Done.")]))
        while calls_of(answer):
            outputs = list(reversed(outputs_for(answer)))
            answer = await talk.ask(outputs, previous_response_id=answer.id)
        assert answer.output_text == "Done."
        last = await talk.ask("[[model:text say=Bye.]]", previous_response_id=answer.id)
    assert last.output_text == "Bye."
    assert_grows(model_server.calls)
    added = ["reasoning", "message", *["function_call"] * 2, *["function_call_output"] * 2]
    assert types_of(model_server.calls[3]) == [
        *["message"] * 2, *added, *added, "reasoning", "message", "message",
    ]  # fmt: skip
    outputs_seen = [
        item["output"] for item in input_of(model_server.calls[1]) if item["type"] == "function_call_output"
    ]
    assert outputs_seen == ["sunny in Paris", "sunny in Rome"]


@EVERY_WAY
async def test_a_conversation_carries_the_model_s_own_items(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    async with talk_of(proxies, way, tools=[RESPONSES_WEATHER]) as talk:
        conversation = (await (await talk.client()).conversations.create()).id
        first = await talk.ask(
            plan([think(), call(city="Paris")], [think(), say("Sunny.")]), conversation=conversation
        )
        second = await talk.ask(outputs_for(first), conversation=conversation)
        third = await talk.ask("[[model:text say=Bye.]]", conversation=conversation)
        items = (await (await talk.client()).conversations.items.list(conversation, order="asc")).data
    assert (second.output_text, third.output_text) == ("Sunny.", "Bye.")
    assert_grows(model_server.calls)
    assert [item.type for item in items if item.type != "reasoning"] == [
        "message", "function_call", "function_call_output", "message", "message", "message",
    ]  # fmt: skip


@pytest.mark.exhaustive
async def test_encrypted_reasoning_goes_to_the_client_and_back_with_nothing_stored(
    proxies: Proxies, model_server: ModelServer
) -> None:
    """As Codex itself asks: `store: false`, and all of the context in each request."""
    asking = {"store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "thread-1"}
    async with talk_of(proxies, "restarted", tools=[RESPONSES_WEATHER], **asking) as talk:
        user = {"role": "user", "content": plan([think(), call(city="Paris")], [say("Sunny.")])}
        first = await talk.ask([user])
        echoed = [item.model_dump(exclude_none=True) for item in first.output]
        second = await talk.ask([user, *echoed, *outputs_for(first)])
    assert second.output_text == "Sunny."
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    [sealed] = [item for item in input_of(model_server.calls[1]) if item["type"] == "reasoning"]
    assert sealed["encrypted_content"] == echoed[0]["encrypted_content"]
    assert_grows(model_server.calls)


async def test_another_model_does_not_get_this_ones_reasoning(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with talk_of(proxies, "replayed") as talk:
        first = await talk.ask(plan([think(), say("One.")]))
        await talk.ask("[[model:text say=Two.]]", previous_response_id=first.id, model="gpt-5.1-other")
    assert "reasoning" not in types_of(model_server.calls[1])
    assert "One." in json.dumps(input_of(model_server.calls[1]))


@EVERY_WAY
async def test_an_image_of_an_earlier_turn_is_still_seen(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    content = [
        {"type": "input_text", "text": "[[model:text say=A.pixel.]]"},
        {"type": "input_image", "image_url": PNG, "detail": "high"},
    ]
    async with talk_of(proxies, way) as talk:
        first = await talk.ask([{"role": "user", "content": content}])
        await talk.ask("[[model:text say=Yes.]]", previous_response_id=first.id)
    assert_grows(model_server.calls)
    assert PNG in json.dumps(input_of(model_server.calls[1]))


async def test_an_agent_turn_is_continued_with_what_the_agent_did(
    proxies: Proxies, model_server: ModelServer
) -> None:
    responses = (await proxies.of(kept_threads=0)).client.responses
    first = await responses.create(model=MODEL, input="[[model:shell cmd='echo made']]")
    await responses.create(model=MODEL, input="[[model:text say=Two.]]", previous_response_id=first.id)
    last = json.dumps(input_of(model_server.calls[-1]))
    assert "made" in last
    assert "function_call_output" in last


async def test_a_compacted_chain_goes_on_from_the_model_s_own_summary(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with talk_of(proxies, "replayed") as talk:
        first = await talk.ask("[[model:text say=Summary.of.all.]] my secret")
        client = await talk.client()
        compacted = await client.responses.compact(model=MODEL, previous_response_id=first.id)
        items = [item.model_dump(exclude_none=True) for item in compacted.output]
        await talk.ask([*items, {"role": "user", "content": "[[model:text say=Yes.]]"}])
    asked, gone_on = (json.dumps(input_of(each)) for each in model_server.calls[1:])
    assert "my secret" in asked
    assert "Summary.of.all." in gone_on
    assert "my secret" not in gone_on


async def test_cancelling_a_background_response_stops_the_real_agent(
    proxy: Proxy, model_server: ModelServer
) -> None:
    created = await proxy.client.responses.create(
        model=MODEL, instructions="Be brief.", input="[[model:stall n=3]]", background=True
    )
    asked = await model_server.call(0)
    cancelled = await proxy.client.responses.cancel(created.id)
    assert cancelled.status == "cancelled"
    assert await asked.ending() == "client_gone"
    assert (await proxy.client.responses.retrieve(created.id)).status == "cancelled"


async def test_a_background_stream_of_the_real_agent_is_resumed(
    proxy: Proxy, model_server: ModelServer
) -> None:
    stream = await proxy.client.responses.create(
        model=MODEL,
        instructions="Be brief.",
        input="[[model:stall n=3 gate=go]]",
        background=True,
        stream=True,
    )
    seen = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    model_server.open_gate("go")
    id = seen[0].response.id  # type: ignore[union-attr]
    rest = await proxy.client.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
    events = [*seen, *[event async for event in rest]]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == (await proxy.client.responses.retrieve(id)).output_text


async def test_a_client_that_leaves_stops_the_real_agent(proxy: Proxy, model_server: ModelServer) -> None:
    stream = await proxy.client.responses.create(
        model=MODEL, instructions="Be brief.", input="[[model:stall n=3]]", stream=True
    )
    id = (await anext(aiter(stream))).response.id  # type: ignore[union-attr]
    await stream.close()
    assert await model_server.calls[0].ending() == "client_gone"
    await eventually(lambda: proxy.idle)

    async def stored() -> str | None:
        with suppress(NotFoundError):  # it is saved a moment after its turn has ended
            return (await proxy.client.responses.retrieve(id)).status
        return None

    assert await poll(stored) == "cancelled"


@pytest.mark.parametrize("stream", [False, True])
async def test_truncation_auto_leaves_out_the_oldest_turns_once(
    proxies: Proxies, model_server: ModelServer, stream: bool
) -> None:
    async with talk_of(proxies, "replayed", truncation="auto") as talk:
        first = await talk.ask("[[model:text say=One.]] the oldest " + "word " * 200)
        second = await talk.ask("[[model:text say=Two.]] the newer", previous_response_id=first.id)
        asked = "[[model:failed n=0 code=context_length_exceeded times=1]]"
        fields: dict[str, Any] = {"previous_response_id": second.id, "stream": stream}
        answer = await talk.ask(asked, **fields)
        if stream:
            events = [event async for event in answer]  # type: ignore[attr-defined]
            answer = events[-1].response
        assert answer.status == "completed"
        stored = await (await talk.client()).responses.retrieve(answer.id)
        assert stored.output_text == answer.output_text
    whole, shorter = (json.dumps(input_of(each)) for each in model_server.calls[2:])
    assert "the oldest" in whole
    assert "the oldest" not in shorter
    assert "the newer" in shorter


async def test_without_truncation_a_context_that_is_too_long_fails(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with talk_of(proxies, "replayed") as talk:
        first = await talk.ask("[[model:text say=One.]]")
        with pytest.raises(BadRequestError) as refused:
            await talk.ask("[[model:failed n=0 code=context_length_exceeded]]", previous_response_id=first.id)
    assert refused.value.code == "context_length_exceeded"
    assert len(model_server.calls) == 2


async def test_of_an_answer_cut_at_a_stop_sequence_the_model_sees_what_its_client_saw(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with talk_of(proxies, "replayed") as talk:
        first = await talk.ask("[[model:text say=before.STOP.after]]", extra_body={"stop": "STOP"})
        assert first.output_text == "before."
        await talk.ask("[[model:text say=Two.]]", previous_response_id=first.id)
    seen = [item for item in input_of(model_server.calls[1]) if item.get("role") == "assistant"]
    assert [part["text"] for item in seen for part in item["content"]] == ["before."]


async def test_a_call_deleted_from_a_conversation_is_deleted_with_its_hidden_item(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with talk_of(proxies, "replayed", tools=[RESPONSES_WEATHER]) as talk:
        client = await talk.client()
        conversation = (await client.conversations.create()).id
        first = await talk.ask(
            plan([think(), call(city="Paris")], [say("Sunny.")]), conversation=conversation
        )
        await talk.ask(outputs_for(first), conversation=conversation)
        for item in (await client.conversations.items.list(conversation)).data:
            if item.type in ("function_call", "function_call_output"):
                await client.conversations.items.delete(item.id or "", conversation_id=conversation)
        last = await talk.ask("[[model:text say=Bye.]]", conversation=conversation)
    assert last.output_text == "Bye."
    assert not {"function_call", "function_call_output"} & set(types_of(model_server.calls[2]))


@EVERY_WAY
@pytest.mark.parametrize("instructions", [None, "Be brief."], ids=["agent", "plain model"])
async def test_web_search_is_offered_to_the_model_for_the_turn_that_asked_and_for_no_other(
    proxies: Proxies, model_server: ModelServer, way: str, instructions: str | None
) -> None:
    async with talk_of(proxies, way, instructions=instructions) as talk:
        client = await talk.client()
        asked: Any = {"model": MODEL, "instructions": instructions, "tools": [{"type": "web_search"}]}
        raw = await client.responses.with_raw_response.create(**asked, input="[[model:text say=One.]]")
        first = raw.parse()
        await talk.ask("[[model:text say=Two.]]", previous_response_id=first.id)
    searching, other = (offered_search(call) for call in model_server.calls)
    assert searching == {"type": "web_search", "external_web_access": True}
    assert "tools[web_search]" not in raw.headers.get("x-codex-ignored-params", "")
    assert other is None or other["external_web_access"] is False  # an agent's own, as Codex has it
    if instructions:
        assert other is None


@pytest.mark.exhaustive
async def test_the_operator_may_forbid_web_search(proxies: Proxies, model_server: ModelServer) -> None:
    responses = (await proxies.of(web_search=False)).client.responses
    tools: Any = [{"type": "web_search"}]
    raw = await responses.with_raw_response.create(
        model=MODEL, instructions="Be brief.", input="[[model:text]]", tools=tools
    )
    assert offered_search(model_server.calls[0]) is None
    assert raw.headers["x-codex-ignored-params"] == "tools[web_search]"


def offered_search(call: Request) -> dict[str, Any] | None:
    """The provider's search among the tools of a model call: what it is, and whether it reaches the web."""
    found = [tool for tool in call.body.get("tools", ()) if tool["type"] == "web_search"]
    return {key: found[0][key] for key in ("type", "external_web_access")} if found else None


async def test_the_headers_that_stand_in_for_code_interpreter_show_the_agents_commands(proxy: Proxy) -> None:
    """The refusal of `code_interpreter` names them; instructions alone would make this a plain-model turn."""
    with pytest.raises(BadRequestError) as refused:
        await proxy.client.responses.create(
            model=MODEL, input="Hi.", tools=[{"type": "code_interpreter", "container": {"type": "auto"}}]
        )
    named = re.findall(r"`(X-Codex-[A-Za-z]+): ([a-z]+)`", refused.value.message)
    assert dict(named) == {"X-Codex-Mode": "agent", "X-Codex-Activity": "items"}
    response = await proxy.client.responses.create(
        model=MODEL,
        instructions="Compute with Python.",
        input="[[model:shell cmd=\"python3 -c 'print(6*7)'\" say=Done.]]",
        extra_headers=dict(named),
    )
    output = [item.to_dict(warnings=False) for item in response.output]  # no type of the SDK's
    (command,) = [item for item in output if item["type"] == "codex:activity"]
    assert command["kind"] == "command"
    assert "print(6*7)" in str(command["text"])
    assert (str(command["output"]).strip(), command["status"]) == ("42", "completed")
    assert response.output_text == "Done."
