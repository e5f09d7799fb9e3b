"""The agent's own session behind a session: it goes on from turn to turn, is named, and is deleted with the session."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents.codex_app_server.wire import OPEN_ELSEWHERE
from codex_proxy.core.events import ItemEnded, ItemStarted, Stop, TextDelta, TurnElsewhere
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.items import HistoryMessage, Message, TextPart
from codex_proxy.parts.sessions import agent_threads, service, turn_requests
from codex_proxy.parts.sessions.conversation import input_items
from codex_proxy.parts.sessions.records import ENTRY, LEASE_LOST, SessionStore
from codex_proxy.parts.sessions.state import SessionState
from codex_proxy.parts.sessions.turn_requests import TurnRequests
from codex_proxy.responses.prepare import PreparedResponse
from codex_proxy.runs.services import RunServices
from codex_proxy.runs.whole_history import WholeHistory
from tests.access.keyed import key_of, keyed_proxy
from tests.http.serving import fake_proxy
from tests.parts.sessions.driving import CANCEL, WEATHER, AgentsClient, message, text_of
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.test_races import in_memory
from tests.parts.sessions.test_steering import claude_code
from tests.parts.sessions.test_summaries import summary
from tests.waiting import eventually

ECHO = "[[fake:echo]]"
"""Has the agent tell its history."""


@asynccontextmanager
async def served(folder: Path, **settings: Any) -> AsyncIterator[AgentsClient]:
    async with fake_proxy(folder, fake_dialect="app-server", **settings) as proxy:
        yield AgentsClient(proxy)


async def new_session(client: AgentsClient, folder: Path, **more: Any) -> str:
    return (await client.post("/sessions", hosted(folder, **more)))["id"]  # type: ignore[no-any-return]


async def thread_of(client: AgentsClient, id: str) -> str | None:
    return (await client.ask("GET", f"/sessions/{id}")).headers.get("x-codex-thread")


async def history_of(client: AgentsClient, id: str, *texts: str) -> list[str]:
    """Sends messages, of which the last asks the agent for the texts of its history."""
    told = await client.turn(id, message(*texts[:-1], f"{texts[-1]} {ECHO}"))
    assert told[-2]["type"] == "agent.session.turn.completed", told[-2]
    said = json.loads(text_of(told[-3]["item"]))["history"]
    return [each["text"].removesuffix(f" {ECHO}") for each in said if each.get("role") == "user"]


async def test_later_turns_go_on_with_the_agents_own_session(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        assert await thread_of(client, id) is None
        assert await history_of(client, id, "one") == ["one"]
        thread = await thread_of(client, id)
        assert thread
        assert await history_of(client, id, "two", "three") == ["one", "two", "three"]
        assert await history_of(client, id, "four") == ["one", "two", "three", "four"]
        assert await thread_of(client, id) == thread


async def test_the_streams_and_changes_of_a_session_name_its_thread(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        await client.turn(id, message("one"))
        changed = await client.ask("POST", f"/sessions/{id}", {"metadata": {"a": "b"}})
        url = f"{client.proxy.url}/v1/agents/sessions/{id}/events"
        async with client.proxy.session.get(url, headers={"OpenAI-Beta": "agents=v1"}) as stream:
            named = [stream.headers["x-codex-thread"], changed.headers["x-codex-thread"]]
        assert named == [await thread_of(client, id)] * 2


async def test_a_session_of_another_key_names_no_thread(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}, fake_dialect="app-server") as proxy:
        one, two = AgentsClient(proxy, key_of("one")), AgentsClient(proxy, key_of("two"))
        id = await new_session(one, tmp_path)
        await one.turn(id, message("one"))
        assert await thread_of(one, id)
        answer = await two.ask("GET", f"/sessions/{id}")
        assert (answer.status, answer.headers.get("x-codex-thread")) == (404, None)


async def test_a_session_without_a_folder_has_no_thread(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        id = await client.idle_session()
        assert await thread_of(client, id) is None


async def test_a_thread_that_is_gone_is_replaced_by_one_with_the_whole_conversation(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        await history_of(client, id, "one")
        thread = await thread_of(client, id)
    async with served(tmp_path) as client:  # the fake agent's threads end with its process
        assert await thread_of(client, id) == thread
        assert await history_of(client, id, "two") == ["one", "two"]
        replaced = await thread_of(client, id)
        assert replaced not in (thread, None)
        assert await history_of(client, id, "three") == ["one", "two", "three"]
        assert await thread_of(client, id) == replaced


@pytest.mark.parametrize("change", [{"tools": [WEATHER]}, {"reasoning": {"effort": "low"}}])
async def test_only_what_a_thread_cannot_change_begins_another_one(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        await history_of(client, id, "one")
        thread = await thread_of(client, id)
        await client.post(f"/sessions/{id}", {"agent": change})
        assert await history_of(client, id, "two") == ["one", "two"]
        assert (await thread_of(client, id) == thread) is ("tools" not in change)


async def test_a_message_that_the_thread_did_not_take_reaches_it_with_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    async with served(tmp_path) as client:
        id = await new_session(client, folder)
        await history_of(client, id, "one")
        thread = await thread_of(client, id)
        folder.rmdir()
        told = await client.turn(id, message("two"))
        assert told[-3]["type"] == "agent.session.turn.failed"
        folder.mkdir()
        assert await history_of(client, id, "three") == ["one", "two", "three"]
        assert await thread_of(client, id) == thread


async def test_calls_of_mcp_servers_that_the_thread_has_not_seen_come_with_all_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    call = {"type": "mcp_call", "id": "mcp_1", "server_label": "weather", "name": "get", "arguments": "{}"}

    def with_call(entries: Any) -> list[dict[str, Any]]:
        items = input_items(entries)
        return [*items[:-1], {**call, "output": "Sunny.", "error": None}, *items[-1:]]

    async with served(tmp_path) as client:
        id = await new_session(client, folder)
        await history_of(client, id, "one")
        folder.rmdir()
        await client.turn(id, message("two"))
        folder.mkdir()
        monkeypatch.setattr(turn_requests, "input_items", with_call)
        assert await history_of(client, id, "three") == ["one", "two", "three"]


async def test_what_a_new_thread_is_given_ends_where_the_request_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the run has done and taken since then is added to it: read again, it would be there twice."""
    found = list[PreparedResponse]()
    next_request = TurnRequests.next

    async def noted(self: TurnRequests, *given: Any) -> PreparedResponse:
        found.append(await next_request(self, *given))
        return found[-1]

    monkeypatch.setattr(TurnRequests, "next", noted)
    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        for text in ("one", "two", "three"):
            await client.turn(id, message(text))
        replay = found[-2].replay
        assert isinstance(replay, WholeHistory)
        last = (await replay.items())[-1]
    assert isinstance(last, HistoryMessage)
    assert [part.text for part in last.parts if isinstance(part, TextPart)] == ["two"]


