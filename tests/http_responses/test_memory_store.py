"""`PROXY_STORE=memory` keeps everything until the server stops and writes nothing; `off` keeps what is configured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError
from pydantic import ValidationError

from codex_proxy.app.store_lifecycle import MAX_BYTES_IN_RAM, retention_of
from codex_proxy.commands.store import existing_store
from codex_proxy.core.faults import UserError
from tests.http.serving import fake_proxy, settings_of
from tests.http_responses.asking import create, prompt_for, proxy_and_client
from tests.http_responses.test_background import wait_for_end

MEMORY: dict[str, Any] = {"store": "memory"}


async def test_a_store_in_memory_keeps_responses_conversations_and_background_ends(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path, **MEMORY) as (proxy, client):
        first = await client.responses.create(model="codex-5", input=prompt_for("Hello."))
        await client.responses.create(model="codex-5", input="[[fake:echo]]", previous_response_id=first.id)
        conversation = await client.conversations.create()
        await client.responses.create(model="codex-5", input=prompt_for("Hi."), conversation=conversation.id)
        assert len((await client.conversations.items.list(conversation.id)).data) == 2
        behind = await client.responses.create(model="codex-5", input=prompt_for("Later."), background=True)
        assert (await wait_for_end(client, behind.id)).output_text == "Later."
        assert (await proxy.send("GET", "/readyz")).status == 200


async def test_a_store_in_memory_writes_no_file_and_ends_with_the_server(tmp_path: Path) -> None:
    before = files_in(tmp_path)
    async with proxy_and_client(tmp_path, **MEMORY) as (_, client):
        stored = await client.responses.create(model="codex-5", input=prompt_for("A secret."))
        assert files_in(tmp_path) == before
    async with proxy_and_client(tmp_path, **MEMORY) as (proxy, _):
        assert (await proxy.send("GET", f"/v1/responses/{stored.id}")).status == 404


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


async def test_two_servers_have_each_their_own_store_in_memory(tmp_path: Path) -> None:
    async with (
        proxy_and_client(tmp_path, **MEMORY) as (proxy, _),
        proxy_and_client(tmp_path, **MEMORY) as (other, _),
    ):
        stored = (await create(proxy, prompt_for("Hello."))).body["id"]
        assert (await other.send("GET", f"/v1/responses/{stored}")).status == 404


async def test_usage_in_memory_is_not_called_kept(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **MEMORY) as proxy:
        in_memory = (await proxy.send("GET", "/v1/usage")).body["kept"]
    async with fake_proxy(tmp_path, store="off") as proxy:
        without = (await proxy.send("GET", "/v1/usage")).body["kept"]
    assert in_memory == without


async def test_the_commands_say_that_there_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="PROXY_STORE=memory"):
        async with existing_store(settings_of(tmp_path, **MEMORY)):
            raise AssertionError("it was opened")


def test_a_store_in_memory_is_bounded_whatever_a_file_may_have(tmp_path: Path) -> None:
    for given, used in ((0, MAX_BYTES_IN_RAM), (4 << 30, MAX_BYTES_IN_RAM), (1 << 20, 1 << 20)):
        assert retention_of(settings_of(tmp_path, store_max_bytes=given, **MEMORY)).max_bytes == used


def test_a_path_of_memory_is_refused_with_the_setting_that_is_meant(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="memory, off"):
        settings_of(tmp_path, store=":memory:")


@pytest.mark.parametrize("store", ["off", "memory", "sqlite"])
async def test_tool_memory_off_remembers_no_step_whatever_the_store(tmp_path: Path, store: str) -> None:
    async with fake_proxy(tmp_path, store=store, tool_memory="off") as proxy:
        memory = proxy.server.runs.services.memory
        await memory.remember("ann", {b"key": b"value"}, durable=True)
        assert await memory.recall("ann", [b"key"]) == {}


async def test_without_a_store_as_many_steps_are_remembered_as_the_settings_allow(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store="off", max_conversation_history=2) as proxy:
        memory = proxy.server.runs.services.memory
        for key in (b"1", b"2", b"3"):
            await memory.remember("ann", {key: b"value"}, durable=True)
        assert await memory.recall("ann", [b"1", b"2", b"3"]) == {b"2": b"value", b"3": b"value"}


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"store": "memory"}, 100),
        ({"store": "memory", "max_conversation_history": 7}, 7),
        ({"store": "sqlite"}, None),
        ({"store": "sqlite", "max_conversation_history": 7}, 7),
    ],
)
def test_conversations_are_bounded_in_memory_and_in_a_file_where_that_is_set(
    settings: dict[str, Any], kept: int | None, tmp_path: Path
) -> None:
    assert retention_of(settings_of(tmp_path, **settings)).max_conversations == kept


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_the_newest_conversations_can_be_gone_on_with_and_the_oldest_is_gone(
    store: str, tmp_path: Path
) -> None:
    async with proxy_and_client(tmp_path, store=store, max_conversation_history=2) as (_, client):

        async def answer(previous: str | None = None) -> str:
            made = await client.responses.create(
                model="codex-5", input=prompt_for("Hi."), previous_response_id=previous
            )
            return str(made.id)

        oldest, older = await answer(), await answer()
        going_on = await answer(await answer(older))
        newest = await answer()
        for id in (going_on, older, newest):
            assert (await client.responses.retrieve(id)).id == id
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(oldest)
        await answer(going_on)
