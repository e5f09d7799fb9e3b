"""Upstreams on loopback: one that answers by script and remembers what it was asked, and one that sends any bytes."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from codex_proxy.parts.upstream.openai_chat.whole_answers import WholeAnswer
from tests.http.serving import Proxy, fake_proxy, user
from tests.parts.upstream.cases import CASES, Case, text


class UpstreamRequest:
    """A request as the upstream got it."""

    def __init__(self, headers: Mapping[str, str], body: dict[str, Any]) -> None:
        self.headers = headers
        self.body = body


class Upstream:
    """A server of Chat Completions. A model called after a case answers as that case does; else the script's next
    answer comes, and behind its end `text("Hello.")`."""

    def __init__(self) -> None:
        self.requests: list[UpstreamRequest] = []
        self.script: list[bytes | Case] = []
        self.models: list[dict[str, Any]] = [{"id": "small", "max_model_len": 8192}, {"id": "large"}]
        self.key: str | None = None
        """The key that it wants."""
        self.listed = 0
        """How often it was asked for its models."""
        self.tells_whole = False
        """It answers in one piece where no stream is asked for, as real servers do; else everything is a stream."""
        self.held = asyncio.Event()
        """While it is clear an answer stops in its middle."""
        self.held.set()
        self.is_held = asyncio.Event()
        self.closed = asyncio.Event()
        """A client has gone away in the middle of an answer."""
        self.peers: set[tuple[str, int]] = set()
        """Connections that requests have come on."""
        self.refuses: Callable[[dict[str, Any]], Case | None] = lambda body: None
        """What it answers to a body that it refuses."""
        self.echoes = False
        """Where there is no script, an answer says what the last message says."""
        self.open: Callable[[], int] = lambda: 0
        """How many connections are open."""
        self.url = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions, and /v1/responses where the script says what is answered there."""
        body = await request.json()
        self.requests.append(UpstreamRequest(request.headers.copy(), body))
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        if refused := self._refused(request):
            return refused
        if case := self.refuses(body):
            return web.Response(status=case.status, body=case.body, headers=case.headers)
        said = text(body["messages"][-1]["content"] if self.echoes else "Hello.")
        given = self.script.pop(0) if self.script else CASES.get(body["model"], said)
        case = given if isinstance(given, Case) else Case(200, {}, [given.decode()], [], "stop")
        if self.tells_whole and case.status == 200 and not body.get("stream"):
            return web.json_response(_whole(case.body))
        response = web.StreamResponse(status=case.status, headers=case.headers)
        try:
            await response.prepare(request)
            data = case.body
            await response.write(data[: len(data) // 2])
            self.is_held.set()
            await self.held.wait()
            await response.write(data[len(data) // 2 :])
        except (ConnectionError, asyncio.CancelledError):
            self.closed.set()
            raise
        if case.cut:
            request.transport.abort()
        return response

    async def list_models(self, request: web.Request) -> web.Response:
        """GET /v1/models"""
        self.listed += 1
        return self._refused(request) or web.json_response({"object": "list", "data": self.models})

    def _refused(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if self.key is None or given == f"Bearer {self.key}":
            return None
        error = {"message": f"Incorrect API key provided: {given}", "code": "invalid_api_key"}
        return web.json_response({"error": error}, status=401)


def _whole(body: bytes) -> dict[str, Any]:
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: {")]
    answer = WholeAnswer()
    for line in lines:
        answer.add(json.loads(line))
    return answer.whole()


@asynccontextmanager
async def upstream(certificate: Path | None = None, port: int = 0) -> AsyncIterator[Upstream]:
    """A scripted upstream; over TLS where a file with its certificate and key is given. `port`: 0 for any."""
    served = Upstream()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", served.chat)
    app.router.add_post("/v1/responses", served.chat)
    app.router.add_post("/v1/embeddings", served.chat)
    app.router.add_get("/v1/models", served.list_models)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    port = runner.addresses[0][1]
    served.open = lambda: len(runner.server.connections) if runner.server is not None else 0
    served.url = f"{'http' if context is None else 'https'}://127.0.0.1:{port}/v1"
    try:
        yield served
    finally:
        await runner.cleanup()


@asynccontextmanager
async def proxy_before(
    url: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    table: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Proxy]:
    """A proxy whose single upstream is there. It is asked once, and however often it fails, unless its `table` says
    otherwise."""
    upstreams = {"default": {"retries": 0, "breaker_failures": 0, **(table or {})}}
    given = {"agent": "openai-chat", "upstream_url": url, "upstreams": upstreams, **settings}
    async with fake_proxy(folder, environment, **given) as proxy:
        yield proxy


NOWHERE = {"url": "http://127.0.0.1:1/v1", "retries": 0}
"""The table of an upstream that is not there."""


@asynccontextmanager
async def several(
    folder: Path, environment: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Proxy]:
    """A server whose first upstream is its default."""
    first = next(iter(settings["upstreams"]))
    async with fake_proxy(folder, environment, **({"agent": first} | settings)) as proxy:
        yield proxy


def ask(model: str, **more: Any) -> dict[str, Any]:
    return user(**more) | {"model": model}


@asynccontextmanager
async def connecting_proxy(status: int = 200) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An HTTP proxy that knows CONNECT alone, or refuses it with this status. Its address, and the heads it gets."""
    heads: list[bytes] = []
    writers: set[asyncio.StreamWriter] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            heads.append(head)
            method, target, _ = head.split(b" ", 2)
            if status != 200 or method != b"CONNECT":
                writer.write(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % status)
                return
            host, _, port = target.decode().rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            writers.add(back)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(copy(reader, back), copy(there, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_upstream(talk: Talk, listing: Talk | None = None) -> AsyncIterator[str]:
    """An upstream that does what `talk` does on each connection of a POST; its address. It has no models, unless
    `listing` answers who asks for them."""
    open_writers: set[asyncio.StreamWriter] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET") and listing is not None:
                await listing(reader, writer)
            elif head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            else:
                await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            open_writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for writer in open_writers:
            writer.transport.abort()
