"""An upstream's answer to a request that is passed on (see `core/passing.py`)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from codex_proxy.core.events import Usage
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.passing import Body, RestOfBody
from codex_proxy.parts.upstream.attempts import AttemptOwner, Outcome
from codex_proxy.parts.upstream.exchange import Exchange
from codex_proxy.parts.upstream.failures import CLOSED, MAX_ERROR_BYTES, ErrorReader
from codex_proxy.parts.upstream.server import UpstreamClient
from codex_proxy.parts.upstream.stream import End, Head, Message, PassedUsage

HELD_BYTES: Final = 256 << 10
"""Bytes kept for a slow client; with more the upstream has to wait."""
_KEPT_HEADERS: Final = ("content-type", "content-disposition")

NO_PATH: Final = (
    "The model server that has this model does not serve {}. Name a model of one that does, or ask the operator to "
    "add a table [upstreams.NAME] for it, with `paths`."
)


class UpstreamAnswer:
    """The answer to one attempt, which is sent at once. `agent` gets the outcome, once."""

    def __init__(
        self,
        client: UpstreamClient,
        agent: AttemptOwner,
        path: str,
        body: Body,
        headers: Mapping[str, str],
        rest: RestOfBody | None = None,
    ) -> None:
        self.upstream = ""
        self.attempts = 1
        self.headers: dict[str, str] = {}
        self._agent = agent
        self._path = path
        self._head: Head | None = None
        self._end: End | None = None
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._news = asyncio.Event()
        self._recorded = False
        self._has_text = True
        self._rest = rest
        self._usage = PassedUsage()
        self._exchange: Exchange = client.post(body, headers, self._deliver, path=path, rest=rest)

    @property
    def usage(self) -> Usage | None:
        return self._usage.usage

    def _deliver(self, messages: Sequence[Message], size: int) -> None:
        for message in messages:
            if isinstance(message, Head):
                self._head = message
            elif isinstance(message, End):
                self._end = message
            elif message:
                self._chunks.append(message)
                self._held += len(message)
        if self._held > HELD_BYTES:
            self._exchange.pause()
        self._news.set()

    async def begin(self, errors: ErrorReader, now: float) -> None:
        """Waits until the answer has begun. Raises `Fault` if there is none or it is an error, and the error of reading
        the client's body.
        """
        while self._head is None and self._end is None:
            await self._next()
        if self._head is None:
            assert self._end is not None
            raise self._fault(self._end.failure or CLOSED)
        if self._head.status >= 300:
            raise self._fault(await self._error(self._head, errors, now))
        self.headers = {name: value for name, value in self._head.headers.items() if name in _KEPT_HEADERS}
        self._has_text = "audio/" not in self.headers.get("content-type", "")

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields the answer. Raises `Fault` if it breaks off, and the error of reading the client's body."""
        while True:
            while self._chunks:
                chunk = self._take_chunk()
                if self._has_text:
                    self._usage.feed(chunk)
                yield chunk
            if self._end is not None:
                if self._end.failure is not None:
                    raise self._fault(self._end.failure)
                self._record("answered")
                return
            await self._next()

    async def close(self) -> None:
        self._record("left")
        await self._exchange.close()

    async def _next(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _take_chunk(self) -> bytes:
        chunk = self._chunks.popleft()
        self._held -= len(chunk)
        if self._held <= HELD_BYTES:
            self._exchange.resume()
        return chunk

    async def _error(self, head: Head, errors: ErrorReader, now: float) -> Failure:
        body = b""
        while len(body) < MAX_ERROR_BYTES:
            while self._chunks:
                body += self._take_chunk()
            if self._end is not None:
                break
            await self._next()
        failure = errors.of_response(head.status, head.headers, body[:MAX_ERROR_BYTES], now)
        if failure.kind is FaultKind.AGENT_MISCONFIGURED and head.status in (404, 405, 501):
            return Failure(FaultKind.NOT_FOUND, NO_PATH.format(self._path), quoted=failure.quoted)
        return failure

    def _fault(self, failure: Failure) -> Exception:
        if self._rest is not None and self._rest.error is not None:
            self._record("left")  # the upstream has not got the request
            return self._rest.error
        self._record("failed", failure)
        return Fault(failure)

    def _record(self, outcome: Outcome, failure: Failure | None = None) -> None:
        if not self._recorded:
            self._recorded = True
            self._agent.record(outcome, failure)
            self._agent.leave()
