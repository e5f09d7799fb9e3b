"""`tool_choice`: what is offered, and what the model is told."""

from __future__ import annotations

import pytest

from codex_proxy.core.items import HistoryMessage, TextPart, Tool
from codex_proxy.core.turn import NamedTools, ToolChoice, Turn
from codex_proxy.tools.policy import may_be_called, with_tool_choice

A, B, C = Tool("a"), Tool("b"), Tool("c", kind="custom")
QUESTION = HistoryMessage("user", (TextPart("Well?"),))


def turn(choice: ToolChoice, *tools: Tool) -> Turn:
    return Turn(model="m", history=(QUESTION,), tools=tools, tool_choice=choice)


def words(asked: Turn) -> str | None:
    """What was added to the history for the model, or None."""
    assert asked.history[0] == QUESTION
    if len(asked.history) == 1:
        return None
    (said,) = asked.history[1:]
    assert isinstance(said, HistoryMessage)
    assert said.role == "developer"
    (part,) = said.parts
    assert isinstance(part, TextPart)
    return part.text


def test_a_tool_choice_of_auto_leaves_the_turn_as_it_is() -> None:
    asked = turn("auto", A, B)
    assert with_tool_choice(asked) is asked


def test_none_offers_nothing_and_says_nothing() -> None:
    given = with_tool_choice(turn("none", A, B))
    assert given.tools == ()
    assert words(given) is None


def test_required_offers_all_and_says_that_one_must_be_called() -> None:
    given = with_tool_choice(turn("required", A, B, C))
    assert given.tools == (A, B, C)
    assert words(given) == "Call one of these tools now: `a`, `b`, `c`. Do not answer with text."


def test_a_named_tool_is_the_only_one_offered_and_must_be_called() -> None:
    given = with_tool_choice(turn(NamedTools(("b",), required=True), A, B, C))
    assert given.tools == (B,)
    assert words(given) == "Call the tool `b` now. Do not answer with text."


def test_allowed_tools_are_the_only_ones_offered_in_the_clients_order() -> None:
    given = with_tool_choice(turn(NamedTools(("c", "a")), A, B, C))
    assert given.tools == (A, C)
    assert words(given) is None


def test_a_second_attempt_says_that_the_first_answer_had_no_call() -> None:
    said = words(with_tool_choice(turn("required", A), again=True))
    assert said == (
        "Your last answer had no tool call, and was thrown away. Call the tool `a` now. Do not answer with text."
    )


def test_the_turn_itself_is_not_changed_by_its_tool_choice() -> None:
    asked = turn(NamedTools(("b",), required=True), A, B)
    with_tool_choice(asked)
    assert asked.tools == (A, B)
    assert asked.history == (QUESTION,)


@pytest.mark.parametrize(
    ("choice", "offered", "must"),
    [
        ("auto", (A, B), False),
        ("none", (), False),
        ("required", (A, B), True),
        (NamedTools(("a",)), (A,), False),
        (NamedTools(("a",), required=True), (A,), True),
    ],
)
def test_each_choice_says_what_may_and_what_must_be_called(
    choice: ToolChoice, offered: tuple[Tool, ...], must: bool
) -> None:
    assert may_be_called(turn(choice, A, B)) == offered
    assert turn(choice, A, B).must_call is must
