"""How many requests a minute one key may make. Only requests that can start a turn count: those with a body.

OpenAI's own headers tell the client how it stands, on every counted reply.
"""

from __future__ import annotations

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.rate import Allowance
from codex_proxy.http.middleware.frame import OWNER, REPLY_HEADERS, Handler
from codex_proxy.http.service import SERVICE

TEST_PREFIX = "/__test/"


@web.middleware
async def pace(request: web.Request, handler: Handler) -> web.StreamResponse:
    limits = request.app[SERVICE].rate
    if limits is None or request.method != "POST" or request.path.startswith(TEST_PREFIX):
        return await handler(request)
    allowance = limits.take(request[OWNER])
    request[REPLY_HEADERS] |= headers_of(allowance)
    if not allowance.allowed:
        raise Fault(
            Failure(
                kind=FaultKind.RATE_LIMITED,
                message=f"This server takes {allowance.limit} requests a minute from a key "
                "(PROXY_RATE_LIMIT_RPM). Try again later.",
                retry_after=allowance.wait,
            )
        )
    return await handler(request)


def headers_of(allowance: Allowance) -> dict[str, str]:
    """`x-ratelimit-*` as OpenAI writes them."""
    return {
        "x-ratelimit-limit-requests": str(allowance.limit),
        "x-ratelimit-remaining-requests": str(allowance.remaining),
        "x-ratelimit-reset-requests": span(allowance.full_after),
    }


def span(seconds: float) -> str:
    """A span of time as OpenAI's headers write it: `1m30s`, `12.5s`, `340ms`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"
