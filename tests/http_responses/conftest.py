"""A fresh proxy on the fake agent for each test, and the official SDK as its client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from tests.http.serving import Proxy, fake_proxy
from tests.http_responses.asking import client_of
from tests.rerendered import all_rendered_anew


@pytest.fixture(autouse=True)
def _rendered_anew() -> Iterator[None]:
    with all_rendered_anew():
        yield


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path) as running:
        yield running


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(proxy) as openai:
        yield openai
