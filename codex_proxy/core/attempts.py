"""How long the answer to a wrong key is held back: the more failed attempts of one address, the longer, within bounds.

In: addresses of peers, and the time (from an injected clock). Out: seconds. Whoever has a right key is never asked
about: it does not matter who else comes from their address. It sleeps for nobody.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final

from codex_proxy.core.ids import Clock

FREE: Final = 3
"""Attempts that are answered at once: a person who mistypes, or a client with an old key, waits for nothing."""
FIRST_SECONDS: Final = 0.25
LONGEST_SECONDS: Final = 5.0
"""Clients give up later than that, and a connection is held for no longer."""
FORGIVEN_SECONDS: Final = 600.0
"""Without a failed attempt, until an address begins anew."""
MOST_ADDRESSES: Final = 4096
"""About 1 MiB. Past it the address that was quiet for longest is forgotten."""


class FailedAttempts:
    """Counts wrong keys, by address."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, float, float]] = OrderedDict()
        """Per address how many, when the last one came, and when its answer goes out; the quietest first."""

    def delay(self, address: str) -> float:
        """Notes one more, and gives the seconds to hold its answer back.

        Several at once are answered one after the other: opening more connections makes nobody faster.
        """
        now, address = self._clock.monotonic(), _network_of(address)
        count, last, answered = self._failed.pop(address, (0, now, now))
        if now - last >= FORGIVEN_SECONDS:
            count = 0
        count += 1
        spacing = (
            0.0 if count <= FREE else min(FIRST_SECONDS * 2.0 ** min(count - FREE - 1, 16), LONGEST_SECONDS)
        )
        wait = min(max(answered - now, 0.0) + spacing, LONGEST_SECONDS)
        self._failed[address] = (count, now, now + wait)
        if len(self._failed) > MOST_ADDRESSES:
            self._failed.popitem(last=False)
        return wait

    def __len__(self) -> int:
        return len(self._failed)


def _network_of(address: str) -> str:
    """Who has one address of IPv6 has its whole /64."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)
