"""Which addresses the servers of requests may have: a list of the operator's, and what names may resolve to.

An entry permits the URL that it is and what is below it: `https://example.com/mcp` permits `/mcp`, `/mcp/x` and
`/mcp?x=1`, not `/mcpx`. A name must resolve to public addresses only, and what it resolves to is what is connected
to. A server of the operator's own network is one whose address the list writes out (`http://10.0.0.5:8080/mcp`), or
`localhost`; who wants a name for it has the file of the operator's servers.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from codex_proxy.core.safety import is_public, literal

SETTING: Final = "PROXY_MCP_ALLOWED_URLS"

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a name, for a port. Raises `OSError` where there are none."""

_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_UNCLEAR: Final = re.compile(r"[\\\x00-\x20\x7f]|%(?:2e|2f|5c)|/\.{1,2}(?:[/?#]|$)", re.IGNORECASE)
"""What servers and clients read differently: a path that leaves its folder is on no list."""


class ForbiddenAddressError(Exception):
    """A name leads to an address that may not be connected to."""


class AllowedUrl(msgspec.Struct, frozen=True):
    """A URL in the one way in which it is compared."""

    scheme: str
    host: str
    port: int
    path: str

    def holds(self, other: AllowedUrl) -> bool:
        """Whether the other is this one, or below it."""
        if (self.scheme, self.host, self.port) != (other.scheme, other.host, other.port):
            return False
        folder = self.path if self.path.endswith("/") else self.path + "/"
        return other.path == self.path or other.path.startswith(folder)


def allowed_url_of(url: str) -> AllowedUrl:
    """The URL's place. Raises `ValueError` where it is none that could be on a list."""
    if _UNCLEAR.search(url):
        raise ValueError("it holds blanks, dots or slashes that can be read in two ways")
    parsed = urlsplit(url)
    if parsed.scheme not in _DEFAULT_PORTS or not parsed.hostname:
        raise ValueError("it is no http or https address")
    if parsed.username is not None or parsed.password is not None:
        raise ValueError("it holds a user name or password")
    if not parsed.hostname.isascii():
        raise ValueError("its host is not in ASCII")
    host = parsed.hostname.rstrip(".")
    address = literal(host)
    port = parsed.port or _DEFAULT_PORTS[parsed.scheme]
    return AllowedUrl(parsed.scheme, host if address is None else str(address), port, parsed.path or "/")


class AllowedUrls:
    """The operator's list, and the check of what names resolve to."""

    def __init__(self, allowed: tuple[str, ...], resolve: Resolve | None = None) -> None:
        """Raises `ValueError` for an entry that is no URL, or holds a query."""
        self._allowed = tuple(map(_entry, allowed))
        self._resolve = resolve or resolved

    def permits(self, url: str) -> bool:
        """Whether the URL is on the list."""
        try:
            place = allowed_url_of(url)
        except ValueError:
            return False
        return any(entry.holds(place) for entry in self._allowed)

    async def addresses(self, host: str, port: int) -> list[str]:
        """What to connect to for a host that is on the list. Raises `ForbiddenAddressError` if any address of a
        name is not public (a name that leads both ways is somebody's try), `OSError` where there is none."""
        if literal(host) is not None:
            return [host]
        found = await self._resolve(host, port)
        if host == "localhost":
            local = [address for address in found if (known := literal(address)) and known.is_loopback]
            if local == found:
                return found
        elif all(map(is_public, found)):
            return found
        raise ForbiddenAddressError


async def resolved(host: str, port: int) -> list[str]:
    """The system's own answer."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _entry(text: str) -> AllowedUrl:
    try:
        if "?" in text or "#" in text:
            raise ValueError("it holds a query or a fragment")
        return allowed_url_of(text.strip())
    except ValueError as error:
        raise ValueError(f"{SETTING}: {text!r} is no address of MCP servers: {error}") from None
