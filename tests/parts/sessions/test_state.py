"""The state of a session: what acts of clients and of the agent change, and in which order readers learn of it."""

from __future__ import annotations

import pytest

from codex_proxy.core.events import (
    InputTaken,
    ItemEnded,
    ItemStarted,
    OfSubagent,
    OutputDelta,
    Stop,
    SubagentClosed,
    SubagentOpened,
    TextDelta,
    TurnEnded,
    Usage,
)
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import Activity, Message
from codex_proxy.parts.sessions.commands import is_new_result
from codex_proxy.parts.sessions.items import WholeItem, call_entry, item_object
from codex_proxy.parts.sessions.log import Log
from codex_proxy.parts.sessions.render import TurnRenderer
from codex_proxy.parts.sessions.sessions import Call, Entry, Session, TurnError
from codex_proxy.parts.sessions.state import MAX_QUEUED
from codex_proxy.parts.sessions.stream import encode_changes
from codex_proxy.parts.sessions.subagents import MAX_KEPT, OfThread, SubagentEntry
from tests.parts.sessions.states import HELLO, TOKENS, Driven, call, calling, message, result, short

BEGIN = ["turn.created", "turn.item.added message", "in_progress"]
TEXT = [
    "turn.item.added message",
    "turn.content_part.added",
    "turn.output_text.delta",
    "turn.output_text.done",
    "turn.content_part.done",
    "turn.item.done message",
]

# --- a turn -----------------------------------------------------------------------------------------


def test_a_turn_is_told_in_the_order_of_the_api() -> None:
    driven = Driven()
    driven.feed(*message("Hi."))
    driven.end_run()
    told = [short(event) for event in driven.events]
    assert told == ["created", *BEGIN, "turn.in_progress", *TEXT, "turn.completed", "idle"]
    assert driven.status == "idle"


def test_a_session_without_input_is_created_idle() -> None:
    driven = Driven(begins=False)
    assert [short(event) for event in driven.events] == ["created", "idle"]
    assert driven.events[0]["session"] == driven.events[1]["session"]


def test_the_created_session_is_at_work_already() -> None:
    assert Driven().events[0]["session"]["status"] == "in_progress"


def test_a_second_turn_counts_its_items_from_nought() -> None:
    driven = Driven()
    driven.feed(*message("Hi."))
    driven.end_run()
    driven.say("Again.")
    driven.feed(*message("Yes."))
    indexes = [e["output_index"] for e in driven.events if short(e) == "turn.item.done message"]
    assert indexes == [0, 0]
    assert [item["turn_id"] for item in driven.items] == ["turn_1", "turn_1", "turn_2", "turn_2"]
    assert len({item["id"] for item in driven.items}) == 4


def test_input_items_have_the_output_index_null() -> None:
    added = next(event for event in Driven().events if short(event) == "turn.item.added message")
    assert added["output_index"] is None


def test_a_turn_that_is_cut_at_a_limit_fails() -> None:
    driven = Driven()
    driven.feed(*message("Hi"))
    assert driven.end_run(Stop.LENGTH) == ["turn.failed", "error", "idle"]
    assert driven.turns["turn_1"].error == TurnError(
        "max_output_tokens", driven.events[-2]["error"]["message"]
    )


def test_a_failed_turn_leaves_the_session_idle_for_the_next() -> None:
    driven = Driven()
    failure = Failure(FaultKind.UPSTREAM_ERROR, "The model broke off.")
    driven.feed(ItemStarted(Message("m")), TextDelta("m", "Half"))
    assert driven.end_run(Stop.FAILED, None, failure=failure) == [
        "turn.item.done message",
        "turn.failed",
        "error",
        "idle",
    ]
    assert driven.items[-1]["status"] == "incomplete"
    assert driven.items[-1]["content"] == [{"type": "output_text", "text": "Half"}]
    assert driven.say("Again.") == BEGIN


