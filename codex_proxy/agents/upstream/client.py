"""The HTTP client of one upstream, and an exchange of request and answer. It follows no redirects, keeps no cookies,
requests no compression, reads no .netrc. Errors become a `Failure` without addresses.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

import aiohttp

from codex_proxy.agents.upstream.config import Upstream, UpstreamConfig
from codex_proxy.agents.upstream.connections import StreamedBody, UpstreamConnections, WholeBody
from codex_proxy.agents.upstream.failures import BROKEN_OFF, CLOSED, TOO_MUCH
from codex_proxy.agents.upstream.secrets import Secrets, SecretsReader
from codex_proxy.agents.upstream.stream import MAX_ANSWER_BYTES, End, Head, Message
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.passing import Body, RestOfBody

MAX_HEADER_BYTES: Final = 16_384
MAX_LIST_BYTES: Final = 8 << 20
"""The most bytes of a list of models; several hundred take a tenth."""
KEEPALIVE_SECONDS: Final = 30.0
"""Seconds for an unused connection; many servers close theirs after 60."""
STEP_BYTES: Final = 64 << 10
"""The bytes of a large body that are sent at a time."""
DRAIN_SECONDS: Final = 0.25
"""Seconds for a finished answer's last bytes, so that its connection can be reused."""
LIST_SECONDS: Final = 15.0
TRACE_HEADERS: Final[ContextVar[Mapping[str, str]]] = ContextVar(
    "trace_headers", default=MappingProxyType({})
)
"""With these an upstream continues the turn's trace."""
JSON: Final = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}

Deliver = Callable[[Sequence[Message], int], None]
"""Receives messages, and their size in bytes."""
Send = Callable[[Callable[[], None]], Coroutine[Any, Any, aiohttp.ClientResponse]]

_PACKED: Final = Failure(
    kind=FaultKind.UPSTREAM_ERROR,
    message="The model server compresses its answers, although this server does not accept compressed "
    "ones. The operator must turn compression off there.",
)


class UpstreamClient:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._secrets = Secrets(upstream.hidden)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        upstream = self._upstream
        self._session = aiohttp.ClientSession(
            connector=UpstreamConnections(
                limit=0,  # how many turns run at once is bounded elsewhere
                ssl=_certificates(upstream) if upstream.url.startswith("https:") else True,
                keepalive_timeout=KEEPALIVE_SECONDS,
            ),
            timeout=aiohttp.ClientTimeout(total=None, connect=upstream.config.connect_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"User-Agent": "codex-proxy", "Accept-Encoding": "identity"},
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )

    async def close(self) -> None:
        """Closes all connections; running requests fail."""
        if self._session is not None:
            await self._session.close()

    def post(
        self,
        body: Body,
        headers: Mapping[str, str],
        deliver: Deliver,
        *,
        path: str = "",
        rest: RestOfBody | None = None,
    ) -> Exchange:
        """Starts a POST request in a task. `deliver` gets a `Head`, bytes of the body, and an `End`, with the failure
        if the request fails. `path`: empty for that of the upstream's API. `rest` follows the body, as it comes.
        """
        sent = self._sender(body, rest, headers, path or self._upstream.config.api.path, deliver)
        return Exchange(sent, self._upstream.config, SecretsReader(self._secrets), deliver)

    async def list_models(self) -> tuple[int, Mapping[str, str], bytes]:
        """Returns status, headers and body of GET /models. Raises `aiohttp.ClientError` or `OSError`."""
        assert self._session is not None
        async with (
            asyncio.timeout(LIST_SECONDS),
            self._session.get(
                f"{self._upstream.url}/models",
                headers=self._upstream.headers,
                proxy=self._upstream.proxy,
                allow_redirects=False,
            ) as response,
        ):
            body = bytearray()
            while chunk := await response.content.readany():
                body += chunk
                if len(body) > MAX_LIST_BYTES:
                    response.close()
                    break
            return response.status, response.headers, self._secrets.hide(bytes(body))

    def _sender(
        self, body: Body, rest: RestOfBody | None, headers: Mapping[str, str], path: str, deliver: Deliver
    ) -> Send:
        """Returns a function that sends the request and returns the response when its headers have come. It calls its
        argument when there is a connection, and raises what aiohttp raises. If a reused connection turns out to be
        closed, the request is sent once more.
        """
        session, upstream = self._session, self._upstream
        assert session is not None
        all_headers = {**JSON, **upstream.headers, **headers, **TRACE_HEADERS.get()}
        in_memory = rest is None and isinstance(body, bytes)
        left = 0 if rest is None else rest.left
        if left is not None:
            all_headers["Content-Length"] = str(sum(map(len, _pieces(body))) + left)

        async def sent(connected: Callable[[], None]) -> aiohttp.ClientResponse:
            is_reused = False

            def on_write(reused: bool) -> None:
                nonlocal is_reused
                is_reused = reused
                connected()

            for is_last in (False, True):
                data = (
                    WholeBody(body, on_write)
                    if in_memory
                    else StreamedBody(_in_steps(body, rest, connected, deliver), on_write)
                )
                try:
                    return await session.post(
                        upstream.url + path,
                        data=data,
                        headers=all_headers,
                        proxy=upstream.proxy,
                        allow_redirects=False,
                    )
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    if is_last or not is_reused or (rest is not None and rest.begun):
                        raise
            raise AssertionError("unreachable")

        return sent


