"""No test of MCP leaves a fault in a task that nobody looks at."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest


@pytest.fixture(autouse=True)
async def no_unseen_faults() -> AsyncIterator[None]:
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    gc.freeze()  # only what this test leaves is looked through, and not all that was ever loaded
    yield
    gc.collect()  # a task tells of its fault when it is collected
    assert faults == []
