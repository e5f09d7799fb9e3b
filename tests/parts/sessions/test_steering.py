"""Messages that come while the agent works on a turn: a part of that turn where the agent takes them, and else the next
one; each of them once, in their order, and never lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from codex_proxy.process.child import Child
from tests.http.claude import claude_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.parts.sessions.driving import CANCEL, TURN_ENDS, AgentsClient, Reader, message, result, text_of
from tests.parts.sessions.states import short
from tests.parts.sessions.test_races import in_memory
from tests.parts.sessions.test_restarts import served_after_kill, until_idle
from tests.pictures import PIXEL
from tests.waiting import eventually

WORK = "[[fake:work hold=1]] Do it."
TALK = "[[fake:count n=20 hold=1]] Tell me."
YES = "[[fake:text say=Yes.]] Shorter."


class Serving(Protocol):
    def __call__(
        self, folder: Path, environment: dict[str, str], **settings: Any
    ) -> AbstractAsyncContextManager[Proxy]: ...


class Steered:
    """A client of a server whose agent takes messages while it works, and waits until `go` is called."""

    def __init__(self, proxy: Proxy, folder: Path) -> None:
        self.client = AgentsClient(proxy)
        self.proxy = proxy
        self._folder = folder

    def go(self) -> None:
        (self._folder / "go").touch()

    def creation(self, text: str, **more: Any) -> AbstractAsyncContextManager[Reader]:
        folder = {"type": "self_hosted", "workspace_directory": str(self._folder)}
        return self.client.creation(text, environment=folder, **more)

    async def said(self, session: str) -> list[tuple[int, str]]:
        """The texts of a session's items, or their types, each with the number of its turn."""
        turns = [turn["id"] for turn in await self.client.all(f"/sessions/{session}/turns")]
        items = await self.client.all(f"/sessions/{session}/items")
        return [
            (turns.index(item["turn_id"]) + 1, text_of(item) if item["type"] == "message" else item["type"])
            for item in items
        ]


def app_server(folder: Path, environment: dict[str, str], **settings: Any) -> Any:
    return fake_proxy(folder, environment, fake_dialect="app-server", **settings)


def claude_code(folder: Path, environment: dict[str, str], **settings: Any) -> Any:
    names = ",".join(environment)
    return claude_proxy(folder, environment, child_env=names, sandbox="danger-full-access", **settings)


class Given:
    """The messages that agents were given while they work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        write = Child.write

        def counted(child: Child, data: bytes) -> None:
            self.count += data.count(b'"turn/steer"') + data.count(b'"uuid":')
            write(child, data)

        monkeypatch.setattr(Child, "write", counted)

    async def until(self, count: int) -> None:
        await eventually(lambda: self.count == count)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    return Given(monkeypatch)


@asynccontextmanager
async def serving(serve: Serving, folder: Path, **settings: Any) -> AsyncIterator[Steered]:
    async with serve(folder, {"STREAM_RELEASE_FILE": str(folder / "go")}, **settings) as proxy:
        yield Steered(proxy, folder)


AGENTS = pytest.mark.parametrize("serve", [app_server, claude_code])


async def until_work(reader: Reader) -> str:
    """Reads until a command runs. Returns the session's id."""
    while True:
        event = await reader.until("agent.session.turn.item.added")
        if event["item"]["type"] == "command_execution":
            return str(event["session_id"])


async def until_talk(reader: Reader) -> str:
    return str((await reader.until("agent.session.turn.output_text.delta"))["session_id"])


# --- a part of the turn -----------------------------------------------------------------------------


