"""`GET /openapi.json`: what this server serves, as it was started.

It needs no key: it says what the project's documentation says, and nothing of who uses the server. All other checks
(the Host, web pages, reverse proxies) are as everywhere.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache

import msgspec
from aiohttp import web

from codex_proxy.http.app_keys import CLIENTS
from codex_proxy.http.endpoint import Endpoint, served_by


async def openapi(request: web.Request) -> web.Response:
    """The document, which is made when it is asked for the first time."""
    most_choices = request.app[CLIENTS].everybody.chat.max_choices
    # In a thread: making it takes a fifth of a second, once, in which others are served too.
    body = await asyncio.to_thread(_document, served_by(request.app), most_choices)
    return web.Response(body=body, content_type="application/json")


@lru_cache(maxsize=1)
def _document(endpoints: tuple[Endpoint, ...], most_choices: int) -> bytes:
    # Imported here: no turn needs it, and making schemas takes longer than answering one.
    from codex_proxy.http.openapi.document import document

    return msgspec.json.encode(document(endpoints, most_choices=most_choices))
