"""Parses a chat request into a `Turn` and what is needed to answer it. Raises `Fault`: INVALID_REQUEST with `param`,
MODEL_NOT_FOUND, or NOT_ALLOWED. `admission` checks later whether the agent can run the turn. Sources:
docs/contract.md#parameters-of-chat-completions, docs/contract.md#messages-and-parts,
docs/contract.md#tools-and-tool_choice, docs/wire-rules.md#chat-completions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from codex_proxy.core.media import PdfTexts
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.body import check_length
from codex_proxy.surfaces.chat.answer import (
    SAMPLING,
    choices_of,
    format_of,
    ignored_by_us,
    logprobs_asked_for,
    refuse_contradictions,
    refuse_unsupported,
)
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
from codex_proxy.surfaces.chat.tools import offered_tools
from codex_proxy.surfaces.chat.wire import ChatRequest, parse_body
from codex_proxy.surfaces.field_lists import FieldNotes, ignored_fields, ignored_within, refuse_noted
from codex_proxy.surfaces.models import DEFAULT_NAME, ModelCatalog, ResolvedModel, resolve, service_tier
from codex_proxy.surfaces.request_options import (
    FieldNames,
    Format,
    Logprobs,
    ParsedRequest,
    RequestHints,
    RequestSettings,
    fields_set,
    place_of,
    stops_of,
    with_json_hint,
)

FIELDS: Final = FieldNames(
    input="messages",
    input_item="messages[{}].content",
    tool_schema="tools[{}].function.parameters",
    output_schema="response_format.json_schema.schema",
    web_search="web_search_options",
    verbosity="verbosity",
    effort="reasoning_effort",
    parallel_calls="parallel_tool_calls",
)
FUNCTIONS_FIELDS: Final = msgspec.structs.replace(FIELDS, tool_schema="functions[{}].parameters")
"""The names of fields in requests that use `functions`, the older form of `tools`."""


class ChatSettings(RequestSettings, frozen=True, kw_only=True):
    """The operator's settings on which the parsing of a chat request depends."""

    max_choices: int = 5
    """The largest `n` that a request may ask for; a larger one is refused."""
    structured_output: bool = False
    """Whether `json_object` and `json_schema` are supported, or refused
    (docs/contract.md#parameters-of-chat-completions).
    """
    logprobs: Logprobs = "refuse"
    """What happens to a request for log probabilities that the agent does not have."""


class ParsedChat(ParsedRequest, frozen=True, kw_only=True):
    """A parsed chat request."""

    fields: FieldNames = FIELDS
    include_usage: bool
    """Whether the stream gets a chunk with the usage."""
    choices: int
    """The number of choices in the answer (`n`)."""
    service_tier: str | None
    """The tier that the answer names; None if the request names none."""
    legacy_function_call: bool
    """Whether the request has `functions` instead of `tools`, so that calls are answered as `function_call`."""


def parse(
    body: bytes,
    *,
    settings: ChatSettings,
    catalog: ModelCatalog,
    headers: RequestHints,
    pdfs: PdfTexts | None = None,
    forward_policy: Callable[[str], ForwardPolicy | None] = lambda model: None,
) -> ParsedChat:
    """Parses a body. Raises the first `Fault`. `catalog` has the client's models, `pdfs` the texts of PDFs (None: none
    are read). `forward_policy` returns what may go unchanged to the upstream of a model, or is None.
    """
    notes = FieldNotes()
    request = parse_body(body, notes)
    check_length("messages", len(request.messages), settings.max_items)
    refuse_contradictions(request)
    choices_of(request, settings.max_choices)
    asked = DEFAULT_NAME if request.model is None else request.model
    resolved = resolve(asked, catalog)
    policy = forward_policy(resolved.agent_model)
    if policy is None:
        refuse_noted(notes)
        ignored = ignored_fields(notes)
        parsed = _converted(request, resolved, settings, catalog, headers, pdfs)
        return msgspec.structs.replace(parsed, ignored=(*parsed.ignored, *ignored))
    fields = fields_of(body)
    if may_forward_whole(request, policy, has_web_images=bool(web_images(request.messages))):
        return _forwarded(request, resolved, fields, settings, headers)
    parsed = _converted(request, resolved, settings, catalog, headers, pdfs, messages_in(fields))
    turn = msgspec.structs.replace(
        parsed.turn,
        sampling=sampling_in(fields),
        passed_fields=passed_fields(fields),
        service_tier=request.service_tier,
    )
    named = tuple(name for name in parsed.ignored if name == "messages[].name")
    return msgspec.structs.replace(
        parsed,
        turn=turn,
        ignored=(*logprobs_asked_for(request), *named, *ignored_within(notes)),
        web_search=False,
        service_tier=None,
        passed_on=unknown_fields(request, fields),
    )


