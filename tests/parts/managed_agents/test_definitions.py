"""Agents and environments through Anthropic's SDK: what its users write runs unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.http.serving import Proxy, fake_proxy
from tests.parts.managed_agents.driving import WEATHER, sdk
from tests.sdk_fields import unknown_fields


@pytest.fixture
async def api(proxy: Proxy) -> AsyncIterator[Any]:
    """`client.beta`."""
    async with sdk(proxy) as client:
        yield client.beta


async def test_an_agent_is_created_and_each_change_is_a_version(api: Any) -> None:
    made = await api.agents.create(
        model={"id": "codex-5", "effort": "high"},
        name="Weather",
        system="Be kind.",
        description="Knows the weather.",
        tools=[WEATHER],
        metadata={"team": "a", "old": "x"},
    )
    assert not unknown_fields(made)
    assert (made.version, made.model.id, made.model.effort.type) == (1, "codex-5", "high")
    assert made.tools[0].input_schema.required == ["city"]

    changed = await api.agents.update(made.id, version=1, system=None, metadata={"team": "b", "old": None})
    assert (changed.version, changed.system, changed.metadata) == (2, None, {"team": "b"})
    assert (changed.tools, changed.description) == (made.tools, made.description)
    assert await api.agents.retrieve(made.id) == changed
    assert await api.agents.retrieve(made.id, version=1) == made
    with pytest.raises(anthropic.APIStatusError) as stale:
        await api.agents.update(made.id, version=1, name="Late")
    assert (stale.value.status_code, stale.value.type) == (409, "invalid_request_error")
    again = await api.agents.update(made.id, name="Weather")
    assert again == changed  # nothing has changed: no new version
    with pytest.raises(anthropic.NotFoundError):
        await api.agents.retrieve(made.id, version=3)


async def test_an_effort_stays_until_there_is_another_and_a_speed_does_not(api: Any) -> None:
    model: Any = {"id": "codex-5", "effort": {"type": "high"}, "speed": "fast"}
    made = await api.agents.create(model=model, name="Thinker")
    assert (made.model.effort.type, made.model.speed) == ("high", "fast")
    changed = await api.agents.update(made.id, model="codex-5")
    assert (changed.model.effort.type, changed.model.speed) == ("high", "standard")
    changed = await api.agents.update(made.id, model={"id": "codex-5", "effort": "low"})
    assert (changed.version, changed.model.effort.type) == (3, "low")


async def test_versions_are_listed_over_pages_newest_first(api: Any) -> None:
    made = await api.agents.create(model="codex-5", name="0")
    for number in range(1, 5):
        await api.agents.update(made.id, name=str(number))
    for limit in (1, 2, 4, 5):
        found = [each async for each in api.agents.versions.list(made.id, limit=limit)]
        assert [(each.version, each.name) for each in found] == [(n + 1, str(n)) for n in range(4, -1, -1)]


async def test_an_archived_agent_can_be_read_but_not_changed(api: Any) -> None:
    made = await api.agents.create(model="codex-5", name="Old")
    archived = await api.agents.archive(made.id)
    assert archived.archived_at is not None
    assert await api.agents.archive(made.id) == archived
    assert await api.agents.retrieve(made.id) == archived
    with pytest.raises(anthropic.ConflictError):
        await api.agents.update(made.id, name="New")
    assert [each.id async for each in api.agents.list()] == []
    assert [each.id async for each in api.agents.list(include_archived=True)] == [made.id]


async def test_agents_are_found_by_the_time_when_they_were_made(api: Any) -> None:
    made = await api.agents.create(model="codex-5", name="Now")
    second = timedelta(seconds=1)
    for after, before, expected in (
        (made.created_at, made.created_at, [made]),
        (made.created_at + second, None, []),
        (None, made.created_at - second, []),
    ):
        limits = {"created_at_gte": after, "created_at_lte": before}
        given = {name: time for name, time in limits.items() if time is not None}
        assert [each async for each in api.agents.list(**given)] == expected


def test_the_client_without_asyncio_does_the_same(tmp_path: Path) -> None:
    async def serve() -> None:
        async with fake_proxy(tmp_path) as proxy:
            await asyncio.to_thread(keep_definitions, proxy.url)

    asyncio.run(serve())


def keep_definitions(url: str) -> None:
    with anthropic.Anthropic(auth_token="any", base_url=url, max_retries=0) as client:
        made = client.beta.agents.create(model="codex-5", name="One", tools=[WEATHER])  # type: ignore[list-item]
        changed = client.beta.agents.update(made.id, version=1, name="Two")
        assert [each.name for each in client.beta.agents.versions.list(made.id, limit=1)] == ["Two", "One"]
        assert client.beta.agents.archive(made.id).version == changed.version
        here = client.beta.environments.create(name="here")
        assert [each.id for each in client.beta.environments.list()] == [here.id]
        assert client.beta.environments.delete(here.id).type == "environment_deleted"


async def test_an_environment_is_created_changed_archived_and_deleted(api: Any) -> None:
    made = await api.environments.create(
        name="here", config={"type": "cloud", "networking": {"type": "unrestricted"}}
    )
    assert not unknown_fields(made)
    assert (made.config.type, made.config.packages.pip) == ("cloud", [])
    with pytest.raises(anthropic.ConflictError):
        await api.environments.create(name="here")
    changed = await api.environments.update(made.id, name="there", metadata={"a": "b"})
    assert (changed.name, changed.metadata) == ("there", {"a": "b"})
    other = await api.environments.create(name="here")  # the name is free again
    with pytest.raises(anthropic.ConflictError):
        await api.environments.update(other.id, name="there")
    archived = await api.environments.archive(made.id)
    assert archived.archived_at is not None
    with pytest.raises(anthropic.ConflictError):
        await api.environments.update(made.id, name="elsewhere")
    await api.environments.update(other.id, name="there")
    assert [each.id async for each in api.environments.list()] == [other.id]
    deleted = await api.environments.delete(made.id)
    assert (deleted.id, deleted.type) == (made.id, "environment_deleted")
    with pytest.raises(anthropic.NotFoundError):
        await api.environments.retrieve(made.id)


async def test_who_pages_may_delete_what_it_has_seen(api: Any) -> None:
    made = [(await api.environments.create(name=f"env {number}")).id for number in range(7)]
    page = await api.environments.list(limit=2)
    seen: list[str] = []
    while True:
        for each in page.data:
            seen.append(each.id)
            await api.environments.delete(each.id)
        if not page.has_next_page():
            break
        page = await page.get_next_page()
    assert seen == made[::-1]
