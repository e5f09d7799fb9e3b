"""POST /v1/responses, in front of its client: whole or streamed."""

from __future__ import annotations

from contextlib import nullcontext

from aiohttp import web

from codex_proxy.core.faults import Fault
from codex_proxy.http.body import parsed_from, read_body
from codex_proxy.http.clients import CLIENT
from codex_proxy.http.exchange import streamed, whole
from codex_proxy.http.middleware.frame import NOTES, OWNER
from codex_proxy.http.observed import Observed
from codex_proxy.http.places import stream_place
from codex_proxy.http.responses.answer import Answer
from codex_proxy.http.responses.background import create_in_background, queued_reply
from codex_proxy.http.responses.prepare import (
    Prepared,
    SaveOnce,
    answer_of,
    begin,
    headers_of,
    prepare,
    prepared_shorter,
)
from codex_proxy.http.responses.resumed import HEARTBEAT, follow
from codex_proxy.http.service import SERVICE
from codex_proxy.http.sse import EventStream
from codex_proxy.http.turns import billed_to
from codex_proxy.responses.store_faults import required_store
from codex_proxy.surfaces.base import RequestHints
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse


async def create_response(request: web.Request) -> web.StreamResponse:
    """The whole exchange. Faults before the first byte are raised."""
    service = request.app[SERVICE]
    observed = Observed(service.clock)
    body, hints = await read_body(request), hints_of(request)
    settings = request[CLIENT].responses
    parsed = await parsed_from(
        body, lambda body: parse(body, settings=settings, catalog=service.catalog, headers=hints)
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


async def _in_front(request: web.Request, parsed: ParsedResponse, observed: Observed) -> web.StreamResponse:
    """A turn that ends when its client leaves."""
    service = request.app[SERVICE]
    prepared = await prepare(
        service,
        parsed,
        request[OWNER],
        id=service.ids.new("resp_"),
        created=service.clock.epoch(),
        wait=service.responses.conversation_wait,
    )
    request[NOTES]["response_id"] = prepared.id
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


async def _tried(request: web.Request, prepared: Prepared, observed: Observed) -> web.StreamResponse:
    service, stream = request.app[SERVICE], prepared.parsed.stream
    answer = answer_of(service, prepared, SaveOnce(service, prepared), stream=stream)
    try:
        with service.book.turn(prepared.owner, billed_to(prepared.turn), answer):
            if stream:
                return await _stream(request, prepared, answer, observed)
            await begin(service, prepared, answer)
            return await whole(answer, answer, observed, headers_of(service, prepared))
    finally:
        request[NOTES] |= ending_of(answer, observed)


async def _behind(
    request: web.Request, parsed: ParsedResponse, body: bytes, hints: RequestHints
) -> web.StreamResponse:
    """A turn that goes on when its client leaves; with a stream its client may read along."""
    service = request.app[SERVICE]
    with stream_place(request) if parsed.stream else nullcontext():
        prepared = await create_in_background(request, service, parsed, body, hints)
        request[NOTES]["response_id"] = prepared.id
        if not parsed.stream:
            return queued_reply(service, prepared)
        headers = headers_of(service, prepared)
        return await follow(
            request,
            service,
            required_store(service.responses.store),
            prepared.owner,
            prepared.id,
            -1,
            headers,
        )


async def _stream(
    request: web.Request, prepared: Prepared, answer: Answer, observed: Observed
) -> web.StreamResponse:
    service = request.app[SERVICE]
    with stream_place(request):
        await begin(service, prepared, answer)
        return await streamed(
            answer,
            answer,
            observed,
            EventStream(request, headers_of(service, prepared)),
            keepalive=service.responses.heartbeat,
            comment=lambda: HEARTBEAT,
        )


def hints_of(request: web.Request) -> RequestHints:
    """What the headers say of a turn."""
    return RequestHints(
        mode=request.headers.get("X-Codex-Mode"),
        workdir=request.headers.get("X-Codex-Workdir"),
        sandbox=request.headers.get("X-Codex-Sandbox"),
        activity=request.headers.get("X-Codex-Activity"),
    )


def ending_of(answer: Answer, observed: Observed) -> dict[str, object]:
    """What the log tells of an answer: how it ended and who said so, and what it cost."""
    notes: dict[str, object] = {"first_ms": observed.first_ms}
    if answer.failure is not None:
        notes["error"] = answer.failure.kind.value
    if answer.final is not None:
        notes["finish_reason"] = answer.final["status"]
        notes["finish_source"] = observed.ended_by
        usage = answer.final["usage"]
        if usage is not None:
            notes["input_tokens"], notes["output_tokens"] = usage["input_tokens"], usage["output_tokens"]
    return notes
