"""Subagents of a session: what its readers learn of them, and what is kept of their turns and items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.access.keyed import key_of, keyed_proxy
from tests.http.claude import claude_proxy
from tests.http.serving import fake_proxy
from tests.parts.sessions.driving import CANCEL, WEATHER, AgentsClient, message, text_of
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.test_threads import served
from tests.parts.sessions.test_walks import Walk

ITEM_DONE = "agent.session.turn.item.done"
SUBAGENT = "agent.session.subagent."
SLOW = "[[fake:subagent_left args='[[fake:text n=5 delay=50]]']]"
ENDLESS = "[[fake:subagent_left args='[[fake:count n=100000 delay=20]]']]"

SCENARIOS = (
    *("text", "tool_call", "error_500", "subagent", "subagent_left", "subagent_resumed delay=20"),
    "subagent_left args='[[fake:count n=20 delay=10]]'",
    "subagent args='[[fake:count n=10 delay=10]]'",
    "subagent args='[[fake:error_500]]'",
    "subagent args='[[fake:text misbehave=crash]]'",
    "subagent args='[[fake:approval]]'",
)
ENDED = {"completed", "failed", "cancelled"}


def enabled(folder: Path, input: str = "", **more: Any) -> dict[str, Any]:
    """A session that may have subagents."""
    given = {"input": input} if input else {}
    body = hosted(folder, **given, **more)
    body["agent"] = body["agent"] | {"multi_agent": {"enabled": True}}
    return body


async def whole_stream(client: AgentsClient, folder: Path, input: str) -> list[dict[str, Any]]:
    session = (await client.post("/sessions", enabled(folder)))["id"]
    return await client.turn(session, message(input))


def told_of(events: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (each["type"].removeprefix(SUBAGENT), each["subagent"])
        for each in events
        if each["type"].startswith(SUBAGENT)
    ]


def items_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["item"] for event in events if event["type"] == ITEM_DONE]


async def turns_of(client: AgentsClient, subagent: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The status of each turn of a subagent, with the texts of its items."""
    path = f"/sessions/{subagent['session_id']}/subagents/{subagent['id']}"
    found: list[tuple[str, list[str]]] = []
    whole: list[Any] = []
    for turn in await client.all(f"{path}/turns"):
        assert await client.get(f"{path}/turns/{turn['id']}") == turn
        items = await client.all(f"{path}/turns/{turn['id']}/items")
        found.append((turn["status"], [text_of(item) for item in items if item["type"] == "message"]))
        whole += items
    assert await client.all(f"{path}/items") == whole
    return found


