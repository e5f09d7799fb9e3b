"""The two sides of row 9: a server of Chat Completions, and the plainest reverse proxy that aiohttp makes.

python -m scripts.bench_lib.passing_sides upstream | reverse URL

Prints its port, and serves until its stdin ends. The upstream's `max_tokens` is the number of deltas that it sends, and
`seed` the milliseconds between two; 0 sends them as fast as they are taken.
"""

from __future__ import annotations

import asyncio
import json
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
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
AT_ONCE = 300
"""Deltas of one write if there is no pace: some 64 KiB."""


async def answer(request: web.Request) -> web.StreamResponse:
    body = json.loads(await request.read())
    count, every = body["max_tokens"], body["seed"] / 1000
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    if every:
        for _ in range(count):
            await response.write(CHUNK)
            await asyncio.sleep(every)
    else:
        for done in range(0, count, AT_ONCE):
            await response.write(CHUNK * min(AT_ONCE, count - done))
    await response.write(END)
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


def upstream() -> web.Application:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_get("/v1/models", models)
    return app


async def serve(app: web.Application) -> None:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(upstream() if sys.argv[1] == "upstream" else reverse_proxy(sys.argv[2])))
