"""Requests that change the same response or conversation at the same time, in many orders, on both engines."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.http.body import BODY_BUDGET
from codex_proxy.store.values import UNFINISHED
from tests.http.serving import Answer, Proxy, fake_proxy
from tests.http_responses.asking import create
from tests.postgres import PostgresServer, empty

DELAYS = (0, 1, 2, 5, 10, 30, 100, 300, 1000)
"""How many steps of the event loop a request may wait."""
OF_RESPONSES = ("get", "items", "cancel", "delete", "continue")
OF_CONVERSATIONS = ("read", "add", "drop", "join")


class Race:
    """A response in the background, and several requests for it, or for its conversation, at once."""

    def __init__(self, proxy: Proxy, choices: random.Random) -> None:
        self._proxy = proxy
        self._choices = choices
        self._response = self._conversation = ""
        self._answers: list[tuple[str, Answer]] = []

    async def run(self) -> None:
        streamed, shared = self._choices.random() < 0.5, self._choices.random() < 0.5
        words, pause = self._choices.choice((1, 4)), self._choices.choice((0, 2, 8))
        body = {
            "model": "codex-5",
            "input": f"[[fake:text n={words} delay={pause}]]",
            "background": True,
            "stream": streamed,
        }
        if shared:
            self._conversation = (await self._proxy.send("POST", "/v1/conversations", {})).body["id"]
            body["conversation"] = self._conversation
        kinds = OF_RESPONSES + ("follow",) * streamed + OF_CONVERSATIONS * shared
        chosen = self._choices.choices(kinds, k=self._choices.randint(2, 6))
        async with self._proxy.session.post(f"{self._proxy.url}/v1/responses", json=body) as created:
            first = await (created.content.readuntil(b"\n\n") if streamed else created.read())
            made = json.loads(first.partition(b"data: ")[2])["response"] if streamed else json.loads(first)
            self._response = made["id"]
            await asyncio.gather(*(self._send(kind, self._choices.choice(DELAYS)) for kind in chosen))
            if streamed:
                await self._note("create", rest_of(created))
        await self._proxy.settled()

    async def _send(self, kind: str, delay: int) -> None:
        for _ in range(delay):
            await asyncio.sleep(0)
        await self._note(kind, self._request(kind))

    async def _note(self, kind: str, answer: Awaitable[Answer]) -> None:
        self._answers.append((kind, await answer))

    def _request(self, kind: str) -> Awaitable[Answer]:
        proxy, path = self._proxy, f"/v1/responses/{self._response}"
        shared = f"/v1/conversations/{self._conversation}"
        message = {"type": "message", "role": "user", "content": "More."}
        requests: dict[str, Callable[[], Awaitable[Answer]]] = {
            "get": lambda: proxy.send("GET", path),
            "items": lambda: proxy.send("GET", f"{path}/input_items"),
            "follow": lambda: proxy.send("GET", f"{path}?stream=true"),
            "cancel": lambda: proxy.send("POST", f"{path}/cancel"),
            "delete": lambda: proxy.send("DELETE", path),
            "continue": lambda: create(proxy, "Go on.", previous_response_id=self._response),
            "read": lambda: proxy.send("GET", f"{shared}/items"),
            "add": lambda: proxy.send("POST", f"{shared}/items", {"items": [message]}),
            "drop": lambda: proxy.send("DELETE", shared),
            "join": lambda: create(proxy, "And?", conversation=self._conversation),
        }
        return requests[kind]()

    async def check(self) -> None:
        """Asserts that no request has broken, and that those that succeeded do not contradict what is there now."""
        assert all(answer.status < 500 for _, answer in self._answers)
        now = await self._proxy.send("GET", f"/v1/responses/{self._response}")
        assert len(self._good("delete")) == (now.status == 404)
        if now.status == 200:
            assert now.body["status"] not in UNFINISHED
            assert all(answer.body["status"] == now.body["status"] for answer in self._good("cancel"))
            assert all(answer.text.endswith("data: [DONE]\n\n") for answer in self._good("follow", "create"))
        if self._conversation:
            shared = await self._proxy.send("GET", f"/v1/conversations/{self._conversation}")
            assert len(self._good("drop")) == (shared.status == 404)

    def _good(self, *kinds: str) -> list[Answer]:
        return [answer for kind, answer in self._answers if kind in kinds and answer.status == 200]

    def __str__(self) -> str:
        return str([(kind, answer.status) for kind, answer in self._answers])


async def rest_of(reply: aiohttp.ClientResponse) -> Answer:
    return Answer(reply.status, reply.headers, await reply.text())


async def assert_nothing_left(proxy: Proxy) -> None:
    """Nothing runs, waits or is counted, and when all objects are deleted, nothing of them is in the store."""
    service = proxy.app[RESPONSES]
    store, background = service.store, service.background
    assert store is not None
    assert (background.slots.running, background.slots.waiting, background.leases) == (0, 0, [])
    assert proxy.app[BODY_BUDGET].held == 0
    while responses := (await store.newest_responses("local", search="", after=None, limit=100)).items:
        for response in responses:
            await store.delete_response("local", response.id)
    while found := (await store.newest_conversations("local", search="", after=None, limit=100)).items:
        for conversation in found:
            await store.delete_conversation("local", conversation.id)
    await store.sweep()
    stats = await store.stats()
    assert (stats.responses, stats.conversations, stats.items, stats.frames) == (0, 0, 0, 0)


@pytest.fixture(params=["file", "postgresql"])
async def store(request: pytest.FixtureRequest) -> str:
    """The setting `store` of a new file, or of an empty database."""
    if request.param == "file":
        return "sqlite"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    await empty(server.url)
    return server.url


@pytest.mark.parametrize(
    ("seed", "races"),
    [(1, 10), *(pytest.param(seed, 300, marks=pytest.mark.exhaustive) for seed in range(2, 6))],
)
async def test_requests_that_change_the_same_at_once_agree(
    store: str, seed: int, races: int, tmp_path: Path
) -> None:
    choices = random.Random(seed)
    async with fake_proxy(tmp_path, store=store) as proxy:
        for number in range(races):
            race = Race(proxy, choices)
            try:
                await race.run()
                await race.check()
            except BaseException as error:
                error.add_note(f"race {number}: {race}")
                raise
        await assert_nothing_left(proxy)
