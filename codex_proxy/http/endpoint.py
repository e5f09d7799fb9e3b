"""`Endpoint`, of which routes, documentation and the format of errors are made; answers as JSON, and errors in the
format of an API.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
import structlog
from aiohttp import web
from pydantic import BaseModel

from codex_proxy.core.faults import UNFORESEEN, Failure, FaultKind, shortage_of
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.own_errors import trace_of
from codex_proxy.parts import absent_part, absent_part_text
from codex_proxy.surfaces.errors import Surface, error_body, forbids_retry, retry_after, status_of

Schema: TypeAlias = dict[str, Any]

NULL_SCHEMA: Final[Schema] = {"type": "null"}
TEXT_SCHEMA: Final[Schema] = {"type": "string"}
FLAG_SCHEMA: Final[Schema] = {"type": "boolean"}
COUNT_SCHEMA: Final[Schema] = {"type": "integer", "minimum": 0}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


AnswerType: TypeAlias = Any

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

Chapter: TypeAlias = Literal[
    "Chat Completions",
    "Messages",
    "Models",
    "Responses",
    "Conversations",
    "Agents",
    "Managed Agents",
    "Files",
    "Ollama",
    "Model servers",
    "Usage",
    "The server itself",
    "The page",
]
"""The chapters of the API reference."""

Kind: TypeAlias = Literal["turn", "stored", "read", "open"]
"""What an endpoint does, and so its possible faults: runs a turn, needs the store, or returns what the server knows,
with a key or without (`open`).
"""


Vendor: TypeAlias = Literal["OpenAI", "Anthropic"]


class Parameter(msgspec.Struct, frozen=True, eq=False):
    """A parameter in the path, query or headers. One in the query may be repeated if its schema is a list."""

    name: str
    place: Literal["query", "path", "header"]
    schema: Schema
    description: str


class _Route(msgspec.Struct, frozen=True, eq=False):
    route: str
    """Method and path without `/v1`."""
    handler: Handler
    """The first paragraph of the handler's docstring is the summary in the documentation."""
    answer: AnswerType | tuple[AnswerType, ...] | str | None
    """The answer with status 200: its type, its types, or a content type. None: there is none."""


class Endpoint(_Route, frozen=True, eq=False, kw_only=True):
    """A method of a path. The fields from `description` on are its documentation."""

    operation_id: str = ""
    """The OpenAPI operation's id, if it is not the handler's name."""
    match: str = ""
    """aiohttp's pattern of the path, if it differs from OpenAPI's."""
    chapter: Chapter
    kind: Kind
    errors: Surface = "chat"
    """The API whose error format the endpoint uses."""
    beta: str = ""
    """The value that requests must have in `OpenAI-Beta`, if they must have one."""
    also_anthropic: bool = False
    """Whether clients of Anthropic's API (`is_anthropic_client`) get its format."""
    versioned: bool = True
    """Whether the path is also served with `/v1`."""
    head: bool = True
    """Whether GET endpoints answer HEAD, too."""
    counted: bool = True
    """Whether POST requests count against the limits of the key."""
    needs: web.AppKey[Any] | None = None
    """What `app` must have for the endpoint to be served."""
    takes_form: bool = False
    """Whether the body may be `multipart/form-data`; then with an `Authorization` or `x-api-key` header, which no page
    can send in a form.
    """
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    """Those in the query and headers."""
    ids: Mapping[str, str] = {}
    """What the parameters in the path are, by name."""
    body: str | type[BaseModel] | None = None
    """The request body: its model, or the name of its component."""
    body_required: bool = True
    body_description: str = ""
    more_answers: dict[str, AnswerType | str] = {}
    """Answers with other statuses that are no errors, by status."""
    streams: AnswerType | None = None
    stream_type: str = "text/event-stream"

    @property
    def body_name(self) -> str:
        """The component of the request body; empty without one."""
        return self.body.__name__ if isinstance(self.body, type) else self.body or ""

    @property
    def summary(self) -> str:
        return " ".join((self.handler.__doc__ or "").partition("\n\n")[0].split())

    @property
    def all_parameters(self) -> tuple[Parameter, ...]:
        """The parameters, those in the path first."""
        in_path = re.findall(r"\{(\w+)\}", self.path)
        return (*(Parameter(name, "path", TEXT_SCHEMA, self.ids[name]) for name in in_path), *self.parameters)

    @property
    def answers(self) -> dict[str, AnswerType | tuple[AnswerType, ...] | str]:
        return ({} if self.answer is None else {"200": self.answer}) | self.more_answers

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.route.partition(" ")[2]

    @property
    def name(self) -> str:
        return self.operation_id or self.handler.__name__

    @property
    def vendor(self) -> Vendor:
        """The vendor whose clients it serves, where a path belongs to two."""
        return "Anthropic" if self.errors == "messages" else "OpenAI"


