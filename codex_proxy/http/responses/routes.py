"""The paths of responses, with and without `/v1`."""

from __future__ import annotations

from aiohttp import web

from codex_proxy.http.responses.context_requests import compact, count_input_tokens
from codex_proxy.http.responses.create import create_response
from codex_proxy.http.responses.stored import cancel, delete, list_input_items, retrieve
from codex_proxy.http.websocket import responses_socket


def add_response_routes(app: web.Application) -> None:
    for prefix in ("/v1", ""):
        responses = f"{prefix}/responses"
        one = responses + "/{id}"
        app.router.add_post(responses, create_response)
        app.router.add_get(responses, responses_socket, allow_head=False)
        app.router.add_post(f"{responses}/compact", compact)
        app.router.add_post(f"{responses}/input_tokens", count_input_tokens)
        app.router.add_get(one, retrieve)
        app.router.add_delete(one, delete)
        app.router.add_get(f"{one}/input_items", list_input_items)
        app.router.add_post(f"{one}/cancel", cancel)
