"""What a supervisor asks: /healthz, /livez, /readyz.

They are open to everybody. Where that is more than this machine, or keys are wanted, strangers are told whether a turn
would work and not what serves and why not: versions, load, and faults that may name paths are for those with a key.
"""

from __future__ import annotations

from aiohttp import web

from codex_proxy import __version__
from codex_proxy.core.faults import STOPPING, Fault
from codex_proxy.core.keys import digest_of
from codex_proxy.http.app_keys import CLIENTS, RESPONSES, RUNS
from codex_proxy.http.middleware.doors import guarded, key_in
from codex_proxy.http.middleware.forwarded import is_near
from codex_proxy.http.replies import json_response

MADE_UP = web.AppKey("made_up", bool)
"""The agent's answers are made up."""

KEYS_TROUBLE = (
    "The keys file cannot be read: the keys in force are older. The log and `codex-proxy doctor` say why."
)
"""All that is told to whoever asks: the reason names a path."""
AGENT_TROUBLE = "The agent cannot serve. With a key this says why; so do the log and `codex-proxy doctor`."


STORE_TROUBLE = (
    "The store takes no writes: its disk is full, or another process has locked it. What was stored is there; turns "
    "work with 'store': false. The server's log says why."
)


async def healthz(request: web.Request) -> web.Response:
    """GET /healthz: what serves here, and whether a turn would work."""
    manager, made_up = request.app[RUNS], request.app[MADE_UP]
    agent = manager.agent
    trouble = agent.trouble()
    about: dict[str, object] = {"name": agent.name, "fake": made_up}
    body: dict[str, object] = {"status": "ok" if trouble is None else "degraded", "agent": about}
    if await _is_told_details(request):
        about["version"] = agent.version
        if agent.off:
            about["off"] = agent.off
        body["version"] = __version__
        body["turns"] = {"running": manager.running, "queued": manager.queued}
    if made_up:
        body["warning"] = "The embedded fake agent serves: its answers are made up."
    if trouble is not None:
        body["trouble"] = trouble.unquoted if "turns" in body else AGENT_TROUBLE
    if request.app[CLIENTS].trouble is not None:
        body["status"] = "degraded"
        body["keys"] = KEYS_TROUBLE
    if not await _stores(request):
        body["status"] = "degraded"
        body["store"] = STORE_TROUBLE
    return json_response(body)


async def _is_told_details(request: web.Request) -> bool:
    """Whether it comes with a right key; where none is wanted, from this machine."""
    clients = request.app[CLIENTS]
    if not clients.wanted:
        return is_near(request)
    key = key_in(request)
    if not key:
        return False
    digest = digest_of(key)
    try:
        async with guarded(request, digest):
            clients.holding(digest)
    except Fault:
        return False  # whoever asks whether the server lives is told so, whatever their key
    return True


async def livez(_: web.Request) -> web.Response:
    """GET /livez: this process answers."""
    return json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """GET /readyz: 503 with the reason where a turn would not work."""
    manager = request.app[RUNS]
    if manager.draining:
        return json_response({"status": "unready", "reason": STOPPING.message}, 503)
    trouble = manager.agent.trouble()
    if trouble is not None:
        reason = trouble.unquoted if await _is_told_details(request) else AGENT_TROUBLE
        return json_response({"status": "unready", "reason": reason}, 503)
    if not await _stores(request):
        return json_response({"status": "unready", "reason": STORE_TROUBLE}, 503)
    return json_response({"status": "ok"})


async def _stores(request: web.Request) -> bool:
    """Whether what has to be stored would be."""
    check = request.app[RESPONSES].write_check
    return check is None or await check.is_writable()
