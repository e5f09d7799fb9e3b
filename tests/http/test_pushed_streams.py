"""A stream whose bytes are written in the call that logs their events, with a log that is filled by hand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from codex_proxy.core.events import Event, ItemStarted, Stop, TextDelta, TurnEnded, TurnStarted
from codex_proxy.core.items import Message
from codex_proxy.http.exchange import LogReader, TurnTimings, stream_response, whole_response
from codex_proxy.http.sse import EventStream
from codex_proxy.runs.event_log import EventLog, Push
from codex_proxy.surfaces.chat.render import ChatRenderer
from tests.http.serving import Hands, frames_of
from tests.waiting import PATIENCE, eventually

BIG = "x" * 20_000


class StreamServer:
    """A server that streams one log to whoever asks, and is the log's source."""

    continued = False

    def __init__(self) -> None:
        self.log = EventLog()
        self.renderer = ChatRenderer(id="chatcmpl-1", created=1, model="m", stream=True)
        self.keepalive = 0.0
        self.closed = asyncio.Event()
        self.stream: EventStream | None = None
        self.waits = 0
        """How often the request's task has begun to wait."""
        self.parked = False
        """Whether the request's task waits."""
        self._cursor = self.log.cursor()

    @property
    def finished(self) -> bool:
        return self._cursor.finished

    @property
    def has_long_answer(self) -> bool:
        return self._cursor.has_long_answer

    async def wait(self, push: Push | None = None) -> None:
        self.waits += 1
        self.parked = True
        try:
            await self._cursor.wait(push)
        finally:
            self.parked = False

    def take(self) -> list[Event]:
        return self._cursor.take()

    def close(self) -> None:
        self._cursor.detach()
        self.closed.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # who does not read is noticed soon
        self.stream = EventStream(request, dict)
        reader = LogReader(self, self.renderer, TurnTimings(Hands()))
        return await stream_response(
            reader, self.stream, keepalive=self.keepalive, comment=lambda: b": idle\n\n"
        )

    async def begin(self) -> None:
        """Logs the first word, and returns when the request's task waits behind it."""
        self.log.append([TurnStarted(), ItemStarted(Message("m")), TextDelta("m", "0 ")], 10)
        await eventually(lambda: self.stream is not None and self.stream.begun and self.parked)

    def say(self, text: str, size: int = 10) -> None:
        self.log.append([TextDelta("m", text)], size)

    def end(self) -> None:
        self.log.append([TurnEnded(Stop.STOP, "provider")], 10, ended=True)


@pytest.fixture
def stream_server() -> StreamServer:
    return StreamServer()


@pytest.fixture
async def url(stream_server: StreamServer) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/", stream_server.handle)
    async with TestServer(app, handler_cancellation=True) as server:
        yield str(server.make_url("/"))


class Answer:
    """An answer that is read when it has begun, with the first word."""

    def __init__(self, asking: asyncio.Task[aiohttp.ClientResponse]) -> None:
        self._asking = asking

    async def text(self) -> str:
        return await (await self._asking).text()

    async def until(self, said: bytes) -> bytes:
        got, content = b"", (await self._asking).content
        while said not in got:
            got += await content.readany()
            assert not content.at_eof(), got
        return got

    async def leave(self) -> None:
        (await self._asking).close()


