"""Fails every MCP test that leaves an exception in a task that nobody awaited."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest


@pytest.fixture(autouse=True)
async def no_unretrieved_exceptions() -> AsyncIterator[None]:
    """Collects what asyncio reports of tasks whose exception nobody retrieved, and asserts that there is
    nothing.
    """
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    gc.freeze()  # so that the collection below looks only at what this test made
    yield
    gc.collect()  # a task reports its unretrieved exception when it is collected
    assert faults == []
