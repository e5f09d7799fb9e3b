"""Who may come in: the Host header (against DNS rebinding), the page that asks, the key, and the type of the body.

Browsers can send a form or plain text to any address without asking; JSON they may not.
"""

from __future__ import annotations

import hmac

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.http.middleware.frame import OWNER, Handler
from codex_proxy.http.middleware.origins import admit
from codex_proxy.http.service import SERVICE, Service

OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/metrics"})
"""What a supervisor asks without a key; `/metrics` has a key of its own."""

READS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing here, and whose bodies nobody looks at."""

KEY_NAME = "default"
"""The name of the one key there is."""


@web.middleware
async def doors(request: web.Request, handler: Handler) -> web.StreamResponse:
    service = request.app[SERVICE]
    _check_host(request, service)
    answer = admit(request)
    if answer is not None:
        return answer
    if request.path not in OPEN_PATHS:
        _check_key(request, service)
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


def _check_key(request: web.Request, service: Service) -> None:
    if service.api_key is None:
        return
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        raise _unauthorized("This server wants a key: send it as `Authorization: Bearer KEY`.")
    if not hmac.compare_digest(given.strip().encode(), service.api_key.encode()):
        raise _unauthorized("The key is not one of this server's.")
    request[OWNER] = KEY_NAME


def _unauthorized(message: str) -> Fault:
    return Fault(Failure(kind=FaultKind.INVALID_API_KEY, message=message))


def _check_content_type(request: web.Request) -> None:
    kind = request.content_type.lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Fault(
            Failure(
                kind=FaultKind.UNSUPPORTED_MEDIA_TYPE,
                message=f"The body's type is {kind[:80]}; send it as `Content-Type: application/json`.",
            )
        )
