"""Random walks of clients of a session whose agent asks them for permission."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.http.serving import fake_proxy
from tests.parts.sessions.approving import ASKING, KEY, answer_to
from tests.parts.sessions.driving import AgentsClient, result
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.test_walks import SCENARIOS, Walk

ASKED = ("approval", "approvals", "approval_patch")


class AskingWalk(Walk):
    """A walk in whose session most turns ask for something."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self._workdir = folder

    async def __aenter__(self) -> AskingWalk:
        await self._serve()
        self.said.append(self._text())
        self.id = (await self.client.new_session(self.said[0], **hosted(self._workdir)))["id"]
        await self.open_reader()
        return self

    async def _serve(self) -> None:
        self._folder.mkdir(exist_ok=True)
        serving = fake_proxy(self._folder, **ASKING | {"workdir": self._workdir})
        self.client = AgentsClient(await self._stack.enter_async_context(serving), KEY)

    def _text(self) -> str:
        scenario = self._random.choice((*SCENARIOS, *ASKED * 4))
        return f"[[fake:{scenario}]] This is message {next(self._numbers)}."

    async def step(self) -> None:
        if self._random.random() < 0.25:
            await self.approve()
        else:
            await super().step()

    async def approve(self) -> None:
        """Two clients answer a question in the same way at once: it is taken from both, or from none."""
        session = await self.client.get(f"/sessions/{self.id}")
        asked = [each for each in session["required_actions"] if each["type"] != "function_call"]
        if asked:
            event = answer_to(self._random.choice(asked), self._random.choice(("approve", "deny")))
            path = f"/sessions/{self.id}/events"
            sent = [self.client.ask("POST", path, {"events": [event]}) for _ in range(2)]
            statuses = {answer.status for answer in await asyncio.gather(*sent)}
            assert statuses in ({202}, {409}), statuses

    async def _is_idle(self) -> bool:
        session = await self.client.get(f"/sessions/{self.id}")
        for action in session["required_actions"]:
            if action["type"] != "function_call":
                path = f"/sessions/{self.id}/events"
                answered = await self.client.ask("POST", path, {"events": [answer_to(action)]})
                assert answered.status in (202, 409)
                continue
            output = f"This is result {next(self._numbers)}."
            await self.client.send(self.id, result(action, output))
            self.answered.append(output)
        return bool(session["status"] == "idle")


@pytest.mark.sampled(every=50)
@pytest.mark.parametrize("seed", range(100))
async def test_a_random_walk_with_questions_of_the_agent_loses_no_input_and_ends(
    tmp_path: Path, seed: int
) -> None:
    async with AskingWalk(seed, tmp_path / "first") as walk:
        for _ in range(14):
            await walk.step()
        await walk.finish()
        await walk.check()