@AGENTS
async def test_messages_while_a_command_runs_are_taken_behind_it(
    serve: Serving, tmp_path: Path, given: Given
) -> None:
    async with serving(serve, tmp_path) as steered:
        async with steered.creation(WORK) as reader:
            id = await until_work(reader)
            await steered.client.send(id, message("Be brief."))
            await steered.client.send(id, message("One.", YES))
            await given.until(2)
            assert len(await steered.said(id)) == 1, "what was not taken is in no list"
            seen = len(reader.events)
            steered.go()
            told = (await reader.rest(), reader.events)[1][seen:]
        kinds = [short(event) for event in told if "delta" not in event and "done" not in event["type"]]
        assert kinds == [
            *("turn.item.added message",) * 4,
            *("turn.content_part.added", "turn.completed", "idle"),
        ]
        added = [event for event in told if short(event) == "turn.item.added message"]
        assert [event["output_index"] for event in added] == [None, None, None, 1]
        assert await steered.said(id) == [
            (1, WORK),
            (1, "command_execution"),
            *((1, text) for text in ("Be brief.", "One.", YES, "Yes.")),
        ]


async def test_a_message_during_a_text_cuts_it(tmp_path: Path) -> None:
    async with serving(app_server, tmp_path) as steered:
        async with steered.creation(TALK) as reader:
            id = await until_talk(reader)
            await steered.client.send(id, message(YES))
            await reader.rest()
        items = await steered.client.all(f"/sessions/{id}/items")
        assert [(text_of(item), item["status"]) for item in items] == [
            (TALK, "completed"),
            ("..0 ", "incomplete"),
            (YES, "completed"),
            ("Yes.", "completed"),
        ]


@AGENTS
async def test_the_next_turn_is_given_the_items_in_the_order_of_the_log(
    serve: Serving, tmp_path: Path, given: Given
) -> None:
    async with serving(serve, tmp_path) as steered:
        async with steered.creation(WORK) as reader:
            id = await until_work(reader)
            await steered.client.send(id, message(YES))
            await given.until(1)
            steered.go()
            await reader.rest()
        events = await steered.client.turn(id, message("[[fake:echo]]"))
        [echo] = [event["item"] for event in events if event["type"].endswith("item.done")]
        history = text_of(echo)
        assert history.index("Do it.") < history.index("Shorter.") < history.index("fake:echo")
        assert history.count("Shorter.") == 1


@AGENTS
async def test_a_message_that_came_before_the_result_of_a_call_is_taken_behind_it(
    serve: Serving, tmp_path: Path
) -> None:
    async with serving(serve, tmp_path) as steered:
        async with steered.creation("[[fake:tool_call]]") as reader:
            waiting = (await reader.until("agent.session.requires_action"))["session"]
            id, [call] = waiting["id"], waiting["required_actions"]
            await steered.client.send(id, message(YES))
            assert [turn for turn, _ in await steered.said(id)] == [1, 1]
            await steered.client.send(id, result(call))
            await reader.rest()
        texts = await steered.said(id)
        assert texts[-2:] == [(1, YES), (1, "Yes.")]
        assert [text for _, text in texts].count(YES) == 1


async def test_an_image_comes_with_its_message(tmp_path: Path, given: Given) -> None:
    async with serving(app_server, tmp_path) as steered:
        async with steered.creation(WORK) as reader:
            id = await until_work(reader)
            pictured = message("[[fake:echo]]")
            pictured["input"][0]["content"].append({"type": "input_image", "image_url": PIXEL})
            await steered.client.send(id, pictured)
            pictured["input"][0]["content"][1]["image_url"] = "data:image/png;base64,AAAA"
            await steered.client.refused(id, pictured)
            await given.until(1)
            steered.go()
            await reader.rest()
        last = (await steered.client.all(f"/sessions/{id}/items"))[-1]
        assert "image" in text_of(last)


# --- the next turn ------------------------------------------------------------------------------------


