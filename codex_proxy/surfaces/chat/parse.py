"""Parses a chat request into a `Turn` and what its answer needs. Raises `Fault`: INVALID_REQUEST, MODEL_NOT_FOUND,
NOT_ALLOWED. Sources: docs/contract.md#parameters-of-chat-completions, docs/contract.md#messages-and-parts,
docs/contract.md#tools-and-tool_choice, docs/wire-rules.md#chat-completions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.items import Tool
from codex_proxy.core.media import PdfTexts
from codex_proxy.core.options import SAMPLING
from codex_proxy.core.turn import NamedTools, ToolChoice, Turn
from codex_proxy.surfaces.answers.renderer import schema_json
from codex_proxy.surfaces.chat import wire
from codex_proxy.surfaces.chat.forward import (
    Fields,
    ForwardPolicy,
    fields_of,
    forwarded_request,
    is_only_forwarded,
    may_forward_whole,
    messages_in,
    passed_fields,
    sampling_in,
    unknown_fields,
)
from codex_proxy.surfaces.chat.messages import has_calls, has_instructions, history_of, web_images
from codex_proxy.surfaces.chat.wire import AssistantMessage, ChatRequest
from codex_proxy.surfaces.models import DEFAULT_NAME, ResolvedModel, resolve, service_tier
from codex_proxy.surfaces.requests.body import (
    check_length,
    check_maximum,
    missing_parameter,
    parse_as,
    wrong_type,
)
from codex_proxy.surfaces.requests.fields import ignored_fields, ignored_inner_fields, refuse_noted
from codex_proxy.surfaces.requests.options import (
    JSON_OBJECT,
    FieldNames,
    Format,
    Logprobs,
    OfferedTools,
    ParseContext,
    ParsedRequest,
    Place,
    asked_calls,
    forbidden_search,
    json_schema_format,
    known_tool,
    non_null_fields,
    options_as_given,
    place_of,
    refuse_duplicates,
    refuse_logprobs,
    refuse_stream_options,
    stops_of,
    with_grammar,
    with_json_hint,
)

FIELDS: Final = FieldNames()
FUNCTIONS_FIELDS: Final = FieldNames(tool_schema="functions[{}].parameters")
"""Names of fields for requests with `functions`, the older form of `tools`."""


class ParsedChat(ParsedRequest, frozen=True, kw_only=True):
    include_usage: bool
    """Whether the stream gets a chunk with the usage."""
    choices: int
    service_tier: str | None = None
    """The tier in the answer, if the request names one."""
    legacy_function_call: bool
    """Whether calls are answered as `function_call`."""


def parse(
    body: bytes,
    pdfs: PdfTexts | None = None,
    *,
    context: ParseContext,
    forward_policy: Callable[[str], ForwardPolicy | None] = lambda model: None,
) -> ParsedChat:
    """Parses the body of `POST /v1/chat/completions`. `pdfs` None: PDFs are refused. `forward_policy` returns what may
    go unchanged to a model's upstream, or None.
    """
    request, notes = parse_as(ChatRequest, body)
    check_length("messages", len(request.messages), context.settings.max_items)
    refuse_contradictions(request)
    check_choices(request, context.settings.max_choices)
    resolved = resolve(_model_asked(request), context.catalog)
    policy = forward_policy(resolved.agent_model)
    if policy is None:
        refuse_noted(notes)
        ignored = ignored_fields(notes)
        parsed = _convert(request, resolved, context, pdfs)
        return msgspec.structs.replace(parsed, ignored=(*parsed.ignored, *ignored))
    fields, has_web_images = fields_of(body), bool(web_images(request.messages))
    may_forward = may_forward_whole(request, policy, has_web_images=has_web_images)
    if may_forward and (is_only_forwarded(request) or requested_logprobs(request)):
        return _forward(request, resolved, fields, context)
    parsed = _convert(request, resolved, context, pdfs, messages_in(fields))
    turn = msgspec.structs.replace(
        parsed.turn,
        sampling=sampling_in(fields),
        passed_fields=passed_fields(fields),
        service_tier=request.service_tier,
        web_search=False,  # a passed field
    )
    named = tuple(name for name in parsed.ignored if name == "messages[].name")
    return msgspec.structs.replace(
        parsed,
        turn=turn,
        ignored=(*requested_logprobs(request), *named, *ignored_inner_fields(notes)),
        service_tier=None,
        passed_on=unknown_fields(request, fields),
    )


def _forward(
    request: ChatRequest, resolved: ResolvedModel, fields: Fields, context: ParseContext
) -> ParsedChat:
    place = place_of(resolved, context, request.metadata, client_acts=True)
    effort = _effort(request) or resolved.effort
    forwarded = forwarded_request(request, fields, effort=effort, model_asked=_model_asked(request))
    turn = msgspec.structs.replace(place.turn, effort=effort, forwarded=forwarded)
    return _make_parsed(request, turn, place, passed_on=unknown_fields(request, fields))


def _convert(
    request: ChatRequest,
    resolved: ResolvedModel,
    context: ParseContext,
    pdfs: PdfTexts | None,
    originals: Sequence[msgspec.Raw] | None = None,
) -> ParsedChat:
    """Converts a validated request. `originals`: see `history_of`."""
    settings = context.settings
    logprobs = requested_logprobs(request)
    refuse_unsupported(request, logprobs, settings.logprobs)
    wanted, offered = format_of(request, structured_output=settings.structured_output), offered_tools(request)
    history = history_of(request.messages, pdfs, originals)
    tier = service_tier(request.service_tier, resolved, context.catalog)
    acts = _client_acts(request, wanted)
    place = place_of(resolved, context, request.metadata, client_acts=acts)
    turn = msgspec.structs.replace(
        place.turn,
        history=with_json_hint(history, wanted),
        effort=_effort(request) or resolved.effort,
        summary=request.reasoning.summary if request.reasoning else None,
        **options_as_given(request, "chat"),
        service_tier=tier.given,
        web_search=request.web_search_options is not None and settings.web_search,
        tools=offered.tools,
        tool_choice=offered.choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        calls_without_ids=bool(request.functions),
        output_schema=wanted.schema,
        choices=request.n or 1,
        sampling=non_null_fields(request, SAMPLING["chat"]),
        stop=stops_of(request.stop),
        max_tokens=request.max_completion_tokens or request.max_tokens,
    )
    return _make_parsed(
        request,
        turn,
        place,
        ignored=(
            *ignored_parameters(request, logprobs),
            *tier.ignored,
            *forbidden_search("web_search_options", settings, asked=request.web_search_options is not None),
        ),
        service_tier=None if request.service_tier is None else tier.served,
        web_images=web_images(request.messages),
        asked=asked_calls(request.parallel_tool_calls),
    )


def _make_parsed(request: ChatRequest, turn: Turn, place: Place, **more: Any) -> ParsedChat:
    has_functions = bool(request.functions)
    return ParsedChat(
        turn=turn,
        model_asked=_model_asked(request),
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        choices=request.n or 1,
        fields=FUNCTIONS_FIELDS if has_functions else FIELDS,
        legacy_function_call=has_functions,
        workdir_param=place.workdir_param,
        **more,
    )


def _model_asked(request: ChatRequest) -> str:
    return DEFAULT_NAME if request.model is None else request.model


def _client_acts(request: ChatRequest, wanted: Format) -> bool:
    return (
        bool(request.tools or request.functions)
        or wanted.kind != "text"
        or has_instructions(request.messages)
        or has_calls(request.messages)
    )


def _effort(request: ChatRequest) -> str | None:
    return request.reasoning_effort or (request.reasoning.effort if request.reasoning else None)


# --- the form of the answer, and the tools -----------------------------------------------------------

UNSUPPORTED: Final = "unsupported_value"


def ignored_parameters(request: ChatRequest, logprobs: Sequence[str]) -> tuple[str, ...]:
    """Returns parameters without effect that `ChatRequest` does not mark as ignored. `logprobs`: the request's
    `requested_logprobs`.
    """
    named = AssistantMessage in map(type, request.messages) and any(
        isinstance(each, AssistantMessage) and each.name for each in request.messages
    )
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
    `functions`, and a choice that is not offered or beside the other kind.
    """
    legacy = bool(request.functions)
    if legacy and request.tools:
        raise bad_request("Give either 'tools' or 'functions', not both.", "functions")
    if legacy:
        if request.tool_choice not in (None, "auto"):
            raise bad_request("'tool_choice' is only allowed when 'tools' are given.", "tool_choice")
        return _functions(request.functions or [], request.function_call)
    tools = [_tool(tool) for tool in request.tools or ()]
    if len(tools) > 1:
        refuse_duplicates(tools, [f"tools[{i}].{tool.kind}.name" for i, tool in enumerate(tools)])
    if request.function_call not in (None, "auto") and (tools or request.function_call != "none"):
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
