"""The own sessions of programs that speak ACP, behind sessions of the Agents API: they go on after a restart of the
server, none of what is replayed becomes an item, and they are deleted with the session.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.faults import bad_request
from codex_proxy.core.turn import Turn
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.runs.services import RunServices
from tests.http.serving import fake_proxy
from tests.parts.sessions.driving import WEATHER, AgentsClient, message, text_of
from tests.parts.sessions.test_folders import hosted
from tests.waiting import eventually

ECHO = "[[fake:echo]]"
"""Has the agent tell its history."""


@asynccontextmanager
async def served(folder: Path, *, stored: Path | None = None, **settings: Any) -> AsyncIterator[AgentsClient]:
    """A server on the fake agent. `stored`: where that stores its sessions; without it they end with its process."""
    if stored is not None:
        stored.mkdir(exist_ok=True)
    environment = {} if stored is None else {"FAKE_CODEX_SESSIONS": str(stored)}
    async with fake_proxy(folder, environment, fake_dialect="acp", **settings) as proxy:
        yield AgentsClient(proxy)


async def new_session(client: AgentsClient, folder: Path, **more: Any) -> str:
    return (await client.post("/sessions", hosted(folder, **more)))["id"]  # type: ignore[no-any-return]


async def thread_of(client: AgentsClient, id: str) -> str | None:
    return (await client.ask("GET", f"/sessions/{id}")).headers.get("x-codex-thread")


async def history_of(client: AgentsClient, id: str, text: str) -> list[str]:
    """Sends a message; returns what the agent's own session has of the user."""
    told = await client.turn(id, message(f"{text} {ECHO}"))
    assert told[-2]["type"] == "agent.session.turn.completed", told[-2]
    said = json.loads(text_of(told[-3]["item"]))["history"]
    return [each["text"].removesuffix(f" {ECHO}") for each in said if each.get("role") == "user"]


async def items_of(client: AgentsClient, id: str) -> list[str]:
    return [text_of(item) for item in await client.all(f"/sessions/{id}/items")]


async def test_a_session_goes_on_with_the_programs_own_session_after_a_restart(tmp_path: Path) -> None:
    stored = tmp_path / "stored"
    async with served(tmp_path, stored=stored) as client:
        id = await new_session(client, tmp_path)
        assert await history_of(client, id, "one") == ["one"]
        thread = await thread_of(client, id)
        assert thread
        assert await history_of(client, id, "two") == ["one", "two"]
    async with served(tmp_path, stored=stored) as client:
        before = await items_of(client, id)
        assert await history_of(client, id, "three") == ["one", "two", "three"]
        assert await thread_of(client, id) == thread
        items = await items_of(client, id)
        assert items[: len(before)] == before
        assert len(items) == len(before) + 2, "what the program replays is no item"


async def test_a_program_that_has_lost_its_session_gets_the_whole_conversation(tmp_path: Path) -> None:
    async with served(tmp_path, stored=tmp_path / "a") as client:
        id = await new_session(client, tmp_path)
        await history_of(client, id, "one")
        thread = await thread_of(client, id)
    async with served(tmp_path, stored=tmp_path / "b") as client:
        [told] = await history_of(client, id, "two")
        assert "one" in told, "as one labelled text"
        assert await thread_of(client, id) not in (thread, None)
        assert len(await items_of(client, id)) == 4


