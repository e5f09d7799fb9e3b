"""This server's own faults at the sudden end of a turn: an exception in any function while the client leaves or the
child dies.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import aiohttp
import pytest

from codex_proxy.agents.process_pool.pool import PooledAgent
from tests.faults.planting import Call, at_each_call, breaking, is_part
from tests.faults.test_own_faults_behind_the_log import (
    RESPONSE_ID,
    TO_CLIENT,
    WAYS,
    Way,
    end_of_response,
    has_failed,
    status_in,
)
from tests.http.serving import Proxy, fake_proxy, until, user
from tests.process.children import have_ended
from tests.waiting import PATIENCE, turns_shown

Dialect: TypeAlias = Literal["proto", "app-server"]
End: TypeAlias = Literal["client leaves", "child dies"]


HELD_PROMPT: Final = "[[fake:text hold=1]]"
"""A turn that waits behind its first word."""
PATHS: Final = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "ollama": "/api/chat"}


def leaves_something(name: str, end: End) -> bool:
    """Whether a turn is left to end: the client of a response in the background has its answer already."""
    return (name, end) != ("background, whole", "client leaves")


Case: TypeAlias = tuple[Dialect, str, End, tuple[str, ...]]
TO_PROCESS: Final = ("/agents/", "/process/", "/runs/")
ENDS: Final[tuple[End, End]] = ("client leaves", "child dies")
FEW: Final[list[Case]] = [
    ("app-server", "responses, streamed", "client leaves", ("/runs/run.py",)),
    ("proto", "messages, streamed", "child dies", ("/process/child.py",)),
]
ALL: Final[list[Case]] = [
    *(("proto", name, end, TO_CLIENT) for name in WAYS for end in ENDS if leaves_something(name, end)),
    *(
        (dialect, "responses, streamed", end, TO_PROCESS)
        for dialect in ("proto", "app-server")
        for end in ENDS
    ),
]


@dataclass
class There:
    """A server whose agent waits behind the first word until `release` exists, or until it is interrupted."""

    proxy: Proxy
    pids: Path
    release: Path
    _ended: set[int] = field(default_factory=set)
    """The lines of `pids` whose processes have been seen to end: another program may get such a number later."""

    async def turn(self, way: Way, end: End, found: Callable[[Call], None]) -> tuple[int, str]:
        """Status and text of an answer (status 0: its client has left) whose turn ends so behind its first word.
        From then on `found` is called as `at_each_call` does. Returns when nothing of the turn is left."""
        self.release.unlink(missing_ok=True)
        heard: list[str] = []
        asking = asyncio.ensure_future(self._ask(way, heard))
        await until(lambda: turns_shown(self.proxy.server.runs) > 0)
        await until(lambda: not way.stream or "Hello" in "".join(heard))
        with at_each_call(found) as begin:
            begin()
            if end == "child dies":
                for pid in self._alive():  # also one that waits for the next turn
                    os.kill(pid, signal.SIGKILL)
            else:
                asking.cancel()
                if way.fields.get("background"):
                    self.release.touch()
            await asyncio.wait({asking}, timeout=PATIENCE)
            await self.proxy.settled()
            await until(self._keeps_what_waits)
        return (0 if asking.cancelled() else await asking), "".join(heard)

    async def serve_one(self) -> None:
        """Waits until processes are started again, of which many have died, and for a turn on one. If the fault has
        struck the start of the process that waited, the turn before fails.
        """
        await until(lambda: self.proxy.server.agent.trouble() is None)
        answer = await self.proxy.ask(user("[[fake:text]]"))
        if answer.status != 200:
            assert answer.body["error"]["code"] == "spawn_error"
            await until(lambda: self.proxy.server.agent.trouble() is None)
            answer = await self.proxy.ask(user("[[fake:text]]"))
        assert answer.status == 200

    async def _ask(self, way: Way, heard: list[str]) -> int:
        body: dict[str, Any] = {"model": "codex-5", "stream": way.stream, **way.fields}
        if way.api in ("responses", "websocket"):
            body["input"] = HELD_PROMPT
        else:
            body |= {"messages": [{"role": "user", "content": HELD_PROMPT}], "max_tokens": 1000}
        if way.api == "websocket":
            return await self._ask_on_socket(body, heard)
        async with self.proxy.session.post(
            self.proxy.url + PATHS.get(way.api, "/v1/responses"), json=body
        ) as reply:
            while piece := await reply.content.readany():
                heard.append(piece.decode())
            if way.fields.get("background") and not way.stream:
                id = json.loads("".join(heard))["id"]
                heard[:] = [await end_of_response(self.proxy, id)]
            return reply.status

    async def _ask_on_socket(self, body: dict[str, Any], heard: list[str]) -> int:
        last = ""
        async with self.proxy.session.ws_connect(f"{self.proxy.url}/v1/responses") as socket:
            await socket.send_json({"type": "response.create", **body})
            while last not in ("error", "response.failed", "response.completed"):
                heard.append(await socket.receive_str(timeout=PATIENCE) + "\n")
                last = json.loads(heard[-1])["type"]
        return 200

    def _alive(self) -> list[int]:
        pids = dict(enumerate(map(int, self.pids.read_text().split())))
        left = {line: pid for line, pid in pids.items() if line not in self._ended and not have_ended([pid])}
        self._ended |= pids.keys() - left.keys()
        return list(left.values())

    def _keeps_what_waits(self) -> bool:
        """Whether the agent's only processes are those that wait for turns."""
        agent = self.proxy.server.agent
        assert isinstance(agent, PooledAgent)
        pool = agent.pool.processes
        return len(self._alive()) == len(pool) and not any(process.turns_running for process in pool)


