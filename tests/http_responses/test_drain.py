"""SIGTERM: the listener closes, what runs ends in its time, and every request that came whole gets an answer."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from codex_proxy.http import server
from tests.http.serving import user
from tests.http_responses.asking import prompt_for, proxy_and_client
from tests.http_responses.killing import server_process
from tests.waiting import PATIENCE, poll

HELD_PROMPT = '[[fake:text say="one two three" hold=1]]'
KEPT, STEADY = 20, 10


@dataclass
class Reply:
    """An answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"

    @property
    def is_stopping(self) -> bool:
        """Whether it says, in OpenAI's shape, that the server stops and when to come again."""
        error = json.loads(self.body)["error"]
        return (
            (self.status, error["code"]) == (503, "service_unavailable")
            and error["type"] in ("server_error", "service_unavailable")
            and int(self.headers["retry-after"]) > 0
        )


class Line:
    """A connection that is kept: requests one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, method: str, path: str, body: Any = None, *, upto: int | None = None) -> bytes:
        """Sends a request, or so many bytes of it; what is left of it comes back."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        whole = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        self.writer.write(whole[:upto])
        return b"" if upto is None else whole[upto:]

    async def hear(self) -> Reply:
        """The answer. Raises `IncompleteReadError` or `ConnectionError` where the connection ends instead."""
        async with asyncio.timeout(PATIENCE):
            first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = b""
                while size := int(await self.reader.readline(), 16):
                    body += await self.reader.readexactly(size)
                    await self.reader.readexactly(2)
                await self.reader.readexactly(2)
        return Reply(int(first.split()[1]), headers, body)

    async def ask(self, method: str, path: str, body: Any = None) -> Reply:
        self.send(method, path, body)
        return await self.hear()


@asynccontextmanager
async def line(url: str) -> AsyncIterator[Line]:
    """A connection that the server has accepted: it has answered on it."""
    reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    try:
        kept = Line(reader, writer)
        assert (await kept.ask("GET", "/livez")).status == 200
        yield kept
    finally:
        writer.transport.abort()


