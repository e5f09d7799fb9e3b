"""Every path and its handler."""

from __future__ import annotations

from aiohttp import web

from codex_proxy.http.app_keys import CLIENTS
from codex_proxy.http.chat import chat_completions
from codex_proxy.http.conversations import add_conversation_routes
from codex_proxy.http.health import healthz, livez, readyz
from codex_proxy.http.instrumentation import TEST_ENDPOINTS, open_streams, release_streams
from codex_proxy.http.models import list_models, one_model
from codex_proxy.http.openapi_route import add_openapi
from codex_proxy.http.responses.routes import add_response_routes
from codex_proxy.http.usage import add_usage_routes


def add_routes(app: web.Application) -> None:
    """Every path of the application, whose parts are in it; with and without `/v1` where clients leave it out."""
    for prefix in ("/v1", ""):
        app.router.add_post(f"{prefix}/chat/completions", chat_completions)
        app.router.add_get(f"{prefix}/models", list_models)
        app.router.add_get(f"{prefix}/models/{{id:.+}}", one_model)
    add_response_routes(app)
    add_conversation_routes(app)
    add_usage_routes(app)
    add_openapi(app, most_choices=app[CLIENTS].everybody.chat.max_choices)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    if TEST_ENDPOINTS in app:
        app.router.add_get("/__test/conc", open_streams)
        app.router.add_post("/__test/conc/release", release_streams)
