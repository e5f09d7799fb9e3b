"""Applies the routes of the settings: a route's target replaces the model in the body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from codex_proxy.admission.routes import ApiName, Router, choose_route, facts_of
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.http.endpoint import ENDPOINT, Chapter
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, REPLY_HEADERS
from codex_proxy.surfaces.models import DEFAULT_NAME
from codex_proxy.surfaces.requests.options import ParsedRequest
from codex_proxy.surfaces.requests.passed import json_body

T = TypeVar("T")

ROUTER: Final = web.AppKey("router", Router)
"""Set only if there are routes."""
_APIS: Final[Mapping[Chapter, ApiName]] = {
    "Chat Completions": "chat",
    "Messages": "messages",
    "Responses": "responses",
    "Ollama": "ollama",
    "Model servers": "completions",
}


class RoutedRequest(msgspec.Struct):
    """A request that a route has matched: its `body` (empty without another target, since a turn may take an hour),
    the present `target`, and the targets that are left.
    """

    name: str
    body: bytes
    target: str
    left: list[str]


ROUTED: Final = web.RequestKey("routed", RoutedRequest)


def route_body(request: web.Request, body: bytes, parsed: object) -> bytes | None:
    """Returns the body with the matching route's target, if any. `parsed`: the client's body. Called only if there are
    routes.
    """
    router = request.app[ROUTER]
    endpoint = request.get(ENDPOINT)
    if endpoint is None or not isinstance(parsed, ParsedRequest):
        return None
    routed = request.get(ROUTED)
    if routed is None:
        api = _APIS[endpoint.chapter]
        facts = facts_of(parsed.turn, client=request[CLIENT].name, api=api, model=parsed.model_asked)
        name = choose_route(router.routes, facts)
        if name is None:
            return None
        first, *left = router.targets(name)
        routed = request[ROUTED] = RoutedRequest(name, body if left else b"", first, left)
    request[REPLY_HEADERS]["x-codex-route"] = request[NOTES]["route"] = routed.name
    return body_of_target(request, body)


def body_of_unknown_model(request: web.Request, body: bytes, failure: Failure) -> bytes | None:
    """Returns the body with the default model in place of a name that no agent, or several, have; None if no route can
    match it.
    """
    router = request.app.get(ROUTER)
    if router is None or not _is_unresolved(failure):
        return None
    found = json_body(body)
    return found.name_model(DEFAULT_NAME) if router.may_serve(found.model or "") else None


def _is_unresolved(failure: Failure) -> bool:
    return failure.kind is FaultKind.MODEL_NOT_FOUND or failure.code == "ambiguous_model"


def target_fault(request: web.Request, fault: Fault) -> Fault:
    """Returns the error of a request that a route has matched. If no agent has the target, it names the route, which
    only the operator can correct.
    """
    if not _is_unresolved(fault.failure):
        return fault
    message = f"[routes.{request[ROUTED].name}] sends this request to another model. {fault.failure.message}"
    return Fault(msgspec.structs.replace(fault.failure, message=message))


def body_of_target(request: web.Request, body: bytes) -> bytes:
    routed = request.get(ROUTED)
    return body if routed is None else json_body(body).name_model(routed.target)


def next_target(request: web.Request, failure: Failure) -> bool:
    """Records that the target has failed; returns whether the next one is to be asked."""
    routed = request.get(ROUTED)
    if routed is None or not request.app[ROUTER].note_failure(routed.target, failure) or not routed.left:
        return False
    routed.target = routed.left.pop(0)
    return True


def later_targets(
    request: web.Request, parse: Callable[[], Awaitable[T]]
) -> Callable[[Failure], Awaitable[T | None]] | None:
    """Returns a function that parses the request for the next target after a failure, or returns None; None without
    another target.
    """
    routed = request.get(ROUTED)
    if routed is None or not routed.left:
        return None

    async def after(failure: Failure) -> T | None:
        return await parse() if next_target(request, failure) else None

    return after
