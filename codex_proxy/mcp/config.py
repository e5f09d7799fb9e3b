"""The operator's MCP servers, from a file as other programs have it: `{"mcpServers": {"name": {...}}}`.

In: the text of the file and the variables that it may name. Out: definitions by name. Raises `ValueError` with what
is wrong, of which server; never with a value, since values are where the keys are (msgspec names types
and places only).

A server is stdio (`command`, `args`, `env`, `cwd`) or HTTP (`url`, `headers`, `type`: `http`, `streamable-http` or
`sse`). `${NAME}`, `${env:NAME}` and `${NAME:-otherwise}` stand for variables of the environment, as elsewhere. Fields
that other programs add are left alone, but `disabled: true` and `enabled: false` are obeyed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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


class StdioServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that is a program of this machine."""

    label: str
    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Beside what every child of the proxy gets."""
    cwd: str | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be repeated anywhere."""
        return tuple(self.env.values())


class HttpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server with an address. `either`: Streamable HTTP, and SSE where the server has no such thing."""

    label: str
    url: str
    headers: dict[str, str] = {}
    transport: Transport = "either"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be repeated anywhere."""
        return (*self.headers.values(), self.url)


Definition: TypeAlias = StdioServer | HttpServer


class _Entry(msgspec.Struct):
    """One server as the file has it."""

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
    servers: dict[str, msgspec.Raw] = msgspec.field(name="mcpServers")


def parse_servers(text: str | bytes, variables: Mapping[str, str]) -> dict[str, Definition]:
    """The servers of the file that are not disabled, by name, in the file's order. Raises `ValueError`."""
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
    if (entry.command is None) == (entry.url is None):
        raise ValueError("it needs a `command` or a `url`, and not both")
    if entry.command is not None:
        if entry.type not in (None, "stdio"):
            raise ValueError("a server with a `command` is of type stdio")
        if not entry.command:
            raise ValueError("its `command` is empty")
        return StdioServer(label=label, command=entry.command, args=entry.args, env=entry.env, cwd=entry.cwd)
    if entry.type not in _TRANSPORTS:
        raise ValueError("its `type` is none of http, streamable-http and sse")
    url = entry.url or ""
    parsed = urlsplit(url)
    if parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise ValueError("its `url` is no http or https address")
    return HttpServer(label=label, url=url, headers=entry.headers, transport=_TRANSPORTS[entry.type])


def _expanded(entry: _Entry, variables: Mapping[str, str]) -> _Entry:
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
                f"it names ${{input:{name}}}, for which nobody can be asked here: name a variable"
            )
        value = variables.get(name, otherwise)
        if value is None:
            raise ValueError(f"the variable {name} that it names is not set")
        return value

    return msgspec.structs.replace(
        entry, **{name: expand(getattr(entry, name)) for name in _Entry.__struct_fields__}
    )
