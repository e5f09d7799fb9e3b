"""A server that is not ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.web_application import serve_application


@asynccontextmanager
async def other_server(body: bytes, status: int = 200) -> AsyncIterator[str]:
    """The address of one that answers everything so."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    async with serve_application(app) as port:
        yield f"http://127.0.0.1:{port}"
