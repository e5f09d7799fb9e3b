"""Reads the fields of a chat request that determine the form of the answer, `tools` (or the older `functions`) and
`tool_choice`. Raises `Fault` INVALID_REQUEST. Sources: docs/contract.md#parameters-of-chat-completions,
docs/contract.md#tools-and-tool_choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.items import Tool
from codex_proxy.core.turn import NamedTools, ToolChoice
from codex_proxy.surfaces.answers.renderer import schema_json
from codex_proxy.surfaces.chat import wire
from codex_proxy.surfaces.chat.wire import AssistantMessage, ChatRequest
from codex_proxy.surfaces.requests.body import check_maximum, missing_parameter, wrong_type
from codex_proxy.surfaces.requests.options import (
    JSON_OBJECT,
    Format,
    Logprobs,
    json_schema_format,
    refuse_logprobs,
    refuse_stream_options,
)
from codex_proxy.surfaces.requests.tools import OfferedTools, known_tool, refuse_duplicates, with_grammar

UNSUPPORTED: Final = "unsupported_value"


def ignored_parameters(request: ChatRequest, logprobs: Sequence[str]) -> tuple[str, ...]:
    """Returns parameters without effect that `ChatRequest` does not mark as ignored. `logprobs`: the request's
    `requested_logprobs`.
    """
    named = any(isinstance(each, AssistantMessage) and each.name for each in request.messages)
    return (
        *logprobs,
        *(("store",) if request.store else ()),  # false is what a chat completion here is anyway
        *(("messages[].name",) if named else ()),
    )


def requested_logprobs(request: ChatRequest) -> tuple[str, ...]:
    given = request.logprobs
    if given is not None and not isinstance(given, bool | int):
        raise wrong_type("logprobs", given, "a boolean")
    asked = ("logprobs",) if given else ()
    return asked if request.top_logprobs is None else (*asked, "top_logprobs")


def check_choices(request: ChatRequest, max_choices: int) -> None:
    """Raises `Fault` if `n` exceeds `max_choices`."""
    count = request.n or 1
    if max_choices == 1 and count != 1:
        raise bad_request("Invalid value for 'n': only 1 is accepted.", "n", UNSUPPORTED)
    check_maximum("n", count, max_choices)


def format_of(request: ChatRequest, *, structured_output: bool) -> Format:
    """Returns the wanted format. Raises `Fault` if formats are disabled, or a schema is missing."""
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return Format()
    if not structured_output:
        raise bad_request(
            f"'response_format' of type '{wanted.type}' is not supported: only 'text' is accepted.",
            "response_format",
            UNSUPPORTED,
        )
    if wanted.type == "json_object":
        return JSON_OBJECT
    given = wanted.json_schema
    if given is None:
        raise missing_parameter("response_format.json_schema")
    if given.schema_ is None:
        raise missing_parameter("response_format.json_schema.schema")
    return json_schema_format(given.schema_, given.name, given.description)


def refuse_unsupported(request: ChatRequest, logprobs: Sequence[str], setting: Logprobs) -> None:
    """Raises `Fault` for audio, and for log probabilities (`requested_logprobs`) if the `setting` is `refuse`."""
    if logprobs:
        refuse_logprobs({name: name for name in logprobs}, setting)
    if "audio" in (request.modalities or ()):
        raise _unsupported_fault("modalities", "The agent answers in text: the only modality is 'text'.")
    if request.audio is not None:
        raise _unsupported_fault("audio", "The agent answers in text: leave 'audio' out.")


def refuse_contradictions(request: ChatRequest) -> None:
    """Raises `Fault` for fields that exclude each other."""
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise bad_request(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            "max_tokens",
            "mutually_exclusive_parameters",
        )
    refuse_stream_options(request.stream_options, request.stream)


def _unsupported_fault(param: str, message: str) -> Fault:
    return bad_request(message, param, UNSUPPORTED)


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
    if len(tools) > 1:
        refuse_duplicates(tools, [f"tools[{i}].{tool.kind}.name" for i, tool in enumerate(tools)])
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
