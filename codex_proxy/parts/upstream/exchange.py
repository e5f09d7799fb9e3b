"""The exchange of one request and its answer with an upstream. The call that reads the answer passes it on; tasks only
open a connection, or send a body that is not in memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec
from aiohttp import StreamReader
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.http_writer import StreamWriter

from codex_proxy.core.faults import UNFORESEEN, Failure, FaultKind
from codex_proxy.core.own_errors import breaks_off, release_all
from codex_proxy.core.passing import Body, RestOfBody, pieces_of
from codex_proxy.parts.upstream.config import UpstreamConfig
from codex_proxy.parts.upstream.connections import UpstreamConnection, UpstreamConnections
from codex_proxy.parts.upstream.failures import BROKEN_OFF, CLOSED, TOO_MUCH, SecretsReader
from codex_proxy.parts.upstream.stream import MAX_ANSWER_BYTES, End, Head, Message

STEP_BYTES: Final = 64 << 10
"""The bytes of a large body that are sent at a time."""
DRAIN_SECONDS: Final = 0.25
"""Seconds for the last bytes of a finished answer, so that its connection can be reused."""

Deliver = Callable[[Sequence[Message], int], None]
"""Receives an exchange's messages, and their size in bytes."""

_PLAIN: Final = frozenset({"", "identity", "none", "utf-8"})
"""The values of `Content-Encoding` that servers write above plain bodies."""
_COMPRESSED: Final = Failure(
    FaultKind.UPSTREAM_ERROR,
    "The model server compresses its answers, although this server does not accept compressed "
    "ones. The operator must turn compression off there.",
)


class OutgoingRequest(msgspec.Struct, frozen=True):
    head: bytes
    body: Body
    rest: RestOfBody | None = None
    """What follows the body, as it comes."""