def test_an_interrupted_run_ends_the_turn_as_cancelled_without_error() -> None:
    driven = Driven()
    driven.feed(*message("Hi."))
    assert driven.end_run(Stop.INTERRUPTED) == ["turn.cancelled", "idle"]
    assert driven.turns["turn_1"].error is None


def test_items_are_kept_in_the_order_in_which_they_began() -> None:
    driven = Driven()
    driven.feed(ItemStarted(Activity("a", "command", "ls")), OutputDelta("a", "one"), *message("Hi."))
    command, text = driven.items[-2:]
    assert (command["type"], command["status"], command["output"]) == (
        "command_execution",
        "incomplete",
        "one",
    )
    assert text["type"] == "message"
    assert driven.state.last_item == text["id"]
    driven.feed(OutputDelta("a", " two"), ItemEnded("a"))
    command, same = driven.items[-2:]
    assert (command["status"], command["output"], same) == ("completed", "one two", text)
    assert driven.state.last_item == text["id"]


def test_an_open_item_comes_before_the_result_of_a_call_that_arrives_meanwhile() -> None:
    driven = Driven()
    driven.feed(*call("call_1"), ItemStarted(Message("m")), TextDelta("m", "Well"))
    driven.answer("call_1")
    assert [item["type"] for item in driven.items[1:]] == ["function_call", "message", "function_call_output"]
    driven.end_run(Stop.TOOL_CALLS)
    assert [item["type"] for item in driven.items[1:]] == ["function_call", "message", "function_call_output"]
    assert driven.state.last_item == driven.items[-1]["id"]


# --- calls ------------------------------------------------------------------------------------------


def test_a_call_is_told_with_its_arguments_before_the_session_waits() -> None:
    driven = calling("call_1")
    told = [short(event) for event in driven.events[-2:]]
    assert told == ["turn.item.added function_call", "requires_action"]
    assert driven.events[-2]["item"]["arguments"] == {"city": "Paris"}
    assert [action["call_id"] for action in driven.events[-1]["session"]["required_actions"]] == ["call_1"]
    assert driven.turns["turn_1"].status == "waiting"


def test_the_last_result_has_the_turn_go_on() -> None:
    driven = calling("call_1", "call_2")
    assert driven.answer("call_1") == [
        "requires_action",
        "turn.item.done function_call",
        "turn.item.added function_call_output",
    ]
    assert not driven.state.wants_run
    assert [call.call_id for call in driven.state.session.open_calls] == ["call_2"]
    assert driven.answer("call_2") == [
        "in_progress",
        "turn.item.done function_call",
        "turn.item.added function_call_output",
    ]
    assert driven.state.wants_run
    assert driven.turns["turn_1"].status == "in_progress"
    assert driven.feed(*message("Sunny.")) == TEXT
    assert driven.end_run() == ["turn.completed", "idle"]


def test_a_turn_is_told_to_begin_once_however_many_runs_it_has() -> None:
    driven = calling("call_1")
    driven.answer("call_1")
    driven.feed(*message("Sunny."))
    driven.end_run()
    assert [short(event) for event in driven.events].count("turn.in_progress") == 1


def test_a_result_before_the_session_waits_is_taken() -> None:
    driven = Driven()
    driven.feed(*call("call_1"))
    assert driven.answer("call_1") == ["turn.item.done function_call", "turn.item.added function_call_output"]
    assert driven.end_run(Stop.TOOL_CALLS) == []
    assert driven.state.wants_run
    assert driven.status == "in_progress"


def test_of_two_calls_one_answered_early_the_other_is_waited_for() -> None:
    driven = Driven()
    driven.feed(*call("call_1"), *call("call_2"))
    driven.answer("call_1")
    assert driven.end_run(Stop.TOOL_CALLS) == ["requires_action"]
    actions = driven.events[-1]["session"]["required_actions"]
    assert [action["call_id"] for action in actions] == ["call_2"]


