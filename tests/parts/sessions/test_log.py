"""The log of a session: what it says of a turn, and in which order."""

from __future__ import annotations

from codex_proxy.core.events import (
    ApprovalRequested,
    HistoryCompacted,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    Retrying,
    StepCompleted,
    Stop,
    Usage,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import ActionDetails, Activity, ToolUse
from codex_proxy.parts.sessions.approvals import request_id_of
from codex_proxy.parts.sessions.log import (
    Acted,
    Decided,
    Ended,
    Failed,
    Log,
    Rested,
    Running,
    StepEnded,
    Waits,
)
from codex_proxy.parts.sessions.state import SessionState
from tests.parts.sessions.states import Driven, call, calling, message


def names(driven: Driven) -> list[str]:
    return [type(each).__name__ for each in driven.logged]


TURN = ["Said", "Running"]
STEP = ["StepBegan", "Shown", "StepEnded"]


def test_a_turn_is_a_message_a_model_request_and_rest() -> None:
    driven = Driven()
    driven.feed(*message("Hi."), StepCompleted(Usage(input=3, output=2)))
    driven.end_run()
    assert names(driven) == [*TURN, *STEP, "Rested"]
    assert driven.logged[-1] == Rested(5)
    assert [each.number for each in driven.logged] == [*range(6)]


def test_a_call_of_the_client_that_is_told_behind_its_model_request_begins_no_other() -> None:
    driven = Driven()
    driven.feed(StepCompleted(Usage(input=3)), *call("call_1"))
    driven.end_run(Stop.TOOL_CALLS)
    assert names(driven) == [*TURN, "StepBegan", "StepEnded", "Shown", "Waits"]


def test_a_conversation_that_was_summed_up_is_told() -> None:
    driven = Driven()
    driven.feed(HistoryCompacted(), *message("Hi."), StepCompleted())
    driven.end_run()
    assert names(driven) == [*TURN, "Compacted", *STEP, "Rested"]


def test_a_command_has_its_result_behind_the_model_request_that_called_it() -> None:
    driven = Driven()
    started = ItemStarted(Activity("a", "command", "ls"))
    driven.feed(started, StepCompleted(), OutputDelta("a", "x"), ItemEnded("a"))
    driven.feed(*message("Done."), StepCompleted())
    driven.end_run()
    assert names(driven) == [*TURN, "StepBegan", "Acted", "StepEnded", "Ended", *STEP, "Rested"]


def test_a_command_that_is_told_behind_its_model_request_begins_no_other() -> None:
    driven = Driven()
    driven.feed(
        *message("I look."), StepCompleted(), ItemStarted(Activity("a", "command", "ls")), ItemEnded("a")
    )
    assert names(driven) == [*TURN, *STEP, "Acted", "Ended"]


def test_a_tool_without_an_item_of_openais_api_is_in_the_log() -> None:
    driven = Driven()
    details = ActionDetails(use=ToolUse("read", '{"file_path":"a"}', "always_ask"))
    started = ItemStarted(Activity("a", "other", "Read a", details=details))
    driven.feed(started, ApprovalRequested("r", "permission", "Read a", details, asked=True, item_id="a"))
    (ask,) = driven.state.session.open_asks
    driven.decide(ask.request_id, "approve")
    driven.feed(OutputDelta("a", "x"), ItemEnded("a"))
    assert names(driven)[2:] == ["StepBegan", "Acted", "StepEnded", "Waits", "Decided", "Running", "Ended"]
    acted, waits, decided, ended = (driven.logged[place] for place in (3, 5, 6, 8))
    assert isinstance(acted, Acted)
    assert waits == Waits(5, (acted.item,))
    assert decided == Decided(6, acted.item, approve=True)
    assert ended == Ended(8, acted.item, acted.item)


def test_an_answer_before_its_question_tells_no_state() -> None:
    driven = Driven()
    details = ActionDetails(use=ToolUse("bash", '{"command":"ls"}', "always_ask"))
    driven.feed(ItemStarted(Activity("a", "command", "ls", details=details)))
    acted = driven.logged[-1]
    assert isinstance(acted, Acted)
    driven.decide(request_id_of(acted.item), "deny")
    driven.feed(ApprovalRequested("r", "command", "ls", details, asked=True, item_id="a"))
    assert names(driven)[2:] == ["StepBegan", "Acted", "Decided"]


def test_the_tokens_of_a_run_are_those_of_its_only_model_request_if_that_does_not_tell() -> None:
    driven = Driven()
    driven.feed(*message("Hi."))
    driven.end_run(usage=Usage(input=7, output=1))
    ended = [each for each in driven.logged if isinstance(each, StepEnded)]
    assert [each.usage for each in ended] == [Usage(input=7, output=1)]


def test_a_repeated_model_request_ends_and_is_an_error_that_is_retried() -> None:
    driven = Driven()
    failure = Failure(FaultKind.RATE_LIMITED, "Slow down.")
    driven.feed(*message("Hi.")[:2], Retrying("again", failure=failure))
    assert names(driven) == [*TURN, "StepBegan", "StepEnded", "Failed"]
    assert driven.logged[-1] == Failed(4, "rate_limit_exceeded", "again", retries=True)


def test_each_answer_that_leaves_calls_open_tells_of_the_rest() -> None:
    driven = calling("call_1", "call_2")
    driven.answer("call_2")
    driven.answer("call_1")
    waits = [each.calls for each in driven.logged if isinstance(each, Waits)]
    items = [item["id"] for item in driven.items if item["type"] == "function_call"]
    assert waits == [tuple(items), (items[0],)]
    assert names(driven)[-5:] == ["Waits", "Answered", "Waits", "Answered", "Running"]


def test_a_result_that_comes_before_the_session_waits_tells_no_state() -> None:
    driven = Driven()
    driven.feed(*call("call_1"))
    driven.answer("call_1")
    driven.end_run(Stop.TOOL_CALLS)
    assert names(driven) == [*TURN, "StepBegan", "Shown", "Answered", "StepEnded"]


def test_a_message_that_waits_begins_its_turn_without_a_rest_between() -> None:
    driven = Driven()
    driven.say("And more.")
    driven.feed(*message("Hi."), StepCompleted())
    driven.end_run()
    assert names(driven) == [*TURN, *STEP, "Said"]
    driven.end_run()
    assert sum(isinstance(each, Running) for each in driven.logged) == 1


def test_a_cancelled_command_has_a_result() -> None:
    driven = Driven()
    driven.feed(ItemStarted(Activity("a", "command", "sleep")))
    driven.cancel()
    driven.end_run(Stop.INTERRUPTED)
    assert names(driven)[-4:] == ["Interrupted", "Ended", "StepEnded", "Rested"]


def test_a_call_of_a_process_that_is_gone_has_a_result_and_numbers_go_on() -> None:
    driven = Driven()
    driven.feed(ItemStarted(Activity("a", "command", "sleep")))
    session, turn = driven.state.session, driven.turns["turn_1"]
    page = Log().page(driven.logged, 9)
    driven.state = SessionState(session, turn, driven.state.last_item, page)
    driven.end_run(Stop.FAILED, failure=Failure(FaultKind.UPSTREAM_ERROR, "gone"))
    assert names(driven)[-4:] == ["Ended", "StepEnded", "Failed", "Rested"]
    assert [each.number for each in driven.logged] == [*range(len(driven.logged))]


def test_times_do_not_go_back_where_the_clock_does() -> None:
    log = Log()
    first = log.page([Rested(log.number()), Rested(log.number())], 5)
    assert log.page([Rested(log.number())], 4).at == first.at + 2
