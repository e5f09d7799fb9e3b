"""A turn as a dialogue, line by line: how it begins, how it is left, and what is said to the agent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from codex_proxy.agents.base import NOTHING, Ended
from codex_proxy.core import events as ev
from codex_proxy.core.events import Stop, TurnEnded
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
    said,
)

# --- the way in -----------------------------------------------------------------------------------


def test_history_and_start_go_out_in_one_write_as_soon_as_the_thread_is_there() -> None:
    talk = Dialogue(effort="low", summary="auto", service_tier="flex", output_schema=msgspec.Raw(b'{"a":1}'))
    assert talk.asked == ["thread/start"]
    talk.start_thread()
    assert talk.asked == ["thread/start", "thread/inject_items", "turn/start"]
    assert [item["role"] for item in talk.sent[1]["params"]["items"]] == ["developer", "user"]
    assert talk.sent[2]["params"] == {
        "threadId": THREAD,
        "input": [],
        "effort": "low",
        "summary": "auto",
        "serviceTier": "flex",
        "outputSchema": {"a": 1},
    }
    assert talk.events == [ev.TurnStarted(THREAD, "m-1")]


def test_a_first_message_of_an_agent_turn_injects_nothing() -> None:
    talk = Dialogue(mode="agent", history=HISTORY[1:])
    talk.start_thread()
    assert talk.asked == ["thread/start", "turn/start"]
    assert talk.sent[1]["params"]["input"][0]["text"] == "Hi"


def test_an_agent_turn_says_its_folder_and_sandbox_and_offers_the_clients_tools_beside_its_own() -> None:
    params = Dialogue(mode="agent", workdir="/w", sandbox="workspace-write").sent[0]["params"]
    assert (params["cwd"], params["sandbox"]) == ("/w", "workspace-write")
    assert [tool["name"] for tool in params["dynamicTools"]] == ["get_weather"]
    assert "baseInstructions" not in params


def test_an_agent_turn_without_tools_says_nothing_of_tools() -> None:
    assert "dynamicTools" not in Dialogue(mode="agent", tools=()).sent[0]["params"]


@pytest.mark.parametrize("mode", ["agent", "model"])
def test_a_call_of_the_clients_tool_is_asked_for_in_either_mode(mode: str) -> None:
    talk = Dialogue(mode=mode).start()
    assert ASK_1 in talk.step(1)
    assert talk.wants_output(1) == []
    assert talk.replies("call_1", SUNNY) == said(1)


def test_verbosity_goes_with_the_thread() -> None:
    assert Dialogue(verbosity="low").sent[0]["params"]["config"] == {"model_verbosity": "low"}


def test_the_agents_own_search_is_switched_on_for_the_thread_that_is_to_have_it() -> None:
    config = Dialogue(verbosity="low", web_search=True).sent[0]["params"]["config"]
    assert config == {"model_verbosity": "low", "web_search": "live"}
    assert "config" not in Dialogue().sent[0]["params"]


def test_a_turn_that_may_call_nothing_offers_nothing_and_asks_for_nothing() -> None:
    wanted = Turn(model="m", history=HISTORY, mode="model", tools=(WEATHER,), tool_choice="none")
    talk = Dialogue(tools=may_be_called(wanted), tool_choice="none").start()
    assert talk.sent[0]["params"]["dynamicTools"] == []
    assert not [event for event in talk.step(1) if isinstance(event, ev.ToolCallRequested)]
    assert ev.Notice("unoffered_call", "get_weather") in talk.events


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
    talk = Dialogue()
    if refused == "turn/start":
        talk.start_thread()
        talk.answers("thread/inject_items")
    before = len(talk.asked)
    talk.refuses(refused, words, code)
    assert talk.failure() == kind
    assert talk.asked[before:] == rest
    if rest:
        assert not talk.turn.finished
        talk.answers("thread/unsubscribe")
    assert talk.turn.finished


def test_a_refused_history_fails_the_turn_and_stops_it_when_it_has_begun_all_the_same() -> None:
    talk = Dialogue()
    talk.start_thread()
    talk.refuses("thread/inject_items", "items[0] is not a valid response item: x")
    assert talk.failure() == "rejected_by_provider"
    assert talk.asked[3:] == [], "not before it is known whether the turn runs"
    talk.answers("turn/start", {"turn": {"id": TURN}})
    assert talk.asked[3:] == ["turn/interrupt"]
    talk.answers("turn/interrupt")
    assert talk.asked[4:] == ["thread/unsubscribe"]
    talk.answers("thread/unsubscribe")
    assert talk.turn.finished


@pytest.mark.parametrize("method", ["thread/start", "turn/start"])
@pytest.mark.parametrize("nonsense", [None, 5, [], {"thread": None, "turn": "x"}, {"thread": {}, "turn": {}}])
def test_an_answer_that_cannot_be_read_fails_the_turn_instead_of_hanging_it(
    method: str, nonsense: Any
) -> None:
    talk = Dialogue()
    if method == "turn/start":
        talk.start_thread()
        talk.answers("thread/inject_items")
    talk.says({"id": talk.ids[method], "result": nonsense})
    assert talk.failure() == "agent_protocol"


# --- the way out ----------------------------------------------------------------------------------


def test_a_client_that_leaves_before_there_is_a_thread_has_it_forgotten_when_it_comes() -> None:
    talk = Dialogue()
    talk.take(talk.turn.interrupt())
    assert talk.end.stop == Stop.INTERRUPTED
    assert talk.asked == ["thread/start"]
    assert not talk.turn.finished
    talk.start_thread()
    assert talk.asked == ["thread/start", "thread/unsubscribe"]
    assert talk.sent[-1]["params"] == {"threadId": THREAD}
    talk.answers("thread/unsubscribe", {"status": "unsubscribed"})
    assert talk.turn.finished


def test_a_client_that_leaves_before_a_thread_that_never_comes_is_settled() -> None:
    talk = Dialogue()
    talk.take(talk.turn.interrupt())
    talk.refuses("thread/start", "no")
    assert talk.turn.finished
    assert talk.asked == ["thread/start"]


def test_a_client_that_leaves_before_the_turn_is_known_has_it_stopped_when_it_is() -> None:
    talk = Dialogue()
    talk.start_thread()
    talk.take(talk.turn.interrupt())
    assert talk.asked[3:] == []
    talk.answers("thread/inject_items")
    talk.answers("turn/start", {"turn": {"id": TURN}})
    assert talk.asked[3:] == ["turn/interrupt"]
    assert talk.sent[-1]["params"] == {"threadId": THREAD, "turnId": TURN}
    talk.answers("turn/interrupt")
    talk.answers("thread/unsubscribe")
    assert talk.asked[3:] == ["turn/interrupt", "thread/unsubscribe"]
    assert talk.turn.finished


def test_a_history_that_is_refused_after_the_client_left_does_not_leave_the_turn_running() -> None:
    talk = Dialogue()
    talk.start_thread()
    talk.take(talk.turn.interrupt())
    talk.refuses("thread/inject_items", "items[0] is not a valid response item")
    talk.answers("turn/start", {"turn": {"id": TURN}})
    assert talk.asked[3:] == ["turn/interrupt"]
    assert talk.sent[-1]["params"]["threadId"] == THREAD


@pytest.mark.parametrize(
    ("mode", "cleaning"), [("model", []), ("agent", ["thread/backgroundTerminals/clean"])]
)
def test_a_client_that_leaves_mid_text_has_the_turn_stopped_its_commands_ended_and_the_thread_forgotten(
    mode: str, cleaning: list[str]
) -> None:
    talk = Dialogue(mode=mode).start()
    talk.tells("item/agentMessage/delta", itemId="msg_1", delta="Hel")
    talk.take(talk.turn.interrupt())
    assert talk.events[-2:] == [ev.TextDelta("msg_1", "Hel"), TurnEnded(Stop.INTERRUPTED)]
    assert talk.asked[3:] == ["turn/interrupt"]
    talk.refuses("turn/interrupt", "no active turn to interrupt")
    assert talk.asked[4:] == [*cleaning, "thread/unsubscribe"]
    for method in cleaning:
        talk.refuses(method, "Invalid request: unknown variant")
        assert not talk.turn.finished
    talk.answers("thread/unsubscribe")
    assert talk.turn.finished


def test_leaving_twice_says_nothing_more() -> None:
    talk = Dialogue().start()
    talk.take(talk.turn.interrupt())
    assert talk.turn.interrupt() == NOTHING


def test_a_completed_turn_is_only_forgotten() -> None:
    talk = Dialogue().start()
    talk.ends()
    assert talk.end == TurnEnded(Stop.STOP)
    assert talk.asked[3:] == ["thread/unsubscribe"]
    talk.answers("thread/unsubscribe")
    assert talk.turn.finished


def test_a_completed_turn_that_ran_commands_has_them_ended_and_its_thread_rests_at_once() -> None:
    """One that the agent has not waited for goes on otherwise, for as long as the thread is kept."""
    talk = Dialogue(mode="agent", kept=True).start()
    command = {"type": "commandExecution", "id": "call_1", "command": "sleep 1000", "status": "inProgress"}
    talk.tells("item/started", item=command)
    talk.ends()
    assert talk.asked[-1] == "thread/backgroundTerminals/clean"
    assert talk.turn.can_resume
    talk.refuses("thread/backgroundTerminals/clean", "Invalid request: unknown variant")
    assert talk.turn.can_resume
    talk.proceeds(HISTORY[-1])
    talk.ends()
    assert talk.asked.count("thread/backgroundTerminals/clean") == 1


def test_a_turn_that_is_over_before_its_start_is_answered_is_not_interrupted() -> None:
    talk = Dialogue()
    talk.start_thread()
    talk.answers("thread/inject_items")
    talk.ends("failed", error={"message": "flagged by policy", "codexErrorInfo": "other"})
    assert talk.failure() == "rejected_by_provider"
    talk.answers("turn/start", {"turn": {"id": TURN}})
    assert talk.asked[3:] == ["thread/unsubscribe"]


def test_nothing_is_said_after_the_end_but_the_agents_requests_are_refused() -> None:
    talk = Dialogue().start()
    talk.ends()
    late = [
        talk.tells("item/agentMessage/delta", itemId="msg_1", delta="late"),
        talk.tells("item/started", item={"type": "agentMessage", "id": "msg_2"}),
        talk.tells("item/started", item="nonsense"),
        talk.tells("error", error={"message": "x"}, willRetry=True),
        talk.calls(1),
        talk.completes(),
        talk.ends(),
        talk.asks(3, "item/tool/call", callId="call_1", tool="get_weather", arguments={}),
    ]
    assert late == [[]] * len(late)
    assert talk.sent[-1] == {"id": 3, "error": {"code": -32601, "message": "unsupported"}}
    assert talk.turn.eof(Ended(code=0)) == NOTHING


def test_the_end_of_another_turn_is_not_ours() -> None:
    talk = Dialogue().start()
    assert talk.tells("turn/completed", turn={"id": "V", "status": "completed"}) == []


def test_an_end_that_cannot_be_read_is_an_end() -> None:
    talk = Dialogue().start()
    talk.tells("turn/completed", turn=5)
    assert talk.failure() == "agent_protocol"
    assert talk.asked[3:] == ["thread/unsubscribe"]


def test_a_failed_turn_without_a_reason_fails() -> None:
    talk = Dialogue().start()
    talk.ends("failed", error=None)
    assert talk.end.stop == Stop.FAILED


@pytest.mark.parametrize(
    ("words", "stop"), [("max_output_tokens", Stop.LENGTH), ("content_filter", Stop.CONTENT_FILTER)]
)
def test_an_answer_that_was_cut_by_the_provider_is_not_tried_again(words: str, stop: Stop) -> None:
    talk = Dialogue().start()
    error = {
        "message": "Reconnecting... 1/5",
        "additionalDetails": f"Incomplete response returned, reason: {words}",
    }
    talk.tells("error", error=error, willRetry=True)
    assert talk.end.stop == stop
    assert talk.asked[3:] == ["turn/interrupt"]


def test_a_fatal_error_waits_for_the_end_that_says_the_same() -> None:
    talk = Dialogue().start()
    assert talk.tells("error", error={"message": "x", "codexErrorInfo": "other"}, willRetry=False) == []


STATES = ["begun", "thread", "running", "mid text", "leaving", "over"]


@pytest.mark.parametrize("state", STATES)
def test_a_child_that_dies_ends_the_turn_once_in_every_state(state: str) -> None:
    talk = Dialogue()
    if state == "thread":
        talk.start_thread()
    elif state != "begun":
        talk.start()
    if state == "mid text":
        talk.tells("item/agentMessage/delta", itemId="msg_1", delta="Hel")
    if state == "leaving":
        talk.take(talk.turn.interrupt())
    if state == "over":
        talk.ends()
    talk.take(talk.turn.eof(Ended(signal=9, stderr_tail="\x1b[31mERROR\x1b[0m boom https://x.y/z\n\n")))
    assert talk.turn.finished
    if state == "leaving":
        assert talk.end.stop == Stop.INTERRUPTED
    elif state == "over":
        assert talk.end.stop == Stop.STOP
    else:
        assert talk.failure() == "agent_crashed"
        assert talk.end.failure is not None
        assert talk.end.failure.message == (
            "The agent's process ended before its answer did (signal 9): ERROR boom [link]"
        )
    assert talk.turn.eof(Ended()) == NOTHING


def test_a_child_that_says_it_is_not_signed_in_says_what_to_do() -> None:
    talk = Dialogue()
    talk.take(talk.turn.eof(Ended(code=1, stderr_tail="Error: Not logged in\n")))
    assert talk.failure() == "agent_not_authenticated"


def test_the_last_words_of_a_dead_child_are_its_last_line_with_words_in_it() -> None:
    talk = Dialogue()
    talk.take(talk.turn.eof(Ended(code=3, stderr_tail="first\n\x1b[31mboom\x1b[0m\n\x1b[0m\n")))
    assert talk.end.failure is not None
    assert talk.end.failure.message == ("The agent's process ended before its answer did (exit code 3): boom")


@pytest.mark.parametrize("state", ["running", "parked"])
def test_a_thread_that_the_agent_closes_by_itself_ends_its_turn(state: str) -> None:
    talk = Dialogue().start()
    if state == "parked":
        talk.step(1)
    talk.tells("thread/closed")
    assert talk.failure() == "agent_crashed"
    assert talk.asked[3:] == [], "there is no thread to forget"
    assert talk.turn.finished


def test_a_thread_that_is_closed_while_its_turn_is_being_stopped_is_settled_by_the_answer() -> None:
    talk = Dialogue(mode="agent").start()
    talk.take(talk.turn.interrupt())
    talk.tells("thread/closed")
    assert not talk.turn.finished
    talk.refuses("turn/interrupt", "thread not found")
    assert talk.asked[3:] == ["turn/interrupt"]
    assert talk.turn.finished


def test_a_message_that_a_retry_left_open_is_no_refusal() -> None:
    talk = Dialogue().start()
    talk.tells("item/started", item={"type": "agentMessage", "id": "msg_1"})
    talk.tells("error", error={"message": "Reconnecting... 1/5"}, willRetry=True)
    talk.tells("item/agentMessage/delta", itemId="msg_2", delta="Hello")
    assert talk.ends() == [TurnEnded(Stop.STOP)]


def test_a_message_that_said_something_and_was_never_completed_is_no_refusal() -> None:
    talk = Dialogue().start()
    talk.tells("item/started", item={"type": "agentMessage", "id": "msg_1"})
    talk.tells("item/agentMessage/delta", itemId="msg_1", delta="Hello")
    assert talk.ends() == [TurnEnded(Stop.STOP)]
