"""Agents that print what costs much to read: the server goes on to serve others meanwhile."""

from __future__ import annotations

import json
import shlex
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.cpu_time import slowness
from tests.fuzz.conftest import ServerThread
from tests.fuzz.holds import MAX_HOLD_SECONDS
from tests.http.serving import ENVIRONMENT
from tests.parts import child_shapes as shapes
from tests.parts.child_readers import SESSION, THREAD, TURN, as_lines
from tests.waiting import PATIENCE

PROGRAM = '#!/bin/sh\nexport FAKE_CODEX_EVIL={evil}\nexec {python} -P -m fake_proto claude "$@"\n'
PLACEHOLDERS = ((THREAD, "<threadId>"), (TURN, "<turnId>"), (SESSION, "<sessionId>"))
SIZE = 1_500
LINE = 12 << 20
COSTLY = {
    "app-server": ("items left open", "calls", "one id reused", "parts of reasoning", "retries"),
    "codex-proto": ("calls of one message", "arguments before the name", "many messages"),
    "claude-code": ("thinking", "calls", "one block's index reused", "a whole message of many blocks"),
    "acp": ("calls left open", "many messages", "fields of an update", "text and thoughts by turns"),
}
EVIL = [(child, shape) for child in COSTLY for shape in COSTLY[child]]
LONG = [(child, line) for child in COSTLY for line in shapes.LONG_LINES[child]]


def server(child: str, folder: Path, evil: Path) -> ServerThread:
    """A server whose agent is the fake one, which speaks as this child does and can print the file `evil`."""
    if child != "claude-code":
        dialect = child.removeprefix("codex-")
        return ServerThread(folder, ENVIRONMENT | {"FAKE_CODEX_EVIL": str(evil)}, fake_dialect=dialect)
    program = folder / "claude"
    program.write_text(PROGRAM.format(evil=shlex.quote(str(evil)), python=shlex.quote(sys.executable)))
    program.chmod(0o755)
    return ServerThread(folder, agent="claude-code", claude_bin=str(program))


def ask(port: int, path: str, body: dict[str, Any]) -> str:
    """The text of the answer, whatever its status."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.read().decode()


TOOL = {"name": "add", "parameters": {"type": "object", "properties": {}}}
PROMPT = "[[fake:text misbehave=evil]]"
CHAT = {
    "model": "codex-5",
    "messages": [{"role": "user", "content": PROMPT}],
    "tools": [{"type": "function", "function": TOOL}],
    "stream": True,
}
RESPONSE = {
    "model": "codex-5",
    "input": PROMPT,
    "tools": [{"type": "function", **TOOL}],
    "stream": True,
    "store": False,
}
REQUESTS = (("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE))


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(("child", "shape"), EVIL)
def test_an_agent_that_prints_what_costs_much_holds_nobody_up(child: str, shape: str, tmp_path: Path) -> None:
    assert longest_hold(child, shapes.SHAPES[child][shape](SIZE), tmp_path) < MAX_HOLD_SECONDS


@pytest.mark.sampled(every=13)
@pytest.mark.parametrize(("child", "line"), LONG)
def test_an_agent_that_prints_a_line_of_12_mib_holds_nobody_up(child: str, line: str, tmp_path: Path) -> None:
    assert longest_hold(child, [shapes.LONG_LINES[child][line](LINE)], tmp_path) < MAX_HOLD_SECONDS


def longest_hold(child: str, messages: Iterable[Any], folder: Path) -> float:
    """The longest CPU time of a callback while the agent prints these messages as its answer, once in a Chat
    Completions stream and once in one of the Responses API; the shortest of up to three tries.
    """
    file = folder / "evil"
    lines = as_lines(messages).decode()
    for id, placeholder in PLACEHOLDERS:
        lines = lines.replace(f'"{id}"', f'"{placeholder}"')
    file.write_text(lines)
    thread = server(child, folder, file)
    with thread.holds, thread as port:
        for path, body in REQUESTS:  # the first request builds what reads requests
            assert ask(port, path, {**body, "tool_choice": "unknown"})
        tries: list[float] = []
        while len(tries) < 3 and not any(each < MAX_HOLD_SECONDS for each in tries):
            thread.finish_callback()
            thread.holds.forget()
            for path, body in REQUESTS:
                assert ask(port, path, body)
            thread.finish_callback()
            tries.append(thread.holds.longest / slowness())
        return min(tries)
