"""A model server of the tests on loopback: one that answers Chat Completions by script and remembers what it was asked,
and one that sends any bytes; and what such servers send, each in its own way, with what it means:
tests/golden/upstreams/cases.json.

The frames of the cases were written after the answers of real servers (Ollama, vLLM, SGLang, llama.cpp, Groq,
OpenRouter, DeepSeek, Mistral, Azure, LiteLLM), those called `llamacpp_*` and `litellm_*` were recorded from llama.cpp's
own and from LiteLLM's proxy.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from tests.http.serving import Proxy, fake_proxy, user
from tests.response_events import message, response_with
from tests.stream_server import Talk, stream_server

FILE = Path(__file__).parent / "golden" / "upstreams" / "cases.json"


class Case(msgspec.Struct, frozen=True):
    """One answer of an upstream, and what of it reaches a client."""

    status: int
    headers: dict[str, str]
    frames: list[str]
    items: list[tuple[str, str | None, str]]
    """Kind, name of the tool, text (of a call: its arguments)."""
    stop: str
    usage: tuple[int, int] | None = None
    cut: bool = False
    """The connection is reset behind the frames."""
    fault: str | None = None
    message: str = ""
    """What the failure's message has to say."""

    @property
    def body(self) -> bytes:
        """All frames."""
        return "".join(self.frames).encode()


CASES: dict[str, Case] = msgspec.json.decode(FILE.read_bytes(), type=dict[str, Case])


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    } | more


def python_spelling(value: Any) -> bytes:
    """JSON as Python writes it: with blanks behind colons and commas, and with escapes."""
    return json.dumps(value).encode()


SPELLINGS: dict[str, Callable[[Any], bytes]] = {"compact": msgspec.json.encode, "Python's": python_spelling}
"""How servers write JSON."""
spelling = msgspec.json.encode
"""How `event` writes it: see the fixture `each_spelling`."""


def event(value: Any) -> bytes:
    """A server-sent event with this as its data."""
    return b"data: " + spelling(value) + b"\n\n"


def respelled(stream: bytes, spelling: Callable[[Any], bytes]) -> bytes:
    """A stream whose objects are written in this way."""
    return re.sub(rb"(?<=data: )\{.*\}", lambda found: spelling(json.loads(found[0])), stream)


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def stream(*deltas: dict[str, Any], finish: str = "stop") -> bytes:
    """A whole answer as a stream, of these deltas, with its usage."""
    events = [*map(chunk, ({"role": "assistant", "content": ""}, *deltas)), chunk({}, finish)]
    return b"".join(map(event, [*events, chunk({}) | {"choices": [], "usage": USAGE}])) + DONE


def text(said: str) -> bytes:
    """An answer that says this, in two pieces."""
    return stream({"content": said[: len(said) // 2]}, {"content": said[len(said) // 2 :]})


def call(name: str, arguments: str, id: str = "call_a", index: int = 0) -> dict[str, Any]:
    """A delta with a whole call."""
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}


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
        self.whole: Callable[[bytes], Any] | None = None
        """Makes an answer in one piece of a stream, where none is asked for, as real servers do; else everything is a
        stream."""
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
        if self.whole is not None and case.status == 200 and not body.get("stream"):
            return web.json_response(self.whole(case.body))
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


def ask(model: str, **more: Any) -> dict[str, Any]:
    return user(**more) | {"model": model}


@asynccontextmanager
async def raw_upstream(talk: Talk, listing: Talk | None = None) -> AsyncIterator[str]:
    """An upstream that does what `talk` does on each connection of a POST; its address. It has no models, unless
    `listing` answers who asks for them."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET") and listing is not None:
            await listing(reader, writer)
        elif head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        else:
            await talk(reader, writer)

    async with stream_server(connected) as port:
        yield f"http://127.0.0.1:{port}/v1"


class Model:
    """An upstream of one wire that makes the calls of a script."""

    def __init__(self, wire: str, server: Upstream) -> None:
        self._chat = wire == "openai-chat"
        self._server = server

    def calls(self, name: str, arguments: str, id: str = "call_a") -> None:
        """Makes this call next."""
        item = {
            "type": "function_call",
            "id": f"fc_{id}",
            "call_id": id,
            "name": name,
            "arguments": arguments,
        }
        self._server.script.append(
            stream(call(name, arguments, id), finish="tool_calls")
            if self._chat
            else response_with({**item, "status": "completed"})
        )

    def says(self, text: str) -> None:
        self._server.script.append(stream({"content": text}) if self._chat else response_with(message(text)))

    @property
    def body(self) -> dict[str, Any]:
        """The last request."""
        return self._server.requests[-1].body

    @property
    def tools(self) -> list[Any]:
        """The functions that it was offered last."""
        offered = self.body["tools"]
        assert all(tool["type"] == "function" for tool in offered)
        return [tool.get("function", tool) for tool in offered]

    @property
    def called(self) -> list[tuple[str, Any]]:
        """Its earlier calls: name and arguments."""
        if self._chat:
            calls = [call for each in self.body["messages"] for call in each.get("tool_calls", ())]
            made = [call["function"] for call in calls]
        else:
            made = [item for item in self.body["input"] if item["type"] == "function_call"]
        return [(each["name"], json.loads(each["arguments"])) for each in made]

    @property
    def told(self) -> list[str]:
        """The outputs of its calls."""
        if self._chat:
            return [each["content"] for each in self.body["messages"] if each["role"] == "tool"]
        return [item["output"] for item in self.body["input"] if item["type"] == "function_call_output"]
