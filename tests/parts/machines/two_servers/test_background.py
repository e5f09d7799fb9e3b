"""A background response of one server, asked for at the other: read, followed, cancelled, deleted, and taken over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import NotFoundError

from codex_proxy.parts.machines.postgresql.leases import Notices
from codex_proxy.parts.machines.postgresql.store import PostgresStore
from codex_proxy.responses.saving import BEFORE_ALL
from tests.http.serving import Proxy, until
from tests.http_responses.asking import blocks_of, check_events, create, events_of, prompt_for, types_of
from tests.http_responses.receiving import SECRET, receiver
from tests.parts.machines.two_servers.conftest import (
    HELD_PROMPT,
    MakePair,
    Pair,
    let_leases_run_out,
    third_server,
)
from tests.waiting import poll


async def wait_for_end(proxy: Proxy, id: str) -> Any:
    async def over() -> Any:
        body = (await proxy.send("GET", f"/v1/responses/{id}")).body
        return None if body["status"] in ("queued", "in_progress") else body

    return await poll(over)


async def first_events(proxy: Proxy, prompt: str = HELD_PROMPT) -> list[dict[str, Any]]:
    """The events of a background stream up to its first text; its client leaves then."""
    body = {"model": "codex-5", "input": prompt, "background": True, "stream": True}
    async with proxy.session.post(f"{proxy.url}/v1/responses", json=body) as reply:
        begun = b""
        while b"output_text.delta" not in begun:
            begun += await reply.content.readany()
    return blocks_of(begun.decode().rpartition("\n\n")[0])


async def rest_of(proxy: Proxy, id: str, after: int | None = None) -> list[dict[str, Any]]:
    query = "" if after is None else f"&starting_after={after}"
    answer = await proxy.send("GET", f"/v1/responses/{id}?stream=true{query}")
    assert answer.status == 200, answer.text
    return events_of(answer.text)


def store_of(proxy: Proxy) -> PostgresStore:
    keeping = proxy.server.store_lifecycle
    assert keeping is not None
    assert isinstance(keeping.store, PostgresStore)
    return keeping.store


def leases_of(proxy: Proxy) -> Any:
    return store_of(proxy).leases


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_running_response_is_read_and_its_stream_followed_at_the_other_server(
    pair_with: MakePair, monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    if not noticed:  # as behind a pooler
        monkeypatch.setattr(Notices, "listen", lambda self: None)
        monkeypatch.setattr("codex_proxy.store.leases.POLL_SECONDS", 0.1)
    async with pair_with() as pair:
        await follow_elsewhere(pair)


async def follow_elsewhere(pair: Pair) -> None:
    """Reads the first part of a stream at one server, and the rest at the other."""
    seen = await first_events(pair.one)
    id, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
    assert (await pair.at_two.responses.retrieve(id)).status == "in_progress"
    following = asyncio.create_task(rest_of(pair.two, id, last))
    await until(lambda: pair.two.streams == 1)
    pair.release.write_text("go")
    rest = await following
    whole = check_events(seen + rest)
    assert whole[-1]["type"] == "response.completed"
    assert whole[-1]["response"]["output"][0]["content"][0]["text"] == "one two three"
    assert whole == await rest_of(pair.one, id) == await rest_of(pair.two, id)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_cancelled_at_the_other_server_is_cancelled_at_once_and_its_turn_stops(
    pair: Pair, stream: bool
) -> None:
    if stream:
        id = (await first_events(pair.one))[0]["response"]["id"]
        following = [asyncio.create_task(rest_of(proxy, id)) for proxy in (pair.one, pair.two)]
    else:
        id = (await pair.at_one.responses.create(model="codex-5", input=HELD_PROMPT, background=True)).id
        following = []
    await until(lambda: pair.one.server.runs.running == 1)
    assert (await pair.at_two.responses.cancel(id)).status == "cancelled"
    assert (await pair.at_one.responses.retrieve(id)).status == "cancelled"
    await until(lambda: pair.running == 0)
    pair.release.write_text("go")
    await pair.one.settled()
    assert (await pair.at_one.responses.retrieve(id)).status == "cancelled"
    for events in await asyncio.gather(*following):
        assert events[-1]["response"]["status"] == "cancelled"


@asynccontextmanager
async def queued_stream(pair: Pair, url: str) -> AsyncIterator[tuple[str, asyncio.Task[str]]]:
    """The id and the creator's stream of a response that waits for its slot at the server with this address."""

    async def stream() -> str:
        with suppress(aiohttp.ServerDisconnectedError):
            async with pair.one.session.post(f"{url}/v1/responses", json=body | {"stream": True}) as reply:
                return (await reply.content.read()).decode()
        return ""

    body = {"model": "codex-5", "input": HELD_PROMPT, "background": True}
    async with pair.one.session.post(f"{url}/v1/responses", json=body) as reply:
        first = (await reply.json())["id"]
    await is_in(pair.two, "in_progress", first)
    creating = asyncio.create_task(stream())
    store = store_of(pair.two)

    async def second() -> str | None:
        found = (await store.newest_responses("local")).items[0]
        return None if found.id == first else found.id

    id = await poll(second)
    assert id is not None
    yield id, creating
    assert not await store.frames("local", first, after=BEFORE_ALL), "it is no stream"


