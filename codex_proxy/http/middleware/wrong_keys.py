"""Delays the check of keys that may be guesses, so that trying many keys takes long, even on many connections.

The more wrong keys an address has sent, the longer its next key waits, within limits. A key that was valid before
from the same address does not wait. Any other key waits, valid or not: if only wrong keys were answered late, an
attacker could take a late answer for a wrong key, and not wait for it. The number of waiting checks is limited, in
all and per address; beyond that a key is refused without a check.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.interfaces import Clock

FREE_ATTEMPTS: Final = 3
"""The number of wrong keys from one address that cause no delay, for a person who mistypes or a client with an old
key."""
FIRST_SECONDS: Final = 0.25
MAX_SECONDS: Final = 5.0
"""The most seconds between two checks of keys from one address."""
MAX_WAIT_SECONDS: Final = 20.0
"""The most seconds that a check waits for earlier checks of its address. A key that would wait longer is refused."""
FORGET_SECONDS: Final = 600.0
"""Seconds without a wrong key after which the wrong keys of an address are forgotten."""
MAX_ADDRESSES: Final = 4096
"""The most addresses that are remembered, about 1 MiB. Beyond that, the address whose last key is the oldest is
forgotten."""
MAX_KNOWN: Final = 4096
"""The most valid keys that are remembered, each with its address."""


class TooManyWaitError(Exception):
    """Too many keys from the same address wait for their check, so a further key is refused without one. `seconds`
    is how long its check would have had to wait.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:g} s")
        self.seconds = seconds


class FailedAttempts:
    """Counts wrong keys by client address, and computes how long the next key from an address has to wait. It also
    remembers which keys were valid from which address.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, float, float]] = OrderedDict()
        """By address: the number of wrong keys, when the last key came, and when it is checked (seconds of the
        monotonic clock); the oldest first."""
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        """The address and digest of keys that were valid, the least recently used first."""

    def delay(self, address: str) -> float:
        """Returns how many seconds the check of a key from this address must wait. Counts the key as wrong until
        `uncount` is called, so that keys that are checked at the same time delay each other: the checks of one
        address follow one after the other. Raises `TooManyWaitError` for a wait above `MAX_WAIT_SECONDS`.
        """
        now, address = self._clock.monotonic(), _network_of(address)
        count, last, looked = self._failed.pop(address, (0, now, now))
        if now - last >= FORGET_SECONDS:
            count = 0
        spacing = (
            0.0
            if count < FREE_ATTEMPTS
            else min(FIRST_SECONDS * 2.0 ** min(count - FREE_ATTEMPTS, 16), MAX_SECONDS)
        )
        wait = max(looked - now, 0.0) + spacing
        if wait > MAX_WAIT_SECONDS:
            self._failed[address] = (count, now, looked)
            raise TooManyWaitError(wait)
        self._failed[address] = (count + 1, now, now + wait)
        if len(self._failed) > MAX_ADDRESSES:
            self._failed.popitem(last=False)
        return wait

    def is_known(self, address: str, digest: str) -> bool:
        """Whether the key with this digest was valid before, from this address."""
        return (_network_of(address), digest) in self._known

    def uncount(self, address: str) -> None:
        """Subtracts one wrong key of this address, because a key for which `delay` was called was valid."""
        address = _network_of(address)
        count, last, looked = self._failed.pop(address, (0, 0.0, 0.0))
        if count > 1:
            self._failed[address] = (count - 1, last, looked)

    def remember_valid(self, address: str, digest: str) -> None:
        """Remembers that the key with this digest was valid from this address; `is_known` returns True for it from
        now on.
        """
        known = (_network_of(address), digest)
        self._known[known] = None
        self._known.move_to_end(known)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def forget_valid(self, address: str, digest: str) -> None:
        """Makes `is_known` return False for this address and digest, because the key is no longer valid."""
        self._known.pop((_network_of(address), digest), None)

    def __len__(self) -> int:
        return len(self._failed)


def _network_of(address: str) -> str:
    """Returns the network whose addresses count as one: the /64 of an IPv6 address, and a single IPv4 address. Text
    that is no IP address is returned unchanged.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)


MAX_WAITING: Final = 256
"""The most checks of keys that wait, of all addresses together. Keys of addresses without wrong keys never wait."""


class WrongKeys:
    """Delays the checks of keys that may be guesses: all keys, except those that were valid before from the same
    address. The first `FREE_ATTEMPTS` wrong keys of an address cause no delay. There is one object for the whole
    server.
    """

    def __init__(self, clock: Clock, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._attempts = FailedAttempts(clock)
        self._sleep = sleep
        self._held = 0

    @asynccontextmanager
    async def delaying(self, address: str, digest: str) -> AsyncIterator[None]:
        """Delays the body of the `with`, which checks the key with this `digest` and must raise `Fault` if it is
        wrong. There is no delay if the key was valid before from this address, or the address has sent few wrong
        keys. Raises `Fault` RATE_LIMITED, without the body, if too many checks wait.
        """
        may_be_guess = not self._attempts.is_known(address, digest)
        if may_be_guess:
            await self._wait(address)
        try:
            yield
        except Fault:
            self._attempts.forget_valid(address, digest)
            raise
        if may_be_guess:
            self._attempts.uncount(address)
        self._attempts.remember_valid(address, digest)

    async def _wait(self, address: str) -> None:
        try:
            seconds = self._attempts.delay(address)
        except TooManyWaitError as error:
            raise _refused(error.seconds) from None
        if seconds == 0:
            return
        if self._held >= MAX_WAITING:
            raise _refused(MAX_SECONDS)
        self._held += 1
        try:
            await self._sleep(seconds)
        finally:
            self._held -= 1


WRONG_KEYS: Final = web.AppKey("wrong_keys", WrongKeys)


def _refused(seconds: float) -> Fault:
    message = (
        "Too many wrong keys came from this address, so this one was not checked. Try again later; a key that has "
        "worked from here before works at any time."
    )
    return Fault(Failure(kind=FaultKind.RATE_LIMITED, message=message, retry_after=seconds))
