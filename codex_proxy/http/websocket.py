"""`GET /v1/responses` as a WebSocket: runs the turn of each frame (`{"type": "response.create", ...}`) in order, and
sends each event as one frame; an error is `{"type": "error", "status", "error"}`. `response.steer` is refused at once.
The connection keeps its newest response, so that one with `store: false` can be continued; a continuing turn that fails
removes it, and without room for its bytes it is not kept. Each turn has the limits that its key has now. Source: Open
Responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import WSCloseCode, WSMessage, WSMsgType, web
from aiohttp.web_request import BaseRequest

from codex_proxy.core.events import DECLINED_HEADER, EMPTY_HEADER, Event, TurnEnded
from codex_proxy.core.faults import STOPPING, Failure, Fault, FaultKind, bad_request
from codex_proxy.core.media import PdfTexts
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.http.body import BODY_BUDGET, IGNORED_HEADER, HeldBytes, hints_of, parse_body
from codex_proxy.http.endpoint import log_unforeseen
from codex_proxy.http.exchange import declined_in
from codex_proxy.http.middleware.access import KEY_PROTOCOL, RIGHT, subprotocols
from codex_proxy.http.middleware.content_log import CONTENT_LOG
from codex_proxy.http.middleware.rate_limit import REQUEST_LIMITS, count_request
from codex_proxy.http.middleware.request_context import CLIENT
from codex_proxy.http.routing import ROUTED, next_target
from codex_proxy.http.sse import stream_slot
from codex_proxy.http.stored_files import SENT_AS, with_stored_files
from codex_proxy.http.turns import agent_headers
from codex_proxy.responses.context import Context, ContextItem, context_item, read_context
from codex_proxy.responses.foreground import ResponseReader, start_foreground
from codex_proxy.responses.prepare import PreparedResponse, prepare, prepare_in_context
from codex_proxy.store.health import store_errors_as_faults
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.requests.body import decode_object
from codex_proxy.surfaces.requests.options import ParseContext
from codex_proxy.surfaces.requests.stored_files import MARK
from codex_proxy.surfaces.responses.events import payload_of, refused_steer, socket_error
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse
from codex_proxy.surfaces.responses.profile import is_last
from codex_proxy.surfaces.responses.response_object import previous_not_found

MAX_SECONDS = 3600.0
"""The longest time of a connection, as in Open Responses."""
PING_SECONDS = 30.0
MAX_WAITING = 16
"""Maximum waiting turns of a connection. Together they may be as large as one request body."""

TOO_LONG = Failure(
    FaultKind.INVALID_REQUEST,
    "A connection lasts 60 minutes at most. Open a new one.",
    code="websocket_connection_limit_reached",
)

TOO_MANY = Failure(
    FaultKind.CONCURRENCY_EXCEEDED,
    f"A connection's turns are run one after the other, and no more than {MAX_WAITING} (or the size of one "
    "body) may wait. Wait for answers, or open another connection.",
)


async def open_responses_socket(request: web.Request) -> web.StreamResponse:
    """Opens a WebSocket that runs one turn after the other.

    Raises `Fault` if the request is no WebSocket handshake, or the server is stopping.
    """
    socket = _CountingSocket(
        max_msg_size=request.client_max_size, heartbeat=PING_SECONDS, protocols=_choose_subprotocol(request)
    )
    if not socket.can_prepare(request):
        message = "GET on this path is for WebSocket connections. Use POST."
        raise Fault.of(FaultKind.METHOD_NOT_ALLOWED, message)
    if request.app[RESPONSES].runs.draining:
        raise Fault(STOPPING)
    await socket.prepare(request)
    connection = _ResponsesSocket(request, socket)
    try:
        with request[RIGHT]:
            async with asyncio.timeout(MAX_SECONDS):
                await connection.serve()
    except TimeoutError:
        await socket.send_str(socket_error(TOO_LONG).decode())
    except Fault as fault:
        await connection.refuse(fault.failure)
    finally:
        socket.end_counting()
    await socket.close()
    return socket


def _choose_subprotocol(request: web.Request) -> list[str]:
    """Returns the first subprotocol that is no key, in a list: a browser needs one accepted, and a key must not be sent
    back.
    """
    return [name for name in subprotocols(request) if not name.startswith(KEY_PROTOCOL)][:1]


class _CountingSocket(web.WebSocketResponse):
    """Counts the bytes of frames until their message is whole. Without room for more, the next message is a `Fault`,
    and none follows.
    """

    def _post_start(self, request: BaseRequest, protocol: str | None, writer: Any) -> None:
        super()._post_start(request, protocol, writer)
        assert isinstance(request, web.Request)
        self._parts: HeldBytes | None = HeldBytes(request.app[BODY_BUDGET], request[CLIENT].name)
        connection = request.protocol
        connection._payload_parser = _CountingParser(connection._payload_parser, self._count)

    def _count(self, size: int) -> bool:
        assert self._reader is not None
        if self._parts is None:
            return True
        try:
            self._parts.grow_by(size)
        except Fault as fault:
            self._reader.feed_data(WSMessage(WSMsgType.ERROR, fault, None), 0)
            return False
        return True

    def release_parts(self) -> None:
        if self._parts is not None:
            self._parts.release()

    def end_counting(self) -> None:
        self.release_parts()
        self._parts = None


class _CountingParser:
    """aiohttp's parser of frames, which reads nothing after `count` has returned False."""

    def __init__(self, parser: Any, count: Callable[[int], bool]) -> None:
        self._parser = parser
        self._count = count
        self._refused = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._refused = self._refused or not self._count(len(data))
        parsed: tuple[bool, bytes] = (True, b"") if self._refused else self._parser.feed_data(data)
        return parsed

    def feed_eof(self) -> None:
        self._parser.feed_eof()


