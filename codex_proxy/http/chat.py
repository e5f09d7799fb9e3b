"""POST /v1/chat/completions: from a body to a run (or several), and back to an answer."""

from __future__ import annotations

from functools import partial

import msgspec
from aiohttp import web

from codex_proxy.admission.admit import FieldNames
from codex_proxy.core.turn import Turn
from codex_proxy.http.body import parsed_from, read_body
from codex_proxy.http.exchange import LogReader, streamed, whole
from codex_proxy.http.middleware.frame import CLIENT, NOTES, OWNER
from codex_proxy.http.observed import Observed
from codex_proxy.http.places import stream_place
from codex_proxy.http.service import SERVICE, Service
from codex_proxy.http.sources import Source, start, start_samples
from codex_proxy.http.sse import EventStream
from codex_proxy.http.turns import agent_headers
from codex_proxy.surfaces.base import RequestHints
from codex_proxy.surfaces.chat.parse import ParsedChat, parse
from codex_proxy.surfaces.chat.render import ChatRenderer
from codex_proxy.surfaces.models import billed_model
from codex_proxy.surfaces.usage import tokens_in

FIELDS = FieldNames(
    input="messages",
    input_item="messages[{}].content",
    tool_schema="tools[{}].function.parameters",
    output_format="response_format",
    output_schema="response_format.json_schema.schema",
)
FUNCTIONS_FIELDS = msgspec.structs.replace(FIELDS, tool_schema="functions[{}].parameters")
"""Of requests that offer `functions`, which came before `tools`."""


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """The whole exchange. Faults before the first byte are raised."""
    service = request.app[SERVICE]
    observed = Observed(service.clock)
    hints = RequestHints(
        mode=request.headers.get("X-Codex-Mode"),
        workdir=request.headers.get("X-Codex-Workdir"),
        sandbox=request.headers.get("X-Codex-Sandbox"),
    )
    client = request[CLIENT]
    parsed = await parsed_from(
        await read_body(request),
        lambda body: parse(body, settings=client.chat, catalog=service.catalog, headers=hints),
    )
    request[NOTES] |= {
        "model": parsed.model_asked,
        "stream": parsed.stream,
        "choice_count": parsed.choices,
        "mode": parsed.turn.mode,
    }
    turn = await service.admission.admit(
        parsed.turn,
        client,
        _fields(parsed),
        model=parsed.model_asked,
        workdir_field=parsed.workdir_param,
        image_fields=parsed.web_images,
        runs=parsed.choices if service.choices == "sample" else 1,
    )
    renderer = _renderer(service, parsed, observed, show_activity=client.chat.show_activity)
    try:
        with service.book.turn(request[OWNER], billed_model(turn), renderer):
            if parsed.stream:
                return await _stream(request, parsed, turn, renderer, observed)
            source = await _start(request, parsed, turn)
            return await whole(LogReader(source, renderer, observed), _headers(service, parsed))
    finally:
        request[NOTES] |= _ending(renderer, observed)


async def _stream(
    request: web.Request, parsed: ParsedChat, turn: Turn, renderer: ChatRenderer, observed: Observed
) -> web.StreamResponse:
    service = request.app[SERVICE]
    with stream_place(request):
        source = await _start(request, parsed, turn)
        return await streamed(
            LogReader(source, renderer, observed),
            EventStream(request, _headers(service, parsed)),
            keepalive=0.0 if _no_keepalive(request) else service.keepalive,
            comment=lambda: b": %d\n\n" % (service.clock.epoch() * 1000),
        )


async def _start(request: web.Request, parsed: ParsedChat, turn: Turn) -> Source:
    service, owner = request.app[SERVICE], request[OWNER]
    turn, tools = await service.admission.add_server_tools(turn, request[CLIENT], _fields(parsed))
    if service.choices != "sample" or parsed.choices == 1:
        return await start(service.manager, turn, owner, runner=tools.runner)
    one_choice = msgspec.structs.replace(turn, choices=1)
    return await start_samples(service.manager, one_choice, parsed.choices, owner, runner=tools.runner)


def _fields(parsed: ParsedChat) -> FieldNames:
    return FUNCTIONS_FIELDS if parsed.legacy_function_call else FIELDS


def _renderer(
    service: Service, parsed: ParsedChat, observed: Observed, *, show_activity: bool
) -> ChatRenderer:
    return ChatRenderer(
        id=service.ids.new("chatcmpl-"),
        created=int(service.clock.epoch()),
        model=parsed.model_asked,
        profile=service.chat_profile,
        choices=parsed.choices,
        stream=parsed.stream,
        include_usage=parsed.include_usage,
        legacy_function_call=parsed.legacy_function_call,
        whole_calls=not parsed.turn.parallel_tool_calls,
        show_activity=show_activity,
        prompt_tokens=partial(tokens_in, parsed.turn.history),
        max_tokens=parsed.turn.max_tokens,
        metrics=observed.measure if service.stream_metrics else None,
        service_tier=parsed.service_tier,
    )


def _headers(service: Service, parsed: ParsedChat) -> dict[str, str]:
    search = "web_search_options" if parsed.web_search else None
    return agent_headers(service.manager.agent, parsed.turn, parsed.ignored, search, "verbosity")


def _no_keepalive(request: web.Request) -> bool:
    asked = (request.headers.get("x-no-keepalive"), request.query.get("no_keepalive"))
    return any(value is not None and value.lower() in ("1", "true", "yes") for value in asked)


def _ending(renderer: ChatRenderer, observed: Observed) -> dict[str, object]:
    """What the log tells of an answer: how it ended and who said so, what it cost and who counted."""
    notes: dict[str, object] = {"first_ms": observed.first_ms}
    if renderer.failure is not None:
        notes["error"] = renderer.failure.kind.value
    if renderer.finish_reasons:
        reasons = tuple(dict.fromkeys(renderer.finish_reasons))
        notes["finish_reason"] = reasons[0] if len(reasons) == 1 else reasons
        notes["finish_source"] = observed.ended_by
    if renderer.spent.told is not None:
        usage = renderer.spent.told
        notes["input_tokens"], notes["output_tokens"] = usage.input, usage.output
        notes["emission_trigger"] = renderer.spent.trigger
    return notes
