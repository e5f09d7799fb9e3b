"""Reads `tools` (or the older `functions`) and `tool_choice`. Raises `Fault` INVALID_REQUEST. Source:
docs/contract.md#tools-and-tool_choice.
"""

from __future__ import annotations

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import Tool
from codex_proxy.core.turn import NamedTools, ToolChoice
from codex_proxy.surfaces.base import schema_json
from codex_proxy.surfaces.chat import wire
from codex_proxy.surfaces.tools import OfferedTools, known_tool, refuse_duplicates, with_grammar


def offered_tools(request: wire.ChatRequest) -> OfferedTools:
    """Returns the tools that the request offers. Raises `Fault` for invalid or duplicate tools, `tools` with
    `functions`, and a choice that is not offered.
    """
    legacy = bool(request.functions)
    if legacy and request.tools:
        raise bad_request("Give either 'tools' or 'functions', not both.", "functions")
    if legacy:
        return _functions(request.functions or [], request.function_call)
    tools = [_tool(tool) for tool in request.tools or ()]
    fields = [f"tools[{i}].{tool.kind}.name" for i, tool in enumerate(tools)]
    refuse_duplicates(tools, fields)
    if request.function_call not in (None, "auto", "none"):
        raise bad_request("'function_call' is only allowed when 'functions' are given.", "function_call")
    return OfferedTools(tools=tuple(tools), choice=_choice(request.tool_choice, tools))


def _functions(definitions: list[wire.FunctionDefinition], choice: wire.LegacyChoice | None) -> OfferedTools:
    tools = [_function(definition) for definition in definitions]
    refuse_duplicates(tools, [f"functions[{i}].name" for i in range(len(tools))])
    if not isinstance(choice, wire.Named):
        return OfferedTools(tools=tuple(tools), choice="none" if choice == "none" else "auto")
    named = known_tool(choice.name, "function", tools, "function_call.name")
    return OfferedTools(tools=tuple(tools), choice=NamedTools((named,), required=True))


def _tool(tool: wire.AnyTool) -> Tool:
    if isinstance(tool, wire.FunctionTool):
        return _function(tool.function)
    return Tool(tool.custom.name, _custom_description(tool.custom), kind="custom")


def _function(definition: wire.FunctionDefinition) -> Tool:
    return Tool(
        definition.name,
        definition.description or "",
        schema_json(definition.parameters) if definition.parameters is not None else None,
        strict=bool(definition.strict),
    )


def _custom_description(definition: wire.CustomDefinition) -> str:
    description = definition.description or ""
    if not isinstance(definition.format, wire.GrammarFormat):
        return description
    grammar = definition.format.grammar
    return with_grammar(description, grammar.syntax, grammar.definition)


def _choice(choice: wire.ToolChoice | None, tools: list[Tool]) -> ToolChoice:
    if choice is None or choice == "auto" or choice == "none":
        return choice or "auto"
    if not tools:
        raise bad_request("'tool_choice' is only allowed when 'tools' are given.", "tool_choice")
    if choice == "required":
        return choice
    if isinstance(choice, wire.ChosenAllowed):
        names = tuple(
            _chosen_tool(tool, tools, f"tool_choice.allowed_tools.tools[{i}]")
            for i, tool in enumerate(choice.allowed_tools.tools)
        )
        return NamedTools(names, required=choice.allowed_tools.mode == "required")
    return NamedTools((_chosen_tool(choice, tools, "tool_choice"),), required=True)


def _chosen_tool(choice: wire.ChosenTool, tools: list[Tool], param: str) -> str:
    name = choice.custom.name if isinstance(choice, wire.ChosenCustom) else choice.function.name
    return known_tool(name, choice.type, tools, f"{param}.{choice.type}.name")
