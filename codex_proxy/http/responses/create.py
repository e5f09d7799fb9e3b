"""POST /v1/responses, in front of its client: whole or streamed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.http.body import parsed_from, read_body
from codex_proxy.http.exchange import LogReader, Reader, streamed, whole
from codex_proxy.http.middleware.body_budget import HELD
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, OWNER
from codex_proxy.http.replies import agent_headers
from codex_proxy.http.sources import OneRun
from codex_proxy.http.sse import EventStream
from codex_proxy.http.stream_slots import stream_slot
from codex_proxy.http.turn_timings import TurnTimings
from codex_proxy.responses.answer import Answer
from codex_proxy.responses.background import create_in_background, queued_json
from codex_proxy.responses.follow import HEARTBEAT, followed
from codex_proxy.responses.prepare import (
    PreparedResponse,
    SaveOnce,
    answer_of,
    begin,
    keeps_anything,
    prepare,
    prepared_shorter,
    renderer_of,
    start_run,
)
from codex_proxy.responses.service import ResponsesService
from codex_proxy.responses.store_faults import required_store
from codex_proxy.surfaces.base import RequestHints
from codex_proxy.surfaces.models import billed_model
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse


async def create_response(request: web.Request) -> web.StreamResponse:
    """The whole exchange. Faults before the first byte are raised."""
    service = request.app[RESPONSES]
    observed = TurnTimings(service.clock)
    body, hints = await read_body(request), hints_of(request)
    settings = request[CLIENT].responses
    parsed = await parsed_from(
        request,
        body,
        lambda body, pdfs: parse(body, settings=settings, catalog=service.catalog, headers=hints, pdfs=pdfs),
    )
    request[NOTES] |= {
        "model": parsed.model_asked,
        "stream": parsed.stream,
        "mode": parsed.turn.mode,
        "store": parsed.store,
        "background": parsed.background,
    }
    if parsed.background:
        return await _behind(request, parsed, body, hints)
    del body  # a turn may take an hour
    return await _in_front(request, parsed, observed)


async def _in_front(
    request: web.Request, parsed: ParsedResponse, observed: TurnTimings
) -> web.StreamResponse:
    """A turn that ends when its client leaves."""
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
        return await _unkept(request, prepared, observed)
    try:
        try:
            return await _tried(request, prepared, observed)
        except Fault as fault:
            shorter = await prepared_shorter(service, prepared, fault.failure)
            if shorter is None:
                raise
            return await _tried(request, shorter, observed)
    finally:
        prepared.release()


async def _tried(
    request: web.Request, prepared: PreparedResponse, observed: TurnTimings
) -> web.StreamResponse:
    service, stream = request.app[RESPONSES], prepared.parsed.stream
    answer = answer_of(service, prepared, SaveOnce(service, prepared), stream=stream)
    try:
        with service.usage.turn(prepared.owner, billed_model(prepared.turn), answer):
            if stream:
                return await _stream(request, prepared, answer, observed)
            await begin(service, prepared, answer)
            return await whole(LogReader(answer, answer, observed), headers_of(service, prepared))
    finally:
        request[NOTES] |= ending_of(answer.failure, answer.final, observed)


async def _unkept(
    request: web.Request, prepared: PreparedResponse, observed: TurnTimings
) -> web.StreamResponse:
    """A turn of which nothing is kept: its log is read straight into the answer."""
    service, stream = request.app[RESPONSES], prepared.parsed.stream
    renderer = renderer_of(service, prepared, stream=stream)
    headers = headers_of(service, prepared)

    async def started() -> Reader:
        return LogReader(OneRun(await start_run(service, prepared)), renderer, observed)

    try:
        with service.usage.turn(prepared.owner, billed_model(prepared.turn), renderer):
            if not stream:
                return await whole(await started(), headers)
            with stream_slot(request):
                return await _streamed(request, await started(), headers)
    finally:
        request[NOTES] |= ending_of(
            renderer.failure, renderer.response() if renderer.ended else None, observed
        )


async def _behind(
    request: web.Request, parsed: ParsedResponse, body: bytes, hints: RequestHints
) -> web.StreamResponse:
    """A turn that goes on when its client leaves; with a stream its client may read along."""
    service = request.app[RESPONSES]
    with stream_slot(request) if parsed.stream else nullcontext():
        prepared = await create_in_background(service, parsed, body, hints, request[CLIENT], request[HELD])
        request[NOTES]["response_id"] = prepared.id
        if not parsed.stream:
            return web.Response(
                body=queued_json(service, prepared),
                content_type="application/json",
                headers=headers_of(service, prepared),
            )
        return await follow(request, prepared.owner, prepared.id, -1, headers_of(service, prepared))


async def follow(
    request: web.Request, owner: str, id: str, after: int, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Streams the events with a number above `after` until the end. The response does not mind who reads."""
    service = request.app[RESPONSES]
    stream = EventStream(request, headers)
    try:
        async for piece in followed(service, required_store(service.store), owner, id, after):
            await stream.write(piece)
        return await stream.close()
    finally:
        stream.stop()


async def _stream(
    request: web.Request, prepared: PreparedResponse, answer: Answer, observed: TurnTimings
) -> web.StreamResponse:
    service = request.app[RESPONSES]
    with stream_slot(request):
        await begin(service, prepared, answer)
        reader = LogReader(answer, answer, observed)
        return await _streamed(request, reader, headers_of(service, prepared))


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


def hints_of(request: web.Request) -> RequestHints:
    """What the headers say of a turn."""
    return RequestHints(
        mode=request.headers.get("X-Codex-Mode"),
        workdir=request.headers.get("X-Codex-Workdir"),
        sandbox=request.headers.get("X-Codex-Sandbox"),
        activity=request.headers.get("X-Codex-Activity"),
    )


def ending_of(
    failure: Failure | None, final: dict[str, Any] | None, observed: TurnTimings
) -> dict[str, object]:
    """What the server's log has of an answer: how it ended and who said so, and what it cost. `final`: the response,
    where it has ended."""
    notes: dict[str, object] = {"first_ms": observed.first_ms}
    if failure is not None:
        notes["error"] = failure.kind.value
    if final is not None:
        notes["finish_reason"] = final["status"]
        notes["finish_source"] = observed.ended_by
        usage = final["usage"]
        if usage is not None:
            notes["input_tokens"], notes["output_tokens"] = usage["input_tokens"], usage["output_tokens"]
    return notes
