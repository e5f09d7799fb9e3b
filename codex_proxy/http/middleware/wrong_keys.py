"""Holds the answers to wrong keys back, so that trying many takes long. Right keys never come here.

How long is decided in `core.attempts`; here it is waited, for a bounded number of answers at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from codex_proxy.core.attempts import FailedAttempts
from codex_proxy.core.ids import Clock

MOST_HELD: Final = 256
"""Connections that wait for such an answer. One more is closed without an answer: it is no client of ours."""


class WrongKeys:
    """One for a server."""

    def __init__(self, clock: Clock, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._attempts = FailedAttempts(clock)
        self._sleep = sleep
        self._held = 0

    async def hold_back(self, address: str) -> bool:
        """Returns when the answer to a wrong key from this address may go out; False: it gets none."""
        seconds = self._attempts.delay(address)
        if seconds == 0:
            return True
        if self._held >= MOST_HELD:
            return False
        self._held += 1
        try:
            await self._sleep(seconds)
        finally:
            self._held -= 1
        return True
