"""The toolset of Codex: the threads that have one, and how what Codex does is told with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.agents.codex_app_server.own_tools import tool_use, with_toolset
from codex_proxy.agents.codex_app_server.thread_turns import thread_params
from codex_proxy.agents.dialect import Decision
from codex_proxy.core.events import ItemEnded, ItemStarted
from codex_proxy.core.items import ActionDetails, Activity, FileDiff
from codex_proxy.core.turn import Toolset, Turn
from tests.agents.app_server_dialogue import TURN, Dialogue
from tests.agents.test_app_server_questions import ASKED, ASKING, COMMAND, PATCH, asked, calls

EVERYTHING = Toolset(("read", "glob", "grep", "web_search"), ("bash", "write", "edit"))


def turn_with(toolset: Toolset | None, **more: Any) -> Turn:
    given = {"model": "m", "history": (), "sandbox": "workspace-write", "toolset": toolset} | more
    return with_toolset(Turn(**given))


@pytest.mark.parametrize(
    ("toolset", "sandbox", "search"),
    [
        (None, "workspace-write", False),
        (EVERYTHING, "workspace-write", True),
        (Toolset(("bash", "write")), "workspace-write", False),
        (Toolset(("bash", "web_search")), "read-only", True),
    ],
)
def test_a_turn_without_the_tools_that_write_is_read_only(
    toolset: Toolset | None, sandbox: str, search: bool
) -> None:
    turn = turn_with(toolset)
    assert (turn.sandbox, turn.web_search) == (sandbox, search)


def test_a_thread_without_bash_has_no_shell() -> None:
    assert thread_params(turn_with(Toolset(("read",))))["config"] == {
        "features.shell_tool": False,
        "features.unified_exec": False,
    }
    for toolset in (None, Toolset((), ("bash",))):
        assert "config" not in thread_params(turn_with(toolset))


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("/bin/bash -lc 'touch \"a b\"'", 'touch "a b"'),
        ("bash -c ls", "ls"),
        ("ls -la", "ls -la"),
        ("bash -lc 'a' b", "bash -lc 'a' b"),
        ("echo 'open", "echo 'open"),
    ],
)
def test_a_command_is_told_without_the_shell_that_runs_it(command: str, told: str) -> None:
    use = tool_use("command", "", ActionDetails(command=command), EVERYTHING)
    assert use is not None
    assert (use.name, json.loads(use.input), use.permission) == ("bash", {"command": told}, "always_ask")


@pytest.mark.parametrize(
    ("changes", "name", "input"),
    [
        ([FileDiff("/a", "add", "x\n")], "write", {"file_path": "/a", "content": "x\n"}),
        ([FileDiff("/a", "update", "-x\n")], "edit", {"file_path": "/a", "diff": "-x\n"}),
        (
            [FileDiff("/a", "add", "x"), FileDiff("/b", "update", "-x", "/c")],
            "edit",
            {
                "changes": [
                    {"file_path": "/a", "kind": "add", "diff": "x"},
                    {"file_path": "/b", "kind": "update", "diff": "-x", "moved_to": "/c"},
                ]
            },
        ),
        (
            [FileDiff("/a", "add", "x"), FileDiff("/b", "add", "y")],
            "write",
            {
                "changes": [
                    {"file_path": "/a", "kind": "add", "diff": "x"},
                    {"file_path": "/b", "kind": "add", "diff": "y"},
                ]
            },
        ),
    ],
)
def test_a_patch_that_only_adds_files_is_a_write_and_others_are_edits(
    changes: list[FileDiff], name: str, input: Any
) -> None:
    use = tool_use("file_change", "", ActionDetails(changes=tuple(changes)), EVERYTHING)
    assert use is not None
    assert (use.name, json.loads(use.input)) == (name, input)


@pytest.mark.parametrize("kind", ["mcp_call", "plan", "subagent"])
def test_what_no_toolset_has_is_told_without_one(kind: str) -> None:
    assert tool_use(kind, "", ActionDetails(), EVERYTHING) is None
    assert tool_use("command", "", ActionDetails(command="ls"), None) is None


def dialogue() -> Dialogue:
    return Dialogue(**ASKING | {"toolset": EVERYTHING}).start()


def test_an_item_has_its_call_from_its_beginning_to_its_end() -> None:
    talk = dialogue()
    item = {"type": "commandExecution", "id": "call_1", "command": "bash -lc ls", "status": "inProgress"}
    search = {"type": "webSearch", "id": "ws_1", "query": "fakes"}
    begun = talk.agent_notifies("item/started", item=item)
    ended = talk.agent_notifies("item/completed", item=item | {"status": "completed", "exitCode": 0})
    found = talk.agent_notifies("item/completed", item=search)
    activities = [each.item for each in (*begun, *found) if isinstance(each, ItemStarted)]
    uses = [each.details.use for each in activities if isinstance(each, Activity) and each.details]
    assert [use and use.name for use in uses] == ["bash", "web_search"]
    (end,) = [each for each in ended if isinstance(each, ItemEnded)]
    assert end.details is not None
    assert (end.details.exit_code, end.details.use) == (0, uses[0])


def test_a_question_names_its_item_and_the_call() -> None:
    talk = dialogue()
    calls(talk, {"cmd": "touch x"})
    event = asked(talk, COMMAND, **ASKED)
    assert event.item_id == "call_1"
    assert event.details is not None
    assert event.details.use is not None
    assert json.loads(event.details.use.input) == {"command": "touch x"}
    changes = [{"path": "/work/a", "kind": {"type": "add"}, "diff": "x\n"}]
    talk.agent_notifies("item/started", item={"type": "fileChange", "id": "call_2", "changes": changes})
    event = asked(talk, PATCH, itemId="call_2", grantRoot=None, reason=None)
    assert event.details is not None
    assert event.details.use is not None
    assert (event.item_id, event.details.use.name) == ("call_2", "write")


@pytest.mark.parametrize(("approve", "message"), [(False, "Not now."), (False, ""), (True, "")])
def test_the_words_of_a_denial_are_a_message_behind_it(approve: bool, message: str) -> None:
    talk = dialogue()
    calls(talk, {"cmd": "touch x"})
    event = asked(talk, COMMAND, **ASKED)
    before = len(talk.sent)
    talk.take(talk.turn.answer(event.request_id, Decision(approve=approve, by_client=True, message=message)))
    decided, *more = talk.sent[before:]
    assert decided["result"] == {"decision": "accept" if approve else "decline"}
    assert [each["method"] for each in more] == (["turn/steer"] if message else [])
    if message:
        assert more[0]["params"]["expectedTurnId"] == TURN
        assert more[0]["params"]["input"] == [{"type": "text", "text": message, "text_elements": []}]
