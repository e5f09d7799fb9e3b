"""The transport of a session with an upstream: every write is the body of a request, and its answer comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from codex_proxy.agents.openai_chat.client import Exchange, UpstreamClient
from codex_proxy.agents.openai_chat.exchange import Message
from codex_proxy.agents.session import TransportReader


class HttpTransport:
    """A `Transport` whose dialect reads `Head`, bytes and `End`. There is no child: connections are its processes."""

    exclusive = True

    def __init__(self, client: UpstreamClient, headers: Mapping[str, str]) -> None:
        """`headers` go with every request of the session."""
        self._client = client
        self._headers = headers
        self._reader: TransportReader | None = None
        self._exchanges: list[Exchange] = []
        """The last one is under way; those before it are over."""

    def attach(self, reader: TransportReader) -> None:
        self._reader = reader

    def send(self, writes: bytes) -> None:
        """Sends a request. The answer to the one before it is over by then."""
        self.close_stdin()
        self._exchanges.append(self._client.post(writes, self._headers, self._deliver))

    def close_stdin(self) -> None:
        """Stops reading the current answer."""
        if self._exchanges:
            self._exchanges[-1].finish()

    def pause_reading(self) -> None:
        if self._exchanges:
            self._exchanges[-1].pause()

    def resume_reading(self) -> None:
        if self._exchanges:
            self._exchanges[-1].resume()

    def set_idle(self, idle: bool) -> None:
        """Nothing to count: a session is not kept."""

    async def release(self, *, finished: bool) -> None:
        """Closes the connection, by which the upstream learns that nobody waits; one whose answer is over stays for the
        next request."""
        self._reader = None
        await asyncio.gather(*(exchange.close() for exchange in self._exchanges))

    def _deliver(self, messages: Sequence[Message], size: int) -> None:
        if self._reader is not None:
            self._reader.received(messages, size)
