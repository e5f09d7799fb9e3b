"""What the agent asks and the model calls: tools of the client, approvals, questions."""

from __future__ import annotations

from typing import Any

import pytest

from codex_proxy.agents.base import NOTHING, Decision, ToolReply
from codex_proxy.core import events as ev
from codex_proxy.core.events import Event, Stop, TurnEnded
from codex_proxy.core.items import ImagePart, TextPart, Tool, ToolCall
from tests.agents.app_server_dialogue import Dialogue

# --- the client's tools ---------------------------------------------------------------------------


def test_calls_are_handed_out_when_the_response_is_over_and_then_the_turn_is_stopped() -> None:
    talk = Dialogue().start()
    exact = '{"city":  "Paris", "n": 1e3}'
    assert talk.calls(1, exact) == []
    assert talk.asks(0, "item/tool/call", callId="call_1", tool="get_weather", arguments={"n": 1000.0}) == [
        ev.ToolAsked("item/tool/call:0", "call_1", "get_weather", '{"n": 1000.0}')
    ]
    assert talk.calls(2) == []
    events = talk.completes()
    assert [event for event in events if not isinstance(event, ev.RawItem)] == [
        ev.UsageSeen(ev.Usage(10, 4, 2, 1)),
        ev.StepCompleted(ev.Usage(10, 4, 2, 1)),
        *(ev.ItemStarted(ToolCall("fc_1", "call_1", "get_weather")), ev.ArgumentsWhole("fc_1", exact)),
        ev.ItemEnded("fc_1"),
        *(ev.ItemStarted(ToolCall("fc_2", "call_2", "get_weather")), ev.ArgumentsWhole("fc_2", "{}")),
        ev.ItemEnded("fc_2"),
        TurnEnded(Stop.TOOL_CALLS, "token_count"),
    ]
    assert talk.asked[3:] == ["turn/interrupt"]
    talk.answers("turn/interrupt")
    talk.answers("thread/unsubscribe")
    assert talk.turn.settled
    assert talk.turn.answer("item/tool/call:0", ToolReply((TextPart("late"),))) == NOTHING


def test_the_calls_of_a_response_that_is_tried_again_are_forgotten() -> None:
    talk = Dialogue().start()
    talk.calls(1)
    talk.tells("error", error={"message": "Reconnecting... 1/5"}, willRetry=True)
    talk.calls(2)
    ids = [event.item.id for event in talk.completes() if isinstance(event, ev.ItemStarted)]
    assert ids == ["fc_2"]


def test_outputs_of_the_step_before_stay_when_a_response_is_tried_again() -> None:
    talk = Dialogue().start()
    for item in ({"type": "function_call_output", "call_id": "c"}, {"type": "reasoning", "id": "rs_1"}):
        talk.tells("rawResponseItem/completed", item=item)
    talk.tells("error", error={"message": "Reconnecting... 1/5"}, willRetry=True)
    kept = [event.type for event in talk.completes() if isinstance(event, ev.RawItem)]
    assert kept == ["function_call_output"]


def test_a_retry_says_why_and_with_which_status() -> None:
    info = {"responseStreamDisconnected": {"httpStatusCode": 429}}
    error = {
        "message": "Reconnecting... 1/5",
        "codexErrorInfo": info,
        "additionalDetails": "last status: 429",
    }
    [retry] = Dialogue().start().tells("error", error=error, willRetry=True)
    assert isinstance(retry, ev.Retrying)
    assert retry.http_status == 429


@pytest.mark.parametrize(
    "call",
    [
        {"turn": "to-compact-0"},
        {"turn": "auto-compact-0"},
        {"name": "exec_command"},
        {"arguments": '{"city": '},
    ],
    ids=["injected", "compacted", "not offered", "bad JSON"],
)
def test_calls_that_the_agent_answers_itself_are_not_the_clients(call: dict[str, Any]) -> None:
    talk = Dialogue().start()
    talk.calls(1, **call)
    assert not [event for event in talk.completes() if isinstance(event, TurnEnded)]


def test_a_response_of_another_turn_is_not_the_end_of_ours() -> None:
    talk = Dialogue().start()
    talk.calls(1)
    assert talk.tells("rawResponse/completed", turnId="to-compact-0", usage=None) == []


@pytest.mark.parametrize("usage", [None, {"inputTokens": None}, "nonsense"])
def test_calls_are_handed_out_though_nobody_counted_tokens(usage: Any) -> None:
    talk = Dialogue().start()
    talk.calls(1)
    talk.tells("rawResponse/completed", usage=usage)
    assert talk.end == TurnEnded(Stop.TOOL_CALLS, "provider")


