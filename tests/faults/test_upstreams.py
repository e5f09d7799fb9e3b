"""The faults of a model server: at every place of an answer, on both sides of every timer, asked for in every way.

The rows are a matrix. A fault comes when what has to come before it has reached the client: at once, behind a
keep-alive, behind a first word, or behind a keep-alive after that. No answer of it may look as if it had ended well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.places import APIS, PLACES, SOON, answer_at, assert_failed
from tests.http.serving import Proxy
from tests.model_server import DONE, chunk, event, proxy_before, raw_upstream
from tests.stream_server import Talk
from tests.weather_tool import CHAT_WEATHER

pytestmark = pytest.mark.part("upstream")

HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNKED: Final = HEAD.replace(b"connection: close", b"transfer-encoding: chunked")
LONG: Final = HEAD.replace(b"connection: close", b"content-length: 99999")
ERROR: Final = {"error": {"message": "It broke.", "type": "server_error", "code": None}}


def response(kind: str, status: str | None, **more: Any) -> bytes:
    """The last event of an answer of the Responses API."""
    output = [] if "output" not in more else more.pop("output")
    body = {"id": "resp_1", "object": "response", "status": status, "output": output, "usage": None, **more}
    return event({"type": kind, "response": body})


@dataclass(frozen=True)
class Wire:
    """An API of an upstream: how an answer of it begins, and how its first word comes."""

    agent: str
    begin: bytes
    word: bytes
    tools: bool = False
    """Requests have a tool, so that this server reads the answer instead of passing its bytes on."""


CREATED: Final = event({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}})
WIRES: Final = {
    "passed on": Wire(
        "openai-chat", event(chunk({"role": "assistant", "content": ""})), event(chunk({"content": "Hi"}))
    ),
    "read": Wire(
        "openai-chat",
        event(chunk({"role": "assistant", "content": ""})),
        event(chunk({"content": "Hi"})),
        tools=True,
    ),
    "responses": Wire(
        "openai-responses",
        CREATED,
        event({"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hi"}),
    ),
}

FAULTS: Final[dict[str, tuple[bytes, bytes]]] = {
    "the connection is closed": (HEAD, b""),
    "an answer shorter than its length": (LONG, b""),
    "a chunk without its end": (CHUNKED, b""),
    "a line is cut off": (HEAD, b'data: {"choi'),
    "an event with an error": (HEAD, event(ERROR)),
    "an event called error": (HEAD, b"event: error\n" + event({"message": "It broke."})),
    "an error as text": (HEAD, event({"error": "It broke."})),
    "no JSON": (HEAD, b"data: {not JSON}\n\n"),
}
"""What goes wrong in each API, as the head of the answer and the bytes behind its beginning."""
OF_CHAT: Final[dict[str, tuple[bytes, bytes]]] = {
    "a finish reason that is an error": (HEAD, event(chunk({}, "error")) + DONE),
}
OF_RESPONSES: Final[dict[str, tuple[bytes, bytes]]] = {
    "failed": (HEAD, response("response.failed", "failed", error={"code": "server_error", "message": "No."})),
    "completed, with a failed response in it": (
        HEAD,
        response("response.completed", "failed", error={"code": "server_error", "message": "No."}),
    ),
    "completed, with an error in it": (
        HEAD,
        response("response.completed", None, error={"code": "server_error", "message": "No."}),
    ),
    "completed, without a response": (HEAD, event({"type": "response.completed"})),
    "nothing but the end of a stream": (HEAD, DONE),
}
WHOLE: Final[dict[str, bytes]] = {
    "an error with the status 200": json.dumps(ERROR).encode(),
    "an error of FastAPI with the status 200": b'{"detail": "It broke."}',
    "an empty object": b"{}",
    "no choices": b'{"object": "chat.completion", "choices": []}',
    "a page": b"<html>It broke.</html>",
    "nothing": b"",
    "only the end of a stream": DONE,
    "only comments": b": one\n\n: two\n\n",
    "a response that failed": (
        b'{"object": "response", "status": "failed", "output": [], "error": {"message": "No."}}'
    ),
    "a response that still runs": b'{"object": "response", "status": "in_progress", "output": []}',
    "a response that is queued": b'{"object": "response", "status": "queued", "output": []}',
}
"""What is wrong with an answer as a whole; of both APIs."""


def faults_of(wire: Wire) -> dict[str, tuple[bytes, bytes]]:
    """The faults that an answer in this API can have."""
    return FAULTS | (OF_RESPONSES if wire.agent == "openai-responses" else OF_CHAT)


@dataclass
class ScriptedScene:
    """A server before an upstream that a test scripts."""

    proxy: Proxy
    before: bytes = b""
    """What the upstream sends at once."""
    then: bytes = b""
    """What it sends when `go` is set."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    closes: bool = True
    """Whether the connection ends behind that."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What the upstream does on each connection."""
        if self.before:
            writer.write(self.before)
            await writer.drain()
        await self.go.wait()
        writer.write(self.then)
        await writer.drain()
        if not self.closes:
            await reader.read()