def _forwarded(
    request: ChatRequest,
    resolved: ResolvedModel,
    fields: Fields,
    settings: ChatSettings,
    headers: RequestHints,
) -> ParsedChat:
    """Returns a request that is forwarded as a whole: its turn has no history. `fields` are its members as raw JSON."""
    asked = DEFAULT_NAME if request.model is None else request.model
    place = place_of(resolved, settings, headers, request.metadata, client_acts=True)
    effort = _effort(request) or resolved.effort
    turn = Turn(
        model=resolved.agent_model,
        history=(),
        mode=place.mode,
        effort=effort,
        workdir=place.workdir,
        sandbox=place.sandbox,
        origin=headers.origin,
        forwarded=forwarded_request(request, fields, effort=effort, model_asked=asked),
    )
    return ParsedChat(
        turn=turn,
        model_asked=asked,
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        choices=request.n or 1,
        ignored=(),
        web_search=False,
        service_tier=None,
        fields=FUNCTIONS_FIELDS if request.functions else FIELDS,
        legacy_function_call=bool(request.functions),
        workdir_param=place.workdir_param,
        web_images={},
        passed_on=unknown_fields(request, fields),
    )


def _converted(
    request: ChatRequest,
    resolved: ResolvedModel,
    settings: ChatSettings,
    catalog: ModelCatalog,
    headers: RequestHints,
    pdfs: PdfTexts | None,
    originals: Sequence[msgspec.Raw] | None = None,
) -> ParsedChat:
    """Returns a request that becomes a turn. `originals` are its messages as raw JSON, if the agent takes such; `pdfs`
    the texts of PDFs.
    """
    refuse_unsupported(request, settings.logprobs)
    choices = choices_of(request, settings.max_choices)
    wanted, offered = format_of(request, structured_output=settings.structured_output), offered_tools(request)
    history = history_of(request.messages, pdfs, originals)
    tier = service_tier(request.service_tier, resolved.agent_model, catalog)
    acts = _client_acts(request, wanted)
    place = place_of(resolved, settings, headers, request.metadata, client_acts=acts)
    turn = Turn(
        model=resolved.agent_model,
        history=with_json_hint(history, wanted),
        mode=place.mode,
        effort=_effort(request) or resolved.effort,
        summary=request.reasoning.summary if request.reasoning else None,
        verbosity=request.verbosity,
        service_tier=tier.given,
        web_search=request.web_search_options is not None and settings.web_search,
        tools=offered.tools,
        tool_choice=offered.choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        output_schema=wanted.schema,
        workdir=place.workdir,
        sandbox=place.sandbox,
        choices=choices,
        origin=headers.origin,
        sampling=fields_set(request, SAMPLING),
        stop=stops_of(request.stop),
        max_tokens=request.max_completion_tokens or request.max_tokens,
    )
    return ParsedChat(
        turn=turn,
        model_asked=DEFAULT_NAME if request.model is None else request.model,
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        choices=choices,
        ignored=(*ignored_by_us(request), *tier.ignored),
        web_search=request.web_search_options is not None,
        service_tier=None if request.service_tier is None else tier.served,
        fields=FUNCTIONS_FIELDS if offered.legacy else FIELDS,
        legacy_function_call=offered.legacy,
        workdir_param=place.workdir_param,
        web_images=web_images(request.messages),
        parallel_calls=request.parallel_tool_calls is True,
    )


def _client_acts(request: ChatRequest, wanted: Format) -> bool:
    """Whether the client seems to be an agent: it sends tools, calls, a format or instructions."""
    return (
        bool(request.tools or request.functions)
        or wanted.kind != "text"
        or has_instructions(request.messages)
        or has_calls(request.messages)
    )


def _effort(request: ChatRequest) -> str | None:
    """Returns `reasoning_effort`, else `reasoning.effort`, else None."""
    return request.reasoning_effort or (request.reasoning.effort if request.reasoning else None)
