"""Sessions whose agent has a toolset: nothing that is asked about runs before it is allowed, and once after."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.faults import Fault
from codex_proxy.core.turn import Toolset
from codex_proxy.parts.claude_code.claude_dialect import DENIED_BY_CLIENT
from codex_proxy.parts.sessions.approvals import Choice, request_id_of
from tests.http.claude import claude_proxy
from tests.http.serving import fake_proxy
from tests.parts.sessions.approving import ASKING, KEY, answer_to
from tests.parts.sessions.driving import CANCEL, WEATHER, AgentsClient, Reader, message
from tests.parts.sessions.test_approvals import WAITS, with_keys
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.toolsets import answer, calls, give_toolset

LATE = r"ended without an answer|another answer"
ASKED = Toolset(("read",), ("bash", "write"))


@asynccontextmanager
async def asking(
    folder: Path, toolset: Toolset = ASKED, **more: Any
) -> AsyncIterator[tuple[AgentsClient, str]]:
    """A client of a server with the fake Claude Code, and a session with this toolset."""
    given: dict[str, Any] = {"sandbox": "danger-full-access", "api_key": KEY, **more}
    async with claude_proxy(folder, **given) as proxy:
        client = AgentsClient(proxy, KEY)
        body = hosted(Path(proxy.server.settings.workdir), agent={"model": "codex-5"})
        id = (await client.post("/sessions", body))["id"]
        await give_toolset(proxy.server, id, toolset)
        yield client, id


def ended(events: list[dict[str, Any]]) -> list[tuple[str, str, Any]]:
    """The commands and changes that have ended, with status and output."""
    done = [event["item"] for event in events if event["type"] == "agent.session.turn.item.done"]
    return [
        (item["command"], item["status"], item["output"])
        for item in done
        if item["type"] == "command_execution"
    ]


async def begun(client: AgentsClient, id: str, reader: Reader) -> tuple[dict[str, Any], list[str]]:
    """Begins a turn with three calls. Returns the first question, and the ids of all three."""
    await client.send(id, message("[[fake:toolset]]"))
    (action,) = (await reader.until(WAITS))["session"]["required_actions"]
    told = await calls(client.proxy.server, id)
    return action, [request_id_of(entry.id) for entry, _ in told]


async def test_calls_of_a_step_are_told_at_once_and_asked_about_one_after_the_other(tmp_path: Path) -> None:
    async with asking(tmp_path) as (client, id), client.following(id) as reader:
        action, ids = await begun(client, id, reader)
        told = await calls(client.proxy.server, id)
        uses = [events[0].item.details.use for _, events in told]
        assert [(use.name, use.permission) for use in uses] == [
            (name, "always_ask") for name in ("bash", "bash", "write")
        ]
        for number, decision in enumerate(("deny", "approve", "approve")):
            assert action["request_id"] == ids[number]
            assert len(ended(reader.events)) == number, "the next is asked about when the one before has run"
            await client.send(id, answer_to(action, decision))
            if number < 2:
                (action,) = (await reader.until(WAITS))["session"]["required_actions"]
        await reader.until("agent.session.idle")
        assert ended(reader.events) == [
            ("make one", "failed", DENIED_BY_CLIENT),
            ("make two", "completed", "two\n"),
            ("apply_patch new.txt", "completed", ended(reader.events)[2][2]),
        ]


async def test_answers_in_any_order_before_the_agent_asks_are_given_when_it_asks(tmp_path: Path) -> None:
    async with asking(tmp_path) as (client, id), client.following(id) as reader:
        _, (one, two, three) = await begun(client, id, reader)
        server = client.proxy.server
        await answer(server, id, three, "approve")
        await answer(server, id, two, "deny", "Not this one.")
        await answer(server, id, two, "deny", "Not this one.")  # the same again
        with pytest.raises(Fault, match="has another answer already"):
            await answer(server, id, two, "deny")
        await answer(server, id, one, "approve")
        told = []
        async for event in reader:
            told.append(event["type"])
            if event["type"] == "agent.session.idle":
                break
        assert WAITS not in told, "the agent has waited for nobody"
        assert [status for _, status, _ in ended(reader.events)] == ["completed", "failed", "completed"]
        assert ended(reader.events)[1][2] == "Not this one."


async def test_of_two_early_answers_at_once_one_wins(tmp_path: Path) -> None:
    async with asking(tmp_path) as (client, id), client.following(id) as reader:
        _, (one, two, three) = await begun(client, id, reader)
        server = client.proxy.server
        found = await asyncio.gather(
            *(answer(server, id, two, choice) for choice in ("approve", "deny")), return_exceptions=True
        )
        assert [type(each) for each in found] in ([type(None), Fault], [Fault, type(None)])
        for each in (one, three):
            await answer(server, id, each, "approve")
        await reader.until("agent.session.idle")
        status = "completed" if found[0] is None else "failed"
        assert [each[1] for each in ended(reader.events)] == ["completed", status, "completed"]


async def test_only_what_the_toolset_asks_about_is_asked_about(tmp_path: Path) -> None:
    async with asking(tmp_path, Toolset(("bash",), ("write",))) as (client, id):
        async with client.following(id) as reader:
            action, _ = await begun(client, id, reader)
            assert action["request"]["name"] == "apply_patch"
            assert [command for command, _, _ in ended(reader.events)] == ["make one", "make two"]
            await client.send(id, answer_to(action))
            await reader.until("agent.session.idle")
        await give_toolset(client.proxy.server, id, Toolset(("bash", "write")))
        told = await client.turn(id, message("[[fake:toolset]]"))
        assert WAITS not in [event["type"] for event in told]


async def test_what_the_agent_asks_about_by_itself_runs_at_once_where_the_tool_is_allowed(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path, Toolset(("bash",), ("write",))) as (client, id):
        told = await client.turn(id, message("[[fake:approval]]"))
        assert WAITS not in [event["type"] for event in told]
        assert ended(told) == [("rm -rf build", "completed", "ok")]
        await give_toolset(client.proxy.server, id, Toolset((), ("write",)))
        told = await client.turn(id, message("[[fake:approval]]"))
        assert [status for _, status, _ in ended(told)] == ["failed"], "the turn has no such tool"


async def test_a_cancel_closes_the_questions_of_all_calls(tmp_path: Path) -> None:
    async with asking(tmp_path) as (client, id):
        async with client.following(id) as reader:
            _, (one, two, _) = await begun(client, id, reader)
            await answer(client.proxy.server, id, two, "approve")
            await client.send(id, CANCEL)
            session = (await reader.until("agent.session.idle"))["session"]
        assert session["required_actions"] == []
        assert [status for _, status, _ in ended(reader.events)] == ["incomplete"] * 3
        for each in (one, two):
            with pytest.raises(Fault, match=LATE):
                await answer(client.proxy.server, id, each, "deny")
        assert (await client.turn(id, message("[[fake:text]]")))[-2]["type"].endswith("turn.completed")


async def test_a_kill_runs_nothing_that_was_not_allowed_and_keeps_the_calls(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("*.lock", "*.sock")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with asking(tmp_path / "one") as (client, id), client.following(id) as reader:
        _, ids = await begun(client, id, reader)
        await answer(client.proxy.server, id, ids[1], "approve")
        shutil.rmtree(tmp_path / "two")
        shutil.copytree(tmp_path / "one", tmp_path / "two", ignore=ignored)
    given: dict[str, Any] = {"sandbox": "danger-full-access", "api_key": KEY}
    async with claude_proxy(tmp_path / "two", **given) as proxy:
        client = AgentsClient(proxy, KEY)
        (turn,) = await client.all(f"/sessions/{id}/turns")
        assert (turn["status"], turn["error"]["code"]) == ("failed", "internal_error")
        items = await client.all(f"/sessions/{id}/items")
        assert [item["status"] for item in items if item["type"] == "command_execution"] == ["incomplete"] * 3
        assert len(await calls(proxy.server, id)) == 3
        for each in ids[:2]:
            with pytest.raises(Fault, match=LATE):
                await answer(proxy.server, id, each, "deny")


async def test_a_key_that_may_not_approve_has_no_session_that_asks(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "one may_approve=true", "two")
    given: dict[str, Any] = {"sandbox": "danger-full-access", **keys}
    async with claude_proxy(tmp_path, **given) as proxy:
        body = hosted(Path(proxy.server.settings.workdir), agent={"model": "codex-5"})
        for key in ("one", "two"):
            client = AgentsClient(proxy, key)
            id = (await client.post("/sessions", body))["id"]
            await give_toolset(proxy.server, id, ASKED, owner=key)
            async with client.following(id) as reader:
                await client.send(id, message("[[fake:toolset]]"))
                event = await reader.until(WAITS, "agent.session.idle")
                assert event["type"] == (WAITS if key == "one" else "agent.session.idle")
                assert not ended(reader.events)
        (turn,) = await client.all(f"/sessions/{id}/turns")
        assert "may_approve" in turn["error"]["message"]


@pytest.mark.parametrize(
    ("toolset", "said"),
    [
        (Toolset(("bash",)), "bash of the agent claude-code needs the sandbox danger-full-access"),
        (Toolset((), ("write",)), "write of the agent claude-code needs the sandbox workspace-write"),
    ],
)
async def test_a_toolset_never_exceeds_the_sandbox(tmp_path: Path, toolset: Toolset, said: str) -> None:
    async with asking(tmp_path, toolset, sandbox="read-only") as (client, id):
        told = await client.turn(id, message("[[fake:toolset]]"))
        assert not ended(told)
        (turn,) = await client.all(f"/sessions/{id}/turns")
        assert turn["status"] == "failed"
        assert said in turn["error"]["message"]


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_codex_asks_about_all_calls_of_a_step_at_once(tmp_path: Path, decision: Choice) -> None:
    async with fake_proxy(tmp_path, **{**ASKING, "approvals": "decline"}) as proxy:
        client = AgentsClient(proxy, KEY)
        body = hosted(Path(proxy.server.settings.workdir), agent={"model": "codex-5"})
        id = (await client.post("/sessions", body))["id"]
        await give_toolset(proxy.server, id, Toolset(("write", "edit"), ("bash",)))
        async with client.following(id) as reader:
            await client.send(id, message("[[fake:approvals]]"))
            session = (await reader.until(WAITS))["session"]
            while len(session["required_actions"]) < 2:
                session = (await reader.until(WAITS))["session"]
            assert not ended(reader.events)
            told = [entry for entry, _ in await calls(proxy.server, id)]
            assert [each["request_id"] for each in session["required_actions"]] == [
                request_id_of(entry.id) for entry in told
            ]
            for action in session["required_actions"]:
                await answer(
                    proxy.server, id, action["request_id"], decision, "" if decision == "approve" else "No."
                )
            await reader.until("agent.session.idle")
        status = "completed" if decision == "approve" else "failed"
        assert [each[1] for each in ended(reader.events)] == [status] * 2


async def test_claude_code_goes_on_with_its_session_when_the_clients_tools_or_its_own_change(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path, Toolset(("read",))) as (client, id):
        await client.turn(id, message("[[fake:text]]"))
        await client.post(f"/sessions/{id}", {"agent": {"tools": [WEATHER]}})
        await client.turn(id, message("[[fake:text]]"))
        await give_toolset(client.proxy.server, id, Toolset(("read", "glob")))
        await client.turn(id, message("[[fake:text]]"))
        started = [
            line for line in (tmp_path / "args").read_text().splitlines() if "--strict-mcp-config" in line
        ]
        assert ["--resume session_1" in line for line in started if "--tools Read" in line][-2:] == [
            True,
            True,
        ]
        assert "--tools Read,Glob" in started[-1]
