"""Parses a Responses request into a `Turn` without history (`turn_of` adds it), and what its answer needs. Raises
`Fault`: INVALID_REQUEST, MODEL_NOT_FOUND, NOT_ALLOWED. Sources: docs/contract.md#fields-of-a-request,
docs/contract.md#errors-of-responses, docs/contract.md#the-reasoning-parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from pydantic import ConfigDict, TypeAdapter

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import HistoryItem, HistoryMessage, TextPart
from codex_proxy.core.media import PdfTexts
from codex_proxy.core.options import NAMES, SAMPLING
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import HostedTools, Mode, Turn
from codex_proxy.surfaces.models import resolve, service_tier
from codex_proxy.surfaces.requests.body import JsonSchemaFormat, TextFormat, check_length, parse_as, validate
from codex_proxy.surfaces.requests.fields import ByKind, ignored_fields
from codex_proxy.surfaces.requests.options import (
    JSON_OBJECT,
    FieldNames,
    Format,
    ParseContext,
    ParsedRequest,
    RequestSettings,
    asked_calls,
    forbidden_search,
    json_schema_format,
    mode_of,
    non_null_fields,
    options_as_given,
    place_of,
    refuse_logprobs,
    refuse_stream_options,
    stops_of,
    with_json_hint,
)
from codex_proxy.surfaces.responses.client_tools import TOOL_LISTS, tools_in
from codex_proxy.surfaces.responses.item_wire import ConfigurationUpdateItem
from codex_proxy.surfaces.responses.items import (
    CLIENT_CALLS,
    ItemDict,
    asks_for_compaction,
    normalise_items,
    web_images,
)
from codex_proxy.surfaces.responses.response_object import ResponseEcho, echo_of, summary_of
from codex_proxy.surfaces.responses.tools import (
    NO_TOOLS,
    HostedOffer,
    McpChoice,
    McpOffer,
    ResponsesTools,
    offered_tools,
)
from codex_proxy.surfaces.responses.wire import (
    ContextFields,
    JsonObjectFormat,
    ReasoningOptions,
    ResponseRequest,
    TextOptions,
    WebSearchTool,
)

_type_of = itemgetter("type")
CONVERSATION_PREFIX: Final = "conv_"
HOSTED_FIELDS: Final = ("file_search_call.results", "code_interpreter_call.outputs")
"""The values of `include` for tools of the model server."""
ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"

FIELDS: Final = FieldNames(
    input="input",
    input_item="input",
    tool_schema="tools[{}].parameters",
    output_schema="text.format.schema",
    options=NAMES["responses"],
)

INSTRUCTING: Final = frozenset({"system", "developer"})

Activity: TypeAlias = Literal["off", "summaries", "items"]
"""How the agent's actions are shown: not, as reasoning summaries, or as items."""


class ParsedResponse(ParsedRequest, frozen=True, kw_only=True):
    fields: FieldNames = FIELDS
    mode_after_calls: Mode
    """The mode of turns behind calls of the client's tools."""
    input_items: tuple[ItemDict, ...]
    """The request's own items, normalised, without ids; references are not resolved."""
    instructions: str | None
    previous_response_id: str | None
    conversation: str | None
    store: bool
    background: bool
    compacts: bool
    """Whether the answer is a compaction of the context."""
    include: frozenset[str]
    mcp: tuple[McpOffer, ...]
    mcp_choice: tuple[McpChoice, ...]
    """The only MCP tools that may be called (see `ResponsesTools`)."""
    hosted: tuple[HostedOffer, ...]
    """The tools that the model server is to run, also those that may not be called."""
    max_tool_calls: int | None
    truncation: Literal["auto", "disabled"]
    format: Format
    activity: Activity
    echo: ResponseEcho
    """What the response repeats of the request (`echo_of`)."""


def parse(body: bytes, pdfs: PdfTexts | None = None, *, context: ParseContext) -> ParsedResponse:
    """Parses the body of `POST /v1/responses`. `pdfs` None: PDFs are refused."""
    request, ignored = _parse_request(body, context.settings)
    parsed = _convert(request, context, pdfs)
    return msgspec.structs.replace(parsed, ignored=(*ignored, *parsed.ignored))


