"""The rules that answers for the session make: equal ones are made of questions that one answer permits."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from codex_proxy.core.events import ApprovalKind, ApprovalRequested
from codex_proxy.core.items import ActionDetails, FileDiff
from codex_proxy.parts.sessions.rules import MAX_RULES, Rule, rule_of, with_rule, without_tools
from tests.parts.sessions.states import Driven
from tests.parts.sessions.test_state_of_approvals import question


def rule(kind: ApprovalKind, folder: str = "/work", **details: object) -> Rule | None:
    asked = ActionDetails(**details)  # type: ignore[arg-type]
    return rule_of(ApprovalRequested("q", kind, "", details=asked), folder)


def test_a_command_is_the_same_to_the_byte_and_in_the_same_folder() -> None:
    make = rule("command", command="make", cwd="/work")
    assert make is not None
    assert rule("command", command="make", cwd="/work", exit_code=1) == make
    for other in (("make ", "/work"), ("make", "/work/a"), ("make; rm", "/work"), ("mak", "e/work")):
        assert rule("command", command=other[0], cwd=other[1]) != make


def test_what_a_sentence_has_no_room_for_counts_too() -> None:
    long = "x" * 1000
    one, other = (rule("command", command=long + end, cwd=f"/{long}") for end in "ab")
    assert one != other
    elsewhere = rule("command", command=f"{long}a", cwd=f"/{long}/a")
    assert elsewhere != one


def test_a_command_without_a_folder_has_no_rule() -> None:
    assert rule("command", command="make") is None


def test_a_tool_of_an_mcp_server_has_any_arguments_and_another_tool_exactly_these() -> None:
    add = rule("mcp", server="sums", tool="add", arguments="{}")
    assert rule("mcp", server="sums", tool="add", arguments='{"a": 1}') == add
    assert rule("mcp", server="other", tool="add") != add
    fetch = rule("permission", tool="WebFetch", arguments='{"url": "http://one"}')
    assert rule("permission", tool="WebFetch", arguments='{"url": "http://two"}') != fetch
    assert fetch != add


@pytest.mark.parametrize("arguments", ["", "{}"])
def test_a_tool_whose_arguments_are_not_told_has_no_rule(arguments: str) -> None:
    assert rule("permission", tool="Fetch a page", arguments=arguments) is None


@pytest.mark.parametrize(
    "path", ["../new.txt", "/etc/passwd", "~/new.txt", ".git/config", "a/.CODEX/config.toml", "link"]
)
def test_a_change_elsewhere_has_no_rule(tmp_path: Path, path: str) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    inside, outside = FileDiff("new.txt"), FileDiff(path)
    assert rule("file_change", str(tmp_path), changes=(inside,)) is not None
    assert rule("file_change", str(tmp_path), changes=(inside, outside)) is None
    assert rule("file_change", str(tmp_path), changes=(FileDiff("new.txt", moved_to=path),)) is None


def test_a_sentence_is_one_line_whatever_the_agent_asks() -> None:
    made = rule("command", command="ls \x1b[2J\u202e\nrm -rf /" + "x" * 1000, cwd="/work")
    assert made is not None
    assert made.sentence.isprintable()
    assert len(made.sentence) < 600


def test_a_session_keeps_the_newest_rules() -> None:
    made = [Rule("command", str(number), "") for number in range(MAX_RULES + 1)]
    rules: tuple[Rule, ...] = ()
    for each in (*made, made[-1]):
        rules = with_rule(rules, each)
    assert rules == tuple(made[1:])


def test_other_tools_end_the_rules_of_mcp_servers() -> None:
    kept, gone = Rule("command", "1", ""), Rule("mcp_tool", "2", "")
    assert without_tools((kept, gone)) == (kept,)


def test_rules_of_a_session_without_an_approver_answer_nothing() -> None:
    driven = Driven()
    permitted = rule_of(question(), "")
    assert permitted is not None
    driven.state.session = replace(driven.state.session, rules=(permitted,))
    driven.state.rules_apply = False
    driven.feed(question("q1"))
    assert len(driven.state.session.open_asks) == 1
    driven.state.rules_apply = True
    driven.feed(question("q2"))
    assert len(driven.state.session.open_asks) == 1
    (answered,) = driven.state.turn_asks.take_answered()
    assert (answered.asked, answered.for_session, answered.decision.approve) == ("q2", True, True)
