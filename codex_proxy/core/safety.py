"""The rules about what a request may reach: which IP addresses are public, and which paths the commands of an agent
may write to.

The functions see only addresses and resolved paths. The caller resolves host names and links, and connects. A
request may come from a stranger, so it must not reach the operator's own network, and no command of an agent may
change the server's own files, or the programs and settings with which it is started.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

import msgspec

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""The prefix of IPv6 addresses whose last 32 bits are an IPv4 address; networks without IPv4 reach it this way."""


def ip_literal(host: str) -> Address | None:
    """Parses an IP address. Returns None if `host` is not one, such as a host name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_public(text: str) -> bool:
    """Whether the text is a public IP address. For an IPv6 address that contains an IPv4 address (mapped, NAT64),
    the IPv4 address decides. 6to4 and Teredo addresses are not public.
    """
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


class Protected(msgspec.Struct, frozen=True):
    """A path that the commands of agents must not change. So an agent with write access must not work in the folder
    `path` or in a folder that contains it. `what` is the path's name in messages ("the state folder").
    """

    what: str
    path: str
    whole: bool = True
    """True: `path` is a folder whose whole content is protected, so that an agent must not work in a folder inside
    it, either. False: folders inside `path` are allowed.
    """


def is_inside(path: str, folder: str) -> bool:
    """Whether a resolved path is this folder or a path inside of it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def endangered(root: str, protected: Sequence[Protected]) -> Protected | None:
    """Returns the first protected path that a program which may write anywhere in the folder `root` could change;
    None if there is none. It is a path that equals `root` or lies in it, or one with `whole` in which `root` lies.
    `root` and the protected paths must be resolved.
    """
    for each in protected:
        if is_inside(each.path, root) or (each.whole and is_inside(root, each.path)):
            return each
    return None
