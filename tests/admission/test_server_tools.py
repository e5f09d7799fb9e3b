"""Tools of MCP servers beside those that a request brings: which stay where two have one name."""

from __future__ import annotations

import msgspec
import pytest

from codex_proxy.admission.admit import ServerTools, with_server_tools
from codex_proxy.core.items import McpOrigin, Tool
from codex_proxy.core.tool_names import offered_name
from codex_proxy.core.turn import Turn

MINE = Tool("search", "The client's own.")


def of_server(label: str, name: str) -> Tool:
    return Tool(offered_name(label, name), mcp=McpOrigin(label, name))


def joined_names(own: ServerTools, *brought: Tool) -> list[str]:
    turn = Turn(mode="model", model="m", history=(), tools=brought)
    return [tool.name for tool in with_server_tools(turn, own, steps=1).tools]


def test_a_tool_that_the_request_brings_wins_over_the_operator_s_of_the_same_name() -> None:
    own = ServerTools(operator_tools=(of_server("desk", "search"), of_server("desk", "read")))
    assert joined_names(own, MINE) == ["search", "desk__read"]


def test_a_server_that_the_request_names_keeps_its_tools_beside_the_request_s_functions() -> None:
    """Its list says that they are there, and a choice may name them."""
    own = ServerTools((of_server("news", "search"),))
    assert joined_names(own, MINE) == ["search", "news__search"]


def test_no_two_tools_of_one_name_reach_the_agent_which_would_refuse_the_turn() -> None:
    one = of_server("news", "search")
    own = ServerTools((one, msgspec.structs.replace(one, description="Again.")), (one,))
    assert joined_names(own) == ["news__search"]
    assert joined_names(own, Tool("news__search")) == ["news__search"]


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a__b", "c"), ("a", "b__c")), (("a_", "b"), ("a", "_b")), (("a b", "c"), ("a_b", "c"))],
)
def test_tools_of_two_servers_never_have_one_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert offered_name(*one) != offered_name(*other)
