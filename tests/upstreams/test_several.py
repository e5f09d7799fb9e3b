"""Several upstreams in one server: whose model a name means, who is asked instead, and what each is not told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.http.serving import Proxy, fake_proxy, user
from tests.upstreams.serving import Upstream, upstream

NOWHERE = {"url": "http://127.0.0.1:1/v1", "retries": 0}


@asynccontextmanager
async def several(
    folder: Path, environment: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Proxy]:
    """A server whose first upstream is its default."""
    first = next(iter(settings["upstreams"]))
    async with fake_proxy(folder, environment, **({"agent": first} | settings)) as proxy:
        yield proxy


@pytest.fixture
async def a() -> AsyncIterator[Upstream]:
    async with upstream() as server:
        yield server


@pytest.fixture
async def b() -> AsyncIterator[Upstream]:
    async with upstream() as server:
        server.models = [{"id": "small"}, {"id": "vendor/big"}]
        yield server


def ask(model: str, **more: Any) -> dict[str, Any]:
    return user(**more) | {"model": model}


async def test_a_model_is_asked_of_the_agent_that_its_name_begins_with(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    async with several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}) as proxy:
        for name, server, own in (
            ("a/small", a, "small"),
            ("b/small", b, "small"),
            ("large", a, "large"),
            ("vendor/big", b, "vendor/big"),
            ("B/Vendor/Big", b, "vendor/big"),
            ("b", b, "small"),
            ("codex-5", a, "small"),
        ):
            answer = await proxy.ask(ask(name))
            assert answer.status == 200
            assert server.asked[-1].body["model"] == own
            agent = "a" if server is a else "b"
            assert answer.headers["x-codex-agent"] == answer.headers["x-codex-upstream"] == agent
            assert answer.headers["x-codex-attempts"] == "1"


async def test_the_official_sdk_lists_and_asks_every_model(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    async with (
        several(tmp_path, upstreams={"a": {"url": a.url}, "b": {"url": b.url}}) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        listed = {model.id: model async for model in client.models.list()}
        assert list(listed) == ["a/small", "a/large", "b/small", "b/vendor/big"]
        for name in listed:
            assert (await client.models.retrieve(name)).id == name
            answer = await client.responses.create(model=name, input="Hi")
            assert answer.output_text == "Hello."
            chat = await client.chat.completions.with_raw_response.create(
                model=name, messages=[{"role": "user", "content": "Hi"}]
            )
            assert chat.headers["x-codex-agent"] == name.partition("/")[0]
            assert chat.parse().choices[0].message.content == "Hello."
