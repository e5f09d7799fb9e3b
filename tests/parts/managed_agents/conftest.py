"""A server on the fake agent, and a client of its Managed Agents API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.serving import Proxy, fake_proxy
from tests.parts.managed_agents.following import ManagedClient


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> ManagedClient:
    return ManagedClient(proxy)
