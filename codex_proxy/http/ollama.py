"""Ollama's API: /api/chat and /api/generate run a turn; the others describe the server and its models, or pass on
embeddings.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial

from aiohttp import web

from codex_proxy.admission.clients import model_not_allowed
from codex_proxy.agents.agent import agent_for
from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.passing import PassingAgent
from codex_proxy.core.turn import Turn
from codex_proxy.http.app_keys import CLOCK, RUNS
from codex_proxy.http.body import name_ignored, parse_request, read_body
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.exchange import TurnTimings
from codex_proxy.http.middleware.request_context import CLIENT
from codex_proxy.http.pass_through import ask_upstream, serving_upstream
from codex_proxy.http.server_info import ENVIRONMENT, STARTED
from codex_proxy.http.sse import NDJSON
from codex_proxy.http.turns import TurnAnswer, serve_turn, start_timings
from codex_proxy.surfaces.answers.usage import tokens_in
from codex_proxy.surfaces.models import listed_names, model_of, resolve
from codex_proxy.surfaces.ollama.answer import (
    VERSION,
    OllamaModels,
    OllamaVersion,
    model_details,
    model_entry,
)
from codex_proxy.surfaces.ollama.embeddings import (
    NOTHING_EMBEDDED,
    EmbeddingsRequest,
    embed_body,
    embeddings_body,
    nothing_embedded,
    read_embed,
    read_embeddings,
)
from codex_proxy.surfaces.ollama.parse import (
    NO_SUFFIX,
    FillInRequest,
    ParsedOllama,
    PreloadRequest,
    known_name,
    parse_chat,
    parse_generate,
)
from codex_proxy.surfaces.ollama.render import Form, OllamaRenderer, fill_in_body, preload_body
from codex_proxy.surfaces.ollama.wire import OllamaShowRequest
from codex_proxy.surfaces.requests.body import missing_parameter, parse_as
from codex_proxy.surfaces.requests.fields import ignored_fields


async def chat(request: web.Request) -> web.StreamResponse:
    """Creates an answer to a conversation."""
    return await _serve(request, parse_chat, "chat")


async def generate(request: web.Request) -> web.StreamResponse:
    """Creates an answer to a prompt."""
    return await _serve(request, parse_generate, "generate")


async def _serve(
    request: web.Request, parse: Callable[..., ParsedOllama | PreloadRequest | FillInRequest], form: Form
) -> web.StreamResponse:
    timings = start_timings(request)
    parsed = await parse_request(request, await read_body(request), parse)
    if isinstance(parsed, ParsedOllama):
        return await serve_turn(request, parsed, timings, partial(_answer, request, parsed, timings, form))
    created = time_text(request.app[CLOCK].epoch())
    if isinstance(parsed, PreloadRequest):
        body = preload_body(form, parsed.model_asked, created, parsed.reason)
    else:
        answer = await _fill_in(request, parsed)
        body = fill_in_body(answer, parsed.model_asked, created, timings.durations())
    return web.Response(body=body + b"\n", content_type=NDJSON if parsed.stream else "application/json")


async def _fill_in(request: web.Request, parsed: FillInRequest) -> bytes:
    try:
        return await ask_upstream(request, parsed.body, "/completions")
    except Fault as fault:
        if fault.failure.kind is not FaultKind.NOT_FOUND:
            raise
        raise bad_request(NO_SUFFIX, "suffix", "unsupported_value") from fault


def _answer(
    request: web.Request, parsed: ParsedOllama, timings: TurnTimings, form: Form, turn: Turn
) -> TurnAnswer:
    renderer = OllamaRenderer(
        form=form,
        model=parsed.model_asked,
        created_at=time_text(request.app[CLOCK].epoch()),
        stream=parsed.stream,
        thinking=parsed.thinking,
        client_names=parsed.client_names,
        show_activity=request[CLIENT].settings.show_activity,
        prompt_tokens=partial(tokens_in, parsed.turn.history),
        max_tokens=turn.max_tokens,
        times=timings.durations,
    )
    return TurnAnswer(renderer=renderer, ping=renderer.empty_line, media_type=NDJSON)


# --- embeddings ---------------------------------------------------------------------------------------


async def embed(request: web.Request) -> web.Response:
    """Returns embeddings, which an upstream makes.

    Raises the `Fault`s of `pass_through.ask_upstream`.
    """
    timings = start_timings(request)
    parsed = read_embed(await read_body(request), request[CLIENT].catalog)
    answer = await _request_embeddings(request, parsed)
    if answer is None:
        return _json(nothing_embedded(parsed.model))
    return _json(embed_body(answer, parsed, timings.durations()))


async def embeddings(request: web.Request) -> web.Response:
    """Returns embeddings, which an upstream makes.

    For one text, in an older form than `embed`.
    """
    parsed = read_embeddings(await read_body(request), request[CLIENT].catalog)
    answer = await _request_embeddings(request, parsed)
    return _json(NOTHING_EMBEDDED if answer is None else embeddings_body(answer))


async def _request_embeddings(request: web.Request, parsed: EmbeddingsRequest) -> bytes | None:
    """Returns the upstream's answer; None if there is nothing to embed."""
    name_ignored(request, parsed.ignored)
    if not parsed.body:
        serving_upstream(request, parsed.known, "/embeddings")
        return None
    return await ask_upstream(request, parsed.body, "/embeddings")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


# --- the server and its models ----------------------------------------------------------------------


async def version(_: web.Request) -> web.Response:
    """Returns the version of Ollama whose API is served."""
    body: OllamaVersion = {"version": VERSION}
    return json_response(body)


async def tags(request: web.Request) -> web.Response:
    """Lists the models."""
    client, agent, since = request[CLIENT], request.app[RUNS].agent, time_text(request.app[STARTED])
    names = client.catalog.names
    models = [
        model_entry(name, agent_for(agent, model).name, since)
        for name in listed_names(client.catalog, request.app[ENVIRONMENT])
        if (model := client.listed_model(name, names)) is not None
    ]
    body: OllamaModels = {"models": models}
    return json_response(body)


async def ps(_: web.Request) -> web.Response:
    """Lists the models in memory: always none."""
    body: OllamaModels = {"models": []}
    return json_response(body)


async def show(request: web.Request) -> web.Response:
    """Returns what a model can do, and the length of its context.

    Raises `Fault` MODEL_NOT_FOUND, NOT_ALLOWED, or INVALID_REQUEST.
    """
    client = request[CLIENT]
    parsed, notes = parse_as(OllamaShowRequest, await read_body(request))
    name_ignored(request, ignored_fields(notes))
    name = parsed.model or parsed.name
    if name is None:
        raise missing_parameter("model")
    name = known_name(name, client.catalog)
    if not client.may_use(name):
        raise model_not_allowed(name)
    model = model_of(name, client.catalog)
    agent = agent_for(request.app[RUNS].agent, resolve(name, client.catalog).agent_model)
    since = time_text(request.app[STARTED])
    able: set[str] = set(agent.capabilities)
    if isinstance(agent, PassingAgent) and "/embeddings" in (agent.passed_paths or ()):
        able.add("embedding")
    return json_response(model_details(name, agent.name, model, able, since))


def time_text(seconds: float) -> str:
    """Returns seconds since 1970 in the form of RFC 3339."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat().replace("+00:00", "Z")
