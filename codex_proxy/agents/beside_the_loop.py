"""Work that takes time for each item of a conversation: a thread does it for a long one, so that others are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from codex_proxy.core.items import HistoryItem

R = TypeVar("R")

FEW_ITEMS: Final = 500
"""Items of a history for which the event loop itself may work, at up to 20 us each; a thread does it for more."""


def is_long(history: Sequence[HistoryItem]) -> bool:
    return len(history) > FEW_ITEMS


async def beside_the_loop(history: Sequence[HistoryItem], work: Callable[[], R]) -> R:
    """Returns what `work` returns, which costs time for each item of the history. Others are served meanwhile."""
    return await asyncio.to_thread(work) if is_long(history) else work()
