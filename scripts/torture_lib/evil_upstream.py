"""A model server that does everything wrong: a raw server of Chat Completions and Responses. A program of its own.

python -m scripts.torture_lib.evil_upstream

It prints its port and serves until its stdin ends. A marker in the request, `[[evil:NAME nonce-...]]`, names what it
does with it; see `SCENARIOS`. Every second one of its lists of models is hostile. `GET /late` returns the nonces of
unrequested bytes that may have arrived after a request was sent: nobody can tell those from an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import select
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

MARKER = re.compile(rb"\[\[evil:(\w+) (nonce-[0-9a-f]{16})\]\]")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
foreign = (f"nonce-ff{number:014x}" for number in count())
"""Nonces of unrequested answers, which are written to idle connections, each once."""
late: list[str] = []
"""The nonces that may have arrived after a request was sent."""
BLANK_LINES = 20 << 20
DRIP_SECONDS = 0.2
IDLE_SECONDS = 0.02
"""Seconds without another request after which a connection is idle."""
OFF = "\r\nConnection: close\r\n\r\n"


@dataclass
class Request:
    """A request for an answer, and the connection on which it came."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    wire: str
    """`chat` or `responses`."""
    streams: bool
    nonce: str

    @property
    def has_unread(self) -> bool:
        """Whether bytes have come on the connection that the event loop has not read yet."""
        poll = select.poll()
        poll.register(self.writer.get_extra_info("socket"), select.POLLIN)
        return bool(poll.poll(0))

    async def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)
        await self.writer.drain()

    async def head(self, status: str = "200 OK", *more: str, kind: str = "text/event-stream") -> None:
        """Begins an answer that ends with the connection."""
        await self.send("\r\n".join((f"HTTP/1.1 {status}", f"Content-Type: {kind}", *more)) + OFF)

    async def event(self, value: Any) -> None:
        await self.send(f"data: {json.dumps(value)}\n\n")

    async def text(self, text: str) -> None:
        """Sends one delta of the answer's text."""
        await self.event(self.delta(text))

    def delta(self, text: str) -> dict[str, Any]:
        if self.wire == "chat":
            return chunk({"content": text})
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        return {"type": "response.output_text.delta", **place, "delta": text}

    async def begin(self) -> None:
        """Sends the first events of a streamed answer."""
        await self.head()
        if self.wire == "chat":
            await self.event(chunk({"role": "assistant"}))
            return
        await self.event({"type": "response.created", "response": response([], "in_progress")})
        message = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        await self.event({"type": "response.output_item.added", "output_index": 0, "item": message})

    async def end(self, text: str = "") -> None:
        """Sends the last events of a streamed answer with this text."""
        if self.wire == "chat":
            await self.event(chunk({}, "stop"))
            await self.send("data: [DONE]\n\n")
            return
        item = message_item(text)
        await self.event({"type": "response.output_item.done", "output_index": 0, "item": item})
        await self.event({"type": "response.completed", "response": response([item])})


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "evil", "choices": [choice]}


def message_item(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def response(output: list[Any], status: str = "completed") -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": "evil",
        "output": output,
    }


def whole(request: Request, text: str) -> bytes:
    """Returns a good answer as one object, on a connection that stays open."""
    body: dict[str, Any] = response([message_item(text)])
    if request.wire == "chat":
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "c", "object": "chat.completion", "created": 1, "model": "evil", "choices": [choice]}
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def good(request: Request) -> None:
    """Answers with the nonce."""
    text = f"{request.nonce} and nothing else"
    if not request.streams:
        await request.send(whole(request, text))
        return
    await request.begin()
    for piece in re.split("(?= )", text):
        await request.text(piece)
    await request.end(text)


