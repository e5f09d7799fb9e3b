"""The smallest server of row 4: chat completions on aiohttp, each a thread and a turn of a child.

    python -m scripts.bench_lib.short_turns_server PROGRAM FOLDER CHILDREN

It drives its children as the row's tasks do, without a server, so the difference between the two is what HTTP costs. It
checks nothing, limits nothing, and writes an answer in one piece, as the proxy does with deltas that come at once.
Prints its port, and serves until its stdin ends.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web

from codex_proxy.agents.codex_app_server.thread_turns import thread_params
from codex_proxy.core.turn import Turn
from scripts.bench_lib import direct
from scripts.bench_lib.passing_sides import HEADERS, serve
from scripts.bench_lib.servers import clean_environment

COMPLETION = {"id": "chatcmpl-00000000000000000000000000000000", "created": 1795221139, "model": "bench"}


def completions(children: list[direct.AppServer], folder: str) -> web.Application:
    """Returns an application that answers `POST /v1/chat/completions` with the children's turns, each child in turn."""
    order = itertools.cycle(children)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        child = next(order)
        started = await child.request(
            "thread/start", thread_params(Turn(model="", history=(), workdir=folder))
        )
        texts = await child.deltas(started["thread"]["id"], body["messages"][-1]["content"])
        if body["stream"]:
            response = web.StreamResponse(headers=HEADERS)
            await response.prepare(request)
            await response.write(b"".join(map(_chunk, texts)) + b"data: [DONE]\n\n")
            return response
        message = {"role": "assistant", "content": "".join(texts)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(COMPLETION | {"object": "chat.completion", "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    return app


def _chunk(text: str) -> bytes:
    choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    chunk = COMPLETION | {"object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


async def main(program: str, folder: str, children: int) -> None:
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(
                direct.app_server([program, "app-server"], clean_environment({}), folder)
            )
            for _ in range(children)
        ]
        await serve(completions(running, folder))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
