"""The routes and their handlers."""

from __future__ import annotations

import msgspec
from aiohttp import web

from codex_proxy import __version__
from codex_proxy.http.exchange import streamed, whole
from codex_proxy.http.middleware.frame import NOTES
from codex_proxy.http.service import SERVICE, Service
from codex_proxy.http.turns import check_capabilities, in_workspace
from codex_proxy.surfaces.base import RequestHints
from codex_proxy.surfaces.chat.parse import ParsedChat, parse
from codex_proxy.surfaces.chat.render import ChatRenderer
from codex_proxy.surfaces.models import codex_list_body, list_body, one_body


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", status=status)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    service = request.app[SERVICE]
    hints = RequestHints(
        mode=request.headers.get("X-Codex-Mode"), workdir=request.headers.get("X-Codex-Workdir")
    )
    parsed = parse(await request.read(), settings=service.chat, catalog=service.catalog, headers=hints)
    agent = service.manager.agent
    check_capabilities(parsed.turn, agent)
    turn = in_workspace(parsed.turn, parsed.workdir_param, service)
    notes = request[NOTES]
    notes |= {"model": parsed.model_asked, "stream": parsed.stream, "choice_count": parsed.choices}
    renderer = _renderer(service, parsed)
    headers = _headers(service, parsed)
    run = await service.manager.start(turn)
    try:
        if not parsed.stream:
            return await whole(run, renderer, headers)
        return await streamed(
            request,
            run,
            renderer,
            headers,
            keepalive=0.0 if _no_keepalive(request) else service.keepalive,
            comment=lambda: b": %d\n\n" % (service.clock.epoch() * 1000),
        )
    finally:
        if renderer.failure is not None:
            notes["error"] = renderer.failure.kind.value
        if renderer.finish_reasons:
            notes["finish_reason"] = renderer.finish_reasons[0]


def _renderer(service: Service, parsed: ParsedChat) -> ChatRenderer:
    return ChatRenderer(
        id=service.ids.new("chatcmpl-"),
        created=int(service.clock.epoch()),
        model=parsed.model_asked,
        choices=parsed.choices,
        stream=parsed.stream,
        include_usage=parsed.include_usage,
        legacy_function_call=parsed.legacy_function_call,
        show_activity=service.chat.show_activity,
        prompt_letters=parsed.prompt_letters,
    )


def _headers(service: Service, parsed: ParsedChat) -> dict[str, str]:
    headers = {"x-codex-agent": service.manager.agent.name}
    if parsed.ignored:
        headers["x-codex-ignored-params"] = ", ".join(parsed.ignored)
    if "history" not in service.manager.agent.capabilities and len(parsed.turn.history) > 1:
        headers["x-codex-history"] = "flattened"
    return headers


def _no_keepalive(request: web.Request) -> bool:
    asked = (request.headers.get("x-no-keepalive"), request.query.get("no_keepalive"))
    return any(value in ("1", "true") for value in asked)


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models. Codex as a client gets its own shape."""
    service = request.app[SERVICE]
    if "client_version" in request.query:
        return json_response(codex_list_body(service.catalog))
    return json_response(list_body(service.catalog, service.environment, service.started))


async def one_model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}."""
    service = request.app[SERVICE]
    return json_response(one_body(request.match_info["id"], service.catalog, service.started))


async def healthz(request: web.Request) -> web.Response:
    """GET /healthz: what serves here, and whether a turn would work."""
    service = request.app[SERVICE]
    agent = service.manager.agent
    trouble = agent.trouble()
    body: dict[str, object] = {
        "status": "ok" if trouble is None else "degraded",
        "version": __version__,
        "agent": {"name": agent.name, "version": agent.version, "fake": service.fake},
        "turns": {"running": service.manager.running, "queued": service.manager.queued},
    }
    if service.fake:
        body["warning"] = "The embedded fake agent serves: its answers are made up."
    if trouble is not None:
        body["trouble"] = trouble.message
    return json_response(body)


async def livez(_: web.Request) -> web.Response:
    """GET /livez: this process answers."""
    return json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """GET /readyz: 503 with the reason where a turn would not work."""
    trouble = request.app[SERVICE].manager.agent.trouble()
    if trouble is not None:
        return json_response({"status": "unready", "reason": trouble.message}, 503)
    return json_response({"status": "ok"})


def add_routes(app: web.Application) -> None:
    """Every path, with and without `/v1` where clients leave it out."""
    for prefix in ("/v1", ""):
        app.router.add_post(f"{prefix}/chat/completions", chat_completions)
        app.router.add_get(f"{prefix}/models", list_models)
        app.router.add_get(f"{prefix}/models/{{id:.+}}", one_model)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
