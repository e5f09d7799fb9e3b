"""Responses in the background: polled, followed, resumed, cancelled, and taken up again after a restart."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI, NotFoundError

from codex_proxy.agents.codex_app_server.agent import AppServerAgent
from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.responses import background, prepare, saving
from codex_proxy.responses.saving import BEFORE_ALL
from codex_proxy.responses.service import BackgroundResponses
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.values import StoredResponse, StoreUnavailable
from codex_proxy.surfaces.responses import kept_log
from codex_proxy.surfaces.responses.kept_log import LAST
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from tests.faults.scene import agent_of, write_program
from tests.http.serving import ENVIRONMENT, Proxy, proxy_of, until
from tests.http_responses.asking import (
    blocks_of,
    check_events,
    create,
    events_of,
    prompt_for,
    proxy_and_client,
    types_of,
)
from tests.http_responses.killing import server_process
from tests.waiting import poll

HELD_PROMPT = '[[fake:text say="one two three" hold=1]]'


@asynccontextmanager
async def proxy_with_held_turns(
    folder: Path, **settings: Any
) -> AsyncIterator[tuple[Proxy, AsyncOpenAI, Path]]:
    """A proxy whose held turns go on when the file is there."""
    release = folder / "go"
    async with proxy_and_client(folder, {"STREAM_RELEASE_FILE": str(release)}, **settings) as (proxy, client):
        yield proxy, client, release


async def wait_for_end(client: AsyncOpenAI, id: str) -> Any:
    """The response, once it has ended: as a client polls."""

    async def over() -> Any:
        response = await client.responses.retrieve(id)
        return None if response.status in ("queued", "in_progress") else response

    return await poll(over)


async def stream_of(proxy: Proxy, id: str, after: int | None = None) -> list[dict[str, Any]]:
    query = "" if after is None else f"&starting_after={after}"
    answer = await proxy.send("GET", f"/v1/responses/{id}?stream=true{query}")
    assert answer.status == 200, answer.text
    return events_of(answer.text)


async def test_a_background_response_is_reported_at_once_and_polled_to_its_end(tmp_path: Path) -> None:
    async with proxy_with_held_turns(tmp_path) as (proxy, client, release):
        created = await client.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
        assert (created.status, created.background, created.output) == ("queued", True, [])
        await until(lambda: proxy.server.runs.running == 1)
        assert (await client.responses.retrieve(created.id)).status in ("queued", "in_progress")
        release.write_text("go")
        response = await wait_for_end(client, created.id)
        assert (response.status, response.output_text) == ("completed", "one two three")
        following = await client.responses.create(
            model="codex-5", input="[[fake:echo]]", previous_response_id=created.id
        )
        assert "one two three" in following.output_text


async def test_a_background_stream_outlives_its_creator_and_is_resumed_to_the_event(tmp_path: Path) -> None:
    async with proxy_with_held_turns(tmp_path) as (proxy, _, release):
        body = {"model": "codex-5", "input": HELD_PROMPT, "background": True, "stream": True}
        async with proxy.session.post(f"{proxy.url}/v1/responses", json=body) as reply:
            begun = b""
            while b"output_text.delta" not in begun:
                begun += await reply.content.readany()
        seen = blocks_of(begun.decode().rpartition("\n\n")[0])
        id, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        await until(lambda: proxy.streams == 0)
        following = asyncio.create_task(stream_of(proxy, id, last))
        await until(lambda: proxy.streams == 1)
        release.write_text("go")
        rest = await following
        assert rest[0]["sequence_number"] == last + 1
        whole = check_events(seen + rest)
        assert whole == await stream_of(proxy, id)
        assert whole[-1]["type"] == "response.completed"
        assert (
            "".join(event["delta"] for event in whole if event["type"].endswith("text.delta"))
            == "one two three"
        )


async def test_the_first_event_and_the_end_of_a_stream_are_written_at_once_and_the_rest_with_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "PAUSE_SECONDS", 1e6, raising=False)
    writes: list[int] = []
    append = SqliteStore.append_frames

    async def counted(self: SqliteStore, owner: str, id: str, frames: Any, **more: Any) -> None:
        writes.append(len(frames))
        await append(self, owner, id, frames, **more)

    monkeypatch.setattr(SqliteStore, "append_frames", counted)
    async with proxy_with_held_turns(tmp_path) as (proxy, _, release):
        body = {"model": "codex-5", "input": HELD_PROMPT, "background": True, "stream": True}
        async with proxy.session.post(f"{proxy.url}/v1/responses", json=body) as reply:
            begun = await reply.content.readany()
            assert begun.startswith(b"event: response.created")
            release.write_text("go")
            events = check_events(events_of((begun + await reply.content.read()).decode()))
    assert events[-1]["type"] == "response.completed"
    assert len(writes) == 1


async def test_the_sdk_resumes_a_background_stream(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(
        model="codex-5", input=prompt_for("one two three"), background=True, stream=True
    )
    events = [event async for event in stream]
    id = events[0].response.id  # type: ignore[union-attr]
    again = await client.responses.retrieve(id, stream=True, starting_after=3)
    assert [event async for event in again] == events[4:]


async def test_a_stream_read_behind_its_last_event_has_nothing_but_its_end(proxy: Proxy) -> None:
    answer = await create(proxy, background=True, stream=True)
    events = events_of(answer.text)
    id, last = events[0]["response"]["id"], events[-1]["sequence_number"]
    for after in (last, last + 5):
        assert await stream_of(proxy, id, after) == []


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}])
async def test_only_background_streams_can_be_resumed(proxy: Proxy, fields: dict[str, Any]) -> None:
    answer = await create(proxy, prompt_for("Hi."), **fields)
    id = events_of(answer.text)[0]["response"]["id"] if "stream" in fields else answer.body["id"]
    refused = await proxy.send("GET", f"/v1/responses/{id}?stream=true")
    assert (refused.status, refused.error["code"]) == (400, "stream_not_resumable")


async def test_a_wrong_number_to_resume_from_is_a_400(proxy: Proxy) -> None:
    answer = await create(proxy, background=True, stream=True)
    id = events_of(answer.text)[0]["response"]["id"]
    refused = await proxy.send("GET", f"/v1/responses/{id}?stream=true&starting_after=-1")
    assert (refused.status, refused.error["param"]) == (400, "starting_after")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_response_ends_its_agent_and_never_completes(tmp_path: Path, stream: bool) -> None:
    async with proxy_with_held_turns(tmp_path) as (proxy, client, release):
        id, reading = await _created(proxy, client, stream)
        await until(lambda: proxy.server.runs.running == 1)
        cancelled = await client.responses.cancel(id)
        assert cancelled.status == "cancelled"
        await until(lambda: proxy.server.runs.running == 0)
        release.write_text("go")
        assert (await client.responses.cancel(id)).status == "cancelled"
        assert (await client.responses.retrieve(id)).status == "cancelled"
        if reading is not None:
            assert (await reading)[-1]["response"]["status"] == "cancelled"


async def _created(
    proxy: Proxy, client: AsyncOpenAI, stream: bool
) -> tuple[str, asyncio.Task[list[dict[str, Any]]] | None]:
    if not stream:
        return (await client.responses.create(model="codex-5", input=HELD_PROMPT, background=True)).id, None
    events = await client.responses.create(model="codex-5", input=HELD_PROMPT, background=True, stream=True)
    id = (await anext(aiter(events))).response.id  # type: ignore[union-attr]
    await events.close()
    return id, asyncio.create_task(stream_of(proxy, id))


async def test_a_response_that_waits_for_its_slot_is_cancelled_before_it_begins(tmp_path: Path) -> None:
    async with proxy_with_held_turns(tmp_path, max_running_turns=1) as (proxy, client, release):
        first = await client.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
        await until(lambda: proxy.server.runs.running == 1)
        second = await client.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
        assert (await client.responses.cancel(second.id)).status == "cancelled"
        release.write_text("go")
        assert (await wait_for_end(client, first.id)).status == "completed"
        assert (await client.responses.retrieve(second.id)).status == "cancelled"


async def test_a_stream_that_is_cancelled_before_its_turn_begins_can_be_resumed(tmp_path: Path) -> None:
    async with proxy_with_held_turns(tmp_path, max_running_turns=1) as (proxy, client, _):
        first = await client.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
        await until(lambda: proxy.server.runs.running == 1)
        reading = asyncio.create_task(create(proxy, HELD_PROMPT, background=True, stream=True))
        await until(lambda: len(proxy.server.background.leases) == 2)
        [id] = [each.id for each in proxy.server.background.leases if each.id != first.id]
        assert (await client.responses.cancel(id)).status == "cancelled"
        events = events_of((await reading).text)
        assert events[-1]["response"]["status"] == "cancelled"
        assert await stream_of(proxy, id) == events
        assert await stream_of(proxy, id, 1) == events[2:]


@pytest.mark.parametrize("error", [bad_request("This model is not there.", "model"), ZeroDivisionError()])
async def test_a_stream_whose_turn_cannot_begin_can_be_resumed(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def break_off(*_: Any) -> None:
        raise error

    monkeypatch.setattr(background, "try_to_start", break_off)
    events = events_of((await create(proxy, background=True, stream=True)).text)
    assert types_of(events)[-2:] == ["error", "response.failed"]
    assert await stream_of(proxy, events[0]["response"]["id"]) == events


async def test_a_server_that_has_cancelled_its_own_response_does_not_read_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    frames = SqliteStore.frames

    async def counted(self: SqliteStore, owner: str, id: str, **more: Any) -> Any:
        reads.append(id)
        return await frames(self, owner, id, **more)

    async with proxy_with_held_turns(tmp_path) as (proxy, client, _):
        reading = asyncio.create_task(create(proxy, HELD_PROMPT, background=True, stream=True))
        await until(lambda: proxy.server.runs.running == 1)
        [lease] = proxy.server.background.leases
        monkeypatch.setattr(SqliteStore, "frames", counted)
        assert (await client.responses.cancel(lease.id)).status == "cancelled"
        assert events_of((await reading).text)[-1]["response"]["status"] == "cancelled"
    assert reads == []


async def test_a_failed_background_turn_says_why(proxy: Proxy, client: AsyncOpenAI) -> None:
    created = await client.responses.create(model="codex-5", input="[[fake:error_500]]", background=True)
    response = await wait_for_end(client, created.id)
    assert response.status == "failed"
    assert response.error.message
    assert (await client.responses.cancel(created.id)).status == "failed"


async def test_a_failed_background_stream_ends_with_error_and_failed(proxy: Proxy) -> None:
    events = events_of((await create(proxy, "[[fake:error_500]]", background=True, stream=True)).text)
    assert types_of(events)[-2:] == ["error", "response.failed"]


async def test_a_response_deleted_while_it_runs_is_stopped_and_gone(tmp_path: Path) -> None:
    async with proxy_with_held_turns(tmp_path) as (proxy, client, _):
        created = await client.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
        await until(lambda: proxy.server.runs.running == 1)
        await client.responses.delete(created.id)
        await until(lambda: proxy.server.runs.running == 0)
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(created.id)


async def test_a_response_deleted_while_its_client_waits_is_stopped_and_gone(tmp_path: Path) -> None:
    async with proxy_with_held_turns(tmp_path) as (proxy, client, _):
        stream = await client.responses.create(model="codex-5", input=HELD_PROMPT, stream=True)
        event = await anext(aiter(stream))
        assert event.type == "response.created"
        await client.responses.delete(event.response.id)
        assert proxy.server.runs.running == 0
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(event.response.id)


async def test_a_running_response_cannot_be_continued_yet(tmp_path: Path) -> None:
    async with proxy_with_held_turns(tmp_path) as (proxy, client, _):
        created = await client.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
        answer = await create(proxy, previous_response_id=created.id)
        assert (answer.status, answer.error["code"]) == (400, "previous_response_not_finished")


async def test_a_conversation_takes_a_background_turn_when_it_has_completed(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    created = await client.responses.create(
        model="codex-5", input=prompt_for("Hello."), conversation=conversation.id, background=True
    )
    await wait_for_end(client, created.id)
    items = (await client.conversations.items.list(conversation.id, order="asc")).data
    assert [item.role for item in items] == ["user", "assistant"]  # type: ignore[union-attr]


async def test_a_wrong_request_is_an_error_before_anything_is_queued(proxy: Proxy) -> None:
    for fields in ({"previous_response_id": "resp_nobody"}, {"store": False}):
        answer = await create(proxy, background=True, **fields)
        assert answer.status == 400
    assert proxy.server.store_lifecycle is not None
    assert (await proxy.server.store_lifecycle.store.stats()).responses == 0


async def test_without_a_store_there_is_no_background(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path, store="off") as (proxy, _):
        answer = await create(proxy, background=True)
    assert (answer.status, answer.error["param"]) == (400, "background")


def test_responses_that_are_about_to_begin_count_for_their_key_too() -> None:
    background = BackgroundResponses(limit=4)
    with background.room("one", 1):
        with background.room("another", 1):
            """Another key's are its own."""
        with pytest.raises(Fault), background.room("one", 1):
            """There is no room for a second."""
    with background.room("one", 1):
        """The first has not begun: its room is free again."""