def test_a_failed_result_fails_the_call() -> None:
    driven = calling("call_1")
    driven.answer("call_1", None, success=False)  # type: ignore[arg-type]  # no output
    called, output = driven.items[-2:]
    assert (called["status"], output["status"], output["error"], output["output"]) == (
        "failed",
        "failed",
        "no",
        None,
    )


def test_the_item_of_an_answered_call_keeps_its_id_and_place() -> None:
    driven = calling("call_1")
    driven.answer("call_1")
    added = next(e for e in driven.events if short(e) == "turn.item.added function_call")
    done = next(e for e in driven.events if short(e) == "turn.item.done function_call")
    assert (added["item"]["id"], added["output_index"]) == (done["item"]["id"], done["output_index"])
    assert [item["type"] for item in driven.items] == ["message", "function_call", "function_call_output"]


def test_the_same_result_again_changes_nothing() -> None:
    driven = calling("call_1", "call_2")
    driven.answer("call_1")
    assert driven.answer("call_1") == []
    driven.answer("call_2")
    assert driven.answer("call_1") == []
    driven.end_run()
    assert driven.answer("call_1") == []


def test_another_result_of_an_answered_call_is_a_conflict() -> None:
    driven = calling("call_1", "call_2")
    driven.answer("call_1")
    with pytest.raises(Fault, match="has another result already") as raised:
        driven.answer("call_1", "rainy")
    assert raised.value.failure.kind is FaultKind.CONFLICT


@pytest.mark.parametrize("end", ["cancel", "complete", "fail"])
def test_a_result_after_the_end_of_its_turn_is_a_conflict(end: str) -> None:
    driven = calling("call_1")
    if end == "cancel":
        driven.cancel()
    elif end == "fail":
        driven.state.fail(TurnError("request_timeout", "Too late."), 9)
        driven.settle()
    else:
        driven = Driven()
        driven.feed(*call("call_1"))
        driven.end_run(Stop.STOP)
    with pytest.raises(Fault, match="ended without its result") as raised:
        driven.answer("call_1")
    assert raised.value.failure.kind is FaultKind.CONFLICT


def test_a_result_of_an_unknown_call_has_the_text_that_sdks_know() -> None:
    with pytest.raises(Fault) as raised:
        calling("call_1").answer("call_2")
    assert raised.value.failure.message == "Unknown pending tool call: call_2"
    assert raised.value.failure.kind is FaultKind.INVALID_REQUEST


def test_a_result_that_names_another_turn_is_refused() -> None:
    driven = calling("call_1")
    with pytest.raises(Fault, match="of another turn"):
        is_new_result(result("call_1", turn="turn_9"), driven.calls["call_1"], driven.state.session)


def test_a_call_with_the_id_of_an_answered_one_waits_for_a_result_of_its_own() -> None:
    driven = calling("call_1")
    driven.answer("call_1")
    driven.feed(*call("call_1"))
    driven.end_run(Stop.TOOL_CALLS)
    assert driven.status == "requires_action"
    assert driven.answer("call_1", "rainy")[0] == "in_progress"
    assert driven.state.wants_run


def test_two_calls_of_one_id_take_a_result_each() -> None:
    driven = calling("call_1", "call_1")
    assert driven.answer("call_1")[0] == "requires_action"
    assert driven.answer("call_1")[0] == "in_progress"
    assert [item["type"] for item in driven.items].count("function_call_output") == 2


def test_a_run_that_ends_for_calls_without_a_new_one_ends_the_turn() -> None:
    driven = calling("call_1")
    driven.answer("call_1")
    assert driven.end_run(Stop.TOOL_CALLS) == ["turn.completed", "idle"]


def test_arguments_that_are_no_json_are_shown_as_text() -> None:
    driven = Driven()
    driven.feed(*call("call_1", "{city"))
    assert driven.items[-1]["arguments"] == "{city"


# --- messages while a turn goes on --------------------------------------------------------------------


