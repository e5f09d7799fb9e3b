"""POST /v1/responses: whole, streamed, or in the background."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.http.body import hints_of, parsed_from, read_body
from codex_proxy.http.exchange import LogReader, OneRun, Reader, TurnTimings, streamed, timings_of, whole
from codex_proxy.http.middleware.body_budget import HELD
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, OWNER
from codex_proxy.http.replies import agent_headers, agent_note
from codex_proxy.http.sse import EventStream
from codex_proxy.http.stream_slots import stream_slot
from codex_proxy.responses.background import create_in_background, queued_json
from codex_proxy.responses.follow import HEARTBEAT, Follower
from codex_proxy.responses.foreground import start_foreground
from codex_proxy.responses.prepare import PreparedResponse, keeps_anything, prepare, renderer_of, start_run
from codex_proxy.responses.service import ResponsesService
from codex_proxy.surfaces.base import RequestHints
from codex_proxy.surfaces.models import billed_model
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse


async def create_response(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses. Raises the `Fault` of a turn that failed before the first byte was sent."""
    service = request.app[RESPONSES]
    timings = timings_of(request)
    body, hints = await read_body(request), hints_of(request)
    settings, catalog = request[CLIENT].responses, request[CLIENT].catalog
    parsed = await parsed_from(
        request,
        body,
        lambda body, pdfs: parse(body, settings=settings, catalog=catalog, headers=hints, pdfs=pdfs),
    )
    request[NOTES] |= {
        "model": parsed.model_asked,
        "stream": parsed.stream,
        "mode": parsed.turn.mode,
        "store": parsed.store,
        "background": parsed.background,
    } | agent_note(service.runs.agent, parsed.turn)
    if parsed.background:
        return await _in_background(request, parsed, body, hints)
    del body  # a turn may take an hour
    return await _in_foreground(request, parsed, timings)


async def _in_foreground(
    request: web.Request, parsed: ParsedResponse, timings: TurnTimings
) -> web.StreamResponse:
    """Answers with a response whose turn ends when its client leaves."""
    service = request.app[RESPONSES]
    prepared = await prepare(
        service,
        parsed,
        request[OWNER],
        id=service.ids.new("resp_"),
        created=service.clock.epoch(),
        wait=service.conversation_wait,
    )
    request[NOTES]["response_id"] = prepared.id
    if not keeps_anything(service, parsed) and parsed.truncation != "auto":
        return await _unsaved(request, prepared, timings)
    return await _saved(request, prepared, timings)


async def _saved(
    request: web.Request, prepared: PreparedResponse, timings: TurnTimings
) -> web.StreamResponse:
    """Answers with a response that is saved: the client reads what a task of the server renders."""
    service, stream = request.app[RESPONSES], prepared.parsed.stream
    headers = headers_of(service, prepared)
    with ExitStack() as stack:
        if stream:
            try:
                stack.enter_context(stream_slot(request))
            except Fault:
                prepared.release()
                with service.usage.turn(
                    prepared.owner, billed_model(prepared.turn), renderer_of(service, prepared)
                ):
                    raise  # counted as a failed turn
        response, reader = await start_foreground(
            service, prepared, "sse" if stream else "whole", timings.record
        )
        try:
            return await (_streamed(request, reader, headers) if stream else whole(reader, headers))
        finally:
            request[NOTES] |= ending_of(response.failure, response.final, timings)


async def _unsaved(
    request: web.Request, prepared: PreparedResponse, timings: TurnTimings
) -> web.StreamResponse:
    """Answers with a response that is not saved: the log of its turn is rendered straight into the answer."""
    service, stream = request.app[RESPONSES], prepared.parsed.stream
    renderer = renderer_of(service, prepared, stream=stream)
    headers = headers_of(service, prepared)
    try:
        with (
            service.usage.turn(prepared.owner, billed_model(prepared.turn), renderer),
            stream_slot(request) if stream else nullcontext(),
        ):
            run = await start_run(service, prepared)
            reader = LogReader(OneRun(run), renderer, timings)
            return await (_streamed(request, reader, headers) if stream else whole(reader, headers))
    finally:
        request[NOTES] |= ending_of(
            renderer.failure, renderer.response() if renderer.ended else None, timings
        )


async def _in_background(
    request: web.Request, parsed: ParsedResponse, body: bytes, hints: RequestHints
) -> web.StreamResponse:
    """Starts a response whose turn continues when its client leaves. With a stream the client may read along."""
    service = request.app[RESPONSES]
    with stream_slot(request) if parsed.stream else nullcontext():
        prepared = await create_in_background(service, parsed, body, hints, request[CLIENT], request[HELD])
        request[NOTES]["response_id"] = prepared.id
        headers = headers_of(service, prepared)
        if not parsed.stream:
            return web.Response(
                body=queued_json(service, prepared), content_type="application/json", headers=headers
            )
        return await follow(request, prepared.owner, prepared.id, -1, headers)


async def follow(
    request: web.Request, owner: str, id: str, after: int, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Streams the events of a background response with a number above `after`."""
    return await _streamed(request, Follower(request.app[RESPONSES], owner, id, after), headers)


async def _streamed(request: web.Request, reader: Reader, headers: Mapping[str, str]) -> web.StreamResponse:
    return await streamed(
        reader,
        EventStream(request, headers),
        keepalive=request.app[RESPONSES].heartbeat,
        comment=lambda: HEARTBEAT,
    )


def headers_of(service: ResponsesService, prepared: PreparedResponse) -> dict[str, str]:
    """The headers that name the agent, and what the request asked for in vain."""
    search = "tools[web_search]" if prepared.parsed.web_search else None
    ignored = prepared.parsed.ignored
    return agent_headers(service.runs.agent, prepared.turn, ignored, search, "text.verbosity", "reasoning")


def ending_of(
    failure: Failure | None, final: dict[str, Any] | None, timings: TurnTimings
) -> dict[str, object]:
    """Returns what the server's log says about an answer: how it ended and by which event, and its tokens. `final` is
    the response where it has ended."""
    notes: dict[str, object] = {"first_ms": timings.first_ms}
    if failure is not None:
        notes["error"] = failure.kind.value
    if final is not None:
        notes["finish_reason"] = final["status"]
        notes["finish_source"] = timings.ended_by
        usage = final["usage"]
        if usage is not None:
            notes["input_tokens"], notes["output_tokens"] = usage["input_tokens"], usage["output_tokens"]
    return notes
