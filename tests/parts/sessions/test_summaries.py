"""Summaries of sessions: the lists of the page and of terminals, with titles, searches and an archive."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.sessions.service import SESSIONS
from tests.access.keyed import key_of, write_keys
from tests.every_agent import proxy_of
from tests.http.serving import Answer, fake_proxy
from tests.parts.sessions.driving import CANCEL, AgentsClient, message
from tests.parts.sessions.test_folders import hosted
from tests.waiting import poll


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AgentsClient]:
    async with fake_proxy(tmp_path) as proxy:
        yield AgentsClient(proxy)


async def summary(client: AgentsClient, id: str) -> dict[str, Any]:
    answer = await client.ask("GET", f"/sessions/{id}/summary")
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.body
    return found


async def change(client: AgentsClient, id: str, **fields: Any) -> Answer:
    return await client.ask("POST", f"/sessions/{id}/summary", fields)


async def eventually_waits(client: AgentsClient, id: str) -> None:
    """Returns when the session's turn waits for the result of a call."""

    async def waits() -> bool:
        return bool((await summary(client, id))["status"] == "requires_action")

    await poll(waits)


async def listed(client: AgentsClient, query: str = "") -> list[str]:
    answer = await client.ask("GET", f"/session_summaries{query}")
    assert answer.status == 200, answer.text
    return [each["id"] for each in answer.body["data"]]


async def test_a_summary_says_what_a_list_of_sessions_shows(client: AgentsClient, tmp_path: Path) -> None:
    session = await client.post("/sessions", hosted(tmp_path))
    await client.turn(session["id"], message("Mend\nthe \u202eroof."))
    found = await summary(client, session["id"])
    now = await client.get(f"/sessions/{session['id']}")
    assert found == {
        "object": "agent.session.summary",
        "id": session["id"],
        "title": "Mend the \\u202eroof.",
        "agent": "fake",
        "model": "codex-5",
        "mode": "agent",
        "folder": str(tmp_path),
        "sandbox": "read-only",
        "approvals": "decline",
        "may_approve": False,
        "status": "idle",
        "created_at": now["created_at"],
        "last_active_at": now["last_active_at"],
        "archived": False,
        "forked_from": None,
        "turn": None,
        "queued": [],
        "plan": None,
        "usage": now["usage"],
        "context": found["context"],
        "cost": None,
        "asks": [],
        "resume": None,
    }
    plain = await summary(client, await client.idle_session("Hello."))
    assert (plain["mode"], plain["folder"], plain["sandbox"]) == ("model", None, None)


async def test_a_change_of_a_summary_that_says_nothing_is_refused(client: AgentsClient) -> None:
    path = f"/sessions/{await client.idle_session('Hello.')}/summary"
    for body, says in (
        ({}, "Give at least one"),
        ({"foo": 1}, "Give at least one"),
        ({"archived": None}, "expected a boolean, but got null"),
    ):
        answer = await client.ask("POST", path, body)
        assert (answer.status, says in answer.error["message"]) == (400, True), answer.text


async def test_a_long_first_message_is_cut_in_the_title(client: AgentsClient) -> None:
    found = await summary(client, await client.idle_session("word " * 100))
    assert len(found["title"]) == 80
    assert found["title"].endswith("…")


