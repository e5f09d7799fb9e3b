"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from aiohttp import web

from codex_proxy.http.replies import json_response
from codex_proxy.http.service import SERVICE
from codex_proxy.surfaces.models import codex_list_body, list_body, one_body


async def list_models(request: web.Request) -> web.Response:
    """OpenAI's list. Codex as a client, which tells its version, gets its own shape where the agent has given us
    entries of it; OpenAI's makes it fall back to the models that it brings along, and an empty list would not."""
    service = request.app[SERVICE]
    if "client_version" in request.query:
        own = codex_list_body(service.catalog)
        if own["models"]:
            return json_response(own)
    return json_response(list_body(service.catalog, service.environment, service.started))


async def one_model(request: web.Request) -> web.Response:
    """One entry, or 404 `model_not_found`."""
    service = request.app[SERVICE]
    return json_response(one_body(request.match_info["id"], service.catalog, service.started))
