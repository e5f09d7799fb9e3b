"""The state of a session with questions of the agent: what waits, what goes on, and which answers are taken."""

from __future__ import annotations

from typing import Any

import pytest

from codex_proxy.agents.dialect import Decision
from codex_proxy.core.events import ApprovalRequested, ItemEnded, ItemStarted, RequestClosed, Stop
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.items import ActionDetails, Activity, FileDiff, Permission, ToolName, ToolUse
from codex_proxy.parts.sessions.approvals import Approval, ask_object, ask_of, request_id_of, session_ask
from tests.parts.sessions.states import Driven, call


def question(id: str = "q1", *, asked: bool = True, **more: Any) -> ApprovalRequested:
    details = ActionDetails(command="make", cwd="/work")
    return ApprovalRequested(id, "command", "make", **{"details": details} | more, asked=asked)


def asking(*ids: str) -> tuple[Driven, list[str]]:
    """A session whose agent has asked these, and their ids."""
    driven = Driven()
    driven.feed(*map(question, ids))
    return driven, [ask.request_id for ask in driven.state.session.open_asks]


def test_a_question_has_the_session_wait_while_the_run_goes_on() -> None:
    driven = Driven()
    assert driven.feed(question()) == ["turn.in_progress", "requires_action"]
    assert driven.status == "requires_action"
    assert driven.turns["turn_1"].status == "waiting"
    assert driven.state.wants_run
    (action,) = driven.events[-1]["session"]["required_actions"]
    assert action["request_id"] == "mcpr_1_2"
    assert action == ask_object(driven.asks["mcpr_1_2"])


def test_what_the_server_has_declined_is_not_told() -> None:
    driven = Driven()
    assert driven.feed(question(asked=False)) == ["turn.in_progress"]
    assert driven.status == "in_progress"


def test_the_last_answer_has_the_turn_go_on() -> None:
    driven, (one, two) = asking("q1", "q2")
    assert driven.decide(one, "approve") == (True, ["requires_action"])
    assert [each["request_id"] for each in driven.events[-1]["session"]["required_actions"]] == [two]
    assert {turn.status for turn in driven.turns.values()} == {"waiting"}
    assert driven.decide(two, "deny") == (True, ["in_progress"])
    assert {turn.status for turn in driven.turns.values()} == {"in_progress"}
    assert (driven.asks[one].answered, driven.asks[two].answered) == ("approve", "deny")
    assert driven.end_run()[-1] == "idle"


def test_the_same_answer_again_is_none_and_another_a_conflict_also_behind_the_end() -> None:
    driven, (one,) = asking("q1")
    driven.decide(one, "cancel")
    for _ in range(2):
        assert driven.decide(one, "cancel") == (False, [])
        with pytest.raises(Fault) as raised:
            driven.decide(one, "deny")
        assert raised.value.failure.kind is FaultKind.CONFLICT
        if driven.state.turn is not None:
            driven.end_run()


@pytest.mark.parametrize("stop", [Stop.STOP, Stop.INTERRUPTED])
def test_a_turn_that_ends_takes_its_question_along(stop: str) -> None:
    driven, (one,) = asking("q1")
    driven.end_run(stop)
    assert (driven.status, driven.events[-1]["session"]["required_actions"]) == ("idle", [])
    with pytest.raises(Fault, match="has ended without an answer"):
        driven.decide(one, "approve")


def test_an_answer_to_no_question_is_refused() -> None:
    with pytest.raises(Fault, match="Unknown pending approval request: mcpr_9"):
        Driven().decide("mcpr_9", "approve")


def test_a_cancel_ends_the_run_and_not_the_turn_at_once() -> None:
    driven, _ = asking("q1")
    assert driven.cancel() == (True, [])
    assert driven.status == "requires_action"


