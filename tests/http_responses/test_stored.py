"""What is done with stored responses: shown, listed, deleted, refused to others, and gone with `store: false`."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError

from tests.http.serving import Proxy, fake_proxy
from tests.http_responses.asking import client_of, create, events_of, prompt_for, proxy_and_client
from tests.weather_tool import RESPONSES_WEATHER

EVERY_PATH = pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/{id}"),
        ("DELETE", "/v1/responses/{id}"),
        ("POST", "/v1/responses/{id}/cancel"),
        ("GET", "/v1/responses/{id}/input_items"),
    ],
)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stored_response_is_the_one_that_was_answered(proxy: Proxy, stream: bool) -> None:
    answer = await create(proxy, prompt_for("Hello."), stream=stream, metadata={"a": "b"})
    told = events_of(answer.text)[-1]["response"] if stream else answer.body
    found = await proxy.send("GET", f"/v1/responses/{told['id']}")
    assert found.body == told


async def test_a_deleted_response_is_gone_everywhere(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="codex-5", input=prompt_for("Hello."))
    await client.responses.delete(response.id)
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(response.id)
    with pytest.raises(NotFoundError):
        await client.responses.input_items.list(response.id)


async def test_deleting_says_so_in_openais_words(proxy: Proxy) -> None:
    id = (await create(proxy)).body["id"]
    deleted = await proxy.send("DELETE", f"/v1/responses/{id}")
    assert deleted.body == {"id": id, "object": "response.deleted", "deleted": True}


@EVERY_PATH
async def test_an_unknown_id_is_a_404_on_every_path(proxy: Proxy, method: str, path: str) -> None:
    answer = await proxy.send(method, path.format(id="resp_nobody"))
    assert (answer.status, answer.error["code"], answer.error["type"]) == (
        404,
        "not_found",
        "not_found_error",
    )


@EVERY_PATH
async def test_another_owner_sees_nothing(tmp_path: Path, method: str, path: str) -> None:
    async with fake_proxy(tmp_path) as proxy:
        id = (await create(proxy)).body["id"]
    async with fake_proxy(tmp_path, api_key="secret") as proxy:
        headers = {"Authorization": "Bearer secret"}
        assert (await proxy.send(method, path.format(id=id), headers=headers)).status == 404
        body = {"model": "codex-5", "input": "Go on.", "previous_response_id": id}
        continued = await proxy.send("POST", "/v1/responses", body, headers=headers)
    assert (continued.status, continued.error["code"]) == (400, "previous_response_not_found")


async def test_an_unknown_previous_response_is_named_in_a_400(proxy: Proxy) -> None:
    answer = await create(proxy, previous_response_id="resp_nobody")
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == (
        "previous_response_not_found",
        "previous_response_id",
    )


async def test_input_items_are_listed_with_ids_and_normalised_parts(client: AsyncOpenAI) -> None:
    response = await client.responses.create(
        model="codex-5",
        input=[{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}],
    )
    page = await client.responses.input_items.list(response.id, limit=1)
    assert page.has_more is True
    ends = page.model_dump()
    assert ends["first_id"] == ends["last_id"] == page.data[0].id
    items = [item async for item in page]
    texts = [item.model_dump()["content"][0]["text"] for item in items]
    assert texts == ["Two.", "One."]
    assert all(item.id.startswith("msg_") for item in items)
    rising = await client.responses.input_items.list(response.id, order="asc", after=items[1].id or "")
    assert [item.id for item in rising.data] == [items[0].id]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("order=up", "order"),
        ("after=x", "after"),
        ("include=x", "include"),
    ],
)
async def test_a_wrong_query_names_its_parameter(proxy: Proxy, query: str, param: str) -> None:
    id = (await create(proxy)).body["id"]
    answer = await proxy.send("GET", f"/v1/responses/{id}/input_items?{query}")
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_a_response_that_was_not_in_the_background_cannot_be_cancelled(proxy: Proxy) -> None:
    id = (await create(proxy)).body["id"]
    answer = await proxy.send("POST", f"/v1/responses/{id}/cancel")
    assert answer.status == 400
    assert answer.error["code"] == "cancellation_not_supported"
    assert "was not created with 'background': true" in answer.error["message"]
    assert "Synchronous and streaming responses cannot be cancelled" in answer.error["message"]


async def test_store_false_leaves_nothing_behind(tmp_path: Path) -> None:
    secret = "a word that nobody else says"
    async with proxy_and_client(tmp_path) as (proxy, client):
        response = await client.responses.create(
            model="codex-5",
            input=f"""{secret} [[fake:tool_call name=get_weather args='{{"city":"Paris"}}']]""",
            tools=[RESPONSES_WEATHER],
            store=False,
        )
        assert response.store is False  # type: ignore[attr-defined]
        assert (await proxy.send("GET", f"/v1/responses/{response.id}")).status == 404
        answer = await create(proxy, previous_response_id=response.id)
        assert answer.error["code"] == "previous_response_not_found"
    database = sqlite3.connect(tmp_path / "state" / "store.sqlite3")
    for table in ("responses", "items", "steps", "conversations"):
        assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    database.close()
    for file in (tmp_path / "state").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()


async def test_a_chain_is_a_tree_and_its_branches_do_not_see_each_other(client: AsyncOpenAI) -> None:
    root = await client.responses.create(model="codex-5", input="root " + prompt_for("Root."))
    left = await client.responses.create(
        model="codex-5", input="left " + prompt_for("Left."), previous_response_id=root.id
    )
    right = await client.responses.create(
        model="codex-5", input="right [[fake:echo]]", previous_response_id=root.id
    )
    assert "Root." in right.output_text
    assert "left" not in right.output_text
    assert left.output_text == "Left."


async def test_a_deleted_response_is_still_the_context_of_those_that_continue_it(client: AsyncOpenAI) -> None:
    root = await client.responses.create(model="codex-5", input=prompt_for("Root."))
    middle = await client.responses.create(
        model="codex-5", input=prompt_for("Middle."), previous_response_id=root.id
    )
    await client.responses.delete(root.id)
    last = await client.responses.create(
        model="codex-5", input="[[fake:echo]]", previous_response_id=middle.id
    )
    assert "Root." in last.output_text


async def test_a_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path) as (_, client):
        first = await client.responses.create(model="codex-5", input=prompt_for("Blue."))
    async with proxy_and_client(tmp_path) as (_, client):
        second = await client.responses.create(
            model="codex-5", input="[[fake:echo]]", previous_response_id=first.id
        )
        assert "Blue." in second.output_text
        assert (await client.responses.retrieve(first.id)).output_text == "Blue."


async def test_an_item_reference_brings_the_stored_item(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="codex-5", input=prompt_for("Blue."))
    reference: Any = {"type": "item_reference", "id": first.output[-1].id}
    second = await client.responses.create(
        model="codex-5", input=[reference, {"role": "user", "content": "[[fake:echo]]"}]
    )
    assert "Blue." in second.output_text


async def test_a_reference_to_nothing_is_named(proxy: Proxy) -> None:
    answer = await create(proxy, [{"type": "item_reference", "id": "msg_nobody"}])
    assert (answer.status, answer.error["param"]) == (400, "input[0].id")


async def test_a_server_without_a_store_answers_and_keeps_nothing(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store="off") as proxy, client_of(proxy) as client:
        response = await client.responses.create(model="codex-5", input=prompt_for("Hello."))
        assert (response.output_text, response.store) == ("Hello.", False)  # type: ignore[attr-defined]
        assert (await proxy.send("GET", f"/v1/responses/{response.id}")).status == 404
        refused = await proxy.send("POST", "/v1/conversations", {})
        assert (refused.status, refused.error["code"]) == (400, "store_disabled")
    assert not (tmp_path / "state" / "store.sqlite3").exists()


async def test_input_items_are_a_list_of_20_unless_asked_otherwise(client: AsyncOpenAI) -> None:
    said: Any = [{"role": "user", "content": str(number)} for number in range(25)]
    response = await client.responses.create(model="codex-5", input=said)
    page = await client.responses.input_items.list(response.id)
    assert (len(page.data), page.has_more) == (20, True)


@pytest.mark.parametrize("word", ["maybe", "yes", "2"])
async def test_a_word_that_is_neither_true_nor_false_for_stream_is_a_400(proxy: Proxy, word: str) -> None:
    answer = await proxy.send("GET", f"/v1/responses/resp_1?stream={word}")
    assert (answer.status, answer.error["param"]) == (400, "stream")
