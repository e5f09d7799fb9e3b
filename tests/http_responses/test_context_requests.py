"""Counting the tokens of a context, and compacting it."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from codex_proxy.app import store_lifecycle
from codex_proxy.core.tokens import estimate_tokens
from codex_proxy.responses.context import measure_context
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.values import ContextLimits, StoredItem
from codex_proxy.surfaces.responses.context import parse_context
from tests.http.serving import Proxy
from tests.http_responses.asking import create, prompt_for, proxy_and_client
from tests.store.stored import OWNER, Hands, conversation
from tests.surfaces.responses.answering import CountedIds
from tests.surfaces.responses.asking import CATALOG


async def test_a_longer_context_counts_for_more_and_says_that_it_is_estimated(proxy: Proxy) -> None:
    counts = []
    for input in ("Hi.", "Hi. " * 100):
        answer = await proxy.send("POST", "/v1/responses/input_tokens", {"model": "codex-5", "input": input})
        assert (answer.body["object"], answer.body["estimated"]) == ("response.input_tokens", True)
        counts.append(answer.body["input_tokens"])
    assert counts[0] < counts[1]


async def test_a_context_is_counted_without_a_model(proxy: Proxy) -> None:
    answer = await proxy.send("POST", "/v1/responses/input_tokens", {"input": "One two three."})
    assert (answer.status, answer.body["input_tokens"]) == (200, 4)
    compact = await proxy.send("POST", "/v1/responses/compact", {"input": "One two three."})
    assert (compact.status, compact.error["param"]) == (400, "model")


async def test_an_answer_cut_by_max_output_tokens_reports_no_more_than_its_limit(proxy: Proxy) -> None:
    text = prompt_for("one two three four five six seven eight")
    for tokens in (1, 3, 5):
        body = {"model": "codex-5", "input": text, "max_output_tokens": tokens}
        answer = await proxy.send("POST", "/v1/responses", body)
        assert answer.body["incomplete_details"] == {"reason": "max_output_tokens"}
        usage = answer.body["usage"]
        assert (usage["output_tokens"], usage["estimated"]) == (tokens, True)
        [message] = answer.body["output"]
        assert message["content"][0]["text"].split() == ["one", "two", "three", "four", "five"][:tokens]
        chat = await proxy.ask(
            {"model": "codex-5", "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        )
        assert chat.body["choices"][0]["finish_reason"] == "length"
        assert (chat.body["usage"]["completion_tokens"], chat.body["usage"]["estimated"]) == (tokens, True)


async def test_what_was_said_before_is_counted_too(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="codex-5", input=prompt_for("word " * 100))
    alone = await client.responses.input_tokens.count(model="codex-5", input="Go on.")
    chained = await client.responses.input_tokens.count(
        model="codex-5", input="Go on.", previous_response_id=first.id
    )
    assert chained.input_tokens > alone.input_tokens + 100


async def test_an_image_by_address_is_not_given_to_the_model_that_compacts_unfetched(proxy: Proxy) -> None:
    picture = {"type": "input_image", "image_url": "https://example.org/a.png"}
    input = [{"role": "user", "content": [{"type": "input_text", "text": prompt_for("Blue.")}, picture]}]
    answer = await proxy.send("POST", "/v1/responses/compact", {"model": "codex-5", "input": input})
    assert (answer.status, answer.error["param"]) == (400, "input[0].content[1].image_url")


async def test_a_compacted_context_begins_a_new_chain_as_it_is(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="codex-5", input=prompt_for("Blue."))
    compacted = await client.responses.compact(model="codex-5", previous_response_id=first.id)
    assert compacted.object == "response.compaction"
    assert compacted.usage.total_tokens > 0
    items: Any = [item.model_dump(exclude_none=True) for item in compacted.output]
    following = await client.responses.create(
        model="codex-5", input=[*items, {"role": "user", "content": "[[fake:echo]]"}]
    )
    assert "What was said before, in a summary" in following.output_text
    assert "Blue." not in following.output_text


async def test_a_context_of_nothing_is_refused(proxy: Proxy) -> None:
    for path in ("compact", "input_tokens"):
        answer = await proxy.send("POST", f"/v1/responses/{path}", {"model": "codex-5"})
        assert (answer.status, answer.error["param"]) == (400, "input")
        missing = {"model": "codex-5", "previous_response_id": "resp_nobody"}
        answer = await proxy.send("POST", f"/v1/responses/{path}", missing)
        assert (answer.status, answer.error["code"]) == (400, "previous_response_not_found")


async def test_a_conversation_that_holds_too_much_takes_no_further_item_and_no_turn_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_lifecycle, "CONTEXT_LIMITS", ContextLimits(max_items=4, max_bytes=64 << 20))
    async with proxy_and_client(tmp_path) as (proxy, client):
        made = await client.conversations.create(items=[{"role": "user", "content": "One."}])
        added = await client.conversations.items.create(
            made.id, items=[{"role": "user", "content": "Two."}, {"role": "user", "content": "Three."}]
        )
        more = {"items": [{"type": "message", "role": "user", "content": "Again."}] * 2}
        answer = await proxy.send("POST", f"/v1/conversations/{made.id}/items", more)
        assert (answer.status, answer.error["param"]) == (400, "items")
        assert answer.error["code"] == "context_too_large"
        # A turn that begins below the limit ends whole, though it ends above it.
        turn = await create(proxy, "Four.", conversation=made.id)
        assert turn.status == 200
        listed = [item async for item in await client.conversations.items.list(made.id)]
        assert len(listed) == 5
        for path in ("responses", "responses/input_tokens", "responses/compact"):
            body = {"model": "codex-5", "input": "Go on.", "conversation": made.id}
            answer = await proxy.send("POST", f"/v1/{path}", body)
            assert (answer.status, answer.error["param"]) == (400, "conversation")
            assert "Delete items of it, or begin another one" in answer.error["message"]
        await client.conversations.items.delete(added.data[0].id or "", conversation_id=made.id)
        assert (await create(proxy, "Five.", conversation=made.id)).status == 200


async def test_a_chain_of_responses_that_holds_too_much_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_lifecycle, "CONTEXT_LIMITS", ContextLimits(max_items=20_000, max_bytes=100_000))
    async with proxy_and_client(tmp_path) as (proxy, _):
        first = (await create(proxy, "word " * 10_000)).body
        second = (await create(proxy, "word " * 10_000, previous_response_id=first["id"])).body
        answer = await create(proxy, "Go on.", previous_response_id=second["id"])
        assert (answer.status, answer.error["param"]) == (400, "previous_response_id")
        assert answer.error["code"] == "context_too_large"
        assert "the limits are 20000 items and 100000 bytes" in answer.error["message"]
        assert (await create(proxy, "Go on.", previous_response_id=first["id"])).status == 200


async def test_references_to_too_much_are_refused_however_often_they_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_lifecycle, "CONTEXT_LIMITS", ContextLimits(max_items=20_000, max_bytes=100_000))
    async with proxy_and_client(tmp_path) as (proxy, _):
        first = (await create(proxy, "word " * 10_000)).body
        items = await proxy.send("GET", f"/v1/responses/{first['id']}/input_items")
        reference = {"type": "item_reference", "id": items.body["data"][0]["id"]}
        assert (await create(proxy, [reference])).status == 200
        answer = await create(proxy, [reference, reference])
        assert (answer.status, answer.error["param"]) == (400, "input")
        assert answer.error["code"] == "context_too_large"


@pytest.mark.exhaustive
async def test_counting_a_long_conversation_has_little_of_it_in_memory(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db", clock=Hands())
    await store.add_conversation(conversation("conv_1"))
    for number in range(40):
        text = (
            f'{{"id":"msg_{number}","type":"message","role":"user","content":[{{"type":"input_text","text":"'
        )
        whole = text.encode() + b"x" * (1 << 20) + b'"}]}'
        await store.append_items(OWNER, "conv_1", [StoredItem(f"msg_{number}", whole)])
    body = b'{"model":"codex-5","input":"Go on.","conversation":"conv_1"}'
    parsed = parse_context(body, catalog=CATALOG)

    async def count() -> int:
        measure, fresh = await measure_context(parsed, store, OWNER, CountedIds())
        return measure.tokens_with(parsed, fresh)

    tracemalloc.start()
    try:
        counts = await asyncio.gather(*(count() for _ in range(4)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        await store.close()
    assert counts == [40 * estimate_tokens("x" * (1 << 20)) + estimate_tokens("Go on.")] * 4
    assert peak < 20 << 20