async def idle_bytes(request: Request) -> None:
    """Sends a good answer and, some time later, another one that nobody has requested, on the same connection."""
    transport = request.writer.transport
    assert isinstance(transport, asyncio.Transport)
    transport.pause_reading()  # so that a request is seen where it is first: in the socket
    events: list[Any] = []
    text = f"{request.nonce} and nothing else"
    if not request.streams:
        await request.send(whole(request, text))
    else:
        if request.wire == "chat":
            events = [chunk({"content": text}), chunk({}, "stop")]
        else:
            events = [
                {"type": "response.created", "response": response([], "in_progress")},
                {"type": "response.output_item.added", "output_index": 0, "item": message_item("")},
                request.delta(text),
                {"type": "response.output_item.done", "output_index": 0, "item": message_item(text)},
                {"type": "response.completed", "response": response([message_item(text)])},
            ]
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n" * (
            request.wire == "chat"
        )
        length = len(body.encode())
        await request.send(
            f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    await asyncio.sleep(IDLE_SECONDS)
    if request.has_unread:  # what came behind the next request would be its answer
        transport.abort()
        return
    unasked = next(foreign)
    request.writer.write(whole(request, unasked))
    if request.has_unread:
        late.append(unasked)
    transport.resume_reading()


async def half(request: Request) -> None:
    """Ends the connection in the middle of an event."""
    await request.begin()
    await request.send('data: {"id": "c", "choi')


async def reset(request: Request) -> None:
    await request.begin()
    request.writer.transport.abort()


async def drip(request: Request) -> None:
    """Sends single bytes until the client leaves, for some seconds at most."""
    await request.head()
    for _ in range(20):
        await request.send(":")
        await asyncio.sleep(DRIP_SECONDS)


async def done_alone(request: Request) -> None:
    await request.head()
    await request.send("data: [DONE]\n\n")


async def wrong_length(request: Request) -> None:
    """Sends more bytes than `Content-Length` says; the rest is another answer."""
    answer = whole(request, request.nonce)
    await request.send(answer + whole(request, next(foreign)))


async def long_length(request: Request) -> None:
    """Sends fewer bytes than `Content-Length` says."""
    await request.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{}")
    request.writer.close()


async def huge_headers(request: Request) -> None:
    await request.head("200 OK", *(f"X-{number}: {'y' * 8000}" for number in range(500)))


async def no_http(request: Request) -> None:
    await request.send("\x16\x03\x01 220 mail.example ESMTP\r\n\r\n")
    request.writer.close()


async def not_json(request: Request) -> None:
    await request.head()
    await request.send("data: <html>502</html>\n\ndata: {]\n\n" * 50)


async def bad_utf8(request: Request) -> None:
    await request.begin()
    await request.send(b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}\n\n')
    await request.end()


async def null_choices(request: Request) -> None:
    await request.begin()
    for text in (
        '{"choices":null}',
        '{"choices":[null]}',
        '{"choices":[{"index":[1],"delta":5}]}',
        "[]",
        "7",
    ):
        await request.send(f"data: {text}\n\n")
    await request.end()


async def wrong_types(request: Request) -> None:
    await request.begin()
    await request.event(chunk({"content": 5, "tool_calls": "yes"}) | {"usage": "much", "id": ["c"]})
    await request.event({"type": "response.output_item.added", "output_index": "x", "item": 7})
    await request.end()


async def error_event(request: Request) -> None:
    """Sends an error in the middle of a response that ends as completed."""
    await request.begin()
    await request.text(request.nonce)
    failed = {**response([], "failed"), "error": {"code": "server_error", "message": request.nonce}}
    await request.event(
        {"type": "response.completed", "response": failed, "error": {"message": request.nonce}}
    )


async def flood(request: Request) -> None:
    """Sends 20,000 deltas in large pieces, as a fast server does."""
    await request.begin()
    piece = f"data: {json.dumps(request.delta('ab '))}\n\n".encode()
    for _ in range(20):
        await request.send(piece * 1000)
    await request.end("ab " * 20_000)


async def spaces(request: Request) -> None:
    """Sends 4 MiB of spaces, then single ones."""
    await request.begin()
    await request.text(" " * (4 << 20))
    piece = f"data: {json.dumps(request.delta(' '))}\n\n".encode()
    await request.send(piece * 2000)
    await request.text(request.nonce)
    await request.end()


async def thoughts(request: Request) -> None:
    """Sends a `<think>` tag that is opened again and again, and never closed."""
    await request.begin()
    piece = f"data: {json.dumps(request.delta('<think><thi'))}\n\n".encode()
    await request.send(piece * 5000)
    await request.end()


async def huge_event(request: Request) -> None:
    """Sends 30 MiB in one event."""
    await request.begin()
    await request.text("y" * (30 << 20))
    await request.end()


async def blank_lines(request: Request) -> None:
    await request.begin()
    for _ in range(BLANK_LINES >> 16):
        await request.send(b"\n" * (1 << 16))
    await request.end()


async def nameless_calls(request: Request) -> None:
    """Sends arguments of 1 MiB, then many deltas of calls with a name and no id."""
    await request.begin()
    first = {"index": 0, "id": "call_1", "function": {"name": "get_weather", "arguments": "x" * (1 << 20)}}
    await request.event(chunk({"tool_calls": [first]}))
    piece = {"index": 0, "function": {"name": "get_weather", "arguments": "y"}}
    await request.send(f"data: {json.dumps(chunk({'tool_calls': [piece]}))}\n\n".encode() * 3000)
    await request.end()


async def many_calls(request: Request) -> None:
    """Sends 5,000 calls in one answer."""
    await request.begin()
    for number in range(5000):
        call_id, name, arguments = f"call_{number}", "get_weather", '{"city": "Rome"}'
        if request.wire == "chat":
            function = {"name": name, "arguments": arguments}
            await request.event(
                chunk({"tool_calls": [{"index": number, "id": call_id, "function": function}]})
            )
        else:
            item = {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": call_id,
                "name": name,
                "arguments": arguments,
            }
            await request.event({"type": "response.output_item.done", "output_index": number, "item": item})
    await request.end()


async def searches(request: Request) -> None:
    """Sends thousands of items of which the server makes only a notice."""
    await request.begin()
    for number in range(5000):
        item = {
            "type": "web_search_call",
            "id": f"ws_{number}",
            "status": "completed",
            "action": {"query": "x" * 60},
        }
        await request.event({"type": "response.output_item.done", "output_index": number + 1, "item": item})
    await request.end()


async def deep(request: Request) -> None:
    await request.begin()
    await request.send("data: " + '{"choices":' * 100_000 + "1" + "}" * 100_000 + "\n\n")
    await request.end()


SCENARIOS: dict[str, Callable[[Request], Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (
        *(
            good,
            idle_bytes,
            half,
            reset,
            drip,
            done_alone,
            wrong_length,
            long_length,
            huge_headers,
            no_http,
            not_json,
        ),
        *(bad_utf8, null_choices, wrong_types, error_event, flood, spaces, thoughts, huge_event, blank_lines),
        *(nameless_calls, many_calls, searches, deep),
    )
}


def model_lists() -> list[bytes]:
    """Returns lists of models; every second one is good."""
    good_list = json.dumps({"object": "list", "data": [{"id": "evil", "object": "model"}]}).encode()
    many = {"data": [{"id": f"evil-{number}"} for number in range(2_500)]}
    hostile = (
        b'{"data": [{"id": "evil"}, {"id": "\\ud800"}]}',
        b'{"data": [{"id": "evil"}, {"id": "server/codex-5"}, {"id": "codex-5"}, {"id": ""}]}',
        b'{"data": [{"id": "evil"}, {"id": ["x"]}, {"id": 7}, null]}',
        b'{"data": {"id": "evil"}}',
        b"[" * 100_000,
        json.dumps(many).encode(),
        b'{"data": [{"id": "' + b"x" * (5 << 20) + b'"}]}',
        b"<html>",
    )
    return [each for pair in zip(hostile, [good_list] * len(hostile), strict=True) for each in pair]


MODEL_LISTS = model_lists()
asked_for_models = count()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers the requests of one connection."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async for path, body in requests_of(reader):
            if path.endswith(("/models", "/late")):
                if path == "/late":
                    listed = json.dumps(late).encode()
                else:
                    listed = MODEL_LISTS[next(asked_for_models) % len(MODEL_LISTS)]
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(listed)}\r\n\r\n"
                writer.write(head.encode() + listed)
                await writer.drain()
                continue
            found = MARKER.findall(body)
            name, nonce = found[-1] if found else (b"good", b"nonce-0000000000000000")
            wire = "responses" if path.endswith("/responses") else "chat"
            request = Request(reader, writer, wire, json.loads(body).get("stream") is True, nonce.decode())
            await SCENARIOS[name.decode()](request)
            if name not in (b"idle_bytes", b"wrong_length") and (request.streams or name != b"good"):
                break
    writer.close()


async def requests_of(reader: asyncio.StreamReader) -> AsyncIterator[tuple[str, bytes]]:
    """Yields the path and the body of each request of a connection."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        yield head.split(b" ", 2)[1].decode(), body


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
