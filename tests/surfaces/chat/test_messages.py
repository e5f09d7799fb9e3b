"""Messages become history: every role, every content shape, and calls paired with their outputs."""

from __future__ import annotations

from typing import Any

import pytest

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    TextPart,
)
from tests.pictures import PIXEL
from tests.surfaces.chat.asking import HELLO, answer, ask, call, refusal_of


def history(*messages: dict[str, Any]) -> tuple[HistoryItem, ...]:
    return ask(messages=list(messages)).turn.history


def wrong(*messages: dict[str, Any]) -> tuple[str | None, str]:
    fault = refusal_of(messages=list(messages))
    return fault.param, fault.message


def message(role: Any, *texts: str) -> HistoryMessage:
    return HistoryMessage(role, tuple(TextPart(text) for text in texts))


def asks(*calls: dict[str, Any], content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_message_becomes_a_developer_message(role: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert history({"role": role, "content": "be brief"}) == (message("developer", "be brief"),)
    assert history({"role": role, "content": parts}) == (message("developer", "a", "b"),)


def test_a_user_says_text_or_parts_of_text_and_images() -> None:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]
    assert history({"role": "user", "content": parts}) == (
        HistoryMessage(
            "user",
            (TextPart("what is this?"), ImagePart(PIXEL, "low"), ImagePart("https://example.com/a.png")),
        ),
    )


def test_a_refusal_of_the_assistant_is_text_part_or_field() -> None:
    parts = [{"type": "text", "text": "Hm."}, {"type": "refusal", "refusal": "No."}]
    assert history({"role": "assistant", "content": parts}) == (message("assistant", "Hm.", "No."),)
    assert history({"role": "assistant", "content": None, "refusal": "No."}) == (message("assistant", "No."),)


def test_an_assistant_that_said_nothing_leaves_no_message() -> None:
    assert history({"role": "assistant", "content": ""}, HELLO) == (message("user", "hello"),)


@pytest.mark.parametrize("kind", ["input_audio"])
def test_a_part_that_no_agent_takes_is_named(kind: str) -> None:
    parts = [{"type": "text", "text": "listen"}, {"type": kind, kind: {}}]
    param, message = wrong(HELLO, {"role": "user", "content": parts})
    assert param == "messages[1].content[1]"
    assert kind in message


def test_an_audio_reference_of_the_assistant_is_named() -> None:
    assert wrong({"role": "assistant", "audio": {"id": "audio_1"}})[0] == "messages[0].audio"


@pytest.mark.parametrize(
    "url", ["", "ftp://x/y.png", "data:text/plain;base64,eA==", "data:image/png;base64,", "/etc/x"]
)
def test_an_image_is_a_data_url_or_a_web_url(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    assert wrong({"role": "user", "content": [part]})[0] == "messages[0].content[0].image_url.url"


# --- calls and outputs ----------------------------------------------------------------------------


def test_calls_and_outputs_become_past_calls_and_outputs() -> None:
    assert history(
        HELLO, asks(call("call_1", arguments='{"x": 1}'), content="Looking."), answer("call_1")
    ) == (
        message("user", "hello"),
        message("assistant", "Looking."),
        HistoryCall("call_1", "get_weather", '{"x": 1}'),
        HistoryOutput("call_1", (TextPart("sunny"),)),
    )


def test_an_output_may_be_parts_with_images() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    assert history(asks(call()), answer(content=parts))[-1] == HistoryOutput(
        "call_1", (TextPart("look"), ImagePart(PIXEL))
    )


def test_a_custom_call_keeps_its_kind_and_so_does_its_output() -> None:
    custom = {"type": "custom", "id": "call_1", "custom": {"name": "sql", "input": "select 1"}}
    assert history(asks(custom), answer()) == (
        HistoryCall("call_1", "sql", "select 1", "custom"),
        HistoryOutput("call_1", (TextPart("sunny"),), "custom"),
    )


def test_outputs_out_of_order_are_put_into_the_order_of_their_calls() -> None:
    items = history(asks(call("a"), call("b")), answer("b", "B"), answer("a", "A"), HELLO)
    assert items[2:4] == (HistoryOutput("a", (TextPart("A"),)), HistoryOutput("b", (TextPart("B"),)))


@pytest.mark.parametrize("after", [[], [HELLO], [answer("b"), HELLO]])
def test_a_call_without_output_is_400_as_openai_says_it(after: list[dict[str, Any]]) -> None:
    param, message = wrong(HELLO, asks(call("a"), call("b")), *after)
    assert param == "messages[1].tool_calls"
    assert message.startswith("An assistant message with 'tool_calls' must be followed by tool messages")
    assert "response messages: a" in message


@pytest.mark.parametrize("before", [[], [HELLO], [{"role": "assistant", "content": "x"}]])
def test_an_output_without_any_call_is_400(before: list[dict[str, Any]]) -> None:
    assert wrong(*before, answer())[0] == f"messages[{len(before)}].role"


def test_a_tool_message_does_not_answer_a_function_call() -> None:
    assert wrong(ASKS_FUNCTION, answer("call_legacy_0"))[0] == "messages[1].role"


def test_an_output_of_another_call_is_400() -> None:
    assert wrong(asks(call("a")), answer("a"), answer("z"))[0] == "messages[2].tool_call_id"


def test_a_second_output_of_one_call_is_400() -> None:
    param, message = wrong(asks(call("a")), answer("a"), answer("a"))
    assert param == "messages[2].tool_call_id"
    assert "twice" in message


def test_two_calls_of_one_message_with_the_same_id_are_400() -> None:
    assert wrong(asks(call("a"), call("a")), answer("a"))[0] == "messages[0].tool_calls[1].id"


# --- the legacy pair ------------------------------------------------------------------------------

ASKS_FUNCTION = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
FUNCTION_SAYS = {"role": "function", "name": "f", "content": "done"}


def test_a_function_call_gets_a_call_id_that_is_the_same_on_every_request() -> None:
    expected = (
        message("user", "hello"),
        HistoryCall("call_legacy_1", "f", "{}"),
        HistoryOutput("call_legacy_1", (TextPart("done"),)),
    )
    assert history(HELLO, ASKS_FUNCTION, FUNCTION_SAYS) == expected
    assert history(HELLO, ASKS_FUNCTION, FUNCTION_SAYS, HELLO)[:3] == expected


def test_a_function_that_was_not_called_is_400() -> None:
    assert wrong(HELLO, FUNCTION_SAYS)[0] == "messages[1].role"
    assert wrong(ASKS_FUNCTION, {**FUNCTION_SAYS, "name": "g"})[0] == "messages[1].name"
    assert wrong(asks(call()), FUNCTION_SAYS)[0] == "messages[1].role"


def test_a_function_call_without_its_answer_is_400() -> None:
    assert wrong(ASKS_FUNCTION, HELLO)[0] == "messages[0].function_call"


def test_a_function_that_answers_twice_is_400() -> None:
    assert wrong(ASKS_FUNCTION, FUNCTION_SAYS, FUNCTION_SAYS)[0] == "messages[2].role"


def test_one_message_cannot_call_in_both_forms() -> None:
    both = {**ASKS_FUNCTION, "tool_calls": [call()]}
    assert wrong(both)[0] == "messages[0].function_call"
