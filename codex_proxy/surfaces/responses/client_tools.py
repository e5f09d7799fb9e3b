"""The client's tools: functions and custom tools (also in namespaces), tool search, and those of `machine_tools`. A
namespace's tool is offered as `NAMESPACE__NAME`; a deferred one once tool search has listed it. Raises `Fault`
INVALID_REQUEST. Sources: OpenAI's types, requests of Codex 0.163 and 0.169.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import ConfigDict, TypeAdapter

from codex_proxy.core.items import ClientName, Tool
from codex_proxy.core.tool_names import offered_name
from codex_proxy.surfaces.base import json_bytes, schema_json
from codex_proxy.surfaces.body import validate
from codex_proxy.surfaces.items import ItemDict
from codex_proxy.surfaces.responses import machine_tools
from codex_proxy.surfaces.responses import wire_tools as wire
from codex_proxy.surfaces.responses.machine_tools import machine_tool
from codex_proxy.surfaces.tools import with_grammar

TOOL_SEARCH: Final = "tool_search"
_DEFAULT_NAMESPACE: Final = "functions"
_LISTS: Final = frozenset({"additional_tools", "tool_search_output"})
"""Types of items that contain tools."""
_listed: TypeAdapter[Sequence[wire.AnyTool]] = TypeAdapter(
    list[wire.AnyTool], config=ConfigDict(defer_build=True)
)


class GivenTool(NamedTuple):
    """A tool of the request. `param`: the path of its name. `deferred`: whether it is offered only after a tool
    search has found it.
    """

    tool: Tool
    param: str
    deferred: bool


def name_of(namespace: str | None, name: str) -> str:
    """Returns the name under which a tool is offered, from these two names alone."""
    if namespace is None or namespace == _DEFAULT_NAMESPACE:
        return name
    return offered_name(namespace, name)


def client_tools(given: Sequence[wire.AnyTool], param: str = "tools") -> Iterator[GivenTool]:
    """Yields the tools in a field. `param`: the field's path."""
    searches = any(isinstance(tool, wire.ToolSearchTool) and tool.execution == "client" for tool in given)
    for index, tool in enumerate(given):
        path = f"{param}[{index}]"
        if isinstance(tool, wire.FunctionTool | wire.CustomTool):
            yield GivenTool(_tool(tool, None), f"{path}.name", searches and bool(tool.defer_loading))
        elif isinstance(tool, wire.NamespaceTool):
            for number, inner in enumerate(tool.tools):
                # Nobody could ever find a deferred tool where nobody searches.
                deferred = searches and bool(inner.defer_loading)
                yield GivenTool(_tool(inner, tool.name), f"{path}.tools[{number}].name", deferred)
        elif isinstance(tool, wire.ToolSearchTool) and tool.execution == "client":
            yield GivenTool(_search_tool(tool), path, False)
        elif isinstance(tool, wire.MachineTool) and not wire.runs_in_container(tool):
            yield GivenTool(machine_tool(tool), path, False)


def tools_in(items: Iterable[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Returns the tools in `additional_tools` and `tool_search_output` items; of two with the same name the later."""
    found: dict[str, Tool] = {}
    for index, item in enumerate(items):
        if item["type"] in _LISTS:
            path = f"input[{index}].tools"
            listed = validate(_listed, item["tools"], path)
            found |= {given.tool.name: given.tool for given in client_tools(listed, path)}
    return tuple(found.values())


def search_result_text(item: ItemDict) -> str:
    """Returns what a tool search has found, for the model."""
    found = [
        {"name": given.tool.name, "description": given.tool.description}
        for given in client_tools(validate(_listed, item["tools"], "tools"))
    ]
    return json_bytes({"tools": found}).decode()


def as_function_item(item: ItemDict) -> ItemDict:
    """Converts calls and outputs of tool search and of `machine_tools` to calls and outputs of functions."""
    if item.get("call_id") is None:
        return item
    if item["type"] == "tool_search_call":
        arguments = json_bytes(item["arguments"]).decode()
        return {**item, "type": "function_call", "name": TOOL_SEARCH, "arguments": arguments}
    if item["type"] == "tool_search_output":
        return {**item, "type": "function_call_output", "output": search_result_text(item)}
    return machine_tools.as_function_item(item)


def _tool(tool: wire.FunctionTool | wire.CustomTool, namespace: str | None) -> Tool:
    name = name_of(namespace, tool.name)
    called = None if namespace is None else ClientName(tool.name, namespace)
    description = tool.description or ""
    if isinstance(tool, wire.CustomTool):
        if isinstance(tool.format, wire.GrammarFormat):
            description = with_grammar(description, tool.format.syntax, tool.format.definition)
        return Tool(name, description, kind="custom", client_name=called)
    parameters = None if tool.parameters is None else schema_json(tool.parameters)
    return Tool(name, description, parameters, strict=bool(tool.strict), client_name=called)


def _search_tool(tool: wire.ToolSearchTool) -> Tool:
    parameters = None if tool.parameters is None else schema_json(tool.parameters)
    called = ClientName(TOOL_SEARCH, call_type="tool_search_call")
    return Tool(TOOL_SEARCH, tool.description or "", parameters, client_name=called)
