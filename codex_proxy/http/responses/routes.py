"""The paths of responses, with and without `/v1`."""

from __future__ import annotations

from aiohttp import web

from codex_proxy.http.responses.create import create_response


def add_response_routes(app: web.Application) -> None:
    for prefix in ("/v1", ""):
        app.router.add_post(f"{prefix}/responses", create_response)
