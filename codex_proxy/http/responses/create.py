"""POST /v1/responses, in front of its client: whole or streamed."""

from __future__ import annotations

from aiohttp import web

from codex_proxy.http.body import read_body
from codex_proxy.http.exchange import streamed, whole
from codex_proxy.http.guard import ConcurrencyFault, Place, Release
from codex_proxy.http.middleware.frame import NOTES, OWNER, REPLY_HEADERS, REQUEST_ID
from codex_proxy.http.observed import Observed
from codex_proxy.http.responses.answer import Answer
from codex_proxy.http.responses.prepare import Prepared, SaveOnce, begin, prepare, renderer_of
from codex_proxy.http.service import SERVICE, Service
from codex_proxy.http.sse import EventStream
from codex_proxy.surfaces.base import RequestHints
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse

HEARTBEAT = b": heartbeat\n\n"


async def create_response(request: web.Request) -> web.StreamResponse:
    """The whole exchange. Faults before the first byte are raised."""
    service = request.app[SERVICE]
    observed = Observed(service.clock)
    parsed = parse(
        await read_body(request),
        settings=service.responses.settings,
        catalog=service.catalog,
        headers=hints_of(request),
    )
    request[NOTES] |= {
        "model": parsed.model_asked,
        "stream": parsed.stream,
        "mode": parsed.turn.mode,
        "store": parsed.store,
    }
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
    answer = Answer(renderer_of(service, prepared), SaveOnce(service, prepared), stream=parsed.stream)
    request[NOTES]["response_id"] = prepared.id
    try:
        if parsed.stream:
            return await _stream(request, prepared, answer, observed)
        await begin(service, prepared, answer)
        return await whole(answer, answer, observed, headers_of(service, prepared))
    finally:
        request[NOTES] |= ending_of(answer, observed)


async def _stream(
    request: web.Request, prepared: Prepared, answer: Answer, observed: Observed
) -> web.StreamResponse:
    """A stream holds its place among the streams from before its agent starts until it has ended."""
    service = request.app[SERVICE]
    ending: Release = "aborted"
    try:
        place = place_of(request)
    except BaseException:
        prepared.release()
        raise
    try:
        await begin(service, prepared, answer)
        response = await streamed(
            answer,
            answer,
            observed,
            EventStream(request, headers_of(service, prepared)),
            keepalive=service.responses.heartbeat,
            comment=lambda: HEARTBEAT,
        )
        ending = "finish"
        return response
    except ConnectionError:
        raise
    except Exception:
        ending = "close"
        raise
    finally:
        place.release(ending)


def hints_of(request: web.Request) -> RequestHints:
    """What the headers say of a turn."""
    return RequestHints(
        mode=request.headers.get("X-Codex-Mode"),
        workdir=request.headers.get("X-Codex-Workdir"),
        activity=request.headers.get("X-Codex-Activity"),
    )


def place_of(request: web.Request) -> Place:
    """A place among the streams. Raises `Fault` where there is none."""
    service = request.app[SERVICE]
    try:
        place = service.guard.acquire(request[REQUEST_ID])
    except ConcurrencyFault as fault:
        if service.test_endpoints:
            request[REPLY_HEADERS] |= fault.count.headers()
        raise
    if service.test_endpoints:
        request[REPLY_HEADERS] |= place.count.headers()
    return place


def headers_of(service: Service, prepared: Prepared) -> dict[str, str]:
    """What is told of the agent, and of what the request asked for in vain."""
    headers = {"x-codex-agent": service.manager.agent.name}
    ignored = [*prepared.parsed.ignored, *(["tools[web_search]"] if prepared.parsed.web_search else [])]
    if ignored:
        headers["x-codex-ignored-params"] = ", ".join(ignored)
    if "history" not in service.manager.agent.capabilities and len(prepared.turn.history) > 1:
        headers["x-codex-history"] = "flattened"
    return headers


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
