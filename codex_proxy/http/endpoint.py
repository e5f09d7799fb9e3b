"""What an endpoint is: one record, of which its routes, its description and the shape of its errors are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec
from aiohttp import web

from codex_proxy.http.schemas import Schema
from codex_proxy.surfaces.errors import Surface

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

Chapter: TypeAlias = Literal[
    "Chat Completions", "Messages", "Models", "Responses", "Conversations", "Usage", "The server itself"
]
"""A chapter of the API reference."""

Kind: TypeAlias = Literal["turn", "stored", "read", "open"]
"""Decides which faults an endpoint may answer with. `turn`: runs a turn of the agent; `stored`: needs the store;
`read`: reports what is known; `open`: reports it without a key."""


class Parameter(msgspec.Struct, frozen=True, eq=False):
    """One parameter. A list is given by naming it several times."""

    name: str
    place: Literal["query", "path", "header"]
    schema: Schema
    description: str


class Endpoint(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One method of one path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    """Without `/v1`."""
    match: str = ""
    """The path as aiohttp matches it, where that is more than `path` says."""
    handler: Handler
    name: str
    """`operationId` of the OpenAPI document."""
    chapter: Chapter
    kind: Kind
    errors: Surface = "chat"
    """Whose shape the errors have."""
    also_anthropic: bool = False
    """Who asks as Anthropic's clients do is answered in their shape."""
    versioned: bool = True
    """It is served under `/v1` and without it, or only without it."""
    head: bool = True
    """HEAD is answered where GET is."""
    counted: bool = True
    """A POST of it counts against the limits of its key."""
    needs: web.AppKey[Any] | None = None
    """It is served where the application has this part; None: always."""
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None
    """The component that a request's body is."""
    body_required: bool = True
    body_description: str = ""
    answers: dict[str, Schema | str]
    """The answers by status: a schema of JSON, or a content type."""
    streams: str = ""
    """The component that a stream's events are; empty where there is no stream."""


ENDPOINT: Final = web.RequestKey("endpoint", Endpoint)
"""The endpoint that a request is for; none where its path or method is not served."""
REQUEST_ID: Final = web.RequestKey("request_id", str)
ROUTES: Final = web.AppKey("routes", dict[web.AbstractRoute, Endpoint])
"""The endpoints that are served, by their routes."""
OPEN_PATHS: Final = web.AppKey("open_paths", frozenset[str])
"""What is answered without a key; `/metrics` has a key of its own."""


def add_endpoints(app: web.Application, endpoints: Iterable[Endpoint]) -> None:
    """Routes to these endpoints, of those whose parts are in the application."""
    all_endpoints = tuple(endpoints)
    served = [each for each in all_endpoints if each.needs is None or each.needs in app]
    routes = app[ROUTES] = {}
    for prefix in ("/v1", ""):
        for each in served:
            if prefix and not each.versioned:
                continue
            methods = ("GET", "HEAD") if each.method == "GET" and each.head else (each.method,)
            for method in methods:
                routes[app.router.add_route(method, prefix + (each.match or each.path), each.handler)] = each
    app[OPEN_PATHS] = frozenset(each.path for each in all_endpoints if each.kind == "open")


def served_by(app: web.Application) -> tuple[Endpoint, ...]:
    """The endpoints that this application serves, in their order."""
    return tuple(dict.fromkeys(app[ROUTES].values()))


def errors_of(request: web.BaseRequest) -> Surface:
    """Returns the API whose shape the errors of this request have."""
    endpoint = request.get(ENDPOINT)
    if (endpoint is None or endpoint.also_anthropic) and asks_anthropic(request):
        return "messages"
    return "chat" if endpoint is None else endpoint.errors


def asks_anthropic(request: web.BaseRequest) -> bool:
    """Whether a client of Anthropic's API asks: it sends the version that it knows, or has its key where only they
    have it."""
    headers = request.headers
    return "anthropic-version" in headers or ("x-api-key" in headers and "Authorization" not in headers)
