"""POST /v1/chat/completions: parses the body, runs one turn, or one for each choice, and renders the answer."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

import msgspec
from aiohttp import web

from codex_proxy.admission.admit import FieldNames
from codex_proxy.agents.agent import agent_for
from codex_proxy.core.turn import Turn
from codex_proxy.http.app_keys import ADMISSION, CLOCK, IDS, RUNS, USAGE
from codex_proxy.http.body import hints_of, parsed_from, read_body
from codex_proxy.http.exchange import (
    LogReader,
    Source,
    TurnTimings,
    ending_notes,
    name_agent,
    start,
    start_samples,
    stream_response,
    timings_of,
    whole_response,
)
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, OWNER
from codex_proxy.http.replies import agent_headers, agent_note
from codex_proxy.http.sse import EventStream
from codex_proxy.http.stream_slots import stream_slot
from codex_proxy.surfaces.chat.forward import ForwardPolicy
from codex_proxy.surfaces.chat.forwarded_answer import ForwardedAnswer
from codex_proxy.surfaces.chat.parse import ParsedChat, parse
from codex_proxy.surfaces.chat.render import ChatProfile, ChatRenderer
from codex_proxy.surfaces.models import billed_model
from codex_proxy.surfaces.usage import text_tokens, tokens_in

FIELDS = FieldNames(
    input="messages",
    input_item="messages[{}].content",
    tool_schema="tools[{}].function.parameters",
    output_schema="response_format.json_schema.schema",
    web_search="web_search_options",
    verbosity="verbosity",
    effort="reasoning_effort",
    parallel_calls="parallel_tool_calls",
)
FUNCTIONS_FIELDS = msgspec.structs.replace(FIELDS, tool_schema="functions[{}].parameters")
"""The names of fields in requests that use `functions`, the older form of `tools`."""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings for Chat Completions."""

    choices: Literal["broadcast", "sample"]
    """How several choices are made: `broadcast` repeats the answer of one turn, `sample` runs a turn for each."""
    profile: ChatProfile
    """The form of stream chunks: OpenAI's, or that of another server."""
    stream_metrics: bool
    """Whether the usage chunk of a stream has measured times."""
    keepalive: float
    """Seconds of silence after which a comment is sent in a stream; 0 for never."""


AnyRenderer: TypeAlias = ChatRenderer | ForwardedAnswer

