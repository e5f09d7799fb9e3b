"""The scenarios of docs/contract.md#its-five-scenarios, event by event, in that profile and in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from codex_proxy.core.events import ArgumentsDelta, Event, ItemEnded, ItemStarted, TurnEnded, TurnStarted
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import ToolCall
from tests.surfaces.chat.turns import activity, reasoning_item, text_item, tool_call, turn
from tests.surfaces.responses.answering import in_profile, types
from tests.surfaces.responses.strategies import TURNS

CRASH = Failure(kind=FaultKind.AGENT_CRASHED, message="The agent ended.")
LEGACY: list[Event] = [
    ItemStarted(ToolCall("t", "call_t", "get_weather", "legacy")),
    ArgumentsDelta("t", "{}"),
    ItemEnded("t"),
]


def names(events: list[Event]) -> list[str]:
    return [payload["type"].removeprefix("response.") for payload in in_profile(events)]


def last(events: list[Event]) -> Any:
    payload = in_profile(events)[-1]
    assert payload["type"] == "response.completed"
    return payload["response"]


def test_scenario_1_a_plain_text() -> None:
    events = turn(text_item("Hel", "lo"))
    assert names(events) == ["created", "in_progress", "output_text.delta", "output_text.delta", "completed"]
    assert last(events)["output"][0]["content"][0]["text"] == "Hello"
    assert types(events)[-1] == "response.completed"


def test_scenario_1_a_text_delta_has_three_fields() -> None:
    delta = in_profile(turn(text_item("Hel", "lo")))[2]
    assert delta == {
        "type": "response.output_text.delta",
        "item_id": "msg_1",
        "output_index": 0,
        "delta": "Hel",
    }


def test_scenario_2_calls_in_the_modern_format() -> None:
    events = turn(tool_call('{"a":', "1}", id="a"), tool_call("{}", id="b"), stop="tool_calls")
    assert names(events) == [
        "created",
        "in_progress",
        "in_progress",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "in_progress",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "function_call_arguments.done",
        "completed",
    ]
    stream = in_profile(events)
    assert stream[1]["response"]["output"] == []
    (first,) = stream[2]["response"]["output"]
    assert (first["name"], first["status"], first["arguments"]) == ("get_weather", "ready", "")
    assert [payload["arguments"] for payload in stream[7:9]] == ['{"a":1}', "{}"]
    assert stream[7]["id"] == first["id"]
    assert [call["status"] for call in last(events)["output"]] == ["ready", "ready"]


def test_scenario_3_a_legacy_function_call() -> None:
    events = turn(LEGACY, stop="function_call")
    assert names(events) == [
        "created",
        "in_progress",
        "tool_calls.created",
        "function_call_arguments.delta",
        "completed",
    ]
    created = in_profile(events)[2]
    assert set(created) == {"type", "item_id", "output_index", "tool_call"}
    assert (created["tool_call"]["name"], created["tool_call"]["status"]) == ("get_weather", "ready")
    assert last(events)["output"][0]["arguments"] == "{}"


def test_scenario_4_an_end_without_a_reason() -> None:
    assert names(turn()) == ["created", "in_progress", "completed"]
    assert names(turn(text_item("x"))) == ["created", "in_progress", "output_text.delta", "completed"]
    assert last(turn())["status"] == "completed"


def test_scenario_5_an_error_is_a_completed_response_with_an_error() -> None:
    events: list[Event] = [*turn(text_item("x"))[:-1], TurnEnded("failed", failure=CRASH)]
    assert names(events)[-1] == "completed"
    assert last(events)["error"] == {"code": "server_error", "message": "The agent ended."}
    assert last(events)["status"] == "completed"
    assert last([TurnStarted(), TurnEnded("failed", failure=CRASH)])["error"]["message"] == "The agent ended."
    assert types(events)[-2:] == ["error", "response.failed"]


def test_calls_that_an_error_cut_are_not_finalised() -> None:
    events: list[Event] = [*turn(tool_call('{"a"'))[:-1], TurnEnded("failed", failure=CRASH)]
    assert "function_call_arguments.done" not in names(events)


def test_the_profile_knows_neither_reasoning_nor_activity() -> None:
    events = turn(reasoning_item("Hm."), activity("ls"), text_item("x"))
    assert names(events) == names(turn(text_item("x")))
    assert [item["type"] for item in last(events)["output"]] == ["message"]


@settings(deadline=None)
@given(TURNS)
def test_every_delta_is_of_the_item_at_its_place_and_adds_up_to_it(events: list[Event]) -> None:
    stream = in_profile(events)
    texts: dict[int, str] = {}
    for payload in stream:
        if payload["type"].endswith(".delta"):
            item = stream[-1]["response"]["output"][payload["output_index"]]
            assert item["id"] == payload["item_id"]
            told = item["type"] in ("message", "function_call_output")
            assert payload["type"].startswith("response.output_text" if told else "response.function_call_")
            texts[payload["output_index"]] = texts.get(payload["output_index"], "") + payload["delta"]
    for index, item in enumerate(stream[-1]["response"]["output"]):
        assert item["type"] in ("message", "function_call", "custom_tool_call", "function_call_output")
        assert texts.get(index, "") == _text_of(item)


def _text_of(item: Any) -> str:
    if item["type"] != "message":
        return str(item.get("arguments", item.get("input", item.get("output"))))
    return "".join(part.get("text", part.get("refusal")) for part in item["content"])