class Exchange:
    """One HTTP request and its answer, in a task."""

    def __init__(self, sent: Send, limits: UpstreamConfig, secrets: SecretsReader, deliver: Deliver) -> None:
        self._send = sent
        self._limits = limits
        self._secrets = secrets
        self._deliver = deliver
        self._over = False
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._has_bytes = False
        self._reading = False
        self._timer = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._deadline = math.inf
        """Of the current read, by the loop's clock."""
        self._check: asyncio.TimerHandle | None = None
        """Checks the deadline, and is set again then: a timer for each read would cost more than the read."""
        self.task = self._loop.create_task(self._run())

    def finish(self) -> None:
        """Stops passing on. Remaining bytes are dropped for `DRAIN_SECONDS`, then the connection is closed."""
        if not self._over:
            self._over = True
            self._may_read.set()
            if self._reading and self.task is not asyncio.current_task():
                self._set_timer(DRAIN_SECONDS)

    def pause(self) -> None:
        """The upstream has to wait."""
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    async def close(self) -> None:
        """Waits until the connection is closed, or (after `finish`) the answer has ended."""
        if not self._over:
            self._over = True
            self.task.cancel()
        if not self.task.done():
            await asyncio.wait((self.task,))

    async def _run(self) -> None:
        end = End()
        if self._over:
            return
        try:
            async with self._timer:
                self._reading = True
                # Until there is a connection, aiohttp has the time limit.
                end = await self._read(await self._send(self._await_next))
        except TimeoutError as error:
            end = End(failure_of(error) if isinstance(error, aiohttp.ClientError) else self._late())
        except (aiohttp.ClientError, OSError, ValueError) as error:
            end = End(BROKEN_OFF if self._has_bytes else failure_of(error))
        finally:
            self._reading = False
            if self._check is not None:
                self._check.cancel()
        if not self._over:
            self._deliver([end], 0)

    async def _read(self, response: aiohttp.ClientResponse) -> End:
        size = 0
        waiting: list[Message] = [Head(response.status, {k.lower(): v for k, v in response.headers.items()})]
        try:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                return End(_PACKED)
            while True:
                if not self._may_read.is_set():
                    self._deadline = math.inf
                    await self._may_read.wait()
                self._await_next()
                chunk = await response.content.readany()
                if not chunk:
                    break
                self._has_bytes = True
                size += len(chunk)
                if size > MAX_ANSWER_BYTES:
                    return End(TOO_MUCH)
                if not self._over:
                    self._deliver([*waiting, self._secrets.feed(chunk)], len(chunk))
                    waiting.clear()
            if not self._over:
                self._deliver([*waiting, self._secrets.close()], 0)
            return End()
        finally:
            if response.content.is_eof():
                response.release()
            else:
                response.close()

    def _await_next(self) -> None:
        if self._over:
            self._set_timer(DRAIN_SECONDS)
        else:
            limits = self._limits
            self._set_timer(limits.idle_timeout if self._has_bytes else limits.first_byte_timeout)

    def _set_timer(self, seconds: float) -> None:
        self._deadline = deadline = self._loop.time() + seconds
        if self._check is None or deadline < self._check.when():
            self._check_at(deadline)

    def _check_at(self, when: float) -> None:
        if self._check is not None:
            self._check.cancel()
        self._check = self._loop.call_at(when, self._check_deadline)

    def _check_deadline(self) -> None:
        """Lets a late read fail, or sets the timer again."""
        self._check = None
        if self._deadline <= self._loop.time():
            self._timer.reschedule(self._deadline)
        elif self._deadline < math.inf:
            self._check_at(self._deadline)

    def _late(self) -> Failure:
        limits = self._limits
        what = (
            f"sent nothing for {limits.idle_timeout:g} s in the middle of its answer"
            if self._has_bytes
            else f"did not begin to answer within {limits.first_byte_timeout:g} s"
        )
        return Failure(kind=FaultKind.UPSTREAM_TIMEOUT, message=f"The model server {what}. Try again later.")


def _pieces(body: Body) -> Sequence[bytes | memoryview]:
    return (body,) if isinstance(body, bytes) else body


async def _in_steps(
    body: Body, rest: RestOfBody | None, sent: Callable[[], None], deliver: Deliver
) -> AsyncIterator[bytes]:
    """Yields a body and what follows; calls `sent` before each step, because only then an answer can be waited for."""
    for piece in _pieces(body):
        for start in range(0, len(piece), STEP_BYTES):
            sent()
            yield bytes(piece[start : start + STEP_BYTES])
    if rest is None:
        return
    try:
        async for chunk in rest:
            sent()
            yield chunk
    except Exception:
        deliver([End(BROKEN_OFF)], 0)  # aiohttp would go on with an answer that has begun
        raise


def _certificates(upstream: Upstream) -> ssl.SSLContext:
    """The system's certificates and the upstream's `ca_file`."""
    context = ssl.create_default_context()
    if upstream.config.ca_file is not None:
        context.load_verify_locations(upstream.config.ca_file)
    return context


def failure_of(error: Exception) -> Failure:
    """Converts the error of a request without an answer. Its text has the address, and is left out."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        why = (
            "its certificate is not trusted, or TLS fails. The operator of this server must check "
            "it (`ca_file` of its table)"
        )
        return Failure(
            kind=FaultKind.UPSTREAM_UNREACHABLE, message=f"The model server cannot be reached safely: {why}."
        )
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return CLOSED
    if isinstance(error, aiohttp.ClientHttpProxyError):
        why = f"the HTTP proxy of the environment (https_proxy) does not connect to it (HTTP {error.status})"
    elif isinstance(error, aiohttp.ClientResponseError | aiohttp.ClientPayloadError | ValueError):
        return Failure(
            kind=FaultKind.UPSTREAM_ERROR,
            message="The model server's answer is not valid HTTP. The operator of this server must "
            "check the address of the upstream.",
        )
    elif isinstance(error, aiohttp.ConnectionTimeoutError):
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
    return Failure(kind=FaultKind.UPSTREAM_UNREACHABLE, message=f"The model server cannot be reached: {why}.")