def test_a_result_of_a_call_leaves_the_question_open() -> None:
    driven = Driven()
    driven.feed(*call("call_1"), question())
    actions = driven.events[-1]["session"]["required_actions"]
    assert [each["type"] for each in actions] == ["function_call", "mcp_approval_request"]
    assert driven.answer("call_1")[0] == "requires_action"
    assert driven.decide(actions[1]["request_id"], "approve") == (True, ["in_progress"])
    driven.end_run(Stop.TOOL_CALLS)
    assert driven.state.wants_run


def test_a_call_that_is_open_when_the_last_question_is_answered_waits_for_the_runs_end() -> None:
    driven = Driven()
    driven.feed(*call("call_1"), question())
    driven.decide(driven.state.session.open_asks[0].request_id, "approve")
    assert driven.status == "in_progress"
    assert driven.cancel() == (True, [])
    driven.end_run(Stop.TOOL_CALLS)
    assert driven.status == "requires_action"


def test_an_answer_can_be_taken_back() -> None:
    driven, (one,) = asking("q1")
    undo = driven.state.undo()
    ask = driven.state.ask(one)
    assert ask is not None
    driven.state.add_answer(Approval(one, "approve"), ask, 5)
    undo()
    assert driven.status == "requires_action"
    assert driven.decide(one, "deny") == (True, ["in_progress"])


def test_questions_of_one_turn_have_ids_of_their_own() -> None:
    driven, (one,) = asking("q1")
    driven.decide(one, "approve")
    driven.feed(question("q1"))
    (two,) = driven.state.session.open_asks
    assert (two.request_id != one, two.asked) == (True, "q1")
    assert len(driven.asks) == 2
    assert len(driven.state.session.actions) == 1, "what was answered does not grow the session"


@pytest.mark.parametrize(
    ("kind", "details", "reason", "label", "name", "arguments", "message"),
    [
        (
            *("command", ActionDetails(command="make\nit", cwd="/work"), "to build", "agent", "run_command"),
            {"command": "make\nit", "cwd": "/work", "reason": "to build"},
            "The agent wants to run a command: make it",
        ),
        (
            *("file_change", ActionDetails(changes=(FileDiff("/a", "update", "-x", "/b"),)), ""),
            *("agent", "apply_patch"),
            {
                "changes": [{"path": "/a", "kind": "update", "diff": "-x", "moved_to": "/b"}],
                "reason": None,
            },
            "The agent wants to change files: /a",
        ),
        (
            *("mcp", ActionDetails(server="notes", tool="write", arguments='{"text": "hi"}'), ""),
            *("notes", "write", {"text": "hi"}),
            "The agent wants to call the tool write of the MCP server notes",
        ),
        (
            *("permission", ActionDetails(tool="WebFetch", arguments="no JSON"), "", "agent", "permissions"),
            {"tool": "WebFetch", "arguments": "no JSON", "reason": None},
            "The agent wants to use its tool WebFetch",
        ),
    ],
)
def test_each_kind_of_question_has_its_form(
    kind: Any, details: ActionDetails, reason: str, label: str, name: str, arguments: Any, message: str
) -> None:
    ask = ask_of(ApprovalRequested("q", kind, "", details, reason), "mcpr_1", "turn_1")
    assert (ask.server_label, ask.name, ask.arguments, ask.message) == (label, name, arguments, message)


def test_a_question_that_the_agent_withdraws_needs_no_answer_and_the_turn_goes_on() -> None:
    driven, (one,) = asking("q1")
    assert driven.feed(RequestClosed("q1"), RequestClosed("q1")) == ["in_progress"]
    assert driven.events[-1]["session"]["required_actions"] == []
    with pytest.raises(Fault, match="no longer waits for an answer"):
        driven.decide(one, "approve")
    assert driven.feed(question("q2"), RequestClosed("q2"))[-1] == "in_progress"


# --- calls of a toolset -----------------------------------------------------------------------------


def used(id: str, permission: Permission = "always_ask", name: ToolName = "bash") -> ItemStarted:
    """The start of a call of an agent's own tool."""
    command = name == "bash"
    details = ActionDetails(
        command="make" if command else "", use=ToolUse(name, '{"command":"make"}', permission)
    )
    return ItemStarted(Activity(id, "command" if command else "other", "make", details=details))