def test_a_message_at_work_waits_for_the_end_of_the_turn() -> None:
    driven = Driven()
    driven.feed(*message("Hi."))
    assert driven.say("One.") == driven.say("Two.", "Three.") == []
    assert driven.end_run() == ["turn.completed", *BEGIN]
    driven.feed(*message("Hi."))
    assert driven.end_run() == ["turn.completed", BEGIN[0], BEGIN[1], BEGIN[1], BEGIN[2]]
    driven.feed(*message("Hi."))
    assert driven.end_run() == ["turn.completed", "idle"]
    texts = [item["content"][0]["text"] for item in driven.items if item.get("role") == "user"]
    assert texts == ["Hello.", "One.", "Two.", "Three."]


def test_a_message_while_calls_are_open_waits_behind_them() -> None:
    driven = calling("call_1")
    assert driven.say("One.") == []
    assert driven.status == "requires_action"
    driven.answer("call_1")
    driven.feed(*message("Sunny."))
    assert driven.end_run() == ["turn.completed", *BEGIN]


def test_a_message_that_the_agent_takes_is_an_item_of_the_turn() -> None:
    driven = Driven()
    driven.say("One.", "Two.")
    batch = driven.state.session.queued[0].id
    told = driven.feed(*message("Hi."), InputTaken(batch), *message("Yes.", "n"))
    assert told == ["turn.in_progress", *TEXT, "turn.item.added message", "turn.item.added message", *TEXT]
    added = [event for event in driven.events if short(event) == "turn.item.added message"]
    assert [event["output_index"] for event in added] == [None, 0, None, None, 1]
    assert driven.end_run() == ["turn.completed", "idle"]
    assert [item["content"][0]["text"] for item in driven.items] == ["Hello.", "Hi.", "One.", "Two.", "Yes."]
    assert {item["turn_id"] for item in driven.items} == {"turn_1"}


def test_a_message_is_no_longer_waiting_with_the_commit_that_makes_it_an_item() -> None:
    driven = Driven()
    driven.say("One.")
    driven.state.on_run_began(2)
    driven.state.feed([InputTaken(driven.state.session.queued[0].id)], 3)
    records = driven.state.take(7).records
    [session] = [record for record in records if isinstance(record, Session)]
    [entry] = [record for record in records if isinstance(record, Entry)]
    assert (session.queued, entry.turn) == ((), "turn_1")


def test_a_message_that_is_not_taken_begins_the_next_turn_before_later_ones() -> None:
    driven = Driven()
    for text in ("One.", "Two.", "Three."):
        driven.say(text)
    driven.feed(InputTaken(driven.state.session.queued[0].id))
    assert driven.end_run() == ["turn.completed", *BEGIN]
    texts = [(item["turn_id"], item["content"][0]["text"]) for item in driven.items]
    assert texts == [("turn_1", "Hello."), ("turn_1", "One."), ("turn_3", "Two.")]
    assert len(driven.state.session.queued) == 1


def test_an_input_that_nobody_waits_to_see_taken_changes_nothing() -> None:
    driven = Driven()
    driven.say("One.")
    driven.feed(InputTaken("turn_9"))
    assert len(driven.state.session.queued) == 1
    assert len(driven.items) == 1


def test_a_message_is_stored_behind_a_command_that_still_runs() -> None:
    driven = Driven()
    driven.say("One.")
    command = ItemStarted(Activity("a", "command", "ls"))
    driven.feed(command, InputTaken(driven.state.session.queued[0].id))
    driven.feed(ItemEnded("a"))
    assert [item["type"] for item in driven.items] == ["message", "command_execution", "message"]
    assert driven.items[1]["status"] == "completed"


def test_messages_that_wait_have_a_limit() -> None:
    driven = Driven()
    for _ in range(MAX_QUEUED):
        driven.say("More.")
    with pytest.raises(Fault, match="which is the limit") as raised:
        driven.say("More.")
    assert raised.value.failure.kind is FaultKind.CONCURRENCY_EXCEEDED


