"""The transport of a session with an upstream: every write is the body of a request, whose answer is delivered to the
reader."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from codex_proxy.agents.openai_chat.client import Exchange, UpstreamClient
from codex_proxy.agents.openai_chat.exchange import Message
from codex_proxy.agents.session import TransportReader


class HttpTransport:
    """A `Transport` over HTTP connections instead of a child process. Its dialect reads `Head`, bytes and `End`."""

    exclusive = True

    def __init__(self, client: UpstreamClient, headers: Mapping[str, str]) -> None:
        """`headers` are sent with every request of the session."""
        self._client = client
        self._headers = headers
        self._reader: TransportReader | None = None
        self._exchanges: list[Exchange] = []
        """All exchanges of the session. The last one is current; the others have ended."""

    def attach(self, reader: TransportReader) -> None:
        self._reader = reader

    def send(self, writes: bytes) -> None:
        """Sends a request with the body `writes`. The answer to the previous request must have ended."""
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
        """Does nothing: sessions of an upstream are not kept."""

    async def release(self, *, finished: bool) -> None:
        """Closes the connection, so that the upstream notices that the client has left. A connection whose answer
        has ended is kept for the next request.
        """
        self._reader = None
        await asyncio.gather(*(exchange.close() for exchange in self._exchanges))

    def _deliver(self, messages: Sequence[Message], size: int) -> None:
        if self._reader is not None:
            self._reader.received(messages, size)
