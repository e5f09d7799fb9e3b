"""The MCP servers that a turn may use: those of the operator's file, whose errors contain no value, which may be
secret; and the URLs that requests may name. An entry of that list permits its URL and those below:
`https://example.com/mcp` permits `/mcp`, `/mcp/x` and `/mcp?x=1`, not `/mcpx`. Source: docs/mcp.md#a-requests-
own-servers.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from codex_proxy.core.safety import MIN_SECRET_CHARS, ip_literal, is_public

Transport = Literal["streamable", "sse", "either"]

_VARIABLE: Final = re.compile(r"\$\{(input:)?(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TRANSPORTS: Final[dict[str | None, Transport]] = {
    None: "either",
    "http": "streamable",
    "streamable-http": "streamable",
    "streamableHttp": "streamable",
    "streamable_http": "streamable",
    "sse": "sse",
}


class StdioServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server that is a program, used over stdin and stdout."""

    label: str
    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """The environment variables that the program gets beside those of every child process."""
    cwd: str | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that no message may contain."""
        return tuple(self.env.values())


class HttpServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server at a URL; `headers` go with every request. `either`: tries Streamable HTTP, then SSE."""

    label: str
    url: str
    headers: dict[str, str] = {}
    transport: Transport = "either"

    @property
    def secrets(self) -> tuple[str, ...]:
        return (*self.headers.values(), self.url)


Definition: TypeAlias = StdioServer | HttpServer


class _Entry(msgspec.Struct):
    """An entry before variables are replaced."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    type: str | None = None
    disabled: bool = False
    enabled: bool = True


class _File(msgspec.Struct):
    """Servers are decoded one by one, so that an error can name them."""

    servers: dict[str, msgspec.Raw] = msgspec.field(name="mcpServers")


def redact(text: str, secrets: Iterable[str]) -> str:
    """Returns the text with `[...]` for each secret, and for the last word of one with spaces (`Bearer abc`); short
    ones stay.
    """
    parts = {
        part
        for secret in secrets
        for part in (secret, secret.rpartition(" ")[2])
        if len(part) >= MIN_SECRET_CHARS
    }
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, "[...]")
    return text


def parse_servers(text: str | bytes, variables: Mapping[str, str]) -> dict[str, Definition]:
    """Returns the servers that are not disabled, by name, in order. Raises `ValueError` with the server's name."""
    try:
        file = msgspec.json.decode(text, type=_File)
    except msgspec.MsgspecError as error:
        raise ValueError(f'the file of MCP servers is not {{"mcpServers": {{...}}}}: {error}') from None
    servers: dict[str, Definition] = {}
    for label, raw in file.servers.items():
        try:
            entry = msgspec.json.decode(raw, type=_Entry)
            if entry.enabled and not entry.disabled:
                servers[label] = _definition(label, _replace_variables(entry, variables))
        except ValueError as error:
            raise ValueError(f"MCP server '{label}': {error}") from None
    return servers


def _definition(label: str, entry: _Entry) -> Definition:
    if (entry.command is None) == (entry.url is None):
        raise ValueError("it needs a `command` or a `url`, and not both")
    if entry.command is not None:
        if entry.type not in (None, "stdio"):
            raise ValueError("a server with a `command` is of type stdio")
        if not entry.command:
            raise ValueError("its `command` is empty")
        return StdioServer(label=label, command=entry.command, args=entry.args, env=entry.env, cwd=entry.cwd)
    if entry.type not in _TRANSPORTS:
        raise ValueError("its `type` must be http, streamable-http or sse")
    url = entry.url or ""
    parsed = urlsplit(url)
    if parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise ValueError("its `url` is not an http or https URL")
    return HttpServer(label=label, url=url, headers=entry.headers, transport=_TRANSPORTS[entry.type])


def _replace_variables(entry: _Entry, variables: Mapping[str, str]) -> _Entry:
    def expand(value: Any) -> Any:
        if isinstance(value, str):
            return _VARIABLE.sub(replace, value)
        if isinstance(value, tuple):
            return tuple(map(expand, value))
        if isinstance(value, dict):
            return {name: expand(each) for name, each in value.items()}
        return value

    def replace(match: re.Match[str]) -> str:
        asked, name, otherwise = match.groups()
        if asked is not None:
            raise ValueError(
                f"it uses ${{input:{name}}}, which this server cannot prompt for: use an environment variable"
            )
        value = variables.get(name, otherwise)
        if value is None:
            raise ValueError(f"it uses the environment variable {name}, which is not set")
        return value

    return msgspec.structs.replace(
        entry, **{name: expand(getattr(entry, name)) for name in _Entry.__struct_fields__}
    )


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
