"""Applies the routes of the settings (see `admission/routes.py`) to requests: a route puts its target in the place of
the model in the request's body, so that everything behind it is as if the client had asked for that model.

If the target fails before anything was sent to the client, the request is handled again with the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from codex_proxy.admission.routes import ApiName, Router, choose, facts_of
from codex_proxy.core.faults import Fault
from codex_proxy.http.endpoint import ENDPOINT, Chapter, Handler
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, PREPARED, REPLY_HEADERS
from codex_proxy.surfaces.passed_bodies import json_body
from codex_proxy.surfaces.request_options import ParsedRequest
from codex_proxy.surfaces.responses.parse import ParsedResponse

ROUTER: Final = web.AppKey("router", Router)
"""The routes of the server."""
_APIS: Final[Mapping[Chapter, ApiName]] = {
    "Chat Completions": "chat",
    "Messages": "messages",
    "Responses": "responses",
    "Ollama": "ollama",
    "Model servers": "completions",
}


class Routed(msgspec.Struct):
    """A request that a route has matched: its `body` as the client sent it, and the targets that are not asked yet.
    `target` is the one that is asked. Without another target the body is not kept, since a turn may take an hour.
    """

    name: str
    body: bytes
    target: str
    left: list[str]


ROUTED: Final = web.RequestKey("routed", Routed)


def routed_body(request: web.Request, body: bytes, parsed: object) -> bytes | None:
    """Returns the body with the target of the route that matches; None if no route does. `parsed` is the body parsed
    as the client sent it.
    """
    router = request.app.get(ROUTER)
    endpoint = request.get(ENDPOINT)
    if router is None or not router.routes or endpoint is None or not isinstance(parsed, ParsedRequest):
        return None
    routed = request.get(ROUTED)
    if routed is None or routed.body != body:  # a WebSocket has several turns
        api = _APIS.get(endpoint.chapter)
        if api is None:
            return None
        facts = facts_of(parsed.turn, client=request[CLIENT].name, api=api, model=parsed.model_asked)
        route = choose(router.routes, facts)
        if route is None:
            return None
        first, *left = router.usable(route)
        routed = request[ROUTED] = Routed(route.name, body if left else b"", first, left)
    request[REPLY_HEADERS]["x-codex-route"] = request[NOTES]["route"] = routed.name
    return json_body(body).naming(routed.target)


def as_asked(parsed: ParsedRequest, model: str) -> ParsedRequest:
    """Returns the routed request with the client's own name of the model, which the answer has."""
    turn = parsed.turn
    if turn.forwarded is not None:
        forwarded = msgspec.structs.replace(turn.forwarded, model_asked=model)
        turn = msgspec.structs.replace(turn, forwarded=forwarded)
    if isinstance(parsed, ParsedResponse):
        parsed = msgspec.structs.replace(parsed, echo={**parsed.echo, "model": model})
    return msgspec.structs.replace(parsed, turn=turn, model_asked=model)


async def with_fallbacks(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Calls the handler, and again with the next target of the request's route as long as a target fails before
    anything was sent. Raises the `Fault` of the last one.
    """
    while True:
        try:
            return await handler(request)
        except Fault as fault:
            routed = request.get(ROUTED)
            if routed is None or request[PREPARED]:
                raise
            if not request.app[ROUTER].note_failure(routed.target, fault.failure) or not routed.left:
                raise
            routed.target = routed.left.pop(0)
