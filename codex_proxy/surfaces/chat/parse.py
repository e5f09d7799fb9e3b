"""Parses a chat request into a `Turn` and what its answer needs. Raises `Fault`: INVALID_REQUEST, MODEL_NOT_FOUND,
NOT_ALLOWED. Sources: docs/contract.md#parameters-of-chat-completions, docs/contract.md#messages-and-parts,
docs/contract.md#tools-and-tool_choice, docs/wire-rules.md#chat-completions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.media import PdfTexts
from codex_proxy.core.options import SAMPLING
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.chat.forward import (
    Fields,
    ForwardPolicy,
    fields_of,
    forwarded_request,
    may_forward_whole,
    messages_in,
    passed_fields,
    sampling_in,
    unknown_fields,
)
from codex_proxy.surfaces.chat.messages import has_calls, has_instructions, history_of, web_images
from codex_proxy.surfaces.chat.options import (
    check_choices,
    format_of,
    ignored_parameters,
    offered_tools,
    refuse_contradictions,
    refuse_unsupported,
    requested_logprobs,
)
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.models import DEFAULT_NAME, ResolvedModel, resolve, service_tier
from codex_proxy.surfaces.requests.body import check_length, parse_as
from codex_proxy.surfaces.requests.fields import ignored_fields, ignored_inner_fields, refuse_noted
from codex_proxy.surfaces.requests.options import (
    FieldNames,
    Format,
    ParseContext,
    ParsedRequest,
    Place,
    asked_calls,
    forbidden_search,
    non_null_fields,
    options_as_given,
    place_of,
    stops_of,
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
    fields = fields_of(body)
    if may_forward_whole(request, policy, has_web_images=bool(web_images(request.messages))):
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
