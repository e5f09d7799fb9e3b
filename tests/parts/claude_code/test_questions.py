"""What Claude Code asks permission for, and when it asks."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.dialect import Decision
from codex_proxy.agents.shared.conversions import MAX_DETAIL
from codex_proxy.core.events import ApprovalRequested
from codex_proxy.core.items import ActionDetails, FileDiff
from codex_proxy.core.turn import Sandbox
from codex_proxy.parts.claude_code.calls import UNCONFINED, activity, asked_details
from codex_proxy.parts.claude_code.claude_dialect import DENIED_BY_CLIENT, ClaudeCodeTurn
from codex_proxy.parts.claude_code.launch import LaunchKey, claude_argv
from tests.parts.claude_code.replayer import output_lines, recorded_turn


@pytest.mark.parametrize(
    ("tool", "given", "details"),
    [
        ("Bash", {"command": "make\nit", "description": "x"}, ActionDetails(command="make\nit", cwd="/w")),
        ("Bash", {}, None),
        ("Bash", {"command": 1}, None),
        (
            *("Write", {"file_path": "/w/a", "content": "one\ntwo\n"}),
            ActionDetails(changes=(FileDiff("/w/a", diff="+one\n+two\n"),)),
        ),
        (
            *("Edit", {"file_path": "/w/a", "old_string": "a", "new_string": "b", "replace_all": True}),
            ActionDetails(changes=(FileDiff("/w/a", diff="every occurrence:\n-a\n+b\n"),)),
        ),
        (
            *("NotebookEdit", {"notebook_path": "/w/a", "new_source": "x"}),
            ActionDetails(changes=(FileDiff("/w/a", diff='{"new_source":"x"}'),)),
        ),
        ("Edit", {"old_string": "a"}, None),
        (
            *("mcp__notes__write", {"text": "hi"}),
            ActionDetails(server="notes", tool="write", arguments='{"text": "hi"}'),
        ),
        ("WebFetch", {"url": "x"}, ActionDetails(tool="WebFetch", arguments='{"url": "x"}')),
        ("AskUserQuestion", {"questions": []}, None),
        ("Bash", [], None),
    ],
)
def test_each_tool_is_told_in_full(tool: str, given: Any, details: ActionDetails | None) -> None:
    assert asked_details(tool, msgspec.Raw(json.dumps(given).encode()), "/w") == details


def test_the_item_of_a_change_has_its_diff() -> None:
    given = msgspec.Raw(json.dumps({"file_path": "/w/a", "old_string": "a", "new_string": "b"}).encode())
    assert activity("i", "Edit", given).details == ActionDetails(changes=(FileDiff("/w/a", diff="-a\n+b\n"),))
    assert activity("i", "Edit", None).details == ActionDetails(changes=(FileDiff(""),))


@pytest.mark.parametrize(
    ("given", "change"),
    [
        ({"query": "x", "file_path": f"/{'a' * 400}", "content": ""}, FileDiff(f"/{'a' * 400}")),
        ({"command": "x", "file_path": "/w/a"}, FileDiff("/w/a")),
        (
            {"file_path": "/w/a", "content": "a\r\n\u2028\n\nb"},
            FileDiff("/w/a", diff="+a\r\n+\u2028\n+\n+b\n"),
        ),
        (
            {"file_path": "/w/a", "content": "x" * MAX_DETAIL},
            FileDiff("/w/a", diff=f"+{'x' * (MAX_DETAIL - 1)}\n[cut: 2 characters]"),
        ),
        ({"notebook_path": "/w/a", "new_source": "x"}, FileDiff("/w/a")),
    ],
)
def test_the_item_of_a_change_names_the_file_and_has_no_other_text_than_its_lines(
    given: Any, change: FileDiff
) -> None:
    assert activity("i", "Write", msgspec.Raw(json.dumps(given).encode())).details == ActionDetails(
        changes=(change,)
    )


def test_only_where_the_client_is_asked_edits_are_asked_for() -> None:
    for asks, mode in ((True, "default"), (False, "acceptEdits")):
        argv = claude_argv("claude", LaunchKey("agent", "/w", "workspace-write", asks=asks))
        assert argv[argv.index("--permission-mode") + 1] == mode


def permission(tool: str, given: dict[str, Any], **turn: Any) -> tuple[Any, list[Any], bytes]:
    """The dialect behind a request for permission, its events, and what it has answered."""
    dialect = ClaudeCodeTurn()
    dialect.begin(msgspec.structs.replace(recorded_turn("agent_tools"), **turn))
    lines = output_lines("agent_tools")
    asked = next(line for line in lines if b"can_use_tool" in line)
    for line in lines[: lines.index(asked)]:
        dialect.receive([line])
    message = json.loads(asked)
    message["request"] |= {"tool_name": tool, "input": given, "description": "Because."}
    step = dialect.receive([json.dumps(message).encode()])
    return dialect, step.events, step.writes


@pytest.mark.parametrize(
    ("sandbox", "tool", "given", "beyond"),
    [
        ("workspace-write", "Bash", {"command": "make"}, UNCONFINED),
        ("workspace-write", "mcp__notes__write", {}, UNCONFINED),
        ("workspace-write", "Write", {"file_path": "/w/a", "content": "x"}, ""),
        ("danger-full-access", "Bash", {"command": "make"}, ""),
        ("danger-full-access", "WebFetch", {"url": "x"}, ""),
    ],
)
def test_without_a_sandbox_of_its_own_only_changes_of_files_are_confined(
    sandbox: Sandbox, tool: str, given: dict[str, Any], beyond: str
) -> None:
    dialect, events, writes = permission(tool, given, sandbox=sandbox, approvals="ask", workdir="/w")
    [event] = [each for each in events if isinstance(each, ApprovalRequested)]
    assert (event.beyond, event.reason, writes) == (beyond, "Because.", b"")
    denied = dialect.answer(event.request_id, Decision(by_client=True)).writes
    assert json.loads(denied)["response"]["response"] == {"behavior": "deny", "message": DENIED_BY_CLIENT}


def test_who_is_not_asked_gets_everything_in_danger_full_access() -> None:
    _, events, writes = permission("Bash", {"command": "make"}, sandbox="danger-full-access")
    assert not [each for each in events if isinstance(each, ApprovalRequested)]
    assert json.loads(writes)["response"]["response"]["behavior"] == "allow"