async def test_a_cancelled_turn_that_waited_lets_go_of_its_thread(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path, agent={"model": "codex-5", "tools": [WEATHER]})
        async with client.following(id) as reader:
            await client.send(id, message("[[fake:tool_call]]"))
            await reader.until("agent.session.requires_action")
            thread = await thread_of(client, id)
            await client.send(id, CANCEL)
            await reader.until("agent.session.idle")
        services = client.proxy.server.runs.services
        await eventually(
            lambda: not services.idle_sessions and not client.proxy.server.agent.processes().busy
        )
        assert (await history_of(client, id, "two"))[-1] == "two"
        assert await thread_of(client, id) == thread


# --- what other programs have done ----------------------------------------------------------------


def in_terminal(id: str, *texts: str, **more: Any) -> TurnElsewhere:
    """A turn that a terminal has run: each text of the user is answered by `ok`."""
    parts: list[Any] = []
    for place, text in enumerate(texts):
        item = f"{id}_{place}"
        answer = (ItemStarted(Message(item)), TextDelta(item, "ok"), ItemEnded(item))
        parts += [HistoryMessage("user", (TextPart(text),)), answer]
    return TurnElsewhere(**{"id": id, "stop": Stop.STOP, "parts": tuple(parts), **more})


async def test_what_was_done_in_a_terminal_is_a_turn_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, str]] = []

    async def elsewhere(id: str, conversation: str, known: str) -> tuple[TurnElsewhere, ...]:
        asked.append((id, conversation, known))
        found = (in_terminal("A", "one"), in_terminal("B", "two", stop=Stop.INTERRUPTED, started_at=5))
        return () if known else found

    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        await client.turn(id, message("first"))
        thread = await thread_of(client, id)
        monkeypatch.setattr(client.proxy.server.agent, "turns_elsewhere", elsewhere)
        assert await history_of(client, id, "last") == ["first", "last"], "the thread has the others already"
        assert await thread_of(client, id) == thread
        await client.turn(id, message("again"))
        assert asked == [(thread, id, ""), (thread, id, "B")]
        turns = await client.all(f"/sessions/{id}/turns")
        assert [turn["status"] for turn in turns] == [
            "completed",
            "completed",
            "cancelled",
            *["completed"] * 2,
        ]
        assert (turns[2]["created_at"], turns[1]["usage"]) == (5, None)
        items = await client.all(f"/sessions/{id}/items")
        assert [text_of(item) for item in items][2:6] == ["one", "ok", "two", "ok"]
        assert [item["turn_id"] for item in items][2:6] == [turns[1]["id"]] * 2 + [turns[2]["id"]] * 2
        assert await client.all(f"/sessions/{id}/turns/{turns[1]['id']}/items") == items[2:4]
        assert (await client.get(f"/sessions/{id}"))["usage"] is None


