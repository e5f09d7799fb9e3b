"""Sends requests to the current attempt's upstream, and opens the next after a failure: `UpstreamTransport` those of a
turn, `UpstreamAnswer` one that is passed on (see `core/passing.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from codex_proxy.agents.dialect import NOTHING
from codex_proxy.agents.sessions.session import TransportReader
from codex_proxy.core.events import Usage
from codex_proxy.core.faults import UNFORESEEN, Failure, Fault, FaultKind
from codex_proxy.core.own_errors import breaks_off
from codex_proxy.core.passing import Body, RestOfBody
from codex_proxy.core.turn import without_content
from codex_proxy.parts.upstream.attempts import (
    AttemptMessage,
    AttemptOwner,
    AttemptPlan,
    NoAttempt,
    Outcome,
    UpstreamAttempt,
    UpstreamTarget,
)
from codex_proxy.parts.upstream.exchange import Exchange
from codex_proxy.parts.upstream.failures import BROKEN_OFF, CLOSED, MAX_ERROR_BYTES, NO_NUMBERS, ErrorReader
from codex_proxy.parts.upstream.server import UpstreamClient
from codex_proxy.parts.upstream.stream import End, Head, Message, PassedUsage, decode_event, is_error

HELD_BYTES: Final = 256 << 10
"""Bytes kept for a slow client; with more the upstream has to wait."""
_MOST_OF_AN_ERROR: Final = 16 << 10
"""Bytes of an answer with the status 200 that may be an error: more is an answer."""
_MAY_BE_ERROR: Final = re.compile(
    rb'\s*[{\[].{0,200}?"(?:errors?|detail|message|msg|error_msg|base_resp)"', re.DOTALL
)
_RESULTS: Final = ("data", "results", "text", "output", "embeddings", "images", "choices")
_LAST_EVENT: Final = re.compile(rb'"(?:finish_reason|error)"\s{0,9}:\s{0,9}["{]|[\r\n]data:\s{0,9}\[DONE\]')
"""Matches what ends a stream of completions: in a model's text quotes and line ends have a backslash."""
_MAX_MARK: Final = 64
"""The bytes of it at most."""
_NO_NUMBER: Final = re.compile(rb"[\[,:]\s{0,9}-?(?:NaN|Infinity)\s{0,9}[,\]}]")
"""Matches what some servers write in place of a number, and no reader of JSON takes."""
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
        self._numbers_only = False
        """Whether it is JSON in which texts are only names."""
        self._lacks_end = False
        """Whether it is a stream of completions of which no finish reason, error or `[DONE]` has come."""
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
        kind = self.headers.get("content-type", "")
        if "json" in kind and (failure := await self._error_in_answer(errors)) is not None:
            raise self._fault(failure)
        self._numbers_only = self._path == "/embeddings" and "json" in kind
        if self._numbers_only:
            while self._end is None and self._held <= HELD_BYTES:  # while the answer can still be an error
                await self._next()
            if _NO_NUMBER.search(b"".join(self._chunks)):
                raise self._fault(NO_NUMBERS)
        self._has_text = "audio/" not in kind
        self._lacks_end = self._path == "/completions" and kind.startswith("text/event-stream")

    async def _error_in_answer(self, errors: ErrorReader) -> Failure | None:
        """Returns the error that some servers send with the status 200, if the answer is a short JSON object with one.
        Takes nothing of the answer.
        """
        while not self._chunks and self._end is None:
            await self._next()
        if not self._chunks or not _MAY_BE_ERROR.match(self._chunks[0]):
            return None
        while self._end is None and self._held < _MOST_OF_AN_ERROR:
            await self._next()
        event = decode_event(b"".join(self._chunks), "chunk")
        # A `message` beside a result says that it went well.
        if event.kind != "chunk" or any(map(event.value.get, _RESULTS)) or not is_error(event.value):
            return None
        return errors.of_event(event.value)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields the answer. Raises `Fault` if it breaks off, and the error of reading the client's body."""
        tail = b"\n"
        while True:
            while self._chunks:
                chunk = self._take_chunk()
                if self._has_text:
                    self._usage.feed(chunk)
                if self._numbers_only:
                    if _NO_NUMBER.search(tail + chunk):
                        raise self._fault(NO_NUMBERS)
                    tail = (tail + chunk)[-_MAX_MARK:]
                if self._lacks_end:
                    tail += chunk
                    self._lacks_end = _LAST_EVENT.search(tail) is None
                    tail = tail[-_MAX_MARK:]
                yield chunk
            if self._end is not None:
                if self._end.failure is not None or self._lacks_end:
                    raise self._fault(self._end.failure or BROKEN_OFF)
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


T = TypeVar("T")


class NotAskedError(Fault):
    """This server made no attempt: the upstream has not started or its breaker is open (UNAVAILABLE), or too many turns
    are running (CONCURRENCY_EXCEEDED).
    """


class OpenAttempt(UpstreamAttempt, frozen=True):
    """An attempt, and how its requests are sent."""

    agent: AttemptOwner
    client: UpstreamClient
    headers: Mapping[str, str]


