"""Forks: sessions that begin with the items of another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.sessions.records import SessionStore
from codex_proxy.parts.sessions.sessions import Entry
from tests.access.keyed import key_of, write_keys
from tests.http.serving import fake_proxy
from tests.parts.sessions.driving import AGENT, BETA, AgentsClient, check_object, message
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.test_summaries import change, eventually_waits, summary


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AgentsClient]:
    async with fake_proxy(tmp_path) as proxy:
        yield AgentsClient(proxy)


async def fork(client: AgentsClient, id: str, **fields: Any) -> dict[str, Any]:
    answer = await client.ask("POST", f"/sessions/{id}/fork", fields)
    assert answer.status == 201, answer.text
    check_object(answer.body)
    made: dict[str, Any] = answer.body
    return made


async def items_of(client: AgentsClient, id: str) -> list[dict[str, Any]]:
    return await client.all(f"/sessions/{id}/items")


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.items() if name not in ("id", "turn_id")} for each in items]


async def test_a_fork_has_the_turn_that_begins_while_the_session_is_read(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await client.idle_session("One.")
    read, waits = SessionStore.all_entries, False

    async def begin_behind(self: SessionStore, owner: str, session: str) -> list[Entry]:
        nonlocal waits
        entries = await read(self, owner, session)
        if not waits:
            waits = True
            await client.send(id, message("[[fake:tool_call]]"))
            await eventually_waits(client, id)
        return entries

    with monkeypatch.context() as patched:
        patched.setattr(SessionStore, "all_entries", begin_behind)
        made = await fork(client, id)
    texts = [each["content"][0]["text"] for each in await items_of(client, made["id"]) if "role" in each]
    assert "[[fake:tool_call]]" in texts
    turns = await client.all(f"/sessions/{made['id']}/turns")
    assert sorted(turn["status"] for turn in turns) == ["cancelled", "completed"]


async def test_a_fork_has_the_settings_the_turns_and_the_items_of_the_session(client: AgentsClient) -> None:
    id = await client.idle_session("[[fake:tool_call]]", metadata={"a": "b"})
    await client.turn(id, message("One."), message("Two."))
    made = await fork(client, id)
    source = await client.get(f"/sessions/{id}")
    assert made["id"] != id
    assert made["status"] == "idle"
    assert [made[name] for name in ("agent", "environment", "metadata")] == [
        source[name] for name in ("agent", "environment", "metadata")
    ]
    before, after = await items_of(client, id), await items_of(client, made["id"])
    assert [each["type"] for each in after].count("function_call_output") == 1
    assert without_ids(after) == without_ids(before)
    assert not {each["id"] for each in after} & {each["id"] for each in before}
    turns = [await client.all(f"/sessions/{each}/turns") for each in (id, made["id"])]
    statuses = [[turn["status"] for turn in each] for each in turns]
    assert statuses[0] == statuses[1]
    for turn in turns[1]:
        assert turn["session_id"] == made["id"]
        shown = await client.all(f"/sessions/{made['id']}/turns/{turn['id']}/items")
        assert shown == [each for each in after if each["turn_id"] == turn["id"]]


async def test_a_fork_goes_on_with_what_was_said_and_the_session_does_not_know(client: AgentsClient) -> None:
    id = await client.idle_session("[[fake:text]]")
    made = await fork(client, id)
    before = await items_of(client, id)
    events = await client.turn(made["id"], message("[[fake:echo]] And then?"))
    assert events[-1]["type"] == "agent.session.idle"
    after = await items_of(client, made["id"])
    assert without_ids(after[: len(before)]) == without_ids(before)
    assert len(after) == len(before) + 2
    assert len({each["id"] for each in after}) == len(after)
    assert await items_of(client, id) == before
    await client.delete(f"/sessions/{id}")
    assert await items_of(client, made["id"]) == after


async def test_a_fork_ends_before_the_item_that_is_named(client: AgentsClient) -> None:
    id = await client.idle_session("One.")
    await client.turn(id, message("Two."))
    items = await items_of(client, id)
    second = next(each for each in items if each.get("content", [{}])[0].get("text") == "Two.")
    made = await fork(client, id, before_item=second["id"])
    assert without_ids(await items_of(client, made["id"])) == without_ids(items[: items.index(second)])
    assert len(await client.all(f"/sessions/{made['id']}/turns")) == 1
    empty = await fork(client, id, before_item=items[0]["id"])
    assert await items_of(client, empty["id"]) == []
    assert (await client.turn(empty["id"], message("Anew.")))[-1]["type"] == "agent.session.idle"


async def test_a_call_without_a_result_is_left_out(client: AgentsClient) -> None:
    session = await client.new_session("[[fake:tool_call]]")
    await eventually_waits(client, session["id"])
    made = await fork(client, session["id"])
    assert [each["type"] for each in await items_of(client, made["id"])] == ["message"]
    (turn,) = await client.all(f"/sessions/{made['id']}/turns")
    assert turn["status"] == "cancelled"
    assert (await client.turn(made["id"], message("Go on.")))[-1]["type"] == "agent.session.idle"
    assert (await summary(client, session["id"]))["status"] == "requires_action"


async def test_a_fork_before_a_result_has_no_call(client: AgentsClient) -> None:
    id = await client.idle_session("[[fake:tool_call]]")
    items = await items_of(client, id)
    result = next(each for each in items if each["type"] == "function_call_output")
    made = await fork(client, id, before_item=result["id"])
    assert "function_call" not in [each["type"] for each in await items_of(client, made["id"])]


async def test_what_the_agent_did_in_a_folder_is_in_the_fork(client: AgentsClient, tmp_path: Path) -> None:
    session = await client.post("/sessions", hosted(tmp_path))
    await client.turn(session["id"], message("[[fake:activity]]"))
    made = await fork(client, session["id"])
    before, after = await items_of(client, session["id"]), await items_of(client, made["id"])
    assert "command_execution" in [each["type"] for each in after]
    assert without_ids(after) == without_ids(before)
    environment = await client.ask("GET", f"/environments/{made['environment']['id']}")
    assert (environment.status, made["environment"]["id"] != session["environment"]["id"]) == (200, True)


async def test_the_summary_of_a_fork_names_the_session(client: AgentsClient) -> None:
    id = await client.idle_session("Mend the roof.")
    await change(client, id, title="Roof")
    made = await summary(client, (await fork(client, id))["id"])
    assert (made["title"], made["forked_from"]) == ("Roof", id)
    named = await summary(client, (await fork(client, id, title="Another roof"))["id"])
    assert named["title"] == "Another roof"


async def test_a_fork_of_an_unknown_item_or_session_is_refused(tmp_path: Path) -> None:
    write_keys(tmp_path, one={}, other={})
    async with fake_proxy(tmp_path) as proxy:
        mine, theirs = AgentsClient(proxy, key_of("one")), AgentsClient(proxy, key_of("other"))
        id = await mine.idle_session()
        item = (await items_of(mine, await mine.idle_session()))[0]["id"]
        answer = await mine.ask("POST", f"/sessions/{id}/fork", {"before_item": item})
        assert (answer.status, answer.error["param"]) == (400, "before_item")
        assert (await theirs.ask("POST", f"/sessions/{id}/fork", {})).status == 404


async def test_a_fork_may_have_a_narrower_sandbox_than_the_session_and_no_wider_one(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    settings: dict[str, Any] = {"sandbox": "workspace-write", "state_dir": tmp_path / "state"}
    async with fake_proxy(tmp_path / "work", **settings) as proxy:
        client = AgentsClient(proxy)
        made = await client.post("/sessions", hosted(tmp_path / "work"))
        narrow = {"X-Codex-Sandbox": "read-only"}
        forked = await client.ask("POST", f"/sessions/{made['id']}/fork", {}, headers=narrow)
        again = await fork(client, forked.body["id"])
        assert [
            (await summary(client, id))["sandbox"] for id in (made["id"], forked.body["id"], again["id"])
        ] == [
            "workspace-write",
            "read-only",
            "read-only",
        ]
        wide = {"X-Codex-Sandbox": "workspace-write"}
        refused = await client.ask("POST", f"/sessions/{again['id']}/fork", {}, headers=wide)
        assert (refused.status, refused.error["param"]) == (403, "X-Codex-Sandbox")


async def test_an_unknown_value_of_a_header_is_refused_wherever_the_header_is_listed(
    client: AgentsClient,
) -> None:
    response = await client.proxy.send("POST", "/v1/responses", {"model": "codex-5", "input": "Hello."})
    ids = {
        "/agents/sessions/{id}": await client.idle_session("Hello."),
        "/responses/{id}": response.body["id"],
    }
    asked: dict[str, Any] = {"model": "codex-5", "input": "Hello.", "max_tokens": 9}
    asked["messages"] = [{"role": "user", "content": "Hello."}]
    session = {"agent": AGENT, "environment": {"type": "none"}, "input": "Hello."}
    paths = (await client.proxy.send("GET", "/openapi.json")).body["paths"]
    listed = [
        (path, header["name"])
        for path, methods in paths.items()
        for header in methods.get("post", {}).get("parameters", ())
        if header["in"] == "header" and "enum" in header["schema"] and path != "/sessions"  # Anthropic's
    ]
    assert len(listed) >= 11
    for path, header in listed:
        place = path.replace("{id}", next((id for of, id in ids.items() if path.startswith(of)), ""))
        body = {} if "{id}" in path else session if "agents" in path else asked
        headers = BETA | {header: "nonsense"}
        answer = await client.proxy.send("POST", place, body, headers=headers)
        assert (answer.status, header in answer.text) == (400, True), (path, header, answer.text)


async def test_anthropics_log_tells_of_a_fork(client: AgentsClient) -> None:
    id = await client.idle_session("[[fake:tool_call]]")
    made = await fork(client, id)
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
    logs = []
    for each in (id, made["id"]):
        answer = await client.proxy.send("GET", f"/v1/sessions/{each}/events?limit=100", headers=headers)
        assert answer.status == 200, answer.text
        logs.append([event["type"] for event in answer.body["data"]])
    told = {"user.message", "agent.message", "agent.custom_tool_use", "user.custom_tool_result"}
    assert [each for each in logs[1] if each in told] == [each for each in logs[0] if each in told]
    assert told & {*logs[1]}
