"""When the agent looks at what other programs have done on a stored thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.codex_app_server.agent import AppServerAgent
from codex_proxy.agents.codex_app_server.wire import Message
from tests.agents.app_servers import app_server


class Listing:
    """Plays a process that lists these turns of a terminal, oldest first, for a thread in `file`."""

    def __init__(self, file: Path, *turns: str) -> None:
        self.file = file
        self.turns = list(turns)
        self.looks = 0
        self.closed = asyncio.Event()
        self.closed.set()

    async def ask(self, method: str, **params: Any) -> Message:
        item: dict[str, Any] = {"type": "userMessage", "id": "u", "content": []}
        listed = [{"id": id, "status": "completed", "items": [item]} for id in reversed(self.turns)]
        self.looks += method == "thread/resume"
        results: dict[str, Any] = {
            "thread/resume": {"thread": {"id": "thread", "path": str(self.file)}},
            "thread/turns/list": {"data": listed},
            "thread/items/list": {"data": [{"item": item}]},
        }
        return Message(result=msgspec.Raw(msgspec.json.encode(results.get(method, {}))))


@pytest.fixture
def listing(tmp_path: Path) -> Listing:
    file = tmp_path / "thread.jsonl"
    file.write_text("")
    return Listing(file, "A", "B")


@pytest.fixture
def agent(listing: Listing, monkeypatch: pytest.MonkeyPatch) -> AppServerAgent:
    @asynccontextmanager
    async def requests() -> AsyncIterator[Listing]:
        yield listing

    made = app_server()
    monkeypatch.setattr(made, "_requests", requests)
    return made


async def look(agent: AppServerAgent, known: str) -> list[str]:
    return [turn.id for turn in await agent.turns_elsewhere("thread", "sess_1", known)]


async def test_turns_that_the_caller_could_not_store_are_found_again(agent: AppServerAgent) -> None:
    assert await look(agent, "") == ["A", "B"]
    assert await look(agent, "") == ["A", "B"], "the file is the same, but they are not known"
    assert await look(agent, "A") == ["B"]


async def test_a_thread_whose_file_has_not_changed_is_not_read_again(
    agent: AppServerAgent, listing: Listing
) -> None:
    await look(agent, "")
    assert await look(agent, "B") == []
    assert listing.looks == 1
    listing.turns.append("C")
    listing.file.write_text("more")
    assert await look(agent, "B") == ["C"]
    assert await look(agent, "C") == []
    assert listing.looks == 2
