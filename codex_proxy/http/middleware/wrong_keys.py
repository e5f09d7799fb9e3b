"""Delays the check of keys that may be guesses, so that trying many takes long, also many at once.

The more wrong keys an address has brought, the longer its next one waits, within bounds. A key that has been right from
this address before is looked at at once, whoever else comes from there. Any other waits, right or wrong: if only the
answers to wrong ones came late, whoever tries many at once would know without them. A bounded number of checks waits at
once; beyond it, as beyond what one address may have waiting, a key is refused unchecked, so that the answer tells
nothing.
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
from codex_proxy.core.ids import Clock

FREE: Final = 3
"""The number of wrong keys that cause no delay, for a person who mistypes or a client with an old key."""
FIRST_SECONDS: Final = 0.25
MAX_SECONDS: Final = 5.0
"""The longest delay between two checks for one address."""
MAX_WAIT_SECONDS: Final = 20.0
"""The longest wait of a check behind others of its address. Clients give up later than that."""
FORGIVEN_SECONDS: Final = 600.0
"""Seconds without a wrong key after which the failures of an address are forgotten."""
MAX_ADDRESSES: Final = 4096
"""About 1 MiB. Past it the address that was quiet for longest is forgotten."""
MAX_KNOWN: Final = 4096
"""Keys that were right, each with its address; as much."""


class TooManyWaitError(Exception):
    """Too many keys from this address wait to be checked: this one is refused unchecked."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:g} s")
        self.seconds = seconds


class FailedAttempts:
    """Counts wrong keys by client address, and says how long the next key from there has to wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, float, float]] = OrderedDict()
        """Per address how many, when the last one came, and when it is looked at; the quietest first."""
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Address and digest of keys that were right; the one that was used longest ago first."""

    def delay(self, address: str) -> float:
        """Notes one more check, and returns the seconds until it may be made. Raises `TooManyWaitError`.

        Checks of one address are made one after the other, so that more connections are not faster.
        """
        now, address = self._clock.monotonic(), _network_of(address)
        count, last, looked = self._failed.pop(address, (0, now, now))
        if now - last >= FORGIVEN_SECONDS:
            count = 0
        spacing = 0.0 if count < FREE else min(FIRST_SECONDS * 2.0 ** min(count - FREE, 16), MAX_SECONDS)
        wait = max(looked - now, 0.0) + spacing
        if wait > MAX_WAIT_SECONDS:
            self._failed[address] = (count, now, looked)
            raise TooManyWaitError(wait)
        self._failed[address] = (count + 1, now, now + wait)
        if len(self._failed) > MAX_ADDRESSES:
            self._failed.popitem(last=False)
        return wait

    def is_known(self, address: str, digest: str) -> bool:
        """Whether this key (its digest) was right before, from this address."""
        return (_network_of(address), digest) in self._known

    def take_back(self, address: str) -> None:
        """Undoes one `delay`: the key was not a guess."""
        address = _network_of(address)
        count, last, looked = self._failed.pop(address, (0, 0.0, 0.0))
        if count > 1:
            self._failed[address] = (count - 1, last, looked)

    def was_right(self, address: str, digest: str) -> None:
        """Notes that this key is right, so that `is_known` is true for it."""
        known = (_network_of(address), digest)
        self._known[known] = None
        self._known.move_to_end(known)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def was_wrong(self, address: str, digest: str) -> None:
        """Notes that this key is wrong, so that `is_known` is false for it."""
        self._known.pop((_network_of(address), digest), None)

    def __len__(self) -> int:
        return len(self._failed)


def _network_of(address: str) -> str:
    """The network that counts as one client: the /64 of an IPv6 address, the address itself for IPv4."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)


MAX_HELD: Final = 256
"""Connections whose keys wait, of all addresses. An address without wrong keys has none that waits."""


class WrongKeys:
    """Delays the checks of keys that may be guesses; one object for a server."""

    def __init__(self, clock: Clock, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._attempts = FailedAttempts(clock)
        self._sleep = sleep
        self._held = 0

    @asynccontextmanager
    async def delaying(self, address: str, digest: str) -> AsyncIterator[None]:
        """Wraps the check of a key from this address, which raises `Fault` for a wrong key.

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