async def test_a_stream_of_another_renderer_goes_on_with_the_final_object_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy_with_held_turns(tmp_path) as (proxy, client, release):
        events = await client.responses.create(
            model="codex-5", input=HELD_PROMPT, background=True, stream=True
        )
        id = (await anext(aiter(events))).response.id  # type: ignore[union-attr]
        await events.close()
        await until(lambda: proxy.streams == 0)
        with monkeypatch.context() as patch:
            patch.setattr(kept_log, "RENDERER", 2)
            refused = await proxy.send("GET", f"/v1/responses/{id}?stream=true")
            assert (refused.status, "another release" in refused.text) == (503, True)
        release.write_text("go")
        object = (await wait_for_end(client, id)).model_dump()
        whole = await stream_of(proxy, id)
        monkeypatch.setattr(kept_log, "RENDERER", 2)
        [last] = await stream_of(proxy, id, 3)
    assert (last["type"], last["sequence_number"]) == ("response.completed", 4)
    assert last["response"] == whole[-1]["response"]
    assert last["response"]["id"] == object["id"]


async def test_a_log_whose_first_rows_were_removed_is_no_stream_any_more(proxy: Proxy) -> None:
    id = events_of((await create(proxy, background=True, stream=True)).text)[0]["response"]["id"]
    assert proxy.server.store_lifecycle is not None
    store = proxy.server.store_lifecycle.store
    assert len(await store.frames("local", id, after=BEFORE_ALL)) > 1
    await store._remove_oldest("frames", 1e12, 1)
    assert await store.frames("local", id, after=BEFORE_ALL)
    refused = await proxy.send("GET", f"/v1/responses/{id}?stream=true")
    assert (refused.status, refused.error["code"]) == (400, "stream_not_resumable")