async def test_a_subagent_is_told_and_its_turns_are_kept(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        session = await client.post("/sessions", enabled(tmp_path))
        assert session["agent"]["multi_agent"] == {"enabled": True, "max_concurrent_subagents": 6}
        events = await client.turn(session["id"], message("[[fake:subagent]]"))
        (first, subagent), (last, closed) = told_of(events)
        assert (first, subagent["status"], last, closed["status"]) == (
            "created",
            "active",
            "closed",
            "closed",
        )
        assert (subagent["name"], subagent["parent_agent_id"]) == ("Ada", session["agent"]["id"])
        assert subagent["instructions"] == [{"type": "output_text", "text": "Say hello."}]
        assert await client.all(f"/sessions/{session['id']}/subagents") == [closed]
        assert await client.get(f"/sessions/{session['id']}/subagents/{subagent['id']}") == closed
        assert [status for status, _ in await turns_of(client, subagent)] == ["completed", "completed"]
        asked = [texts[0] for _, texts in await turns_of(client, subagent)]
        assert asked == ["Say hello.", "Say it again."]
        items = items_of(events)
        assert [item["type"] for item in items] == [
            *("create_subagent_call", "wait_for_subagents_call", "send_subagent_input_call"),
            *("wait_for_subagents_call", "close_subagent_call", "message"),
        ]
        assert items[1]["recipient_agent_ids"] == [subagent["id"]]
        assert {item["status"] for item in items} == {"completed"}


async def test_what_a_subagent_does_is_not_among_the_sessions_own(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        events = await whole_stream(client, tmp_path, "[[fake:subagent]]")
        subagent = told_of(events)[0][1]
        path = f"/sessions/{subagent['session_id']}"
        [turn] = await client.all(f"{path}/turns")
        assert {event["turn_id"] for event in events if "turn_id" in event} == {turn["id"]}
        listed = await client.all(f"{path}/items")
        assert {item["turn_id"] for item in listed} == {turn["id"]}
        theirs = (await client.all(f"{path}/subagents/{subagent['id']}/turns"))[0]
        assert theirs["subagent_id"] == subagent["id"]
        for place in (f"{path}/turns/{theirs['id']}", f"{path}/turns/{theirs['id']}/items"):
            assert (await client.ask("GET", place)).status == 404
        other = f"{path}/subagents/{subagent['id']}/turns/{turn['id']}"
        assert (await client.ask("GET", other)).status == 404
        assert turn["usage"]["total_tokens"] == 3 * 120  # of its own model calls
        session = await client.get(path)
        assert session["usage"] == turn["usage"]


async def test_a_turn_ends_when_its_subagents_have_ended_their_turns(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        events = await whole_stream(client, tmp_path, SLOW)
        kinds = [event["type"].removeprefix("agent.session.") for event in events]
        assert kinds.index("turn.item.done") < kinds.index("subagent.closed") < kinds.index("turn.completed")
        [(status, texts)] = await turns_of(client, told_of(events)[0][1])
        assert (status, texts[1]) == ("completed", "word0 word1 word2 word3 word4 ")


async def test_a_cancel_ends_the_turns_of_the_subagents(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        session = (await client.post("/sessions", enabled(tmp_path)))["id"]
        async with client.following(session) as reader:
            await client.send(session, message(ENDLESS))
            await reader.until("agent.session.subagent.created")
            await client.send(session, CANCEL)
            await reader.until("agent.session.idle")
        [(_, subagent), (last, _)] = told_of(reader.events)
        assert last == "closed"
        assert reader.events[-2]["type"] == "agent.session.turn.cancelled"
        assert [status for status, _ in await turns_of(client, subagent)] == ["cancelled"]
        events = await client.turn(session, message("Hello."))  # nothing of it comes up again
        assert told_of(events) == []


async def test_a_subagent_is_opened_again_for_another_task(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        events = await whole_stream(client, tmp_path, "[[fake:subagent_resumed]]")
        told = told_of(events)
        assert [kind for kind, _ in told] == ["created", "closed", "active", "closed"]
        assert len({subagent["id"] for _, subagent in told}) == 1
        assert (told[2][1]["status"], told[2][1]["closed_at"]) == ("active", None)
        assert len(await turns_of(client, told[0][1])) == 2


async def test_what_a_subagent_asks_for_is_declined(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        events = await whole_stream(client, tmp_path, "[[fake:subagent args='[[fake:approval]]']]")
        assert events[-2]["type"] == "agent.session.turn.completed"
        subagent = told_of(events)[0][1]
        items = await client.all(f"/sessions/{subagent['session_id']}/subagents/{subagent['id']}/items")
        commands = [item for item in items if item["type"] == "command_execution"]
        assert {item["status"] for item in commands} == {"failed"}
        assert len(commands) == 2


async def test_a_subagent_whose_turn_fails_does_not_fail_its_parents(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        events = await whole_stream(client, tmp_path, "[[fake:subagent args='[[fake:error_500]]']]")
        assert events[-2]["type"] == "agent.session.turn.completed"
        path = f"/sessions/{events[0]['session_id']}/subagents"
        [subagent] = await client.all(path)
        turns = await client.all(f"{path}/{subagent['id']}/turns")
        assert [(turn["status"], bool(turn["error"])) for turn in turns] == [("failed", True)] * 2


async def test_a_process_that_dies_ends_the_turns_of_the_subagents(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        crash = "[[fake:subagent args='[[fake:text misbehave=crash at=2]]']]"
        events = await whole_stream(client, tmp_path, crash)
        assert events[-3]["type"] == "agent.session.turn.failed"
        subagent = told_of(events)[0][1]
        assert [kind for kind, _ in told_of(events)] == ["created", "closed"]
        assert [status for status, _ in await turns_of(client, subagent)] == ["cancelled"]


async def test_a_restart_closes_the_subagents_of_a_turn(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        session = (await client.post("/sessions", enabled(tmp_path)))["id"]
        async with client.following(session) as reader:
            await client.send(session, message(ENDLESS))
            await reader.until("agent.session.subagent.created")
    async with served(tmp_path) as client:
        [subagent] = await client.all(f"/sessions/{session}/subagents")
        assert subagent["status"] == "closed"
        assert [status for status, _ in await turns_of(client, subagent)] == ["cancelled"]


@pytest.mark.parametrize(
    "path", ["", "/{a}", "/{a}/items", "/{a}/turns", "/{a}/turns/{t}", "/{a}/turns/{t}/items"]
)
async def test_another_key_sees_no_subagents(tmp_path: Path, path: str) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}, fake_dialect="app-server") as proxy:
        one, two = AgentsClient(proxy, key_of("one")), AgentsClient(proxy, key_of("two"))
        events = await whole_stream(one, tmp_path, "[[fake:subagent]]")
        subagent = told_of(events)[0][1]
        place = f"/sessions/{subagent['session_id']}/subagents"
        turn = (await one.all(f"{place}/{subagent['id']}/turns"))[0]["id"]
        asked = place + path.format(a=subagent["id"], t=turn)
        assert (await one.ask("GET", asked)).status == 200
        answer = await two.ask("GET", asked)
        assert (answer.status, answer.error["code"]) == (404, "not_found_error")
        own = (await two.post("/sessions", enabled(tmp_path)))["id"]
        if path:  # nor through a session of its own
            asked = asked.replace(subagent["session_id"], own)
            assert (await two.ask("GET", asked)).status == 404


async def test_the_lists_of_subagents_have_their_own_limits(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        events = await whole_stream(client, tmp_path, "[[fake:subagent]]")
        subagent = told_of(events)[0][1]
        path = f"/sessions/{subagent['session_id']}/subagents"
        for place in (path, f"{path}/{subagent['id']}/turns"):
            answer = await client.ask("GET", f"{place}?limit=0")
            assert (answer.status, answer.error["message"]) == (400, "limit must be between 1 and 100")
            answer = await client.ask("GET", f"{place}?after=none")
            assert (answer.status, answer.error["message"]) == (400, "Invalid resource ID in `after`")
        answer = await client.ask("GET", f"{path}/{subagent['id']}/items?after=none")
        assert (answer.status, answer.error["message"]) == (400, "Invalid session item ID in `after`")
        page = await client.get(f"{path}/{subagent['id']}/items?limit=0")
        assert (len(page["data"]), page["has_more"]) == (1, True)
        for unknown in ("none", subagent["session_id"]):
            assert (await client.ask("GET", f"{path}/{unknown}")).status == 404


async def test_a_subagent_is_found_in_its_own_session_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        events = await whole_stream(client, tmp_path, "[[fake:subagent]]")
        subagent = told_of(events)[0][1]
        other = (await client.post("/sessions", enabled(tmp_path)))["id"]
        for session, status in ((subagent["session_id"], 200), (other, 404)):
            answer = await client.ask("GET", f"/sessions/{session}/subagents/{subagent['id']}")
            assert answer.status == status


async def test_deleting_a_session_removes_its_subagents(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        events = await whole_stream(client, tmp_path, "[[fake:subagent]]")
        subagent = told_of(events)[0][1]
        await client.delete(f"/sessions/{subagent['session_id']}")
        path = f"/sessions/{subagent['session_id']}/subagents/{subagent['id']}"
        assert (await client.ask("GET", path)).status == 404


async def test_a_session_whose_agent_has_no_subagents_is_refused(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:  # the agent of the oldest protocol
        answer = await AgentsClient(proxy).ask("POST", "/sessions", enabled(tmp_path, "Hello."))
        assert (answer.status, answer.error["param"]) == (400, "agent.multi_agent.enabled")
        assert answer.error["code"] == "unsupported_by_agent"
    async with served(tmp_path) as client:
        body = enabled(tmp_path, "Hello.") | {"environment": {"type": "none"}}
        answer = await client.ask("POST", "/sessions", body)
        assert (answer.status, answer.error["code"]) == (400, "unsupported_by_agent")


async def test_a_saved_agent_keeps_how_many_subagents_it_may_have(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        given = {"enabled": True, "max_concurrent_subagents": 3}
        agent = await client.post("", {"model": "codex-5", "multi_agent": given})
        assert agent["multi_agent"] == given
        off = await client.post(f"/{agent['id']}", {"multi_agent": None})
        assert off["multi_agent"] == {"enabled": False, "max_concurrent_subagents": None}


async def test_a_task_of_claude_code_is_a_subagent(tmp_path: Path) -> None:
    async with claude_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        events = await whole_stream(client, tmp_path, "[[fake:subagent]]")
        (first, subagent), (last, closed) = told_of(events)
        assert (first, last, subagent["name"], closed["status"]) == ("created", "closed", "Ada", "closed")
        [made, answer] = items_of(events)
        assert (made["type"], made["status"], answer["type"]) == (
            "create_subagent_call",
            "completed",
            "message",
        )
        assert made["content"] == [{"type": "output_text", "text": "Say hello."}]
        assert await turns_of(client, subagent) == [("completed", ["Say hello.", "Hello."])]
        [turn] = await client.all(f"/sessions/{subagent['session_id']}/subagents/{subagent['id']}/turns")
        assert turn["usage"] is None  # it tells none


class SubagentsWalk(Walk):
    """A walk through a session whose agent makes subagents."""

    async def __aenter__(self) -> SubagentsWalk:
        await self._serve()
        self.said.append(self._text())
        body = enabled(self._folder, self.said[0])
        body["agent"]["tools"] = [WEATHER]
        self.id = (await self.client.post("/sessions", body))["id"]
        await self.open_reader()
        return self

    async def _serve(self) -> None:
        self._folder.mkdir(exist_ok=True)
        serving = fake_proxy(self._folder, fake_dialect="app-server", workdir_roots=str(self._folder.parent))
        self.client = AgentsClient(await self._stack.enter_async_context(serving))

    def _text(self) -> str:
        return f"[[fake:{self._random.choice(SCENARIOS)}]] This is message {next(self._numbers)}."

    async def check(self) -> None:
        path = f"/sessions/{self.id}/subagents"
        for subagent in await self.client.all(path):
            assert subagent["status"] == "closed"  # for the session rests
            assert {status for status, _ in await turns_of(self.client, subagent)} <= ENDED
            items = await self.client.all(f"{path}/{subagent['id']}/items")
            assert not [item for item in items if item.get("status") == "in_progress"]
        await super().check()


@pytest.mark.sampled(every=20)
@pytest.mark.parametrize("seed", range(40))
async def test_a_random_walk_leaves_no_subagent_at_work(tmp_path: Path, seed: int) -> None:
    async with SubagentsWalk(seed, tmp_path / "first") as walk:
        for _ in range(12):
            await walk.step()
        await walk.finish()
        await walk.check()
