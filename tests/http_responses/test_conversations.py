"""Conversations through the port: objects, items, turns on them, and errors
(docs/contract.md#conversations, docs/contract.md#errors-of-responses).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError

from tests.http.serving import Proxy, fake_proxy, until
from tests.http_responses.asking import create, prompt_for, proxy_and_client


async def test_a_conversation_lives_as_the_reference_says(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(metadata={"project": "support", "user": "1"})
    assert made.id.startswith("conv_")
    assert made.object == "conversation"
    found = await client.conversations.retrieve(made.id)
    assert found == made
    changes: Any = {"status": "resolved", "project": None}
    changed = await client.conversations.update(made.id, metadata=changes)
    assert changed.metadata == {"user": "1", "status": "resolved"}
    gone = await client.conversations.delete(made.id)
    assert (gone.deleted, gone.object) == (True, "conversation.deleted")
    with pytest.raises(NotFoundError):
        await client.conversations.retrieve(made.id)


async def test_items_are_added_listed_shown_and_taken_out(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    added = await client.conversations.items.create(
        conversation.id,
        items=[
            {"type": "message", "role": "user", "content": "What is 2+2?"},
            {"type": "message", "role": "assistant", "content": "2+2 equals 4."},
        ],
    )
    assert [item.type for item in added.data] == ["message", "message"]
    listed = [item async for item in await client.conversations.items.list(conversation.id, limit=1)]
    assert [item.id for item in listed] == [item.id for item in reversed(added.data)]
    one = await client.conversations.items.retrieve(added.data[0].id or "", conversation_id=conversation.id)
    assert one == added.data[0]
    left = await client.conversations.items.delete(one.id or "", conversation_id=conversation.id)
    assert left.id == conversation.id
    with pytest.raises(NotFoundError):
        await client.conversations.items.retrieve(one.id or "", conversation_id=conversation.id)


async def test_a_turn_sees_the_conversation_and_leaves_both_sides_in_it(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "I am Ada."}]
    )
    first = await client.responses.create(
        model="codex-5", input=prompt_for("Hello Ada."), conversation=conversation.id
    )
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    second = await client.responses.create(
        model="codex-5", input="[[fake:echo]]", conversation={"id": conversation.id}
    )
    assert "I am Ada." in second.output_text
    assert "Hello Ada." in second.output_text
    page = await client.conversations.items.list(conversation.id, order="asc")
    assert [item.role for item in page.data] == ["user", "user", "assistant", "user", "assistant"]  # type: ignore[union-attr]


async def test_an_answer_that_was_cut_off_is_in_the_conversation(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    answer = await client.responses.create(
        model="codex-5", input="[[fake:truncation]]", conversation=conversation.id
    )
    assert answer.status == "incomplete"
    items = await client.conversations.items.list(conversation.id, order="asc")
    assert [item.type for item in items.data] == ["message", "message"]


async def test_a_failed_turn_leaves_the_conversation_as_it_was(proxy: Proxy, client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    answer = await create(proxy, "[[fake:error_mid_text]]", conversation=conversation.id, stream=True)
    assert "response.failed" in answer.text
    assert (await client.conversations.items.list(conversation.id)).data == []


async def test_a_turn_that_is_not_stored_leaves_both_sides_in_the_conversation(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    await client.responses.create(
        model="codex-5", input=prompt_for("Hi."), conversation=conversation.id, store=False
    )
    page = await client.conversations.items.list(conversation.id, order="asc")
    assert [item.role for item in page.data] == ["user", "assistant"]  # type: ignore[union-attr]


async def test_an_item_that_the_conversation_does_not_have_is_named(proxy: Proxy) -> None:
    conversation = (await proxy.send("POST", "/v1/conversations", {})).body["id"]
    items = f"/v1/conversations/{conversation}/items"
    page = await proxy.send("GET", f"{items}?after=msg_nobody")
    assert (page.status, page.error["param"]) == (400, "after")
    assert (await proxy.send("DELETE", f"{items}/msg_nobody")).status == 404


async def test_the_second_of_two_turns_waits_for_the_first(tmp_path: Path) -> None:
    release = tmp_path / "go"
    async with proxy_and_client(tmp_path, {"STREAM_RELEASE_FILE": str(release)}) as (proxy, client):
        conversation = await client.conversations.create()
        first = asyncio.create_task(
            client.responses.create(
                model="codex-5", input='[[fake:text say="First one." hold=1]]', conversation=conversation.id
            )
        )
        await until(lambda: proxy.server.runs.running == 1)
        second = asyncio.create_task(
            client.responses.create(model="codex-5", input="[[fake:echo]]", conversation=conversation.id)
        )
        done, _ = await asyncio.wait([second], timeout=0.2)
        assert not done
        release.write_text("go")
        assert (await first).output_text == "First one."
        assert "First one." in (await second).output_text


async def test_a_turn_that_waits_too_long_for_another_one_gets_a_retry_after(tmp_path: Path) -> None:
    release = tmp_path / "go"
    async with proxy_and_client(tmp_path, {"STREAM_RELEASE_FILE": str(release)}, queue_wait=0.1) as (
        proxy,
        client,
    ):
        conversation = await client.conversations.create()
        first = asyncio.create_task(
            create(proxy, '[[fake:text say="First one." hold=1]]', conversation=conversation.id)
        )
        await until(lambda: proxy.server.runs.running == 1)
        second = await create(proxy, conversation=conversation.id)
        assert (second.status, second.error["code"]) == (429, "concurrency_exceeded")
        assert int(second.headers["Retry-After"]) > 0
        release.write_text("go")
        assert (await first).status == 200


async def test_an_item_is_shared_and_stays_where_another_conversation_refers_to_it(
    client: AsyncOpenAI,
) -> None:
    one = await client.conversations.create(items=[{"type": "message", "role": "user", "content": "Shared."}])
    (item,) = (await client.conversations.items.list(one.id)).data
    reference: Any = {"type": "item_reference", "id": item.id}
    other = await client.conversations.create(items=[reference])
    await client.conversations.items.delete(item.id or "", conversation_id=one.id)
    assert [each.id for each in (await client.conversations.items.list(other.id)).data] == [item.id]


@pytest.mark.parametrize(
    ("fields", "message", "param", "code"),
    [
        (
            {"conversation": "invalid-id"},
            "Invalid 'conversation': 'invalid-id'. Expected an ID that begins with 'conv_'.",
            "conversation",
            "invalid_conversation_id",
        ),
        (
            {"conversation": "conv_1", "previous_response_id": "resp_1"},
            "Mutually exclusive parameters. Ensure you are only providing one of: 'previous_response_id' or "
            "'conversation'.",
            None,
            "mutually_exclusive_parameters",
        ),
    ],
)
async def test_a_wrong_conversation_is_refused_in_the_references_words(
    proxy: Proxy, fields: dict[str, str], message: str, param: str | None, code: str
) -> None:
    answer = await create(proxy, **fields)
    assert answer.status == 400
    assert answer.error == {
        "message": message,
        "type": "invalid_request_error",
        "param": param,
        "code": code,
    }


PATHS: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("POST", "", {"metadata": {}}),
    ("DELETE", "", None),
    ("GET", "/items", None),
    ("POST", "/items", {"items": []}),
    ("GET", "/items/msg_1", None),
    ("DELETE", "/items/msg_1", None),
]


@pytest.mark.parametrize(("method", "path", "body"), PATHS)
async def test_an_unknown_conversation_is_a_404_on_every_path(
    proxy: Proxy, method: str, path: str, body: Any
) -> None:
    answer = await proxy.send(method, f"/v1/conversations/conv_nobody{path}", body)
    assert (answer.status, answer.error["type"], answer.error["code"]) == (
        404,
        "not_found_error",
        "not_found",
    )


@pytest.mark.parametrize(("method", "path", "body"), PATHS)
async def test_another_owner_sees_no_conversation(tmp_path: Path, method: str, path: str, body: Any) -> None:
    item = {"id": "msg_1", "type": "message", "role": "user", "content": "Hi."}
    async with fake_proxy(tmp_path) as proxy:
        made = await proxy.send("POST", "/v1/conversations", {"items": [item]})
        id = made.body["id"]
    async with fake_proxy(tmp_path, api_key="secret") as proxy:
        headers = {"Authorization": "Bearer secret"}
        answer = await proxy.send(method, f"/v1/conversations/{id}{path}", body, headers=headers)
    assert answer.status == 404


async def test_a_response_on_an_unknown_conversation_is_a_404(proxy: Proxy) -> None:
    answer = await create(proxy, conversation="conv_nobody")
    assert (answer.status, answer.error["code"]) == (404, "not_found")


async def test_more_than_twenty_items_at_once_are_refused(proxy: Proxy) -> None:
    item = {"type": "message", "role": "user", "content": "Hi."}
    answer = await proxy.send("POST", "/v1/conversations", {"items": [item] * 21})
    assert (answer.status, answer.error["param"]) == (400, "items")


async def test_more_than_sixteen_keys_after_a_merge_are_refused(proxy: Proxy) -> None:
    metadata = {f"key{number}": "x" for number in range(16)}
    made = await proxy.send("POST", "/v1/conversations", {"metadata": metadata})
    answer = await proxy.send("POST", f"/v1/conversations/{made.body['id']}", {"metadata": {"one_more": "x"}})
    assert (answer.status, answer.error["param"]) == (400, "metadata")


async def test_a_reference_to_nothing_and_an_id_that_is_taken_are_refused(proxy: Proxy) -> None:
    item = {"id": "msg_1", "type": "message", "role": "user", "content": "Hi."}
    made = await proxy.send("POST", "/v1/conversations", {"items": [item]})
    path = f"/v1/conversations/{made.body['id']}/items"
    nothing = await proxy.send("POST", path, {"items": [{"type": "item_reference", "id": "msg_2"}]})
    assert (nothing.status, nothing.error["param"]) == (400, "items[0].id")
    taken = await proxy.send("POST", path, {"items": [item]})
    assert (taken.status, taken.error["code"]) == (400, "item_already_in_conversation")
    again = await proxy.send("POST", path, {"items": [{"type": "item_reference", "id": "msg_1"}]})
    assert again.error["code"] == "item_already_in_conversation"
    assert "references to items that the conversation has" in again.error["message"]


async def test_a_list_has_100_items_newest_first_unless_asked_otherwise(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    for part in range(6):
        items: Any = [{"role": "user", "content": str(20 * part + number)} for number in range(20)]
        await client.conversations.items.create(conversation.id, items=items)
    page = await client.conversations.items.list(conversation.id)
    assert (len(page.data), page.has_more) == (100, True)
    assert '"119"' in page.data[0].model_dump_json()
    rising = await client.conversations.items.list(conversation.id, order="asc", limit=20)
    assert '"19"' in rising.data[-1].model_dump_json()
