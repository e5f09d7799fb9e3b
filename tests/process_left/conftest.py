"""The provider and the homes of the tests here: those of `tests/real`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.real.codex_home import CodexHome, make_codex_home
from tests.real.model_server import ModelServer
from tests.real.model_server import model_server as running_model_server


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


@pytest.fixture
async def model_server() -> AsyncIterator[ModelServer]:
    async with running_model_server() as server:
        yield server


@pytest.fixture
def codex_home(tmp_path: Path, model_server: ModelServer) -> CodexHome:
    return make_codex_home(tmp_path, model_server.base_url)
