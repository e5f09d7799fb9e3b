"""`GET /openapi.json`: what this server serves, as it was started.

It needs no key: it says what the project's documentation says, and nothing of who uses the server. All other doors
(the Host, web pages, reverse proxies) are as everywhere.
"""

from __future__ import annotations

import asyncio
from functools import cache

import msgspec
from aiohttp import web

PATH = "/openapi.json"


def add_openapi(app: web.Application, *, most_choices: int) -> None:
    """The route. The document is made when it is asked for the first time. `most_choices`: the largest `n`."""

    @cache
    def made() -> bytes:
        # Imported here: no turn needs it, and making schemas takes longer than answering one.
        from codex_proxy.http.openapi.document import document

        return msgspec.json.encode(document(served(app), most_choices=most_choices))

    async def openapi(_: web.Request) -> web.Response:
        # In a thread: making it takes a fifth of a second, once, in which others are served too.
        return web.Response(body=await asyncio.to_thread(made), content_type="application/json")

    app.router.add_get(PATH, openapi)


def served(app: web.Application) -> set[tuple[str, str]]:
    """Method and path of every route, without `/v1`. HEAD is what GET is, without a body."""
    return {
        (route.method, route.resource.canonical.removeprefix("/v1"))
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
