"""The check of answers against the SDK's types finds what is too much, too little, and of another kind."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.beta import AgentSessionEvent

from tests.parts.sessions.sdk_values import differences

DELTA: dict[str, Any] = {
    "type": "agent.session.turn.output_text.delta",
    "event_id": "event_1",
    "session_id": "sess_1",
    "turn_id": "turn_1",
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 0,
    "delta": "Hi",
}
ITEM: dict[str, Any] = {
    "type": "agent.session.turn.item.done",
    "event_id": "event_1",
    "session_id": "sess_1",
    "turn_id": "turn_1",
    "output_index": 0,
    "item": {
        "type": "message",
        "id": "msg_1",
        "turn_id": "turn_1",
        "status": "completed",
        "role": "assistant",
        "phase": None,
        "content": [{"type": "output_text", "text": "Hi"}],
    },
}


@pytest.mark.parametrize("event", [DELTA, ITEM, DELTA | {"obfuscation": "abc"}])
def test_an_event_as_the_sdk_has_it_has_no_differences(event: dict[str, Any]) -> None:
    assert differences(event, AgentSessionEvent) == []


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (DELTA | {"more": 1}, ".more: not in AgentSessionTurnOutputTextDeltaEvent"),
        (
            {k: v for k, v in DELTA.items() if k != "turn_id"},
            ".turn_id: missing in AgentSessionTurnOutputTextDeltaEvent",
        ),
        (DELTA | {"output_index": "0"}, ".output_index: '0' is no <class 'int'>"),
        (DELTA | {"output_index": True}, ".output_index: True is no <class 'int'>"),
        (ITEM | {"item": ITEM["item"] | {"phase": "last"}}, ".item.phase: "),
        (
            ITEM | {"item": ITEM["item"] | {"content": [{"type": "output_text"}]}},
            ".item.content[0].text: missing in ",
        ),
    ],
)
def test_each_difference_is_named_with_its_place(event: dict[str, Any], found: str) -> None:
    told = differences(event, AgentSessionEvent)
    assert any(found in each for each in told), told
