"""Calls that go wrong first: what the fake model makes, and what it says it was told."""

from __future__ import annotations

from typing import Any

import pytest

from fake_proto.request import Request, output_text
from tests.fake.app_child import WEATHER, AppChild, deltas, function_calls, is_completed

TEXT = {"type": "input_text", "text": "look"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}


def looped(scenario: str, *answers: Any) -> tuple[list[str], str]:
    """The arguments of all calls of a turn, and its last words; `answers` are the client's content items."""
    seen = []
    with AppChild() as child:
        thread = child.start_thread(dynamicTools=[WEATHER])
        child.start_turn(thread, f"[[fake:{scenario}]]")
        for content in answers:
            seen += child.read_until(lambda m: m.get("method") == "item/tool/call")
            child.send({"id": seen[-1]["id"], "result": {"contentItems": content, "success": True}})
        seen += child.read_until(is_completed)
    return [call["arguments"] for call in function_calls(seen)], "".join(deltas(seen))


def said(text: str) -> list[dict[str, str]]:
    return [{"type": "inputText", "text": text}]


def test_a_corrected_call_comes_after_the_wrong_one_is_answered() -> None:
    calls, words = looped("tool_call_corrected", said("no town"), said("sunny"))
    assert calls == ['{"town": "Paris"}', '{"city": "Paris"}']
    assert words == "The tool said: no town; sunny"


def test_of_two_parallel_calls_the_first_can_be_wrong() -> None:
    calls, words = looped("tool_calls_one_wrong", said("no town"), said("wet"))
    assert calls == ['{"town": "Paris"}', '{"city": "Rome"}']
    assert words == "The tools said: no town; wet"


def test_a_call_that_is_no_json_is_answered_by_the_agent_and_corrected() -> None:
    calls, words = looped("tool_call_unreadable", said("sunny"))
    assert calls == ['{"city": Paris', '{"city": "Paris"}']
    assert words == (
        "The tool said: failed to parse function arguments: expected value at line 1 column 1; sunny"
    )


def test_an_image_in_an_output_is_named_the_same_on_the_wire_and_in_the_history() -> None:
    items = [{"type": "inputText", "text": "look"}, {"type": "inputImage", "imageUrl": IMAGE["image_url"]}]
    _, words = looped("tool_call", items)
    output = {"type": "function_call_output", "call_id": "call_1_0", "output": [TEXT, IMAGE]}
    assert words == "The tool said: look [image]"
    assert Request("app-server", "m", [output]).outputs() == ["look [image]"]


@pytest.mark.parametrize(
    ("output", "text"),
    [("sunny", "sunny"), ([TEXT, TEXT], "look look"), ([IMAGE], "[image]"), ([], ""), (None, "")],
)
def test_an_output_is_made_text(output: Any, text: str) -> None:
    assert output_text(output) == text
