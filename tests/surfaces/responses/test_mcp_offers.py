"""Which tools of an MCP server a request allows, which it wants to approve, and which it chooses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.core.faults import Fault
from codex_proxy.core.items import McpOrigin, Tool
from codex_proxy.core.tool_names import ListedTool, offered_name
from codex_proxy.core.turn import NamedTools, ToolChoice
from codex_proxy.surfaces.responses.mcp import allows, combine_choices, needs_approval, newest_lists
from tests.surfaces.responses.asking import ask, function_tool

MCP = {"type": "mcp", "server_label": "files", "server_url": "http://localhost:1/mcp"}
READ = ListedTool("read", annotations=b'{"readOnlyHint":true}')
WRITE = ListedTool("write", annotations=b'{"readOnlyHint":false}')
GUESS = ListedTool("guess")


def allowed_tools(tools: Any) -> list[str]:
    (offer,) = ask(tools=[{**MCP, "allowed_tools": tools}]).mcp
    return [tool.name for tool in (READ, WRITE, GUESS) if allows(offer, tool)]


def to_approve(approval: Any) -> list[str]:
    (offer,) = ask(tools=[{**MCP, "require_approval": approval}]).mcp
    return [tool.name for tool in (READ, WRITE, GUESS) if needs_approval(offer, tool)]


def test_a_server_without_a_filter_offers_all_that_it_has() -> None:
    assert allowed_tools(None) == ["read", "write", "guess"]
    assert allowed_tools({}) == ["read", "write", "guess"]


def test_only_named_tools_are_offered() -> None:
    assert allowed_tools(["write", "nothing"]) == ["write"]
    assert allowed_tools({"tool_names": ["write"]}) == ["write"]
    assert allowed_tools([]) == []


def test_a_tool_only_reads_if_its_server_says_so() -> None:
    assert allowed_tools({"read_only": True}) == ["read"]
    assert allowed_tools({"read_only": False}) == ["write", "guess"]
    assert allowed_tools({"read_only": True, "tool_names": ["write", "read"]}) == ["read"]


def test_approval_is_asked_for_every_tool_or_for_none() -> None:
    assert to_approve("always") == ["read", "write", "guess"]
    assert to_approve("never") == to_approve(None) == []


def test_approval_is_asked_for_what_the_filters_say() -> None:
    assert to_approve({"always": {"tool_names": ["write"]}}) == ["write"]
    assert to_approve({"never": {"read_only": True}}) == ["write", "guess"]


def test_a_tool_that_both_filters_name_needs_approval() -> None:
    both = {"tool_names": ["read", "write"]}
    assert to_approve({"always": both, "never": both}) == ["read", "write", "guess"]
    assert to_approve({"always": {"tool_names": ["read"]}, "never": both}) == ["read", "guess"]


def server_tools(label: str, *names: str) -> list[Tool]:
    return [Tool(offered_name(label, name), mcp=McpOrigin(label, name)) for name in names]


TOOLS = [*server_tools("files", "read", "write"), *server_tools("mail", "read")]


def tool_choice_of(choice: Any, tools: list[Tool] = TOOLS) -> ToolChoice:
    parsed = ask(tools=[function_tool(), MCP, {**MCP, "server_label": "mail"}], tool_choice=choice)
    return combine_choices(parsed.turn.tool_choice, parsed.mcp_choice, tools)


def refusal(choice: Any, tools: list[Tool] = TOOLS) -> str:
    with pytest.raises(Fault) as raised:
        tool_choice_of(choice, tools)
    assert raised.value.failure.param == "tool_choice"
    return raised.value.failure.message


@pytest.mark.parametrize("word", ["auto", "none", "required"])
def test_a_choice_that_names_no_server_stays_as_it_is(word: str) -> None:
    assert tool_choice_of(word) == word
    assert tool_choice_of({"type": "function", "name": "get_weather"}) == NamedTools(
        ("get_weather",), required=True
    )


def test_a_servers_tool_is_chosen_by_the_name_that_the_model_knows() -> None:
    choice = {"type": "mcp", "server_label": "files", "name": "read"}
    assert tool_choice_of(choice) == NamedTools(("files__read",), required=True)


def test_a_server_is_chosen_with_all_its_tools() -> None:
    choice = {"type": "mcp", "server_label": "files"}
    assert tool_choice_of(choice) == NamedTools(("files__read", "files__write"), required=True)


def test_allowed_tools_of_servers_and_of_the_client_are_one_choice() -> None:
    wanted = [{"type": "mcp", "server_label": "mail"}, {"type": "function", "name": "get_weather"}]
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "mode": mode, "tools": wanted}
        assert tool_choice_of(choice) == NamedTools(("get_weather", "mail__read"), mode == "required")


def test_a_tool_that_the_server_does_not_have_is_refused_with_those_it_has() -> None:
    message = refusal({"type": "mcp", "server_label": "files", "name": "delete"})
    assert "'delete'" in message
    assert "'read', 'write'" in message
    many = server_tools("files", *(f"tool_{number}" for number in range(21)))
    message = refusal({"type": "mcp", "server_label": "files", "name": "delete"}, many)
    assert message.endswith("'tool_19', and more.")


def test_a_required_call_of_a_server_without_tools_is_refused() -> None:
    assert "'files'" in refusal({"type": "mcp", "server_label": "files"}, [])
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "files"}]}
    assert tool_choice_of(allowed, []) == NamedTools(())


def tool_list_item(label: str, *tools: Any, **more: Any) -> dict[str, Any]:
    return {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": label, "tools": list(tools), **more}


def test_the_newest_list_of_a_server_is_used_again() -> None:
    old = {"name": "read", "input_schema": {"type": "object"}}
    new = {
        "name": "write",
        "description": "Writes.",
        "input_schema": {"type": "object", "minimum": 10**30},
        "annotations": {"readOnlyHint": False},
    }
    said = {"type": "message", "role": "user", "content": []}
    known = newest_lists(
        [tool_list_item("a", old), None, said, tool_list_item("b", old), tool_list_item("a", new)]
    )
    assert known["b"] == (ListedTool("read"),)
    (tool,) = known["a"]
    assert (tool.name, tool.description, tool.only_reads) == ("write", "Writes.", False)
    assert json.loads(tool.input_schema) == new["input_schema"]


@pytest.mark.parametrize(
    "broken",
    [
        tool_list_item("a", error="It is down."),
        tool_list_item("a", {"name": "read"}),
        tool_list_item("a", {"name": 1, "input_schema": {}}),
        tool_list_item("a", {"name": "read", "input_schema": None}),
    ],
)
def test_a_list_that_failed_or_makes_no_sense_is_not_used(broken: dict[str, Any]) -> None:
    assert newest_lists([broken]) == {}
    good = tool_list_item("a", {"name": "read", "input_schema": {"type": "object"}})
    assert newest_lists([good, broken]) == {"a": (ListedTool("read"),)}