def test_a_custom_tool_is_called_with_its_own_text() -> None:
    talk = Dialogue(tools=(Tool("patch", kind="custom"),)).start()
    talk.calls(1, '{"input": "*** Begin"}', name="patch")
    whole = [event for event in talk.completes() if isinstance(event, ev.ArgumentsWhole)]
    assert whole == [ev.ArgumentsWhole("fc_1", "*** Begin")]


def test_usage_is_the_sum_of_the_model_calls_of_the_turn() -> None:
    talk = Dialogue().start()
    talk.completes()
    assert talk.completes()[0] == ev.UsageSeen(ev.Usage(20, 8, 4, 2))


def test_a_model_call_that_broke_off_is_counted_by_the_threads_own_sum() -> None:
    talk = Dialogue().start()
    talk.completes()
    total = {"inputTokens": 30, "outputTokens": 2}
    assert talk.tells("thread/tokenUsage/updated", tokenUsage={"total": total}) == [
        ev.UsageSeen(ev.Usage(30, 0, 2, 0))
    ]
    assert talk.tells("thread/tokenUsage/updated", tokenUsage={"total": {"inputTokens": 0}}) == []


# --- what the agent asks --------------------------------------------------------------------------

COMMAND = "item/commandExecution/requestApproval"
CHANGE = "item/fileChange/requestApproval"
ELICIT = "mcpServer/elicitation/request"
INPUT = "item/tool/requestUserInput"


@pytest.mark.parametrize(
    ("method", "params", "asked", "yes", "no"),
    [
        (
            *(COMMAND, {"command": ["ls", "-l\n"]}, ev.ApprovalAsked(f"{COMMAND}:4", "command", "ls -l")),
            *({"decision": "accept"}, {"decision": "decline"}),
        ),
        (
            *(CHANGE, {"itemId": "x"}, ev.ApprovalAsked(f"{CHANGE}:4", "file_change", "")),
            *({"decision": "accept"}, {"decision": "decline"}),
        ),
        (
            *(ELICIT, {"message": "May it?"}, ev.ApprovalAsked(f"{ELICIT}:4", "mcp", "May it?")),
            {"action": "accept", "content": None, "_meta": None},
            {"action": "decline", "content": None, "_meta": None},
        ),
        (INPUT, {"questions": []}, ev.InputAsked(f"{INPUT}:4", ""), {"answers": {}}, {"answers": {}}),
    ],
)
def test_a_question_of_the_agent_is_answered_as_it_is_decided(
    method: str, params: dict[str, Any], asked: Event, yes: Any, no: Any
) -> None:
    for decision, result in ((Decision(approve=True), yes), (Decision(), no)):
        talk = Dialogue(mode="agent").start()
        assert talk.asks(4, method, **params) == [asked]
        assert talk.replies(f"{method}:4", decision) == {"id": 4, "result": result}
        assert talk.turn.answer(f"{method}:4", decision) == NOTHING, "only once"


def test_the_output_of_a_tool_goes_back_in_the_agents_parts() -> None:
    talk = Dialogue().start()
    talk.asks(0, "item/tool/call", callId="call_1", tool="get_weather", arguments={})
    reply = ToolReply((TextPart("a"), ImagePart("data:image/png;base64,x")), success=False)
    content = [
        {"type": "inputText", "text": "a"},
        {"type": "inputImage", "imageUrl": "data:image/png;base64,x"},
    ]
    assert talk.replies("item/tool/call:0", reply) == {
        "id": 0,
        "result": {"contentItems": content, "success": False},
    }


def test_a_request_that_nobody_knows_is_refused_at_once_and_noticed() -> None:
    talk = Dialogue().start()
    assert talk.asks(9, "item/permissions/requestApproval") == [
        ev.Noticed("unknown_request", "item/permissions/requestApproval")
    ]
    assert talk.sent[-1] == {"id": 9, "error": {"code": -32601, "message": "unsupported"}}


def test_an_answer_to_nothing_is_nothing() -> None:
    assert Dialogue().start().turn.answer("item/tool/call:7", Decision()) == NOTHING


def test_a_command_that_runs_on_after_the_end_is_no_refusal() -> None:
    talk = Dialogue(mode="agent").start()
    talk.tells("item/started", item={"type": "commandExecution", "id": "c_1", "command": "sleep 9"})
    talk.tells("item/started", item={"type": "reasoning", "id": "r_1"})
    assert talk.ends() == [TurnEnded(Stop.STOP)]
