"""Fixtures of the tests that drive the real binary. A missing binary is an error, never a skip."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.real.codex_home import CodexHome, codex_path, make_codex_home
from tests.real.model_server import ModelServer
from tests.real.model_server import model_server as running_model_server
from tests.real.outside_sink import OutsideSink
from tests.real.outside_sink import outside_sink as running_outside_sink
from tests.real.proxy import Proxy
from tests.real.proxy import proxy as running_proxy

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test of this folder ``real``: no module can forget it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def codex_binary() -> Path:
    return codex_path()


@pytest.fixture
async def model_server() -> AsyncIterator[ModelServer]:
    async with running_model_server() as server:
        yield server


@pytest.fixture
async def outside_sink() -> AsyncIterator[OutsideSink]:
    async with running_outside_sink() as sink:
        yield sink


@pytest.fixture
def codex_home(tmp_path: Path, model_server: ModelServer) -> CodexHome:
    return make_codex_home(tmp_path, model_server.base_url)


@pytest.fixture
async def proxy(codex_home: CodexHome) -> AsyncIterator[Proxy]:
    async with running_proxy(codex_home) as running:
        yield running