async def test_turns_of_a_terminal_are_replayed_to_a_new_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elsewhere(id: str, conversation: str, known: str) -> tuple[TurnElsewhere, ...]:
        return () if known else (in_terminal("A", "one"),)

    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        await client.turn(id, message("first"))
        monkeypatch.setattr(client.proxy.server.agent, "turns_elsewhere", elsewhere)
        await client.post(f"/sessions/{id}", {"agent": {"tools": [WEATHER]}})
        assert await history_of(client, id, "last") == ["first", "one", "last"]


async def fail(id: str, conversation: str, known: str) -> tuple[TurnElsewhere, ...]:
    """An agent that cannot say what was done."""
    raise Fault.of(FaultKind.UNAVAILABLE, "It does not answer.")


async def test_a_turn_begins_also_where_the_agent_cannot_say_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        await client.turn(id, message("first"))
        monkeypatch.setattr(client.proxy.server.agent, "turns_elsewhere", fail)
        assert await history_of(client, id, "last") == ["first", "last"]


async def test_long_turns_of_a_terminal_are_imported_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    import_turn = SessionState.import_turn

    async def elsewhere(id: str, conversation: str, known: str) -> tuple[TurnElsewhere, ...]:
        return () if known else (in_terminal("A", *"12"),)

    def noted(*given: Any) -> None:
        threads.append(threading.current_thread())
        import_turn(*given)

    async with served(tmp_path) as client:
        monkeypatch.setattr(agent_threads, "MANY_ENTRIES", 3)
        monkeypatch.setattr(SessionState, "import_turn", noted)
        monkeypatch.setattr(client.proxy.server.agent, "turns_elsewhere", elsewhere)
        id = await client.idle_session("first", **hosted(tmp_path))
        await summary(client, id)
        assert len(await client.all(f"/sessions/{id}/items")) == 6
    assert threads
    assert threading.main_thread() not in threads


