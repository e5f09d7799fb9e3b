"""The configuration of an upstream: its address, its key and headers, time limits, and its capabilities."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from codex_proxy.agents.dialect import Capability

_SHORTEST_SECRET: Final = (
    8  # characters of a header's value: a shorter one is a switch, and a part of other words
)
_SHORTEST_KEY: Final = 12
_HOLDS_A_KEY: Final = re.compile(r"key|token|secret|auth|cookie|passw|credential", re.IGNORECASE)
"""Matches the names of headers whose values prove who asks. Others (`X-Title`) may be words of an answer."""
NAME: Final = "openai-chat"
CAPABILITIES: Final[frozenset[Capability]] = frozenset(
    {
        *("history", "client_tools", "tool_replies", "tool_choice", "structured_output"),
        *("images", "plain_model", "verbosity", "sampling", "max_tokens", "forwarding"),
        *("system_prompt", "stop_reasons", "parallel_calls", "model_choice"),
    }
)


class UpstreamApi(msgspec.Struct, frozen=True, kw_only=True):
    """An API that an upstream can offer: Chat Completions or Responses."""

    agent: str
    """The name of the agent that uses this API."""
    api: str
    """The API's name as shown in an error message, such as `Chat Completions`."""
    path: str
    """The path of the API's endpoint, to be appended to the upstream's address."""
    capabilities: frozenset[Capability]
    """The capabilities of an agent that uses this API."""


CHAT: Final = UpstreamApi(
    agent=NAME, api="Chat Completions", path="/chat/completions", capabilities=CAPABILITIES
)

RESPONSES: Final = UpstreamApi(
    agent="openai-responses",
    api="the Responses API",
    path="/responses",
    capabilities=frozenset(
        {
            *("history", "client_tools", "tool_replies", "tool_choice", "structured_output", "images"),
            *("plain_model", "verbosity", "sampling", "max_tokens", "web_search", "service_tier"),
            *("system_prompt", "stop_reasons", "parallel_calls", "model_choice"),
        }
    ),
)
"""The Responses API, which the agent `openai-responses` uses."""


class Timeouts(msgspec.Struct, frozen=True):
    """The time limits of an exchange, in seconds. The turn has a time limit in addition."""

    connect: float
    """The most seconds for name resolution, connection and TLS handshake."""
    first_byte: float
    """The most seconds from the request to the first byte of the answer's body."""
    silence: float
    """The most seconds between two reads of the body."""


class SettingNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the settings of an upstream, as error messages show them to the operator."""

    url: str = "--upstream-url (PROXY_UPSTREAM_URL)"
    key: str = "PROXY_UPSTREAM_KEY"
    key_file: str = "PROXY_UPSTREAM_KEY_FILE"
    ca_file: str = "PROXY_UPSTREAM_CA_FILE"
    model: str = "CODEX_MODEL"
    wire: str = "which API it speaks (--agent openai-chat or openai-responses)"

    @classmethod
    def of_table(cls, table: str) -> SettingNames:
        """Returns the names for an upstream whose settings are in the table `table` of the settings file, like
        `[upstreams.groq]`. An empty `table` means that they are settings of the server.
        """
        if not table:
            return cls()
        return cls(
            url=f"url of {table}",
            key=f"key_env of {table}",
            key_file=f"key_file of {table}",
            ca_file=f"ca_file of {table} (or PROXY_UPSTREAM_CA_FILE)",
            model=f"default_model of {table}",
            wire=f"which API it speaks (wire of {table})",
        )


class UpstreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that only the table of an upstream in the settings file can have, because there is no flag or
    variable for them.
    """

    headers: Mapping[str, str] = {}
    """Headers that are sent with every request, in addition to the key."""
    models: tuple[str, ...] = ()
    """The models to offer: names, and patterns with `*` for models in the upstream's list. Empty: all models in the
    list."""
    cannot: frozenset[Capability] = frozenset()
    """The capabilities that the upstream does not have. Requests that need one are refused."""
    refuses: frozenset[str] = frozenset()
    """Optional request fields that the upstream answers with an error. They are not sent."""
    context_window: int | None = None
    """The context window, in tokens, of the upstream's models whose entry in the list of models does not have it;
    None if the operator has not set it."""
    reasoning_back: str = ""
    """The field of an assistant message in which a model's reasoning is sent back to it with its calls; empty if it
    is not sent back.
    """
    forward_headers: tuple[str, ...] = ()
    """The names of client headers that are sent to the upstream, in lower case."""
    health_interval: float | None = None
    """Seconds between two requests for the upstream's list of models; None for the default."""
    table: str = ""
    """The table that the settings are in, like `[upstreams.groq]`; empty if they are settings of the server."""


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The address, credentials and options of one upstream."""

    url: str
    """The base address without a trailing slash; the path of the wire and `/models` are appended."""
    wire: UpstreamApi = CHAT
    """The API that the upstream has."""
    key: str = ""
    """The API key that is sent with every request; empty if none is sent."""
    clients_key: bool = False
    """Whether the upstream is sent each client's own API key instead of `key`."""
    proxy: str | None = None
    """The address of the HTTP proxy for requests to the upstream; None if there is none."""
    ca_file: Path | None = None
    """A file with certificates that are trusted in addition to the system's; None for the system's alone."""
    timeouts: Timeouts
    name: str = ""
    """The upstream's name in the settings; empty if it is the only one."""
    options: UpstreamOptions = UpstreamOptions()

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the upstream can do. A request that needs another capability is refused."""
        return self.wire.capabilities - self.options.cannot

    @property
    def setting_names(self) -> SettingNames:
        """The names of the settings, for error messages."""
        return SettingNames.of_table(self.options.table)

    @property
    def host(self) -> str:
        """The host and port of the address."""
        return urlsplit(self.url).netloc

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that must not appear in a message to a client: key, address, host, and values of headers."""
        values = (value for value in self.options.headers.values() if len(value) >= _SHORTEST_SECRET)
        return tuple(each for each in (self.key, self.url, self.host, *values) if each)

    @property
    def hidden(self) -> tuple[str, ...]:
        """The texts that are cut out of all that the upstream sends: the key, and headers that hold one. A short text
        is no key but a placeholder (`lm-studio`), and a model may write about it.
        """
        keys = (value for name, value in self.options.headers.items() if _HOLDS_A_KEY.search(name))
        values = (part for value in (self.key, *keys) for part in {value, value.removeprefix("Bearer ")})
        return tuple(value for value in values if len(value) >= _SHORTEST_KEY)

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields that identify the upstream in log lines: its name; none if it is the only one, since its
        address is not logged.
        """
        return {"upstream": self.name} if self.name else {}

    def __repr__(self) -> str:
        return f"Upstream({self.url!r})"
