"""Work that takes time for each item of a conversation or each byte of an answer: a thread does it for a long one, so
that others are served.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from codex_proxy.core.items import HistoryItem

R = TypeVar("R")

FEW_ITEMS: Final = 500
"""Items of a history for which the event loop itself may work, at up to 20 us each; a thread does it for more."""


def is_long(history: Sequence[HistoryItem]) -> bool:
    return len(history) > FEW_ITEMS


async def beside_the_loop(work: Callable[[], R], *, long: bool) -> R:
    """Returns what `work` returns. If it is `long`, others are served meanwhile; whoever is cancelled meanwhile goes on
    when it is done, so that nobody meets its objects half changed.
    """
    if not long:
        return work()
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({working})
        if not working.cancelled():
            working.exception()  # nobody else asks for it
        raise
