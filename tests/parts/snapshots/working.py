"""A server that keeps snapshots, and turns of sessions in which the files of a folder change: the test is the agent, as
long as a call of its waits for the result.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.http.serving import Proxy, fake_proxy
from tests.parts.sessions.driving import AGENT, AgentsClient, message

SETTINGS: dict[str, Any] = {"snapshots": "sessions", "sandbox": "workspace-write"}


@asynccontextmanager
async def snapshot_proxy(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[AgentsClient, Path]]:
    """Yields a client of a server that keeps snapshots, and a new folder in which its sessions may work."""
    folder = tmp_path / "work"
    folder.mkdir(parents=True, exist_ok=True)
    state = tmp_path / "state"
    async with fake_proxy(folder, **{**SETTINGS, "state_dir": state, **settings}) as proxy:
        yield AgentsClient(proxy), folder


class Worker:
    """A session in a folder, and what its turns do."""

    def __init__(self, client: AgentsClient, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.session = ""

    async def turn(self, work: Callable[[], object]) -> str:
        """Runs a turn in which `work` is done. Returns the turn's id."""
        text = "[[fake:tool_call]]"

        def answer(_: Any) -> str:
            work()
            return "done"

        if not self.session:
            environment = {"type": "self_hosted", "workspace_directory": str(self.folder), "remote_url": ""}
            events = await self.client.whole_stream(text, answer, environment=environment, agent=AGENT)
            self.session = events[0]["session"]["id"]
        else:
            events = await self._further(text, answer)
        ends = [each for each in events if each["type"] == "agent.session.turn.completed"]
        return str(ends[-1]["turn"]["id"])

    async def _further(self, text: str, answer: Callable[[Any], str]) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        async with self.client.following(self.session) as reader:
            await self.client.send(self.session, message(text))
            async for event in reader:
                told.append(event)
                await self.client.answer_call(event, answer)
                if event["type"] == "agent.session.idle":
                    return told
        raise AssertionError("the stream has ended")

    async def changes(self, turn: str) -> dict[str, Any]:
        answer = await self.client.ask("GET", f"/sessions/{self.session}/turns/{turn}/changes")
        assert answer.status == 200, answer.text
        found: dict[str, Any] = answer.body
        return found

    async def revert(self, turn: str, **body: Any) -> Any:
        return await self.client.ask("POST", f"/sessions/{self.session}/turns/{turn}/revert", body)


__all__ = ["Proxy", "Worker", "snapshot_proxy"]
