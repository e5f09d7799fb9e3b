"""What is known of an upstream before it is asked anything: where it is, how it is reached, what it can do. Values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from codex_proxy.agents.base import Capability

_SHORTEST_SECRET: Final = (
    8  # characters of a header's value: a shorter one is a switch, and a part of other words
)
NAME: Final = "openai-chat"
CAPABILITIES: Final[frozenset[Capability]] = frozenset(
    {
        *("history", "client_tools", "tool_replies", "tool_choice", "structured_output"),
        *("images", "plain_model", "verbosity", "sampling", "max_tokens", "forwarding"),
        *("system_prompt", "stop_reasons", "parallel_calls", "model_choice"),
    }
)


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """An API that upstreams speak."""

    agent: str
    """The agent that speaks it."""
    api: str
    path: str
    """Of its one endpoint, behind the upstream's address."""
    capabilities: frozenset[Capability]


CHAT: Final = Wire(agent=NAME, api="Chat Completions", path="/chat/completions", capabilities=CAPABILITIES)

RESPONSES: Final = Wire(
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
"""That of `openai-responses`, which reaches its upstreams in the same way."""


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds that each phase of an exchange may take. The whole of it is bounded by the turn's own time limit."""

    connect: float
    """Until there is a connection, its name resolved and its certificate checked."""
    first_byte: float
    """From the request to the first byte of the answer's body."""
    silence: float
    """Between two reads of the body."""


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream."""

    url: str
    """Without a slash at its end; the path of the wire and `/models` stand behind it."""
    wire: Wire = CHAT
    key: str = ""
    clients_key: bool = False
    """Each client's own key goes on to it."""
    proxy: str | None = None
    ca_file: Path | None = None
    """Certificates that are trusted beside the system's."""
    timeouts: Timeouts
    name: str = ""
    """What the operator calls it, where there are several."""
    headers: Mapping[str, str] = {}
    """Sent with every request, beside the key."""
    models: tuple[str, ...] = ()
    """Its models by name, and patterns with `*` for those that it lists. Empty: those that it lists."""
    capabilities: frozenset[Capability] = CAPABILITIES
    refuses: frozenset[str] = frozenset()
    """Optional fields that it is known to answer with an error."""
    health_interval: float | None = None
    """Seconds between two looks at its list of models."""

    @property
    def host(self) -> str:
        """Host and port, as the address has them."""
        return urlsplit(self.url).netloc

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that must not appear in any message to a client: key, address, host, and values of headers."""
        values = (value for value in self.headers.values() if len(value) >= _SHORTEST_SECRET)
        return tuple(each for each in (self.key, self.url, self.host, *values) if each)

    @property
    def log_fields(self) -> dict[str, str]:
        """What log lines name it by; nothing of a single one, whose address no line has."""
        return {"upstream": self.name} if self.name else {}

    def __repr__(self) -> str:
        return f"Upstream({self.url!r})"
