"""A client that keeps every byte, and says how its stream ended: also one that is cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.real.proxy import chat_request
from tests.waiting import PATIENCE


class Talk:
    """One request under way, read in the background."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.status = answer.status
        self.body = b""
        self.broken = False
        self._answer = answer
        self._more = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for chunk in self._answer.content.iter_any():
                async with self._more:
                    self.body += chunk
                    self._more.notify_all()
        except aiohttp.ClientError:
            self.broken = True

    async def says(self, words: bytes) -> None:
        """Returns as soon as these words have come."""
        async with asyncio.timeout(PATIENCE), self._more:
            await self._more.wait_for(lambda: words in self.body)

    async def end(self) -> None:
        """Returns when nothing more can come: a stream that stays open fails the test."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.shield(self._reading)

    @property
    def error_code(self) -> str:
        """What the error frame says, of a stream that ended with one and with [DONE]."""
        assert self.body.endswith(b"data: [DONE]\n\n"), self.body[-300:]
        frames = [json.loads(line[6:]) for line in self.body.splitlines()[:-2] if line.startswith(b"data: {")]
        code: str = frames[-1]["error"]["code"]
        return code

    async def leave(self) -> None:
        """Closes the connection in the middle of it."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._answer.close()


@asynccontextmanager
async def talk(
    url: str, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Talk]:
    """A streamed request, from its status on."""
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/v1/chat/completions", json={**request, "stream": True}) as answer,
    ):
        under_way = Talk(answer)
        try:
            yield under_way
        finally:
            await under_way.leave()


async def assert_serves(url: str, prompt: str, text: str) -> None:
    """A further turn with this prompt is answered with this text."""
    async with talk(url, chat_request(prompt)) as later:
        await later.end()
        assert later.status == 200
        assert text.encode() in later.body
