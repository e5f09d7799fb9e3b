"""Calls that the server runs itself, in a chat answer: a line among the thoughts, and never a call of the client's."""

from __future__ import annotations

from tests.surfaces.chat.answering import deltas, message, renderer, whole
from tests.surfaces.chat.turns import asked, begun, called, gave, listed, said, thought, turn


def test_a_call_that_runs_here_is_one_line_of_the_reasoning() -> None:
    events = turn(
        thought("Hm."), begun(), gave("secret"), begun("b"), gave("no", "b", "failed"), said("Done.")
    )
    assert message(events) == {
        "role": "assistant",
        "content": "Done.",
        "refusal": None,
        "reasoning_content": "Hm.\n[mcp_call] files.read\n[mcp_call] files.read\n",
    }
    assert [key for delta in deltas(events) for key in delta][1:3] == ["reasoning_content"] * 2


def test_a_call_that_runs_here_is_not_there_where_activity_is_not_shown() -> None:
    events = turn(begun(), gave("secret"), said("Done."))
    assert "reasoning_content" not in message(events, show_activity=False)
    answer = renderer(stream=True, show_activity=False)
    assert answer.feed(events[:-3]) == b""
    assert not answer.visible


def test_a_call_that_runs_here_is_no_reason_to_finish() -> None:
    for stop in ("stop", "tool_calls"):
        (choice,) = whole(turn(begun(), gave("x"), stop=stop))["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "")
        assert "tool_calls" not in choice["message"]


def test_the_clients_calls_go_out_beside_ours() -> None:
    (choice,) = whole(turn(begun(), gave("x"), called("{}"), stop="tool_calls"))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather"]


def test_lists_and_approvals_have_no_place_in_a_chat() -> None:
    assert deltas(turn(listed(), asked(), said("x"))) == deltas(turn(said("x")))
    answer = renderer(stream=True)
    assert answer.feed(turn(listed())[:-1]) == b""
    assert not answer.visible