def test_a_failed_turn_is_followed_by_the_messages_that_wait() -> None:
    driven = Driven()
    driven.say("One.")
    driven.state.fail(TurnError("internal_error", "Broken."), 9)
    assert driven.settle() == ["turn.failed", "error", *BEGIN]


def test_messages_that_wait_come_before_one_that_arrives_with_a_cancel() -> None:
    driven = calling("call_1")
    driven.say("One.")
    driven.state.cancel(6)
    driven.state.add_messages([HELLO], "turn_b", 6)
    driven.settle()
    assert driven.items[-1]["content"][0]["text"] == "One."
    assert len(driven.state.session.queued) == 1


def test_no_turn_begins_where_the_server_stops() -> None:
    driven = Driven()
    driven.say("One.")
    driven.state.fail(TurnError("internal_error", "Broken."), 9)
    driven.state.settle(9, may_begin=False)
    assert driven.take()[-1] == "idle"
    assert len(driven.state.session.queued) == 1


# --- cancel -------------------------------------------------------------------------------------------


def test_to_cancel_an_idle_session_tells_nothing() -> None:
    assert Driven(begins=False).cancel() == (False, [])


def test_to_cancel_a_waiting_turn_ends_it_at_once() -> None:
    driven = calling("call_1", "call_2")
    assert driven.cancel() == (
        False,
        ["turn.item.done function_call", "turn.item.done function_call", "turn.cancelled", "idle"],
    )
    assert [item["status"] for item in driven.items if item["type"] == "function_call"] == ["incomplete"] * 2
    assert driven.events[-1]["session"]["required_actions"] == []
    assert driven.turns["turn_1"].error is None


def test_to_cancel_at_work_asks_for_the_end_of_the_run() -> None:
    driven = Driven()
    driven.feed(ItemStarted(Message("m")), TextDelta("m", "Ha"))
    assert driven.cancel() == (True, [])
    assert driven.status == "in_progress"
    assert driven.end_run(Stop.INTERRUPTED) == ["turn.item.done message", "turn.cancelled", "idle"]


def test_to_cancel_with_messages_that_wait_begins_the_next_turn() -> None:
    driven = calling("call_1")
    driven.say("One.")
    assert driven.cancel()[1][-3:] == BEGIN


# --- tokens -------------------------------------------------------------------------------------------


def test_the_tokens_of_a_turn_are_the_sum_of_its_runs() -> None:
    driven = calling("call_1")
    driven.answer("call_1")
    driven.feed(*message("Sunny."))
    driven.end_run()
    assert driven.turns["turn_1"].usage == TOKENS + TOKENS
    completed = next(event for event in driven.events if short(event) == "turn.completed")
    assert completed["usage"] == completed["turn"]["usage"]
    assert completed["usage"]["total_tokens"] == 30


def test_the_tokens_of_a_session_are_the_sum_of_its_turns() -> None:
    driven = Driven()
    driven.end_run()
    assert driven.events[-1]["session"]["usage"]["total_tokens"] == 15
    driven.say("Again.")
    assert driven.events[-1]["session"].get("usage", "") is None  # while a turn goes on
    driven.end_run(usage=Usage(input=1, output=1))
    assert driven.events[-1]["session"]["usage"]["total_tokens"] == 17


def test_one_turn_of_unknown_tokens_makes_those_of_the_session_unknown() -> None:
    driven = Driven()
    driven.end_run(usage=None)
    driven.say("Again.")
    driven.end_run()
    assert driven.turns["turn_1"].usage is None
    assert driven.turns["turn_2"].usage == TOKENS
    assert driven.events[-1]["session"]["usage"] is None


@pytest.mark.parametrize("tokens", [(None, TOKENS), (TOKENS, None)])
def test_one_run_of_unknown_tokens_makes_those_of_the_turn_unknown(tokens: tuple[Usage | None, ...]) -> None:
    driven = Driven()
    driven.feed(*call("call_1"))
    driven.end_run(Stop.TOOL_CALLS, tokens[0])
    driven.answer("call_1")
    driven.end_run(usage=tokens[1])
    assert driven.turns["turn_1"].usage is None


