"""What programs of ACP ask permission for: what is told of it, in each program's form, and which toolsets they keep."""

from __future__ import annotations

from typing import Any

import pytest

from codex_proxy.core.items import TOOL_NAMES, ActionDetails, FileDiff
from codex_proxy.core.own_tools import toolset_faults
from codex_proxy.core.turn import Sandbox, Toolset, Turn
from codex_proxy.parts.acp.messages import Update
from codex_proxy.parts.acp.own_tools import UNCONFINED, own_tools_of, question_of
from codex_proxy.parts.acp.presets import PRESETS, Program

WRITTEN = [{"type": "diff", "path": "/w/a", "oldText": None, "newText": "one\n"}]
CHANGED = [{"type": "diff", "path": "/w/a", "oldText": "one", "newText": "two"}]
ADDED = ActionDetails(changes=(FileDiff("/w/a", "add", "one\n"),))


def asked(call: Update, *, confined: bool = False, **turn: Any) -> Any:
    given = Turn(model="m", history=(), **{"workdir": "/w", "sandbox": "danger-full-access"} | turn)
    return question_of("ask_1", call, call, given, confined=confined, item_id="act_1")


@pytest.mark.parametrize(
    ("call", "kind", "details"),
    [
        (
            Update(kind="execute", title="ls", raw_input={"command": "touch a", "description": "x"}),
            *("command", ActionDetails(command="touch a", cwd="/w")),
        ),
        (
            Update(kind="execute", title="run", raw_input={"command": ["touch", "a b"]}),
            *("command", ActionDetails(command="touch 'a b'", cwd="/w")),
        ),
        (Update(kind="execute", title="sleep 5"), "command", ActionDetails(command="sleep 5", cwd="/w")),
        (Update(kind="execute", title="run", raw_input={"other": 1}), "command", None),
        (
            Update(kind="execute", raw_input={"command": "make", "directory": "a"}),
            *("command", ActionDetails(command="make", cwd="/w/a")),
        ),
        (
            Update(kind="execute", raw_input={"command": "make", "cwd": "/b", "timeout": 9}),
            *("command", ActionDetails(command="make", cwd="/b")),
        ),
        (
            Update(kind="execute", raw_input={"command": "make", "env": {"A": "1"}}),
            *("command", ActionDetails(command="make")),
        ),
        (
            Update(kind="execute", raw_input={"command": "make", "cwd": ["a"]}),
            *("command", ActionDetails(command="make")),
        ),
        (Update(kind="fetch", title="Fetch a page"), "permission", None),
        (Update(kind="fetch", title="Fetch a page", raw_input=["https://a"]), "permission", None),
        (Update(kind="execute", name="Bash", title="Bash"), "command", None),
        (Update(kind="other", name="mcp__x__y", title="mcp__x__y"), "permission", None),
        (Update(kind="edit", title="Write a", content=WRITTEN), "file_change", ADDED),
        (
            Update(kind="edit", content=CHANGED),
            *("file_change", ActionDetails(changes=(FileDiff("/w/a", "update", "-one\n+two\n"),))),
        ),
        (
            Update(kind="edit", raw_input={"fileName": "/w/a", "diff": "+one"}),
            *("file_change", ActionDetails(changes=(FileDiff("/w/a", "", "+one"),))),
        ),
        (Update(kind="edit", content=[*WRITTEN, {"type": "diff"}]), "file_change", None),
        (Update(kind="edit", title="Write a"), "file_change", None),
        (Update(kind="delete", title="Delete a", raw_input={"path": "/w/a"}), "file_change", None),
        (
            Update(kind="fetch", name="WebFetch", raw_input={"url": "https://a"}),
            *("permission", ActionDetails(tool="WebFetch", arguments='{"url":"https://a"}')),
        ),
    ],
)
def test_a_question_is_told_in_full_or_not_at_all(
    call: Update, kind: str, details: ActionDetails | None
) -> None:
    event = asked(call)
    assert (event.kind, event.details, event.item_id) == (kind, details, "act_1")


@pytest.mark.parametrize(
    ("call", "sandbox", "confined", "beyond"),
    [
        (Update(kind="execute", title="ls"), "workspace-write", False, UNCONFINED),
        (Update(kind="execute", title="ls"), "workspace-write", True, ""),
        (Update(kind="execute", title="ls"), "danger-full-access", False, ""),
        (Update(kind="edit", content=WRITTEN), "workspace-write", False, ""),
        (Update(kind="fetch", title="x"), "workspace-write", False, UNCONFINED),
    ],
)
def test_without_a_sandbox_of_its_own_only_changes_of_files_are_confined(
    call: Update, sandbox: Sandbox, confined: bool, beyond: str
) -> None:
    assert asked(call, sandbox=sandbox, confined=confined).beyond == beyond


@pytest.mark.parametrize(
    ("call", "use"),
    [
        (Update(kind="execute", title="ls"), ("bash", '{"command":"ls"}', "always_ask")),
        (
            Update(kind="edit", content=WRITTEN),
            ("write", '{"file_path":"/w/a","content":"one\\n"}', "always_allow"),
        ),
        (
            Update(kind="edit", content=CHANGED),
            ("edit", '{"file_path":"/w/a","diff":"-one\\n+two\\n"}', None),
        ),
        (Update(kind="read", raw_input={"path": "/w/a"}), ("read", '{"file_path":"/w/a"}', None)),
        (Update(kind="other", title="x", raw_input={}), None),
    ],
)
def test_a_question_has_the_call_of_the_toolset(
    call: Update, use: tuple[str, str, str | None] | None
) -> None:
    found = asked(call, toolset=Toolset(("write",), ("bash",))).details.use
    assert (found and (found.name, found.input, found.permission)) == use


@pytest.mark.parametrize("name", ["claude-acp", "gemini", "qwen"])
def test_a_program_that_asks_is_in_the_mode_that_asks_only_where_not_all_is_declined(name: str) -> None:
    program = Program(PRESETS[name])
    assert program.modes("workspace-write", asks=True) == ("default",)
    assert program.modes("read-only") == PRESETS[name].read_only
    others = tuple(each for each in TOOL_NAMES if each not in ("bash", "write", "edit"))
    kept = Toolset(others, ("bash", "write", "edit")), Toolset(others), Toolset(TOOL_NAMES)
    for toolset in kept:
        assert not [*toolset_faults(toolset, own_tools_of(PRESETS[name]), "danger-full-access", name)]


def test_a_program_that_does_not_ask_keeps_only_what_allows_everything() -> None:
    own = own_tools_of(PRESETS["opencode"])
    assert not [*toolset_faults(Toolset(TOOL_NAMES), own, "danger-full-access", "opencode")]
    faults = dict(toolset_faults(Toolset(TOOL_NAMES[2:], ("bash",)), own, "danger-full-access", "opencode"))
    assert faults == {
        "bash": "the agent opencode cannot ask before bash. It can for: none. Use always_allow.",
        "read": "the agent opencode cannot be without read. Enable it.",
    }
