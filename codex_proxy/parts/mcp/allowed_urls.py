"""Checks MCP servers' URLs in requests against the operator's list. An entry permits its URL and those below:
`https://example.com/mcp` permits `/mcp`, `/mcp/x` and `/mcp?x=1`, not `/mcpx`. Source:
docs/mcp.md#a-requests-own-servers.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from codex_proxy.core.safety import ip_literal, is_public

SETTING: Final = "PROXY_MCP_ALLOWED_URLS"

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""Resolves host and port. Raises `OSError` without an address."""

_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_AMBIGUOUS: Final = re.compile(r"[\\\x00-\x20\x7f]|%(?:2e|2f|5c)|/\.{1,2}(?:[/?#]|$)", re.IGNORECASE)
"""Matches paths that clients and servers read differently, or that leave the permitted folder."""


class ForbiddenAddressError(Exception):
    """A permitted name has an address that is not public."""


class NormalizedUrl(msgspec.Struct, frozen=True):
    """A URL for comparisons: with a port, without the query."""

    scheme: str
    host: str
    port: int
    path: str

    def covers(self, other: NormalizedUrl) -> bool:
        if (self.scheme, self.host, self.port) != (other.scheme, other.host, other.port):
            return False
        folder = self.path if self.path.endswith("/") else self.path + "/"
        return other.path == self.path or other.path.startswith(folder)


def normalize_url(url: str) -> NormalizedUrl:
    """Parses a URL for the list. Raises `ValueError` for one that can never be permitted: not http(s), with a user
    name, an ambiguous path, or a host that is not ASCII.
    """
    if _AMBIGUOUS.search(url):
        raise ValueError("it contains spaces, dots or slashes whose meaning is ambiguous")
    parsed = urlsplit(url)
    if parsed.scheme not in _DEFAULT_PORTS or not parsed.hostname:
        raise ValueError("it is not an http or https URL")
    if parsed.username is not None or parsed.password is not None:
        raise ValueError("it contains a user name or password")
    if not parsed.hostname.isascii():
        raise ValueError("its host is not in ASCII")
    host = parsed.hostname.rstrip(".")
    address = ip_literal(host)
    port = parsed.port or _DEFAULT_PORTS[parsed.scheme]
    return NormalizedUrl(parsed.scheme, host if address is None else str(address), port, parsed.path or "/")


class AllowedUrls:
    def __init__(self, allowed: tuple[str, ...], resolve: Resolve | None = None) -> None:
        """`resolve`: looks up names; None: as the system does. Raises `ValueError` for an entry that is no http(s)
        URL, or has a query or fragment.
        """
        self._allowed = tuple(map(_entry, allowed))
        self._resolve = resolve or resolve_with_system

    def permits(self, url: str) -> bool:
        try:
            normalized = normalize_url(url)
        except ValueError:
            return False
        return any(entry.covers(normalized) for entry in self._allowed)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Returns the addresses to connect to. Raises `ForbiddenAddressError` if one is not public (for `localhost`:
        not loopback), `OSError` if there is none.
        """
        if ip_literal(host) is not None:
            return [host]
        found = await self._resolve(host, port)
        # A name with public and private addresses is refused whole: it may be an attempt to get inside.
        if host == "localhost":
            local = [address for address in found if (known := ip_literal(address)) and known.is_loopback]
            if local == found:
                return found
        elif all(map(is_public, found)):
            return found
        raise ForbiddenAddressError


async def resolve_with_system(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _entry(text: str) -> NormalizedUrl:
    try:
        if "?" in text or "#" in text:
            raise ValueError("it contains a query or a fragment")
        return normalize_url(text.strip())
    except ValueError as error:
        raise ValueError(f"{SETTING}: {text!r} is not a URL of an MCP server: {error}") from None
