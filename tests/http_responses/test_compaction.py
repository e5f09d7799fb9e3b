"""A `compaction_trigger` at the end of the input, as Codex sends it: one item takes the place of all before it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseCompactionItem

from codex_proxy.surfaces.responses.history import decode_summary
from tests.http.serving import Proxy, fake_proxy
from tests.http_responses.asking import blocks_of, create, events_of, prompt_for
from tests.http_responses.test_websocket import answer_to, open_socket, send
from tests.http_responses.test_websocket import events_of as socket_events

SUMMARY = "Hello from the deterministic fake agent."
TRIGGER: dict[str, Any] = {"type": "compaction_trigger"}
TALK: list[dict[str, Any]] = [
    {"role": "developer", "content": "Speak of owls."},
    {"role": "user", "content": "Owls fly."},
    {"role": "assistant", "content": "By night."},
]
ECHO = {"role": "user", "content": "[[fake:echo]]"}


def summary_of(response: dict[str, Any]) -> str | None:
    """The summary in the only item of a response."""
    parsed = Response.model_validate(response)
    (item,) = parsed.output
    assert isinstance(item, ResponseCompactionItem)
    assert parsed.status == "completed"
    return decode_summary(item.encrypted_content)


async def test_the_whole_answer_is_one_compaction(proxy: Proxy) -> None:
    answer = await create(proxy, [*TALK, TRIGGER], store=False)
    assert summary_of(answer.body) == SUMMARY
    assert answer.body["usage"]["output_tokens"] > 0


async def test_the_stream_has_one_item_and_its_end(proxy: Proxy) -> None:
    events = events_of((await create(proxy, [*TALK, TRIGGER], stream=True, store=False)).text)
    assert [event["type"] for event in events] == [
        *("response.created", "response.in_progress", "response.output_item.added"),
        *("response.compaction.compacting", "response.output_item.done", "response.completed"),
    ]
    assert summary_of(events[-1]["response"]) == SUMMARY
    assert events[-2]["item"] == events[-1]["response"]["output"][0]


async def test_what_a_client_brings_for_its_other_turns_changes_nothing(proxy: Proxy) -> None:
    brought = {
        "instructions": "Be brief.",
        "tools": [
            {"type": "function", "name": "read", "parameters": {"type": "object"}},
            {"type": "mcp", "server_label": "a", "server_url": "http://127.0.0.1:1/mcp"},
            {"type": "web_search"},
        ],
        "tool_choice": "required",
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
        "include": ["reasoning.encrypted_content"],
    }
    answer = await create(proxy, [*TALK, TRIGGER], **brought)
    assert summary_of(answer.body) == SUMMARY


async def test_the_client_goes_on_from_the_item(proxy: Proxy) -> None:
    (item,) = (await create(proxy, [*TALK, TRIGGER], store=False)).body["output"]
    after = await create(proxy, [item, ECHO], store=False)
    assert SUMMARY in json.dumps(after.body["output"])
    # Also one that keeps the trigger in its list, and what came before.
    after = await create(proxy, [*TALK, TRIGGER, item, ECHO], store=False)
    said = json.dumps(after.body["output"])
    assert ("By night." in said, SUMMARY in said, "Speak of owls." in said) == (False, True, True)


@pytest.mark.parametrize("chain", ["previous_response_id", "conversation"])
async def test_a_stored_chain_goes_on_from_its_compaction(
    proxy: Proxy, client: AsyncOpenAI, chain: str
) -> None:
    conversation = (
        {"conversation": (await client.conversations.create()).id} if chain == "conversation" else {}
    )

    async def ask(input: Any, previous: str = "") -> dict[str, Any]:
        link = conversation or ({"previous_response_id": previous} if previous else {})
        body: dict[str, Any] = (await create(proxy, input, **link)).body
        return body

    first = await ask([TALK[0], {"role": "user", "content": prompt_for("Blue.")}])
    compacted = await ask([TRIGGER], first["id"])
    assert summary_of(compacted) == SUMMARY
    second = await ask([ECHO], compacted["id"])
    said = json.dumps(second["output"])
    assert ("Blue." in said, SUMMARY in said, "Speak of owls." in said) == (False, True, True)
    again = await ask([TRIGGER], second["id"])
    assert json.dumps((await ask([ECHO], again["id"]))["output"]).count("in a summary") == 1
    stored = await proxy.send("GET", f"/v1/responses/{compacted['id']}")
    assert stored.body == compacted


async def test_a_compacted_chain_counts_for_less(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="codex-5", input=prompt_for("word " * 500))
    trigger: Any = [TRIGGER]
    compacted = await client.responses.create(model="codex-5", input=trigger, previous_response_id=first.id)
    before, after = [
        await client.responses.input_tokens.count(model="codex-5", input="Go on.", previous_response_id=each)
        for each in (first.id, compacted.id)
    ]
    assert after.input_tokens < 100 < before.input_tokens


async def test_a_websocket_compacts_and_goes_on_without_a_store(proxy: Proxy) -> None:
    async with open_socket(proxy) as socket:
        first = await answer_to(socket, prompt_for("Blue."), store=False)
        await send(socket, [TRIGGER], store=False, previous_response_id=first["id"])
        events = await socket_events(socket)
        assert summary_of(events[-1]["response"]) == SUMMARY
        last = events[-1]["response"]["id"]
        second = await answer_to(socket, [ECHO], store=False, previous_response_id=last)
    said = json.dumps(second["output"])
    assert ("Blue." in said, SUMMARY in said) == (False, True)


async def test_a_background_response_compacts(proxy: Proxy) -> None:
    answer = await create(proxy, [*TALK, TRIGGER], background=True, stream=True)
    events = blocks_of(answer.text.removesuffix("event: done\ndata: [DONE]\n\n"))
    assert summary_of(events[-1]["response"]) == SUMMARY


@pytest.mark.parametrize(
    ("input", "param"),
    [
        ([TRIGGER], "input"),
        ([TALK[1], TRIGGER, TALK[2]], "input[1]"),
        ([TALK[1], TRIGGER, TRIGGER], "input[1]"),
    ],
)
async def test_a_trigger_with_nothing_before_it_or_in_the_middle_is_refused(
    proxy: Proxy, input: Any, param: str
) -> None:
    answer = await create(proxy, input)
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_a_conversation_takes_no_trigger_by_itself(proxy: Proxy) -> None:
    answer = await proxy.send("POST", "/v1/conversations", {"items": [TALK[1], TRIGGER]})
    assert (answer.status, answer.error["param"]) == (400, "items[1]")


async def test_the_profile_of_open_responses_server_has_the_item_in_its_last_event(tmp_path: Any) -> None:
    async with fake_proxy(tmp_path, responses_profile="open-responses-server") as proxy:
        answer = await create(proxy, [*TALK, TRIGGER], stream=True)
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert summary_of(events[-1]["response"]) == SUMMARY
    assert {event["type"] for event in events} == {
        *("response.created", "response.in_progress", "response.completed")
    }


async def test_a_configuration_update_lasts_for_the_chain_until_the_next_one(proxy: Proxy) -> None:
    low = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    schema = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    form = {"type": "configuration_update", "text": {"format": schema}}
    plain = {"type": "configuration_update", "text": {"format": {"type": "text"}}}
    first = await create(proxy, [low, TALK[1]], reasoning={"effort": "high"})
    assert first.body["reasoning"]["effort"] == "low"
    second = await create(proxy, [form, {"role": "user", "content": prompt_for("no json")}])
    assert second.status == 502, "the format of the item is the answer's"
    third = await create(proxy, [form, plain, {"role": "user", "content": prompt_for("no json")}])
    assert third.status == 200
    wrong = await create(proxy, [{"type": "configuration_update", "reasoning": {"effort": "huge"}}, TALK[1]])
    assert (wrong.status, wrong.error["param"]) == (400, "input[0].reasoning.effort")
