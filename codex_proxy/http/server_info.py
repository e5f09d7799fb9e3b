"""The endpoints about the server itself. Without a key the health says only whether a turn would work, because messages
may contain paths; if no keys are required, clients on this machine get the details.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
from aiohttp import web

from codex_proxy import __version__
from codex_proxy.admission.clients import Client, model_not_allowed
from codex_proxy.agents.agent import Agent, UpstreamState, all_agents
from codex_proxy.core.faults import STOPPING, Fault
from codex_proxy.core.keys import digest_of
from codex_proxy.http.app_keys import CLIENTS, RESPONSES, RUNS
from codex_proxy.http.endpoint import Endpoint, is_anthropic_client, json_response, served_endpoints
from codex_proxy.http.middleware.access import delay_guesses, is_local, key_in
from codex_proxy.http.middleware.request_context import CLIENT
from codex_proxy.surfaces.answers.codex_models import codex_list_body
from codex_proxy.surfaces.answers.renderer import Count, one_of
from codex_proxy.surfaces.messages.answer import (
    AnthropicModelList,
    anthropic_names,
    model_body,
    models_page,
)
from codex_proxy.surfaces.models import list_body, listed_names, one_body
from codex_proxy.surfaces.ollama.answer import OLLAMA_PORT, RUNNING

ENVIRONMENT: Final = web.AppKey("environment", str)
"""The setting `prod` or `dev`: which built-in aliases of models are listed."""
STARTED: Final = web.AppKey("started", int)
"""When the server started, in seconds since 1970: `created` of every model."""
FAKE_AGENTS: Final = web.AppKey("fake_agents", frozenset[str])
"""The names of the fake agents; an empty name: the only agent is fake."""

WORKER: Final = web.AppKey("worker", int)
"""This process's number among those that share the port; 0: the only one."""
NODE_NAME: Final = web.AppKey("node_name", str)
"""This process's name among those that share the store."""
RECORDING_TROUBLE: Final[web.AppKey[Callable[[], str]]] = web.AppKey("recording_trouble")
"""Returns why recording has stopped, if it has. Set only if turns are recorded."""

FAKE_WARNING: Final = "The embedded fake agent serves: its answers are made up."
KEYS_TROUBLE: Final = (
    "The keys file cannot be read, so the keys that were read before remain valid. The log and "
    "`codex-proxy doctor` have the reason."
)
"""What the health says about an unreadable keys file: not the reason, which has a path."""
AGENT_TROUBLE: Final = (
    "The agent cannot serve requests. This endpoint gives the reason to requests with a key; "
    "the log and `codex-proxy doctor` have it too."
)
RECORDING_STOPPED: Final = "Turns are not recorded any more: the folder of cassettes cannot be written."
STORE_TROUBLE: Final = (
    "The store cannot be written: its disk is full, another process has locked it, or its database cannot be "
    "reached. Requests with 'store': false work. The server's log has the reason."
)
RETRY_SECONDS: Final = 1


class IndexEntry(TypedDict):
    method: str
    path: str
    summary: str


class Index(TypedDict):
    name: str
    openapi: str
    endpoints: list[IndexEntry]


class Hello(TypedDict):
    message: Literal["hello"]
    name: str
    api: str


class AgentHealth(TypedDict):
    name: str
    fake: bool
    version: NotRequired[str]
    off: NotRequired[Any]
    breaker: NotRequired[Annotated[str, one_of(("closed", "open", "half-open"))]]
    trouble: NotRequired[str]


class TurnCounts(TypedDict):
    running: Count
    queued: Count


class ToolServerHealth(TypedDict):
    name: str
    status: Literal["starting", "ready", "failed"]
    tools: NotRequired[Count]
    trouble: NotRequired[str]


class Health(TypedDict):
    status: Literal["ok", "degraded"]
    agent: NotRequired[AgentHealth]
    agents: NotRequired[list[AgentHealth]]
    version: NotRequired[str]
    worker: NotRequired[Count]
    turns: NotRequired[TurnCounts]
    warning: NotRequired[str]
    trouble: NotRequired[str]
    keys: NotRequired[str]
    store: NotRequired[str]
    recording: NotRequired[str]
    mcp: NotRequired[list[ToolServerHealth]]


class Live(TypedDict):
    status: Literal["ok"]


