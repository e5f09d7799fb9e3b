"""GET /v1/models and /v1/models/{id}: those that the key may ask for."""

from __future__ import annotations

import msgspec
from aiohttp import web

from codex_proxy.admission.clients import model_not_allowed
from codex_proxy.http.app_keys import CATALOG
from codex_proxy.http.middleware.frame import CLIENT
from codex_proxy.http.replies import json_response
from codex_proxy.surfaces.models import codex_list_body, list_body, one_body

ENVIRONMENT = web.AppKey("environment", str)
"""`prod` or `dev`: which aliases are listed."""
STARTED = web.AppKey("started", int)
"""Seconds since 1970; models are told to have been created then."""


async def list_models(request: web.Request) -> web.Response:
    """OpenAI's list. Codex as a client, which tells its version, gets its own shape where the agent has given us
    entries of it; OpenAI's makes it fall back to the models that it brings along, and an empty list would not."""
    catalog, client = request.app[CATALOG], request[CLIENT]
    if "client_version" in request.query:
        models = tuple(model for model in catalog.models if client.allows_some_effort(model.id))
        own = codex_list_body(msgspec.structs.replace(catalog, models=models))
        if own["models"]:
            return json_response(own)
    body = list_body(catalog, request.app[ENVIRONMENT], request.app[STARTED])
    body["data"] = [entry for entry in body["data"] if client.lists(entry["id"], catalog)]
    return json_response(body)


async def one_model(request: web.Request) -> web.Response:
    """One entry, or 404 `model_not_found`. Raises `Fault` NOT_ALLOWED for one that the key may not ask for."""
    catalog, name = request.app[CATALOG], request.match_info["id"]
    if not request[CLIENT].lists(name, catalog):
        raise model_not_allowed(name)
    return json_response(one_body(name, catalog, request.app[STARTED]))