async def test_what_a_stream_does_not_show_is_not_in_its_log(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path) as (proxy, _):
        prompt = "[[fake:exec]]"
        answer = await create(proxy, prompt, background=True, stream=True)
        events = events_of(answer.text)
        assert proxy.server.store_lifecycle is not None
        rows = await proxy.server.store_lifecycle.store.frames(
            "local", events[0]["response"]["id"], after=BEFORE_ALL
        )
    text = b"".join(data for _, data in rows)
    for kind in (b"raw_item", b"notice", b"account_limits", b"output_delta", b'"kind":"raw"'):
        assert kind not in text
    assert sum(len(data) for _, data in rows) < len(answer.text)


def break_renderer_at_three(monkeypatch: pytest.MonkeyPatch) -> None:
    render_text = ResponsesRenderer._on_text

    def broken(self: ResponsesRenderer, pieces: Any) -> None:
        if "three" in "".join(pieces.texts):
            raise ZeroDivisionError
        render_text(self, pieces)

    handlers = {
        kind: broken if each is render_text else each for kind, each in ResponsesRenderer._handlers.items()
    }
    monkeypatch.setattr(ResponsesRenderer, "_handlers", handlers)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_stream_whose_renderer_breaks_ends_behind_what_it_could_render(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    break_renderer_at_three(monkeypatch)
    async with proxy_with_held_turns(tmp_path) as (proxy, _, release):
        prompt = HELD_PROMPT if begun else prompt_for("one two three")
        body = {"model": "codex-5", "input": prompt, "background": True, "stream": True}
        async with proxy.session.post(f"{proxy.url}/v1/responses", json=body) as reply:
            sent = b""
            while begun and b"output_text.delta" not in sent:
                sent += await reply.content.readany()
            release.write_text("go")
            sent += await reply.content.read()
        events = check_events(events_of(sent.decode()))
        id = events[0]["response"]["id"]
        assert types_of(events)[-2:] == ["error", "response.failed"]
        assert await stream_of(proxy, id) == events
        assert (await proxy.send("GET", f"/v1/responses/{id}")).body == events[-1]["response"]


async def test_a_stream_whose_renderer_breaks_while_the_store_is_away_ends_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.01)
    break_renderer_at_three(monkeypatch)
    tries = 0
    frames = SqliteStore.frames

    async def away(self: SqliteStore, *given: Any, **more: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise StoreUnavailable("another process has locked the file")
        return await frames(self, *given, **more)

    monkeypatch.setattr(SqliteStore, "frames", away)
    async with proxy_and_client(tmp_path) as (proxy, _):
        answer = await create(proxy, prompt_for("one two three"), background=True, stream=True)
        events = events_of(answer.text)
        id = events[0]["response"]["id"]
        assert types_of(events)[-2:] == ["error", "response.failed"]
        assert await stream_of(proxy, id) == events
        assert (await proxy.send("GET", f"/v1/responses/{id}")).body == events[-1]["response"]


@pytest.mark.exhaustive
async def test_a_large_log_is_rendered_beside_the_event_loop_to_the_same_stream(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await create(proxy, "[[fake:count n=2000 size=100]]", background=True, stream=True)
    events = events_of(answer.text)
    monkeypatch.setattr(saving, "LONG_ANSWER", 1000)
    assert await stream_of(proxy, events[0]["response"]["id"]) == events


# --- over a restart -----------------------------------------------------------------------------


async def test_a_server_that_stops_fails_what_runs_with_a_reason(tmp_path: Path) -> None:
    async with proxy_with_held_turns(tmp_path) as (proxy, client, _):
        created = await client.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
        await until(lambda: proxy.server.runs.running == 1)
    async with proxy_and_client(tmp_path) as (_, client):
        response = await client.responses.retrieve(created.id)
    assert response.status == "failed"
    assert response.error is not None
    assert "stopping" in response.error.message


async def test_a_server_that_stops_fails_what_waits_for_a_slot_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "RETRY_SECONDS", 0.05)
    async with proxy_with_held_turns(tmp_path, max_running_turns=1, queue_wait=0) as (proxy, client, _):
        in_front = asyncio.ensure_future(create(proxy, HELD_PROMPT))
        await until(lambda: proxy.server.runs.running == 1)
        waits = await client.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
    left = proxy.server.background.find("local", waits.id)
    await asyncio.gather(in_front, return_exceptions=True)
    assert left is None
    async with proxy_and_client(tmp_path) as (_, client):
        response = await client.responses.retrieve(waits.id)
    assert response.status == "failed"
    assert response.error is not None
    assert "stopping" in response.error.message


@pytest.mark.parametrize("killed", [False, True])
async def test_a_stream_that_waits_for_its_slot_when_its_server_ends_is_followed_to_its_end(
    tmp_path: Path, killed: bool
) -> None:
    settings = {"PROXY_MAX_RUNNING_TURNS": "1", "PROXY_DRAIN_MS": "0"}
    held = settings | {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    body = {"model": "codex-5", "input": HELD_PROMPT, "background": True}
    async with server_process(tmp_path, held) as (url, process), aiohttp.ClientSession() as session:
        server = Proxy(None, session, url)  # type: ignore[arg-type]
        first = [(await create(server, **body)).body["id"]]
        waiting = asyncio.create_task(create(server, **body, stream=True))
        with closing(sqlite3.connect(tmp_path / "state" / "store.sqlite3")) as database:
            [id] = await until(
                lambda: database.execute("SELECT id FROM responses WHERE id <> ?", first).fetchone()
            )
        (process.kill if killed else process.terminate)()
        await process.wait()
        await asyncio.gather(waiting, return_exceptions=True)
    async with proxy_and_client(tmp_path) as (proxy, _):
        events = check_events(await stream_of(proxy, id))
        assert types_of(events) == ["response.created", "response.in_progress", "error", "response.failed"]
        assert await stream_of(proxy, id, 1) == events[2:]
        assert (await proxy.send("GET", f"/v1/responses/{id}")).body == events[-1]["response"]


async def add_unfinished_response(folder: Path, **fields: Any) -> str:
    """A response that is unfinished on disk, as a process that was killed leaves it."""
    async with proxy_with_held_turns(folder, background_recovery="rerun") as (proxy, client, _):
        created = await client.responses.create(
            model="codex-5", input=HELD_PROMPT, background=True, instructions="Be brief.", **fields
        )
        await until(lambda: proxy.server.runs.running == 1)
        assert proxy.server.store_lifecycle is not None
        found = await proxy.server.store_lifecycle.store.response("local", created.id)
        assert isinstance(found, StoredResponse)
        assert found.status in ("queued", "in_progress")
    return str(created.id)


async def test_a_turn_of_the_plain_model_is_run_again_where_the_operator_wants_it(tmp_path: Path) -> None:
    id = await add_unfinished_response(tmp_path)
    (tmp_path / "go").write_text("go")
    async with proxy_with_held_turns(tmp_path, background_recovery="rerun") as (_, client, _):
        response = await wait_for_end(client, id)
    assert (response.status, response.output_text) == ("completed", "one two three")


async def test_a_turn_whose_context_cannot_be_read_at_the_start_is_run_again_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.responses.recovery.RETRY_SECONDS", 0.01)
    async with proxy_and_client(tmp_path) as (proxy, _):
        first = await create(proxy, prompt_for("Hello."))
    id = await add_unfinished_response(tmp_path, previous_response_id=first.body["id"])
    (tmp_path / "go").write_text("go")

    tries = 0
    scan = SqliteStore.scan_context

    async def locked(self: SqliteStore, *given: Any) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise StoreUnavailable("another process has locked the file")
        await scan(self, *given)

    monkeypatch.setattr(SqliteStore, "scan_context", locked)
    async with proxy_with_held_turns(tmp_path, background_recovery="rerun") as (_, client, _):
        response = await wait_for_end(client, id)
    assert (response.status, tries) == ("completed", 3)


async def test_a_turn_that_waits_for_a_process_when_the_server_stops_is_run_again_too(tmp_path: Path) -> None:
    write_program(program := tmp_path / "agent")
    agent = agent_of("app-server", program, ENVIRONMENT)
    assert isinstance(agent, AppServerAgent)
    async with proxy_of(agent, tmp_path, background_recovery="rerun") as proxy:
        program.write_text("#!/bin/sh\nexec sleep 600\n")
        [process] = agent.pool.processes
        process.kill()
        await until(lambda: not agent.pool.processes)
        created = await create(proxy, prompt_for("Hello."), background=True, instructions="Be brief.")
        await until(lambda: proxy.server.runs.running == 1)
    async with proxy_and_client(tmp_path, background_recovery="rerun") as (_, client):
        response = await wait_for_end(client, created.body["id"])
    assert (response.status, response.output_text) == ("completed", "Hello.")


async def test_a_response_that_a_kill_cut_off_is_failed_with_the_reason(tmp_path: Path) -> None:
    id = await add_unfinished_response(tmp_path)
    async with proxy_and_client(tmp_path) as (_, client):
        response = await wait_for_end(client, id)
    assert response.status == "failed"
    assert "was restarted" in response.error.message


@pytest.mark.parametrize("form", ["rows", "frames of an earlier release"])
async def test_a_stream_that_a_kill_cut_off_still_ends(tmp_path: Path, form: str) -> None:
    async with proxy_with_held_turns(tmp_path) as (proxy, _, _):
        assert proxy.server.store_lifecycle is not None
        store = proxy.server.store_lifecycle.store
        answer = await create(proxy, prompt_for("one two"), background=True, stream=True)
        events = events_of(answer.text)
        id = events[0]["response"]["id"]
        rows = await store.frames("local", id, after=BEFORE_ALL)
        frames = [f"{each}\n\n".encode() for each in answer.text.split("\n\n")]
        kept = rows[:-1] if form == "rows" else list(enumerate(frames[:5]))
        count = 2 if form == "rows" else 5
        assert rows[-1][0] == LAST
        stored = await store.response("local", id)
        assert stored is not None
        await store.delete_response("local", id)
        unfinished = json.dumps({**json.loads(stored.json), "status": "in_progress", "output": []}).encode()
        await store.add_response(
            StoredResponse(
                owner="local", id=id, status="in_progress", created=1.0, json=unfinished, background=True
            )
        )
        await store.append_frames("local", id, kept)
    async with proxy_with_held_turns(tmp_path) as (proxy, _, _):
        rest = await stream_of(proxy, id)
        object = (await proxy.send("GET", f"/v1/responses/{id}")).body
    assert check_events(rest)[:count] == events[:count]
    assert types_of(rest)[-2:] == ["error", "response.failed"]
    assert rest[-1]["response"] == object
