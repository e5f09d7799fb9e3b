"""How many functions of the package a warm request passes, and in how many files, of an agent without a process: a
layer that only forwards is seen here before it is felt. A limit of calls is 2 % above what was counted; who makes a
path shorter lowers it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import codex_proxy
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.events import ItemEnded
from codex_proxy.core.turn import Turn
from tests.http.serving import Proxy, proxy_of
from tests.runs.actors import DONE, WordAgent, WordDialect, WordTransport, deltas

PACKAGE = str(Path(codex_proxy.__file__).parent) + "/"
MESSAGES = [{"role": "user", "content": "Hi"}]
WARM, COUNTED = 3, 4


class PromptTransport(WordTransport):
    """Says everything at once, as soon as the turn has begun."""

    def send(self, writes: bytes) -> None:
        super().send(writes)
        if writes == b"begin":
            events = (*deltas("Hel", "lo"), ItemEnded("a"), DONE)
            asyncio.get_running_loop().call_soon(self.say, *events)


class PromptAgent(WordAgent):
    async def open(self, turn: Turn) -> AgentSession:
        return AgentSession(turn, WordDialect(), PromptTransport())


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Counts the calls of functions of the package inside of the `with`, by file."""
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, what: str, _: object) -> None:
        code = frame.f_code
        if what == "call" and code.co_filename.startswith(PACKAGE):
            calls[code.co_filename.removeprefix(PACKAGE)] += 1

    before = sys.getprofile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


async def calls_of(proxy: Proxy, path: str, body: dict[str, Any]) -> Counter[str]:
    """The calls of one request, until the server has nothing to do with it any more."""
    with counted_calls() as calls:
        answer = await proxy.send("POST", path, body)
        for _ in range(5):
            await asyncio.sleep(0)
    assert answer.status == 200, answer.text
    assert "Hel" in answer.text
    return calls


@pytest.mark.parametrize(
    ("path", "body", "most_calls", "most_files"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, 469, 44),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9, "stream": True}, 464, 44),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}, 457, 44),
        ("/v1/responses", {"input": "Hi", "store": False, "stream": True}, 547, 50),
        ("/v1/responses", {"input": "Hi", "stream": True}, 668, 56),
        ("/api/chat", {"messages": MESSAGES}, 467, 47),
    ],
)
async def test_a_warm_request_passes_no_more_functions_than_before(
    path: str, body: dict[str, Any], most_calls: int, most_files: int, tmp_path: Path
) -> None:
    async with proxy_of(PromptAgent(), tmp_path) as proxy:
        counts = [await calls_of(proxy, path, {"model": "m", **body}) for _ in range(WARM + COUNTED)]
    fewest = min(counts[WARM:], key=Counter.total)
    assert fewest.total() <= most_calls, fewest.most_common(20)
    assert len(fewest) <= most_files, sorted(fewest)
