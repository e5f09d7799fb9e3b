"""A fresh proxy on the fake agent for each test."""

from __future__ import annotations

import shlex
import sys
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
def log_lines() -> Iterator[list[Any]]:
    """Every line that is logged during the test."""
    with structlog.testing.capture_logs() as lines:
        yield lines


CODEX = """#!/bin/sh
if [ "$1" = --version ]; then echo "codex-cli 0.42.0"; exit; fi
if [ "$2" = --help ]; then echo "Usage: codex proto [OPTIONS]"; exit; fi
echo "$@" >> {log}
exec {python} -m fake_proto "$@"
"""


@pytest.fixture
def codex(tmp_path: Path) -> Path:
    """A Codex of the proto dialect that writes into `started` beside it how it was started."""
    program = tmp_path / "codex"
    program.write_text(CODEX.format(log=tmp_path / "started", python=shlex.quote(sys.executable)))
    program.chmod(0o755)
    return program
