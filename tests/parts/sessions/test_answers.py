"""The answers of a person: to what was shown, for once or for the session, and with words for the model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.http.claude import claude_proxy
from tests.http.serving import fake_proxy
from tests.parts.sessions.approving import ASKING, KEY, answer, answer_to, shown
from tests.parts.sessions.driving import AgentsClient, message
from tests.parts.sessions.test_approvals import WAITS, asking, commands, with_keys
from tests.waiting import eventually

OF_CLAUDE = {name: value for name, value in ASKING.items() if name != "fake_dialect"}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AgentsClient]:
    async with fake_proxy(tmp_path, **ASKING) as proxy:
        yield AgentsClient(proxy, KEY)


@pytest.fixture
async def of_claude(tmp_path: Path) -> AsyncIterator[AgentsClient]:
    async with claude_proxy(tmp_path, **OF_CLAUDE) as proxy:
        yield AgentsClient(proxy, KEY)


async def asked_again(client: AgentsClient, session: str, text: str = "[[fake:approval]]") -> bool:
    """Whether the agent's same question, in another turn, waits for an answer; that turn ends then."""
    async with client.following(session) as reader:
        await client.send(session, message(text))
        waits: bool = (await reader.until(WAITS, "agent.session.idle"))["type"] == WAITS
        if waits:
            (ask,) = await shown(client, session)
            await answer(client, session, ask, "deny")
            await reader.until("agent.session.idle")
    return waits


async def test_what_was_shown_is_answered(client: AgentsClient) -> None:
    async with asking(client) as reader:
        id = (await reader.until(WAITS))["session"]["id"]
        (ask,) = await shown(client, id)
        assert ask["arguments"]["command"] == "/bin/bash -lc 'rm -rf build'"
        given = await answer(client, id, ask, "approve")
        assert (given.status, given.text) == (202, "")
        told = await reader.rest()
    assert commands(told) == [("rm -rf build", "completed", "ok\n")]
    assert (await answer(client, id, ask, "approve")).status == 202  # the same again
    assert (await answer(client, id, ask, "deny")).status == 409
    assert (await answer(client, id, ask, "approve", for_session=True)).status == 409


async def test_an_answer_to_something_else_than_is_asked_is_refused(client: AgentsClient) -> None:
    async with asking(client) as reader:
        id = (await reader.until(WAITS))["session"]["id"]
        (ask,) = await shown(client, id)
        other = {**ask, "digest": "0" * 64}
        refused = await answer(client, id, other, "approve")  # type: ignore[arg-type]
        assert (refused.status, "asks for something else" in refused.text) == (409, True)
        assert await shown(client, id) == [ask]
        await answer(client, id, ask, "deny")
        await reader.rest()
        assert (await answer(client, id, other, "deny")).status == 409  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"decision": "approve"}, "digest"),
        ({"decision": "approve", "digest": "abc"}, "digest"),
        ({"decision": "perhaps", "digest": "0" * 64}, "decision"),
        ({"decision": "deny", "digest": "0" * 64, "for_session": True}, "for_session"),
        ({"decision": "approve", "digest": "0" * 64, "message": "Go."}, "message"),
        ({"decision": "deny", "digest": "0" * 64, "message": "x" * 10_001}, "message"),
    ],
)
async def test_what_is_no_answer_is_refused(client: AgentsClient, body: dict[str, Any], param: str) -> None:
    id = await client.idle_session()
    refused = await client.ask("POST", f"/sessions/{id}/asks/mcpr_1", body)
    assert (refused.status, refused.error["param"]) == (400, param)


async def test_an_answer_to_no_question_or_in_no_session_finds_nothing(client: AgentsClient) -> None:
    id = await client.idle_session()
    for session in (id, "sess_0"):
        body = {"decision": "approve", "digest": "0" * 64}
        assert (await client.ask("POST", f"/sessions/{session}/asks/mcpr_1", body)).status == 404


async def test_the_model_is_told_the_words_of_a_denial(of_claude: AgentsClient) -> None:
    async with asking(of_claude) as reader:
        id = (await reader.until(WAITS))["session"]["id"]
        (ask,) = await shown(of_claude, id)
        assert (await answer(of_claude, id, ask, "deny", message="Use make clean.")).status == 202
        told = await reader.rest()
    ended = [event["item"] for event in told if event["type"].endswith("item.done")]
    assert "Use make clean." in str(ended)


