"""Delays the checks of keys: the more wrong keys came from an address, the longer the next one waits, within limits.

Comes in: addresses, digests of keys, and the time from an injected clock. Goes out: seconds. A key that was right
from this address before is checked at once. Any other key waits, right or wrong: if only the answers to wrong keys
were late, an attacker with many requests could ignore the late ones. Nothing sleeps here.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final

from codex_proxy.core.ids import Clock

FREE: Final = 3
"""Attempts that are answered at once: a person who mistypes, or a client with an old key, waits for nothing."""
FIRST_SECONDS: Final = 0.25
MAX_SECONDS: Final = 5.0
"""Between two of them."""
MAX_WAIT_SECONDS: Final = 20.0
"""For one that has others of its address before it. Clients give up later than that."""
FORGIVEN_SECONDS: Final = 600.0
"""Without a failed attempt, until an address begins anew."""
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