@pytest.fixture
async def answer(url: str) -> AsyncIterator[Answer]:
    """The answer of a client that asks at once."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
        asking = asyncio.create_task(session.get(url))
        yield Answer(asking)
        asking.cancel()
        for reply in await asyncio.gather(asking, return_exceptions=True):
            if isinstance(reply, aiohttp.ClientResponse):
                reply.close()


def text_in(text: str) -> str:
    chunks = [frame for frame in frames_of(text) if isinstance(frame, dict) and "choices" in frame]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


async def test_a_delta_is_written_without_a_step_of_the_requests_task(
    stream_server: StreamServer, answer: Answer
) -> None:
    await stream_server.begin()
    await answer.until(b'"0 "')
    waits = stream_server.waits
    for number in range(1, 6):
        stream_server.say(f"{number} ")
        await answer.until(b'"%d "' % number)
    assert stream_server.waits == waits
    stream_server.end()
    assert (await answer.text()).endswith("data: [DONE]\n\n")


async def test_neither_the_headers_nor_events_without_bytes_resume_the_requests_task(
    stream_server: StreamServer, answer: Answer
) -> None:
    await eventually(lambda: stream_server.parked)
    stream_server.log.append([TurnStarted()], 10)
    await asyncio.sleep(0)
    stream_server.log.append([ItemStarted(Message("m")), TextDelta("m", "0 ")], 10)
    await answer.until(b'"0 "')
    assert stream_server.parked
    assert stream_server.waits == 1
    stream_server.end()
    assert text_in(await answer.text()) == ""


async def test_the_last_frames_are_sent_together_with_the_end(
    stream_server: StreamServer, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stream_server.begin()
    await answer.until(b'"0 "')
    assert stream_server.stream is not None
    assert stream_server.stream._writer is not None
    transport = stream_server.stream._writer.transport
    assert transport is not None
    sent: list[bytes] = []
    write = transport.write

    def spied(data: bytes) -> None:
        sent.append(bytes(data))
        write(data)

    monkeypatch.setattr(transport, "write", spied)
    stream_server.end()
    await answer.text()
    assert len(sent) == 1, "each wakes the client"
    assert sent[0].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_frames_keep_their_order_however_they_are_written(
    stream_server: StreamServer, answer: Answer
) -> None:
    await stream_server.begin()
    expected = "0 "
    for number in range(1, 40):
        if number % 3 == 0:
            stream_server._cursor.wakeup.wake(
                last=True
            )  # the task runs next, and writes what comes before it does
        stream_server.say(f"{number} ")
        expected += f"{number} "
        if number % 7 == 0:
            await eventually(lambda: stream_server.parked)
    stream_server.end()
    assert text_in(await answer.text()) == expected


async def test_events_that_a_slow_client_does_not_take_stay_in_the_log(
    stream_server: StreamServer, url: str
) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        port = int(url.rstrip("/").rpartition(":")[2])
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        await stream_server.begin()
        assert stream_server.stream is not None
        count = 100  # 2 MB: more than both ends hold
        for number in range(1, count + 1):
            stream_server.say(f"<{number}>{BIG}", len(BIG))
            await asyncio.sleep(0)
        assert stream_server.log.backlog > count * len(BIG) // 2
        assert not stream_server.stream.writable
        writer = stream_server.stream._writer
        assert writer is not None
        assert writer.transport is not None
        assert writer.transport.get_write_buffer_size() < 10 * len(BIG), "the rest is in the log"
        stream_server.end()
        got = bytearray()
        while chunk := await asyncio.wait_for(loop.sock_recv(client, 1 << 16), PATIENCE):
            got += chunk
    body = bytes(got).partition(b"\r\n\r\n")[2].decode()
    assert text_in(body) == "0 " + "".join(f"<{number}>{BIG}" for number in range(1, count + 1))
    assert stream_server.log.backlog == 0


async def test_a_client_that_reads_again_is_pushed_to_again(
    stream_server: StreamServer, answer: Answer
) -> None:
    await stream_server.begin()
    assert stream_server.stream is not None
    for _ in range(100):
        stream_server.say(BIG, len(BIG))
        await asyncio.sleep(0)
        if not stream_server.stream.writable:
            break
    stream_server.say("last of them")
    assert stream_server.log.backlog > 0
    await answer.until(b"last of them")
    await eventually(
        lambda: stream_server.parked and stream_server.stream is not None and stream_server.stream.writable
    )
    waits = stream_server.waits
    stream_server.say("pushed")
    await answer.until(b"pushed")
    assert stream_server.waits == waits


async def test_an_error_of_the_renderer_ends_the_stream_and_leaves_whoever_logs_alone(
    stream_server: StreamServer, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stream_server.begin()
    feed = stream_server.renderer.feed

    def breaks(events: list[Event]) -> bytes:
        if any(isinstance(event, TextDelta) and event.text == "bad" for event in events):
            raise ValueError("secret")
        return feed(events)

    monkeypatch.setattr(stream_server.renderer, "feed", breaks)
    stream_server.say("good")
    stream_server.say("bad")  # does not raise
    stream_server.say("behind it")
    frames = frames_of(await answer.text())
    assert frames[-2]["error"]["code"] == "internal_error"
    assert frames[-1] == "[DONE]"
    assert [str(frames).count(each) for each in ("good", "behind it", "secret")] == [1, 0, 0]
    assert stream_server.closed.is_set()


async def test_a_client_that_leaves_between_two_pushes_closes_the_source(
    stream_server: StreamServer, answer: Answer
) -> None:
    await stream_server.begin()
    stream_server.say("1 ")
    await answer.until(b'"1 "')
    await answer.leave()
    await asyncio.wait_for(stream_server.closed.wait(), PATIENCE)
    stream_server.say("2 ")  # nobody is there, and nothing happens
    assert stream_server.log.backlog == 0


async def test_a_connection_that_is_gone_under_a_push_closes_the_source(
    stream_server: StreamServer, answer: Answer
) -> None:
    await stream_server.begin()
    assert stream_server.stream is not None
    writer = stream_server.stream._writer
    assert writer is not None
    assert writer.transport is not None
    writer.transport.abort()
    stream_server.say("1 ")  # does not raise
    await asyncio.wait_for(stream_server.closed.wait(), PATIENCE)


async def test_silence_behind_a_push_brings_comments(stream_server: StreamServer, answer: Answer) -> None:
    stream_server.keepalive = 0.02
    await stream_server.begin()
    stream_server.say("1 ")
    await answer.until(b'"1 "')
    await answer.until(b": idle")
    stream_server.say("2 ")
    await answer.until(b'"2 "')
    stream_server.end()
    assert (await answer.text()).endswith("data: [DONE]\n\n")


async def test_a_whole_answer_is_read_without_waking_its_task(stream_server: StreamServer) -> None:
    renderer = ChatRenderer(id="chatcmpl-1", created=1, model="m", stream=False)
    reader = LogReader(stream_server, renderer, TurnTimings(Hands()))
    answering = asyncio.create_task(whole_response(reader, dict))
    await eventually(lambda: stream_server.parked)
    stream_server.log.append([TurnStarted(), ItemStarted(Message("m"))], 10)
    for word in ("one ", "two ", "three"):
        stream_server.say(word)
        assert stream_server.log.backlog == 0
        await asyncio.sleep(0)
    assert stream_server.waits == 1
    stream_server.end()
    async with asyncio.timeout(PATIENCE):
        answer = await answering
    assert isinstance(answer.body, bytes)
    assert b'"content":"one two three"' in answer.body
    assert stream_server.closed.is_set()


async def test_a_whole_answer_fails_with_what_reading_it_raises(stream_server: StreamServer) -> None:
    class Broken(LogReader):
        def take(self) -> bytes:
            raise ArithmeticError

    renderer = ChatRenderer(id="chatcmpl-1", created=1, model="m", stream=False)
    answering = asyncio.create_task(
        whole_response(Broken(stream_server, renderer, TurnTimings(Hands())), dict)
    )
    await eventually(lambda: stream_server.parked)
    stream_server.say("one ")
    with pytest.raises(ArithmeticError):
        async with asyncio.timeout(PATIENCE):
            await answering
    assert stream_server.closed.is_set()
