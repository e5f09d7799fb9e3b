"""What an agent asks permission for, when the operator lets clients answer: nothing is done before the answer, and once
after it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.keys import digest_of
from codex_proxy.parts.sessions import service
from tests.http.claude import claude_proxy
from tests.http.serving import Proxy, fake_proxy, user
from tests.parts.sessions.approving import ASKING, KEY, answer_to
from tests.parts.sessions.driving import CANCEL, AgentsClient, message
from tests.parts.sessions.test_folders import hosted
from tests.waiting import eventually

WAITS = "agent.session.requires_action"
NOT_RUN = "[declined: This call was declined and did not run.]\n"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AgentsClient]:
    async with fake_proxy(tmp_path, **ASKING) as proxy:
        yield AgentsClient(proxy, KEY)


def asking(client: AgentsClient, text: str = "[[fake:approval]]") -> Any:
    """The stream of a new session of a folder."""
    return client.creation(text, **hosted(Path(client.proxy.server.settings.workdir)))


def commands(events: list[dict[str, Any]]) -> list[tuple[str, str, Any]]:
    """The commands that have ended, with their status and output."""
    done = [event["item"] for event in events if event["type"] == "agent.session.turn.item.done"]
    return [
        (item["command"].split("'")[-2], item["status"], item["output"])
        for item in done
        if item["type"] == "command_execution"
    ]


@pytest.mark.parametrize(
    ("decision", "ended"),
    [("approve", ("completed", "ok\n")), ("deny", ("failed", NOT_RUN)), ("cancel", ("failed", NOT_RUN))],
)
async def test_a_command_waits_for_the_answer_and_the_turn_goes_on_either_way(
    client: AgentsClient, decision: str, ended: tuple[str, str]
) -> None:
    async with asking(client) as reader:
        session = (await reader.until(WAITS))["session"]
        (action,) = session["required_actions"]
        assert session["status"] == "requires_action"
        assert not commands(reader.events)
        assert action == {
            "type": "mcp_approval_request",
            "turn_id": action["turn_id"],
            "request_id": action["request_id"],
            "request": {
                "type": "mcp_tool_call",
                "server_label": "agent",
                "name": "run_command",
                "arguments": {
                    "command": "/bin/bash -lc 'rm -rf build'",
                    "cwd": "/fake/workspace",
                    "reason": "to build afresh",
                },
                "message": "The agent wants to run a command: /bin/bash -lc 'rm -rf build'",
            },
        }
        (turn,) = await client.all(f"/sessions/{session['id']}/turns")
        assert turn["status"] == "waiting"
        await client.send(session["id"], answer_to(action, decision))
        told = await reader.rest()
    assert told[0]["type"] == "agent.session.in_progress"
    assert told[0]["session"]["required_actions"] == []
    assert commands(told) == [("rm -rf build", *ended)]
    assert [event["type"] for event in told[-2:]] == ["agent.session.turn.completed", "agent.session.idle"]


async def test_a_patch_is_asked_for_with_its_changes(client: AgentsClient) -> None:
    async with asking(client, "[[fake:approval_patch]]") as reader:
        session = (await reader.until(WAITS))["session"]
        (action,) = session["required_actions"]
        assert action["request"]["name"] == "apply_patch"
        changes = [{"path": "/fake/workspace/new.txt", "kind": "add", "diff": "hello\n"}]
        assert action["request"]["arguments"] == {"changes": changes, "reason": "to greet"}
        await client.send(session["id"], answer_to(action))
        told = await reader.rest()
    done = [event["item"] for event in told if event["type"] == "agent.session.turn.item.done"]
    assert done[0]["command"] == "apply_patch /fake/workspace/new.txt"
    assert done[0]["status"] == "completed"


async def test_two_questions_are_open_at_once_and_the_turn_goes_on_with_the_last_answer(
    client: AgentsClient,
) -> None:
    async with asking(client, "[[fake:approvals]]") as reader:
        session = (await reader.until(WAITS))["session"]
        while len(session["required_actions"]) < 2:  # the agent may have asked in two pieces of output
            session = (await reader.until(WAITS))["session"]
        one, two = session["required_actions"]
        await client.send(session["id"], answer_to(one))
        left = (await reader.until(WAITS))["session"]
        assert left["required_actions"] == [two]
        assert not commands(reader.events)
        await client.send(session["id"], answer_to(two, "deny"))
        told = await reader.rest()
    assert told[0]["type"] == "agent.session.in_progress"
    assert commands(told) == [("make one", "completed", "ok\n"), ("make two", "failed", NOT_RUN)]


async def test_of_two_readers_that_answer_at_once_one_wins(client: AgentsClient) -> None:
    async with asking(client) as reader:
        session = (await reader.until(WAITS))["session"]
        (action,) = session["required_actions"]
        path = f"/sessions/{session['id']}/events"
        asked = [{"events": [answer_to(action, decision)]} for decision in ("approve", "deny")] * 4
        answers = await asyncio.gather(*(client.ask("POST", path, body) for body in asked))
        told = await reader.rest()
        given = {answer.status for answer in answers[::2]}, {answer.status for answer in answers[1::2]}
        assert given in (({202}, {409}), ({409}, {202}))
        approved = given[0] == {202}
        assert commands(told) == [
            ("rm -rf build", "completed", "ok\n") if approved else ("rm -rf build", "failed", "")
        ]
        for decision in ("approve", "deny"):  # behind the turn's end, too
            after = await client.ask("POST", path, {"events": [answer_to(action, decision)]})
            assert after.status == (202 if (decision == "approve") is approved else 409)


async def test_an_answer_to_what_nobody_asked_is_refused(client: AgentsClient) -> None:
    id = await client.idle_session()
    refused = await client.refused(id, answer_to({"request_id": "mcpr_1"}))
    assert (refused.status, refused.error["message"]) == (400, "Unknown pending approval request: mcpr_1")


async def test_a_cancel_ends_the_turn_with_its_question(client: AgentsClient) -> None:
    async with asking(client) as reader:
        session = (await reader.until(WAITS))["session"]
        (action,) = session["required_actions"]
        await client.send(session["id"], CANCEL)
        told = await reader.rest()
    assert [event["type"] for event in told] == [
        "agent.session.turn.item.done",
        "agent.session.turn.cancelled",
        "agent.session.idle",
    ]
    assert told[0]["item"]["status"] == "incomplete"
    assert told[-1]["session"]["required_actions"] == []
    assert (await client.refused(session["id"], answer_to(action))).status == 409
    again = await client.turn(session["id"], message("[[fake:text]]"))
    assert again[-2]["type"] == "agent.session.turn.completed"


async def test_an_answer_in_one_batch_with_a_cancel_lets_nothing_run(client: AgentsClient) -> None:
    async with asking(client) as reader:
        session = (await reader.until(WAITS))["session"]
        await client.send(session["id"], answer_to(session["required_actions"][0]), CANCEL)
        told = await reader.rest()
    assert told[-2]["type"] == "agent.session.turn.cancelled"
    assert [status for _, status, _ in commands(told)] == ["incomplete"]


async def test_an_agent_that_dies_with_an_open_question_fails_its_turn(client: AgentsClient) -> None:
    async with asking(client) as reader:
        session = (await reader.until(WAITS))["session"]
        for process in client.proxy.server.agent.pool.processes:  # type: ignore[attr-defined]
            process.kill()
        told = await reader.rest()
    assert "agent.session.turn.failed" in [event["type"] for event in told]
    assert told[-1]["session"]["required_actions"] == []
    assert (await client.refused(session["id"], answer_to(session["required_actions"][0]))).status == 409


async def test_a_restart_fails_the_turn_of_an_open_question(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **ASKING) as proxy:
        client = AgentsClient(proxy, KEY)
        async with asking(client) as reader:
            session = (await reader.until(WAITS))["session"]
    async with fake_proxy(tmp_path, **ASKING) as proxy:
        client = AgentsClient(proxy, KEY)
        found = await client.get(f"/sessions/{session['id']}")
        assert (found["status"], found["required_actions"]) == ("idle", [])
        (turn,) = await client.all(f"/sessions/{session['id']}/turns")
        assert (turn["status"], turn["error"]["code"]) == ("failed", "server_overloaded")
        assert (await client.refused(session["id"], answer_to(session["required_actions"][0]))).status == 409


async def test_a_kill_fails_the_turn_of_an_open_question_and_of_one_that_was_answered_just_now(
    tmp_path: Path,
) -> None:
    ignored = shutil.ignore_patterns("*.lock", "*.sock")
    (tmp_path / "one").mkdir()
    async with fake_proxy(tmp_path / "one", **ASKING) as proxy:
        client = AgentsClient(proxy, KEY)
        async with asking(client, "[[fake:approvals]]") as reader:
            session = (await reader.until(WAITS))["session"]
            while len(session["required_actions"]) < 2:
                session = (await reader.until(WAITS))["session"]
            one, two = session["required_actions"]
            await client.send(session["id"], answer_to(one))
            shutil.copytree(tmp_path / "one" / "state", tmp_path / "two" / "state", ignore=ignored)
    async with fake_proxy(tmp_path / "two", **ASKING) as proxy:
        client = AgentsClient(proxy, KEY)
        found = await client.get(f"/sessions/{session['id']}")
        assert (found["status"], found["required_actions"]) == ("idle", [])
        (turn,) = await client.all(f"/sessions/{session['id']}/turns")
        assert (turn["status"], turn["error"]["code"]) == ("failed", "internal_error")
        await client.send(session["id"], answer_to(one))  # the same again
        assert (await client.refused(session["id"], answer_to(one, "deny"))).status == 409
        assert (await client.refused(session["id"], answer_to(two))).status == 409


async def test_a_question_that_waits_too_long_fails_the_turn(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, **ASKING, action_timeout=0.01) as proxy,
        asking(AgentsClient(proxy, KEY)) as reader,
    ):
        told = await reader.rest()
    (failed,) = [event for event in told if event["type"] == "agent.session.turn.failed"]
    assert failed["turn"]["error"]["code"] == "request_timeout"


async def test_waiting_for_answers_takes_no_place_of_other_turns(tmp_path: Path) -> None:
    """One turn may run at a time: three wait, and other requests are served."""
    async with fake_proxy(tmp_path, **ASKING, max_running_turns=1) as proxy:
        client = AgentsClient(proxy, KEY)
        async with AsyncExitStack() as stack:
            waiting = []
            for _ in range(3):
                reader = await stack.enter_async_context(asking(client))
                waiting.append((reader, (await reader.until(WAITS))["session"]))
            assert (await proxy.ask(user(), headers={"Authorization": f"Bearer {KEY}"})).status == 200
            assert proxy.server.runs.running == 0
            for reader, session in waiting:
                await client.send(session["id"], answer_to(session["required_actions"][0]))
                told = await reader.rest()
                assert commands(told) == [("rm -rf build", "completed", "ok\n")]


async def test_only_so_many_sessions_of_a_key_wait(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_ASKING", 1)
    async with asking(client) as reader:
        session = (await reader.until(WAITS))["session"]
        body = hosted(Path(client.proxy.server.settings.workdir), input="Hello.")
        refused = await client.ask("POST", "/sessions", body)
        assert (refused.status, "approval requests" in refused.text) == (429, True)
        await client.send(session["id"], answer_to(session["required_actions"][0]))
        await reader.rest()
    assert (await client.ask("POST", "/sessions", body)).status == 201


async def test_claude_code_asks_in_the_same_form(tmp_path: Path) -> None:
    more = {name: value for name, value in ASKING.items() if name != "fake_dialect"}
    async with claude_proxy(tmp_path, **more) as proxy:
        client = AgentsClient(proxy, KEY)
        for text, name, arguments in (
            ("approval", "run_command", {"command": "rm -rf build", "cwd": str(tmp_path), "reason": None}),
            (
                *("approval_patch", "apply_patch"),
                {"changes": [{"path": "new.txt", "kind": None, "diff": "+hello\n"}], "reason": None},
            ),
        ):
            for decision in ("approve", "deny"):
                async with asking(client, f"[[fake:{text}]]") as reader:
                    session = (await reader.until(WAITS))["session"]
                    (action,) = session["required_actions"]
                    assert (action["request"]["name"], action["request"]["arguments"]) == (name, arguments)
                    await client.send(session["id"], answer_to(action, decision))
                    told = await reader.rest()
                ended = [event["item"]["status"] for event in told if event["type"].endswith("item.done")]
                assert ended[0] == ("completed" if decision == "approve" else "failed")


# --- who may answer ---------------------------------------------------------------------------------


def with_keys(folder: Path, *tables: str) -> dict[str, Any]:
    """Settings with keys of these tables, whose secrets are their names."""
    file, lines = folder / "keys.toml", []
    for table in tables:
        name, *fields = table.split()
        lines += [f"[keys.{name}]", f"sha256 = '{digest_of(name)}'", *fields]
    file.write_text("\n".join(lines))
    file.chmod(0o600)
    return {"keys_file": file}


async def test_a_key_that_may_not_approve_is_asked_nothing_and_answers_nothing(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "one may_approve=true", "two")
    async with fake_proxy(tmp_path, **{**ASKING, "api_key": None, **keys}) as proxy:
        one, two = AgentsClient(proxy, "one"), AgentsClient(proxy, "two")
        async with asking(two) as reader:
            told = await reader.rest()
        assert [status for _, status, _ in commands(told)] == ["failed"]
        async with asking(one) as reader:
            session = (await reader.until(WAITS))["session"]
            (action,) = session["required_actions"]
            assert (await two.refused(session["id"], answer_to(action))).status == 404
            with_keys(tmp_path, "one", "two may_approve=true")  # the operator takes the right away
            await eventually(lambda: not proxy.server.keyring.current().keys[0].may_approve)
            refused = await one.refused(session["id"], answer_to(action))
            assert (refused.status, refused.error["type"]) == (403, "forbidden")
            await one.send(session["id"], CANCEL)
            await reader.rest()


async def test_each_key_has_its_own_setting(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "asked may_approve=true approvals='ask'", "declined may_approve=true")
    async with fake_proxy(tmp_path, **{**ASKING, "approvals": "decline", "api_key": None, **keys}) as proxy:
        async with asking(AgentsClient(proxy, "declined")) as reader:
            assert [status for _, status, _ in commands(await reader.rest())] == ["failed"]
        client = AgentsClient(proxy, "asked")
        async with asking(client) as reader:
            session = (await reader.until(WAITS))["session"]
            await client.send(session["id"], answer_to(session["required_actions"][0]))
            assert [status for _, status, _ in commands(await reader.rest())] == ["completed"]


NOBODY = "Nobody is asked for permission."


@pytest.mark.parametrize(
    ("settings", "whys"),
    [
        ({"approvals": "decline"}, {"approval": NOBODY, "approval_patch": NOBODY}),
        ({"approvals": "decline", "fake_dialect": "proto"}, {"approval": NOBODY, "approval_patch": NOBODY}),
        ({"approvals": "decline", "fake_dialect": "acp"}, {"approval": NOBODY, "approval_patch": NOBODY}),
        ({"sandbox": "read-only"}, {"approval_patch": "The agent does not tell what it is."}),
    ],
)
async def test_a_declined_question_says_in_its_item_why(
    tmp_path: Path, settings: dict[str, Any], whys: dict[str, str]
) -> None:
    async with fake_proxy(tmp_path, **ASKING | settings) as proxy:
        client = AgentsClient(proxy, KEY)
        for scenario, why in whys.items():
            async with asking(client, f"[[fake:{scenario}]]") as reader:
                events = await reader.rest()
            assert WAITS not in [event["type"] for event in events]
            (item,) = (
                each
                for each in await client.all(f"/sessions/{events[0]['session']['id']}/items")
                if each["type"] == "command_execution"
            )
            assert (item["status"], item["exit_code"]) == ("failed", None)
            assert item["output"].endswith(f"[declined: {why}]\n"), item
            assert next(event["item"] for event in events if event["type"].endswith("item.done")) == item


async def test_other_apis_go_on_declining(client: AgentsClient) -> None:
    proxy: Proxy = client.proxy
    headers = {"Authorization": f"Bearer {KEY}", "X-Codex-Mode": "agent"}
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "[[fake:approval]]"}]}),
        ("/v1/responses", {"input": "[[fake:approval]]"}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "[[fake:approval]]"}]}),
    ):
        answered = await proxy.send("POST", path, {"model": "codex-5", **body}, headers=headers)
        assert answered.status == 200, answered.text
        assert "Thank you." in answered.text
