"""Webhooks of a server that is killed: between any two of its commits, and at random moments."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.http_responses.webhook_kills import after_kills, moments


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "commits",
    [pytest.param([4, None], id="some"), pytest.param(None, id="many", marks=pytest.mark.exhaustive)],
)
async def test_every_end_of_a_background_response_is_reported_after_kills(
    tmp_path: Path, commits: list[int | None] | None
) -> None:
    chance = random.Random(7)
    found = await after_kills(tmp_path, moments(20, chance) if commits is None else commits, chance)
    assert found.ended
    assert found.lost == set()
    assert found.ambiguous == set()
