"""Sessions of the Agents API at two servers: what a client sends, reads or deletes at one reaches the other."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from codex_proxy.commands.keys import add_to_store
from codex_proxy.parts.machines.postgresql.leases import Notices
from codex_proxy.parts.machines.postgresql.record_leases import PostgresRecordLeases
from tests.http.serving import Proxy, settings_of, until
from tests.http_responses.receiving import SECRET, receiver
from tests.parts.machines.two_servers.conftest import (
    HELD_PROMPT,
    MakePair,
    Pair,
    let_leases_run_out,
    third_server,
)
from tests.parts.machines.two_servers.test_background import store_of
from tests.parts.sessions.approving import ASKING, KEY, answer_to
from tests.parts.sessions.driving import (
    CANCEL,
    AgentsClient,
    message,
    result,
    text_of,
)
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.test_races import in_memory
from tests.parts.sessions.test_readers import without_padding
from tests.postgres import server
from tests.waiting import eventually, poll

RELEASED = "SELECT count(*) = 0 FROM codex_proxy.record_leases"


@pytest.fixture
async def clients(pair: Pair) -> tuple[AgentsClient, AgentsClient]:
    return AgentsClient(pair.one), AgentsClient(pair.two)


async def held_session(client: AgentsClient) -> str:
    """A session whose agent works until `Pair.release`."""
    id: str = (await client.new_session(HELD_PROMPT))["id"]
    await until(lambda: client.proxy.server.runs.running == 1)
    return id


async def until_idle(client: AgentsClient, id: str) -> None:
    async def idle() -> bool:
        return (await client.get(f"/sessions/{id}"))["status"] == "idle"  # type: ignore[no-any-return]

    await poll(idle)


async def said(client: AgentsClient, id: str) -> list[str]:
    items = await client.all(f"/sessions/{id}/items")
    return [text_of(item) for item in items if item["type"] == "message"]


async def statuses(client: AgentsClient, id: str) -> list[str]:
    return [turn["status"] for turn in await client.all(f"/sessions/{id}/turns")]


Clients = tuple[AgentsClient, AgentsClient]


async def test_a_session_of_one_server_is_read_and_goes_on_at_the_other(clients: Clients) -> None:
    one, two = clients
    id = await one.idle_session("[[fake:text say=Blue.]]")
    for path in ("", "/items", "/turns"):
        assert await one.get(f"/sessions/{id}{path}") == await two.get(f"/sessions/{id}{path}")
    told = await two.turn(id, message("[[fake:echo]]"))
    assert told[-2]["type"] == "agent.session.turn.completed"
    assert "Blue." in text_of(told[-3]["item"])
    agent = await one.post("", {"model": "codex-5", "name": "n"})
    assert await two.get(f"/{agent['id']}") == agent


async def test_a_message_at_the_other_server_waits_for_the_turn_and_begins_the_next(
    clients: Clients, pair: Pair
) -> None:
    one, two = clients
    id = await held_session(one)
    await two.send(id, message("[[fake:text say=Next.]]"))
    assert (await two.get(f"/sessions/{id}"))["status"] == "in_progress"
    pair.release.touch()
    await until_idle(two, id)
    assert (await said(one, id))[1::2] == ["one two three", "Next."]
    assert await statuses(one, id) == ["completed", "completed"]


async def test_a_stream_at_the_other_server_has_every_event(clients: Clients, pair: Pair) -> None:
    one, two = clients
    id = await held_session(one)
    async with one.following(id) as here, two.following(id) as there:
        await two.send(id, message("[[fake:course]]"))
        pair.release.touch()
        for reader in (here, there):
            await reader.until("agent.session.idle")
        assert without_padding(here.events)[-len(there.events) :] == without_padding(there.events)
        kinds = [event["type"] for event in there.events]
        assert "agent.session.turn.output_text.delta" in kinds
        assert kinds.count("agent.session.turn.completed") == 2
        await one.send(id, message("[[fake:text say=More.]]"))
        await there.until("agent.session.idle")
        await two.send(id, message("[[fake:text say=More.]]"))
        for _ in range(2):
            await here.until("agent.session.idle")
        await there.until("agent.session.idle")
        assert without_padding(here.events)[-len(there.events) :] == without_padding(there.events)


async def test_a_stream_is_open_when_its_first_bytes_come(clients: Clients, pair: Pair) -> None:
    """What happens after the head of the stream is in it: also where the session moves between the servers."""
    one, two = clients
    id = await one.idle_session()
    for number in range(6):
        reads, writes = clients if number % 2 else (two, one)
        async with reads.following(id) as reader:
            await (writes if number < 4 else reads).send(id, message("[[fake:text say=Hi.]]"))
            await reader.until("agent.session.idle")
        kinds = [event["type"] for event in reader.events]
        assert kinds[0] == "agent.session.turn.created", kinds


async def test_a_result_and_a_cancel_reach_the_server_with_the_session(clients: Clients) -> None:
    one, two = clients
    async with one.creation("[[fake:tool_calls say='{outputs}']]") as reader:
        event = await reader.until("agent.session.requires_action")
        id, (first, second) = event["session"]["id"], event["session"]["required_actions"]
        await two.send(id, result(first, "rainy"))
        await two.send(id, result(first, "rainy"))
        refused = await two.refused(id, result(first, "windy"))
        assert (refused.status, refused.error["type"]) == (409, "conflict_error")
        assert refused.headers["x-should-retry"] == "false"
        unknown = await two.refused(id, {**result(second), "call_id": "call_unknown"})
        assert unknown.error["message"] == "Unknown pending tool call: call_unknown"
        await two.send(id, result(second, "windy"))
        await reader.rest()
    assert "rainy" in (await said(two, id))[-1]
    waiting = await one.new_session("[[fake:tool_call]]")
    await poll(lambda: _status(two, waiting["id"], "requires_action"))
    await two.send(waiting["id"], CANCEL)
    assert await statuses(one, waiting["id"]) == ["cancelled"]


async def _status(client: AgentsClient, id: str, status: str) -> bool:
    return (await client.get(f"/sessions/{id}"))["status"] == status  # type: ignore[no-any-return]


async def test_a_running_turn_is_cancelled_at_the_other_server(clients: Clients) -> None:
    one, two = clients
    id = (await one.new_session("[[fake:text misbehave=hang]]"))["id"]
    await until(lambda: one.proxy.server.runs.running == 1)
    await two.send(id, CANCEL)
    await until_idle(two, id)
    assert await statuses(two, id) == ["cancelled"]


async def test_what_an_agent_asks_is_answered_at_the_other_server_once(pair_with: MakePair) -> None:
    async with pair_with(**ASKING) as pair:
        one, two = AgentsClient(pair.one, KEY), AgentsClient(pair.two, KEY)
        folder = hosted(Path(pair.one.server.settings.workdir))
        async with one.creation("[[fake:approval]]", **folder) as reader:
            session = (await reader.until("agent.session.requires_action"))["session"]
            id, (action,) = session["id"], session["required_actions"]
            for client in (two, one):
                await client.send(id, answer_to(action))
            assert (await two.refused(id, answer_to(action, "deny"))).status == 409
            await reader.until("agent.session.turn.completed")
        items = await two.all(f"/sessions/{id}/items")
        done = [(item["status"], item["output"]) for item in items if item["type"] == "command_execution"]
        assert done == [("completed", "ok\n")]
        late = await one.refused(id, answer_to(action, "deny"))
        assert late.status == 409


@pytest.mark.exhaustive
async def test_a_killed_server_s_question_is_closed_at_another(
    pair_with: MakePair, postgres_url: str
) -> None:
    async with pair_with(**ASKING) as pair:
        two = AgentsClient(pair.two, KEY)
        settings = {
            "PROXY_SANDBOX": "danger-full-access",
            "PROXY_APPROVALS": "ask",
            "PROXY_API_KEY": KEY,
            "PROXY_FAKE_DIALECT": "app-server",
        }
        async with third_server(pair, postgres_url, **settings) as (url, process):
            lost = AgentsClient(Proxy(pair.one.server, pair.one.session, url), KEY)
            id = (await lost.new_session("[[fake:approval]]", **hosted(pair.release.with_name("three"))))[
                "id"
            ]
            await poll(lambda: _status(two, id, "requires_action"))
            (action,) = (await two.get(f"/sessions/{id}"))["required_actions"]
            process.kill()
            await process.wait()
        await let_leases_run_out(postgres_url, TABLES)
        refused = await two.refused(id, answer_to(action))
        assert refused.status == 409
        assert "has ended" in refused.error["message"]
        (turn,) = await two.all(f"/sessions/{id}/turns")
        assert (turn["status"], turn["error"]["code"]) == ("failed", "internal_error")
        assert not (await two.get(f"/sessions/{id}"))["required_actions"]


async def test_an_idempotency_key_holds_at_both_servers(clients: Clients, pair: Pair) -> None:
    one, two = clients
    id = await held_session(one)
    for client in (one, two, two):
        await client.send(id, message("Once."), **{"Idempotency-Key": "k"})
    other = await two.refused(id, message("Another."), **{"Idempotency-Key": "k"})
    assert other.status == 409
    pair.release.touch()
    await until_idle(two, id)
    for client in (one, two):
        await client.send(id, message("Once."), **{"Idempotency-Key": "k"})
    assert (await said(two, id)).count("Once.") == 1
    assert len(await statuses(two, id)) == 2


async def test_changes_at_both_servers_keep_each_other(clients: Clients, pair: Pair) -> None:
    one, two = clients
    id = await held_session(one)
    await two.post(f"/sessions/{id}", {"metadata": {"a": "b"}})
    changed = await two.post(f"/sessions/{id}", {"agent": {"tools": []}})
    assert (changed["metadata"], changed["agent"]["tools"]) == ({"a": "b"}, [])
    pair.release.touch()
    await until_idle(one, id)
    assert (await one.get(f"/sessions/{id}"))["metadata"] == {"a": "b"}


async def test_input_and_events_reach_the_other_server_without_notices(
    monkeypatch: pytest.MonkeyPatch, pair_with: MakePair
) -> None:
    monkeypatch.setattr(Notices, "listen", lambda _: None)
    async with pair_with() as pair:
        one, two = AgentsClient(pair.one), AgentsClient(pair.two)
        id = await held_session(one)
        async with two.following(id) as reader:
            await two.send(id, message("[[fake:text say=Next.]]"))
            pair.release.touch()
            for _ in range(2):
                await reader.until("agent.session.turn.completed")
            await reader.until("agent.session.idle")
        await two.send(id, message("[[fake:text say=Last.]]"))
        await until_idle(one, id)
        assert (await said(one, id))[-1] == "Last."


async def test_a_deletion_at_one_server_ends_the_streams_at_the_other(clients: Clients, pair: Pair) -> None:
    one, two = clients
    id = await held_session(one)
    async with one.following(id) as here, two.following(id) as there:
        assert (await two.ask("DELETE", f"/sessions/{id}")).status == 409
        pair.release.touch()
        await there.until("agent.session.idle")
        await two.delete(f"/sessions/{id}")
        await here.rest()
        await there.rest()
    again = await one.idle_session()
    async with two.following(again) as there:
        await one.delete(f"/sessions/{again}")
        await there.rest()
    for client in clients:
        assert (await client.ask("GET", f"/sessions/{id}")).status == 404
        assert (await client.refused(id, message("x"))).status == 404
        await client.delete(f"/sessions/{id}")


async def test_what_a_session_at_rest_has_left_is_nothing(
    clients: Clients, connection: asyncpg.Connection
) -> None:
    one, two = clients
    id = await one.idle_session()
    async with two.following(id) as reader:
        await one.send(id, message("[[fake:course]]"))
        await reader.until("agent.session.idle")
    for table in ("record_leases", "record_followers", "mail"):
        sql = f"SELECT count(*) = 0 FROM codex_proxy.{table}"
        await poll(lambda sql=sql: connection.fetchval(sql))  # type: ignore[misc]
    assert not any(in_memory(client.proxy) for client in clients)


async def test_messages_sent_at_both_servers_at_once_run_once_and_one_after_the_other(
    clients: Clients,
) -> None:
    one, two = clients
    id = await one.idle_session("[[fake:text say=First.]]")
    texts = [f"[[fake:text say=A{number}. delay=5]]" for number in range(16)]
    sent = [clients[number % 2].send(id, message(text)) for number, text in enumerate(texts)]
    await asyncio.gather(*sent)
    await until_idle(two, id)
    assert sorted((await said(one, id))[2::2]) == sorted(texts)
    turns = await two.all(f"/sessions/{id}/turns")
    assert {turn["status"] for turn in turns} == {"completed"}
    assert len(turns) <= len(texts) + 1


async def test_changes_of_an_agent_at_both_servers_at_once_keep_each_other(clients: Clients) -> None:
    one, two = clients
    id = (await one.post("", {"model": "codex-5", "metadata": {"a": "b"}}))["id"]
    bodies = [{"name": "n"}, {"instructions": "Be brief."}] * 4
    await asyncio.gather(*(clients[n % 2].post(f"/{id}", body) for n, body in enumerate(bodies)))
    found = await two.get(f"/{id}")
    assert (found["name"], found["instructions"]) == ("n", "Be brief.")
    await one.delete(f"/{id}")
    assert (await two.ask("POST", f"/{id}", {"name": "m"})).status == 404


async def test_another_key_reaches_no_session_at_the_other_server(
    pair_with: MakePair, tmp_path: Path, postgres_url: str
) -> None:
    settings = settings_of(tmp_path, store=postgres_url)
    keys = [(await add_to_store(settings, name, {}, replace=False))[0] for name in ("anna", "ben")]
    async with pair_with() as pair:
        anna, ben = AgentsClient(pair.one, keys[0]), AgentsClient(pair.two, keys[1])
        id = await held_session(anna)
        for method, path, body in (
            ("GET", "", None),
            ("GET", "/events", None),
            ("GET", "/items", None),
            ("POST", "", {"metadata": {}}),
            ("POST", "/events", {"events": [message("x")]}),
            ("DELETE", "", None),
        ):
            assert (await ben.ask(method, f"/sessions/{id}{path}", body)).status == 404
        pair.release.touch()
        await until_idle(anna, id)
        assert await statuses(anna, id) == ["completed"]


# --- servers that are lost ------------------------------------------------------------------------


@dataclass
class Third:
    """A server that may be killed or stopped, beside two that serve on."""

    client: AgentsClient
    process: asyncio.subprocess.Process

    async def held_session(self) -> str:
        id: str = (await self.client.new_session(HELD_PROMPT))["id"]
        await poll(lambda: self._works(id))
        return id

    async def _works(self, id: str) -> bool:
        (turn,) = await self.client.all(f"/sessions/{id}/turns")
        return bool(turn["status"] == "in_progress")


@asynccontextmanager
async def third(pair: Pair, postgres_url: str, **settings: str) -> AsyncIterator[Third]:
    async with third_server(pair, postgres_url, **settings) as (url, process):
        yield Third(AgentsClient(Proxy(pair.one.server, pair.one.session, url)), process)


TABLES = ("record_leases", "record_followers")


async def test_the_turn_of_a_killed_server_fails_at_another_and_what_waited_runs_there(
    clients: Clients, pair: Pair, postgres_url: str
) -> None:
    one, two = clients
    async with third(pair, postgres_url) as lost:
        id = await lost.held_session()
        async with two.following(id) as reader:
            await two.send(id, message("[[fake:text say=Next.]]"))
            lost.process.kill()
            await lost.process.wait()
            await let_leases_run_out(postgres_url, ["record_leases"])
            failed = await reader.until("agent.session.turn.failed")
            assert failed["turn"]["error"]["code"] == "internal_error"
            assert "restarted" in failed["turn"]["error"]["message"]
            await reader.until("agent.session.turn.completed")
            await reader.until("agent.session.idle")
    assert await statuses(one, id) == ["failed", "completed"]
    assert (await said(one, id))[-2:] == ["[[fake:text say=Next.]]", "Next."]
    assert not any(item.get("status") == "in_progress" for item in await one.all(f"/sessions/{id}/items"))


async def test_a_server_that_takes_a_session_over_sends_its_webhooks_once_each(
    pair_with: MakePair, postgres_url: str
) -> None:
    async with receiver() as target:
        hooks = {"urls": target.url, "secret": SECRET}
        settings = {f"PROXY_WEBHOOKS_{name.upper()}": value for name, value in hooks.items()}
        async with pair_with(webhooks=hooks) as pair, third(pair, postgres_url, **settings) as lost:
            two = AgentsClient(pair.two)
            id = await lost.held_session()
            await target.deliveries(2)
            await two.send(id, message("[[fake:text say=Next.]]"))
            lost.process.kill()
            await lost.process.wait()
            await let_leases_run_out(postgres_url, ["record_leases"])
            await until_idle(two, id)
            told = [json.loads(body) for body, _ in await target.deliveries(4)]
            pair.two.server.webhooks.wake()  # type: ignore[union-attr]
            await pair.two.settled()
    types = sorted(each["type"].removeprefix("agent.session.") for each in told)
    assert types == ["created", "idle", "in_progress", "in_progress"]
    assert {each["data"]["id"] for each in told} == {id}
    assert len(target.webhooks) == len({each["id"] for each in told})


@pytest.mark.exhaustive
async def test_a_session_that_waits_for_results_goes_on_waiting_where_its_server_is_killed(
    clients: Clients, pair: Pair, postgres_url: str
) -> None:
    _, two = clients
    async with third(pair, postgres_url) as lost:
        id = (await lost.client.new_session("[[fake:tool_call say='{outputs}']]"))["id"]
        await poll(lambda: _status(two, id, "requires_action"))
        lost.process.kill()
        await lost.process.wait()
    await let_leases_run_out(postgres_url, TABLES)
    (call,) = (await two.get(f"/sessions/{id}"))["required_actions"]
    async with two.following(id) as reader:
        await two.send(id, result(call, "rainy"))
        await reader.until("agent.session.turn.completed")
    assert "rainy" in (await said(two, id))[-1]


async def test_a_server_that_was_stopped_writes_nothing_more_of_a_session(
    clients: Clients, pair: Pair, postgres_url: str
) -> None:
    one, two = clients
    async with third(pair, postgres_url) as lost:
        id = await lost.held_session()
        async with lost.client.following(id) as reader:
            lost.process.send_signal(signal.SIGSTOP)
            await let_leases_run_out(postgres_url, TABLES)
            await two.send(id, message("[[fake:text say=Next.]]"))
            await until_idle(two, id)
            before = await two.get(f"/sessions/{id}"), await two.all(f"/sessions/{id}/items")
            pair.release.touch()
            lost.process.send_signal(signal.SIGCONT)
            events = await reader.rest()
            assert events[-1]["type"] == "error"
            assert events[-1]["error"]["code"] == "stream_interrupted"
            (first, _) = await two.all(f"/sessions/{id}/turns")
            told = [event["type"] for event in events if event.get("turn_id") == first["id"]]
            assert "agent.session.turn.completed" not in told
        assert (await two.get(f"/sessions/{id}"), await two.all(f"/sessions/{id}/items")) == before
        assert await statuses(one, id) == ["failed", "completed"]
        async with lost.client.following(id) as reader:
            await lost.client.send(id, message("[[fake:echo]]"))
            await reader.until("agent.session.turn.completed")
        await until_idle(one, id)  # what was told first may be the end of the turn at the other server
        assert "Next." in (await said(one, id))[-1]


@pytest.mark.exhaustive
async def test_input_at_a_server_that_was_stopped_reaches_the_one_that_took_over(
    clients: Clients, pair: Pair, postgres_url: str
) -> None:
    _, two = clients
    async with third(pair, postgres_url) as lost:
        id = (await lost.client.new_session("[[fake:tool_call]]"))["id"]
        await poll(lambda: _status(two, id, "requires_action"))
        lost.process.send_signal(signal.SIGSTOP)
        await let_leases_run_out(postgres_url, TABLES)
        await two.send(id, message("[[fake:text say=Next.]]"))
        lost.process.send_signal(signal.SIGCONT)
        (call,) = (await two.get(f"/sessions/{id}"))["required_actions"]
        await lost.client.send(id, result(call, "rainy"))
        await until_idle(two, id)
    assert await statuses(two, id) == ["completed", "completed"]


@pytest.mark.exhaustive
async def test_a_message_to_a_server_that_is_stopped_is_done_once_by_another(
    clients: Clients, pair: Pair, postgres_url: str, connection: asyncpg.Connection
) -> None:
    one, two = clients
    async with third(pair, postgres_url) as lost:
        id = await lost.held_session()
        lost.process.send_signal(signal.SIGSTOP)
        sending = asyncio.create_task(two.send(id, message("[[fake:text say=Once.]]")))
        await poll(lambda: connection.fetchval("SELECT count(*) > 0 FROM codex_proxy.mail"))
        assert not sending.done()
        await let_leases_run_out(postgres_url, TABLES)
        await sending
        await until_idle(two, id)
        lost.process.send_signal(signal.SIGCONT)
        await poll(lambda: connection.fetchval("SELECT count(*) = 0 FROM codex_proxy.mail"))
        await lost.client.send(id, message("[[fake:text say=Last.]]"))
        await until_idle(one, id)
    assert (await said(one, id)).count("[[fake:text say=Once.]]") == 1
    assert (await said(one, id))[-1] == "Last."


async def test_a_message_whose_acceptance_nobody_heard_of_runs_once(
    clients: Clients, pair: Pair, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = clients
    post, silent = PostgresRecordLeases.post, store_of(pair.one).leases.records.node
    unheard = asyncio.Event()

    async def lose(self: PostgresRecordLeases, node: str, message: bytes) -> None:
        if self.node == silent:
            unheard.set()
        else:
            await post(self, node, message)

    monkeypatch.setattr(PostgresRecordLeases, "post", lose)
    id = await held_session(one)
    sending = asyncio.create_task(two.send(id, message("[[fake:text say=Once.]]")))
    await unheard.wait()
    assert not sending.done()
    await let_leases_run_out(postgres_url, TABLES)
    await sending
    await until_idle(two, id)
    assert await statuses(two, id) == ["failed", "completed"]
    assert (await said(two, id)).count("Once.") == 1


async def test_a_server_that_does_not_know_yet_that_it_lost_a_session_asks_the_other(
    clients: Clients, postgres_url: str
) -> None:
    one, two = clients
    async with one.creation("[[fake:tool_call]]") as reader:
        event = await reader.until("agent.session.requires_action")
        id, (call,) = event["session"]["id"], event["session"]["required_actions"]
        await let_leases_run_out(postgres_url, TABLES)
        await two.send(id, result(call), message("[[fake:tool_call]]"))
        await poll(lambda: _waits_again(two, id, call))
        (call,) = (await two.get(f"/sessions/{id}"))["required_actions"]
        await one.send(id, result(call))  # was a 409: its call is another one
        await until_idle(two, id)
    assert await statuses(two, id) == ["completed", "completed"]
    hanging = (await one.new_session("[[fake:text misbehave=hang]]"))["id"]
    await until(lambda: one.proxy.server.runs.running == 1)
    await let_leases_run_out(postgres_url, TABLES)
    await two.send(hanging, message("[[fake:text misbehave=hang]]"))
    await until(lambda: two.proxy.server.runs.running == 1)
    await one.send(hanging, CANCEL)
    await until_idle(two, hanging)
    assert await statuses(two, hanging) == ["failed", "cancelled"]


async def _waits_again(client: AgentsClient, id: str, before: dict[str, Any]) -> bool:
    actions = (await client.get(f"/sessions/{id}"))["required_actions"]
    return bool(actions) and actions[0]["turn_id"] != before["turn_id"]


async def test_a_server_that_stops_leaves_its_sessions_to_the_other(
    pair_with: MakePair, postgres_url: str
) -> None:
    async with pair_with() as pair:
        one, two = AgentsClient(pair.one), AgentsClient(pair.two)
        id = await held_session(one)
        async with two.following(id) as reader:
            await two.send(id, message("[[fake:text say=Next.]]"))
            await pair.one.server.stop()
            await reader.until("agent.session.turn.completed")
        assert (await said(two, id))[-1] == "Next."
        assert (await statuses(two, id))[1:] == ["completed"]


@pytest.mark.exhaustive
async def test_nothing_that_was_accepted_is_lost_where_postgresql_stops_and_starts_again(
    pair_with: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.sessions.commits.RETRY_SECONDS", 0.05)
    with server() as own:
        async with pair_with(store=own.url) as pair:
            one, two = AgentsClient(pair.one), AgentsClient(pair.two)
            id = await held_session(one)
            async with two.following(id) as reader:
                await two.send(id, message("[[fake:text say=Next.]]"))
                await asyncio.to_thread(own.stop)
                for client in (one, two):
                    refused = await client.refused(id, message("Refused."))
                    assert (refused.status, refused.error["type"]) == (503, "service_unavailable_error")
                pair.release.touch()
                await eventually(lambda: pair.one.server.runs.running == 0)
                await asyncio.to_thread(own.start)
                for _ in range(2):
                    await reader.until("agent.session.turn.completed")
                await reader.until("agent.session.idle")
            assert (await said(two, id))[1:] == ["one two three", "[[fake:text say=Next.]]", "Next."]