async def is_in(proxy: Proxy, status: str, id: str) -> None:
    async def seen() -> bool:
        return bool((await proxy.send("GET", f"/v1/responses/{id}")).body["status"] == status)

    await poll(seen)


@pytest.mark.parametrize("after", [None, 1])
async def test_a_stream_that_waits_for_its_slot_is_followed_at_the_other_server(
    pair_with: MakePair, after: int | None
) -> None:
    async with pair_with(max_running_turns=1) as pair, queued_stream(pair, pair.one.url) as (id, creating):
        following = asyncio.create_task(rest_of(pair.two, id, after))
        await until(lambda: pair.two.streams == 1)
        assert (await pair.at_two.responses.retrieve(id)).status == "queued"
        pair.release.write_text("go")
        whole = events_of(await creating)
        assert whole[-1]["type"] == "response.completed"
        assert await following == whole[0 if after is None else after + 1 :]


@pytest.mark.parametrize("at_own", [False, True])
async def test_a_stream_that_is_cancelled_while_it_waits_ends_for_all_who_follow_it(
    pair_with: MakePair, at_own: bool
) -> None:
    async with pair_with(max_running_turns=1) as pair, queued_stream(pair, pair.one.url) as (id, creating):
        following = [asyncio.create_task(rest_of(proxy, id)) for proxy in (pair.one, pair.two)]
        await until(lambda: (pair.one.streams, pair.two.streams) == (2, 1))
        at = pair.at_one if at_own else pair.at_two
        assert (await at.responses.cancel(id)).status == "cancelled"
        whole = events_of(await creating)
        assert whole[-1]["response"]["status"] == "cancelled"
        assert await asyncio.gather(*following) == [whole, whole]
        assert await rest_of(pair.one, id) == await rest_of(pair.two, id) == whole
        assert whole[-1]["response"] == (await pair.two.send("GET", f"/v1/responses/{id}")).body
        pair.release.write_text("go")


async def test_a_stream_whose_server_is_lost_while_it_waits_ends_for_all_who_follow_it(
    pair_with: MakePair, postgres_url: str
) -> None:
    async with pair_with() as pair:
        async with (
            third_server(pair, postgres_url, PROXY_MAX_RUNNING_TURNS="1") as (url, process),
            queued_stream(pair, url) as (id, creating),
        ):
            following = [asyncio.create_task(rest_of(proxy, id)) for proxy in (pair.one, pair.two)]
            await until(lambda: (pair.one.streams, pair.two.streams) == (1, 1))
            process.kill()
            await process.wait()
            assert await creating == ""
            await let_leases_run_out(postgres_url)
            leases_of(pair.two)._renewal.set()
            one, two = await asyncio.gather(*following)
        assert types_of(one) == ["response.created", "response.in_progress", "error", "response.failed"]
        assert one == two == await rest_of(pair.one, id)
        assert one[-1]["response"] == (await pair.two.send("GET", f"/v1/responses/{id}")).body


async def test_a_turn_that_ends_before_its_server_gets_the_cancel_changes_nothing(
    pair_with: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Notices, "listen", lambda self: None)
    async with pair_with() as pair:
        created = await pair.at_one.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
        await until(lambda: pair.one.server.runs.running == 1)
        await pair.at_two.responses.cancel(created.id)
        pair.release.write_text("go")
        await pair.one.settled()
        assert (await pair.at_one.responses.retrieve(created.id)).status == "cancelled"


