"""The real app-server, driven directly: what the proxy is measured against and its facts are checked with.

A ``Codex`` is one child process and its JSON-RPC: requests with string ids, every notification in order,
every request of the server kept until the test answers. It is as thin as it can be, so that a difference seen
through the proxy is the proxy's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.waiting import PATIENCE

READ_SIZE = 1 << 20
LAST_WORDS_SECONDS = 5.0


class RpcError(Exception):
    """The server answered a request with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("message"))
        self.code = error.get("code")


@dataclass(frozen=True)
class Message:
    """A notification, or a request of the server when it has an ``id``."""

    method: str
    params: dict[str, Any]
    id: Any
    at: float


class Codex:
    """A running app-server. Make one with ``codex()``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.messages: list[Message] = []
        self.stderr = b""
        self._stderr_read = asyncio.Event()
        self.user_agent = ""
        self._answers: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._changed = asyncio.Condition()
        self._count = 0

    async def request(self, method: str, params: dict[str, Any], *, id: Any = None) -> dict[str, Any]:
        """Sends a request and gives its result; ``RpcError`` if the server refuses."""
        [answer] = await self.batch((method, params), ids=None if id is None else [id])
        return answer

    async def batch(
        self, *requests: tuple[str, dict[str, Any]], ids: Sequence[Any] | None = None
    ) -> list[dict[str, Any]]:
        """Sends several requests in one write and waits for all their results, in the order given."""
        loop = asyncio.get_running_loop()
        lines, futures = [], []
        for index, (method, params) in enumerate(requests):
            self._count += 1
            identity = ids[index] if ids else f"r{self._count}"
            self._answers[identity] = loop.create_future()
            futures.append(self._answers[identity])
            lines.append({"id": identity, "method": method, "params": params})
        self.send(*lines)
        async with asyncio.timeout(PATIENCE):
            answers = [await future for future in futures]
        for answer in answers:
            if "error" in answer:
                raise RpcError(answer["error"])
        return [answer["result"] for answer in answers]

    def send(self, *lines: dict[str, Any]) -> None:
        """Writes lines as they are, in one write."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    async def until(
        self, method: str, matches: Callable[[dict[str, Any]], bool] = lambda params: True, *, since: int = 0
    ) -> Message:
        """The first message of this method that matches, as soon as it is there."""

        def find_message() -> Message | None:
            fits = (one for one in self.messages[since:] if one.method == method and matches(one.params))
            return next(fits, None)

        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: find_message() is not None)
        message = find_message()
        assert message is not None
        return message

    def methods(self) -> list[str]:
        return [message.method for message in self.messages]

    async def start_thread(self, params: dict[str, Any]) -> str:
        result = await self.request("thread/start", params)
        identity: str = result["thread"]["id"]
        return identity

    async def run_turn(
        self, thread: str, items: Sequence[dict[str, Any]] = (), **params: Any
    ) -> dict[str, Any]:
        """Injects ``items``, runs a turn to its end and gives the ``turn`` of ``turn/completed``."""
        turn = await self.start_turn(thread, items, **params)
        ended = await self.until("turn/completed", lambda seen: seen["turn"]["id"] == turn)
        completed: dict[str, Any] = ended.params["turn"]
        return completed

    async def start_turn(self, thread: str, items: Sequence[dict[str, Any]] = (), **params: Any) -> str:
        """Injects ``items`` and starts a turn, in one write; gives the turn's id."""
        start = ("turn/start", {"threadId": thread, "input": []} | params)
        inject = ("thread/inject_items", {"threadId": thread, "items": list(items)})
        answers = await self.batch(*([inject, start] if items else [start]))
        identity: str = answers[-1]["turn"]["id"]
        return identity

    def text_of(self, turn: str) -> str:
        """The text deltas of a turn, joined."""
        return "".join(
            message.params["delta"]
            for message in self.messages
            if message.method == "item/agentMessage/delta" and message.params["turnId"] == turn
        )

    async def read(self) -> None:
        """Reads stdout to its end. Splits at newlines only: a text may hold U+2028."""
        assert self.process.stdout is not None
        rest = b""
        while chunk := await self.process.stdout.read(READ_SIZE):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._receive(json.loads(line))
            async with self._changed:
                self._changed.notify_all()
        with contextlib.suppress(TimeoutError):  # its last words are why; a grandchild may hold the pipe
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._stderr_read.wait()
        for future in self._answers.values():
            if not future.done():
                future.set_exception(ConnectionError(f"the app-server ended: {self.stderr[-2000:]!r}"))

    async def read_stderr(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(READ_SIZE):
            self.stderr += chunk
        self._stderr_read.set()

    def _receive(self, line: dict[str, Any]) -> None:
        if "method" in line:
            message = Message(line["method"], line.get("params", {}), line.get("id"), time.time())
            self.messages.append(message)
        elif line["id"] in self._answers:
            self._answers.pop(line["id"]).set_result(line)


@asynccontextmanager
async def codex(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, *, initialize: dict[str, Any]
) -> AsyncIterator[Codex]:
    """An app-server that has been initialized; its stdin is closed at the end, and it must exit by itself."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(env), cwd=cwd, start_new_session=True
    )
    child = Codex(process)
    readers = [asyncio.create_task(child.read()), asyncio.create_task(child.read_stderr())]
    try:
        child.user_agent = (await child.request("initialize", initialize))["userAgent"]
        child.send({"method": "initialized"})
        yield child
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with suppress(BrokenPipeError, ConnectionResetError):
            await process.stdin.wait_closed()
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*readers)
                await process.wait()
        except TimeoutError:
            process.kill()
            raise
