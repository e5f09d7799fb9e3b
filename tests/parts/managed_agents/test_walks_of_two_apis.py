"""Random walks of clients of both APIs on one session: nothing accepted is lost, and every stream is the list."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import Proxy, fake_proxy
from tests.parts.managed_agents.following import IDLE, INTERRUPT, ManagedClient, Stream, message, result, said
from tests.parts.sessions.driving import CANCEL, AgentsClient, text_of
from tests.parts.sessions.driving import message as openai_message
from tests.parts.sessions.driving import result as openai_result
from tests.waiting import poll

SCENARIOS = (
    "text",
    "tool_call",
    "tool_calls",
    "course",
    "error_500",
    "count n=20 delay=10",
    "tool_call delay=20",
    "work delay=20",
)


class Walk:
    def __init__(self, seed: int, proxy: Proxy) -> None:
        self._random = random.Random(seed)
        self.managed, self.openai = ManagedClient(proxy), AgentsClient(proxy)
        self.said: list[str] = []
        """The texts of accepted messages."""
        self.answered: list[str] = []
        """The outputs of accepted results."""

    def _text(self) -> str:
        return f"[[fake:{self._random.choice(SCENARIOS)}]] This is message {len(self.said)}."

    async def begin(self) -> None:
        self.said.append(self._text())
        if self._random.random() < 0.5:
            self.id = await self.managed.new_session(self.said[0])
        else:
            self.id = (await self.openai.new_session(self.said[0]))["id"]

    async def step(self) -> None:
        await self._random.choice((self.say, self.say, self.answer, self.answer, self.answer, self.end))()

    async def say(self) -> None:
        text = self._text()
        if self._random.random() < 0.5:
            await self.openai.send(self.id, openai_message(text))
            self.said.append(text)
            return
        answer = await self.managed.ask("POST", f"/sessions/{self.id}/events", {"events": [message(text)]})
        if answer.status == 200:
            self.said.append(text)
        else:
            assert "waiting on responses" in answer.text

    async def answer(self) -> None:
        session = await self.openai.get(f"/sessions/{self.id}")
        calls = session["required_actions"]
        if not calls:
            return
        call, output = self._random.choice(calls), f"This is result {len(self.answered)}."
        if self._random.random() < 0.5:
            sent: Any = await self.openai.ask(
                "POST", f"/sessions/{self.id}/events", {"events": [openai_result(call, output)]}
            )
        else:
            last = [event for event in await self.managed.events(self.id) if event["type"] == IDLE][-1]
            use = self._random.choice(last["stop_reason"]["event_ids"])
            sent = await self.managed.ask(
                "POST", f"/sessions/{self.id}/events", {"events": [result(use, output)]}
            )
        assert sent.status in (200, 202), sent.text
        self.answered.append(output)

    async def end(self) -> None:
        if self._random.random() < 0.5:
            await self.openai.send(self.id, CANCEL)
        else:
            await self.managed.send(self.id, INTERRUPT)

    async def is_idle(self) -> bool:
        await self.answer()
        return bool((await self.openai.get(f"/sessions/{self.id}"))["status"] == "idle")

    async def check(self, stream: Stream) -> None:
        events = await self.managed.events(self.id)
        while not stream.events or stream.events[-1]["id"] != events[-1]["id"]:
            await stream.next()
        start = [event["id"] for event in events].index(stream.events[0]["id"])
        assert stream.events == events[start:]
        assert sorted(said(events, "user.message")) == sorted(self.said)
        assert sorted(said(events, "user.custom_tool_result")) == sorted(self.answered)
        items = await self.openai.all(f"/sessions/{self.id}/items")
        messages = [text_of(item) for item in items if item["type"] == "message" and item["content"]]
        assert sorted(messages) == sorted([*said(events, "user.message"), *said(events)])


@pytest.mark.sampled(every=25)
@pytest.mark.parametrize("seed", range(100))
async def test_a_random_walk_over_both_apis_loses_nothing(tmp_path: Path, seed: int) -> None:
    async with fake_proxy(tmp_path) as proxy, AsyncExitStack() as stack:
        walk = Walk(seed, proxy)
        await walk.begin()
        stream = await stack.enter_async_context(walk.managed.stream(walk.id))
        for _ in range(12):
            await walk.step()
        await poll(walk.is_idle)
        await walk.check(stream)