@pytest.mark.parametrize("change", [{"tools": [WEATHER]}, {"reasoning": {"effort": "low"}}])
async def test_only_what_a_session_cannot_change_begins_another_one(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    async with served(tmp_path, stored=tmp_path / "stored") as client:
        id = await new_session(client, tmp_path)
        await history_of(client, id, "one")
        thread = await thread_of(client, id)
        await client.post(f"/sessions/{id}", {"agent": change})
        await history_of(client, id, "two")
        assert (await thread_of(client, id) == thread) is ("tools" not in change)


async def test_the_programs_own_session_is_deleted_with_the_session(tmp_path: Path) -> None:
    stored = tmp_path / "stored"
    async with served(tmp_path, stored=stored) as client:
        id = await new_session(client, tmp_path)
        await history_of(client, id, "one")
        assert [f"{await thread_of(client, id)}.json"] == [file.name for file in stored.iterdir()]
        await client.delete(f"/sessions/{id}")
        assert list(stored.iterdir()) == []


async def test_a_fork_of_a_whole_session_goes_on_with_a_copy_of_the_programs_own_session(
    tmp_path: Path,
) -> None:
    stored = tmp_path / "stored"
    async with served(tmp_path, stored=stored) as client:
        id = await new_session(client, tmp_path)
        await history_of(client, id, "one")
        thread = await thread_of(client, id)
        fork = (await client.post(f"/sessions/{id}/fork", {}))["id"]
        copy = await thread_of(client, fork)
        assert copy not in (None, thread)
        assert await history_of(client, id, "two") == ["one", "two"], "the session goes on by itself"
        assert await history_of(client, fork, "three") == ["one", "three"], (
            "nothing is said again as one text"
        )
        assert await thread_of(client, fork) == copy
    async with served(tmp_path, stored=stored) as client:
        assert await history_of(client, fork, "four") == ["one", "three", "four"]
        await client.delete(f"/sessions/{fork}")
        assert [f"{thread}.json"] == [file.name for file in stored.iterdir()], "each has its own"


async def test_a_fork_of_a_fork_that_has_not_gone_on_has_its_own_copy(tmp_path: Path) -> None:
    async with served(tmp_path, stored=tmp_path / "stored") as client:
        ids = [await new_session(client, tmp_path)]
        await history_of(client, ids[0], "one")
        for _ in range(2):
            ids.append((await client.post(f"/sessions/{ids[-1]}/fork", {}))["id"])
        assert len({await thread_of(client, id) for id in ids}) == 3
        assert await history_of(client, ids[2], "two") == ["one", "two"]


async def test_a_fork_before_an_item_begins_a_session_of_the_programs_anew(
    tmp_path: Path,
) -> None:
    stored = tmp_path / "stored"
    async with served(tmp_path, stored=stored) as client:
        id = await new_session(client, tmp_path)
        await history_of(client, id, "one")
        await history_of(client, id, "two")
        before = (await client.all(f"/sessions/{id}/items"))[2]["id"]
        fork = (await client.post(f"/sessions/{id}/fork", {"before_item": before}))["id"]
        assert await thread_of(client, fork) is None
        assert len(list(stored.iterdir())) == 1, "the program was not asked"
        [told] = await history_of(client, fork, "three")
        assert "one" in told
        assert "two" not in told


async def test_a_fork_of_a_session_that_the_program_has_lost_replays_its_items(tmp_path: Path) -> None:
    async with served(tmp_path, stored=tmp_path / "a") as client:
        id = await new_session(client, tmp_path)
        await history_of(client, id, "one")
    async with served(tmp_path, stored=tmp_path / "b") as client:
        fork = (await client.post(f"/sessions/{id}/fork", {}))["id"]
        assert await thread_of(client, fork) is None
        [told] = await history_of(client, fork, "two")
        assert "one" in told, "as one labelled text"


async def test_a_fork_has_nothing_of_a_turn_that_comes_while_the_program_copies_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = tmp_path / "stored"
    async with served(tmp_path, stored=stored) as client:
        id = await new_session(client, tmp_path)
        await history_of(client, id, "one")
        fork_stored = RunServices.fork_stored
        copied: list[tuple[str, str, str]] = []

        async def late(services: RunServices, agent: str, thread: str, turn: Turn) -> str:
            copied.append((turn.workdir, turn.sandbox, turn.owner))
            await history_of(client, id, "two")
            return await fork_stored(services, agent, thread, turn)

        monkeypatch.setattr(RunServices, "fork_stored", late)
        fork = (await client.post(f"/sessions/{id}/fork", {}))["id"]
        assert len(list(stored.iterdir())) == 1
        [told] = await history_of(client, fork, "three")
        assert "one" in told
        assert "two" not in told
        assert copied == [(str(tmp_path), "read-only", "local")]


async def test_a_fork_that_cannot_be_stored_leaves_no_session_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = tmp_path / "stored"
    async with served(tmp_path, stored=stored) as client:
        id = await new_session(client, tmp_path)
        await history_of(client, id, "one")

        async def fail(*_: object) -> None:
            assert len(list(stored.iterdir())) == 2
            raise bad_request("There is no room for it.", None)

        monkeypatch.setattr(Sessions, "create", fail)
        assert (await client.ask("POST", f"/sessions/{id}/fork", {})).status == 400
        await eventually(lambda: len(list(stored.iterdir())) == 1)


async def test_a_session_that_the_program_has_deleted_already_can_be_deleted(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        id = await new_session(client, tmp_path)
        await history_of(client, id, "one")
    async with served(tmp_path) as client:
        await client.delete(f"/sessions/{id}")


async def test_a_conversation_without_a_folder_has_no_session_of_the_program(tmp_path: Path) -> None:
    stored = tmp_path / "stored"
    async with served(tmp_path, stored=stored) as client:
        id = await client.idle_session()
        assert await thread_of(client, id) is None