async def make_attempt(
    plan: AttemptPlan,
    make: Callable[[UpstreamTarget, bool], Awaitable[T]],
    *,
    wait: float | None = 0.0,
    failure: Failure | None = None,
    rest: RestOfBody | None = None,
) -> T | None:
    """Makes the plan's attempt after `wait` seconds, then later ones until one succeeds, and returns its result.
    `make`'s second argument: whether it waits if too many turns are running. `failure`: that of the attempt before,
    if there was one. If no attempt is left, returns None after such a `failure`, and else raises the last `Fault`,
    as it does if `rest`, which can be sent once only, has begun.
    """
    while wait is not None:
        if wait:
            await asyncio.sleep(wait)
        try:
            return await make(plan.target, plan.is_last)
        except Fault as fault:
            refused = isinstance(fault, NotAskedError)
            wait = plan.choose_next(fault.failure, not_asked=refused)
            # What an upstream has said tells more than that this server did not ask another one.
            is_final = wait is None and (failure is None or not refused)
            if is_final or (rest is not None and rest.begun):
                raise
    return None


class UpstreamTransport:
    """A turn's transport. Its reader gets each answer's messages and, after a failed attempt, an `UpstreamAttempt` or
    `NoAttempt`.
    """

    exclusive = True

    def __init__(
        self, plan: AttemptPlan, open_attempt: Callable[[UpstreamTarget, bool], Awaitable[OpenAttempt]]
    ) -> None:
        """`open_attempt` is the `make` of `make_attempt`. It raises `Fault` or `NotAskedError`."""
        self._plan = plan
        self._open_attempt = open_attempt
        self._current: OpenAttempt | None = None
        self._is_recorded = False
        """Whether the current attempt's outcome was reported."""
        self._next_attempt: asyncio.Task[None] | None = None
        self._reader: TransportReader | None = None
        self._exchanges: list[Exchange] = []
        """The current exchange, last, and those before it that have not ended."""
        self._is_paused = False

    async def open_first(self) -> UpstreamAttempt:
        """Opens the first attempt that can be opened. Raises `Fault`."""
        opened = await make_attempt(self._plan, self._open_attempt)
        assert opened is not None
        return self._make_current(opened)

    # --- what the dialect reports ---------------------------------------------------------------

    def on_failure(self, failure: Failure) -> bool:
        """Ends the current attempt. Starts to open the next one, and returns True, if there is one."""
        self.close_stdin()
        self._record("failed", failure)
        self._leave()
        wait = self._plan.choose_next(failure)
        if wait is None:
            return False
        loop = asyncio.get_running_loop()
        self._next_attempt = loop.create_task(self._make_next_attempt(wait, failure))
        return True

    def on_answer(self) -> int:
        """Records that the current attempt was answered. Returns how many attempts there were."""
        self._record("answered")
        return self._plan.attempts

    @breaks_off
    async def _make_next_attempt(self, wait: float, failure: Failure) -> None:
        message: AttemptMessage
        try:
            opened = await make_attempt(self._plan, self._open_attempt, wait=wait, failure=failure)
            message = NoAttempt() if opened is None else self._make_current(opened)
        except Fault as fault:
            message = NoAttempt(fault.failure)
        self._deliver([message], 0)

    def break_off(self) -> None:
        """Fails the turn without a further attempt."""
        self._deliver([NoAttempt(UNFORESEEN)], 0)

    def _make_current(self, opened: OpenAttempt) -> UpstreamAttempt:
        # Its conversation and first request are not kept for as long as it runs.
        turn = without_content(opened.turn)
        self._current = msgspec.structs.replace(opened, turn=turn, begun=NOTHING)
        self._is_recorded = False
        return opened

    def _record(self, outcome: Outcome, failure: Failure | None = None) -> None:
        if self._current is not None and not self._is_recorded:
            self._is_recorded = True
            self._current.agent.record(outcome, failure)

    def _leave(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.agent.leave()

    # --- what a session calls -------------------------------------------------------------------

    def attach(self, reader: TransportReader) -> None:
        self._reader = reader

    def send(self, writes: bytes) -> None:
        """Sends a request, and drops the rest of the previous answer."""
        assert self._current is not None
        self.close_stdin()
        exchange = self._current.client.post(writes, self._current.headers, self._deliver)
        if self._is_paused:
            exchange.pause()
        self._exchanges = [each for each in self._exchanges if not each.has_ended] + [exchange]

    def close_stdin(self) -> None:
        """Stops passing on the current answer."""
        if self._exchanges:
            self._exchanges[-1].finish()

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._exchanges:
            self._exchanges[-1].pause()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._exchanges:
            self._exchanges[-1].resume()

    def set_idle(self, idle: bool) -> None:
        """Does nothing: the session ends with its turn."""

    async def release(self, *, finished: bool) -> None:
        """Closes the current connection unless the answer has ended, so that the upstream notices that the client has
        left.
        """
        self._reader = None
        try:
            if self._next_attempt is not None:
                self._next_attempt.cancel()
                await asyncio.gather(self._next_attempt, return_exceptions=True)
            self._record("left")
            for exchange in self._exchanges:
                await exchange.close()
        finally:
            self._leave()

    def _deliver(self, messages: Sequence[AttemptMessage], size: int) -> None:
        if self._reader is not None:
            self._reader.on_messages(messages, size)
