"""What servers have acknowledged, and whether it is all still there: the book of a torture."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from scripts.torture_lib.proxy import Proxy

OVER = frozenset({"completed", "failed", "incomplete", "cancelled"})


@dataclass
class Ledger:
    """Everything acknowledged by one server."""

    proxy: Proxy
    stored: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By id: the key it belongs to, and the digest of its output."""
    deleted: dict[str, str] = field(default_factory=dict)
    background: dict[str, str] = field(default_factory=dict)
    """By id: the key. Each has to end, and its end has to be told by webhook."""
    turns: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    """By id of a conversation: the key, and the words of the turns that were acknowledged, in order."""
    wrong: list[str] = field(default_factory=list)
    """What a client was answered that it must never be."""
    unanswered: int = 0
    """Requests that nobody answered or refused within the client's patience."""
    requests: Counter[str] = field(default_factory=Counter)
    """How many of each kind were made."""

    def store(self, response: dict[str, Any], key: str) -> None:
        self.stored[response["id"]] = (key, digest(response["output"]))

    def forget(self, id: str) -> None:
        """Nothing is known of this response: a request that changes it was cut off."""
        self.stored.pop(id, None)

    async def lost(self, session: aiohttp.ClientSession) -> list[str]:
        """What was acknowledged and is gone or another now."""
        found = []
        for id, (key, expected) in list(self.stored.items()):
            status, body = await self.read(session, f"/v1/responses/{id}", key)
            if status != 200:
                found.append(f"{id}: {status} {body}")
            elif digest(body["output"]) != expected:
                found.append(f"{id}: its output is another")
        for id, key in self.deleted.items():
            status, _ = await self.read(session, f"/v1/responses/{id}", key)
            if status != 404:
                found.append(f"{id}: it was deleted, and is there ({status})")
        for id, (key, words) in self.turns.items():
            kept = await self._said_in(session, id, key)
            if [word for word in kept if word in words] != words:
                missing = [word for word in words if word not in kept]
                found.append(
                    f"{id}: of {len(words)} turns {len(missing)} are missing, or their order is another"
                )
        return found

    async def stuck(self, session: aiohttp.ClientSession, *, within: float) -> list[str]:
        """Background responses that have not ended after at most so many seconds."""
        deadline = time.monotonic() + within
        waiting = dict(self.background)
        while True:
            for id, key in list(waiting.items()):
                status, body = await self.read(session, f"/v1/responses/{id}", key)
                if status == 404 or (status == 200 and body["status"] in OVER):
                    del waiting[id]  # that it is missing counts as lost, not as stuck
            if not waiting or time.monotonic() > deadline:
                return [f"{id}: it does not end" for id in waiting]
            await asyncio.sleep(0.2)

    async def _said_in(self, session: aiohttp.ClientSession, id: str, key: str) -> list[str]:
        said: list[str] = []
        after = ""
        while True:
            path = f"/v1/conversations/{id}/items?order=asc&limit=100{after}"
            status, page = await self.read(session, path, key)
            if status != 200:
                return said
            for item in page["data"]:
                if item.get("role") == "user":
                    said += [part["text"].split(" ", 1)[0] for part in item["content"]]
            if not page["has_more"]:
                return said
            after = f"&after={page['last_id']}"

    async def read(self, session: aiohttp.ClientSession, path: str, key: str) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"}
        async with session.get(f"{self.proxy.url}{path}", headers=headers) as answer:
            return answer.status, await answer.json()


class WebhookReceiver:
    """Takes every webhook, and now and then says that it could not."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        """How often the end of each response was told and taken."""
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._seen = 0
        self._more = asyncio.Condition()

    async def start(self) -> None:
        application = web.Application()
        application.router.add_post("/hook", self._take)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def _take(self, request: web.Request) -> web.Response:
        self._seen += 1
        if self._seen % 50 == 0:
            return web.Response(status=503)
        async with self._more:
            self.told[(await request.json())["data"]["id"]] += 1
            self._more.notify_all()
        return web.Response()

    async def untold(self, ids: set[str], *, within: float) -> set[str]:
        """Those whose end was not told after at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within), self._more:
                await self._more.wait_for(lambda: ids <= self.told.keys())
        return ids - self.told.keys()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


def digest(output: Any) -> str:
    return hashlib.sha256(json.dumps(output, sort_keys=True).encode()).hexdigest()
