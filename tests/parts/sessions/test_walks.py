"""Random walks of clients of one session, over restarts: no accepted input is lost, no turn goes on for ever, and all
readers see the same.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.http.serving import Proxy, fake_proxy
from tests.parts.sessions.driving import CANCEL, AgentsClient, Reader, message, result, text_of
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.test_steering import Serving, app_server, claude_code
from tests.waiting import eventually, poll

SCENARIOS = (
    "text",
    "tool_call",
    "tool_calls",
    "tool_calls_after_text",
    "course",
    "error_500",
    "length",
    "count n=20 delay=10",
    "tool_call delay=20",
    "text misbehave=crash",
    "work delay=20",
)


class Walk:
    """One session with what its clients have sent, and the readers of its events."""

    def __init__(self, seed: int, folder: Path, serve: Serving = fake_proxy) -> None:
        self._serve_in = serve
        self._random = random.Random(seed)
        self._stored = seed % 2 == 1
        """Whether the session is one of a folder, whose agent has a session of its own."""
        self._folder = folder
        self._numbers = count()
        self._stack = AsyncExitStack()
        self._readers: list[tuple[Reader, asyncio.Task[None]]] = []
        self.said: list[str] = []
        """The texts of accepted messages, in their order."""
        self.answered: list[str] = []
        """The outputs of accepted results."""

    async def __aenter__(self) -> Walk:
        await self._serve()
        self.said.append(self._text())
        more = {"environment": hosted(self._folder.parent)["environment"]} if self._stored else {}
        self.id = (await self.client.new_session(self.said[0], **more))["id"]
        await self.open_reader()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _serve(self) -> None:
        self._folder.mkdir(exist_ok=True)
        serving = self._serve_in(self._folder, {}, workdir_roots=str(self._folder.parent))
        proxy: Proxy = await self._stack.enter_async_context(serving)
        self.client = AgentsClient(proxy)

    def _text(self) -> str:
        return f"[[fake:{self._random.choice(SCENARIOS)}]] This is message {next(self._numbers)}."

    # --- steps ------------------------------------------------------------------------------------

    async def step(self) -> None:
        kinds = {
            self.say: 6,
            self.answer: 8,
            self.cancel: 2,
            self.open_reader: 2,
            self.wait: 4,
            self.restart: 1,
            self.kill: 1,
        }
        (chosen,) = self._random.choices([*kinds], [*kinds.values()])
        await chosen()

    async def say(self) -> None:
        texts = [self._text() for _ in range(self._random.choice((1, 1, 2)))]
        await self.client.send(self.id, message(*texts))
        self.said += texts

    async def answer(self) -> None:
        items = await self.client.all(f"/sessions/{self.id}/items")
        calls = [item for item in items if item["type"] == "function_call"]
        waiting = [call for call in calls if call["status"] == "in_progress"] or calls[-1:]
        if not waiting:
            return
        output = f"This is result {next(self._numbers)}."
        event = result(self._random.choice(waiting), output)
        sent = [self.client.ask("POST", f"/sessions/{self.id}/events", {"events": [event]}) for _ in range(2)]
        statuses = {answer.status for answer in await asyncio.gather(*sent)}
        assert statuses in ({202}, {409}), statuses
        if statuses == {202}:
            self.answered.append(output)

    async def cancel(self) -> None:
        await self.client.send(self.id, CANCEL)

    async def wait(self) -> None:
        """Waits for the next event, if the session is at work."""
        reader, _ = self._readers[0]
        seen = len(reader.events)
        if (await self.client.get(f"/sessions/{self.id}"))["status"] == "in_progress":
            await eventually(lambda: len(reader.events) > seen or reader.at_end)

    async def open_reader(self) -> None:
        reader = await self._stack.enter_async_context(self.client.following(self.id))
        self._readers.append((reader, asyncio.create_task(_read(reader))))

    async def restart(self) -> None:
        await self._stop()
        await self._serve()
        await self.open_reader()

    async def kill(self) -> None:
        """Goes on with a server on the files as they are now."""
        old = self._folder
        self._folder = old.with_name(f"{next(self._numbers)}")
        ignored = shutil.ignore_patterns("*.lock", "*.sock")
        await asyncio.to_thread(shutil.copytree, old / "state", self._folder / "state", ignore=ignored)
        await self._stop()
        await self._serve()
        await self.open_reader()

    async def _stop(self) -> None:
        """Stops the server. What its readers have seen is held together."""
        for _, task in self._readers:
            task.cancel()
        await asyncio.wait([task for _, task in self._readers])
        self.check_readers()
        self._readers.clear()
        await self._stack.aclose()

    # --- the end ----------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Answers what is asked until the session is idle."""
        await poll(self._is_idle)

    async def _is_idle(self) -> bool:
        session = await self.client.get(f"/sessions/{self.id}")
        for call in session["required_actions"]:
            output = f"This is result {next(self._numbers)}."
            await self.client.send(self.id, result(call, output))
            self.answered.append(output)
        return bool(session["status"] == "idle")

    async def check(self) -> None:
        items = await self.client.all(f"/sessions/{self.id}/items")
        ids = [item["id"] for item in items]
        assert len(set(ids)) == len(ids)
        said = [text_of(item) for item in items if item["type"] == "message" and item["role"] == "user"]
        assert said == self.said
        outputs = [item["output"] for item in items if item["type"] == "function_call_output"]
        assert sorted(outputs) == sorted(self.answered)
        assert not [item for item in items if item.get("status") == "in_progress"]
        turns = await self.client.all(f"/sessions/{self.id}/turns")
        assert {turn["status"] for turn in turns} <= {"completed", "failed", "cancelled"}
        order = {turn["id"]: number for number, turn in enumerate(turns)}
        places = [order[item["turn_id"]] for item in items]
        assert places == sorted(places)
        await self._stop()

    def check_readers(self) -> None:
        """Each reader has seen a part of what the first one has, without a gap."""
        first = [event["event_id"] for event in self._readers[0][0].events]
        for reader, task in self._readers:
            assert task.cancelled() or task.exception() is None, task.exception()
            seen = [event["event_id"] for event in reader.events]
            common = min(len(seen), len(first) - first.index(seen[0])) if seen and seen[0] in first else 0
            if common:
                start = first.index(seen[0])
                assert seen[:common] == first[start : start + common]


async def _read(reader: Reader) -> None:
    async for _ in reader:
        pass


@pytest.mark.sampled(every=49)
@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("serve", [fake_proxy, app_server, claude_code])
async def test_a_random_walk_loses_no_input_and_ends(tmp_path: Path, seed: int, serve: Serving) -> None:
    async with Walk(seed, tmp_path / "first", serve) as walk:
        for _ in range(12):
            await walk.step()
        await walk.finish()
        await walk.check()
