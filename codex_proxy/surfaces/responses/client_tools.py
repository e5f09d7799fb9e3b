"""The client's own tools of a Responses request: functions and custom tools, also in namespaces, also deferred ones.

In: validated tools, and the items of a context. Out: `Tool`s, each under a name that models take, with what the client
calls it (`Tool.client_name`) where that is another one. Raises `Fault` INVALID_REQUEST for tools that cannot be read.

An agent knows no namespaces, so `NAMESPACE__NAME` is offered and the call comes back with both. A deferred tool is
offered once the output of a `tool_search` call of the client's has listed it; `additional_tools` items offer theirs at
once. Sources: OpenAI's own types (`namespace`, `tool_search`), requests of Codex 0.163 and 0.169 as a client.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from codex_proxy.core.items import ClientName, Tool
from codex_proxy.core.mcp_names import offered_name
from codex_proxy.surfaces.base import schema_json
from codex_proxy.surfaces.body import validated
from codex_proxy.surfaces.items import ItemDict
from codex_proxy.surfaces.request_options import grammar_words
from codex_proxy.surfaces.responses import wire_tools as wire

TOOL_SEARCH: Final = "tool_search"
_DEFAULT_NAMESPACE: Final = "functions"
"""The namespace of tools that have none: Codex spells it out in its lite requests."""
_LISTS: Final = frozenset({"additional_tools", "tool_search_output"})
"""Items that bring tools."""
_listed: TypeAdapter[Sequence[wire.AnyTool]] = TypeAdapter(list[wire.AnyTool])


class GivenTool(NamedTuple):
    """A tool as it is offered, and where its name stands in the request."""

    tool: Tool
    param: str
    deferred: bool


def name_of(namespace: str | None, name: str) -> str:
    """The name under which the model is offered a tool. The same two always give the same one."""
    if namespace is None or namespace == _DEFAULT_NAMESPACE:
        return name
    return offered_name(namespace, name)


def client_tools(given: Sequence[wire.AnyTool], param: str = "tools") -> Iterator[GivenTool]:
    """The functions and custom tools among these, those in namespaces too, and the client's tool search."""
    searches = any(isinstance(tool, wire.ToolSearchTool) and tool.execution == "client" for tool in given)
    for index, tool in enumerate(given):
        place = f"{param}[{index}]"
        if isinstance(tool, wire.FunctionTool | wire.CustomTool):
            yield GivenTool(_tool(tool, None), f"{place}.name", searches and bool(tool.defer_loading))
        elif isinstance(tool, wire.NamespaceTool):
            for number, inner in enumerate(tool.tools):
                # Nobody could ever find a deferred tool where nobody searches.
                deferred = searches and bool(inner.defer_loading)
                yield GivenTool(_tool(inner, tool.name), f"{place}.tools[{number}].name", deferred)
        elif isinstance(tool, wire.ToolSearchTool) and tool.execution == "client":
            yield GivenTool(_search(tool), place, False)


def tools_in(items: Iterable[Mapping[str, Any]], field: str = "input") -> tuple[Tool, ...]:
    """The tools that the items of a context bring. Of two that are offered under one name the newer one stays."""
    found: dict[str, Tool] = {}
    for index, item in enumerate(items):
        if item["type"] in _LISTS:
            place = f"{field}[{index}].tools"
            listed = validated(_listed, item["tools"], place)
            found |= {given.tool.name: given.tool for given in client_tools(listed, place)}
    return tuple(found.values())


def search_words(item: ItemDict) -> str:
    """What the model is told of the tools that a search has found: their names as it is offered them."""
    found = [
        {"name": given.tool.name, "description": given.tool.description}
        for given in client_tools(validated(_listed, item["tools"], "tools"))
    ]
    return json.dumps({"tools": found}, ensure_ascii=False)


def as_function_item(item: ItemDict) -> ItemDict:
    """A tool search of the client's, or its output, as the function that the model was offered; others as they are.

    One without a `call_id` was made by OpenAI's own servers, and is nobody's call.
    """
    if item.get("call_id") is None:
        return item
    if item["type"] == "tool_search_call":
        arguments = json.dumps(item["arguments"], ensure_ascii=False, separators=(",", ":"))
        return {**item, "type": "function_call", "name": TOOL_SEARCH, "arguments": arguments}
    if item["type"] == "tool_search_output":
        return {**item, "type": "function_call_output", "output": search_words(item)}
    return item


def _tool(tool: wire.FunctionTool | wire.CustomTool, namespace: str | None) -> Tool:
    name = name_of(namespace, tool.name)
    called = None if namespace is None else ClientName(tool.name, namespace)
    description = tool.description or ""
    if isinstance(tool, wire.CustomTool):
        if isinstance(tool.format, wire.GrammarFormat):
            description = grammar_words(description, tool.format.syntax, tool.format.definition)
        return Tool(name, description, kind="custom", client_name=called)
    parameters = None if tool.parameters is None else schema_json(tool.parameters)
    return Tool(name, description, parameters, strict=bool(tool.strict), client_name=called)


def _search(tool: wire.ToolSearchTool) -> Tool:
    parameters = None if tool.parameters is None else schema_json(tool.parameters)
    called = ClientName(TOOL_SEARCH, search=True)
    return Tool(TOOL_SEARCH, tool.description or "", parameters, client_name=called)
