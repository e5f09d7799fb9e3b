"""The toolset of Claude Code: how it is started with one, and how its calls are told."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.dialect import Decision
from codex_proxy.core.events import ApprovalRequested, Event, ItemEnded, ItemStarted, RequestClosed
from codex_proxy.core.items import Activity, ToolName
from codex_proxy.core.turn import Toolset
from codex_proxy.parts.claude_code.calls import UNCONFINED
from codex_proxy.parts.claude_code.claude_dialect import ClaudeCodeTurn
from codex_proxy.parts.claude_code.launch import LaunchKey, claude_argv
from codex_proxy.parts.claude_code.own_tools import NAMES, tool_use
from tests.parts.claude_code.replayer import output_lines, recorded_turn
from tests.parts.claude_code.test_questions import permission


def argument(argv: tuple[str, ...], name: str) -> str | None:
    return argv[argv.index(name) + 1] if name in argv else None


def test_the_program_has_the_enabled_tools_and_rules_to_ask_before_some() -> None:
    toolset = Toolset(("read", "web_search"), ("bash", "write"))
    argv = claude_argv("claude", LaunchKey("agent", "/w", "workspace-write", asks=True, toolset=toolset))
    assert argument(argv, "--tools") == "Bash,Read,Write,WebSearch"
    assert json.loads(argument(argv, "--settings") or "") == {"permissions": {"ask": ["Bash", "Write"]}}
    assert argument(argv, "--permission-mode") == "acceptEdits", "what is allowed is not asked about"
    assert "--strict-mcp-config" in argv


def test_without_tools_or_questions_the_program_gets_none() -> None:
    argv = claude_argv("claude", LaunchKey("agent", "/w", toolset=Toolset()))
    assert argument(argv, "--tools") == ""
    assert "--settings" not in argv


def test_subagents_are_a_tool_beside_the_toolset() -> None:
    argv = claude_argv("claude", LaunchKey("agent", "/w", subagents=True, toolset=Toolset(("read",))))
    assert argument(argv, "--tools") == "Read,Agent"


@pytest.mark.parametrize(
    ("name", "given", "input"),
    [
        (
            *("bash", {"command": "ls", "description": "x", "timeout": 5, "run_in_background": True}),
            {"command": "ls", "timeout_ms": 5},
        ),
        ("read", {"file_path": "/a"}, {"file_path": "/a"}),
        (
            *("read", {"file_path": "/a", "offset": 3, "limit": 2}),
            {"file_path": "/a", "view_range": [3, 4]},
        ),
        ("read", {"file_path": "/a", "offset": 3}, {"file_path": "/a", "view_range": [3, -1]}),
        ("read", {"file_path": "/a", "limit": 2}, {"file_path": "/a", "view_range": [1, 2]}),
        ("write", {"file_path": "/a", "content": "x"}, {"file_path": "/a", "content": "x"}),
        (
            *("edit", {"file_path": "/a", "old_string": "x", "new_string": "y", "replace_all": True}),
            {"file_path": "/a", "old_string": "x", "new_string": "y", "replace_all": True},
        ),
        ("glob", {"pattern": "*", "path": "/a"}, {"pattern": "*", "path": "/a"}),
        ("grep", {"pattern": "x", "output_mode": "content"}, {"pattern": "x"}),
        ("web_fetch", {"url": "https://a", "prompt": "x"}, {"url": "https://a"}),
        ("web_search", {"query": "x"}, {"query": "x"}),
        ("bash", [], {}),
    ],
)
def test_each_tool_is_told_with_the_inputs_that_the_toolset_has(
    name: ToolName, given: Any, input: dict[str, Any]
) -> None:
    use = tool_use(NAMES[name], msgspec.Raw(json.dumps(given).encode()), Toolset((name,)))
    assert use is not None
    assert (use.name, json.loads(use.input), use.permission) == (name, input, "always_allow")


def test_a_tool_that_no_toolset_has_is_told_without_one() -> None:
    assert tool_use("TodoWrite", None, Toolset()) is None


BASH = {"sandbox": "danger-full-access", "approvals": "ask", "toolset": Toolset((), ("bash",))}


def question_of(events: list[Event]) -> ApprovalRequested:
    (event,) = (each for each in events if isinstance(each, ApprovalRequested))
    return event


def test_a_question_names_the_call_that_it_is_about() -> None:
    dialect = permission("Bash", {"command": "make"}, **BASH)[0]
    lines = output_lines("agent_tools")
    asked = next(json.loads(line) for line in lines if b"can_use_tool" in line)
    _, events, writes = permission("Bash", {"command": "make"}, **BASH)
    event = question_of(events)
    assert event.item_id == asked["request"]["tool_use_id"]
    assert event.details is not None
    assert event.details.use is not None
    assert (event.details.use.name, event.details.use.permission) == ("bash", "always_ask")
    assert (event.beyond, writes) == ("", b"")
    denied = dialect.answer(event.request_id, Decision(by_client=True, message="Not now.")).writes
    assert json.loads(denied)["response"]["response"] == {"behavior": "deny", "message": "Not now."}


def test_an_activity_begins_with_its_call_and_ends_without_losing_it() -> None:
    dialect = ClaudeCodeTurn()
    toolset = Toolset(tuple(NAMES))
    dialect.begin(msgspec.structs.replace(recorded_turn("agent_tools"), toolset=toolset))
    events = dialect.receive(output_lines("agent_tools")).events
    begun = [
        each.item for each in events if isinstance(each, ItemStarted) and isinstance(each.item, Activity)
    ]
    uses = [
        item.details.use.name for item in begun if item.details is not None and item.details.use is not None
    ]
    assert uses
    assert all(event.details is None for event in events if isinstance(event, ItemEnded))


@pytest.mark.parametrize(
    ("tool", "given", "beyond"),
    [
        ("Bash", {"command": "make"}, UNCONFINED),
        ("WebFetch", {"url": "https://a"}, UNCONFINED),
        ("WebSearch", {"query": "x"}, ""),
        ("Read", {"file_path": "/etc/passwd"}, ""),  # whose path is looked at later
        ("Write", {"file_path": "/w/a", "content": "x"}, ""),
    ],
)
def test_in_a_sandbox_what_has_no_path_and_runs_here_is_not_confined(
    tool: str, given: dict[str, Any], beyond: str
) -> None:
    more = {"sandbox": "workspace-write", "toolset": Toolset(tuple(NAMES)), "workdir": "/w"}
    assert question_of(permission(tool, given, **more)[1]).beyond == beyond


def test_with_a_toolset_the_program_is_given_nothing_at_once() -> None:
    _, events, writes = permission("Bash", {"command": "make"}, **BASH | {"toolset": Toolset(("bash",))})
    assert question_of(events).details is not None
    assert writes == b""


def test_a_question_that_the_program_withdraws_is_closed_once() -> None:
    dialect, events, _ = permission("Bash", {"command": "make"}, **BASH)
    id = question_of(events).request_id
    line = json.dumps({"type": "control_cancel_request", "request_id": id}).encode()
    assert dialect.receive([line]).events == [RequestClosed(id)]
    assert dialect.receive([line]).events == []
    assert dialect.answer(id, Decision(approve=True)).writes == b""
