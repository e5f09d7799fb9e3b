"""POST /v1/chat/completions: from a body to a run (or several), and back to an answer."""

from __future__ import annotations

from functools import partial

import msgspec
from aiohttp import web

from codex_proxy.core.faults import bad_request
from codex_proxy.core.turn import Turn
from codex_proxy.http.body import parsed_from, read_body
from codex_proxy.http.clients import CLIENT
from codex_proxy.http.exchange import LogReader, streamed, whole
from codex_proxy.http.middleware.frame import NOTES, OWNER
from codex_proxy.http.observed import Observed
from codex_proxy.http.own_tools import with_operators_tools
from codex_proxy.http.places import stream_place
from codex_proxy.http.service import SERVICE, Service
from codex_proxy.http.sources import Source, start, start_samples
from codex_proxy.http.sse import EventStream
from codex_proxy.http.turns import agent_headers, billed_to, check_capabilities, with_images
from codex_proxy.http.workspace import in_workspace
from codex_proxy.runs.schemas import check_schemas
from codex_proxy.surfaces.base import RequestHints
from codex_proxy.surfaces.chat.parse import ParsedChat, parse
from codex_proxy.surfaces.chat.render import ChatRenderer
from codex_proxy.surfaces.usage import tokens_in


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
    client.check_model(parsed.turn, parsed.model_asked)
    request[NOTES] |= {
        "model": parsed.model_asked,
        "stream": parsed.stream,
        "choice_count": parsed.choices,
        "mode": parsed.turn.mode,
    }
    check_capabilities(parsed.turn, service)
    tool_field = (
        "functions[{}].parameters" if parsed.legacy_function_call else "tools[{}].function.parameters"
    )
    checks = service.manager.checks
    await check_schemas(checks, parsed.turn, answer="response_format.json_schema.schema", tool=tool_field)
    turn = in_workspace(parsed.turn, parsed.workdir_param, client.workspace)
    turn = await with_images(turn, service, parsed.web_images, "messages")
    if _sampled(service, parsed):
        _check_sampling(turn)
    renderer = _renderer(service, parsed, observed, show_activity=client.chat.show_activity)
    try:
        with service.book.turn(request[OWNER], billed_to(turn), renderer):
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
    turn, own = await with_operators_tools(service.own_tools, turn, request[CLIENT], service.manager.agent)
    if not _sampled(service, parsed):
        return await start(service.manager, turn, owner, runner=own.runner)
    one_choice = msgspec.structs.replace(turn, choices=1)
    return await start_samples(service.manager, one_choice, parsed.choices, owner, runner=own.runner)


def _sampled(service: Service, parsed: ParsedChat) -> bool:
    return service.choices == "sample" and parsed.choices > 1


def _check_sampling(turn: Turn) -> None:
    """Agents that write in one folder at once would undo each other's work."""
    if turn.mode == "agent" and turn.sandbox != "read-only":
        raise bad_request(
            "Several choices cannot be sampled while the agent may write: ask for one choice, or for the plain "
            "model (`X-Codex-Mode: model`).",
            "n",
            "unsupported_value",
        )


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
