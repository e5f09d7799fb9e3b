"""The two sides of row 9: a server of Chat Completions, and the plainest reverse proxy that aiohttp makes.

python -m scripts.bench_lib.passing_sides upstream [blanks] | reverse URL

Prints its port, and serves until its stdin ends. The upstream's `max_tokens` is the number of deltas that it sends, and
`seed` the milliseconds between two; 0 sends them as fast as they are taken. `blanks`: its JSON has blanks behind colons
and commas, as Python writes it. Without `stream` it answers with one object.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys

import aiohttp
from aiohttp import web

_HEAD = (
    b'data: {"id":"chatcmpl-00000000000000000000000000000000","object":"chat.completion.chunk",'
    b'"created":1795221139,"model":"bench","choices":['
)
CHUNK = _HEAD + b'{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
FINISH = _HEAD + b'{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = _HEAD + b'],"usage":{"prompt_tokens":5,"completion_tokens":9,"total_tokens":14}}\n\n'
END = FINISH + USAGE + b"data: [DONE]\n\n"
WHOLE = {
    "id": "chatcmpl-00000000000000000000000000000000",
    "object": "chat.completion",
    "created": 1795221139,
    "model": "bench",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": " word" * 20}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25},
}
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
AT_ONCE = 300
"""Deltas of one write if there is no pace: some 64 KiB."""
WRITTEN = web.AppKey("written", tuple[bytes, bytes, bytes])
"""A delta, the end of a stream, and a whole answer."""


async def answer(request: web.Request) -> web.StreamResponse:
    chunk, end, whole = request.app[WRITTEN]
    body = json.loads(await request.read())
    if not body.get("stream"):
        return web.Response(body=whole, content_type="application/json")
    count, every = body["max_tokens"], body["seed"] / 1000
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    if every:
        for _ in range(count):
            await response.write(chunk)
            await asyncio.sleep(every)
    else:
        for done in range(0, count, AT_ONCE):
            await response.write(chunk * min(AT_ONCE, count - done))
    await response.write(end)
    return response


async def models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "bench"}]})


def reverse_proxy(url: str) -> web.Application:
    """Returns a reverse proxy that passes POSTs on, and every chunk of the answer back as it comes; nothing else is
    done.
    """
    session: list[aiohttp.ClientSession] = []

    async def pass_on(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        async with session[0].post(
            url + request.path, data=body, headers={"Content-Type": "application/json"}
        ) as upstream:
            response = web.StreamResponse(status=upstream.status, headers=HEADERS)
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            return response

    async def on_startup(_: web.Application) -> None:
        session.append(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
            )
        )

    async def on_cleanup(_: web.Application) -> None:
        await session[0].close()

    app = web.Application()
    app.router.add_post("/v1/chat/completions", pass_on)
    app.on_startup.append(on_startup)
    app.on_cleanup.append(on_cleanup)
    return app


def with_blanks(stream: bytes) -> bytes:
    """Returns a stream of compact JSON as Python writes it."""
    return re.sub(rb"\{.*\}", lambda found: json.dumps(json.loads(found[0])).encode(), stream)


def upstream(*, blanks: bool) -> web.Application:
    app = web.Application()
    whole = json.dumps(WHOLE, separators=None if blanks else (",", ":")).encode()
    app[WRITTEN] = (with_blanks(CHUNK), with_blanks(END), whole) if blanks else (CHUNK, END, whole)
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", models)  # some gateways ask for it before they pass anything on
    return app


async def serve(app: web.Application) -> None:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    is_upstream = sys.argv[1] == "upstream"
    asyncio.run(serve(upstream(blanks="blanks" in sys.argv) if is_upstream else reverse_proxy(sys.argv[2])))