def _convert(request: ResponseRequest, context: ParseContext, pdfs: PdfTexts | None) -> ParsedResponse:
    request = _with_updates(request)
    conversation, wanted = conversation_of(request), format_of(request)
    items = normalise_items(request.input, pdfs=pdfs)
    compacts = asks_for_compaction(items)
    if compacts and len(items) == 1:
        _refuse_empty_input(request)
    acts = _client_acts(request, wanted, items)
    offered = _offered_tools(request, items)
    resolved = resolve(request.model, context.catalog)
    tier = service_tier(request.service_tier, resolved, context.catalog)
    place = place_of(resolved, context, request.metadata, client_acts=acts)
    turn = msgspec.structs.replace(
        place.turn,
        effort=(request.reasoning.effort if request.reasoning else None) or resolved.effort,
        summary=summary_of(request),
        **options_as_given(request, "responses"),
        service_tier=tier.given,
        tools=offered.tools,
        tool_choice=offered.choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        web_search=offered.web_search and context.settings.web_search,
        hosted=_with_limits(offered.hosted, request),
        output_schema=wanted.schema,
        sampling=non_null_fields(request, SAMPLING["responses"]),
        stop=stops_of(request.stop),
        max_tokens=request.max_output_tokens,
    )
    return ParsedResponse(
        turn=turn,
        mode_after_calls=mode_of(resolved, context, client_acts=True),
        model_asked=request.model,
        input_items=items,
        instructions=request.instructions,
        previous_response_id=request.previous_response_id,
        conversation=conversation,
        store=request.store is not False,
        background=bool(request.background),
        compacts=compacts,
        stream=bool(request.stream),
        include=frozenset(request.include or ()),
        mcp=offered.mcp,
        mcp_choice=offered.mcp_choice,
        hosted=offered.hosted_offers,
        max_tool_calls=request.max_tool_calls,
        truncation=request.truncation or "disabled",
        format=wanted,
        activity=_activity(context),
        echo=echo_of(request, offered, turn, service_tier=tier.served, conversation=conversation),
        asked=asked_calls(request.parallel_tool_calls),
        ignored=(
            *offered.left_out,
            *tier.ignored,
            *forbidden_search("tools[web_search]", context.settings, asked=offered.web_search),
        ),
        workdir_param=place.workdir_param,
        web_images=web_images(items),
    )


def _offered_tools(request: ResponseRequest, items: Sequence[ItemDict]) -> ResponsesTools:
    if request.tools or request.tool_choice is not None or not TOOL_LISTS.isdisjoint(map(_type_of, items)):
        return offered_tools(request.tools, request.tool_choice, tools_in(items))
    return NO_TOOLS


def _with_limits(hosted: HostedTools | None, request: ResponseRequest) -> HostedTools | None:
    """Returns the tools with the fields that their items are to have besides, and their maximum calls."""
    if hosted is None:
        return None
    include = tuple(name for name in HOSTED_FIELDS if name in (request.include or ()))
    return msgspec.structs.replace(hosted, include=include, max_calls=request.max_tool_calls)


def _with_updates(request: ResponseRequest) -> ResponseRequest:
    """Returns the request with the newest effort and format that its `configuration_update` items set."""
    items = request.input if isinstance(request.input, list) else ()
    reasoning, text = request.reasoning, request.text
    for item in items:
        if not isinstance(item, ConfigurationUpdateItem):
            continue
        if item.reasoning is not None and item.reasoning.effort is not None:
            reasoning = (reasoning or ReasoningOptions()).model_copy(update={"effort": item.reasoning.effort})
        if item.text is not None:
            text = (text or TextOptions()).model_copy(update={"format": item.text.format})
    if reasoning is request.reasoning and text is request.text:
        return request
    return request.model_copy(update={"reasoning": reasoning, "text": text})


def with_earlier_updates(turn: Turn, items: Sequence[ItemDict]) -> Turn:
    """Returns the turn with the newest effort and format that `configuration_update` among all items of its context
    set.
    """
    for item in items:
        if item["type"] != "configuration_update":
            continue
        if effort := item.get("reasoning", {}).get("effort"):
            turn = msgspec.structs.replace(turn, effort=effort)
        if "text" in item:
            wanted = _format_of(validate(_format, item["text"]["format"], "input"))
            turn = msgspec.structs.replace(turn, output_schema=wanted.schema)
    return turn


