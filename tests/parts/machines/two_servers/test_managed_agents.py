"""The Managed Agents API at two servers: both have the same logs and streams, and what clients write at both at once is
kept.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.http.serving import Answer, Proxy, until
from tests.parts.machines.two_servers.conftest import (
    HELD_PROMPT,
    Pair,
    let_leases_run_out,
    third_server,
)
from tests.parts.managed_agents.following import (
    IDLE,
    INTERRUPT,
    ManagedClient,
    Stream,
    check_log,
    kinds,
    message,
    result,
    said,
)

Clients = tuple[ManagedClient, ManagedClient]


@pytest.fixture
async def clients(pair: Pair) -> Clients:
    return ManagedClient(pair.one), ManagedClient(pair.two)


async def ends(stream: Stream) -> list[Any]:
    """All events of a stream, up to the one that says that nothing goes on."""
    while not stream.rests:
        await stream.next()
    return stream.events


async def test_a_stream_and_a_list_at_the_other_server_have_the_same_events(
    clients: Clients, pair: Pair
) -> None:
    one, two = clients
    id = await one.new_session()
    async with one.stream(id) as here, two.stream(id) as there:
        await two.send(id, message(HELD_PROMPT))
        await until(lambda: pair.running == 1)
        await one.send(id, message("[[fake:tool_call]]"))
        pair.release.touch()
        for stream in (here, there):
            await stream.until(IDLE)
        (use,) = there.events[-1]["stop_reason"]["event_ids"]
        await one.send(id, result(use, "rainy"))
        assert await ends(here) == await ends(there)
    assert said(here.events)[0] == "one two three"
    assert kinds(here.events).count("user.message") == 2
    assert here.events == await one.events(id) == await two.events(id)
    assert await one.session(id) == await two.session(id)
    assert (await one.threads(id)) == (await two.threads(id))


async def test_pages_of_a_log_that_begin_at_one_server_go_on_at_the_other(clients: Clients) -> None:
    one, two = clients
    id = await one.new_session()
    await one.turn(id, message("Hello."))
    whole = await one.events(id)
    found: list[Any] = []
    page = ""
    while True:
        client = clients[len(found) % 2]
        answer = await client.well("GET", f"/sessions/{id}/events?limit=1{page}")
        found += answer["data"]
        if answer["next_page"] is None:
            break
        page = f"&page={answer['next_page']}"
    assert found == whole == await two.events(id)


async def test_an_interrupt_and_an_archive_at_the_other_server_reach_the_session(
    clients: Clients, pair: Pair
) -> None:
    one, two = clients
    id = await one.new_session()
    async with one.stream(id) as stream:
        await one.send(id, message("[[fake:text misbehave=hang]]"))
        await until(lambda: pair.one.server.runs.running == 1)
        await two.send(id, INTERRUPT)
        assert (await ends(stream))[-1]["stop_reason"] == {"type": "end_turn"}
        assert (await two.well("POST", f"/sessions/{id}/archive", {}))["archived_at"]
        await one.refused(409, f"/sessions/{id}/events", {"events": [message("More.")]})
        assert (await two.well("DELETE", f"/sessions/{id}"))["type"] == "session_deleted"
        assert (await stream.whole())[-1]["type"] == "session.deleted"
    await one.refused(404, f"/sessions/{id}", method="GET")


async def test_a_reader_at_another_server_learns_of_the_end_of_a_killed_one_s_turn(
    clients: Clients, pair: Pair, postgres_url: str
) -> None:
    one, two = clients
    async with third_server(pair, postgres_url) as (url, process):
        lost = ManagedClient(Proxy(pair.one.server, pair.one.session, url))
        id = await lost.new_session()
        async with two.stream(id) as stream:
            await lost.send(id, message(HELD_PROMPT))
            await stream.until("span.model_request_start")
            await two.send(id, message("[[fake:text say=Next.]]"))
            process.kill()
            await process.wait()
            await let_leases_run_out(postgres_url, ["record_leases"])
            assert (await stream.until("session.error"))["error"]["type"] == "unknown_error"
            await ends(stream)
    assert said(stream.events)[-1] == "Next."
    check_log(stream.events)
    assert stream.events == await one.events(id) == await two.events(id)


async def at_both(clients: Clients, path: str, *bodies: dict[str, Any]) -> list[Answer]:
    """The answers to requests that are sent at once, in turn at one server and at the other."""
    asked = (clients[n % 2].ask("POST", path, body) for n, body in enumerate(bodies))
    return await asyncio.gather(*asked)


async def test_one_name_at_both_servers_at_once_names_one_environment(clients: Clients) -> None:
    one, _ = clients
    for name in "abc":
        answers = await at_both(clients, "/environments", *[{"name": name}] * 6)
        assert sorted(answer.status for answer in answers) == [200, *[409] * 5]
    listed = (await one.well("GET", "/environments"))["data"]
    assert sorted(each["name"] for each in listed) == ["a", "b", "c"]
    free = [each["id"] for each in listed]
    asked = (clients[n % 2].ask("POST", f"/environments/{id}", {"name": "d"}) for n, id in enumerate(free))
    assert sorted(answer.status for answer in await asyncio.gather(*asked)) == [200, 409, 409]


async def path_of_new(client: ManagedClient, kind: str) -> str:
    """Makes an object of a kind; returns its path."""
    made = {"environments": client.environment, "agents": client.new_agent, "sessions": client.new_session}
    return f"/{kind}/{await made[kind]()}"


@pytest.mark.parametrize("kind", ["environments", "agents", "sessions"])
async def test_patches_of_metadata_at_both_servers_at_once_keep_each_other(
    clients: Clients, kind: str
) -> None:
    one, two = clients
    path = await path_of_new(one, kind)
    for letter in "abc":
        names = [f"{letter}{number}" for number in range(4)]
        answers = await at_both(clients, path, *({"metadata": {name: "1"}} for name in names))
        assert [answer.status for answer in answers] == [200] * 4, [answer.text for answer in answers]
        assert (await two.well("GET", path))["metadata"].keys() >= {*names}
    await one.well("POST", path, {"metadata": {"a0": None}})
    assert len((await two.well("GET", path))["metadata"]) == 11


@pytest.mark.parametrize("kind", ["environments", "agents", "sessions"])
async def test_patches_at_both_servers_at_once_do_not_pass_the_limit_of_metadata_in_sum(
    clients: Clients, kind: str
) -> None:
    one, two = clients
    path = await path_of_new(one, kind)
    await one.well("POST", path, {"metadata": {f"a{number}": "1" for number in range(10)}})
    patches = [{f"{letter}{number}": "1" for number in range(5)} for letter in "bcde"]
    answers = await at_both(clients, path, *({"metadata": patch} for patch in patches))
    assert sorted(answer.status for answer in answers) == [200, 400, 400, 400]
    for each in (one, two):
        assert len((await each.well("GET", path))["metadata"]) == 15
    refused = next(answer for answer in answers if answer.status == 400)
    assert (
        refused.body["error"]["message"] == "metadata: At most 16 keys are stored. Delete others with null."
    )
