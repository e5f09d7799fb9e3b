"""A turn as a dialogue, line by line: how it begins, how it is left, and what is said to the agent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from codex_proxy.agents.codex_app_server.wire import decode
from codex_proxy.agents.dialect import NOTHING, Ended
from codex_proxy.core import events as ev
from codex_proxy.core.events import Retrying, Stop, TurnEnded
from codex_proxy.core.turn import Turn
from codex_proxy.tools.policy import may_be_called
from tests.agents.app_server_dialogue import (
    ASK_1,
    HISTORY,
    SUNNY,
    THREAD,
    TURN,
    WEATHER,
    Dialogue,
    tool_output_line,
)

# --- the way in -----------------------------------------------------------------------------------


def test_history_and_start_go_out_in_one_write_as_soon_as_the_thread_is_there() -> None:
    dialogue = Dialogue(
        effort="low", summary="auto", service_tier="flex", output_schema=msgspec.Raw(b'{"a":1}')
    )
    assert dialogue.methods == ["thread/start"]
    dialogue.start_thread()
    assert dialogue.methods == ["thread/start", "thread/inject_items", "turn/start"]
    assert [item["role"] for item in dialogue.sent[1]["params"]["items"]] == ["developer", "user"]
    assert dialogue.sent[2]["params"] == {
        "threadId": THREAD,
        "input": [],
        "effort": "low",
        "summary": "auto",
        "serviceTier": "flex",
        "outputSchema": {"a": 1},
    }
    assert dialogue.events == [ev.TurnStarted(THREAD, "m-1")]


def test_a_first_message_of_an_agent_turn_injects_nothing() -> None:
    dialogue = Dialogue(mode="agent", history=HISTORY[1:])
    dialogue.start_thread()
    assert dialogue.methods == ["thread/start", "turn/start"]
    assert dialogue.sent[1]["params"]["input"][0]["text"] == "Hi"


def test_an_agent_turn_sends_its_folder_and_sandbox_and_offers_the_clients_tools_beside_its_own() -> None:
    params = Dialogue(mode="agent", workdir="/w", sandbox="workspace-write").sent[0]["params"]
    assert (params["cwd"], params["sandbox"]) == ("/w", "workspace-write")
    assert [tool["name"] for tool in params["dynamicTools"]] == ["get_weather"]
    assert "baseInstructions" not in params


def test_an_agent_turn_without_tools_sends_no_tools() -> None:
    assert "dynamicTools" not in Dialogue(mode="agent", tools=()).sent[0]["params"]


@pytest.mark.parametrize("mode", ["agent", "model"])
def test_a_call_of_the_clients_tool_is_asked_for_in_either_mode(mode: str) -> None:
    dialogue = Dialogue(mode=mode).start()
    assert ASK_1 in dialogue.step(1)
    assert dialogue.wants_output(1) == []
    assert dialogue.client_replies("call_1", SUNNY) == tool_output_line(1)


def test_verbosity_goes_with_the_thread() -> None:
    assert Dialogue(verbosity="low").sent[0]["params"]["config"] == {"model_verbosity": "low"}


def test_the_agents_own_search_is_switched_on_for_the_thread_that_is_to_have_it() -> None:
    config = Dialogue(verbosity="low", web_search=True).sent[0]["params"]["config"]
    assert config == {"model_verbosity": "low", "web_search": "live"}
    assert "config" not in Dialogue().sent[0]["params"]


def test_a_turn_that_may_call_nothing_offers_nothing_and_asks_for_nothing() -> None:
    wanted = Turn(model="m", history=HISTORY, mode="model", tools=(WEATHER,), tool_choice="none")
    dialogue = Dialogue(tools=may_be_called(wanted), tool_choice="none").start()
    assert dialogue.sent[0]["params"]["dynamicTools"] == []
    assert not [event for event in dialogue.step(1) if isinstance(event, ev.ToolCallRequested)]
    assert ev.Notice("unoffered_call", "get_weather") in dialogue.events


@pytest.mark.parametrize(
    ("refused", "words", "code", "kind", "rest"),
    [
        ("thread/start", "failed to load configuration: config.toml:2:22", -32600, "agent_misconfigured", []),
        ("thread/start", "Server overloaded; retry later.", -32001, "unavailable", []),
        ("thread/start", "some words", -32600, "agent_misconfigured", []),
        (
            "thread/start",
            "dynamic tool input schema is not supported for t: no",
            -32600,
            "invalid_request",
            [],
        ),
        ("turn/start", "Input exceeds the maximum", -32602, "rejected_by_provider", ["thread/unsubscribe"]),
        (
            "turn/start",
            "remote image URLs are not supported",
            -32600,
            "rejected_by_provider",
            ["thread/unsubscribe"],
        ),
        ("turn/start", "thread not found: 0", -32600, "agent_misconfigured", ["thread/unsubscribe"]),
    ],
)
def test_a_refused_start_fails_the_turn_and_leaves_no_thread(
    refused: str, words: str, code: int, kind: str, rest: list[str]
) -> None:
    dialogue = Dialogue()
    if refused == "turn/start":
        dialogue.start_thread()
        dialogue.agent_answers("thread/inject_items")
    before = len(dialogue.methods)
    dialogue.agent_refuses(refused, words, code)
    assert dialogue.failure() == kind
    assert dialogue.methods[before:] == rest
    if rest:
        assert not dialogue.turn.finished
        dialogue.agent_answers("thread/unsubscribe")
    assert dialogue.turn.finished


def test_a_refused_history_fails_the_turn_and_stops_it_when_it_has_begun_all_the_same() -> None:
    dialogue = Dialogue()
    dialogue.start_thread()
    dialogue.agent_refuses("thread/inject_items", "items[0] is not a valid response item: x")
    assert dialogue.failure() == "rejected_by_provider"
    assert dialogue.methods[3:] == [], "not before it is known whether the turn runs"
    dialogue.agent_answers("turn/start", {"turn": {"id": TURN}})
    assert dialogue.methods[3:] == ["turn/interrupt"]
    dialogue.agent_answers("turn/interrupt")
    assert dialogue.methods[4:] == ["thread/unsubscribe"]
    dialogue.agent_answers("thread/unsubscribe")
    assert dialogue.turn.finished


@pytest.mark.parametrize("method", ["thread/start", "turn/start"])
@pytest.mark.parametrize("nonsense", [None, 5, [], {"thread": None, "turn": "x"}, {"thread": {}, "turn": {}}])
def test_an_answer_that_cannot_be_read_fails_the_turn_instead_of_hanging_it(
    method: str, nonsense: Any
) -> None:
    dialogue = Dialogue()
    if method == "turn/start":
        dialogue.start_thread()
        dialogue.agent_answers("thread/inject_items")
    dialogue.agent_sends({"id": dialogue.ids[method], "result": nonsense})
    assert dialogue.failure() == "agent_protocol"


# --- the way out ----------------------------------------------------------------------------------


def test_a_client_that_leaves_before_there_is_a_thread_has_it_unsubscribed_when_it_comes() -> None:
    dialogue = Dialogue()
    dialogue.take(dialogue.turn.interrupt())
    assert dialogue.end.stop == Stop.INTERRUPTED
    assert dialogue.methods == ["thread/start"]
    assert not dialogue.turn.finished
    dialogue.start_thread()
    assert dialogue.methods == ["thread/start", "thread/unsubscribe"]
    assert dialogue.sent[-1]["params"] == {"threadId": THREAD}
    dialogue.agent_answers("thread/unsubscribe", {"status": "unsubscribed"})
    assert dialogue.turn.finished


def test_a_client_that_leaves_before_a_thread_that_never_comes_is_finished() -> None:
    dialogue = Dialogue()
    dialogue.take(dialogue.turn.interrupt())
    dialogue.agent_refuses("thread/start", "no")
    assert dialogue.turn.finished
    assert dialogue.methods == ["thread/start"]


def test_a_client_that_leaves_before_the_turn_is_known_has_it_stopped_when_it_is() -> None:
    dialogue = Dialogue()
    dialogue.start_thread()
    dialogue.take(dialogue.turn.interrupt())
    assert dialogue.methods[3:] == []
    dialogue.agent_answers("thread/inject_items")
    dialogue.agent_answers("turn/start", {"turn": {"id": TURN}})
    assert dialogue.methods[3:] == ["turn/interrupt"]
    assert dialogue.sent[-1]["params"] == {"threadId": THREAD, "turnId": TURN}
    dialogue.agent_answers("turn/interrupt")
    dialogue.agent_answers("thread/unsubscribe")
    assert dialogue.methods[3:] == ["turn/interrupt", "thread/unsubscribe"]
    assert dialogue.turn.finished


def test_a_history_that_is_refused_after_the_client_left_does_not_leave_the_turn_running() -> None:
    dialogue = Dialogue()
    dialogue.start_thread()
    dialogue.take(dialogue.turn.interrupt())
    dialogue.agent_refuses("thread/inject_items", "items[0] is not a valid response item")
    dialogue.agent_answers("turn/start", {"turn": {"id": TURN}})
    assert dialogue.methods[3:] == ["turn/interrupt"]
    assert dialogue.sent[-1]["params"]["threadId"] == THREAD


@pytest.mark.parametrize(
    ("mode", "cleaning"), [("model", []), ("agent", ["thread/backgroundTerminals/clean"])]
)
def test_a_client_that_leaves_mid_text_has_the_turn_stopped_its_commands_ended_and_the_thread_unsubscribed(
    mode: str, cleaning: list[str]
) -> None:
    dialogue = Dialogue(mode=mode).start()
    dialogue.agent_notifies("item/agentMessage/delta", itemId="msg_1", delta="Hel")
    dialogue.take(dialogue.turn.interrupt())
    assert dialogue.events[-2:] == [ev.TextDelta("msg_1", "Hel"), TurnEnded(Stop.INTERRUPTED)]
    assert dialogue.methods[3:] == ["turn/interrupt"]
    dialogue.agent_refuses("turn/interrupt", "no active turn to interrupt")
    assert dialogue.methods[4:] == [*cleaning, "thread/unsubscribe"]
    for method in cleaning:
        dialogue.agent_refuses(method, "Invalid request: unknown variant")
        assert not dialogue.turn.finished
    dialogue.agent_answers("thread/unsubscribe")
    assert dialogue.turn.finished


def test_a_second_interrupt_sends_nothing() -> None:
    dialogue = Dialogue().start()
    dialogue.take(dialogue.turn.interrupt())
    assert dialogue.turn.interrupt() == NOTHING


def test_a_completed_turn_is_only_unsubscribed() -> None:
    dialogue = Dialogue().start()
    dialogue.ends()
    assert dialogue.end == TurnEnded(Stop.STOP)
    assert dialogue.methods[3:] == ["thread/unsubscribe"]
    dialogue.agent_answers("thread/unsubscribe")
    assert dialogue.turn.finished


def test_a_completed_turn_that_ran_commands_has_them_ended_and_its_thread_can_be_resumed_at_once() -> None:
    """One that the agent has not waited for goes on otherwise, for as long as the thread is kept."""
    dialogue = Dialogue(mode="agent", keeps_thread=True).start()
    command = {"type": "commandExecution", "id": "call_1", "command": "sleep 1000", "status": "inProgress"}
    dialogue.agent_notifies("item/started", item=command)
    dialogue.ends()
    assert dialogue.methods[-1] == "thread/backgroundTerminals/clean"
    assert dialogue.turn.can_resume
    dialogue.agent_refuses("thread/backgroundTerminals/clean", "Invalid request: unknown variant")
    assert dialogue.turn.can_resume
    dialogue.client_resumes(HISTORY[-1])
    dialogue.ends()
    assert dialogue.methods.count("thread/backgroundTerminals/clean") == 1


def test_a_turn_that_is_over_before_its_start_is_answered_is_not_interrupted() -> None:
    dialogue = Dialogue()
    dialogue.start_thread()
    dialogue.agent_answers("thread/inject_items")
    dialogue.ends("failed", error={"message": "flagged by policy", "codexErrorInfo": "other"})
    assert dialogue.failure() == "rejected_by_provider"
    dialogue.agent_answers("turn/start", {"turn": {"id": TURN}})
    assert dialogue.methods[3:] == ["thread/unsubscribe"]


def test_nothing_is_sent_after_the_end_but_refusals_of_the_agents_requests() -> None:
    dialogue = Dialogue().start()
    dialogue.ends()
    late = [
        dialogue.agent_notifies("item/agentMessage/delta", itemId="msg_1", delta="late"),
        dialogue.agent_notifies("item/started", item={"type": "agentMessage", "id": "msg_2"}),
        dialogue.agent_notifies("item/started", item="nonsense"),
        dialogue.agent_notifies("error", error={"message": "x"}, willRetry=True),
        dialogue.calls(1),
        dialogue.completes(),
        dialogue.ends(),
        dialogue.agent_requests(3, "item/tool/call", callId="call_1", tool="get_weather", arguments={}),
    ]
    assert late == [[]] * len(late)
    assert dialogue.sent[-1] == {"id": 3, "error": {"code": -32601, "message": "unsupported"}}
    assert dialogue.turn.eof(Ended(code=0)) == NOTHING


def test_the_end_of_another_turn_is_not_ours() -> None:
    dialogue = Dialogue().start()
    assert dialogue.agent_notifies("turn/completed", turn={"id": "V", "status": "completed"}) == []


def test_an_unreadable_turn_completed_ends_the_turn() -> None:
    dialogue = Dialogue().start()
    dialogue.agent_notifies("turn/completed", turn=5)
    assert dialogue.failure() == "agent_protocol"
    assert dialogue.methods[3:] == ["thread/unsubscribe"]


def test_a_failed_turn_without_a_reason_fails() -> None:
    dialogue = Dialogue().start()
    dialogue.ends("failed", error=None)
    assert dialogue.end.stop == Stop.FAILED


@pytest.mark.parametrize(
    ("words", "stop"), [("max_output_tokens", Stop.LENGTH), ("content_filter", Stop.CONTENT_FILTER)]
)
def test_an_answer_that_was_cut_by_the_provider_is_not_tried_again(words: str, stop: Stop) -> None:
    dialogue = Dialogue().start()
    error = {
        "message": "Reconnecting... 1/5",
        "additionalDetails": f"Incomplete response returned, reason: {words}",
    }
    dialogue.agent_notifies("error", error=error, willRetry=True)
    assert dialogue.end.stop == stop
    assert dialogue.methods[3:] == ["turn/interrupt"]


def test_a_fatal_error_waits_for_the_end_that_says_the_same() -> None:
    dialogue = Dialogue().start()
    assert (
        dialogue.agent_notifies("error", error={"message": "x", "codexErrorInfo": "other"}, willRetry=False)
        == []
    )


@pytest.mark.parametrize(
    "damaged",
    [
        {"willRetry": True},
        {"error": {"message": "x"}},
        {"error": {"message": "x"}, "willRetry": []},
        {"error": [], "willRetry": True},
        {"error": {"message": 1}, "willRetry": True},
        {"error": {"message": "x", "codexErrorInfo": {"a": [1]}, "additionalDetails": {}}, "willRetry": True},
    ],
)
def test_an_error_of_which_not_all_can_be_read_is_no_less_followed_by_the_answer_again(
    damaged: dict[str, Any],
) -> None:
    dialogue = Dialogue().start()
    [retry] = dialogue.agent_notifies("error", **damaged)
    assert isinstance(retry, Retrying)


def test_an_error_that_breaks_off_is_no_less_followed_by_the_answer_again() -> None:
    dialogue = Dialogue().start()
    message = decode(b'{"method":"error","params":{"threadId":"T","error":{"message":"Reconn')
    assert message is not None
    [retry] = dialogue.take(dialogue.turn.receive([message]))
    assert isinstance(retry, Retrying)


STATES = ["begun", "thread", "running", "mid text", "leaving", "over"]


@pytest.mark.parametrize("state", STATES)
def test_a_child_that_dies_ends_the_turn_once_in_every_state(state: str) -> None:
    dialogue = Dialogue()
    if state == "thread":
        dialogue.start_thread()
    elif state != "begun":
        dialogue.start()
    if state == "mid text":
        dialogue.agent_notifies("item/agentMessage/delta", itemId="msg_1", delta="Hel")
    if state == "leaving":
        dialogue.take(dialogue.turn.interrupt())
    if state == "over":
        dialogue.ends()
    dialogue.take(
        dialogue.turn.eof(Ended(signal=9, stderr_tail="\x1b[31mERROR\x1b[0m boom https://x.y/z\n\n"))
    )
    assert dialogue.turn.finished
    if state == "leaving":
        assert dialogue.end.stop == Stop.INTERRUPTED
    elif state == "over":
        assert dialogue.end.stop == Stop.STOP
    else:
        assert dialogue.failure() == "agent_crashed"
        assert dialogue.end.failure is not None
        assert dialogue.end.failure.message == (
            "The agent's process ended before its answer was complete "
            "(signal 9: killed, perhaps for lack of memory): ERROR boom [link]"
        )
    assert dialogue.turn.eof(Ended()) == NOTHING


def test_a_child_that_says_it_is_not_signed_in_says_what_to_do() -> None:
    dialogue = Dialogue()
    dialogue.take(dialogue.turn.eof(Ended(code=1, stderr_tail="Error: Not logged in\n")))
    assert dialogue.failure() == "agent_not_authenticated"


def test_the_last_words_of_a_dead_child_are_its_last_line_with_words_in_it() -> None:
    dialogue = Dialogue()
    dialogue.take(dialogue.turn.eof(Ended(code=3, stderr_tail="first\n\x1b[31mboom\x1b[0m\n\x1b[0m\n")))
    assert dialogue.end.failure is not None
    assert dialogue.end.failure.message == (
        "The agent's process ended before its answer was complete (exit code 3): boom"
    )


@pytest.mark.parametrize("state", ["running", "parked"])
def test_a_thread_that_the_agent_closes_by_itself_ends_its_turn(state: str) -> None:
    dialogue = Dialogue().start()
    if state == "parked":
        dialogue.step(1)
    dialogue.agent_notifies("thread/closed")
    assert dialogue.failure() == "agent_crashed"
    assert dialogue.methods[3:] == [], "there is no thread to forget"
    assert dialogue.turn.finished


def test_a_thread_that_is_closed_while_its_turn_is_being_stopped_is_finished_by_the_answer() -> None:
    dialogue = Dialogue(mode="agent").start()
    dialogue.take(dialogue.turn.interrupt())
    dialogue.agent_notifies("thread/closed")
    assert not dialogue.turn.finished
    dialogue.agent_refuses("turn/interrupt", "thread not found")
    assert dialogue.methods[3:] == ["turn/interrupt"]
    assert dialogue.turn.finished


def test_a_message_that_a_retry_left_open_is_no_refusal() -> None:
    dialogue = Dialogue().start()
    dialogue.agent_notifies("item/started", item={"type": "agentMessage", "id": "msg_1"})
    dialogue.agent_notifies("error", error={"message": "Reconnecting... 1/5"}, willRetry=True)
    dialogue.agent_notifies("item/agentMessage/delta", itemId="msg_2", delta="Hello")
    assert dialogue.ends() == [TurnEnded(Stop.STOP)]


def test_a_message_that_said_something_and_was_never_completed_is_no_refusal() -> None:
    dialogue = Dialogue().start()
    dialogue.agent_notifies("item/started", item={"type": "agentMessage", "id": "msg_1"})
    dialogue.agent_notifies("item/agentMessage/delta", itemId="msg_1", delta="Hello")
    assert dialogue.ends() == [TurnEnded(Stop.STOP)]
