"""The memory of a session does not grow with the number of its turns."""

from __future__ import annotations

import gc
import os
import tracemalloc
import types
import zlib
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec
import pytest

from codex_proxy.core.events import (
    Event,
    ItemEnded,
    ItemStarted,
    OfSubagent,
    OutputDelta,
    Stop,
    SubagentOpened,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.items import Activity
from codex_proxy.parts.sessions.approvals import Approval
from codex_proxy.parts.sessions.items import MAX_OUTPUT, WholeItem, item_object
from codex_proxy.parts.sessions.log import Log
from codex_proxy.parts.sessions.records import IMAGE, SESSION
from codex_proxy.parts.sessions.render import TurnRenderer
from codex_proxy.parts.sessions.service import SESSIONS
from codex_proxy.parts.sessions.sessions import AgentItem, Entry
from codex_proxy.parts.sessions.state import SessionState
from codex_proxy.parts.sessions.subagents import MAX_KEPT
from codex_proxy.store.values import PageRequest
from tests.http.serving import Proxy, fake_proxy
from tests.parts.managed_agents.following import IDLE, ManagedClient
from tests.parts.sessions.driving import AgentsClient
from tests.parts.sessions.driving import message as sent
from tests.parts.sessions.driving import result as given
from tests.parts.sessions.states import HELLO, call, message, new_session, result
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.test_state_of_approvals import question
from tests.pictures import png_of, url_of

TURNS = 100
MAX_BYTES = 1000
"""How much may stay of a turn, in bytes: what is stored of one takes more."""
_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)
"""What is not a session's own."""


def objects_of(root: object) -> int:
    """How many objects this one holds, directly or through others."""
    seen, found = {id(root)}, [root]
    for each in found:
        for other in gc.get_referents(each):
            if id(other) not in seen and not isinstance(other, _SHARED):
                seen.add(id(other))
                found.append(other)
    return len(found)


def answer_all(state: SessionState) -> None:
    for ask in state.session.open_asks:
        state.add_answer(Approval(ask.request_id, "approve"), ask, 5)
    for each in state.session.open_calls:
        state.add_result(result(each.call_id, turn=each.turn), 5)


def run_turn(state: SessionState, number: int) -> None:
    """A turn with a message, a subagent, a question and a call of the client."""
    child = f"child {number}"
    own: Sequence[Event] = (*message("Looked."), TurnEnded(Stop.STOP))
    theirs = (OfSubagent(child, each) for each in own)
    events: list[Event] = [TurnStarted(f"own {number}"), SubagentOpened(child), *theirs]
    events += [question(f"q{number}"), *call(f"call_{number}"), *message("Hello.")]
    state.on_run_began(2)
    state.feed(events, 3)
    answer_all(state)
    state.take(4)
    state.on_run_ended(TurnEnded(Stop.STOP), None, 3)
    state.settle(4)
    state.take(5)


def test_the_state_of_a_session_does_not_grow_with_its_turns() -> None:
    state = SessionState(new_session())
    state.create([], "turn_0", 1)
    sizes: dict[int, int] = {}
    for number in range(4 * MAX_KEPT):
        state.add_messages([HELLO], f"turn_{number + 1}", 1)
        run_turn(state, number)
        sizes[number] = objects_of(state)
    assert len(state.session.subagents) <= MAX_KEPT
    assert sizes[4 * MAX_KEPT - 1] <= sizes[2 * MAX_KEPT] + 20, sizes


def bytes_at_rest() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("in_folder", [True, False], ids=["in a folder", "without one"])
async def test_a_turn_of_a_session_that_is_read_leaves_nothing_in_the_memory(
    tmp_path: Path, in_folder: bool
) -> None:
    """With a reader of each API, which keep the session in the memory."""
    endless = aiohttp.ClientTimeout()
    async with (
        fake_proxy(tmp_path, fake_dialect="app-server") as served,
        aiohttp.ClientSession(timeout=endless) as session,
    ):
        proxy = Proxy(served.server, session, served.url)
        client, managed = AgentsClient(proxy), ManagedClient(proxy)
        id = await client.idle_session("Hello.", **(hosted(tmp_path) if in_folder else {}))
        async with client.following(id) as reader, managed.stream(id) as stream:

            async def turns(count: int) -> None:
                for _ in range(count):
                    await client.send(id, sent("[[fake:text say='Hello to you.']]"))
                    await reader.until("agent.session.idle")
                    await stream.until(IDLE)
                    for told in (reader.events, stream.events, stream.frames):
                        told.clear()

            await turns(50)  # what is loaded and kept once
            tracemalloc.start()
            try:
                await turns(50)
                before = bytes_at_rest()
                await turns(TURNS)
                left = bytes_at_rest() - before
            finally:
                tracemalloc.stop()
    assert left < MAX_BYTES * TURNS, left


async def test_a_session_that_has_grown_to_its_limit_takes_no_message_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    async with fake_proxy(tmp_path, session_max_bytes=2400) as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session("x" * 1000)
        await client.turn(id, sent("x" * 1000))
        refused = await client.refused(id, sent("One more."))
        assert (refused.status, refused.error["param"]) == (400, "events")
        assert "PROXY_SESSION_MAX_BYTES" in refused.error["message"]
        assert (await client.get(f"/sessions/{id}"))["status"] == "idle"
    async with fake_proxy(tmp_path, session_max_bytes=2400) as proxy:
        client = AgentsClient(proxy)
        assert (await client.refused(id, sent("Another one."))).status == 400
        items = await client.all(f"/sessions/{id}/items")
        fork = await client.post(f"/sessions/{id}/fork", {"before_item": items[-2]["id"]})
        await client.turn(fork["id"], sent("Go on."))