class Ready(TypedDict):
    status: Literal["ok"]
    without: NotRequired[list[str]]


class Unready(TypedDict):
    status: Literal["unready"]
    reason: str


async def index(request: web.Request) -> web.Response:
    """Returns the server's name and its endpoints."""
    served: list[IndexEntry] = [
        {
            "method": each.method,
            "path": f"/v1{each.path}" if each.versioned else each.path,
            "summary": each.summary,
        }
        for each in served_endpoints(request.app)
    ]
    body: Index = {"name": "codex-proxy", "openapi": "/openapi.json", "endpoints": served}
    return json_response(body)


async def list_models(request: web.Request) -> web.Response:
    """Lists the models.

    In OpenAI's form, Anthropic's for its clients, or Codex's (`client_version`).
    """
    client = request[CLIENT]
    catalog = client.catalog
    if is_anthropic_client(request):
        return json_response(_anthropic_models(request))
    if "client_version" in request.query:
        return json_response(codex_list_body(catalog, _names_for_codex(request)))
    body = list_body(catalog, request.app[ENVIRONMENT], request.app[STARTED])
    body["data"] = [entry for entry in body["data"] if client.may_use(entry["id"])]
    return json_response(body)


async def retrieve_model(request: web.Request) -> web.Response:
    """Returns a model.

    Raises `Fault` MODEL_NOT_FOUND, or NOT_ALLOWED.
    """
    client, name = request[CLIENT], request.match_info["id"]
    if not client.may_use(name):
        raise model_not_allowed(name)
    made = model_body if is_anthropic_client(request) else one_body
    return json_response(made(name, client.catalog, request.app[STARTED]))


def _names_for_codex(request: web.Request) -> Iterable[str]:
    """Returns the names that the client may use, also those of Codex's hidden models."""
    client = request[CLIENT]
    catalog, known = client.catalog, client.catalog.names
    names = listed_names(catalog, request.app[ENVIRONMENT])
    listed = [name for name in names if client.listed_model(name, known) is not None]
    models = (model for model in catalog.models if model.native or not model.hidden)
    return dict.fromkeys([*listed, *(model.id for model in models if client.allows_some_effort(model.id))])


def _anthropic_models(request: web.Request) -> AnthropicModelList:
    client = request[CLIENT]
    names = [
        name
        for name in anthropic_names(client.catalog, request.app[ENVIRONMENT])
        if client.listed_model(name) is not None
    ]
    return models_page(names, request.query, client.catalog, request.app[STARTED])


def _is_ollama_client(request: web.Request) -> bool:
    """Whether the client takes this server for Ollama: its `User-Agent` is Ollama's, or it came to Ollama's port."""
    if request.headers.get("User-Agent", "").lower().startswith("ollama"):
        return True
    address = request.get_extra_info("sockname")
    return isinstance(address, tuple) and address[1] == OLLAMA_PORT


async def root(request: web.Request) -> web.Response:
    """Says that a server runs here, at the path that Claude Code requests.

    Ollama's clients get Ollama's own text at `/`.
    """
    if request.path == "/" and _is_ollama_client(request):
        return web.Response(text=RUNNING)
    hello: Hello = {"message": "hello", "name": "codex-proxy", "api": "/v1"}
    return json_response(hello)


async def healthz(request: web.Request) -> web.Response:
    """Returns the state of the server and its agents.

    The HTTP status is always 200; `status` is `ok` or `degraded`.
    """
    runs, fakes = request.app[RUNS], request.app[FAKE_AGENTS]
    client = await _client_with_details(request)
    in_detail, agents = client is not None, agents_for(request, client)
    found = {agent.name: agent_health(agent, request, in_detail=in_detail) for agent in agents}
    troubles = [each["trouble"] for each in found.values() if "trouble" in each]
    body: Health = {"status": "degraded" if troubles else "ok"}
    if runs.agent.members:
        body["agents"] = list(found.values())
    else:
        (about,) = found.values()
        about.pop("trouble", None)
        body["agent"] = about
    warnings = [FAKE_WARNING] if fakes else []
    if in_detail:
        warnings += [agent.warning for agent in agents if agent.warning]
        body["version"] = __version__
        if request.app[WORKER]:
            body["worker"] = request.app[WORKER]
        body["turns"] = {"running": runs.running, "queued": runs.queued}
    if warnings:
        body["warning"] = " ".join(warnings)
    if troubles:
        body["trouble"] = troubles[0]
    if request.app[CLIENTS].trouble is not None:
        body["status"] = "degraded"
        body["keys"] = KEYS_TROUBLE
    if not await _can_store(request):
        body["status"] = "degraded"
        body["store"] = STORE_TROUBLE
    tool_servers = tool_server_health(request, client)
    if tool_servers:
        body["mcp"] = tool_servers
    if RECORDING_TROUBLE in request.app and (stopped := request.app[RECORDING_TROUBLE]()):
        body["status"] = "degraded"
        body["recording"] = stopped if in_detail else RECORDING_STOPPED
    return json_response(body)


