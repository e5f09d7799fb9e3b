"""Who may come in: the Host header (against DNS rebinding), the reverse proxy and the page that ask, the key, and the
type of the body.

Browsers can send a form or plain text to any address without asking; JSON they may not. They cannot send a header
with a WebSocket, so that its key may stand among the subprotocols, as OpenAI has it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.keys import NOBODY, digest_of
from codex_proxy.http.clients import CLIENT
from codex_proxy.http.middleware.forwarded import check_forwarded, client_address
from codex_proxy.http.middleware.frame import NOTES, OWNER, Handler
from codex_proxy.http.middleware.heads import check_head
from codex_proxy.http.middleware.origins import admit
from codex_proxy.http.service import SERVICE, Service

OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/metrics", "/openapi.json"})
"""What a supervisor asks without a key; `/metrics` has a key of its own, and what is served is no secret."""

READS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing here, and whose bodies nobody looks at."""

KEY_PROTOCOL: Final = "openai-insecure-api-key."
"""What a page offers as a subprotocol, with its key behind it."""

DIGEST = web.RequestKey("digest", str)
"""Of the key that the request came with; empty where it came with none. The key itself is not kept."""


@web.middleware
async def doors(request: web.Request, handler: Handler) -> web.StreamResponse:
    service = request.app[SERVICE]
    check_head(request)
    _check_host(request, service)
    check_forwarded(request)
    answer = admit(request)
    if answer is not None:
        return answer
    if request.path not in OPEN_PATHS:
        await _let_in(request, service)
    if request.method not in READS and request.can_read_body:
        _check_content_type(request)
    return await handler(request)


def host_name(host: str) -> str:
    """The name in a Host header, without its port: `[::1]:80` gives `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def _check_host(request: web.Request, service: Service) -> None:
    if service.hosts and host_name(request.headers.get("Host", "")) not in service.hosts:
        raise Fault(
            Failure(
                kind=FaultKind.NOT_ALLOWED,
                message="This server does not answer to that Host name; add it to PROXY_ALLOWED_HOSTS.",
            )
        )


async def _let_in(request: web.Request, service: Service) -> None:
    """Finds out who asks. Raises `Fault` INVALID_API_KEY, for a wrong key after a while."""
    key = key_in(request)
    digest = digest_of(key) if key else None
    try:
        client = service.clients.holding(digest)
    except Fault:
        if digest is not None:
            await held_back(request)
        raise
    request[CLIENT], request[OWNER], request[DIGEST] = client, client.name, digest or ""
    if client.name != NOBODY:
        request[NOTES]["owner"] = client.name


async def held_back(request: web.Request) -> None:
    """Returns when the answer to this request's wrong key may go out. Some get none."""
    if not await request.app[SERVICE].wrong_keys.hold_back(client_address(request)):
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError


def key_in(request: web.Request) -> str:
    """The key that the request brings; empty where there is none."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and given.strip():
        return given.strip()
    if request.headers.get("Upgrade", "").lower() == "websocket":
        for name in subprotocols(request):
            if name.startswith(KEY_PROTOCOL):
                return name.removeprefix(KEY_PROTOCOL)
    return ""


def subprotocols(request: web.Request) -> list[str]:
    """What a WebSocket's client offers, in its order."""
    values = request.headers.getall("Sec-WebSocket-Protocol", [])
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def _check_content_type(request: web.Request) -> None:
    kind = request.content_type.lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Fault(
            Failure(
                kind=FaultKind.UNSUPPORTED_MEDIA_TYPE,
                message=f"The body's type is {kind[:80]}; send it as `Content-Type: application/json`.",
            )
        )