def chat(text: str, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    return "POST", "/v1/chat/completions", user(text, **fields)


async def no_longer_listens(url: str) -> None:
    async def refuses() -> bool:
        try:
            _, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
        except ConnectionRefusedError:
            return True
        writer.transport.abort()
        return False

    await poll(refuses)


async def ask_steadily(kept: Line, turn: bool) -> list[Reply]:
    """One request after the other until an answer says that the connection ends. Each gets its answer."""
    replies: list[Reply] = []
    while not replies or not replies[-1].closes:
        replies.append(await (kept.ask(*chat(prompt_for("ok"))) if turn else kept.ask("GET", "/v1/models")))
    return replies


def settings_for(folder: Path, drain_ms: int) -> dict[str, str]:
    return {"PROXY_DRAIN_MS": str(drain_ms), "STREAM_RELEASE_FILE": str(folder / "go")}


@pytest.mark.exhaustive
async def test_every_request_on_an_accepted_connection_is_answered_while_the_server_drains(
    tmp_path: Path,
) -> None:
    settings = settings_for(tmp_path, 60_000)
    async with AsyncExitStack() as stack:
        url, process = await stack.enter_async_context(server_process(tmp_path, settings))
        lines = [await stack.enter_async_context(line(url)) for _ in range(KEPT + STEADY + 3)]
        upload, stream, whole, *lines = lines
        steady = [
            asyncio.create_task(ask_steadily(lines.pop(), turn=number % 2 == 0)) for number in range(STEADY)
        ]
        rest = upload.send(*chat("A long story. " * 1000), upto=5000)
        stream.send(*chat(HELD_PROMPT, stream=True))
        await stream.reader.readuntil(b"one")
        whole.send(*chat(HELD_PROMPT))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        resting, working = [
            await stack.enter_async_context(session.ws_connect(f"{url}/v1/responses")) for _ in range(2)
        ]
        await working.send_json({"type": "response.create", "model": "codex-5", "input": HELD_PROMPT})
        while (await working.receive_json())["type"] != "response.output_text.delta":
            pass

        await asyncio.gather(
            *(kept.ask("GET", "/livez") for kept in lines)
        )  # an idle connection would be closed
        process.send_signal(signal.SIGTERM)
        await no_longer_listens(url)

        ready = await lines[0].ask("GET", "/readyz")
        assert (ready.status, ready.closes) == (503, True)
        background = {"model": "codex-5", "input": prompt_for("ok"), "background": True}
        for number, kept in enumerate(lines[1:]):
            streams = {"stream": number % 4 < 2}
            reply = await (
                kept.ask(*chat(prompt_for("ok"), **streams))
                if number % 2
                else kept.ask("POST", "/v1/responses", background | streams)
            )
            assert reply.is_stopping, reply
            assert reply.closes
        upload.writer.write(rest)
        assert (await upload.hear()).is_stopping
        for replies in await asyncio.gather(*steady):
            assert all(reply.status == 200 or reply.is_stopping for reply in replies)
        assert await rest_of(resting) == ["error"]

        (tmp_path / "go").write_text("go")
        assert b"three" in (await whole.hear()).body
        async with asyncio.timeout(PATIENCE):
            assert (await stream.reader.readuntil(b"[DONE]")).count(b"three") == 1
            assert (await rest_of(working))[-2:] == ["response.completed", "error"]
            assert await process.wait() == 0
    with closing(sqlite3.connect(tmp_path / "state" / "store.sqlite3")) as connection:
        assert connection.execute("SELECT count(*) FROM responses WHERE background = 1").fetchone() == (0,)


async def rest_of(socket: aiohttp.ClientWebSocketResponse) -> list[str]:
    """The types of the frames until the server says that it goes away."""
    types = []
    while (message := await socket.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.TEXT:
        types.append(json.loads(message.data)["type"])
    assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)
    return types


@pytest.mark.exhaustive
async def test_a_stream_that_does_not_end_in_time_gets_an_error_before_its_connection_is_closed(
    tmp_path: Path,
) -> None:
    settings = settings_for(tmp_path, 200)
    async with AsyncExitStack() as stack:
        url, process = await stack.enter_async_context(server_process(tmp_path, settings))
        upload, stream, whole, follower = [await stack.enter_async_context(line(url)) for _ in range(4)]
        upload.send(*chat("A long story. " * 1000), upto=5000)
        stream.send(*chat(HELD_PROMPT, stream=True))
        await stream.reader.readuntil(b"one")
        whole.send(*chat(HELD_PROMPT))
        body = {"model": "codex-5", "input": HELD_PROMPT, "background": True, "stream": True}
        follower.send("POST", "/v1/responses", body)
        await follower.reader.readuntil(b"response.output_text.delta")

        process.send_signal(signal.SIGTERM)

        assert (await upload.hear()).is_stopping
        assert (await whole.hear()).is_stopping
        async with asyncio.timeout(PATIENCE):
            last = await stream.reader.read()
            assert b'"service_unavailable"' in last
            last = await follower.reader.read()
            assert b"event: response.failed" in last
            assert await process.wait() == 0


async def test_a_connection_that_waits_to_be_accepted_when_the_listener_closes_is_served(
    tmp_path: Path,
) -> None:
    async with proxy_and_client(tmp_path) as (proxy, _):
        waiting = [socket.create_connection(("127.0.0.1", proxy.server.port)) for _ in range(5)]
        for each in waiting:  # no other task has run since: they wait in the system's queue
            each.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert proxy.server.runner is not None
        await proxy.server.runner.stop_listening()
        for each in waiting:
            each.setblocking(False)
            async with asyncio.timeout(PATIENCE):
                answer = await asyncio.get_running_loop().sock_recv(each, 1000)
            assert answer.startswith(b"HTTP/1.1 200 OK"), answer
            each.close()


async def test_a_connection_is_closed_when_it_has_been_idle_for_a_while_and_answered_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy_and_client(tmp_path) as (proxy, _), line(proxy.url) as idle, line(proxy.url) as used:
        runner = proxy.server.runner
        assert runner is not None
        monkeypatch.setattr(server, "IDLE_SECONDS", 0.0)
        used.send("GET", "/livez")  # no other task has run since: it waits in the system's queue
        await runner.stop_listening()
        async with asyncio.timeout(PATIENCE):
            assert await idle.reader.read() == b""
            assert (await used.hear()).status == 200
            assert await used.reader.read() == b""
            assert not runner.has_connections


async def test_a_connection_is_closed_after_the_answer_that_was_being_sent(tmp_path: Path) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with proxy_and_client(tmp_path, environment) as (proxy, _), line(proxy.url) as stream:
        stream.send(*chat(HELD_PROMPT, stream=True))
        await stream.reader.readuntil(b"one")
        proxy.server.runs.begin_drain()
        (tmp_path / "go").write_text("go")
        async with asyncio.timeout(PATIENCE):
            assert b"[DONE]" in await stream.reader.read()
