"""The client's tools: both generations, both kinds, and every form of choosing among them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from codex_proxy.core.items import Tool
from codex_proxy.core.turn import NamedTools
from tests.surfaces.chat.asking import ask, function_tool, refusal_of

SCHEMA = {"type": "object", "properties": {"n": {"const": 10**30}}}
CUSTOM = {"type": "custom", "custom": {"name": "sql"}}


def test_a_function_keeps_its_schema_as_it_was_sent() -> None:
    (tool,) = ask(tools=[function_tool("f", description="d", parameters=SCHEMA, strict=True)]).turn.tools
    raw = msgspec.Raw(b'{"type":"object","properties":{"n":{"const":1000000000000000000000000000000}}}')
    assert tool == Tool("f", "d", raw, strict=True)


def test_a_field_that_a_function_leaves_out_is_absent() -> None:
    nulls = {"description": None, "parameters": None, "strict": None}
    assert ask(tools=[function_tool("f", **nulls)]).turn.tools == (Tool("f"),)


def test_the_description_of_a_custom_tool_has_its_grammar() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: WORD"}}
    (tool,) = ask(
        tools=[{"type": "custom", "custom": {"name": "sql", "description": "Runs SQL.", "format": grammar}}]
    ).turn.tools
    assert tool.kind == "custom"
    assert tool.description.startswith("Runs SQL.\n\n")
    assert "lark" in tool.description
    assert "start: WORD" in tool.description


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_are_no_tools(tools: Any) -> None:
    assert ask(tools=tools).turn.tools == ()


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "retrieval"}, "tools[0].type"),
        ({"type": "function"}, "tools[0].function"),
        (function_tool("no spaces"), "tools[0].function.name"),
        (function_tool("x" * 65), "tools[0].function.name"),
        (function_tool("f", parameters=[]), "tools[0].function.parameters"),
        (function_tool("f", strict="yes"), "tools[0].function.strict"),
        ("f", "tools[0]"),
    ],
)
def test_a_tool_that_is_none_is_named(tool: Any, param: str) -> None:
    assert refusal_of(tools=[tool]).param == param


def test_a_name_given_twice_is_refused() -> None:
    assert refusal_of(tools=[function_tool("f"), function_tool("f")]).param == "tools[1].function.name"
    assert refusal_of(functions=[{"name": "f"}, {"name": "f"}]).param == "functions[1].name"


@pytest.mark.parametrize(
    ("choice", "meaning"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "f"}}, NamedTools(("f",), required=True)),
        ({"type": "custom", "custom": {"name": "sql"}}, NamedTools(("sql",), required=True)),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "f"}}, CUSTOM],
                },
            },
            NamedTools(("f", "sql")),
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CUSTOM]}},
            NamedTools(("sql",), required=True),
        ),
    ],
)
def test_every_form_of_tool_choice_is_understood(choice: Any, meaning: Any) -> None:
    assert ask(tools=[function_tool("f"), CUSTOM], tool_choice=choice).turn.tool_choice == meaning


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("always", "tool_choice"),
        (3, "tool_choice"),
        ({"type": "function", "function": {"name": "g"}}, "tool_choice.function.name"),
        ({"type": "function", "function": {"name": "sql"}}, "tool_choice.function.name"),
        ({"type": "custom", "custom": {"name": "f"}}, "tool_choice.custom.name"),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [CUSTOM, function_tool("g")]},
            },
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            "tool_choice.allowed_tools.tools",
        ),
    ],
)
def test_a_choice_of_a_tool_that_is_not_there_is_named(choice: Any, param: str) -> None:
    assert refusal_of(tools=[function_tool("f"), CUSTOM], tool_choice=choice).param == param


def test_tool_choice_required_needs_tools() -> None:
    assert refusal_of(tool_choice="required").param == "tool_choice"
    assert ask(tool_choice="none").turn.tool_choice == "none"


def test_parallel_tool_calls_are_allowed_unless_the_client_says_no() -> None:
    assert ask().turn.parallel_tool_calls is True
    assert ask(parallel_tool_calls=None).turn.parallel_tool_calls is True
    assert ask(parallel_tool_calls=False).turn.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("choice", "meaning"),
    [(None, "auto"), ("auto", "auto"), ("none", "none"), ({"name": "f"}, NamedTools(("f",), required=True))],
)
def test_the_legacy_pair_is_understood_and_answered_in_kind(choice: Any, meaning: Any) -> None:
    parsed = ask(functions=[{"name": "f", "parameters": {}}], function_call=choice)
    assert parsed.turn.tools == (Tool("f", parameters=msgspec.Raw(b"{}")),)
    assert parsed.turn.tool_choice == meaning
    assert parsed.legacy_function_call is True


def test_the_legacy_choice_must_name_a_function_that_is_there() -> None:
    assert refusal_of(functions=[{"name": "f"}], function_call={"name": "g"}).param == "function_call.name"
    assert refusal_of(function_call={"name": "g"}).param == "function_call"


@pytest.mark.parametrize(
    "fields",
    [
        {"function_call": "none", "tools": [function_tool("f")]},
        {"tool_choice": "none", "functions": [{"name": "f"}]},
        {"tool_choice": "required", "functions": [{"name": "f"}]},
    ],
)
def test_a_choice_beside_tools_of_the_other_kind_is_refused(fields: dict[str, Any]) -> None:
    assert refusal_of(**fields).param == next(iter(fields))
    ask(**{**fields, next(iter(fields)): "auto"})


def test_tools_and_functions_at_once_are_refused() -> None:
    assert refusal_of(functions=[{"name": "f"}], tools=[function_tool("g")]).param == "functions"