def test_a_question_about_a_call_has_an_id_that_the_calls_entry_tells() -> None:
    driven = Driven()
    driven.feed(used("c1"))
    (item,) = driven.entries.keys() - {"msg_1_1"}
    driven.feed(question(item_id="c1"))
    (ask,) = driven.state.session.open_asks
    assert (ask.request_id, ask.item) == (request_id_of(item), item)


def test_an_answer_before_the_agent_has_asked_is_kept_and_given_when_it_asks() -> None:
    driven = Driven()
    driven.feed(used("c1"), used("c2"))
    one, two = (request_id_of(item) for item in driven.entries if item != "msg_1_1")
    assert driven.decide(two, "deny", "Not this.") == (True, [])
    assert driven.asks[two].answered == "deny", "an answer that is accepted is stored"
    assert driven.decide(two, "deny", "Not this.") == (False, [])
    with pytest.raises(Fault, match="has another answer already"):
        driven.decide(two, "deny", "Not that.")
    assert not driven.state.turn_asks.take_answered()
    driven.feed(question("q1", item_id="c1"))
    assert [ask.request_id for ask in driven.state.session.open_asks] == [one]
    assert driven.feed(question("q2", item_id="c2")) == []
    (answered,) = driven.state.turn_asks.take_answered()
    assert (answered.asked, answered.decision) == ("q2", Decision(by_client=True, message="Not this."))
    assert driven.status == "requires_action", "the other question is open"


@pytest.mark.parametrize("ends", [False, True])
def test_only_a_call_that_is_open_and_is_asked_for_can_be_answered_early(ends: bool) -> None:
    driven = Driven()
    driven.feed(used("c1", "always_ask" if ends else "always_allow"), *([ItemEnded("c1")] if ends else []))
    (item,) = driven.entries.keys() - {"msg_1_1"}
    with pytest.raises(Fault, match="Unknown pending approval request"):
        driven.decide(request_id_of(item), "approve")


def test_an_early_answer_can_be_taken_back_and_does_not_outlive_its_run() -> None:
    driven = Driven()
    driven.feed(used("c1"))
    (item,) = driven.entries.keys() - {"msg_1_1"}
    undo, ask = driven.state.undo(), driven.state.ask(request_id_of(item))
    assert ask is not None
    driven.state.add_answer(Approval(ask.request_id, "approve"), ask, 5)
    undo()
    assert driven.decide(ask.request_id, "deny") == (True, [])
    driven.end_run(Stop.INTERRUPTED)
    with pytest.raises(Fault, match="another answer"):
        driven.decide(ask.request_id, "approve")


def test_a_call_is_kept_from_its_beginning_and_one_that_only_reads_is_not_shown() -> None:
    driven = Driven()
    told = driven.feed(used("c1", "always_allow"), used("c2", "always_allow", "read"))
    assert told == ["turn.in_progress", "turn.item.added command_execution"]
    assert [item.get("status") for item in driven.items] == ["completed", "incomplete", None]
    assert driven.feed(ItemEnded("c2"), ItemEnded("c1")) == ["turn.item.done command_execution"]
    assert [item.get("status") for item in driven.items] == ["completed", "completed", None]
    assert driven.state.turn is not None
    assert driven.state.turn.outputs == 1


def test_a_tool_that_is_named_as_a_form_is_asked_about_as_a_call() -> None:
    fields = '[{"name":"city","type":"text","title":"City"}]'
    calls = ActionDetails(server="agent", tool="ask_user", arguments=f'{{"fields":{fields},"force":true}}')
    ask = ask_of(ApprovalRequested("q1", "mcp", "", calls), "mcpr_1", "turn_1")
    assert (ask.is_form, ask.fields, session_ask(ask)["form"]) == (False, [], False)
    assert ask.server_label == "agent (MCP server)", "what the agent itself asks for is shown otherwise"
