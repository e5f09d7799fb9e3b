"""Which IP addresses are public, which paths agents' commands may write to, and how long a secret is. The caller
resolves names and links.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

import msgspec

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MIN_SECRET_CHARS: Final = 6
"""The shortest secret that is removed from logs, messages and recordings. Shorter values are switches (`1`, `on`), or
stand for no key (`none`): texts would be unreadable without these words.
"""

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""The network whose addresses end with an IPv4 address; networks without IPv4 reach it this way."""


def ip_literal(host: str) -> Address | None:
    """Parses an IP address; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def peer_address(text: str) -> Address | None:
    """Parses the address of a connection: without an IPv6 zone, and as IPv4 if it stands for one. None: it is none."""
    address = ip_literal(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_public(text: str) -> bool:
    """Whether an IP address is public: an IPv4 address inside decides (mapped, NAT64); 6to4 and Teredo are not."""
    address = ip_literal(text.partition("%")[0])
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


class ProtectedPath(msgspec.Struct, frozen=True):
    """A path that commands must not change. `what` names it in messages ("the state folder")."""

    what: str
    path: str
    whole: bool = True
    """Whether commands must not write inside the path, either."""


def is_inside(path: str, folder: str) -> bool:
    """Whether a resolved path is this folder or inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def find_endangered(root: str, protected: Sequence[ProtectedPath]) -> ProtectedPath | None:
    """Returns the first protected path in or above the folder `root`, if any. All are resolved."""
    for each in protected:
        if is_inside(each.path, root) or (each.whole and is_inside(root, each.path)):
            return each
    return None
