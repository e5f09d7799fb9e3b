"""Servers that are killed under load lose nothing that was acknowledged, and leave nothing that never ends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.nginx import needs_nginx
from tests.parts.machines.two_servers.kills import after_kills


@pytest.mark.exhaustive
@pytest.mark.parametrize("balanced", [False, pytest.param(True, marks=needs_nginx)])
async def test_kills_of_either_server_lose_nothing_that_was_acknowledged(
    tmp_path: Path, balanced: bool
) -> None:
    found = await after_kills(tmp_path, 12, random.Random(1), balanced=balanced)
    assert found.completed
    assert found.queued
    assert found.lost == set()
