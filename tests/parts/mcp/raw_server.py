"""An MCP server that answers calls with any bytes: over stdio as a program, over HTTP as an application of aiohttp.

The tool `say` gets its answer in base64, with `@ID` for the id of the call; `ask` first sends the given message and
answers when that is answered.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

GOOD = b'{"jsonrpc":"2.0","id":@ID,"result":{"content":[{"type":"text","text":"Hi"}]}}'
INITIALIZED = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "raw", "version": "1"},
}


class RawServer:
    """What a server answers, whatever the transport."""

    def __init__(self) -> None:
        self.asking: Any = None
        self.answers: list[dict[str, Any]] = []

    def answers_to(self, line: bytes) -> Iterator[bytes]:
        message = json.loads(line)
        id = message.get("id")
        if message.get("method") == "initialize":
            yield json.dumps({"jsonrpc": "2.0", "id": id, "result": INITIALIZED}).encode()
        elif message.get("method") == "tools/call":
            given = base64.b64decode(message["params"]["arguments"]["answer"])
            if message["params"]["name"] == "ask":
                self.asking = id
                yield given
            else:
                yield given.replace(b"@ID", json.dumps(id).encode())
        elif "method" not in message:
            self.answers.append(message)
            yield GOOD.replace(b"@ID", json.dumps(self.asking).encode())


def app_of(server: RawServer, framed: Callable[[bytes], bytes], cuts: int = 0) -> Any:
    """An application with Streamable HTTP at `/json` and `/events`, and SSE at `/sse`. `framed` makes an event of an
    answer; `cuts`: into how many bytes each piece of a stream is cut.
    """
    from aiohttp import web

    outbox: asyncio.Queue[bytes] = asyncio.Queue()

    async def write(response: web.StreamResponse, data: bytes) -> None:
        size = cuts or max(1, len(data))
        for at in range(0, len(data), size):
            await response.write(data[at : at + size])
            await asyncio.sleep(0)

    async def as_json(request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.Response(status=405)
        answers = list(server.answers_to(await request.read()))
        if not answers:
            return web.Response(status=202)
        return web.Response(body=answers[0], content_type="application/json")

    async def as_events(request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.Response(status=405)
        answers = list(server.answers_to(await request.read()))
        if not answers:
            return web.Response(status=202)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for answer in answers:
            await write(response, framed(answer))
        return response

    async def sse(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"event: endpoint\ndata: /messages\n\n")
        while True:
            await write(response, framed(await outbox.get()))

    async def messages(request: web.Request) -> web.StreamResponse:
        for answer in server.answers_to(await request.read()):
            outbox.put_nowait(answer)
        return web.Response(status=202)

    app = web.Application()
    app.router.add_route("*", "/json", as_json)
    app.router.add_route("*", "/events", as_events)
    app.router.add_get("/sse", sse)
    app.router.add_post("/messages", messages)
    return app


if __name__ == "__main__":
    served = RawServer()
    for each in sys.stdin.buffer:
        for said in served.answers_to(each):
            sys.stdout.buffer.write(said + b"\n")
            sys.stdout.buffer.flush()
