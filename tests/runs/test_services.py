"""What all runs share."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

from codex_proxy.runs.services import RunServices
from tests.waiting import PATIENCE


async def test_a_work_at_a_turn_s_end_that_fails_stops_no_other_one() -> None:
    services: Any = SimpleNamespace(spawn=lambda work, context: asyncio.ensure_future(work))
    done, ended = list[str](), asyncio.Event()

    async def fail() -> None:
        raise ValueError

    async def work() -> None:
        done.append("work")

    RunServices.spawn_in_turn(services, [fail(), work()], copy_context(), ended.set)
    await asyncio.wait_for(ended.wait(), PATIENCE)
    assert done == ["work"]
