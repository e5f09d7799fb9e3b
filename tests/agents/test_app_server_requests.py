"""What the agent asks of a person: approvals, questions; and what a turn costs."""

from __future__ import annotations

from typing import Any

import pytest

from codex_proxy.agents.dialect import NOTHING, Decision
from codex_proxy.core import events as ev
from codex_proxy.core.events import Event, Stop, TurnEnded
from tests.agents.app_server_dialogue import Dialogue

# --- usage ----------------------------------------------------------------------------------------


def test_usage_is_the_sum_of_the_model_calls_of_the_turn() -> None:
    dialogue = Dialogue().start()
    dialogue.completes()
    assert dialogue.completes()[0] == ev.UsageReported(ev.Usage(20, 8, 4, 2), "provider")


def test_the_agents_own_count_confirms_the_providers_once() -> None:
    dialogue = Dialogue().start()
    counted = dialogue.completes()[0]
    total = {"inputTokens": 10, "cachedInputTokens": 4, "outputTokens": 2, "reasoningOutputTokens": 1}
    confirmed = dialogue.agent_notifies("thread/tokenUsage/updated", tokenUsage={"total": total})
    usage = ev.Usage(10, 4, 2, 1)
    assert [counted, *confirmed] == [
        ev.UsageReported(usage, "provider"),
        ev.UsageReported(usage, "token_count"),
    ]
    assert dialogue.agent_notifies("thread/tokenUsage/updated", tokenUsage={"total": total}) == []


def test_a_model_call_that_broke_off_is_counted_by_the_threads_own_sum() -> None:
    dialogue = Dialogue().start()
    dialogue.completes()
    total = {"inputTokens": 30, "outputTokens": 2}
    assert dialogue.agent_notifies("thread/tokenUsage/updated", tokenUsage={"total": total}) == [
        ev.UsageReported(ev.Usage(30, 0, 2, 0))
    ]
    assert (
        dialogue.agent_notifies("thread/tokenUsage/updated", tokenUsage={"total": {"inputTokens": 0}}) == []
    )


# --- what the agent asks --------------------------------------------------------------------------

COMMAND = "item/commandExecution/requestApproval"
CHANGE = "item/fileChange/requestApproval"
ELICIT = "mcpServer/elicitation/request"
WIDER = "item/permissions/requestApproval"
INPUT = "item/tool/requestUserInput"


@pytest.mark.parametrize(
    ("method", "params", "asked", "yes", "no"),
    [
        (
            *(COMMAND, {"command": ["ls", "-l\n"]}, ev.ApprovalRequested(f"{COMMAND}:4", "command", "ls -l")),
            *({"decision": "accept"}, {"decision": "decline"}),
        ),
        (
            *(CHANGE, {"itemId": "x"}, ev.ApprovalRequested(f"{CHANGE}:4", "file_change", "", item_id="x")),
            *({"decision": "accept"}, {"decision": "decline"}),
        ),
        (
            *(ELICIT, {"message": "May it?"}, ev.ApprovalRequested(f"{ELICIT}:4", "mcp", "May it?")),
            {"action": "accept", "content": {}, "_meta": None},
            {"action": "decline", "content": None, "_meta": None},
        ),
        (
            *(WIDER, {"permissions": {}}, ev.ApprovalRequested(f"{WIDER}:4", "permission", "")),
            *({"permissions": {}, "scope": "turn"}, {"permissions": {}, "scope": "turn"}),
        ),
        (INPUT, {"questions": []}, ev.InputRequested(f"{INPUT}:4", ""), {"answers": {}}, {"answers": {}}),
    ],
)
def test_a_question_of_the_agent_is_answered_as_decided(
    method: str, params: dict[str, Any], asked: Event, yes: Any, no: Any
) -> None:
    for decision, result in ((Decision(approve=True), yes), (Decision(), no)):
        dialogue = Dialogue(mode="agent").start()
        assert dialogue.agent_requests(4, method, **params) == [asked]
        assert dialogue.client_replies(f"{method}:4", decision) == {"id": 4, "result": result}
        assert dialogue.turn.answer(f"{method}:4", decision) == NOTHING, "only once"


def test_an_unknown_request_is_refused_at_once_and_gets_a_notice() -> None:
    dialogue = Dialogue().start()
    assert dialogue.agent_requests(9, "item/clock/read") == [ev.Notice("unknown_request", "item/clock/read")]
    assert dialogue.sent[-1] == {"id": 9, "error": {"code": -32601, "message": "unsupported"}}


def test_a_reply_to_no_request_is_ignored() -> None:
    assert Dialogue().start().turn.answer("item/tool/call:7", Decision()) == NOTHING


def test_a_command_that_runs_on_after_the_end_is_no_refusal() -> None:
    dialogue = Dialogue(mode="agent").start()
    dialogue.agent_notifies(
        "item/started", item={"type": "commandExecution", "id": "c_1", "command": "sleep 9"}
    )
    dialogue.agent_notifies("item/started", item={"type": "reasoning", "id": "r_1"})
    assert dialogue.ends() == [TurnEnded(Stop.STOP)]
