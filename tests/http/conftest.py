"""A fresh proxy on the fake agent for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.http.serving import Proxy, fake_proxy


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    """One with the settings as they are by default."""
    async with fake_proxy(tmp_path) as running:
        yield running


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Every line that is logged during the test."""
    with structlog.testing.capture_logs() as lines:
        yield lines
