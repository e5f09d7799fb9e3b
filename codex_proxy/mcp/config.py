"""Parses the operator's file of MCP servers, in the format that other MCP clients use: `{"mcpServers": {"name":
{...}}}`.

A server has either `command`, `args`, `env` and `cwd` (a program that is used over its stdin and stdout), or `url`,
`headers` and `type` (`http`, `streamable-http` or `sse`). `${NAME}`, `${env:NAME}` and `${NAME:-default}` are
replaced by environment variables. Fields that other clients add are ignored, except `disabled: true` and `enabled:
false`, with which a server is not used. Errors contain the server's name and the reason, but never a value, since
values may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

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


MIN_SECRET_CHARS: Final = 4
"""Shorter values (`1`, `on`) are not treated as secrets: removing them would make any text unreadable."""


class StdioServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server that is a program on this machine, used over its stdin and stdout."""

    label: str
    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Environment variables for the program, in addition to those that every child of the proxy gets."""
    cwd: str | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must not appear in any message or log: those of its environment."""
        return tuple(self.env.values())


class HttpServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server with a URL. `headers` are sent with every request. With the transport `either`, Streamable HTTP
    is tried first, then SSE if the server does not support it.
    """

    label: str
    url: str
    headers: dict[str, str] = {}
    transport: Transport = "either"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must not appear in any message or log: those of its headers, and its URL."""
        return (*self.headers.values(), self.url)


Definition: TypeAlias = StdioServer | HttpServer


class _Entry(msgspec.Struct):
    """The entry of one server in the file, before variables are replaced."""

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
    """The whole file: the entries by server name. They are decoded one by one later, so that an error can contain
    the server's name.
    """

    servers: dict[str, msgspec.Raw] = msgspec.field(name="mcpServers")


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Returns `text` with each secret replaced by `[...]`. Of a secret with spaces, such as `Bearer abc`, the last
    word (`abc`) alone is replaced, too. Secrets shorter than `MIN_SECRET_CHARS` are not replaced.
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
    """Parses the file. Returns the servers that are not disabled, by name, in the file's order.

    `variables` are the environment variables to which entries may refer. Raises `ValueError`, with the server's
    name, for an entry that is not valid.
    """
    try:
        file = msgspec.json.decode(text, type=_File)
    except msgspec.MsgspecError as error:
        raise ValueError(f'the file of MCP servers is not {{"mcpServers": {{...}}}}: {error}') from None
    servers: dict[str, Definition] = {}
    for label, raw in file.servers.items():
        try:
            entry = msgspec.json.decode(raw, type=_Entry)
            if entry.enabled and not entry.disabled:
                servers[label] = _definition(label, _expanded(entry, variables))
        except msgspec.MsgspecError as error:
            raise ValueError(f"MCP server '{label}': {error}") from None
        except ValueError as error:
            raise ValueError(f"MCP server '{label}': {error}") from None
    return servers


def _definition(label: str, entry: _Entry) -> Definition:
    """Returns the definition of the server `label`. Raises `ValueError` if the entry's fields do not fit together."""
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


def _expanded(entry: _Entry, variables: Mapping[str, str]) -> _Entry:
    """Returns the entry with the variables in all of its values replaced. Raises `ValueError` for a variable that
    is not set.
    """

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
