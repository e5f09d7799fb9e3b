"""Responses and their readers, behind the handlers: who reads slowly or not at all, and who follows from the store."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.events import Event, ItemEnded, TurnEnded
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.responses import follow, saving
from codex_proxy.responses.follow import Follower, check_followable
from codex_proxy.responses.foreground import ForegroundResponse, ResponseReader, start_foreground
from codex_proxy.responses.prepare import PreparedResponse, prepare
from codex_proxy.responses.running import Delivery
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.event_log import HIGH_WATER
from codex_proxy.surfaces.requests.options import ParseContext, RequestHints
from codex_proxy.surfaces.responses.parse import parse
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from tests.http.serving import Proxy, fake_proxy, until
from tests.http_responses.asking import blocks_of, check_events, create, events_of, prompt_for
from tests.waiting import PATIENCE

HELD_PROMPT = '[[fake:text say="one two three" hold=1]]'


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy whose held turns go on when the file `go` is there."""
    async with fake_proxy(tmp_path, {"STREAM_RELEASE_FILE": str(tmp_path / "go")}) as running:
        yield running


def service_of(proxy: Proxy) -> ResponsesService:
    return proxy.app[RESPONSES]


async def prepared_turn(
    proxy: Proxy, input: str, delivery: Delivery = "sse", **fields: Any
) -> PreparedResponse:
    service = service_of(proxy)
    body = {"model": "codex-5", "input": input, "stream": delivery != "whole", **fields}
    parsed = parse(
        json.dumps(body).encode(),
        context=ParseContext(
            service.clients.everybody.settings, service.clients.everybody.catalog, RequestHints()
        ),
    )
    return await prepare(service, parsed, "local", id=service.ids.new("resp_"), created=1.0, wait=None)


async def started(
    proxy: Proxy, input: str, delivery: Delivery = "sse", **fields: Any
) -> tuple[ForegroundResponse, ResponseReader]:
    prepared = await prepared_turn(proxy, input, delivery, **fields)
    return await start_foreground(service_of(proxy), prepared, delivery)


async def rest_of(reader: ResponseReader | Follower) -> str:
    """What is still to be read, to the end."""
    data = b""
    async with asyncio.timeout(PATIENCE):
        while not reader.finished:
            await reader.wait()
            data += reader.take()
    return data.decode()


async def test_a_response_is_saved_while_its_client_does_not_read(proxy: Proxy) -> None:
    response, reader = await started(proxy, prompt_for("one two three"))
    await until(lambda: response.ended)
    stored = await proxy.send("GET", f"/v1/responses/{response.id}")
    assert stored.body["status"] == "completed"
    events = events_of(await rest_of(reader))
    assert events[-1]["response"] == stored.body


async def test_the_last_frames_come_when_the_response_is_saved_and_not_before(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = service_of(proxy).store
    write, may_write = store.add_response, asyncio.Event()
    is_asked = asyncio.Event()

    async def held_up(*given: Any, **more: Any) -> None:
        is_asked.set()
        await may_write.wait()
        await write(*given, **more)

    monkeypatch.setattr(store, "add_response", held_up)
    _, reader = await started(proxy, prompt_for("one two"))
    await is_asked.wait()
    begun = reader.take().decode()
    assert "output_text.delta" in begun
    assert "response.completed" not in begun
    assert reader.take() == b""
    may_write.set()
    assert "response.completed" in await rest_of(reader)


@pytest.mark.exhaustive
async def test_a_client_that_does_not_read_makes_its_agent_wait(proxy: Proxy) -> None:
    _, reader = await started(proxy, "[[fake:count n=30000 size=100]]")
    [run] = proxy.server.runs._runs
    await until(lambda: run.log.backlog > HIGH_WATER)
    assert not run.ended
    events = events_of(await rest_of(reader))
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) == 30_000


async def test_a_closed_reader_ends_the_turn_and_the_response_is_cancelled(proxy: Proxy) -> None:
    response, reader = await started(proxy, HELD_PROMPT)
    await reader.wait()
    reader.close()
    await until(lambda: response.ended)
    stored = await proxy.send("GET", f"/v1/responses/{response.id}")
    assert stored.body["status"] == "cancelled"


async def followed_in_background(proxy: Proxy, input: str) -> tuple[str, Follower]:
    """A response in the background, whose follower has read its first event."""
    body = {"model": "codex-5", "input": input, "background": True, "stream": True}
    async with proxy.session.post(f"{proxy.url}/v1/responses", json=body) as reply:
        begun = b""
        while b"\n\n" not in begun:
            begun += await reply.content.readany()
    first = blocks_of(begun.decode().partition("\n\n")[0])[0]
    id = first["response"]["id"]
    return id, Follower(service_of(proxy), "local", id, first["sequence_number"])


