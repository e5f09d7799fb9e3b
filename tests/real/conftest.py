"""Fixtures of the tests that drive the real binary. A missing binary is an error, never a skip.

All tests here run in one event loop, in which the model server and the proxies live on from test to test.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.real.codex_home import CodexHome, make_codex_home
from tests.real.model_server import ModelServer
from tests.real.model_server import model_server as running_model_server
from tests.real.outside_sink import OutsideSink
from tests.real.outside_sink import outside_sink as running_outside_sink
from tests.real.proxy import Proxy
from tests.real.release import codex_path
from tests.real.shared import Proxies, living_on

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test of this folder ``real``, and puts it into the one loop: no module can forget it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real)
            if pytest_asyncio.is_async_test(item):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


@pytest.fixture(scope="session")
def codex_binary() -> Path:
    return codex_path()


@living_on(scope="session")
async def living_model_server() -> AsyncIterator[ModelServer]:
    async with running_model_server() as server:
        yield server


@living_on(scope="session")
async def living_proxies(living_model_server: ModelServer) -> AsyncIterator[Proxies]:
    with tempfile.TemporaryDirectory(prefix="codex-proxy-test-", ignore_cleanup_errors=True) as folder:
        proxies = Proxies(make_codex_home(Path(folder), living_model_server.base_url))
        yield proxies
        await proxies.close()


@living_on()
async def model_server(living_model_server: ModelServer) -> ModelServer:
    """The provider of this test. It has had no request."""
    living_model_server.forget()
    return living_model_server


@living_on()
async def proxies(model_server: ModelServer, living_proxies: Proxies) -> AsyncIterator[Proxies]:
    """Proxies that other tests have used and will use. This one harms none and changes nothing in the home."""
    living_proxies.begin_test()
    yield living_proxies
    await living_proxies.end_test()


@living_on()
async def own_proxies(codex_home: CodexHome) -> AsyncIterator[Proxies]:
    """Proxies of this test alone, on its own home."""
    proxies = Proxies(codex_home)
    yield proxies
    await proxies.close()


@living_on()
async def proxy(proxies: Proxies) -> Proxy:
    """The shared one with the settings as they are by default."""
    return await proxies.of()


@living_on()
async def outside_sink() -> AsyncIterator[OutsideSink]:
    async with running_outside_sink() as sink:
        yield sink


@pytest.fixture
def codex_home(tmp_path: Path, model_server: ModelServer) -> CodexHome:
    """A home of this test alone."""
    return make_codex_home(tmp_path, model_server.base_url)
