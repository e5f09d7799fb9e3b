"""Every scenario in both dialects: it ends, it says the same, and it is the same bytes each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fake_proto
from fake_proto import acp_turn, app_turn, claude_turn, proto_turn
from fake_proto.script import OPTIONS
from tests.fake.app_child import AppChild, deltas, is_completed
from tests.fake.child import Child
from tests.fake.proto_child import ask, is_over, proto, texts, user_input

SCENARIOS = sorted((Path(fake_proto.__file__).parent / "scenarios").glob("*.json"))
NAMES = [path.stem for path in SCENARIOS]
WAITING = {"approval", "approvals", "approval_patch", "declined"}
"""Scenarios that wait for an answer of the client."""
TOOLS = {name for name in NAMES if name.startswith(("tool_call", "function_call"))}
SUBAGENTS = {name for name in NAMES if name.startswith("subagent")}
"""Scenarios in which two turns of one process go on side by side."""
CUT_IN_APP_SERVER = {"multi_choice", "multi_choice_mixed"}
DIFFERENT = {"echo", *TOOLS, *SUBAGENTS, *CUT_IN_APP_SERVER, *WAITING}
"""Scenarios in which the dialects say different texts: other requests, other abilities."""
NAMED_BY_THE_CONTRACT = """
text long_text reasoning reasoning_raw multi_message no_deltas revised_text refusal length content_filter
tool_calls tool_calls_sequential function_call multi_choice usage_missing usage_multistep retry_before_text
retry_after_text_same retry_after_text_different error_500 error_rate_limit usage_limit context_length
auth_401 model_not_found invalid_prompt error_mid_text future_finish_reason empty activity unicode echo
count truncation
"""


def test_no_promised_scenario_is_missing() -> None:
    assert set(NAMED_BY_THE_CONTRACT.split()) <= set(NAMES)


@pytest.mark.parametrize("path", SCENARIOS, ids=NAMES)
def test_a_scenario_says_what_it_is_about(path: Path) -> None:
    scenario = json.loads(path.read_text(encoding="utf-8"))
    assert scenario["about"].endswith(".")
    assert scenario["steps"]


def test_each_action_of_a_scenario_is_in_the_table_of_each_protocol() -> None:
    scenarios = [json.loads(path.read_text(encoding="utf-8")) for path in SCENARIOS]
    used = {action["do"] for each in scenarios for step in each["steps"] for action in step["actions"]}
    for module in (acp_turn, app_turn, claude_turn, proto_turn):
        assert module.ACTIONS.keys() == (used - {"error"}) | {"big_line", "unknown_request"}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", sorted(set(NAMES) - WAITING))
def test_a_scenario_ends_in_proto(name: str) -> None:
    with proto() as child:
        messages = ask(child, f"[[fake:{name}]]")
    assert messages[0]["type"] == "task_started"
    assert messages[-1]["type"] == "task_complete"


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("name", sorted(set(NAMES) - DIFFERENT))
def test_a_scenario_says_the_same_in_both_dialects(name: str) -> None:
    with proto() as child:
        messages = ask(child, f"[[fake:{name}]]")
    with AppChild() as app:
        notifications = app.play(f"[[fake:{name}]]")
    assert texts(messages, "agent_message_delta", "delta") == deltas(notifications)
    failed = any(message["type"] == "error" for message in messages)
    status = notifications[-1]["params"]["turn"]["status"]
    # The app-server has no finish reasons: a cut answer is a failure there.
    assert (status == "failed") is (failed or name in ("length", "truncation", "content_filter"))


def test_the_texts_of_a_message_add_up_except_where_it_is_revised() -> None:
    with proto() as child:
        for submission, (name, same) in enumerate((("unicode", True), ("revised_text", False))):
            messages = ask(child, f"[[fake:{name}]]", str(submission))
            streamed = "".join(texts(messages, "agent_message_delta", "delta"))
            assert (streamed == texts(messages, "agent_message", "message")[0]) is same


def test_unicode_reaches_the_wire_unescaped() -> None:
    with proto() as child:
        child.send(user_input("[[fake:unicode]]"))
        whole = b"\n".join(child.lines_until(is_over)).decode()
    assert "漢字" in whole
    assert "\u2028" in whole


def played_in_proto(child: Child) -> bytes:
    lines = [child.read_line() or b""]
    for name in sorted(set(NAMES) - WAITING):
        child.send(user_input(f"[[fake:{name}]]", name))
        lines += child.lines_until(is_over)
    return b"\n".join(lines)


def played_in_app_server(child: AppChild) -> bytes:
    lines: list[bytes] = []
    for name in sorted(set(NAMES) - WAITING - SUBAGENTS):
        child.start_turn(child.start_thread(), f"[[fake:{name}]]")
        lines += child.lines_until(is_completed)
    return b"\n".join(lines)


def test_proto_says_the_same_bytes_in_every_run() -> None:
    with proto() as one, proto() as other:
        assert played_in_proto(one) == played_in_proto(other)


def test_the_app_server_says_the_same_bytes_in_every_run() -> None:
    with AppChild() as one, AppChild() as other:
        assert played_in_app_server(one) == played_in_app_server(other)


def test_an_unknown_key_of_a_marker_fails_and_is_named() -> None:
    with proto() as child:
        messages = ask(child, "[[fake:text sai='Hi.']]")
    assert texts(messages, "error", "message") == ["the fake agent's markers have no key 'sai'"]


def test_the_readme_names_every_key_of_a_marker() -> None:
    readme = (Path(__file__).parents[2] / "fake_proto" / "README.md").read_text("utf-8")
    assert [key for key in OPTIONS if f"{key}=" not in readme] == []


def test_an_unknown_scenario_fails_and_names_itself() -> None:
    with proto() as child:
        messages = ask(child, "[[fake:nonesuch]]")
    assert texts(messages, "error", "message") == ["the fake agent has no scenario 'nonesuch'"]
