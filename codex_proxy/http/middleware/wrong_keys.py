"""Delays the check of keys that may be guesses, longer with each wrong key of an address; right keys too, because a
late answer must not reveal a wrong one. Keys that were valid from there before do not wait.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from codex_proxy.core.caches import LruCache
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.safety import peer_address

FREE_ATTEMPTS: Final = 3
"""Number of wrong keys without a delay, for a person who mistypes."""
FIRST_SECONDS: Final = 0.25
MAX_SECONDS: Final = 5.0
"""The longest pause between two checks for one address."""
MAX_WAIT_SECONDS: Final = 20.0
"""The longest wait of a key; one that would wait longer is refused."""
FORGET_SECONDS: Final = 600.0
"""Seconds without a wrong key until an address is forgotten."""
MAX_ADDRESSES: Final = 4096
"""Maximum addresses, about 1 MiB; the oldest is forgotten first."""
MAX_KNOWN: Final = 4096
"""Maximum valid keys that are remembered, each with its address."""


class FailedAttempts:
    """Counts wrong keys by network (`network_of`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, float, float]] = OrderedDict()
        """The number of wrong keys by network, oldest first, and when the last came and is checked (monotonic
        seconds).
        """

    def delay(self, network: str) -> float:
        """Returns the seconds that a check from this network waits, and counts the key as wrong until `uncount`. Raises
        `Fault` RATE_LIMITED if too many wait.
        """
        now = self._clock.monotonic()
        count, last, looked = self._failed.pop(network, (0, now, now))
        if now - last >= FORGET_SECONDS:
            count = 0
        spacing = (
            0.0
            if count < FREE_ATTEMPTS
            else min(FIRST_SECONDS * 2.0 ** min(count - FREE_ATTEMPTS, 16), MAX_SECONDS)
        )
        wait = max(looked - now, 0.0) + spacing
        if wait > MAX_WAIT_SECONDS:
            self._failed[network] = (count, now, looked)
            raise _too_many_wrong(wait)
        self._failed[network] = (count + 1, now, now + wait)
        if len(self._failed) > MAX_ADDRESSES:
            self._failed.popitem(last=False)
        return wait

    def uncount(self, network: str) -> None:
        count, last, looked = self._failed.pop(network, (0, 0.0, 0.0))
        if count > 1:
            self._failed[network] = (count - 1, last, looked)

    def __len__(self) -> int:
        return len(self._failed)


def network_of(address: str) -> str:
    """Returns what stands for an address: an IPv4 address itself, or the /64 of which a machine has all addresses."""
    parsed = peer_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return address if parsed is None else str(parsed)


MAX_WAITING: Final = 256
"""Maximum waiting checks of all addresses."""


class WrongKeys:
    def __init__(self, clock: Clock, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._attempts = FailedAttempts(clock)
        self._valid: LruCache[tuple[str, str], None] = LruCache(MAX_KNOWN)
        """Network and digest of keys that were valid."""
        self._sleep = sleep
        self._held = 0

    @asynccontextmanager
    async def delay_guess(self, address: str, digest: str) -> AsyncIterator[None]:
        """Delays the body of the `with`, which checks a key and must raise `Fault` if it is wrong. Raises `Fault`
        RATE_LIMITED if too many wait.
        """
        network = network_of(address)
        may_be_guess = (network, digest) not in self._valid
        if may_be_guess:
            await self._wait(network)
        try:
            yield
        except Fault:
            self._valid.drop((network, digest))
            raise
        if may_be_guess:
            self._attempts.uncount(network)
        self._valid.put((network, digest), None)

    async def _wait(self, network: str) -> None:
        seconds = self._attempts.delay(network)
        if seconds == 0:
            return
        if self._held >= MAX_WAITING:
            raise _too_many_wrong(MAX_SECONDS)
        self._held += 1
        try:
            await self._sleep(seconds)
        finally:
            self._held -= 1


WRONG_KEYS: Final = web.AppKey("wrong_keys", WrongKeys)


def _too_many_wrong(seconds: float) -> Fault:
    message = (
        "Too many wrong keys came from this address, so this one was not checked. Try again later; a key that has "
        "worked from here before works at any time."
    )
    return Fault.of(FaultKind.RATE_LIMITED, message, retry_after=seconds)
