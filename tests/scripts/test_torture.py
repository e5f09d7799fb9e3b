"""scripts/torture: a short run finds nothing, and each planted fault is found."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from scripts.torture_lib import evil_upstream, requests
from scripts.torture_lib.answers import Answer, Asked, faults_of, response_stream, streamed, whole
from scripts.torture_lib.clients import Client
from scripts.torture_lib.leaks import ROOM, leaks, open_things
from scripts.torture_lib.ledger import Ledger
from scripts.torture_lib.plants import PLANTS
from scripts.torture_lib.report import KINDS, MAX_GROWTH, Report, delay
from scripts.torture_lib.watched_server import LOOK_SECONDS

ROOT = Path(__file__).parents[2]
MINE, OTHER, EARLIER = "nonce-00000000000000aa", "nonce-00000000000000bb", "nonce-00000000000000cc"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.torture_lib", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.mark.exhaustive
def test_a_short_torture_ends_with_nothing_found(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    ended = run("--seconds", "15", "--seed", "7", "--json", str(figures))
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-5000:]
    report = json.loads(figures.read_text())
    assert report["kills"]["proxy"] + report["kills"]["stop"] > 0
    assert report["acknowledged"]["background"] > 0
    assert all(report[kind] == [] for kind in KINDS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(plant: str) -> None:
    ended = run("--seconds", "16", "--seed", "7", "--plant", plant)
    assert ended.returncode == 1, ended.stdout[-5000:] + ended.stderr[-5000:]
    assert f"the planted fault {plant} was found" in ended.stdout


# --- what was asked and what was answered -------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "raw", "text", "said"),
    [
        (Asked(MINE, f"{MINE} word"), "", f"{MINE} word", ""),
        (Asked(MINE), f'{{"n": "{OTHER}"}}', "", f"holds {OTHER}"),
        (Asked(MINE), "", f"{MINE} and {OTHER}", f"holds {OTHER}"),
        (Asked(MINE, f"{MINE} word"), "", f"{MINE} wo", "in place of"),
        (Asked(MINE, may_hold=frozenset({EARLIER})), "", f"{EARLIER} {MINE}", ""),
        (Asked(MINE, must_hold=frozenset({EARLIER})), "", MINE, f"lacks {EARLIER}"),
    ],
)
def test_an_answer_is_compared_with_what_was_asked(asked: Asked, raw: str, text: str, said: str) -> None:
    faults = faults_of(asked, raw, Answer((text,), complete=True))
    assert [said in fault for fault in faults] == [True] * bool(said)


def test_a_part_of_an_answer_needs_not_be_all_and_holds_no_other_nonce() -> None:
    assert faults_of(Asked(MINE, f"{MINE} word"), "", Answer((MINE[:9],), complete=False)) == []
    assert faults_of(Asked(MINE, f"{MINE} word"), OTHER, None) != []


def test_the_text_of_an_answer_is_read_from_each_api() -> None:
    message = {"message": {"content": "Yes."}, "finish_reason": "stop"}
    assert whole("chat", {"choices": [message]}).texts == ("Yes.",)
    part = {"type": "message", "content": [{"type": "output_text", "text": "Yes."}]}
    assert whole("responses", {"output": [part], "status": "completed"}) == Answer(
        ("Yes.",), complete=True, body={"output": [part], "status": "completed"}
    )
    block = {"type": "text", "text": "Yes."}
    assert whole("messages", {"content": [block], "stop_reason": "end_turn"}).complete


def test_the_text_of_a_stream_is_that_of_its_deltas() -> None:
    choice = {"index": 0, "delta": {"content": "Y"}, "finish_reason": None}
    last = {"index": 0, "delta": {"content": "es."}, "finish_reason": "stop"}
    lines = [json.dumps({"choices": [each]}) for each in (choice, last)]
    text = "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]"))
    assert streamed("chat", text) == Answer(("Yes.",), complete=True)
    assert not streamed("chat", text[:-10]).ended
    delta = {"type": "response.output_text.delta", "delta": "Yes."}
    output = [{"type": "message", "content": [{"type": "output_text", "text": "No."}]}]
    end = {"type": "response.completed", "response": {"status": "completed", "output": output}}
    assert response_stream([delta, end]).texts == ("No.", "Yes.")
    assert not response_stream([delta]).ended


def test_every_evil_that_is_asked_for_can_be_answered() -> None:
    assert {*requests.EVIL, *requests.HEAVY_EVIL} == set(evil_upstream.SCENARIOS)


# --- what is found ------------------------------------------------------------------------------


def report(**found: Any) -> Report:
    made = Report(1, 600.0, resident=[(0.0, 100.0), (600.0, 101.0)])
    for name, value in found.items():
        setattr(made, name, value)
    return made


def test_a_run_without_findings_says_so_for_each_kind() -> None:
    assert not any(report(late=[0.05] * 1000).findings.values())
    assert sum(" 0   (" in line for line in report().lines()) == len(KINDS)


@pytest.mark.parametrize(
    ("found", "kind", "said"),
    [
        ({"crossed": [f"holds {OTHER}"]}, "crossed", OTHER),
        ({"lost": ["resp_1: gone"]}, "lost", "resp_1"),
        ({"stuck": ["resp_1: it does not end"]}, "stuck", "does not end"),
        ({"leaked": ["process 1 is left"]}, "leaked", "process 1"),
        ({"wrong": ["GET /: status 418"]}, "wrong", "418"),
        (
            {"late": [0.0, 0.5], "longest": [{"seconds": 0.5, "name": "turn", "place": "run.py:7 feed"}]},
            "held",
            "0.50 s turn (run.py:7 feed)",
        ),
        ({"resident": [(float(t), 100.0 + t) for t in range(60)]}, "grown", "grows by 39 MiB"),
    ],
)
def test_each_finding_is_named_in_the_lines(found: dict[str, Any], kind: str, said: str) -> None:
    findings = report(**found).findings
    assert [name for name, lines in findings.items() if lines] == [kind]
    assert any(said in line for line in report(**found).lines())
    assert any(said in line for line in findings[kind])


def test_the_growth_of_memory_is_its_slope_and_not_a_peak() -> None:
    flat = [(float(t), 100.0) for t in range(20)]
    assert report(resident=flat).growth == 0
    flat[10:12] = [(10.0, 400.0), (11.0, 300.0)]
    assert report(resident=flat).growth < MAX_GROWTH
    flat[:6] = [(float(t), 20.0) for t in range(6)]
    assert report(resident=flat).growth < MAX_GROWTH
    assert report(resident=[(float(t), 100.0 + 3 * t) for t in range(20)]).growth == 39


@pytest.mark.parametrize(("late", "expected"), [([0.001] * 5000, 0.001), ([0.001] * 5000 + [0.4], 0.3)])
def test_the_delay_counts_the_looks_that_a_held_loop_has_missed(
    late: Sequence[float], expected: float
) -> None:
    assert delay(late, 0.999) == pytest.approx(expected, abs=LOOK_SECONDS)


def test_a_long_run_may_be_late_for_one_moment_in_a_thousand() -> None:
    assert delay([0.0] * 60_000 + [0.5], 0.999) < 0.1


def test_more_than_pools_explain_is_a_leak() -> None:
    census: Any = {"tasks": {"wait": 3}, "descriptors": {"socket": 5}, "threads": {"MainThread": 1}}
    before = open_things(census, {"codex": 1})
    assert leaks(before, before) == []
    census["tasks"]["wait"] += ROOM["task"]
    census["descriptors"]["socket"] += ROOM["descriptor"] + 1
    [found] = leaks(before, open_things(census, {"codex": 1}))
    assert found.startswith(f"{ROOM['descriptor'] + 1} more")
    assert found.endswith("descriptor socket")


# --- the WebSocket ------------------------------------------------------------------------------


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
        attacked.models, attacked.evil_models = ["codex-5"], []
        ledger = Ledger(cast(Any, attacked))
        client = Client(ledger, session, Random(1))
        client._actions = [(client._socket, 1)]
        await client.run(lambda: bool(over))
    [wrong] = ledger.wrong
    assert said in wrong
