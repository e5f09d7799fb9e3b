"""Counting the tokens of a context, and compacting it."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

from tests.http.serving import Proxy
from tests.http_responses.asking import said


async def test_a_longer_context_counts_for_more_and_says_that_it_is_estimated(proxy: Proxy) -> None:
    counts = []
    for input in ("Hi.", "Hi. " * 100):
        answer = await proxy.send("POST", "/v1/responses/input_tokens", {"model": "codex-5", "input": input})
        assert (answer.body["object"], answer.body["estimated"]) == ("response.input_tokens", True)
        counts.append(answer.body["input_tokens"])
    assert counts[0] < counts[1]


async def test_what_was_said_before_is_counted_too(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="codex-5", input=said("word " * 100))
    alone = await client.responses.input_tokens.count(model="codex-5", input="Go on.")
    chained = await client.responses.input_tokens.count(
        model="codex-5", input="Go on.", previous_response_id=first.id
    )
    assert chained.input_tokens > alone.input_tokens + 100


async def test_a_compacted_context_begins_a_new_chain_as_it_is(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="codex-5", input=said("Blue."))
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
