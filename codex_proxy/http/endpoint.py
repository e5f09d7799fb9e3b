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

from codex_proxy.core.faults import UNFORESEEN, Failure, FaultKind, lack_of
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
    """Whether the body may be `multipart/form-data`; then with an `Authorization` header, which no page can send in a
    form.
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


ENDPOINT: Final = web.RequestKey("endpoint", Endpoint)
"""The endpoint of a request; not set if path or method is not served."""
REQUEST_ID: Final = web.RequestKey("request_id", str)
ROUTES: Final = web.AppKey("routes", dict[web.AbstractRoute, Endpoint])
OPEN_PATHS: Final = web.AppKey("open_paths", frozenset[str])
"""The paths that need no API key; `/metrics` has a key of its own."""


def add_endpoints(app: web.Application, endpoints: Iterable[Endpoint]) -> None:
    """Adds the routes; not those whose `needs` is missing."""
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


def served_endpoints(app: web.Application) -> tuple[Endpoint, ...]:
    return tuple(dict.fromkeys(app[ROUTES].values()))


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
    lack = lack_of(error)
    log.error("internal_error", **trace_of(error), **({"lack": lack} if lack else {}))
    return Failure(FaultKind.UNAVAILABLE, f"The server cannot do this now: {lack}.") if lack else UNFORESEEN


def error_api_of(request: web.BaseRequest) -> Surface:
    """Returns the API in whose format errors are answered."""
    endpoint = request.get(ENDPOINT)
    if (endpoint is None or endpoint.also_anthropic) and is_anthropic_client(request):
        return "messages"
    if endpoint is None:
        return "ollama" if is_ollama_path(request.path) else "chat"
    api: Surface = endpoint.errors
    return api


def is_ollama_path(path: str) -> bool:
    return path.startswith("/api/")


def is_anthropic_client(request: web.BaseRequest) -> bool:
    """Whether the version or key header is of Anthropic's API."""
    headers = request.headers
    return "anthropic-version" in headers or ("x-api-key" in headers and "Authorization" not in headers)


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