ENDPOINT: Final = web.RequestKey("endpoint", Endpoint)
"""The endpoint of a request; not set if path or method is not served."""
REQUEST_ID: Final = web.RequestKey("request_id", str)
ROUTES: Final = web.AppKey("routes", dict[web.AbstractRoute, tuple[Endpoint, ...]])
"""The endpoints of each route: of two vendors, if both have it."""
AREAS: Final = web.AppKey("areas", dict[str, "Area"])
"""By the first name of a path."""
OPEN_PATHS: Final = web.AppKey("open_paths", frozenset[str])
"""The paths that need no API key; `/metrics` has a key of its own."""


class Area(msgspec.Struct, frozen=True):
    """What the paths that begin with the same name have in common."""

    errors: tuple[Surface, ...]
    """The APIs in whose formats errors are answered, OpenAI's first."""
    beta: str
    """The value of `OpenAI-Beta` that its requests need unless they are Anthropic's; empty: there is one vendor."""

    @property
    def of_two_vendors(self) -> bool:
        return bool(self.beta) and "messages" in self.errors


def area_of(request: web.Request) -> Area | None:
    return request.app[AREAS].get(_first_name(request.path.removeprefix("/v1")))


def _first_name(path: str) -> str:
    return path[1:].partition("/")[0]


def add_endpoints(app: web.Application, endpoints: Iterable[Endpoint]) -> None:
    """Adds the routes; not those whose `needs` is missing."""
    all_endpoints = tuple(endpoints)
    served = [each for each in all_endpoints if each.needs is None or each.needs in app]
    areas = app[AREAS] = _areas_of(served)
    routes = app[ROUTES] = {}
    by_route: dict[str, web.AbstractRoute] = {}
    for prefix in ("/v1", ""):
        for each in served:
            if prefix and not each.versioned:
                continue
            path = prefix + (each.match or each.path)
            handler = serve_its_vendor if areas[_first_name(each.path)].beta else each.handler
            for method in ("GET", "HEAD") if each.method == "GET" and each.head else (each.method,):
                name = f"{method} {path}"
                if name not in by_route:
                    by_route[name] = app.router.add_route(method, path, handler)
                routes[by_route[name]] = (*routes.get(by_route[name], ()), each)
    app[OPEN_PATHS] = frozenset(each.path for each in all_endpoints if each.kind == "open")


def _areas_of(endpoints: Iterable[Endpoint]) -> dict[str, Area]:
    found: dict[str, Area] = {}
    for each in endpoints:
        name = _first_name(each.path)
        before = found.get(name, Area((), ""))
        errors = dict.fromkeys((*before.errors, each.errors))
        found[name] = Area(tuple(sorted(errors, key="messages".__eq__)), before.beta or each.beta)
    return found


def served_endpoints(app: web.Application) -> tuple[Endpoint, ...]:
    return tuple(dict.fromkeys(each for choice in app[ROUTES].values() for each in choice))


# --- paths of two vendors -----------------------------------------------------------------------


def vendor_of(request: web.BaseRequest) -> Vendor | None:
    """Returns the vendor whose API a request means, where a path belongs to two; None if its headers do not say it."""
    if "OpenAI-Beta" in request.headers:
        return "OpenAI"
    return "Anthropic" if is_anthropic_client(request) or "x-api-key" in request.headers else None


def endpoint_of(request: web.Request) -> Endpoint | None:
    """Returns the endpoint that a request asks; None if its path or method is not served, or another vendor's."""
    choice = request.app[ROUTES].get(request.match_info.route, ())
    if not choice or not is_of_a_vendor(request):
        return choice[0] if choice else None
    vendor = vendor_of(request)
    return next((each for each in choice if vendor in (None, each.vendor)), None)


def is_of_a_vendor(request: web.Request) -> bool:
    """Whether the request's route is in an area with a beta, whose API the request's headers name."""
    return request.match_info.handler is serve_its_vendor


