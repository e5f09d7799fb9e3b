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

from scripts.torture_lib.answers import NONCE, OVER, Asked, faults_of, response
from scripts.torture_lib.proxy import Proxy


@dataclass
class Conversation:
    """The nonces of a conversation's turns, in their order."""

    key: str
    asked: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Stored:
    """A response that was acknowledged: its key, the digest of its output, and what was asked."""

    key: str
    digest: str
    asked: Asked


@dataclass
class Ledger:
    """Everything acknowledged by one server, and everything that a client was answered wrongly."""

    proxy: Proxy
    stored: dict[str, Stored] = field(default_factory=dict)
    deleted: dict[str, str] = field(default_factory=dict)
    """By id: the key."""
    background: dict[str, tuple[str, Asked]] = field(default_factory=dict)
    """By id: the key, and what was asked. Each has to end, and its end has to be told by webhook."""
    turns: dict[str, Conversation] = field(default_factory=dict)
    """By id of a conversation."""
    crossed: list[str] = field(default_factory=list)
    """Answers that are not those to what was asked."""
    wrong: list[str] = field(default_factory=list)
    """What a client was answered that it must never be."""
    stuck_requests: list[str] = field(default_factory=list)
    """Requests that nobody answered or refused within the client's patience."""
    gone: list[str] = field(default_factory=list)
    """Background responses that were acknowledged and are no more."""
    requests: Counter[str] = field(default_factory=Counter)
    """How many of each kind were made."""
    checked: set[str] = field(default_factory=set)
    """Ids that were found to be right since they were acknowledged."""

    def store(self, response: dict[str, Any], key: str, asked: Asked) -> None:
        self.stored[response["id"]] = Stored(key, digest(response["output"]), asked)

    def stored_of(self, key: str) -> list[tuple[str, Asked]]:
        """The last stored responses of a key: their ids, and what was asked."""
        return [(id, each.asked) for id, each in list(self.stored.items())[-50:] if each.key == key]

    def forget(self, id: str) -> None:
        """Nothing is known of this response: a request that changes it was cut off."""
        self.stored.pop(id, None)

    async def lost(self, session: aiohttp.ClientSession, *, all: bool) -> list[str]:
        """What was acknowledged and is gone or another now. Unless `all`, only what was not looked at before."""
        found, self.gone = self.gone, []
        seen = set() if all else self.checked
        for id, kept in [each for each in self.stored.items() if each[0] not in seen]:
            status, body = await self.read(session, f"/v1/responses/{id}", kept.key)
            if status != 200:
                found.append(f"{id} was acknowledged, and is gone: {status}")
            elif digest(body["output"]) != kept.digest:
                found.append(f"{id} was acknowledged, and its output is another now")
            self.checked.add(id)
        for id, key in [each for each in self.deleted.items() if each[0] not in seen]:
            status, _ = await self.read(session, f"/v1/responses/{id}", key)
            if status != 404:
                found.append(f"{id} was deleted, and is there ({status})")
            self.checked.add(id)
        for id, conversation in self.turns.items():
            found += [
                f"{id}: {fault}" for fault in await self._faults_of_conversation(session, id, conversation)
            ]
        return found

    async def _faults_of_conversation(
        self, session: aiohttp.ClientSession, id: str, conversation: Conversation
    ) -> list[str]:
        kept = await self._asked_in(session, id, conversation.key)
        expected = conversation.acknowledged
        if missing := len(set(expected) - set(kept)):
            return [f"of {len(expected)} acknowledged turns {missing} are missing"]
        if [nonce for nonce in kept if nonce in expected] != expected:
            return ["its turns are in another order"]
        self.crossed += [f"{id} holds {nonce}" for nonce in set(kept) - set(conversation.asked)]
        return []

    async def stuck(self, session: aiohttp.ClientSession, *, within: float) -> list[str]:
        """Background responses that have not ended after at most so many seconds. Those that have are compared with
        what was asked.
        """
        deadline = time.monotonic() + within
        waiting = {id: each for id, each in self.background.items() if id not in self.checked}
        while True:
            for id, (key, asked) in list(waiting.items()):
                status, body = await self.read(session, f"/v1/responses/{id}", key)
                if status == 404:
                    self.gone.append(f"{id} was acknowledged in the background, and is gone")
                elif status != 200 or body["status"] not in OVER:
                    continue
                else:
                    self.crossed += faults_of(asked, json.dumps(body), response(body))
                self.checked.add(id)
                del waiting[id]
            if not waiting or time.monotonic() > deadline:
                return [f"{id} does not end" for id in waiting]
            await asyncio.sleep(0.2)

    async def _asked_in(self, session: aiohttp.ClientSession, id: str, key: str) -> list[str]:
        """The nonces of the users' messages of a conversation."""
        asked: list[str] = []
        after = ""
        while True:
            path = f"/v1/conversations/{id}/items?order=asc&limit=100{after}"
            status, page = await self.read(session, path, key)
            if status != 200:
                return asked
            for item in page["data"]:
                if item.get("role") == "user":
                    asked += [NONCE.findall(part["text"])[0] for part in item["content"]]
            if not page["has_more"]:
                return asked
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
