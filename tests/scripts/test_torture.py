"""scripts/torture: a short run of it, which finds nothing lost, stuck, leaked or answered wrongly."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from scripts.torture_lib.__main__ import Report, loop_delay
from scripts.torture_lib.clients import Client
from scripts.torture_lib.ledger import Ledger

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_short_torture_ends_with_nothing_lost_stuck_or_leaked(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "scripts.torture_lib",
            "--seconds",
            "15",
            "--seed",
            "7",
            "--json",
            str(figures),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    report = json.loads(figures.read_text())
    assert report["kills"]["proxy"] + report["kills"]["stop"] > 0
    assert report["acknowledged"]["background"] > 0


def report(**found: object) -> Report:
    given: dict[str, object] = {
        "seed": 1,
        "seconds": 600.0,
        "requests": {},
        "kills": {},
        "resident_mib": {"warm": 100.0, "end": 101.0},
    }
    return Report(**(given | found))  # type: ignore[arg-type]


def test_a_run_without_findings_has_no_problems() -> None:
    assert report(loop_delay_p999=0.05).problems() == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"lost": ["resp_1: gone"]}, "resp_1"),
        ({"stuck": ["resp_1: it does not end"]}, "does not end"),
        ({"leaked": ["process 1 is left"]}, "process 1"),
        ({"wrong": ["GET /: status 418"]}, "418"),
        ({"loop_delay_p999": 0.25}, "0.250 s late"),
        ({"resident_mib": {"warm": 100.0, "end": 131.0}}, "grew by 31 MiB"),
    ],
)
def test_each_finding_is_a_problem(found: dict[str, object], said: str) -> None:
    (problem,) = report(**found).problems()
    assert said in problem


def test_the_delay_of_a_share_is_the_bucket_that_holds_it() -> None:
    name = "codex_proxy_event_loop_delay_seconds"
    samples = {f"{name}_count": 1000.0}
    samples |= {f'{name}_bucket{{le="{bound}"}}': count for bound, count in (("0.01", 998.0), ("0.1", 999.0))}
    samples[f'{name}_bucket{{le="+Inf"}}'] = 1000.0
    assert loop_delay(samples, 0.5) == 0.01
    assert loop_delay(samples, 0.999) == 0.1
    assert loop_delay(samples, 1.0) == float("inf")


def upgrade(head: str, connection: str) -> bytes:
    """The answer to a handshake with this head."""
    key = head.split("Sec-WebSocket-Key: ")[1].split("\r\n")[0]
    digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
    lines = ("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", f"Connection: {connection}")
    accepted = f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}"
    return "\r\n".join((*lines, accepted, "", "")).encode()


@pytest.mark.parametrize(
    ("connection", "said"),
    [("close", "Invalid connection header: {"), ("upgrade", "closed with 1006 before the turn ended")],
)
async def test_what_is_wrong_with_a_websocket_is_said(connection: str, said: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over.append(True)
        writer.write(upgrade((await reader.readuntil(b"\r\n\r\n")).decode(), connection))
        await writer.drain()
        writer.close()

    over: list[bool] = []
    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        aiohttp.ClientSession() as session,
    ):
        up = asyncio.Event()
        up.set()
        port = server.sockets[0].getsockname()[1]
        attacked = SimpleNamespace(url=f"http://127.0.0.1:{port}", keys=["key"], up=up, life=1)
        ledger = Ledger(cast(Any, attacked))
        client = Client(ledger, session, Random(1))
        client._actions = [(client._socket, 1)]
        await client.run(lambda: bool(over))
    [wrong] = ledger.wrong
    assert said in wrong