def agent_health(agent: Agent, request: web.Request, *, in_detail: bool) -> AgentHealth:
    """Returns the health of one agent. `in_detail`: whether version and fault are included."""
    fakes = request.app[FAKE_AGENTS]
    about: AgentHealth = {"name": agent.name, "fake": bool(fakes & {agent.name, ""})}
    trouble = agent.trouble()
    if in_detail:
        if agent.version:  # a model server tells none
            about["version"] = agent.version
        if agent.missing_features:
            about["off"] = agent.missing_features
        if isinstance(agent, UpstreamState):
            about["breaker"] = agent.breaker_state
    if trouble is not None:
        about["trouble"] = trouble.unquoted if in_detail else AGENT_TROUBLE
    return about


def tool_server_health(request: web.Request, client: Client | None) -> list[ToolServerHealth]:
    """Returns the states of the operator's MCP servers, for a client that gets their tools."""
    if client is None or not client.mcp:
        return []
    states = request.app[RESPONSES].admission.tool_servers
    return msgspec.to_builtins(states)  # type: ignore[no-any-return]


async def _client_with_details(request: web.Request) -> Client | None:
    clients = request.app[CLIENTS]
    if not clients.keys_required:
        return clients.everybody if is_local(request) else None
    key = key_in(request)
    if not key:
        return None
    digest = digest_of(key)
    try:
        async with delay_guesses(request, digest):
            return clients.by_digest(digest)
    except Fault:
        return None  # whoever asks whether the server lives is told so, whatever their key


def agents_for(request: web.Request, client: Client | None) -> list[Agent]:
    agent = request.app[RUNS].agent
    only = None if client is None or not agent.members else client.catalog.only
    return [each for each in all_agents(agent) if only is None or each.name in only]


async def livez(_: web.Request) -> web.Response:
    """Says that the process runs."""
    live: Live = {"status": "ok"}
    return json_response(live)


async def readyz(request: web.Request) -> web.Response:
    """Says whether the server can run turns.

    200 if a turn would work on some agent (`without` lists the others), else 503.
    """
    runs = request.app[RUNS]
    if runs.draining:
        return _unready(STOPPING.message)
    trouble = runs.agent.trouble()
    if trouble is not None:
        reason = trouble.unquoted if await _client_with_details(request) else AGENT_TROUBLE
        return _unready(reason)
    if not await _can_store(request):
        return _unready(STORE_TROUBLE)
    agents = agents_for(request, await _client_with_details(request))
    without = [agent.name for agent in agents if agent.trouble() is not None]
    ready: Ready = {"status": "ok"}
    if without:
        ready["without"] = without
    return json_response(ready)


def _unready(reason: str) -> web.Response:
    body: Unready = {"status": "unready", "reason": reason}
    answer = json_response(body, 503)
    answer.headers["Retry-After"] = str(RETRY_SECONDS)
    return answer


async def _can_store(request: web.Request) -> bool:
    check = request.app[RESPONSES].write_check
    return check is None or await check.is_writable()


async def openapi(request: web.Request) -> web.Response:
    """Returns the OpenAPI document."""
    max_choices = request.app[CLIENTS].everybody.settings.max_choices
    # In a thread: making it takes a fifth of a second, once, in which others are served too.
    body = await asyncio.to_thread(_document, served_endpoints(request.app), max_choices)
    return web.Response(body=body, content_type="application/json")


@lru_cache(maxsize=1)
def _document(endpoints: tuple[Endpoint, ...], max_choices: int) -> bytes:
    # Imported here: no turn needs it, and making schemas takes longer than answering one.
    from codex_proxy.http.openapi import document

    return msgspec.json.encode(document(endpoints, max_choices=max_choices))