def turn_of(parsed: ParsedResponse, history: tuple[HistoryItem, ...]) -> Turn:
    """Returns the turn, with the history behind the instructions."""
    if parsed.instructions:
        history = (HistoryMessage("developer", (TextPart(parsed.instructions),)), *history)
    return msgspec.structs.replace(parsed.turn, history=with_json_hint(history, parsed.format))


def _parse_request(body: bytes, settings: RequestSettings) -> tuple[ResponseRequest, tuple[str, ...]]:
    request, notes = parse_as(ResponseRequest, body)
    named = ignored_fields(notes)
    check_input(request, settings.max_items)
    logprobs = _requested_logprobs(request) if request.include or request.top_logprobs else {}
    refuse_logprobs(logprobs, settings.logprobs)
    _refuse_unsupported(request)
    return request, (*logprobs.values(), *named)


def check_input(request: ContextFields, limit: int) -> None:
    """Raises `Fault` for an input of more than `limit` items."""
    if isinstance(request.input, list):
        check_length("input", len(request.input), limit)


def conversation_of(request: ContextFields) -> str | None:
    """Returns the conversation's id, if any. Raises `Fault` if it is malformed, or beside a previous response
    (docs/contract.md#errors-of-responses).
    """
    given = request.conversation
    conversation = given if given is None or isinstance(given, str) else given.id
    if conversation is None:
        return None
    if request.previous_response_id is not None:
        raise bad_request(
            "Mutually exclusive parameters. Ensure you are only providing one of: 'previous_response_id' or "
            "'conversation'.",
            code="mutually_exclusive_parameters",
        )
    if not conversation.startswith(CONVERSATION_PREFIX):
        raise bad_request(
            f"Invalid 'conversation': '{excerpt(conversation)}'. Expected an ID that begins with 'conv_'.",
            "conversation",
            "invalid_conversation_id",
        )
    return conversation


def format_of(request: ContextFields) -> Format:
    return _format_of(request.text.format if request.text else None)


_format: TypeAdapter[TextFormat | JsonSchemaFormat] = TypeAdapter(
    Annotated[TextFormat | JsonSchemaFormat, ByKind()], config=ConfigDict(defer_build=True)
)


def _format_of(wanted: TextFormat | JsonObjectFormat | JsonSchemaFormat | None) -> Format:
    if isinstance(wanted, JsonSchemaFormat):
        return json_schema_format(wanted.schema_, wanted.name, wanted.description)
    return JSON_OBJECT if wanted and wanted.type == "json_object" else Format()


def _client_acts(request: ResponseRequest, wanted: Format, items: Sequence[ItemDict]) -> bool:
    """Whether the client seems to be an agent itself; web search does not count."""
    return (
        bool(request.instructions)
        or (request.tools and any(not isinstance(tool, WebSearchTool) for tool in request.tools))
        or wanted.kind != "text"
        or any(item.get("role") in INSTRUCTING or item["type"] in CLIENT_CALLS for item in items)
    )


def _activity(context: ParseContext) -> Activity:
    if (context.hints.activity or "").strip().lower() == "items":
        return "items"
    return "summaries" if context.settings.show_activity else "off"


def _refuse_unsupported(request: ResponseRequest) -> None:
    if request.background and request.store is False:
        raise bad_request(
            "A background response has to be stored: leave 'store' out, or set it to true.", "background"
        )
    refuse_stream_options(request.stream_options, request.stream)
    if request.input == []:
        _refuse_empty_input(request)


def _refuse_empty_input(request: ResponseRequest) -> None:
    if request.previous_response_id is None and request.conversation is None:
        raise bad_request(
            "'input' is empty, and there is no 'previous_response_id' or 'conversation' to continue from.",
            "input",
            "empty_array",
        )


def _requested_logprobs(request: ResponseRequest) -> dict[str, str]:
    included = {
        f"include[{index}]": name
        for index, name in enumerate(request.include or ())
        if name == "message.output_text.logprobs"
    }
    return ({"top_logprobs": "top_logprobs"} if request.top_logprobs else {}) | included
