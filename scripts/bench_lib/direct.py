"""Drives an agent without the proxy and with as little work as possible, to measure what its first token costs by
itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from codex_proxy.agents.codex_app_server.connection import initialize_params
from codex_proxy.agents.codex_app_server.thread_turns import thread_params
from codex_proxy.core.turn import Turn
from scripts.bench_lib.servers import PATIENCE, BenchError

READ_BYTES = 1 << 20
PROTO_TURN = b'{"id":"1","op":{"type":"user_input","items":[{"type":"text","text":"Go."}]}}\n'
PIPE = asyncio.subprocess.PIPE
DELTA_METHOD = "item/agentMessage/delta"

Listener = Callable[[bytes, dict[str, Any]], None]
"""Takes a line about a thread: its bytes, and the decoded JSON."""


class AppServer:
    """A running app-server, with its unanswered requests by id, and what is waited for on each thread."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._last = 0
        self._listeners: dict[str, Listener] = {}

    async def read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._receive(json.loads(line), line)

    def _receive(self, line: dict[str, Any], raw: bytes) -> None:
        method = line.get("method")
        listener = self._listeners.get(line.get("params", {}).get("threadId"))
        if listener is not None:
            listener(raw, line)
        key = line["id"] if method is None else (method, line.get("params", {}).get("threadId"))
        future = self._waiting.pop(key, None)
        if future is not None:
            future.set_result(line)

    def _wait_for(self, key: Any) -> asyncio.Future[dict[str, Any]]:
        self._waiting[key] = future = asyncio.get_running_loop().create_future()
        return future

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._last += 1
        answer = self._wait_for(self._last)
        self.send({"id": self._last, "method": method, "params": params})
        line = await answer
        if "error" in line:
            raise BenchError(f"{method}: {line['error']}")
        result: dict[str, Any] = line["result"]
        return result

    def send(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def listen(self, listener: Listener) -> None:
        """Starts a turn on a new thread, of which `listener` gets every line."""
        started = await self.request("thread/start", {})
        thread = started["thread"]["id"]
        self._listeners[thread] = listener
        await self.request("turn/start", {"threadId": thread, "input": []})

    async def first_delta(self, prompt: str, cwd: str) -> float:
        """Returns the seconds from `thread/start` to the turn's first delta. Reads the turn to its end, as the proxy
        does.
        """
        clock = asyncio.get_running_loop().time
        async with asyncio.timeout(PATIENCE):
            begun = clock()
            started = await self.request(
                "thread/start", thread_params(Turn(model="", history=(), workdir=cwd))
            )
            thread = started["thread"]["id"]
            delta = self._wait_for((DELTA_METHOD, thread))
            ended = self._wait_for(("turn/completed", thread))
            await self.request("turn/start", _turn(thread, prompt))
            await delta
            took = clock() - begun
            await ended
            await self.request("thread/unsubscribe", {"threadId": thread})
        return took

    async def deltas(self, thread: str, prompt: str) -> list[str]:
        """Returns the texts of all deltas of a turn on this thread, which stays open."""
        async with asyncio.timeout(PATIENCE):
            texts: list[str] = []

            def take(_: bytes, line: dict[str, Any]) -> None:
                if line.get("method") == DELTA_METHOD:
                    texts.append(line["params"]["delta"])

            self._listeners[thread] = take
            ended = self._wait_for(("turn/completed", thread))
            await self.request("turn/start", _turn(thread, prompt))
            await ended
            del self._listeners[thread]
            await self.request("thread/unsubscribe", {"threadId": thread})
        return texts


def _turn(thread: str, prompt: str) -> dict[str, Any]:
    return {"threadId": thread, "input": [{"type": "text", "text": prompt, "text_elements": []}]}


@asynccontextmanager
async def app_server(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> AsyncIterator[AppServer]:
    """Yields an app-server that is warm; it ends when its stdin is closed."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.DEVNULL, env=dict(env), cwd=cwd
    )
    server = AppServer(process)
    reader = asyncio.create_task(server.read())
    try:
        await server.request("initialize", initialize_params("bench", "0"))
        server.send({"method": "initialized"})
        yield server
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await reader
                await process.wait()
        except TimeoutError:
            process.kill()
            raise


async def proto_first_delta(env: Mapping[str, str], cwd: str) -> float:
    """Returns the seconds from the spawn of the fake `codex proto` child to its first delta, and kills the child."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fake_proto", "proto", stdin=PIPE, stdout=PIPE, env=dict(env), cwd=cwd
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            process.stdin.write(PROTO_TURN)
            seen = b""
            while b"agent_message_delta" not in seen:
                chunk = await process.stdout.read(READ_BYTES)
                if not chunk:
                    raise BenchError(f"the child ended: {seen!r}")
                seen += chunk
            return clock() - begun
    finally:
        process.kill()
        await process.wait()
