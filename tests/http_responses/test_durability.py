"""What was acknowledged is there: after a kill at any moment; and a store that cannot write is told as such."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from codex_proxy.core.faults import UserError
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.responses.running import FrameReader
from codex_proxy.store.values import StoredResponse, StoreUnavailable, UnsureWrite
from tests.http.serving import Proxy, fake_proxy, until
from tests.http_responses.asking import create, events_of, prompt_for, proxy_and_client
from tests.http_responses.killing import server_process
from tests.waiting import PATIENCE


async def ask_until_it_dies(url: str, stream: bool, acknowledged: list[str]) -> None:
    """One response after the other; an id counts when its end has come."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        previous = None
        while True:
            body = {
                "model": "codex-5",
                "input": prompt_for("ok"),
                "stream": stream,
                "previous_response_id": previous,
            }
            try:
                async with session.post(f"{url}/v1/responses", json=body) as reply:
                    text = await reply.text()
            except aiohttp.ClientError:
                return
            if not text or (stream and not text.endswith("[DONE]\n\n")):
                return
            found = re.search(r"resp_[0-9a-f]{32}", text)
            assert found is not None
            previous = found[0]
            acknowledged.append(previous)


async def test_a_second_server_on_one_store_does_not_start_and_says_why(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        with pytest.raises(
            UserError,
            match=r"another server .* keeps its responses in .*--port.*PROXY_STATE_DIR.*PROXY_STORE=off",
        ):
            async with fake_proxy(tmp_path):
                raise AssertionError("it started")
        assert (await create(proxy, prompt_for("Hello."))).status == 200


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.exhaustive)])
async def test_every_acknowledged_response_survives_a_kill(tmp_path: Path, kills: int) -> None:
    chance = random.Random(5)
    acknowledged: list[str] = []
    for _ in range(kills):
        before = len(acknowledged)
        async with server_process(tmp_path) as (url, process):
            asking = [
                asyncio.create_task(ask_until_it_dies(url, stream, acknowledged))
                for stream in (False, True) * 2
            ]
            wanted = before + chance.randint(3, 12)
            await until(lambda wanted=wanted: len(acknowledged) >= wanted)  # type: ignore[misc]
            os.kill(process.pid, signal.SIGKILL)
            await asyncio.gather(*asking)
    async with proxy_and_client(tmp_path) as (proxy, _):
        for id in acknowledged:
            assert (await proxy.send("GET", f"/v1/responses/{id}")).body["status"] == "completed"
        last = await create(proxy, "[[fake:echo]]", previous_response_id=acknowledged[-1])
        assert last.body["status"] == "completed"


# --- a store that cannot ------------------------------------------------------------------------


class FailingStore:
    """A store some of whose methods cannot."""

    def __init__(self, store: Any, names: set[str]) -> None:
        self._store = store
        self._names = names
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            return self._fail
        return getattr(self._store, name)

    async def _fail(self, *_: Any, **__: Any) -> None:
        self.failed += 1
        raise StoreUnavailable(
            "the store /secret/path cannot grow: the disk is full; make room and try again"
        )


@contextmanager
def failing_store(proxy: Proxy, *names: str) -> Iterator[FailingStore]:
    responses = proxy.app[RESPONSES]
    whole = responses.store
    cannot = set(names)
    store = FailingStore(whole, cannot)
    msgspec.structs.force_setattr(responses, "store", store)
    try:
        yield store
    finally:
        cannot.clear()
        msgspec.structs.force_setattr(responses, "store", whole)


async def test_an_answer_that_cannot_be_stored_is_a_503_without_the_servers_paths(proxy: Proxy) -> None:
    with failing_store(proxy, "add_response"):
        answer = await create(proxy, prompt_for("Hello."))
    assert (answer.status, answer.error["code"]) == (503, "service_unavailable")
    assert "Retry-After" in answer.headers
    assert "/secret/path" not in answer.text
    assert (await create(proxy, prompt_for("Hello."))).status == 200


async def test_a_stream_that_cannot_be_stored_ends_well_formed_and_failed(proxy: Proxy) -> None:
    with failing_store(proxy, "add_response"):
        events = events_of((await create(proxy, prompt_for("one two three"), stream=True)).text)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1]["response"]
    assert (failed["status"], failed["completed_at"]) == ("failed", None)
    assert failed["output"] == [
        event["item"] for event in events if event["type"] == "response.output_item.done"
    ]
    assert (await proxy.send("GET", f"/v1/responses/{failed['id']}")).status == 404


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("error", [UnsureWrite("no answer"), ZeroDivisionError()], ids=["unsure", "our own"])
async def test_an_answer_that_was_stored_although_saving_it_failed_is_removed(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, stream: bool, error: Exception
) -> None:
    store = proxy.app[RESPONSES].store
    assert store is not None
    write, ids = store.add_response, []

    async def written_but_failed(response: StoredResponse, **more: Any) -> None:
        await write(response, **more)
        ids.append(response.id)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(store, "add_response", written_but_failed)
        answer = await create(proxy, prompt_for("Hello."), stream=stream)
    if stream:
        assert events_of(answer.text)[-1]["type"] == "response.failed"
    else:
        assert (answer.status, answer.error["code"]) == (503, "service_unavailable")
    [id] = ids
    assert (await proxy.send("GET", f"/v1/responses/{id}")).status == 404
    assert (await create(proxy, prompt_for("Hello."))).status == 200


