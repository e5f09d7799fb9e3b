"""Sessions and threads of the Managed Agents API: lists, changes, their end, and who may see them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.managed_agents import log_pages
from codex_proxy.parts.managed_agents.pages import Cursor
from tests.access.keyed import key_header, keyed_proxy
from tests.http.serving import Answer, Proxy, fake_proxy
from tests.parts.managed_agents.driving import WEATHER
from tests.parts.managed_agents.following import (
    IDLE,
    RUNNING,
    ManagedClient,
    check_log,
    kinds,
    message,
    result,
    said,
)
from tests.parts.sessions.driving import AgentsClient, text_of
from tests.parts.sessions.driving import message as openai_message
from tests.parts.sessions.test_scenarios import SCENARIOS


async def ids(client: ManagedClient, query: str) -> tuple[list[str], Any]:
    page = await client.well("GET", f"/sessions?{query}")
    return [each["id"] for each in page["data"]], page


async def test_sessions_are_listed_in_pages_both_ways(client: ManagedClient) -> None:
    made = [await client.new_session(title=str(n)) for n in range(5)][::-1]
    shown, page = await ids(client, "limit=2")
    assert (shown, page["prev_page"]) == (made[:2], None)
    shown, page = await ids(client, f"limit=2&page={page['next_page']}")
    assert shown == made[2:4]
    first, _ = await ids(client, f"limit=2&page={page['prev_page']}")
    assert first == made[:2]
    last, page = await ids(client, f"limit=2&page={page['next_page']}")
    assert (last, page["next_page"]) == (made[4:], None)
    assert (await ids(client, f"limit=2&page={page['prev_page']}"))[0] == made[2:4]
    assert (await ids(client, "order=asc"))[0] == made[::-1]


async def test_the_same_request_with_the_same_key_makes_one_session(client: ManagedClient) -> None:
    body = {"agent": await client.new_agent(WEATHER), "environment_id": await client.environment()}

    async def made(**more: Any) -> Answer:
        return await client.ask("POST", "/sessions", body | more, **{"Idempotency-Key": "one"})

    first, again, other = await made(), await made(), await made(title="Another")
    assert (first.status, first.body) == (200, again.body)
    assert (other.status, other.body["type"]) == (409, "error")
    assert (await ids(client, ""))[0] == [first.body["id"]]


async def test_sessions_are_found_by_agent_state_and_archive(client: ManagedClient) -> None:
    one, two = await client.new_session(), await client.new_session("[[fake:tool_call]]")
    agent = (await client.session(one))["agent"]
    assert (await ids(client, f"agent_id={agent['id']}&agent_version=1"))[0] == [one]
    assert (await ids(client, "statuses%5B%5D=terminated"))[0] == []
    archived = await client.well("POST", f"/sessions/{one}/archive")
    assert archived["archived_at"] is not None
    assert (await ids(client, ""))[0] == [two]
    assert (await ids(client, "include_archived=true"))[0] == [two, one]
    said = await client.refused(409, f"/sessions/{one}/events", {"events": [message("Hello?")]})
    assert "archived" in said


async def test_a_running_session_is_neither_deleted_nor_archived(client: ManagedClient) -> None:
    id = await client.new_session("[[fake:count n=2000 delay=10]]")
    assert await client.refused(400, f"/sessions/{id}", method="DELETE") == (
        "Cannot delete session while it is running"
    )
    assert "archive" in await client.refused(400, f"/sessions/{id}/archive")
    async with client.stream(id) as stream:
        await client.send(id, {"type": "user.interrupt"})
        await client.until_rest(id, stream)
        await client.well("DELETE", f"/sessions/{id}")
        assert kinds(await stream.whole())[-1] == "session.deleted"
    await client.refused(404, f"/sessions/{id}", method="GET")


async def test_changes_of_a_session_are_events(client: ManagedClient) -> None:
    id = await client.new_session(metadata={"a": "1", "b": "2"})
    async with client.stream(id) as stream:
        body = {"title": "New", "metadata": {"a": None, "c": "3"}, "agent": {"tools": []}}
        changed = await client.well("POST", f"/sessions/{id}", body)
        event = await stream.until("session.updated")
    assert (changed["title"], changed["metadata"]) == ("New", {"b": "2", "c": "3"})
    assert (event["title"], event["metadata"], event["agent"]["tools"]) == ("New", {"b": "2", "c": "3"}, [])
    assert await client.events(id) == [event]
    assert "agent.system" in await client.refused(400, f"/sessions/{id}", {"agent": {"system": "x"}})


async def test_a_session_stays_in_its_folder(client: ManagedClient) -> None:
    folder = str(client.proxy.server.settings.workdir)
    id = await client.new_session(metadata={"workdir": folder})
    for other in ("/usr", None):
        said = await client.refused(400, f"/sessions/{id}", {"metadata": {"workdir": other}})
        assert "metadata.workdir" in said
    kept = await client.well("POST", f"/sessions/{id}", {"metadata": {"workdir": folder, "a": "1"}})
    assert kept["metadata"] == {"workdir": folder, "a": "1"}


async def test_patches_of_metadata_at_the_same_time_are_all_kept(client: ManagedClient) -> None:
    id = await client.new_session()
    patches = [{f"key{n}": str(n)} for n in range(8)]
    await asyncio.gather(*(client.well("POST", f"/sessions/{id}", {"metadata": each}) for each in patches))
    assert len((await client.session(id))["metadata"]) == len(patches)
    assert len((await client.events(id))[-1]["metadata"]) == len(patches)


async def test_an_agent_may_have_other_settings_in_a_session(client: ManagedClient) -> None:
    agent = await client.new_agent(WEATHER)
    given = {"type": "agent_with_overrides", "id": agent, "system": "Be brief.", "tools": []}
    id = await client.new_session(agent=given)
    found = (await client.session(id))["agent"]
    assert (found["id"], found["system"], found["tools"]) == (agent, "Be brief.", [])


BUDGET = "budget: list costs are not known here. Leave it out: the tokens are in the session's usage."
VAULTS = "vault_ids: vaults are not served here; give the MCP server its own credentials in this server's settings."


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("budget", {"type": "limit", "max_list_cost": {"amount": "1", "currency": "USD"}}, BUDGET),
        ("vault_ids", ["vlt_1"], VAULTS),
        ("resources", [{"type": "github_repository", "url": "x"}], "clone it"),
        ("initial_events", [{"type": "user.interrupt"}], "user.message"),
        ("environment_id", "env_none", "not found"),
        ("agent", "agent_none", "not found"),
    ],
)
async def test_what_a_session_cannot_have_is_refused(
    client: ManagedClient, field: str, value: Any, words: str
) -> None:
    body = {"agent": await client.new_agent(), "environment_id": await client.environment(), field: value}
    answer = await client.ask("POST", "/sessions", body)
    assert answer.status == (404 if words == "not found" else 400)
    assert words in answer.body["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        ("user.define_outcome", ". Say in a user.message what is wanted."),
        ("user.tool_result", ": this server runs the agent's own tools."),
        ("system.message", ". Set 'system' of the agent, or send a user.message."),
    ],
)
async def test_events_that_are_not_served_are_refused_with_what_to_do(
    client: ManagedClient, kind: str, way_out: str
) -> None:
    id = await client.new_session()
    hello = message("Hello.")
    said = await client.refused(400, f"/sessions/{id}/events", {"events": [hello, {"type": kind}]})
    assert said == f"events[1]: {kind} is not served here{way_out}"
    assert await client.events(id) == []


async def test_a_folder_outside_of_the_workspaces_is_forbidden(client: ManagedClient) -> None:
    body = {
        "agent": await client.new_agent(),
        "environment_id": await client.environment(),
        "metadata": {"workdir": "/usr"},
    }
    answer = await client.ask("POST", "/sessions", body)
    assert answer.status == 403
    assert "metadata.workdir" in answer.body["error"]["message"]


async def test_another_key_sees_nothing_of_a_session(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}) as proxy:
        one, two = ManagedClient(proxy), ManagedClient(proxy)
        one.headers, two.headers = (
            {**each.headers, **key_header(name)} for each, name in ((one, "one"), (two, "two"))
        )
        id = await one.new_session("[[fake:text]]")
        (thread,) = await one.threads(id)
        for path in (
            "",
            "/events",
            "/events/stream",
            "/threads",
            f"/threads/{thread['id']}/stream",
            "/resources",
        ):
            await two.refused(404, f"/sessions/{id}{path}", method="GET")
        await two.refused(404, f"/sessions/{id}/events", {"events": [message("Hi")]})
        await two.refused(404, f"/sessions/{id}", method="DELETE")
        assert (await ids(two, ""))[0] == []
        body = {"agent": await two.new_agent(), "environment_id": await one.environment()}
        await two.refused(404, "/sessions", body)


async def test_a_restart_keeps_the_log_and_ends_what_was_open(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    async with fake_proxy(first) as proxy:
        client = ManagedClient(proxy)
        waiting = await client.new_session("[[fake:tool_call]]")
        working = await client.new_session("[[fake:count n=5000 delay=10]]")
        async with client.stream(waiting) as stream:
            if not [each for each in await client.events(waiting) if each["type"] == IDLE]:
                await stream.until(IDLE)
        before = await client.events(waiting)
        ignored = shutil.ignore_patterns("*.lock", "*.sock")
        shutil.copytree(first / "state", second / "state", ignore=ignored)
    async with fake_proxy(second) as proxy:
        client = ManagedClient(proxy)
        assert await client.events(waiting) == before
        (use,) = before[-1]["stop_reason"]["event_ids"]
        async with client.stream(waiting) as stream:
            await client.send(waiting, result(use))
            await client.until_rest(waiting, stream)
        events = await client.events(waiting)
        assert events == [*before, *stream.events]
        ended = await client.events(working)
        assert kinds(ended)[-2:] == ["session.error", IDLE]
        assert said(await client.turn(working, message("[[fake:text say=Back.]]"))) == ["Back."]


async def test_subagents_are_threads_with_logs_of_their_own(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server", sandbox="danger-full-access") as proxy:
        client = ManagedClient(proxy)
        several = {"multiagent": {"type": "coordinator", "agents": [{"type": "self"}]}}
        agent = await client.well("POST", "/agents", {"name": "Boss", "model": "codex-5", **several})
        given = {"type": "agent_with_overrides", "id": agent["id"]}
        id = await client.new_session(agent=given, metadata={"workdir": str(proxy.server.settings.workdir)})
        told = await client.turn(id, message("[[fake:subagent]]"))
        openai = AgentsClient(proxy)
        folder = (await openai.get(f"/sessions/{id}"))["environment"]
        assert (await openai.ask("GET", f"/environments/{folder['id']}")).status == 200
        primary, child = await client.threads(id)
        assert (child["parent_thread_id"], child["agent"]["name"]) == (primary["id"], "Ada")
        assert told == await client.events(id)
        names = kinds(told)
        created = names.index("session.thread_created")
        assert "session.thread_status_running" in names[created:]
        assert names.count("session.thread_status_idle") == names.count("session.thread_status_running")
        assert "agent.thread_message_sent" in names
        assert "agent.thread_message_received" in names
        own = await client.events(id, thread=child["id"])
        assert kinds(own)[0] == "session.thread_created"
        assert said(own, "agent.thread_message_received")[0] == "Say hello."
        assert await client.events(id, thread=primary["id"]) == told
        alone = {"type": "user.interrupt", "session_thread_id": child["id"]}
        assert await client.refused(400, f"/sessions/{id}/events", {"events": [alone]}) == (
            "events[0].session_thread_id: a subagent alone cannot be interrupted here. "
            "Leave it out to interrupt the session."
        )
        archive = f"/sessions/{id}/threads/{child['id']}/archive"
        assert (await client.refused(400, archive)).endswith(
            "end with the session. Archive the session, or leave it out."
        )
        await client.refused(404, f"/sessions/{id}/threads/sthr_x/events", method="GET")
        async with client.stream(id, path=f"threads/{child['id']}/stream") as stream:
            await client.well("DELETE", f"/sessions/{id}")
            assert kinds(await stream.whole()) == ["session.deleted"]


@pytest.mark.parametrize("query", ["statuses[]=busy", f"page={Cursor('asc', 'subagent_x', 0.0)}"])
async def test_a_list_of_threads_is_asked_for_what_there_is(client: ManagedClient, query: str) -> None:
    id = await client.new_session()
    await client.refused(400, f"/sessions/{id}/threads?{query}", method="GET")


async def test_a_page_of_events_ends_when_it_is_large(
    client: ManagedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await client.new_session()
    await client.turn(id, message("a" * 5_000))
    whole = await client.events(id)
    monkeypatch.setattr(log_pages, "MAX_BYTES", 1_000)
    pages, cursor = [], ""
    while cursor is not None:
        page = await client.well("GET", f"/sessions/{id}/events?page={cursor}")
        pages.append(page["data"])
        cursor = page["next_page"]
    assert len(pages) > 1
    assert [event for page in pages for event in page] == whole


async def test_ids_of_events_do_not_grow_with_the_events_of_a_request(client: ManagedClient) -> None:
    id = await client.new_session()
    given = [each for _ in range(20) for each in ({"type": "user.interrupt"}, message("Hello."))]
    sent = (await client.well("POST", f"/sessions/{id}/events", {"events": given}))["data"]
    names = [each["id"] for each in sent]
    assert len({*names}) == len(given)
    assert max(map(len, names)) < 64


async def test_a_session_of_one_api_is_read_through_the_other(proxy: Proxy, client: ManagedClient) -> None:
    openai = AgentsClient(proxy)
    theirs = await openai.idle_session("[[fake:text say=One.]]")
    async with client.stream(theirs) as stream:
        await openai.send(theirs, openai_message("[[fake:tool_call]]"))
        (use,) = (await stream.until(IDLE))["stop_reason"]["event_ids"]
        await client.send(theirs, result(use))
        await client.until_rest(theirs, stream)
    events = await client.events(theirs)
    assert kinds(events).count(RUNNING) == 3
    assert said(events, "user.message") == ["[[fake:text say=One.]]", "[[fake:tool_call]]"]

    ours = await client.new_session("[[fake:text say=Two.]]")
    async with openai.following(ours) as reader:
        if (await openai.get(f"/sessions/{ours}"))["status"] != "idle":
            await reader.until("agent.session.idle")
    items = await openai.all(f"/sessions/{ours}/items")
    assert [item["role"] for item in items] == ["user", "assistant"]
    check_log(await client.events(ours))


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("dialect", ["proto", "app-server"])
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_each_turn_of_openais_api_has_a_whole_log_in_this_one(
    tmp_path: Path, scenario: str, dialect: str
) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        openai, client = AgentsClient(proxy), ManagedClient(proxy)
        id = await openai.idle_session(f"[[fake:{scenario}]]")
        items = await openai.all(f"/sessions/{id}/items")
        events = await client.events(id)
        assert (await client.session(id))["status"] == "idle"
        assert said(events, "user.message") == [f"[[fake:{scenario}]]"]
        shown = [item for item in items if item["type"] == "message" and item["role"] == "assistant"]
        assert said(events) == [text for item in shown if (text := text_of(item))]
        calls = [item for item in items if item["type"] in ("function_call", "mcp_call")]
        assert sum(each in ("agent.custom_tool_use", "agent.mcp_tool_use") for each in kinds(events)) == len(
            calls
        )


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_events_are_paged_up_to_both_ends(client: ManagedClient, order: str) -> None:
    id = await client.new_session(tools=())
    await client.turn(id, message("[[fake:text]]"))
    path = f"/sessions/{id}/events?order={order}"
    whole = await client.well("GET", f"{path}&limit=1000")
    assert whole["next_page"] is None
    found: list[Any] = []
    page: Any = {"next_page": ""}
    while page["next_page"] is not None:
        page = await client.well("GET", f"{path}&limit=1&page={page['next_page']}")
        assert len(page["data"]) == 1
        found += page["data"]
    assert found == whole["data"]
    assert len(found) > 2
    for limit in ("0", "-1", "1001", "9" * 30, "x", "1.5", ""):
        assert "limit" in await client.refused(400, f"{path}&limit={limit}", method="GET")
    first = await client.well("GET", f"{path}&limit=1")
    other = "asc" if order == "desc" else "desc"
    said = await client.refused(
        400, f"/sessions/{id}/events?order={other}&page={first['next_page']}", method="GET"
    )
    assert "page" in said