@pytest.mark.exhaustive
async def test_without_notices_a_cancelled_turn_stops_at_the_next_renewal(
    pair_with: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Notices, "listen", lambda self: None)
    async with pair_with() as pair:
        created = await pair.at_one.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
        await until(lambda: pair.one.server.runs.running == 1)
        assert (await pair.at_two.responses.cancel(created.id)).status == "cancelled"
        await until(lambda: pair.running == 0)


async def test_a_response_deleted_at_the_other_server_is_stopped_and_gone(pair: Pair) -> None:
    created = await pair.at_one.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
    await until(lambda: pair.one.server.runs.running == 1)
    await pair.at_two.responses.delete(created.id)
    await until(lambda: pair.running == 0)
    await pair.one.settled()
    for client in (pair.at_one, pair.at_two):
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(created.id)


async def test_nobody_takes_over_what_the_other_server_runs(pair: Pair) -> None:
    created = await pair.at_one.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
    await until(lambda: pair.one.server.runs.running == 1)
    assert await leases_of(pair.two).claim_responses(10) == []
    pair.release.write_text("go")
    assert (await wait_for_end(pair.two, created.id))["status"] == "completed"


async def test_a_server_that_stops_leaves_its_turns_to_the_other_at_once(
    pair_with: MakePair, postgres_url: str
) -> None:
    async with pair_with(background_recovery="rerun") as pair:
        created = await pair.at_one.responses.create(
            model="codex-5", input=HELD_PROMPT, background=True, instructions="Be brief."
        )
        await until(lambda: pair.one.server.runs.running == 1)
        await pair.one.server.stop()
        pair.release.write_text("go")
        assert (await wait_for_end(pair.two, created.id))["status"] == "completed"


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("recovery", "status", "hurried"),
    [
        ("rerun", "completed", True),
        ("fail", "failed", True),
        pytest.param("rerun", "completed", False, marks=pytest.mark.exhaustive),
    ],
)
async def test_what_a_killed_server_ran_is_taken_over_once_its_lease_has_run_out(
    pair_with: MakePair, postgres_url: str, tmp_path: Path, recovery: str, status: str, hurried: bool
) -> None:
    async with pair_with(background_recovery=recovery) as pair:
        body = {"model": "codex-5", "input": HELD_PROMPT, "background": True, "instructions": "Be brief."}
        async with third_server(pair, postgres_url, PROXY_BACKGROUND_RECOVERY=recovery) as (url, process):
            async with pair.one.session.post(f"{url}/v1/responses", json=body) as reply:
                id = (await reply.json())["id"]
            process.kill()
            await process.wait()
        assert await leases_of(pair.one).claim_responses(10) == []
        if hurried:
            await let_leases_run_out(postgres_url)
            leases_of(pair.one)._renewal.set()
        pair.release.write_text("go")
        assert (await wait_for_end(pair.one, id))["status"] == status
        assert (await pair.two.send("GET", f"/v1/responses/{id}")).body["status"] == status


async def test_a_server_whose_lease_was_taken_over_stores_nothing_more(pair: Pair, postgres_url: str) -> None:
    """As one that was paused for longer than its lease."""
    created = await pair.at_one.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
    await until(lambda: pair.one.server.runs.running == 1)
    await let_leases_run_out(postgres_url)
    leases_of(pair.two)._renewal.set()
    assert (await wait_for_end(pair.two, created.id))["status"] == "failed"
    pair.release.write_text("go")
    await pair.one.settled()
    assert (await pair.at_one.responses.retrieve(created.id)).status == "failed"


@pytest.mark.exhaustive
async def test_each_end_is_reported_by_one_server_once(pair_with: MakePair) -> None:
    async with receiver() as target, pair_with(webhooks={"urls": target.url, "secret": SECRET}) as pair:
        created = await asyncio.gather(
            *(create(proxy, prompt_for("Hello."), background=True) for proxy in (pair.one, pair.two) * 10)
        )
        for answer in created:
            await wait_for_end(pair.one, answer.body["id"])
        await target.deliveries(len(created))
        for proxy in (pair.one, pair.two):
            proxy.server.webhooks.wake()  # type: ignore[union-attr]
        await asyncio.gather(pair.one.settled(), pair.two.settled())
    told = [json.loads(body)["data"]["id"] for body, _ in target.webhooks]
    assert sorted(told) == sorted(answer.body["id"] for answer in created)