@pytest.mark.parametrize("max_unread", [1, 1 << 20])
async def test_a_follower_that_falls_behind_gets_every_event_all_the_same(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_unread: int
) -> None:
    monkeypatch.setattr(follow, "MAX_UNREAD", max_unread)
    monkeypatch.setattr(saving, "ROWS_AT_ONCE", 1)
    id, follower = await followed_in_background(proxy, HELD_PROMPT)
    await follower.wait()
    read = follower.take()
    (tmp_path / "go").write_text("go")
    await until(lambda: proxy.server.background.find("local", id) is None)
    rest = read.decode() + await rest_of(follower)
    whole = events_of((await proxy.send("GET", f"/v1/responses/{id}?stream=true")).text)
    assert check_events(events_of(rest)) == whole[1:]


async def test_a_follower_of_a_response_that_is_deleted_comes_to_an_end(proxy: Proxy) -> None:
    id, follower = await followed_in_background(proxy, HELD_PROMPT)
    reading = asyncio.create_task(rest_of(follower))
    await proxy.send("DELETE", f"/v1/responses/{id}")
    text = await reading
    assert "response.incomplete" not in text
    assert "[DONE]" not in text


async def test_a_response_that_waits_for_its_slot_can_be_cancelled_by_several_at_once(tmp_path: Path) -> None:
    async with fake_proxy(
        tmp_path, {"STREAM_RELEASE_FILE": str(tmp_path / "go")}, max_running_turns=1
    ) as proxy:
        await create(proxy, HELD_PROMPT, background=True)
        await until(lambda: proxy.server.runs.running == 1)
        waits = (await create(proxy, HELD_PROMPT, background=True)).body["id"]
        response = proxy.server.background.find("local", waits)
        assert response is not None
        await asyncio.gather(response.cancel_and_wait(), response.cancel_and_wait())
        assert (await proxy.send("GET", f"/v1/responses/{waits}")).body["status"] == "cancelled"


async def test_a_response_that_is_cancelled_before_its_task_begins_ends_all_the_same(proxy: Proxy) -> None:
    service = service_of(proxy)
    response = ForegroundResponse(service, await prepared_turn(proxy, HELD_PROMPT), "sse", None)
    task = response.start_in(service.background.tasks)
    response.cancel()
    await task
    assert response.ended
    assert proxy.server.runs.running == 0


async def test_a_response_that_is_deleted_before_it_is_followed_is_a_404(proxy: Proxy) -> None:
    created = await create(proxy, HELD_PROMPT, background=True)
    store = service_of(proxy).store
    assert store is not None
    found = await store.response("local", created.body["id"])
    assert found is not None
    await proxy.send("DELETE", f"/v1/responses/{found.id}")
    with pytest.raises(Fault) as refused:
        await check_followable(store, found, None)
    assert refused.value.failure.kind is FaultKind.NOT_FOUND


@pytest.mark.parametrize("held_at", [ItemEnded, TurnEnded])
async def test_a_stream_that_is_broken_off_while_a_thread_renders_is_stored_as_failed(
    held_at: type[ItemEnded | TurnEnded], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = asyncio.Event(), threading.Event()
    loop, feed = asyncio.get_running_loop(), ResponsesRenderer.feed

    def held(renderer: ResponsesRenderer, events: Sequence[Event]) -> None:
        if threading.current_thread() is not threading.main_thread() and held_at in map(type, events):
            loop.call_soon_threadsafe(begun.set)
            go.wait(PATIENCE)
        feed(renderer, events)

    monkeypatch.setattr(ResponsesRenderer, "feed", held)
    response, reader = await started(proxy, "[[fake:count n=3 size=1000000]]")
    reading = asyncio.ensure_future(rest_of(reader))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    reading.cancel()
    told = reader.break_off(Failure(FaultKind.INVALID_API_KEY, "The key is no longer valid."))
    reader.close()
    go.set()
    await until(lambda: response.ended)
    stored = await proxy.send("GET", f"/v1/responses/{response.id}")
    assert events_of(told.decode())[-1]["type"] == "response.failed"
    assert (stored.body["status"], stored.body["error"]["message"]) == (
        "failed",
        "The key is no longer valid.",
    )
