"""The metrics of a worker, which other workers of the same user may read."""

from __future__ import annotations

import asyncio
import os

import pytest
from aiohttp import web

from codex_proxy.parts.machines.worker_metrics import WorkerMetrics

FOUND = b"# TYPE turns counter\nturns_total 1.0\n"


async def own() -> bytes:
    return FOUND


async def read_by_socket(monkeypatch: pytest.MonkeyPatch, user: int) -> bytes:
    """What a process of this user reads from the socket of a worker."""
    sharing = WorkerMetrics(own, 1, supervisor=os.getpid()).share(web.Application())
    await anext(sharing)
    # Only root could run a process as somebody else: here the worker takes itself for another user's.
    monkeypatch.setattr("codex_proxy.parts.machines.worker_metrics.os.geteuid", lambda: user)
    reader, writer = await asyncio.open_unix_connection(
        f"\0codex-proxy-metrics-{os.getpid()}-1-{os.getpid()}"
    )
    found = await reader.read()
    writer.close()
    await sharing.aclose()  # type: ignore[attr-defined]
    return found


async def test_a_worker_gives_its_metrics_to_processes_of_its_own_user_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user = os.geteuid()
    assert await read_by_socket(monkeypatch, user) == FOUND
    assert await read_by_socket(monkeypatch, user + 1) == b""