CHAT_OPTIONS = web.AppKey("chat_options", ChatOptions)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions: answers as a whole or as a stream. Raises `Fault` for a request that is refused,
    and for a turn that failed before the first byte was sent.
    """
    app = request.app
    timings = timings_of(request)
    hints = hints_of(request)
    client = request[CLIENT]
    parsed = await parsed_from(
        request,
        await read_body(request),
        lambda body, pdfs: parse(
            body,
            settings=client.chat,
            catalog=client.catalog,
            headers=hints,
            pdfs=pdfs,
            forward_policy=partial(_forward_policy, request),
        ),
    )
    request[NOTES] |= {
        "model": parsed.model_asked,
        "stream": parsed.stream,
        "choice_count": parsed.choices,
        "mode": parsed.turn.mode,
    } | agent_note(app[RUNS].agent, parsed.turn)
    turn = await app[ADMISSION].admit(
        parsed.turn,
        client,
        _fields(parsed),
        model=parsed.model_asked,
        workdir_field=parsed.workdir_param,
        image_fields=parsed.web_images,
        runs=_runs(request, parsed),
    )
    name_agent(request, turn)
    renderer = _renderer(request, parsed, timings, show_activity=client.chat.show_activity)
    try:
        with app[USAGE].turn(request[OWNER], billed_model(turn), renderer):
            if parsed.stream:
                return await _stream(request, parsed, turn, renderer, timings)
            source = await _start(request, parsed, turn)
            headers = partial(_headers, request, parsed, source)
            return await whole_response(LogReader(source, renderer, timings), headers)
    finally:
        request[NOTES] |= ending_notes(timings, renderer.failure, _finish_reason(renderer), renderer.spent)


def _forward_policy(request: web.Request, model: str) -> ForwardPolicy | None:
    """Returns what may be sent unchanged to the model server behind `model`; None if its agent does not have the
    capability `forwarding`.
    """
    app = request.app
    admission = app[ADMISSION]
    able = agent_for(app[RUNS].agent, model).capabilities
    if "forwarding" not in able:
        return None
    options = app[CHAT_OPTIONS]
    own_form = options.profile != "openai" or options.stream_metrics
    return ForwardPolicy(
        whole=not (own_form or (admission.offers_tools and request[CLIENT].mcp)),
        web_images=not admission.fetches_images,
        images="images" in able,
        instructions="system_prompt" in able,
    )


async def _stream(
    request: web.Request, parsed: ParsedChat, turn: Turn, renderer: AnyRenderer, timings: TurnTimings
) -> web.StreamResponse:
    app = request.app
    clock = app[CLOCK]
    with stream_slot(request):
        source = await _start(request, parsed, turn)
        return await stream_response(
            LogReader(source, renderer, timings),
            EventStream(request, partial(_headers, request, parsed, source)),
            keepalive=0.0 if _no_keepalive(request) else app[CHAT_OPTIONS].keepalive,
            comment=lambda: b": %d\n\n" % (clock.epoch() * 1000),
        )


async def _start(request: web.Request, parsed: ParsedChat, turn: Turn) -> Source:
    app = request.app
    scheduler, owner = app[RUNS], request[OWNER]
    if turn.forwarded is not None:
        return await start(scheduler, turn, owner)
    turn, tools = await app[ADMISSION].add_server_tools(turn, request[CLIENT], _fields(parsed))
    if _runs(request, parsed) == 1:
        return await start(scheduler, turn, owner, runner=tools.runner)
    one_choice = msgspec.structs.replace(turn, choices=1)
    return await start_samples(scheduler, one_choice, parsed.choices, owner, runner=tools.runner)


def _runs(request: web.Request, parsed: ParsedChat) -> int:
    """Returns the number of turns to run for a request: one per choice if choices are sampled, else 1."""
    sampled = request.app[CHAT_OPTIONS].choices == "sample" and parsed.turn.forwarded is None
    return parsed.choices if sampled else 1


def _fields(parsed: ParsedChat) -> FieldNames:
    return FUNCTIONS_FIELDS if parsed.legacy_function_call else FIELDS


def _renderer(
    request: web.Request, parsed: ParsedChat, timings: TurnTimings, *, show_activity: bool
) -> AnyRenderer:
    app = request.app
    options = app[CHAT_OPTIONS]
    forwarded = parsed.turn.forwarded
    if forwarded is not None:
        return ForwardedAnswer(
            stream=parsed.stream, prompt_tokens=partial(text_tokens, forwarded.fields["messages"])
        )
    return ChatRenderer(
        id=app[IDS].new("chatcmpl-"),
        created=int(app[CLOCK].epoch()),
        model=parsed.model_asked,
        profile=options.profile,
        choices=parsed.choices,
        stream=parsed.stream,
        include_usage=parsed.include_usage,
        legacy_function_call=parsed.legacy_function_call,
        whole_calls=not parsed.turn.parallel_tool_calls,
        show_activity=show_activity,
        prompt_tokens=partial(tokens_in, parsed.turn.history),
        max_tokens=parsed.turn.max_tokens,
        metrics=timings.stream_metrics if options.stream_metrics else None,
        service_tier=parsed.service_tier,
    )


def _headers(request: web.Request, parsed: ParsedChat, source: Source) -> dict[str, str]:
    headers = agent_headers(
        request.app[RUNS].agent,
        parsed.turn,
        _fields(parsed),
        parsed.ignored,
        web_search=parsed.web_search,
        parallel_calls=parsed.parallel_calls,
        continued=source.continued,
    )
    if parsed.passed_on:
        headers["x-codex-passed-params"] = ", ".join(parsed.passed_on)
    return headers


def _no_keepalive(request: web.Request) -> bool:
    asked = (request.headers.get("x-no-keepalive"), request.query.get("no_keepalive"))
    return any(value is not None and value.lower() in ("1", "true", "yes") for value in asked)


def _finish_reason(renderer: AnyRenderer) -> object:
    """Returns the finish reason of the choices, or a tuple if they have different ones; None if no choice has
    ended.
    """
    reasons = tuple(dict.fromkeys(renderer.finish_reasons))
    return reasons[0] if len(reasons) == 1 else reasons or None