async def test_what_was_done_in_a_terminal_is_there_when_the_summary_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def elsewhere(id: str, conversation: str, known: str) -> tuple[TurnElsewhere, ...]:
        asked.append(known)
        return () if known else (in_terminal("A", "one"),)

    async with served(tmp_path) as client:
        monkeypatch.setattr(client.proxy.server.agent, "turns_elsewhere", elsewhere)
        new = await new_session(client, tmp_path)
        await summary(client, new)
        assert asked == [], "it has no thread"
        id = await client.idle_session("first", **hosted(tmp_path))
        found = await summary(client, id)
        assert (found["status"], found["usage"]) == ("idle", None)
        items = await client.all(f"/sessions/{id}/items")
        assert [text_of(item) for item in items][2:] == ["one", "ok"]
        await summary(client, id)
        assert asked == [""], "the second look came too soon"
        monkeypatch.setattr(service, "LOOK_SECONDS", 0.0)
        await summary(client, id)
        assert asked == ["", "A"]
        assert await client.all(f"/sessions/{id}/items") == items


async def test_a_summary_is_read_also_where_the_agent_cannot_say_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as client:
        monkeypatch.setattr(client.proxy.server.agent, "turns_elsewhere", fail)
        id = await client.idle_session("first", **hosted(tmp_path))
        assert (await summary(client, id))["status"] == "idle"


async def test_a_summary_is_read_also_where_the_turns_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elsewhere(id: str, conversation: str, known: str) -> tuple[TurnElsewhere, ...]:
        return () if known else (in_terminal("A", "one"),)

    async def fail(*_: object, **more: object) -> None:
        raise Fault(LEASE_LOST)

    async with served(tmp_path) as client:
        monkeypatch.setattr(client.proxy.server.agent, "turns_elsewhere", elsewhere)
        monkeypatch.setattr(service, "LOOK_SECONDS", 0.0)
        id = await client.idle_session("first", **hosted(tmp_path))
        with monkeypatch.context() as patched:
            patched.setattr(SessionStore, "write", fail)
            assert (await summary(client, id))["status"] == "idle"
        assert len(await client.all(f"/sessions/{id}/items")) == 2
        await summary(client, id)
        items = await client.all(f"/sessions/{id}/items")
        assert [text_of(item) for item in items][2:] == ["one", "ok"], "they are found again"


async def test_only_the_agent_that_has_the_thread_names_the_command_that_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as client:
        id = await client.idle_session("first", **hosted(tmp_path))
        thread = await thread_of(client, id)
        assert (await summary(client, id))["resume"] == f"codex resume {thread}"
        monkeypatch.setattr(client.proxy.server.agent, "name", "another")
        assert (await summary(client, id))["resume"] is None


# --- deleting -------------------------------------------------------------------------------------


async def test_a_deleted_session_takes_all_of_its_threads_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []

    async def delete(id: str) -> None:
        deleted.append(id)

    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        await client.turn(id, message("one"))
        first = await thread_of(client, id)
        await client.post(f"/sessions/{id}", {"agent": {"tools": [WEATHER]}})
        await client.turn(id, message("two"))
        second = await thread_of(client, id)
        monkeypatch.setattr(client.proxy.server.agent, "delete_session", delete)
        await client.delete(f"/sessions/{id}")
        assert deleted == [first, second]


async def test_a_session_that_is_open_in_a_terminal_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(id: str) -> None:
        raise Fault(OPEN_ELSEWHERE)

    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        await client.turn(id, message("one"))
        with monkeypatch.context() as patched:
            patched.setattr(client.proxy.server.agent, "delete_session", refuse)
            answer = await client.ask("DELETE", f"/sessions/{id}")
        assert (answer.status, answer.error["type"]) == (409, "conflict_error")
        assert "terminal" in answer.error["message"]
        await client.delete(f"/sessions/{id}")