async def test_claude_code_begins_the_next_turn_with_a_message_that_came_during_its_text(
    tmp_path: Path,
) -> None:
    async with serving(claude_code, tmp_path) as steered:
        async with steered.creation(TALK) as reader:
            id = await until_talk(reader)
            await steered.client.send(id, message(YES))
            steered.go()
            await reader.until("agent.session.turn.completed")
            await reader.rest()
        assert [(turn, text) for turn, text in await steered.said(id) if "..0" not in text] == [
            *((1, TALK), (2, YES), (2, "Yes.")),
        ]


async def test_an_answer_that_follows_a_schema_is_not_interrupted(tmp_path: Path) -> None:
    schema = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    agent = {"model": "codex-5", "text": schema}
    async with serving(app_server, tmp_path) as steered:
        async with steered.creation("[[fake:text say='{}' hold=1]]", agent=agent) as reader:
            id = (await reader.until("agent.session.turn.in_progress"))["session_id"]
            await steered.client.send(id, message("[[fake:text say='{}']]"))
            steered.go()
            await reader.rest()
        assert [turn for turn, _ in await steered.said(id)] == [1, 1, 2, 2]


@AGENTS
async def test_messages_that_a_cancelled_turn_has_not_taken_are_not_lost(
    serve: Serving, tmp_path: Path, given: Given
) -> None:
    async with serving(serve, tmp_path) as steered:
        async with steered.creation(WORK) as reader:
            id = await until_work(reader)
            await steered.client.send(id, message("One."))
            await steered.client.send(id, message("Two."))
            await given.until(2)
            await steered.client.send(id, CANCEL, message("Three."))
            await reader.until("agent.session.turn.cancelled")
            steered.go()
            await reader.rest()
        await until_idle(steered.client, id)
        texts = [(turn, text) for turn, text in await steered.said(id) if text in ("One.", "Two.", "Three.")]
        assert [text for _, text in texts] == ["One.", "Two.", "Three."]
        assert texts[0] == (2, "One.")


async def test_messages_that_the_agent_has_not_taken_when_the_server_dies_are_the_next_turns(
    tmp_path: Path, given: Given
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with serving(app_server, tmp_path / "one") as steered, steered.client.creation(WORK) as reader:
        id = await until_work(reader)
        await steered.client.send(id, message("One."))
        await steered.client.send(id, message("Two."))
        await given.until(2)
        async with served_after_kill(tmp_path / "one", tmp_path / "two") as client:
            await until_idle(client, id)
            items = await client.all(f"/sessions/{id}/items")
            said = [text_of(item) for item in items if item.get("role") == "user"]
            assert said == [WORK, "One.", "Two."]
            turns = await client.all(f"/sessions/{id}/turns")
            assert [turn["status"] for turn in turns] == ["failed", "completed", "completed"]


# --- at the moment of the turn's end ------------------------------------------------------------------


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.exhaustive)])
async def test_a_message_at_the_moment_of_the_turns_end_is_taken_once(tmp_path: Path, count: int) -> None:
    chance = random.Random(count)
    first, second = "[[fake:text say='One two three.']] First.", "[[fake:text say=Four.]] Second."

    async def once(steered: Steered) -> None:
        after = chance.choice(("item.added", "content_part.added", "output_text.done", "item.done"))
        yields = chance.randrange(20)
        async with steered.creation(first) as reader:
            await reader.until(f"agent.session.turn.{after}", *TURN_ENDS)
            for _ in range(yields):
                await asyncio.sleep(0)
            id = reader.events[0]["session"]["id"]
            await steered.client.send(id, message(second))
        await until_idle(steered.client, id)
        said = await steered.said(id)
        assert [text for _, text in said].count(second) == 1
        assert said[-1][1] == "Four."
        assert said[0] == (1, first)
        turns = await steered.client.all(f"/sessions/{id}/turns")
        assert {turn["status"] for turn in turns} == {"completed"}
        await eventually(lambda: ("local", id) not in in_memory(steered.proxy))

    async with serving(app_server, tmp_path) as steered:
        for _ in range(count // 20):
            await asyncio.gather(*(once(steered) for _ in range(20)))
