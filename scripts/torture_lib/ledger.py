"""The ledger: what a server has acknowledged. Checks whether all of it is still there."""

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

from scripts.torture_lib.answers import NONCE, OVER, Expected, faults_of, read_response
from scripts.torture_lib.proxy import Served


@dataclass
class Conversation:
    """The nonces of a conversation's turns, in order."""

    key: str
    nonces: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Stored:
    """An acknowledged response: its key, the digest of its output, and what was expected of it."""

    key: str
    digest: str
    expected: Expected
    failed: bool
    """Whether it may be absent: a failure is told to its client also where it cannot be stored."""


@dataclass
class Ledger:
    """All that one server has acknowledged, and all wrong answers of it."""

    proxy: Served
    stored: dict[str, Stored] = field(default_factory=dict)
    deleted: dict[str, str] = field(default_factory=dict)
    """Deleted responses: the key by id."""
    background: dict[str, tuple[str, Expected]] = field(default_factory=dict)
    """Background responses: the key, and what is expected, by id. Each must end, and a webhook must report its end."""
    turns: dict[str, Conversation] = field(default_factory=dict)
    """Conversations by id."""
    crossed: list[str] = field(default_factory=list)
    """Descriptions of answers to other requests."""
    wrong: list[str] = field(default_factory=list)
    """Descriptions of answers that no request may get."""
    stuck_requests: list[str] = field(default_factory=list)
    """Requests without an answer within `PATIENCE` seconds."""
    gone: list[str] = field(default_factory=list)
    """Acknowledged background responses that are gone."""
    unseen: list[str] = field(default_factory=list)
    """Descriptions of acknowledged turns of a conversation that later ones have not seen."""
    requests: Counter[str] = field(default_factory=Counter)
    """Number of requests by kind."""
    checked: set[str] = field(default_factory=set)
    """Ids of objects that have been checked."""

    def store(self, response: dict[str, Any], key: str, expected: Expected) -> None:
        self.stored[response["id"]] = Stored(
            key, digest(response["output"]), expected, failed=response["status"] == "failed"
        )

    def stored_of(self, key: str) -> list[tuple[str, Expected]]:
        """Returns those of the last 50 stored responses that are a key's: their ids, and what was expected."""
        return [(id, each.expected) for id, each in list(self.stored.items())[-50:] if each.key == key]

    def forget(self, id: str) -> None:
        """Forgets a response, whose state is unknown: a request to change it was cut off."""
        self.stored.pop(id, None)

    async def find_lost(self, session: aiohttp.ClientSession, *, all: bool) -> list[str]:
        """Returns descriptions of acknowledged objects that are gone or have changed. Unless `all`, only of those that
        were not checked before.
        """
        found, self.gone, self.unseen = [*self.gone, *self.unseen], [], []
        seen = set() if all else self.checked
        for id, kept in [each for each in self.stored.items() if each[0] not in seen]:
            status, body = await self.read(session, f"/v1/responses/{id}", kept.key)
            if status == 404 and kept.failed:
                pass
            elif status != 200:
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
        kept = await self._user_nonces_in(session, id, conversation.key)
        expected = conversation.acknowledged
        if missing := len(set(expected) - set(kept)):
            return [f"of {len(expected)} acknowledged turns {missing} are missing"]
        if [nonce for nonce in kept if nonce in expected] != expected:
            return ["its turns are in another order"]
        self.crossed += [f"{id} holds {nonce}" for nonce in set(kept) - set(conversation.nonces)]
        return []

    async def find_stuck(self, session: aiohttp.ClientSession, *, within: float) -> list[str]:
        """Returns background responses that have not ended after `within` seconds. Compares the others with what was
        expected.
        """
        deadline = time.monotonic() + within
        waiting = {id: each for id, each in self.background.items() if id not in self.checked}
        while True:
            for id, (key, expected) in list(waiting.items()):
                status, body = await self.read(session, f"/v1/responses/{id}", key)
                if status == 404:
                    self.gone.append(f"{id} was acknowledged in the background, and is gone")
                elif status != 200 or body["status"] not in OVER:
                    continue
                else:
                    self.crossed += faults_of(expected, json.dumps(body), read_response(body))
                self.checked.add(id)
                del waiting[id]
            if not waiting or time.monotonic() > deadline:
                return [f"{id} does not end" for id in waiting]
            await asyncio.sleep(0.2)

    async def _user_nonces_in(self, session: aiohttp.ClientSession, id: str, key: str) -> list[str]:
        """Returns the nonces of the users' messages of a conversation."""
        nonces: list[str] = []
        after = ""
        while True:
            path = f"/v1/conversations/{id}/items?order=asc&limit=100{after}"
            status, page = await self.read(session, path, key)
            if status != 200:
                return nonces
            for item in page["data"]:
                if item.get("role") == "user":
                    nonces += [NONCE.findall(part["text"])[0] for part in item["content"]]
            if not page["has_more"]:
                return nonces
            after = f"&after={page['last_id']}"

    async def read(self, session: aiohttp.ClientSession, path: str, key: str) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"}
        async with session.get(f"{self.proxy.url}{path}", headers=headers) as answer:
            return answer.status, await answer.json()


class WebhookReceiver:
    """Accepts webhooks, and refuses one in 50 with a 503."""

    def __init__(self) -> None:
        self.deliveries: Counter[str] = Counter()
        """Number of accepted webhooks by response."""
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
            self.deliveries[(await request.json())["data"]["id"]] += 1
            self._more.notify_all()
        return web.Response()

    async def undelivered(self, ids: set[str], *, within: float) -> set[str]:
        """Returns the responses whose end no webhook has reported after `within` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within), self._more:
                await self._more.wait_for(lambda: ids <= self.deliveries.keys())
        return ids - self.deliveries.keys()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


def digest(output: Any) -> str:
    return hashlib.sha256(json.dumps(output, sort_keys=True).encode()).hexdigest()
