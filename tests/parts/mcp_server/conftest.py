"""A proxy whose agents an MCP client may start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import Proxy, fake_proxy

FAKE: dict[str, Any] = {
    "fake_dialect": "app-server",
    "sandbox": "danger-full-access",
}  # the fake agent has no other sandbox


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, **FAKE) as proxy:
        yield proxy
