"""The bytes of a request's body."""

from __future__ import annotations

import asyncio

from aiohttp import web

from codex_proxy.core.faults import bad_request
from codex_proxy.http.tellers import tell

BODY_SECONDS = 300.0
"""How long a body may take: the largest one there may be, over a line of one megabit a second."""


async def read_body(request: web.Request) -> bytes:
    """All of it, unpacked. One that is not packed as it says, ends too early, or never ends is a 400."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
    except TimeoutError:
        raise bad_request(f"The request body did not come within {BODY_SECONDS:g} s.") from None
    except web.RequestPayloadError:
        raise bad_request("The request body is not what its headers say it is.") from None
    tell(request, "request", body)
    return body
