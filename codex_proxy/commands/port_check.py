"""The port, as `doctor` looks at it: free, or already one of ours, or somebody else's."""

from __future__ import annotations

import socket
from typing import Any

import aiohttp

from codex_proxy.commands.checkup import Check, Fact
from codex_proxy.config import Settings

ANSWER_SECONDS = 3.0
"""How long whoever listens there may take: ours answers in a millisecond."""


async def port_check(settings: Settings) -> Check:
    """Whether a server could listen there, or does so already."""
    facts: dict[str, Fact] = {"host": settings.host, "port": settings.port, "ours": False}
    if settings.port == 0:
        return Check(name="port", status="ok", message="Any free one is taken (port 0).", facts=facts)
    health = await health_of(settings.server_url)
    if health is not None:
        facts |= {
            "ours": True,
            "server_version": health.get("version"),
            "server_status": health.get("status"),
        }
        return _running(settings, health, facts)
    fault = why_not(settings.host, settings.port)
    where = f"{settings.host}:{settings.port}"
    if fault is None:
        return Check(name="port", status="ok", message=f"{where} is free.", facts=facts)
    advice = "Give another port with --port, or end the program that listens there."
    message = f"A server cannot listen on {where}: {fault}."
    return Check(name="port", status="failed", message=message, advice=advice, facts=facts)


def _running(settings: Settings, health: dict[str, Any], facts: dict[str, Fact]) -> Check:
    where = f"{settings.host}:{settings.port}"
    agent = health["agent"]
    version = f" {health['version']}" if "version" in health else ""  # not told where a key is wanted
    message = f"A codex-proxy{version} serves {agent.get('name')} on {where} already."
    if health.get("status") == "ok":
        return Check(name="port", status="ok", message=message, facts=facts)
    trouble = str(health.get("trouble", "its agent is in trouble"))
    return Check(
        name="port", status="warning", message=f"{message} It says: {trouble}", advice=trouble, facts=facts
    )


async def health_of(server_url: str) -> dict[str, Any] | None:
    """What the server there says of itself; None where none of ours is."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{server_url}/healthz") as reply,
        ):
            body = await reply.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    ours = isinstance(body, dict) and isinstance(body.get("agent"), dict) and "fake" in body["agent"]
    return body if ours else None


def why_not(host: str, port: int) -> str | None:
    """Why nobody could listen there now; None where one could."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return str(error.strerror)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen()
        except OSError as error:
            return str(error.strerror)
    return None
