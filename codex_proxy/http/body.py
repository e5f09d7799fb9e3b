"""The bytes of a request's body."""

from __future__ import annotations

from aiohttp import web

from codex_proxy.core.faults import bad_request
from codex_proxy.http.tellers import tell


async def read_body(request: web.Request) -> bytes:
    """All of it, unpacked. One that is not packed as it says, or ends too early, is a 400."""
    try:
        body = await request.read()
    except web.RequestPayloadError:
        raise bad_request("The request body is not what its headers say it is.") from None
    tell(request, "request", body)
    return body