@asynccontextmanager
async def serve_dialect(dialect: Dialect, folder: Path) -> AsyncIterator[There]:
    pids, release = folder / "pids", folder / "release"
    environment = {"FAKE_CODEX_PID_FILE": str(pids), "STREAM_RELEASE_FILE": str(release)}
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with (
        fake_proxy(folder, environment, fake_dialect=dialect, kept_threads=0) as proxy,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), timeout=timeout) as session,
    ):
        yield There(Proxy(proxy.server, session, proxy.url), pids, release)


async def check(there: There, way: Way, end: End, found: Callable[[Call], None]) -> None:
    """A turn that ends so has no good end, also in the store."""
    status, text = await there.turn(way, end, found)
    ids = dict.fromkeys(RESPONSE_ID.findall(text))
    stored = [status_in(await end_of_response(there.proxy, id)) for id in ids]
    if end == "child dies":
        assert has_failed(way, status, text)
    assert "completed" not in stored or (end == "client leaves" and way.fields.get("background"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("dialect", "name", "end", "parts"),
    [
        *FEW,
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive, id=", ".join(map(str, case[:3])))
            for case in ALL
        ),
    ],
)
async def test_a_turn_that_ends_suddenly_leaves_nothing_whatever_breaks_meanwhile(
    dialect: Dialect,
    name: str,
    end: End,
    parts: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In each call of a function of these parts, one after the other. What is not noticed by the pool of processes
    at once, its next maintenance notices."""
    monkeypatch.setattr("codex_proxy.agents.process_pool.pool.MAINTENANCE_SECONDS", 0.2)
    monkeypatch.setattr("codex_proxy.agents.sessions.session.FINISH_SECONDS", 0.3)
    way = WAYS[name]
    async with serve_dialect(dialect, tmp_path) as there:
        called: dict[Call, None] = {}
        for found in (lambda _: None, called.setdefault):  # what is done only once has been done then
            await there.turn(way, end, found)
        for call in called:
            if not is_part(call, parts):
                continue
            try:
                await there.serve_one()
                await check(there, way, end, breaking(call))
            except BaseException as error:
                error.add_note(f"broken: {call}")
                raise
        assert called
        await there.serve_one()