async def test_a_response_whose_stream_breaks_while_it_is_saved_is_not_stored_as_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    go = asyncio.Event()
    async with fake_proxy(tmp_path, heartbeat_interval=0.02) as proxy:
        store = proxy.app[RESPONSES].store
        assert store is not None
        write = store.add_response

        async def slow(response: StoredResponse, **more: Any) -> None:
            monkeypatch.setattr(FrameReader, "wait", broken)  # called again after the next keep-alive
            await go.wait()
            await write(response, **more)

        monkeypatch.setattr(store, "add_response", slow)
        text = (await create(proxy, prompt_for("Hello."), stream=True)).text
        assert "event: response.failed" in text
        assert "event: response.completed" not in text
        go.set()
        await proxy.settled()
        found = re.search(r"resp_[0-9a-f]{32}", text)
        assert found is not None
        assert (await proxy.send("GET", f"/v1/responses/{found[0]}")).status == 404


async def test_store_false_needs_no_store(proxy: Proxy) -> None:
    with failing_store(proxy, "add_response"):
        assert (await create(proxy, prompt_for("Hello."), store=False)).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("GET", "/v1/conversations/conv_1"),
        ("GET", "/v1/conversations/conv_1/items"),
    ],
)
async def test_a_store_that_cannot_be_read_is_a_503(proxy: Proxy, method: str, path: str) -> None:
    names = ("response", "delete_response", "input_items", "conversation", "items")
    with failing_store(proxy, *names):
        answer = await proxy.send(method, path)
    assert (answer.status, answer.error["type"]) == (503, "service_unavailable")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("patience", "status"), [(30.0, "completed"), (0.0, "failed")])
async def test_a_background_end_that_cannot_be_written_is_written_when_it_can(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, patience: float, status: str
) -> None:
    monkeypatch.setattr("codex_proxy.responses.background.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("codex_proxy.responses.background.SAVE_SECONDS", patience)
    with failing_store(proxy, "update_response") as store:
        created = await create(proxy, prompt_for("Hello."), background=True)
        live = proxy.server.background.find("local", created.body["id"])
        assert live is not None
        await until(lambda: store.failed > 2)  # its beginning, and its end again and again
        assert not live.ended
    await until(lambda: live.ended)
    response = (await proxy.send("GET", f"/v1/responses/{created.body['id']}")).body
    assert response["status"] == status
    if status == "failed":
        assert "stored" in response["error"]["message"]


async def test_a_client_that_leaves_ends_its_turn_and_leaves_a_cancelled_response(tmp_path: Path) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with proxy_and_client(tmp_path, environment) as (proxy, _):
        body = {"model": "codex-5", "input": '[[fake:text say="one two" hold=1]]', "stream": True}
        async with proxy.session.post(f"{proxy.url}/v1/responses", json=body) as reply:
            found = re.search(rb"resp_[0-9a-f]{32}", await reply.content.readany())
        assert found is not None
        path = f"/v1/responses/{found[0].decode()}"
        await proxy.settled()
        assert (await proxy.send("GET", path)).body["status"] == "cancelled"


async def test_a_conversation_deleted_meanwhile_fails_the_turn(tmp_path: Path) -> None:
    release = tmp_path / "go"
    async with proxy_and_client(tmp_path, {"STREAM_RELEASE_FILE": str(release)}) as (proxy, client):
        conversation = await client.conversations.create()
        body = '[[fake:text say="one two" hold=1]]'
        asking = asyncio.create_task(create(proxy, body, conversation=conversation.id))
        await until(lambda: proxy.server.runs.running == 1)
        await client.conversations.delete(conversation.id)
        release.write_text("go")
        answer = await asking
    assert (answer.status, answer.error["code"]) == (404, "not_found")


async def test_a_stop_that_goes_wrong_half_way_still_closes_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks() -> None:
        raise ZeroDivisionError("a fault of ours")

    async with AsyncExitStack() as stack:
        proxy, client = await stack.enter_async_context(proxy_and_client(tmp_path))
        stored = await client.responses.create(model="codex-5", input="Hello.")
        monkeypatch.setattr(proxy.server.background, "close", breaks)
        with pytest.raises(ZeroDivisionError):
            await stack.aclose()
    async with proxy_and_client(tmp_path) as (_, client):
        assert (await client.responses.retrieve(stored.id)).status == "completed"
