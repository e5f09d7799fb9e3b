"""Damaged messages of MCP servers: texts are read, and nobody waits for what cannot be."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp.test_utils import TestServer

from codex_proxy.parts.mcp.config import HttpServer, StdioServer
from codex_proxy.parts.mcp.connection import McpConnection
from codex_proxy.parts.mcp.http_transports import sse_transport, streamable_transport
from codex_proxy.parts.mcp.messages import Waiting
from codex_proxy.parts.mcp.stdio_transport import _StdoutLines, stdio_transport
from codex_proxy.parts.mcp.values import McpError, McpFaultKind, McpLimits
from codex_proxy.process.child import Exit
from tests.agents.damage import each_change
from tests.parts.mcp.definitions import command_of
from tests.parts.mcp.raw_server import GOOD, RawServer, app_of
from tests.waiting import PATIENCE

PROGRAM = str(Path(__file__).with_name("raw_server.py"))
TRANSPORTS = ["stdio", "json", "events", "sse"]
every_transport = pytest.mark.parametrize("transport", TRANSPORTS)
LIMITS = McpLimits()


def event(data: bytes) -> bytes:
    return b"event: message\ndata: " + data + b"\n\n"


@asynccontextmanager
async def connected(
    transport: str, framed: Callable[[bytes], bytes] = event, cuts: int = 0
) -> AsyncIterator[tuple[McpConnection, RawServer]]:
    """A connection to the raw server. Over stdio the server is in another process."""
    server = RawServer()
    if transport == "stdio":
        stdio = StdioServer(label="raw", command=sys.executable, args=(PROGRAM,), env={})
        opening: Any = partial(stdio_transport, stdio, command_of(stdio), LIMITS)
        connection = McpConnection(stdio, [opening], LIMITS, lambda: None)
        async with closing(connection):
            yield connection, server
        return
    async with TestServer(app_of(server, framed, cuts)) as served:
        http = HttpServer(label="raw", url=str(served.make_url(f"/{transport}")), headers={})
        opening = partial(sse_transport if transport == "sse" else streamable_transport, http, None, LIMITS)
        connection = McpConnection(http, [opening], LIMITS, lambda: None)
        async with closing(connection):
            yield connection, server


@asynccontextmanager
async def closing(connection: McpConnection) -> AsyncIterator[None]:
    await connection.start()
    try:
        yield
    finally:
        await connection.close()


async def said(connection: McpConnection, answer: bytes, tool: str = "say") -> str:
    """The text of a result, or an error in angle brackets. Fails if nobody answers."""
    given = {"answer": base64.b64encode(answer).decode()}
    try:
        return (await connection.call(tool, given, PATIENCE)).text
    except McpError as error:
        if error.fault.kind is McpFaultKind.TIMED_OUT:
            pytest.fail(f"nobody answered {answer!r}")
        return f"<{error.fault.message}>"


UNREADABLE: Final = "could not be read"
READ: Final[dict[str, tuple[bytes, str]]] = {
    "as it should be": (GOOD, "Hi"),
    "half of a pair": (GOOD.replace(b"Hi", rb"Hi \ud83d"), "Hi \ufffd"),
    "the other half": (GOOD.replace(b"Hi", rb"\ude00 Hi"), "\ufffd Hi"),
    "a whole pair": (GOOD.replace(b"Hi", rb"Hi \ud83d\ude00"), "Hi \U0001f600"),
    "half of a pair in a field": (GOOD.replace(b'"content"', rb'"_meta":{"x":"\ud83d"},"content"'), "Hi"),
    "no UTF-8": (GOOD.replace(b"Hi", b"Hi \xff"), "Hi \ufffd"),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, "Hi"),
    "NaN": (GOOD.replace(b'"content"', b'"_meta":{"x":[NaN,Infinity]},"content"'), "Hi"),
    "a control character": (GOOD.replace(b"Hi", b"Hi\t"), "Hi\t"),
    "blanks": (b"  " + GOOD + b"  ", "Hi"),
    "no version": (GOOD.replace(b'"jsonrpc":"2.0",', b""), "Hi"),
    "another version": (GOOD.replace(b'"2.0"', b"2.0"), "Hi"),
    "the id as a text": (GOOD.replace(b"@ID", b'"@ID"'), "Hi"),
    "the id as a decimal number": (GOOD.replace(b"@ID", b"@ID.0"), "Hi"),
    "no error": (GOOD.replace(b'"result"', b'"error":null,"result"'), "Hi"),
    "no id": (GOOD.replace(b"@ID", b"null"), "Hi"),
    "an id of another type": (GOOD.replace(b"@ID", b"[@ID]"), "Hi"),
    "an id that nobody has had": (GOOD.replace(b"@ID", b"1@ID"), "Hi"),
    "an id of the server's own": (GOOD.replace(b"@ID", b'"x"'), "Hi"),
    "a list": (b"[" + GOOD + b"]", "Hi"),
    "a method of nothing": (GOOD.replace(b"{", b'{"method":null,', 1), "Hi"),
    "an id of very many digits": (GOOD.replace(b"@ID", b'"' + b"9" * 5_000 + b'"'), "Hi"),
    "a field twice": (GOOD.replace(b"{", b'{"id":0,', 1), "Hi"),
}
REFUSED: Final[dict[str, tuple[bytes, str]]] = {
    "an error without an id": (
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}',
        "Parse error",
    ),
    "an error of no id": (
        b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}',
        "Parse error",
    ),
    "an error without a code": (b'{"jsonrpc":"2.0","id":@ID,"error":{"message":"No."}}', "No."),
    "an error with a code in words": (b'{"id":@ID,"error":{"code":"E1","message":"No."}}', "No."),
    "an error as a text": (b'{"jsonrpc":"2.0","id":@ID,"error":"No."}', "No."),
    "an error of nothing": (b'{"jsonrpc":"2.0","id":@ID,"error":{}}', "without a message"),
    "an error and no result": (b'{"jsonrpc":"2.0","id":@ID,"result":null,"error":{"message":"No."}}', "No."),
    "no result": (b'{"jsonrpc":"2.0","id":@ID}', UNREADABLE),
    "null": (b'{"jsonrpc":"2.0","id":@ID,"result":null}', UNREADABLE),
    "a text": (b'{"jsonrpc":"2.0","id":@ID,"result":"Hi"}', UNREADABLE),
    "a number": (b'{"jsonrpc":"2.0","id":@ID,"result":5}', UNREADABLE),
    "a bad escape": (GOOD.replace(b"Hi", rb"H\i"), UNREADABLE),
    "another end": (GOOD[:-1] + b"]", UNREADABLE),
    "an invalid result": (b'{"jsonrpc":"2.0","id":@ID,"result":{"content":5}}', "invalid result"),
}


@every_transport
async def test_damaged_answers_are_read_or_are_an_error(transport: str) -> None:
    async with connected(transport) as (connection, _):
        for name, (answer, text) in READ.items():
            assert await said(connection, answer) == text, name
        for name, (answer, text) in REFUSED.items():
            error = await said(connection, answer)
            assert error.startswith("<"), name
            assert text in error, name
        assert await said(connection, GOOD) == "Hi"


@every_transport
async def test_an_answer_of_which_any_value_is_another_ends_its_call(transport: str) -> None:
    async with connected(transport) as (connection, _):
        whole = json.loads(GOOD.replace(b"@ID", b'"@ID"'))
        for name in whole:
            for value in each_change(whole[name]):
                changed = json.dumps({**whole, name: value}).replace('"@ID"', "@ID")
                await said(connection, changed.encode())
                assert connection.alive, changed


@every_transport
async def test_an_answer_that_breaks_off_anywhere_is_an_error(transport: str) -> None:
    async with connected(transport) as (connection, _):
        for place in range(2, len(GOOD)):
            assert (await said(connection, GOOD[:place])).startswith("<"), place
        assert await said(connection, GOOD) == "Hi"


NOISE: Final = (
    b"ping",
    b"{}",
    b"null",
    b"5",
    b"[]",
    b'"x"',
    b'{"level":"info"}',
    b'{"level":"error","error":"x"}',
    b'{"level":"error","er',
    b'{"id":null}',
    b'{"level":"info","id":1,"msg":"handling"}',
    b'{"level":"error","id":1,"error":"retrying"}',
    b"{ a: 1",
    b"\xff",
)


async def test_noise_around_a_line_is_passed_over() -> None:
    async with connected("stdio") as (connection, _):
        for noise in NOISE:
            assert await said(connection, noise + b"\n" + GOOD + b"\n" + noise) == "Hi", noise
            assert await said(connection, noise + b"\r" + GOOD) == "Hi", noise
        assert await said(connection, b"\n\n  \n" + GOOD + b"\r") == "Hi"
        assert await said(connection, GOOD + b"\n" + GOOD) == "Hi"


@pytest.mark.parametrize("size", [1, 7])
async def test_lines_of_a_server_are_read_however_they_are_cut(size: int) -> None:
    whole = GOOD.replace(b"@ID", b"1")
    lines, said = _StdoutLines(1000), whole + b"\n" + whole + b"\r\n" + whole
    for at in range(0, len(said), size):
        lines.on_output(said[at : at + size])
    lines.on_end(Exit(0, None, ""))
    assert [line async for line in lines if line] == [whole] * 3


def around(noise: bytes, data: bytes) -> bytes:
    return event(noise) + event(data) + event(noise)


FRAMES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "CR": lambda data: event(data).replace(b"\n", b"\r"),
    "CRLF": lambda data: event(data).replace(b"\n", b"\r\n"),
    "no event line": lambda data: b"data:" + data + b"\n\n",
    "several data lines": lambda data: b"data: " + data.replace(b",", b",\ndata: ") + b"\n\n",
    "an event twice": lambda data: event(data) + event(data),
    "an id": lambda data: b"id: 7\nretry: 10\n" + event(data),
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + event(data),
    "comments": lambda data: b": 1\n\n" + event(data) + b": 2\n\n",
    "empty events": lambda data: b"data:\n\ndata\n\n\n\nevent: ping\n\nid: 1\n\n" + event(data),
    **{f"keep-alive {noise!r}": partial(around, noise) for noise in NOISE},
}


@pytest.mark.parametrize("transport", ["events", "sse"])
@pytest.mark.parametrize("frame", FRAMES)
async def test_events_are_read_however_they_are_framed_and_cut(transport: str, frame: str) -> None:
    for cuts in (0, 1):
        async with connected(transport, FRAMES[frame], cuts) as (connection, _):
            for name in ("as it should be", "half of a pair", "no UTF-8"):
                answer, text = READ[name]
                assert await said(connection, answer) == text, (name, cuts)


async def test_the_last_event_of_a_stream_may_lack_its_blank_line() -> None:
    async with connected("events", lambda data: event(data).rstrip(b"\n")) as (connection, _):
        assert await said(connection, GOOD) == "Hi"


@pytest.mark.parametrize("transport", ["stdio", "sse"])
async def test_a_lost_answer_is_an_error_for_every_call_that_may_wait_for_it(transport: str) -> None:
    async with connected(transport) as (connection, _):
        refused = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}'
        asked = [said(connection, answer) for answer in (b"", b"", b"", refused)]
        assert all("Parse error" in each for each in await asyncio.gather(*asked))
        assert await said(connection, GOOD) == "Hi"


@pytest.mark.parametrize("transport", ["stdio", "sse"])
@pytest.mark.parametrize(
    "request_",
    [
        b'{"jsonrpc":"2.0","id":7,"method":"roots/list","params":[1]}',
        b'{"jsonrpc":"2.0","id":"x","method":"roots/list","params":5}',
        b'{"jsonrpc":"2.0","id":7,"method":5,"params":{}}',
        b'{"id":7,"method":"roots/list"}',
        rb'{"jsonrpc":"2.0","id":7,"method":"roots/list","params":{"x":"\ud83d"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"roots/list","params":{"x',
    ],
)
async def test_a_request_of_the_server_that_cannot_be_read_is_answered(
    transport: str, request_: bytes
) -> None:
    async with connected(transport) as (connection, server):
        assert await said(connection, request_, "ask") == "Hi"
        if transport == "sse":
            [answer] = server.answers
            assert answer["id"] == (7 if b'"id":7' in request_ else "x")


def test_what_nobody_waits_for_is_not_answered() -> None:
    waiting = Waiting()
    assert waiting.read(b'{"jsonrpc":"2.0","id":null,"error":{"message":"x"}}') == []
    assert waiting.read(b'{"jsonrpc":"2.0","resu') == []
    waiting.note_sent({"id": 1, "method": "tools/call"})
    waiting.note_sent({"method": "notifications/cancelled", "params": {"requestId": 1}})
    assert waiting.read(b'{"jsonrpc":"2.0","resu') == []
    assert waiting.read(b"not json") == waiting.read(b'{"level":"info"}') == waiting.read(b"[1]") == []