# --- to take back -------------------------------------------------------------------------------------


def test_what_clients_did_can_be_taken_back() -> None:
    driven = calling("call_1", "call_2")
    before = driven.state.session, driven.state.turn, driven.state.last_item
    undo = driven.state.undo()
    driven.give(result("call_1"))
    driven.state.cancel(6)
    driven.state.add_messages([HELLO], "turn_b", 6)
    driven.state.settle(6)
    undo()
    assert (driven.state.session, driven.state.turn, driven.state.last_item) == before
    assert driven.take() == []
    driven.answer("call_1")
    driven.answer("call_2")
    ids = [item["id"] for item in driven.items]
    assert len(ids) == len(set(ids)) == 5
    assert driven.state.wants_run


def test_what_was_taken_back_leaves_open_items_where_they_began() -> None:
    driven = Driven()
    driven.feed(*call("call_1"), ItemStarted(Message("m")), TextDelta("m", "Well"))
    undo = driven.state.undo()
    driven.give(result("call_1"))
    undo()
    driven.answer("call_1")
    assert [item["type"] for item in driven.items[1:]] == ["function_call", "message", "function_call_output"]


def test_what_was_taken_back_leaves_what_a_subagent_is_saying() -> None:
    driven = Driven()
    said = ItemStarted(Message("m")), TextDelta("m", "Well")
    driven.feed(SubagentOpened("a"), *(OfSubagent("a", each) for each in said))
    undo = driven.state.undo()
    driven.state.add_messages([HELLO], "turn_b", 6)
    undo()
    ended = TextDelta("m", " done."), ItemEnded("m"), TurnEnded(Stop.STOP)
    driven.state.feed([OfSubagent("a", each) for each in ended], 7)
    entries = [each.entry for each in driven.state.take(8).records if isinstance(each, SubagentEntry)]
    texts = [item_object(each) for each in entries if isinstance(each, Entry)]
    assert [item["content"] for item in texts if item] == [[{"type": "output_text", "text": "Well done."}]]


def test_a_subagent_is_not_forgotten_before_its_log_is_stored() -> None:
    driven = Driven()
    ids = [str(number) for number in range(MAX_KEPT)]
    driven.feed(*map(SubagentOpened, ids))
    begun = OfSubagent("0", TextDelta("m", "")), SubagentClosed("0"), SubagentOpened("new")
    driven.state.feed(begun, 7)
    changes = driven.state.take(8)
    told = {each.subagent for each in changes.told if isinstance(each, OfThread)}
    assert len(told) == 2
    assert told == changes.pages.keys() - {""}
    encode_changes(changes, str)


def test_what_was_taken_back_at_rest_leaves_the_session_at_rest() -> None:
    driven = Driven(begins=False)
    undo = driven.state.undo()
    driven.state.add_messages([HELLO], "turn_b", 6)
    undo()
    assert driven.settle() == []
    assert driven.status == "idle"


def test_each_change_is_stored_once() -> None:
    driven = calling("call_1")
    assert driven.state.take(7) == ([], [], {})


def test_each_piece_of_an_output_costs_the_same_however_long_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = TurnRenderer("sess_1", "turn_1", Log())
    renderer.feed([ItemStarted(Activity("a", "command", "ls"))])

    def fail(*_: object) -> None:
        raise AssertionError("the whole item was made for a piece of it")

    monkeypatch.setattr(WholeItem, "object", fail)
    renderer.feed([OutputDelta("a", "x"), OutputDelta("a", "y")])
    told = [event for event in renderer.events if isinstance(event, dict)]
    assert [event.get("delta") for event in told[-2:]] == ["x", "y"]


def test_arguments_that_are_nested_too_deep_are_shown_as_text() -> None:
    text = "[" * 100_000 + "]" * 100_000
    assert item_object(call_entry(Call("call_1", "f", text, "turn_1", "fc_1", 0)))["arguments"] == text