async def test_a_session_is_deleted_also_where_its_thread_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(id: str) -> None:
        raise Fault.of(FaultKind.SPAWN_FAILED, "The agent is missing.")

    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        await client.turn(id, message("one"))
        monkeypatch.setattr(client.proxy.server.agent, "delete_session", fail)
        await client.delete(f"/sessions/{id}")


async def test_the_agent_forgets_a_deleted_session_whose_thread_is_gone_already(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        await client.turn(id, message("one"))
        thread = await thread_of(client, id)
        assert thread
        await client.proxy.server.agent.delete_session(thread)
        await client.delete(f"/sessions/{id}")


def count_entries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets how many items are read from the store, for each time."""
    counts: list[int] = []
    page = SessionStore.page

    async def counted(self: SessionStore, owner: str, kind: Any, *args: Any, **more: Any) -> Any:
        found = await page(self, owner, kind, *args, **more)
        if kind is ENTRY:
            counts.append(len(found.items))
        return found

    monkeypatch.setattr(SessionStore, "page", counted)
    return counts


async def test_a_long_session_reads_no_more_for_a_turn_than_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, read = count_entries(monkeypatch), list[int]()
    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        for turn in range(6):
            counts.clear()
            await client.turn(id, message(f"{turn}"))
            await eventually(lambda: not in_memory(client.proxy))
            read.append(sum(counts))
        assert await history_of(client, id, "last") == [*"012345", "last"]
    assert len(set(read[1:])) == 1, read


async def test_a_turn_that_waited_for_results_goes_on_in_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, read = count_entries(monkeypatch), list[int]()
    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path, agent={"model": "codex-5", "tools": [WEATHER]})
        threads = set[str | None]()
        for _ in range(4):
            counts.clear()
            await client.turn(id, message("[[fake:tool_call]]"))
            await eventually(lambda: not in_memory(client.proxy))
            read.append(sum(counts))
            threads.add(await thread_of(client, id))
        said = await history_of(client, id, "last")
    assert said == [*["[[fake:tool_call]]"] * 4, "last"]
    assert len(threads) == 1
    assert len(set(read[1:])) == 1, read


async def test_of_the_threads_that_could_not_go_on_only_the_newest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_threads, "MAX_THREADS", 2)
    deleted, threads = list[str](), list[str]()

    async def delete(id: str) -> None:
        deleted.append(id)
        if len(deleted) == 1:
            raise Fault.of(FaultKind.CONFLICT, "Another program uses it.")

    async with served(tmp_path) as client:
        monkeypatch.setattr(client.proxy.server.agent, "delete_session", delete)
        id = await new_session(client, tmp_path)
        for turn in range(4):
            await client.post(f"/sessions/{id}", {"agent": {"tools": [] if turn % 2 else [WEATHER]}})
            await client.turn(id, message(f"{turn}"))
            threads.append(await thread_of(client, id) or "")
            await eventually(lambda: not in_memory(client.proxy))
        assert deleted == [threads[0], *threads[:2]], "one that was in use is deleted later"
        assert await history_of(client, id, "last") == [*"0123", "last"]
        await client.ask("DELETE", f"/sessions/{id}")
        assert deleted == [threads[0], *threads]


async def test_a_process_that_waits_for_the_next_turn_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[str]()
    first_session = RunServices.first_session

    async def noted(self: RunServices, *given: Any) -> Any:
        found = await first_session(self, *given)
        opened.append(type(found[1]).__name__)
        return found

    monkeypatch.setattr(RunServices, "first_session", noted)
    async with claude_code(tmp_path, {}) as proxy:
        client = AgentsClient(proxy)
        id = (await client.post("/sessions", hosted(tmp_path, agent={"model": "opus"}, input="one")))["id"]
        await eventually(lambda: not in_memory(proxy))
        for text in ("two", "three", "four"):
            await client.turn(id, message(text))
            await eventually(lambda: not in_memory(proxy))
    assert opened == ["AgentSession", *["ReusedSession"] * 3]
