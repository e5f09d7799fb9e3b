"""What the tests of upstreams share with each other and with those of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from tests.http.conftest import log_lines as log_lines
from tests.http.serving import Proxy
from tests.model_server import SPELLINGS, Upstream, proxy_before, upstream


@pytest.fixture(params=SPELLINGS)
def each_spelling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs once with events of each spelling of JSON."""
    monkeypatch.setattr("tests.model_server.spelling", SPELLINGS[request.param])


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    async with upstream() as running:
        yield running


@pytest.fixture
async def proxy(server: Upstream, tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy before the `server`."""
    async with proxy_before(server.url, tmp_path) as running:
        yield running


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    """The official SDK at the `proxy`."""
    async with AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def a() -> AsyncIterator[Upstream]:
    async with upstream() as server:
        yield server


@pytest.fixture
async def b() -> AsyncIterator[Upstream]:
    async with upstream() as server:
        server.models = [{"id": "small"}, {"id": "vendor/big"}]
        yield server
