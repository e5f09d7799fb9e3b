"""Delays the check of keys that may be guesses, so that trying many takes long, also many at once.

`core.attempts` decides how long. A bounded number of checks waits at once; beyond it, as beyond what one address may
have waiting, a key is refused unchecked, so that the answer tells nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from codex_proxy.core.attempts import MAX_SECONDS, FailedAttempts, TooManyWaitError
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.ids import Clock

MAX_HELD: Final = 256
"""Connections whose keys wait, of all addresses. An address without wrong keys has none that waits."""


class WrongKeys:
    """One for a server."""

    def __init__(self, clock: Clock, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._attempts = FailedAttempts(clock)
        self._sleep = sleep
        self._held = 0

    @asynccontextmanager
    async def delaying(self, address: str, digest: str) -> AsyncIterator[None]:
        """To be put around the check of a key from this address, which raises `Fault` for a wrong one.

        Raises `Fault` RATE_LIMITED where too many checks wait.
        """
        may_be_guess = not self._attempts.is_known(address, digest)
        if may_be_guess:
            await self._wait(address)
        try:
            yield
        except Fault:
            self._attempts.was_wrong(address, digest)
            raise
        if may_be_guess:
            self._attempts.take_back(address)
        self._attempts.was_right(address, digest)

    async def _wait(self, address: str) -> None:
        try:
            seconds = self._attempts.delay(address)
        except TooManyWaitError as error:
            raise _refused(error.seconds) from None
        if seconds == 0:
            return
        if self._held >= MAX_HELD:
            raise _refused(MAX_SECONDS)
        self._held += 1
        try:
            await self._sleep(seconds)
        finally:
            self._held -= 1


WRONG_KEYS: Final = web.AppKey("wrong_keys", WrongKeys)


def _refused(seconds: float) -> Fault:
    message = (
        "Too many wrong keys came from this address, so this one was not looked at. Try again later; a key that has "
        "worked from here before works at any time."
    )
    return Fault(Failure(kind=FaultKind.RATE_LIMITED, message=message, retry_after=seconds))