class Exchange:
    """Passes messages to `deliver`: a `Head`, bytes of the body, and an `End`, with the failure if the request fails.
    If a reused connection turns out to be closed, the request is sent once more.
    """

    def __init__(
        self,
        connections: UpstreamConnections,
        request: OutgoingRequest,
        limits: UpstreamConfig,
        secrets: SecretsReader,
        deliver: Deliver,
    ) -> None:
        self._connections = connections
        self._request = request
        self._limits = limits
        self._secrets = secrets
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        """The context in which messages are delivered: the connection's own is that of another request."""
        self._connection: Connection | None = None
        self._sending: asyncio.Task[None] | None = None
        self._may_repeat = True
        """Whether the request may be sent again. A new connection that fails would fail again."""
        self._is_sent = False
        self._undelivered: list[Message] = []
        """The head, until bytes of the body have come."""
        self._body: StreamReader | None = None
        """The answer's body, from its head on."""
        self._is_packed = self._is_error = False
        self._size = 0
        self._may_read = True
        self._stopped = False
        """Whether nothing more is passed on."""
        self._ended = asyncio.Event()
        self._deadline = math.inf
        """The deadline of the current read, by the loop's clock."""
        self._check: asyncio.TimerHandle | None = None
        """The timer that checks the deadline, and is set again then: one for each read would cost more than the read.
        """
        self._start()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def finish(self) -> None:
        """Stops passing the answer on. Drops its remaining bytes for `DRAIN_SECONDS`, then closes the connection."""
        if not self._stopped:
            self._stop()
            if not self._ended.is_set():
                self._set_timer(DRAIN_SECONDS)
                self.resume()

    def pause(self) -> None:
        """Stops reading; the upstream has to wait."""
        self._may_read = False
        self._deadline = math.inf

    def resume(self) -> None:
        if not self._may_read:
            self._may_read = True
            if self._connection is not None:
                self._await_next()
            self._loop.call_soon(self._read, context=self._context)

    async def close(self) -> None:
        """Stops the exchange, and waits until its connection is closed, or (after `finish`) the answer has ended."""
        if not self._stopped:
            self._stop()
            self._end()
        await self._ended.wait()
        if self._sending is not None and not self._sending.done():
            await asyncio.wait((self._sending,))

    # --- sending --------------------------------------------------------------------------------

    def _start(self) -> None:
        in_memory = self._request.rest is None and isinstance(self._request.body, bytes)
        idle = self._connections.take_idle() if in_memory else None
        if idle is None:
            self._sending = self._loop.create_task(self._send(in_memory=in_memory))
        else:
            self._write_on(idle)

    @breaks_off
    async def _send(self, *, in_memory: bool) -> None:
        """Sends the request, after waiting for a connection. `in_memory`: whether the whole body is in memory."""
        try:
            connection = await self._connections.open()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._fail(error)
            return
        if in_memory:
            self._write_on(connection)
        elif (protocol := self._begin_on(connection)) is not None:
            await self._stream_to(protocol)

    def _begin_on(self, connection: Connection) -> UpstreamConnection | None:
        protocol = connection.protocol
        assert isinstance(protocol, UpstreamConnection)
        self._connection = connection
        self._is_sent = False
        self._may_repeat = self._may_repeat and protocol.was_used
        protocol.begin(self)
        return protocol if self._connection is not None else None

    def _write_on(self, connection: Connection) -> None:
        protocol = self._begin_on(connection)
        if protocol is not None:
            body = self._request.body
            assert isinstance(body, bytes)
            assert protocol.transport is not None
            protocol.transport.writelines((self._request.head, body))
            self._await_next()
            self._is_sent = True

    async def _stream_to(self, protocol: UpstreamConnection) -> None:
        request = self._request
        writer = StreamWriter(protocol, self._loop)
        assert protocol.transport is not None
        protocol.transport.write(request.head)
        self._await_next()
        try:
            if request.rest is not None and request.rest.left is None:
                writer.enable_chunking()
            async for step in _read_in_steps(request):
                self._await_next()  # only from then on an answer can be waited for
                await writer.write(step)
            await writer.write_eof()
            self._is_sent = True
        except Exception as error:
            if request.rest is not None and request.rest.error is error:
                self._end(End(BROKEN_OFF))
            elif not isinstance(error, aiohttp.ClientError | OSError):
                raise
            # Else the connection is lost, which ends the exchange.

    # --- the answer -----------------------------------------------------------------------------

    def on_head(self, message: RawResponseMessage, body: StreamReader) -> None:
        if self._body is not None:  # a second answer, to no request
            assert self._connection is not None
            assert self._connection.protocol is not None
            self._connection.protocol.force_close()
        elif not 100 <= message.code < 200 or message.code == HTTPStatus.SWITCHING_PROTOCOLS:
            self._body = body
            headers = {name.lower(): value for name, value in message.headers.items()}
            self._undelivered.append(Head(message.code, headers))
            self._is_packed = headers.get("content-encoding", "").strip().lower() not in _PLAIN
            self._is_error = message.code >= 400

    def on_data(self) -> None:
        self._context.run(self._read)

    @breaks_off
    def _read(self) -> None:
        if self._connection is None or not self._may_read:
            return
        protocol, body = self._connection.protocol, self._body
        assert protocol is not None
        error = protocol.exception() if body is None else body.exception()
        if error is not None:
            self._fail(error)
        if body is None or error is not None:
            return
        if self._is_packed:
            if self._is_error:  # its status and headers say enough
                self._end(*self._undelivered, End())
            else:
                self._end(End(_COMPRESSED))
            return
        chunk, at_end = body.read_nowait(), body.at_eof()
        if at_end:
            self._leave_connection()  # the next request may need it
        if chunk:
            self._pass_on(chunk)
        if at_end:
            self._end(*self._undelivered, self._secrets.close(), End())
        elif (lost := protocol.exception()) is not None and self._may_read:
            self._fail(lost)

    def _pass_on(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > MAX_ANSWER_BYTES:
            self._end(End(TOO_MUCH))
            return
        messages = [*self._undelivered, self._secrets.feed(chunk)]
        self._undelivered.clear()
        if self._connection is not None:
            self._await_next()
        if not self._stopped:
            self._deliver(messages, len(chunk))

    def _fail(self, error: BaseException) -> None:
        rest = self._request.rest
        is_closed = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
        is_whole = rest is None or not rest.begun
        if is_closed and is_whole and self._may_repeat and self._connection is not None and not self._stopped:
            self._may_repeat = False
            self._leave_connection()
            self._start()
        else:
            self._end(End(BROKEN_OFF if self._size else failure_of(error)))

    def _end(self, *messages: Message) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self._leave_connection()
        if not self._stopped:
            self._deliver(messages, 0)
            self._stop()

    def break_off(self) -> None:
        """Ends the exchange as failed, and closes its connection."""
        self._ended.set()
        stopped, deliver = self._stopped, self._deliver
        self._stop()
        release_all(self._leave_connection, lambda: stopped or deliver((End(UNFORESEEN),), 0))

    def _stop(self) -> None:
        self._stopped = True
        # Its owner holds this exchange: without the callback no cycle keeps the request's body.
        self._deliver = lambda messages, size: None

    def _leave_connection(self) -> None:
        connection, self._connection = self._connection, None
        if self._check is not None:
            self._check.cancel()
            self._check = None
        if self._sending is not None and self._sending is not asyncio.current_task():
            self._sending.cancel()
        if connection is None:
            return
        if self._is_sent and self._body is not None and self._body.is_eof():
            connection.release()
        else:
            connection.close()

    # --- time limits ----------------------------------------------------------------------------

    def _await_next(self) -> None:
        if self._stopped:
            self._set_timer(DRAIN_SECONDS)
        elif self._may_read:
            limits = self._limits
            self._set_timer(limits.idle_timeout if self._size else limits.first_byte_timeout)

    def _set_timer(self, seconds: float) -> None:
        self._deadline = deadline = self._loop.time() + seconds
        if self._check is None or deadline < self._check.when():
            self._check_at(deadline)

    def _check_at(self, when: float) -> None:
        if self._check is not None:
            self._check.cancel()
        self._check = self._loop.call_at(when, self._check_deadline, context=self._context)

    @breaks_off
    def _check_deadline(self) -> None:
        self._check = None
        if self._deadline <= self._loop.time():
            self._end(End(self._timeout_failure()))
        elif self._deadline < math.inf:
            self._check_at(self._deadline)

    def _timeout_failure(self) -> Failure:
        limits = self._limits
        what = (
            f"sent nothing for {limits.idle_timeout:g} s in the middle of its answer"
            if self._size
            else f"did not begin to answer within {limits.first_byte_timeout:g} s"
        )
        return Failure(FaultKind.UPSTREAM_TIMEOUT, f"The model server {what}. Try again later.")


async def _read_in_steps(request: OutgoingRequest) -> AsyncIterator[bytes]:
    for piece in pieces_of(request.body):
        for start in range(0, len(piece), STEP_BYTES):
            yield bytes(piece[start : start + STEP_BYTES])
    if request.rest is not None:
        async for chunk in request.rest:
            yield chunk


def failure_of(error: BaseException) -> Failure:
    """Converts the error of a request without an answer. The error's own text contains the address, and is left
    out.
    """
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        why = (
            "its certificate is not trusted, or TLS fails. The operator of this server must check "
            "it (`ca_file` of its table)"
        )
        return Failure(FaultKind.UPSTREAM_UNREACHABLE, f"The model server cannot be reached safely: {why}.")
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError | BrokenPipeError) or (
        isinstance(error, aiohttp.ClientOSError) and not isinstance(error, aiohttp.ClientConnectorError)
    ):
        return CLOSED
    if isinstance(error, aiohttp.ClientHttpProxyError):
        why = f"the HTTP proxy of the environment (https_proxy) does not connect to it (HTTP {error.status})"
    elif isinstance(
        error, aiohttp.ClientResponseError | aiohttp.ClientPayloadError | HttpProcessingError | ValueError
    ):
        return Failure(
            FaultKind.UPSTREAM_ERROR,
            "The model server's answer is not valid HTTP. The operator of this server must "
            "check the address of the upstream.",
        )
    elif isinstance(error, TimeoutError):
        why = "no connection within its time limit"
    elif isinstance(error, aiohttp.ClientProxyConnectionError):
        why = "the HTTP proxy of the environment (http_proxy, https_proxy) cannot be reached"
    elif isinstance(error, aiohttp.ClientConnectorDNSError):
        why = "its host name does not resolve"
    elif isinstance(error, ConnectionRefusedError) or isinstance(
        getattr(error, "os_error", None), ConnectionRefusedError
    ):
        why = "nothing listens at its address; check that it is running"
    else:
        why = "no connection"
    return Failure(FaultKind.UPSTREAM_UNREACHABLE, f"The model server cannot be reached: {why}.")
