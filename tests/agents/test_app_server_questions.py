"""What Codex asks permission for: what each question is about, and whether it would leave the sandbox."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.agents.codex_app_server.questions import (
    MORE_PERMISSIONS,
    UNCONFINED,
    UNKNOWN_CALL,
    WIDER,
    asks,
)
from codex_proxy.core.events import ApprovalRequested
from codex_proxy.core.items import ActionDetails, FileDiff
from codex_proxy.core.turn import Turn
from tests.agents.app_server_dialogue import Dialogue

COMMAND = "item/commandExecution/requestApproval"
PATCH = "item/fileChange/requestApproval"
MCP = "mcpServer/elicitation/request"
ASKING: dict[str, Any] = {
    "mode": "agent",
    "approvals": "ask",
    "sandbox": "workspace-write",
    "permissions": "p_write",
}
FREE = ASKING | {"sandbox": "danger-full-access", "permissions": None}
ASKED = {"command": "/bin/bash -lc 'touch x'", "cwd": "/work", "itemId": "call_1", "kind": "command"}


def dialogue(**turn: Any) -> Dialogue:
    return Dialogue(**ASKING | turn).start()


def calls(talk: Dialogue, arguments: Any, **item: Any) -> None:
    """The model calls the shell."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    given = {"type": "function_call", "call_id": "call_1", "name": "exec_command", "arguments": text}
    talk.agent_notifies("rawResponseItem/completed", item=given | item)


def asked(talk: Dialogue, method: str, **params: Any) -> ApprovalRequested:
    [event] = talk.agent_requests(4, method, **params)
    assert isinstance(event, ApprovalRequested)
    return event


@pytest.mark.parametrize(
    ("turn", "policy"),
    [
        (ASKING, "untrusted"),
        (FREE, "untrusted"),
        (ASKING | {"permissions": None}, "never"),
        (ASKING | {"approvals": "decline"}, "never"),
        (FREE | {"mode": "model"}, "never"),
    ],
)
def test_codex_is_to_ask_only_where_what_is_accepted_stays_in_the_sandbox(
    turn: dict[str, Any], policy: str
) -> None:
    talk = Dialogue(**turn)
    assert talk.sent[0]["params"]["approvalPolicy"] == policy
    assert asks(Turn(model="m", history=(), **turn)) is (policy == "untrusted")


def test_a_command_in_the_sandbox_is_told_in_full() -> None:
    talk = dialogue()
    calls(talk, {"cmd": "touch x", "workdir": "/work", "tty": True, "sandbox_permissions": "use_default"})
    event = asked(talk, COMMAND, **ASKED)
    assert event.details == ActionDetails(command="/bin/bash -lc 'touch x'", cwd="/work")
    assert (event.kind, event.text, event.reason, event.beyond) == (
        *("command", "/bin/bash -lc 'touch x'"),
        *("", ""),
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"cmd": "touch x", "sandbox_permissions": "require_escalated", "justification": "I want to."},
        {"cmd": "touch x", "sandbox_permissions": "with_additional_permissions"},
        {"cmd": "touch x", "sandbox_permissions": 1},
        {"cmd": "touch x", "with_escalated_permissions": True},
        {"cmd": "touch x", "additional_permissions": {}},
        {"cmd": "touch x", "justification": "I want to."},
        ["touch x"],
        "{",
        '{"cmd": "touch x"} {"sandbox_permissions": "require_escalated"}',
    ],
)
def test_a_call_that_is_not_known_to_stay_in_the_sandbox_leaves_it(arguments: Any) -> None:
    talk = dialogue()
    calls(talk, arguments)
    assert asked(talk, COMMAND, **ASKED).beyond == WIDER


def test_of_two_calls_with_one_id_the_wider_counts() -> None:
    for order in (1, -1):
        talk = dialogue()
        for arguments in ({"cmd": "a"}, {"cmd": "a", "sandbox_permissions": "require_escalated"})[::order]:
            calls(talk, arguments)
        assert asked(talk, COMMAND, **ASKED).beyond == WIDER


@pytest.mark.parametrize("call", [{"type": "custom_tool_call", "input": "x"}, {"call_id": "call_2"}])
def test_a_command_whose_call_is_not_known_leaves_the_sandbox(call: dict[str, Any]) -> None:
    talk = dialogue()
    calls(talk, {"cmd": "touch x"}, **call)
    assert asked(talk, COMMAND, **ASKED).beyond == UNKNOWN_CALL


@pytest.mark.parametrize(
    "params",
    [
        {"reason": "retry without sandbox?"},
        {"additionalPermissions": {"network": {"enabled": True}}},
        {"networkApprovalContext": {"host": "example.com", "protocol": "https"}},
        {"approvalId": "another"},
    ],
)
def test_a_question_with_more_than_the_command_leaves_the_sandbox(params: dict[str, Any]) -> None:
    talk = dialogue()
    calls(talk, {"cmd": "touch x"})
    assert asked(talk, COMMAND, **ASKED, **params).beyond == WIDER


def test_input_to_a_running_command_is_not_told() -> None:
    talk = dialogue()
    calls(talk, {"cmd": "touch x"})
    assert asked(talk, COMMAND, **ASKED | {"kind": "writeStdin"}).details is None


def test_without_a_sandbox_nothing_leaves_it_and_the_reason_is_told() -> None:
    talk = dialogue(**FREE)
    event = asked(talk, COMMAND, **ASKED, reason="I want to.")
    assert (event.beyond, event.reason) == ("", "I want to.")


def test_a_patch_is_told_with_its_changes() -> None:
    talk = dialogue()
    changes = [
        {"path": "/work/a", "kind": {"type": "add"}, "diff": "x\n"},
        {"path": "/work/b", "kind": {"type": "update", "move_path": "/work/c"}, "diff": "-x"},
    ]
    talk.agent_notifies("item/started", item={"type": "fileChange", "id": "call_1", "changes": changes})
    event = asked(talk, PATCH, itemId="call_1", grantRoot=None, reason=None)
    assert event.details == ActionDetails(
        changes=(FileDiff("/work/a", "add", "x\n"), FileDiff("/work/b", "update", "-x", "/work/c"))
    )
    assert event.beyond == ""


def test_a_patch_that_asks_for_a_folder_widens_the_sandbox_and_one_without_item_is_not_told() -> None:
    talk = dialogue()
    event = asked(talk, PATCH, itemId="call_9", grantRoot="/")
    assert (event.details, event.beyond) == (None, MORE_PERMISSIONS)


def test_more_permissions_are_never_asked_for() -> None:
    for turn in (ASKING, FREE):
        event = asked(dialogue(**turn), "item/permissions/requestApproval", permissions={}, reason="please")
        assert event.details is None


def test_the_tool_of_an_mcp_server_is_told_and_no_sandbox_confines_it() -> None:
    meta = {"codex_approval_kind": "mcp_tool_call", "tool_name": "write_note", "tool_params": {"text": "hi"}}
    for turn, beyond in ((ASKING, UNCONFINED), (FREE, "")):
        event = asked(dialogue(**turn), MCP, serverName="lab", message="Allow it?", _meta=meta)
        assert event.details == ActionDetails(server="lab", tool="write_note", arguments='{"text": "hi"}')
        assert (event.kind, event.text, event.beyond) == ("mcp", "Allow it?", beyond)


@pytest.mark.parametrize("meta", [None, {}, {"codex_approval_kind": "other", "tool_name": "x"}, [1]])
def test_a_question_of_an_mcp_server_itself_is_not_told(meta: Any) -> None:
    assert asked(dialogue(**FREE), MCP, serverName="lab", message="Your name?", _meta=meta).details is None
