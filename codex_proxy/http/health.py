"""What a supervisor asks: /healthz, /livez, /readyz."""

from __future__ import annotations

from aiohttp import web

from codex_proxy import __version__
from codex_proxy.http.replies import json_response
from codex_proxy.http.service import SERVICE

KEYS_TROUBLE = (
    "The keys file cannot be read: the keys in force are older. The log and `codex-proxy doctor` say why."
)
"""All that is told to whoever asks: the reason names a path."""


async def healthz(request: web.Request) -> web.Response:
    """GET /healthz: what serves here, and whether a turn would work."""
    service = request.app[SERVICE]
    agent = service.manager.agent
    trouble = agent.trouble()
    body: dict[str, object] = {
        "status": "ok" if trouble is None else "degraded",
        "version": __version__,
        "agent": {"name": agent.name, "version": agent.version, "fake": service.fake},
        "turns": {"running": service.manager.running, "queued": service.manager.queued},
    }
    if service.fake:
        body["warning"] = "The embedded fake agent serves: its answers are made up."
    if trouble is not None:
        body["trouble"] = trouble.unquoted
    if service.clients.trouble is not None:
        body["status"] = "degraded"
        body["keys"] = KEYS_TROUBLE
    return json_response(body)


async def livez(_: web.Request) -> web.Response:
    """GET /livez: this process answers."""
    return json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """GET /readyz: 503 with the reason where a turn would not work."""
    trouble = request.app[SERVICE].manager.agent.trouble()
    if trouble is not None:
        return json_response({"status": "unready", "reason": trouble.unquoted}, 503)
    return json_response({"status": "ok"})