async def serve_its_vendor(request: web.Request) -> web.StreamResponse:
    """Answers by the endpoint of the vendor whose API the request means. Raises `web.HTTPMethodNotAllowed`."""
    endpoint = request.get(ENDPOINT)
    if endpoint is None:
        raise web.HTTPMethodNotAllowed(request.method, ())
    answer: web.StreamResponse = await endpoint.handler(request)
    return answer


def methods_of(request: web.Request, allowed: Iterable[str]) -> list[str]:
    """Returns the methods of a path, of those of two vendors the client's. `allowed`: what the router knows."""
    area, vendor = area_of(request), vendor_of(request)
    if area is None or not area.beta or vendor is None:
        return sorted(allowed)
    return sorted(
        {
            route.method
            for route, choice in request.app[ROUTES].items()
            if _is_at(route, request.rel_url.raw_path) and any(each.vendor == vendor for each in choice)
        }
    )


def _is_at(route: web.AbstractRoute, path: str) -> bool:
    assert route.resource is not None, "every route of an endpoint has its path"
    found = route.resource.get_info()
    return found["pattern"].fullmatch(path) is not None if "pattern" in found else found["path"] == path


def of_absent_part(path: str) -> str:
    """Returns why a path (without `/v1`) is not served, if an absent part has it; else an empty text."""
    first = path[1:].partition("/")[0]
    part = absent_part("paths", path) or absent_part("paths", f"/{first}/")
    return f"{path} is served by {absent_part_text(part)}." if part else ""


log = structlog.get_logger("codex_proxy.http")

CHALLENGE: Final = 'Bearer realm="codex-proxy"'
"""The value of `WWW-Authenticate`, for clients that wait for a challenge (RFC 6750)."""


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=encode_json(value), content_type="application/json", status=status)


def log_unforeseen(error: BaseException) -> Failure:
    """Logs type and place of an error, whose message may quote the request. Returns the request's failure: UNAVAILABLE
    if the machine lacked something, else `UNFORESEEN`.
    """
    lack = shortage_of(error)
    log.error("internal_error", **trace_of(error), **({"lack": lack} if lack else {}))
    return Failure(FaultKind.UNAVAILABLE, f"The server cannot do this now: {lack}.") if lack else UNFORESEEN


ERROR_API: Final[web.RequestKey[Any]] = web.RequestKey("error_api")
"""The API in whose format errors are answered; not set before a request's path is known."""


def error_api_of(request: web.BaseRequest) -> Surface:
    """Returns the API in whose format errors are answered."""
    found: Surface | None = request.get(ERROR_API)
    if found is not None:
        return found
    if is_anthropic_client(request):
        return "messages"
    return "ollama" if is_ollama_path(request.path) else "chat"


def error_api_at(request: web.Request, endpoint: Endpoint | None) -> Surface:
    """Returns the API in whose format errors of an endpoint are answered; without one, those of its path."""
    if endpoint is not None:
        return "messages" if endpoint.also_anthropic and is_anthropic_client(request) else endpoint.errors
    area = area_of(request)
    if area is None or "messages" not in area.errors:
        return error_api_of(request)
    return area.errors[-1 if vendor_of(request) == "Anthropic" else 0]


def is_ollama_path(path: str) -> bool:
    return path.startswith("/api/")


def is_anthropic_client(request: web.BaseRequest) -> bool:
    """Whether the version, beta or key header is of Anthropic's API."""
    headers = request.headers
    if "anthropic-version" in headers or "anthropic-beta" in headers:
        return True
    return "x-api-key" in headers and "Authorization" not in headers


def fault_response(
    failure: Failure, request: web.BaseRequest, *, allow: str | None = None, request_id: str = ""
) -> web.Response:
    """Returns a failure in the API's format. `request_id`: an id for a request that has none yet. `allow`: the
    methods of the path.
    """
    surface = error_api_of(request)
    headers = {}
    seconds = retry_after(failure)
    if seconds is not None:
        headers["Retry-After"] = str(seconds)
    if forbids_retry(failure):
        headers["x-should-retry"] = "false"
    if failure.kind is FaultKind.INVALID_API_KEY:
        headers["WWW-Authenticate"] = CHALLENGE
    if allow is not None:
        headers["Allow"] = allow
    return web.Response(
        status=status_of(failure, surface),
        body=error_body(failure, surface, request.get(REQUEST_ID, request_id)),
        content_type="application/json",
        headers=headers,
    )
