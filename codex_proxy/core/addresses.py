"""Which network addresses are of the public internet.

Decides by the address alone; resolving a name, and connecting, are the affair of whoever asks. What a request
names may come from a stranger: nothing on the operator's own network may be reached by it.
"""

from __future__ import annotations

import ipaddress
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""Where an IPv4 address stands in the last 32 bits: how a network without IPv4 reaches it."""


def literal(host: str) -> Address | None:
    """The address that is written there, None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_public(text: str) -> bool:
    """Whether an address is one of the public internet, and leads nowhere else in disguise."""
    address = literal(text.partition("%")[0])
    if address is None or "%" in text:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        inside = address.ipv4_mapped
        if address in _NAT64:
            inside = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inside is not None:
            return is_public(str(inside))
        if address.is_site_local or address.sixtofour is not None or address.teredo is not None:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved)
