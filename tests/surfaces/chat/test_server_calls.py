"""Calls that the server runs itself, in a chat answer: a line among the thoughts, and never a call of the client's."""

from __future__ import annotations

from tests.surfaces.chat.answering import deltas, message, renderer, whole
from tests.surfaces.chat.turns import (
    approval,
    gave,
    open_call,
    reasoning_item,
    text_item,
    tool_call,
    tool_list,
    turn,
)


def test_a_call_that_runs_here_is_one_line_of_the_reasoning() -> None:
    events = turn(
        reasoning_item("Hm."),
        open_call(),
        gave("secret"),
        open_call("b"),
        gave("no", "b", "failed"),
        text_item("Done."),
    )
    assert message(events) == {
        "role": "assistant",
        "content": "Done.",
        "refusal": None,
        "reasoning_content": "Hm.\n[mcp_call] files.read\n[mcp_call] files.read\n",
    }
    assert [key for delta in deltas(events) for key in delta][1:3] == ["reasoning_content"] * 2


def test_a_call_that_runs_here_is_not_there_where_activity_is_not_shown() -> None:
    events = turn(open_call(), gave("secret"), text_item("Done."))
    assert "reasoning_content" not in message(events, show_activity=False)
    answer = renderer(stream=True, show_activity=False)
    assert answer.feed(events[:-3]) == b""
    assert not answer.visible


def test_a_call_that_runs_here_is_no_reason_to_finish() -> None:
    for stop in ("stop", "tool_calls"):
        (choice,) = whole(turn(open_call(), gave("x"), stop=stop))["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "")
        assert "tool_calls" not in choice["message"]


def test_the_clients_calls_go_out_beside_ours() -> None:
    (choice,) = whole(turn(open_call(), gave("x"), tool_call("{}"), stop="tool_calls"))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather"]


def test_lists_and_approvals_have_no_place_in_a_chat() -> None:
    assert deltas(turn(tool_list(), approval(), text_item("x"))) == deltas(turn(text_item("x")))
    answer = renderer(stream=True)
    assert answer.feed(turn(tool_list())[:-1]) == b""
    assert not answer.visible