class _LastResponse(msgspec.Struct, frozen=True):
    """The newest response. `items` is its whole context and output, whose bytes count until `release`."""

    id: str
    items: tuple[ContextItem, ...]
    stored: bool
    release: Callable[[], None]


class _ResponsesSocket:
    def __init__(self, request: web.Request, socket: _CountingSocket) -> None:
        self._request = request
        self._socket = socket
        self._responses = request.app[RESPONSES]
        self._client = request[CLIENT]
        self._content_log = request.get(CONTENT_LOG)
        self._waiting: asyncio.Queue[tuple[str | bytes, HeldBytes]] = asyncio.Queue(MAX_WAITING)
        self._waiting_size = 0
        self._busy = False
        self._last: _LastResponse | None = None
        self._noted: dict[str, str] = {}
        """Members of the last event of the turn that goes on: why its answer is empty, and what was declined."""

    async def serve(self) -> None:
        """Runs the turns of the frames, until the client leaves or the server stops. A running turn is then
        interrupted.
        """
        answering = asyncio.ensure_future(self._answer_frames())
        leaving = asyncio.ensure_future(self._leave_when_the_server_stops())
        try:
            async for message in self._socket:
                self._socket.release_parts()
                try:
                    if isinstance(message.data, Fault):
                        raise message.data
                    if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                        await self._take(message.data)
                except Fault as fault:
                    await self._send(socket_error(fault.failure))
                    await self._socket.close(
                        code=WSCloseCode.TRY_AGAIN_LATER, message=b"Too many turns are waiting."
                    )
                    return
        finally:
            answering.cancel()
            leaving.cancel()
            try:
                await asyncio.gather(answering, leaving, return_exceptions=True)
            finally:  # also if this is cancelled, since the client has closed the connection
                self._forget()
                while not self._waiting.empty():
                    self._waiting.get_nowait()[1].release()

    async def _leave_when_the_server_stops(self) -> None:
        await self._responses.runs.until_draining()
        if not self._busy and self._waiting.empty():
            await self._leave()

    async def _leave(self) -> None:
        await self._send(socket_error(STOPPING))
        await self._socket.close(code=WSCloseCode.GOING_AWAY, message=STOPPING.message.encode())

    async def _take(self, frame: str | bytes) -> None:
        if (refused := refused_steer(frame)) is None:
            self._enqueue(frame)
            return
        if self._content_log is not None:
            self._content_log("request", frame.encode() if isinstance(frame, str) else frame)
        with suppress(ConnectionError):
            await self._send(refused)

    def _enqueue(self, frame: str | bytes) -> None:
        if self._waiting.full() or (
            self._waiting_size and self._waiting_size + len(frame) > self._request.client_max_size
        ):
            raise Fault(TOO_MANY)
        held = HeldBytes(self._request.app[BODY_BUDGET], self._client.name)
        held.grow_to(len(frame))
        self._waiting_size += len(frame)
        self._waiting.put_nowait((frame, held))

    async def _answer_frames(self) -> None:
        going_on = True
        while going_on:
            if self._responses.runs.draining and self._waiting.empty():
                await self._leave()
                return
            self._busy = False
            frame, held = await self._waiting.get()
            self._busy = True
            self._waiting_size -= len(frame)
            try:
                going_on = await self._answer_frame(frame, held)
            finally:
                held.release()
                del frame  # not while the next one is waited for

    async def _answer_frame(self, frame: str | bytes, held: HeldBytes) -> bool:
        if self._content_log is not None:
            self._content_log("request", frame.encode() if isinstance(frame, str) else frame)
        try:
            self._client = self._responses.clients.renew(self._client)
        except Fault as fault:
            await self.refuse(fault.failure)
            return False
        try:
            with count_request(self._request.app[REQUEST_LIMITS], self._client), stream_slot(self._request):
                await self._turn(frame, held)
        except Fault as fault:
            await self._send(socket_error(fault.failure))
        except ConnectionError:
            return False
        except Exception as error:  # noqa: BLE001 - the connection outlives it
            await self._send(socket_error(log_unforeseen(error)))
        return True

    async def refuse(self, failure: Failure) -> None:
        """Closes the connection, whose key is no longer valid."""
        await self._send(socket_error(failure))
        await self._socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"The key is not valid.")

    async def _turn(self, frame: str | bytes, held: HeldBytes) -> None:
        body = frame.encode() if isinstance(frame, str) else frame
        if MARK in body:
            body = await with_stored_files(self._request, body, held.grow_to)
        try:
            while True:
                parsed = await parse_body(self._request, body, self._parse)
                try:
                    await self._answer(parsed, held)
                    return
                except Fault as fault:
                    if not next_target(self._request, fault.failure):
                        self._forget_failed(parsed.previous_response_id)
                        raise
        finally:
            self._request.pop(ROUTED, None)  # the next turn is routed by itself, and has files of its own
            self._request.pop(SENT_AS, None)

    async def _answer(self, parsed: ParsedResponse, held: HeldBytes) -> None:
        prepared = await self._prepare(parsed)
        try:
            held.grow_by(prepared.size)
        except Fault:
            prepared.release()
            raise
        self._noted.clear()
        response, reader = await start_foreground(self._responses, prepared, "websocket", self._note)
        made = agent_headers(self._responses.runs.agent, prepared.parsed, prepared.turn)
        await self._send_events(reader, {name: made[name] for name in made if name == IGNORED_HEADER})
        if response.failure is not None or response.final is None:
            self._forget_failed(parsed.previous_response_id)
            return
        output = tuple(map(context_item, response.output))
        items = (*prepared.context.earlier, *prepared.context.fresh, *output)
        self._forget()
        with suppress(Fault):  # without room, a continuation gets `previous_response_not_found`
            held.grow_to(_weight_of(items))
            self._last = _LastResponse(prepared.id, items, parsed.store, held.hand_over())

    def _forget_failed(self, id: str | None) -> None:
        if self._last is not None and self._last.id == id:
            self._forget()

    def _forget(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.release()

    def _note(self, events: Sequence[Event]) -> None:
        if events and isinstance(events[-1], TurnEnded) and events[-1].empty:
            self._noted[EMPTY_HEADER] = events[-1].empty
        if declined := declined_in(events, self._noted.get(DECLINED_HEADER, "")):
            self._noted[DECLINED_HEADER] = declined

    async def _send_events(self, reader: ResponseReader, about: Mapping[str, str]) -> None:
        """`about`: members of the last event, which has no header that could say it."""
        try:
            while not reader.finished:
                await reader.wait()
                frames = reader.take_frames()
                if reader.refusal is not None:
                    raise Fault(reader.refusal)
                for _, frame in frames:
                    payload = payload_of(frame)
                    if is_last(frame):
                        said = {**about, **self._noted}
                        payload = payload[:-1] + b"," + json_bytes(said)[1:] if said else payload
                    await self._send(payload)
        except (Fault, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 - the events say how the response ends
            for _, frame in reader.missing_end(log_unforeseen(error)):
                await self._send(payload_of(frame))
        finally:
            reader.close()

    async def _send(self, payload: bytes) -> None:
        if self._content_log is not None:
            self._content_log("answer", payload)
        await self._socket.send_str(payload.decode())

    # --- from a frame to a turn -----------------------------------------------------------------

    def _parse(self, frame: bytes, pdfs: PdfTexts | None) -> ParsedResponse:
        body = _body_of(frame)
        if body.get("background"):
            raise bad_request("'background' is not supported on a WebSocket. Use POST.", "background")
        if body.get("generate") is False:
            raise bad_request("'generate': false is not supported: every turn is answered.", "generate")
        if body.pop("stream_id", None) is not None:  # a client looks for it in the events of its lane
            raise bad_request(
                "'stream_id' is not supported: turns run one after the other. Open another connection.",
                "stream_id",
            )
        body["stream"] = True
        return parse(
            json_bytes(body),
            pdfs,
            context=ParseContext(self._client.settings, self._client.catalog, hints_of(self._request)),
        )

    async def _prepare(self, parsed: ParsedResponse) -> PreparedResponse:
        service = self._responses
        id, now = service.ids.new("resp_"), service.clock.epoch()
        last = self._last
        if last is None or parsed.previous_response_id != last.id:
            wait = service.conversation_wait
            return await prepare(service, parsed, self._client.name, id=id, created=now, wait=wait)
        if last.stored:
            await self._require_stored(last.id)
        if parsed.store and not last.stored:
            raise bad_request(
                "This response cannot be stored, since the one that it continues was not: send 'store': false.",
                "store",
            )
        own = msgspec.structs.replace(parsed, previous_response_id=None)  # what it continues is in memory
        fresh = await read_context(own, service.store, self._client.name, service.ids, now)
        context = Context(last.items, fresh.fresh, fresh.input)
        return await prepare_in_context(service, parsed, context, self._client.name, id=id, created=now)

    async def _require_stored(self, id: str) -> None:
        """Forgets the newest response, and raises `Fault`, if it has been deleted."""
        if (store := self._responses.store) is None:
            return
        with store_errors_as_faults():
            found = await store.response(self._client.name, id)
        if found is None:
            self._forget()
            raise previous_not_found(id)


def _weight_of(items: Sequence[ContextItem]) -> int:
    shown = sum(len(json_bytes(each.shown)) for each in items if each.shown is not None)
    return shown + sum(len(each.model.item) for each in items if each.model is not None)


def _body_of(frame: bytes) -> dict[str, Any]:
    given = decode_object(frame)
    if given.pop("type", None) != "response.create":
        raise bad_request("A frame must be an object of type 'response.create'.", "type")
    return given