async def test_a_session_at_its_limit_takes_results_for_which_its_turn_waits(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, session_max_bytes=100) as proxy:
        client = AgentsClient(proxy)
        async with client.creation("[[fake:tool_call]]") as reader:
            told = await reader.until("agent.session.requires_action")
            [action] = told["session"]["required_actions"]
            await client.send(told["session"]["id"], given(action))
            assert (await reader.rest())[-2]["type"] == "agent.session.turn.completed"


async def test_a_message_that_was_accepted_is_not_refused_when_it_comes_again_behind_the_limit(
    tmp_path: Path,
) -> None:
    async with fake_proxy(tmp_path, session_max_bytes=1200) as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session("x")
        key = {"Idempotency-Key": "k1"}
        async with client.following(id) as reader:
            await client.send(id, sent("x" * 1000), **key)
            await reader.until("agent.session.idle")
        assert (await client.refused(id, sent("One more."))).status == 400
        await client.send(id, sent("x" * 1000), **key)
        assert (await client.refused(id, sent("One more."), **key)).status == 409
        assert len(await client.all(f"/sessions/{id}/turns")) == 2


async def test_an_item_that_is_written_again_counts_once(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        async with client.creation("[[fake:tool_call]]") as reader:
            told = await reader.until("agent.session.requires_action")
            [action] = told["session"]["required_actions"]
            id = told["session"]["id"]
            await client.send(id, given(action))
            await reader.rest()
        assert proxy.server.app is not None
        store = proxy.server.app[SESSIONS].store
        entries = await store.all_entries("local", id)
        size = (await store.get("local", SESSION, id)).storage.size
    assert size == sum(len(msgspec.json.encode(each)) for each in entries)


async def test_an_image_that_is_sent_often_is_stored_once_and_shown_each_time(tmp_path: Path) -> None:
    url = url_of(png_of(60, 60, zlib.compress(os.urandom(61 * 60))))
    picture = sent("Look.")
    picture["input"][0]["content"].append({"type": "input_image", "image_url": url})
    path = tmp_path / "store.db"
    async with fake_proxy(tmp_path, store=str(path)) as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session()
        for _ in range(5):
            await client.turn(id, picture)
    async with fake_proxy(tmp_path, store=str(path)) as proxy:
        client = AgentsClient(proxy)
        await client.turn(id, picture)
        items = await client.all(f"/sessions/{id}/items")
        fork = await client.post(f"/sessions/{id}/fork", {})
        copied = await client.all(f"/sessions/{fork['id']}/items")
        assert client.proxy.server.app is not None
        store = client.proxy.server.app[SESSIONS].store
        for parent in (id, fork["id"]):
            page = PageRequest(100, "asc", None)
            assert len((await store.page("local", IMAGE, page, parent=parent)).items) == 1
        size = (await store.get("local", SESSION, id)).storage.size
    assert len(url) < size < 2 * len(url) + 5000
    for found in (items, copied):
        shown = [part["image_url"] for item in found for part in item["content"] if "image_url" in part]
        assert shown == [url] * 6


async def test_of_a_long_output_a_session_keeps_beginning_and_end_and_says_what_is_cut(
    tmp_path: Path,
) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        client = AgentsClient(proxy)
        said = f"[[fake:text misbehave=big_line bytes={3 * MAX_OUTPUT}]]"
        events = await client.whole_stream(said, **hosted(tmp_path))
        items = await client.all(f"/sessions/{events[0]['session']['id']}/items")
    [kept] = [item["output"] for item in items if item["type"] == "command_execution"]
    begin, mark, end = kept.partition(f"\n[cut: {2 * MAX_OUTPUT} characters]\n")
    assert (begin, end) == ("y" * (MAX_OUTPUT // 2), "y" * (MAX_OUTPUT // 2)), mark
    done = [event["item"] for event in events if event["type"] == "agent.session.turn.item.done"]
    assert [item["output"] for item in done if item["type"] == "command_execution"] == [kept]


def _read(entry: Entry) -> WholeItem:
    assert isinstance(entry.item, AgentItem)
    return WholeItem.of(entry.item.events())


@pytest.mark.parametrize("size", [0, 1, MAX_OUTPUT, MAX_OUTPUT + 1, 2 * MAX_OUTPUT + 7])
@pytest.mark.parametrize("piece", [1000, MAX_OUTPUT // 2, 3 * MAX_OUTPUT])
def test_an_output_is_cut_alike_however_it_comes_and_once(size: int, piece: int) -> None:
    output = "".join(f"{number:07}\n" for number in range(size // 8 + 1))[:size]
    renderer = TurnRenderer("sess_1", "turn_1", Log())
    pieces = [output[place : place + piece] for place in range(0, size, piece)]
    told: list[Event] = [OutputDelta("a", each) for each in pieces]
    renderer.feed([ItemStarted(Activity("a", "command", "ls")), *told, ItemEnded("a", "completed")])
    [entry] = renderer.entries
    shown = item_object(entry)["output"]
    if size <= MAX_OUTPUT:
        assert shown == output
    else:
        half = MAX_OUTPUT // 2
        cut = size - MAX_OUTPUT
        assert len(shown) <= MAX_OUTPUT + 100
        assert shown == output or shown == f"{output[:half]}\n[cut: {cut} characters]\n{output[-half:]}"
    assert "".join(WholeItem.of(_read(entry).events()).output) == shown