@asynccontextmanager
async def serve_agent(agent: str, folder: Path, **settings: Any) -> AsyncIterator[ScriptedScene]:
    """A server whose streams get a keep-alive after 20 ms of silence."""
    talks: list[Talk] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await talks[0](reader, writer)

    async with (
        raw_upstream(talk) as url,
        proxy_before(url, folder, agent=agent, **(SOON | settings)) as proxy,
    ):
        there = ScriptedScene(proxy)
        talks.append(there.talk)
        yield there


def request_of(api: str, wire: Wire, *, stream: bool) -> tuple[str, dict[str, Any]]:
    """Path and body."""
    say = [{"role": "user", "content": "Hi"}]
    body: dict[str, Any] = {"model": "m", "stream": stream}
    function = CHAT_WEATHER["function"]
    assert isinstance(function, dict)
    if api == "responses":
        tools = [{"type": "function", **function}]
        return "/v1/responses", body | {"input": say} | ({"tools": tools} if wire.tools else {})
    if api == "messages":
        tool = {"name": "get_weather", "input_schema": function["parameters"]}
        return "/v1/messages", body | {"max_tokens": 100, "messages": say} | (
            {"tools": [tool]} if wire.tools else {}
        )
    return "/v1/chat/completions", body | {"messages": say} | (
        {"tools": [CHAT_WEATHER]} if wire.tools else {}
    )


async def answer_of(
    there: ScriptedScene, api: str, wire: Wire, place: str, *, stream: bool
) -> tuple[int, str]:
    """The status and the whole text of an answer, whose fault comes at this place."""
    path, body = request_of(api, wire, stream=stream)
    there.go.clear()
    return await answer_at(there.proxy, path, body, place, there.go.set)


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, wire in WIRES.items() for fault in faults_of(wire)]
)
async def test_no_fault_of_an_upstream_looks_like_a_good_end(name: str, fault: str, tmp_path: Path) -> None:
    wire = WIRES[name]
    head, then = faults_of(wire)[fault]
    async with serve_agent(wire.agent, tmp_path) as there:
        for api in APIS:
            for place in PLACES:
                said = wire.begin + (wire.word if "word" in place else b"")
                if head is CHUNKED:
                    said = b"%x\r\n" % len(said) + said + b"\r\n"
                there.before, there.then = head + said, then
                status, text = await answer_of(there, api, wire, place, stream=True)
                assert_failed(api, status, text)
            status, text = await answer_of(there, api, wire, "at once", stream=False)
            assert status >= 400, f"{api}: {text}"
        await there.proxy.settled()


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("fault", WHOLE)
async def test_no_failed_answer_looks_like_a_good_one(name: str, fault: str, tmp_path: Path) -> None:
    wire = WIRES[name]
    async with serve_agent(wire.agent, tmp_path) as there:
        there.before, there.then = HEAD, WHOLE[fault]
        for api in APIS:
            for place in ("at once", "behind a keep-alive"):
                status, text = await answer_of(there, api, wire, place, stream=True)
                assert_failed(api, status, text)
            status, text = await answer_of(there, api, wire, "at once", stream=False)
            assert status >= 400, f"{api}: {text}"


