"""Middlewares that record and replay: they see each request before its handler does."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from codex_proxy.http.endpoint import ROUTES, Handler
from codex_proxy.http.middleware.access import keys_in
from codex_proxy.http.middleware.content_log import watch_contents
from codex_proxy.parts.cassettes.recorder import RecordedExchange, Recorder
from codex_proxy.parts.cassettes.replay import ReplayedRequest
from codex_proxy.runs.observers import REQUEST_RECORDER

KEPT_HEADERS: Final = ("x-codex-", "x-no-keepalive", "anthropic-", "openai-beta", "prefer")
"""Prefixes of headers on which an answer may depend."""
CASSETTE_HEADER: Final = "x-codex-cassette"
"""The request header that names the cassette to replay, instead of finding it by content."""


def recording_middleware(recorder: Recorder) -> Any:
    """Returns the middleware that records turns. It runs before all others, to see their failures."""

    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        REQUEST_RECORDER.set(None)
        endpoint = request.app[ROUTES].get(request.match_info.route)
        socket = request.method == "GET" and request.headers.get("upgrade", "").lower() == "websocket"
        if recorder.trouble or endpoint is None or not (endpoint.kind == "turn" or socket):
            return await handler(request)
        headers = {
            name.lower(): value
            for name, value in request.headers.items()
            if name.lower().startswith(KEPT_HEADERS)
        }
        exchange = RecordedExchange(recorder, f"{request.method} {request.path}", headers, keys_in(request))
        REQUEST_RECORDER.set(exchange)
        watch_contents(request, exchange.add_content)
        try:
            response = await handler(request)
        except BaseException:
            if socket:  # that its client has closed: its last turn may be over
                exchange.end(101)
            raise
        if isinstance(response, web.Response) and isinstance(response.body, bytes):
            exchange.add_content("answer", response.body)
        exchange.end(response.status)
        return response

    return record


@web.middleware
async def replay_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Notes, for the request's turns, the cassette that its header names."""
    if request.app[ROUTES].get(request.match_info.route) is not None:
        name = request.headers.get(CASSETTE_HEADER, "")
        REQUEST_RECORDER.set(ReplayedRequest(name, REQUEST_RECORDER.get()))
    return await handler(request)