async def test_a_command_is_permitted_for_the_session_in_this_folder(client: AgentsClient) -> None:
    async with asking(client) as reader:
        id = (await reader.until(WAITS))["session"]["id"]
        (ask,) = await shown(client, id)
        assert ask["rule"] == (
            "Allowed without a question while this session exists: exactly this command in the folder "
            "'/fake/workspace': /bin/bash -lc 'rm -rf build'."
        )
        assert (await answer(client, id, ask, "approve", for_session=True)).status == 202
        await reader.rest()
    with capture_logs() as logged:
        assert not await asked_again(client, id)
        async with asking(client) as reader:  # another session has no such rule
            other = (await reader.until(WAITS))["session"]["id"]
            (ask,) = await shown(client, other)
            await answer(client, other, ask, "deny")
            await reader.rest()
    applied = [each for each in logged if each["event"] == "approved_by_rule"]
    assert [(each["session"], each["kind"]) for each in applied] == [(id, "command")]
    assert "rm -rf" not in str(logged)
    assert await asked_again(client, id, "[[fake:approval_patch]]")  # nothing but that command


async def test_changes_of_files_are_permitted_for_the_session_in_its_folder(of_claude: AgentsClient) -> None:
    folder = Path(of_claude.proxy.server.settings.workdir)
    async with asking(of_claude, "[[fake:approval_patch]]") as reader:
        id = (await reader.until(WAITS))["session"]["id"]
        (ask,) = await shown(of_claude, id)
        assert f"every change of files in the folder '{folder}'" in (ask["rule"] or "")
        assert (await answer(of_claude, id, ask, "approve", for_session=True)).status == 202
        await reader.rest()
    assert not await asked_again(of_claude, id, "[[fake:approval_patch]]")
    (folder / "new.txt").symlink_to(folder.parent / "elsewhere")
    assert await asked_again(of_claude, id, "[[fake:approval_patch]]")  # now it leads out of the folder
    assert await asked_again(of_claude, id)


async def test_a_change_outside_of_the_folder_is_permitted_only_once(client: AgentsClient) -> None:
    async with asking(client, "[[fake:approval_patch]]") as reader:
        id = (await reader.until(WAITS))["session"]["id"]
        (ask,) = await shown(client, id)
        assert ask["rule"] is None
        refused = await answer(client, id, ask, "approve", for_session=True)
        assert (refused.status, refused.error["param"]) == (400, "for_session")
        assert (await answer(client, id, ask, "approve")).status == 202
        await reader.rest()


async def test_a_rule_outlives_a_restart_and_not_the_right_of_its_key(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "one may_approve=true")
    settings = {**ASKING, "api_key": None, **keys}
    async with fake_proxy(tmp_path, **settings) as proxy:
        client = AgentsClient(proxy, "one")
        async with asking(client) as reader:
            id = (await reader.until(WAITS))["session"]["id"]
            (ask,) = await shown(client, id, "one")
            await answer(client, id, ask, "approve", for_session=True)
            await reader.rest()
    async with fake_proxy(tmp_path, **settings) as proxy:
        client = AgentsClient(proxy, "one")
        told = await client.turn(id, message("[[fake:approval]]"))
        assert [status for _, status, _ in commands(told)] == ["completed"]
        with_keys(tmp_path, "one")
        await eventually(lambda: not proxy.server.keyring.current().keys[0].may_approve)
        told = await client.turn(id, message("[[fake:approval]]"))
        assert [status for _, status, _ in commands(told)] == ["failed"]
        refused = await answer(client, id, ask, "approve", for_session=True)
        assert (refused.status, refused.error["type"]) == (403, "forbidden")
        summary = (await client.ask("GET", f"/sessions/{id}/summary")).body
        assert (summary["approvals"], summary["may_approve"]) == ("decline", False)


async def test_a_key_without_the_right_cannot_answer_what_another_is_asked(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "one may_approve=true", "two may_approve=true")
    async with fake_proxy(tmp_path, **{**ASKING, "api_key": None, **keys}) as proxy:
        one, two = AgentsClient(proxy, "one"), AgentsClient(proxy, "two")
        async with asking(one) as reader:
            id = (await reader.until(WAITS))["session"]["id"]
            (ask,) = await shown(one, id, "one")
            assert (await answer(two, id, ask, "approve")).status == 404
            assert (await answer(one, id, ask, "approve")).status == 202
            await reader.rest()


async def test_both_ways_to_answer_are_one(client: AgentsClient) -> None:
    async with asking(client) as reader:
        session = (await reader.until(WAITS))["session"]
        (ask,) = await shown(client, session["id"])
        await client.send(session["id"], answer_to(session["required_actions"][0]))
        await reader.rest()
        assert (await answer(client, session["id"], ask, "approve")).status == 202
        assert (await answer(client, session["id"], ask, "deny")).status == 409