LIMITS: Final = {
    "upstream_first_byte_timeout": ("", "before its first byte"),
    "first_event_timeout": ("begin", "before its first word"),
    "upstream_idle_timeout": ("word", "behind a word"),
    "idle_timeout": ("word", "behind a word"),
    "total_timeout": ("word", "behind a word"),
}
"""The time limits of a turn; where an answer stops so that each of them ends it."""


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("keepalive", [20, 0], ids=["the keep-alive comes first", "no keep-alive"])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", WIRES)
async def test_silence_ends_an_answer_as_failed_whichever_limit_ends_it(
    name: str, limit: str, keepalive: int, tmp_path: Path
) -> None:
    wire = WIRES[name]
    name_in_table = limit.removeprefix("upstream_")
    table = {name_in_table: 0.1} if name_in_table != limit else {}
    settings: dict[str, Any] = {} if table else {limit: 0.1}
    settings |= {"heartbeat_interval": keepalive / 1000}
    async with serve_agent(wire.agent, tmp_path, table=table, **settings) as there:
        stops = LIMITS[limit][0]
        there.before = (HEAD if stops else b"") + {
            "": b"",
            "begin": wire.begin,
            "word": wire.begin + wire.word,
        }[stops]
        there.closes = False
        answers = await asyncio.gather(
            *(answer_of(there, api, wire, "never", stream=stream) for api in APIS for stream in (True, False))
        )
        for api, (status, text) in zip([api for api in APIS for _ in range(2)], answers, strict=True):
            assert_failed(api, status, text)


NOTHING: Final = {
    "nothing": ({}, "no-output"),
    "an empty text": ({"content": ""}, "no-output"),
    "reasoning alone": ({"reasoning": "Hm"}, "reasoning-only"),
}
"""What an answer that ends well may have in place of a text or a call, and the reason that its client gets."""


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("said", NOTHING)
@pytest.mark.parametrize("name", ["passed on", "read"])
async def test_an_answer_without_text_and_call_says_why(name: str, said: str, tmp_path: Path) -> None:
    wire, (delta, reason) = WIRES[name], NOTHING[said]
    async with serve_agent(wire.agent, tmp_path, heartbeat_interval=0) as there:
        for api in APIS:
            for stream in (True, False):
                path, body = request_of(api, wire, stream=stream)
                there.before, there.then = (
                    HEAD + wire.begin + event(chunk(delta)),
                    event(chunk({}, "stop")) + DONE,
                )
                there.go.set()
                answer = await there.proxy.send("POST", path, body)
                assert answer.status == 200
                if not stream or (name == "passed on" and api == "chat" and reason == "no-output"):
                    assert answer.headers.get("x-codex-empty") == reason, f"{api} {stream} {answer.text}"


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("said", NOTHING)
@pytest.mark.parametrize("name", ["passed on", "read"])
async def test_an_answer_without_text_and_call_says_why_behind_a_keep_alive(
    name: str, said: str, tmp_path: Path
) -> None:
    wire, (delta, reason) = WIRES[name], NOTHING[said]
    async with serve_agent(wire.agent, tmp_path) as there:
        there.before = HEAD + wire.begin
        there.then = event(chunk(delta)) + event(chunk({}, "stop")) + DONE
        for api in APIS:
            status, text = await answer_of(there, api, wire, "behind a keep-alive", stream=True)
            assert (status, text.count(f": x-codex-empty: {reason}\n\n")) == (200, 1), f"{api}: {text}"