@pytest.fixture
def ticking(client: AgentsClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each moment of sessions a second later than the one before."""
    seconds = itertools.count(1_900_000_000)
    monkeypatch.setattr(client.proxy.app[SESSIONS], "epoch", lambda: float(next(seconds)))


@pytest.mark.usefixtures("ticking")
async def test_a_title_is_the_users_until_it_is_taken_away(client: AgentsClient) -> None:
    id = await client.idle_session("Mend the roof.")
    before = await client.get(f"/sessions/{id}")
    assert (await change(client, id, title=" The \n roof ")).body["title"] == "The roof"
    assert (await summary(client, id))["title"] == "The roof"
    assert (await change(client, id, title=None)).body["title"] == "Mend the roof."
    assert await client.get(f"/sessions/{id}") == before


async def test_a_running_turn_and_messages_that_wait_are_in_the_summary(client: AgentsClient) -> None:
    session = await client.new_session("[[fake:tool_call]]")
    await eventually_waits(client, session["id"])
    found = await summary(client, session["id"])
    turns = await client.get(f"/sessions/{session['id']}/turns")
    assert found["turn"]["id"] == turns["data"][0]["id"]
    await client.send(session["id"], message("x" * 3000))
    (queued,) = (await summary(client, session["id"]))["queued"]
    assert queued["text"] == "x" * 1997 + "..."
    await client.send(session["id"], CANCEL)


@pytest.mark.usefixtures("ticking")
async def test_the_session_that_was_active_last_is_listed_first(client: AgentsClient) -> None:
    one, two, three = [await client.idle_session(text) for text in ("One.", "Two.", "Three.")]
    await client.turn(one, message("Again."))
    shown = await listed(client)
    assert shown == [one, three, two]
    page = (await client.ask("GET", "/session_summaries?limit=2")).body
    assert (len(page["data"]), page["has_more"], page["last_id"]) == (2, True, shown[1])
    assert await listed(client, f"?limit=2&after={shown[1]}") == shown[2:]


async def test_a_search_finds_titles_and_what_the_client_has_said(client: AgentsClient) -> None:
    roof = await client.idle_session("Mend the roof.")
    await client.turn(roof, message('A "quoted" Ärger, later.'))
    door = await client.idle_session("Paint the door.")
    await change(client, door, title="The entrance")
    for search, found in (
        ("ROOF", [roof]),
        ("the", [door, roof]),
        ('"QUOTED" Ärger', [roof]),
        ("entrance", [door]),
        ("paint", [door]),
        ("input_text", []),
        ("%", []),
    ):
        assert sorted(await listed(client, f"?search={search}")) == sorted(found), search


async def test_what_the_agent_says_is_not_searched(client: AgentsClient) -> None:
    id = await client.idle_session("Hello.")
    items = await client.all(f"/sessions/{id}/items")
    said = items[-1]["content"][0]["text"]
    assert said
    assert await listed(client, f"?search={said[:12]}") == []


async def test_an_archived_session_takes_no_message_until_it_is_restored(client: AgentsClient) -> None:
    id = await client.idle_session("Mend the roof.")
    before = await client.get(f"/sessions/{id}")
    assert (await change(client, id, archived=True)).body["archived"]
    archived = await summary(client, id)
    again = await change(client, id, archived=True)
    assert (again.status, again.body) == (200, archived), "it is what was asked for"
    assert await listed(client) == []
    assert await listed(client, "?archived=true") == [id]
    assert await listed(client, "?archived=true&search=roof") == [id]
    refused = await client.refused(id, message("More."))
    assert (refused.status, "restored" in refused.text) == (409, True)
    assert await client.get(f"/sessions/{id}") == before
    restored = (await change(client, id, archived=False, title="Roof")).body
    assert (restored["archived"], restored["title"]) == (False, "Roof")
    assert (await client.turn(id, message("More.")))[-1]["type"] == "agent.session.idle"


async def test_an_archived_session_can_be_renamed_but_not_changed(client: AgentsClient) -> None:
    id = await client.idle_session("Mend the roof.")
    await change(client, id, archived=True)
    renamed = (await change(client, id, archived=True, title="Roof")).body
    assert (renamed["archived"], renamed["title"]) == (True, "Roof")
    assert (await change(client, id, title="Shed")).body["title"] == "Shed"
    metadata = await client.ask("POST", f"/sessions/{id}", {"metadata": {"place": "shed"}})
    assert metadata.status == 409


async def test_a_session_at_work_is_not_archived(client: AgentsClient) -> None:
    session = await client.new_session("[[fake:tool_call]]")
    assert (await change(client, session["id"], archived=True)).status == 409
    assert (await change(client, session["id"], title="Busy")).status == 200
    await client.send(session["id"], CANCEL)


async def test_a_summary_survives_a_restart(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store=str(tmp_path / "store.db")) as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session("Mend the roof.")
        await change(client, id, archived=True)
        before = await summary(client, id)
    async with fake_proxy(tmp_path, store=str(tmp_path / "store.db")) as proxy:
        assert await summary(AgentsClient(proxy), id) == before


async def test_another_keys_sessions_are_not_there(tmp_path: Path) -> None:
    write_keys(tmp_path, one={}, other={})
    async with fake_proxy(tmp_path) as proxy:
        mine, theirs = AgentsClient(proxy, key_of("one")), AgentsClient(proxy, key_of("other"))
        id = await mine.idle_session("Mend the roof.")
        assert await listed(mine) == [id]
        assert await listed(theirs) == await listed(theirs, "?search=roof") == []
        assert (await theirs.ask("GET", f"/sessions/{id}/summary")).status == 404
        assert (await change(theirs, id, title="Mine")).status == 404


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?archived=yes", "archived"),
        (f"?search={'x' * 201}", "search"),
        ("?search=%0a", "search"),
        ("?after=sess_none", "after"),
        ("?limit=1&limit=2", "limit"),
    ],
)
async def test_a_wrong_query_is_refused_with_its_name(client: AgentsClient, query: str, param: str) -> None:
    answer = await client.ask("GET", f"/session_summaries{query}")
    assert (answer.status, answer.error["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"title": " "}, "title"),
        ({"title": "x" * 201}, "title"),
        ({"archived": None}, "archived"),
    ],
)
async def test_a_wrong_change_is_refused_with_its_name(
    client: AgentsClient, body: dict[str, Any], param: str | None
) -> None:
    id = await client.idle_session()
    answer = await change(client, id, **body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.text


@pytest.mark.parametrize("kind", ["proto", "app-server", "acp", "claude-code"])
async def test_the_newest_plan_of_each_agent_is_shown(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    async with proxy_of(kind, tmp_path, workdir=folder) as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session("[[fake:activity]]", **hosted(folder))
        assert (await summary(client, id))["plan"] == [
            {"step": "look", "status": "completed"},
            {"step": "change", "status": "in_progress"},
            {"step": "check", "status": "pending"},
        ]
        await client.turn(id, message("[[fake:text]]"))
        assert len((await summary(client, id))["plan"]) == 3


async def test_the_tokens_of_the_last_call_and_the_window_are_shown(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session("[[fake:text]]")
        once = await summary(client, id)
        assert once["context"]["used"] == once["usage"]["total_tokens"] > 0
        await client.turn(id, message("[[fake:text]]"))
        twice = await summary(client, id)
        assert once["context"]["used"] <= twice["context"]["used"] < twice["usage"]["total_tokens"]


async def test_a_sandbox_is_kept_with_a_session_and_never_wider_than_the_keys(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    async with fake_proxy(tmp_path, workdir=folder, sandbox="workspace-write") as proxy:
        client = AgentsClient(proxy)
        narrow = {"headers": {"X-Codex-Sandbox": "read-only"}}
        made = await client.ask("POST", "/sessions", hosted(folder), **narrow)
        assert (await summary(client, made.body["id"]))["sandbox"] == "read-only"
        plain = await client.post("/sessions", hosted(folder))
        assert (await summary(client, plain["id"]))["sandbox"] == "workspace-write"
        for wrong, status in (("danger-full-access", 403), ("none", 400)):
            refused = await client.ask(
                "POST", "/sessions", hosted(folder), headers={"X-Codex-Sandbox": wrong}
            )
            assert (refused.status, refused.error["param"]) == (status, "X-Codex-Sandbox")
