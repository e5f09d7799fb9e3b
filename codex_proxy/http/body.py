"""Reads, unpacks (gzip, deflate, and zstd, which Codex with a ChatGPT sign-in sends) and parses request bodies. Bodies
count against a memory budget until the request (or background response) ends; without room a request is refused before
it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar, cast

from aiohttp import web

from codex_proxy.admission.routes import with_model_asked
from codex_proxy.core.caches import subtract
from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.media import PdfTexts
from codex_proxy.core.shown_text import excerpt
from codex_proxy.http.endpoint import ENDPOINT
from codex_proxy.http.middleware.access import origin_of
from codex_proxy.http.middleware.content_log import CONTENT_LOG
from codex_proxy.http.middleware.request_context import CLIENT, OWNER, REPLY_HEADERS
from codex_proxy.http.routing import (
    ROUTED,
    ROUTER,
    RoutedRequest,
    body_of_unknown_model,
    route_body,
    target_fault,
)
from codex_proxy.http.stored_files import as_sent, with_stored_files
from codex_proxy.runs.observers import note_model_asked
from codex_proxy.surfaces.requests.options import (
    CHOICE_HEADERS,
    SANDBOX_HEADER,
    WORKTREE_HEADER,
    ParseContext,
    ParsedRequest,
    RequestHints,
)
from codex_proxy.surfaces.requests.passed import json_body
from codex_proxy.surfaces.requests.stored_files import MARK
from codex_proxy.surfaces.responses.context import ParsedContext
from codex_proxy.workers.pdf_reader import PdfReader

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:  # a Python that was built without it
    HAS_ZSTD = False
else:
    HAS_ZSTD = True

Refusal: TypeAlias = Literal["owner", "total"]


MIN_TOTAL_BYTES: Final = 64 << 20


def body_budget(memory: int) -> tuple[int, int]:
    """Returns the limits in bytes for the bodies of all running requests, and of one key."""
    total = max(MIN_TOTAL_BYTES, memory // 8)
    return total, total // 4


class ByteBudget:
    """Counts bytes: at most `total`, and `each` for an owner."""

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held.total()

    def take(self, owner: str, size: int) -> Refusal | None:
        """Counts `size` more bytes, or returns which limit has no room. For an owner's first bytes there is always
        room, so that a single body may be larger.
        """
        theirs = self._held[owner]
        if theirs and theirs + size > self.each:
            return "owner"
        held = self._held.total()
        if held and held + size > self.total:
            return "total"
        self._held[owner] += size
        return None

    def give_back(self, owner: str, size: int) -> None:
        subtract(self._held, owner, size)


BODY_BUDGET = web.AppKey("body_budget", ByteBudget)
RETRY_SECONDS = 5


class HeldBytes:
    """The counted bytes (`size`) of one request: its body, and the stored context that it continues."""

    def __init__(self, budget: ByteBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self.size = 0

    def grow_to(self, size: int) -> None:
        """Counts the body as `size` bytes. Raises `Fault` CONCURRENCY_EXCEEDED or UNAVAILABLE without room."""
        more = size - self.size
        if more <= 0:
            return
        refused = self._budget.take(self._owner, more)
        if refused is not None:
            raise _no_room(self._budget, refused)
        self.size = size

    def grow_by(self, more: int) -> None:
        """Counts `more` bytes, as if all had come at once. Raises what `grow_to` raises, and then holds nothing."""
        if more:
            size = self.size + more
            self.release()
            self.grow_to(size)

    def release(self) -> None:
        """Frees the bytes. May be called twice."""
        if self.size:
            self._budget.give_back(self._owner, self.size)
            self.size = 0

    def hand_over(self, more: int = 0) -> Callable[[], None]:
        """Counts `more` bytes, too (see `grow_by`). All stay counted, also after `release`, until the returned function
        is called.
        """
        self.grow_by(more)
        size, self.size = self.size, 0
        return partial(self._budget.give_back, self._owner, size)


HELD = web.RequestKey("held", HeldBytes)


@contextlib.contextmanager
def hold_body_bytes(request: web.Request) -> Iterator[None]:
    """Counts the bytes of the request's body, as `request[HELD]`, until the end of the `with`."""
    held = request[HELD] = HeldBytes(request.app[BODY_BUDGET], request[OWNER])
    try:
        yield
    finally:
        held.release()


def _no_room(budget: ByteBudget, whose: Refusal) -> Fault:
    if whose == "owner":
        message = (
            f"The bodies and contexts of this key's running requests have reached its limit of {budget.each} "
            "bytes. Try again when one has ended."
        )
        return Fault.of(FaultKind.CONCURRENCY_EXCEEDED, message, retry_after=RETRY_SECONDS)
    message = (
        f"The bodies and contexts of running requests have reached this server's limit of {budget.total} "
        "bytes. Try again later."
    )
    return Fault.of(FaultKind.UNAVAILABLE, message, retry_after=RETRY_SECONDS)


T = TypeVar("T")

PDF_READER = web.AppKey("pdf_reader", PdfReader)
"""Reads PDFs; set only if the package for them is installed."""

BODY_SECONDS = 300.0
"""Seconds for the whole body: the largest one at a megabit a second."""


_PARSER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parse")
"""Parses large bodies. The allocator keeps memory for each thread, and two are not faster."""
PARSED_ON_LOOP = 512 << 10
"""Maximum bytes that are parsed on the event loop, in up to 5 ms."""
OBJECTS_ON_LOOP = 500
"""Maximum opening braces of a body that is parsed on the event loop: a message costs 10 us, however short."""


WAITS_TO_SEND: Final = web.RequestKey("waits_to_send", bool)
"""Set if the client sends its body only after `100 Continue`."""


async def let_body_come(request: web.Request) -> None:
    """Sends `100 Continue` if the client waits for it."""
    if request.get(WAITS_TO_SEND):
        del request[WAITS_TO_SEND]
        writer = request.writer
        await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.output_size = 0  # nothing of the answer has been sent


class BodyReader:
    """Reads a body without decompressing it: `read` returns bytes to keep, iteration yields bytes to send on. Raises
    `Fault` INVALID_REQUEST for a body that contradicts its headers, ends early or comes too slowly, and
    `HTTPRequestEntityTooLarge`.
    """

    def __init__(self, request: web.Request) -> None:
        self.begun = False
        """Whether the body is being sent on."""
        self.error: Exception | None = None
        """Why sending it on has ended too early, if so."""
        if (request.content_length or 0) > request.client_max_size:
            raise web.HTTPRequestEntityTooLarge(request.client_max_size)
        self._request = request
        self._seconds = BODY_SECONDS
        self._size = 0
        self._at_rest = asyncio.Event()
        self._at_rest.set()

    @property
    def left(self) -> int | None:
        """The bytes that have not been read; None if the client has not said how many come."""
        length = self._request.content_length
        return None if length is None else max(0, length - self._size)

    @property
    def at_end(self) -> bool:
        return self._request.content.at_eof()

    async def read(self, least: int | None = None) -> bytes:
        """Returns the rest, or the next bytes, at least `least` if so many come. Also raises what `HeldBytes.grow_to`
        does.
        """
        held = self._request[HELD]
        limit = self._request.client_max_size
        end = limit if least is None else self._size + least
        held.grow_to(min(self._request.content_length or 0, limit, end))
        chunks: list[bytes] = []
        while (least is None or self._size < end) and (chunk := await self._next()):
            held.grow_to(self._size)
            chunks.append(chunk)
            if self.at_end:
                break
        return b"".join(chunks)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.begun = True
        while True:
            self._at_rest.clear()
            try:
                chunk = await self._next()
            except Exception as error:
                self.error = error
                raise
            finally:
                self._at_rest.set()
            if not chunk:
                return
            yield chunk

    async def wait_for_readers(self) -> None:
        """Waits until nobody reads the body."""
        await self._at_rest.wait()

    async def _next(self) -> bytes:
        content = self._request.content
        try:
            if content.is_eof():  # most bodies have arrived with the headers
                chunk = await content.readany()
            else:
                await let_body_come(self._request)
                loop = asyncio.get_running_loop()
                began = loop.time()
                async with asyncio.timeout(self._seconds):
                    chunk = await content.readany()
                self._seconds -= loop.time() - began
        except TimeoutError:
            raise bad_request(f"The request body was not received within {BODY_SECONDS:g} s.") from None
        except web.RequestPayloadError:
            raise bad_request(
                "The request body does not match its Content-Length, Transfer-Encoding or Content-Encoding."
            ) from None
        self._size += len(chunk)
        if self._size > self._request.client_max_size:
            raise web.HTTPRequestEntityTooLarge(self._request.client_max_size)
        return chunk


async def read_body(request: web.Request) -> bytes:
    """Returns the whole body, decompressed, with the uploaded files that it names. Raises what `BodyReader` and
    `with_stored_files` raise, and `Fault` UNSUPPORTED_MEDIA_TYPE, CONCURRENCY_EXCEEDED or UNAVAILABLE.
    """
    routed: RoutedRequest | None = request.get(ROUTED)
    if routed is not None and routed.body:
        return routed.body  # it is handled again, for another target of its route
    coding = coding_of(request.headers.getall("Content-Encoding", []))
    body = await BodyReader(request).read()
    if coding is not None and body:
        limit = request.client_max_size
        try:
            if len(body) <= UNPACKED_ON_LOOP[coding]:
                body = decompress(body, coding, limit)
            else:
                body = await asyncio.to_thread(decompress, body, coding, limit)
        except TooLarge:
            raise web.HTTPRequestEntityTooLarge(limit) from None
        request[HELD].grow_to(len(body))
    content_log = request.get(CONTENT_LOG)
    if content_log is not None:
        content_log("request", body)
    return await with_stored_files(request, body, request[HELD].grow_to) if MARK in body else body


async def parse_body(
    request: web.Request,
    body: bytes,
    parse: Callable[[bytes, PdfTexts | None], T],
    *,
    skips_unreadable: bool = False,
) -> T:
    """Calls `parse`, again with the texts of PDFs, and for the model that a route chooses. `skips_unreadable`: a PDF
    that cannot be read has an empty text instead of a `Fault`. Notes the client's name of the model for the turn.
    """
    read = partial(_parse_with_pdfs, request, parse=parse, skips_unreadable=skips_unreadable)
    try:
        parsed = await read(body)
        routed = route_body(request, body, parsed) if request.app.get(ROUTER) else None
    except Fault as fault:
        by_name = await _parse_for_route(request, body, read, fault.failure)
        if by_name is None:
            raise
        parsed, routed = by_name
    if routed is not None and isinstance(parsed, ParsedRequest):
        try:
            found = await read(routed)
        except Fault as fault:
            raise target_fault(request, fault) from fault
        assert isinstance(found, ParsedRequest), "the parser of the same body"
        parsed = cast("T", with_model_asked(found, parsed.model_asked))
    if isinstance(parsed, ParsedRequest | ParsedContext):
        note_model_asked(parsed.model_asked)
    return parsed


async def _parse_for_route(
    request: web.Request, body: bytes, read: Callable[[bytes], Awaitable[T]], failure: Failure
) -> tuple[T, bytes] | None:
    """Returns the request for a model that no agent has, and its body with its route's target; None if no route
    matches.
    """
    stand_in = body_of_unknown_model(request, body, failure)
    parsed = None if stand_in is None else await read(stand_in)
    if isinstance(parsed, ParsedRequest):
        asked = with_model_asked(parsed, json_body(body).model or "")
        routed = route_body(request, body, asked)
        if routed is not None:
            return cast("T", asked), routed
    return None


async def _parse_with_pdfs(
    request: web.Request, body: bytes, *, parse: Callable[[bytes, PdfTexts | None], T], skips_unreadable: bool
) -> T:
    reader = request.app.get(PDF_READER)
    pdfs = None if reader is None else PdfTexts()
    try:
        parsed = await _parse_off_loop(body, parse, pdfs)
        if reader is None or pdfs is None or not pdfs.unread:
            return parsed
        texts = await reader.read(pdfs.unread, request[OWNER], skips_unreadable=skips_unreadable)
        return await _parse_off_loop(body, parse, PdfTexts(texts))
    except Fault as fault:
        raise as_sent(request, fault) from None


async def _parse_off_loop(
    body: bytes, parse: Callable[[bytes, PdfTexts | None], T], pdfs: PdfTexts | None
) -> T:
    if len(body) <= PARSED_ON_LOOP and body.count(b"{") <= OBJECTS_ON_LOOP:
        return parse(body, pdfs)
    return await asyncio.get_running_loop().run_in_executor(_PARSER, parse, body, pdfs)


async def parse_request(
    request: web.Request,
    body: bytes,
    parse: Callable[..., T],
    *,
    skips_unreadable: bool = False,
    **more: object,
) -> T:
    """Parses a body as `parse_body` does, and passes the client's settings, catalog and headers, and `more`, to
    `parse`.
    """
    client = request[CLIENT]
    context = ParseContext(client.settings, client.catalog, hints_of(request))
    read = partial(parse, context=context, **more)
    return await parse_body(request, body, read, skips_unreadable=skips_unreadable)


IGNORED_HEADER: Final = "x-codex-ignored-params"


def name_ignored(request: web.Request, names: Iterable[str]) -> None:
    """Adds fields of the body without effect to a header of the answer. A turn's are in `agent_headers`."""
    headers = request[REPLY_HEADERS]
    if named := ", ".join(filter(None, (headers.get(IGNORED_HEADER), *names))):
        headers[IGNORED_HEADER] = named


_SESSION_APIS: Final = ("Agents", "Managed Agents")


def check_choices(request: web.Request) -> None:
    """Names the headers of a request that choose how an agent works where the endpoint takes none of them. Raises
    `Fault` for a worktree where none is made: agents would change the very files that the client wants to keep.
    """
    endpoint = request.get(ENDPOINT)
    if endpoint is None or (request.method != "POST" and endpoint.kind != "turn"):
        return
    given = list(filter(request.headers.get, CHOICE_HEADERS))
    if not given:
        return
    taken = {each.name for each in endpoint.parameters}
    unused = [name for name in given if name not in taken]
    begins = SANDBOX_HEADER in taken or (endpoint.kind == "turn" and "{" not in endpoint.path)
    if begins and WORKTREE_HEADER in unused and request.headers[WORKTREE_HEADER].strip().lower() != "false":
        message = "No worktree is made here: create a session with POST /v1/agents/sessions, or leave the header out."
        raise bad_request(message, WORKTREE_HEADER)
    if endpoint.chapter in _SESSION_APIS or (begins and endpoint.kind != "turn"):
        name_ignored(request, unused)


def hints_of(request: web.Request) -> RequestHints:
    return RequestHints(
        mode=request.headers.get("X-Codex-Mode"),
        workdir=request.headers.get("X-Codex-Workdir"),
        sandbox=request.headers.get("X-Codex-Sandbox"),
        activity=request.headers.get("X-Codex-Activity"),
        origin=origin_of(request),
    )


Coding: TypeAlias = Literal["gzip", "deflate", "zstd"]

_NAMES: Final[dict[str, Coding | None]] = {
    "": None,
    "identity": None,
    "gzip": "gzip",
    "x-gzip": "gzip",
    "deflate": "deflate",
    **({"zstd": "zstd"} if HAS_ZSTD else {}),
}
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16  # zlib's way to say that the head and the end are those of gzip
_ZSTD_WINDOW_LOG: Final = 23
"""The largest window of zstd: 8 MiB, as in RFC 9659. A frame could ask for 2 GiB."""
_STEP: Final = 1 << 16
MAX_PARTS: Final = 1_000
"""Maximum parts of gzip or zstd, one behind the other: an empty one has 20 bytes, and costs as much as many more."""

UNPACKED_ON_LOOP: Final[dict[Coding, int]] = {"gzip": 4 << 10, "deflate": 4 << 10, "zstd": 0}
"""Maximum compressed bytes that are decompressed on the event loop: up to 4 MiB, 10 ms. Zstd makes
as much of 128 bytes.
"""


class TooLarge(Exception):  # noqa: N818 - what the body is
    ...


def coding_of(values: list[str]) -> Coding | None:
    """Parses the values of `Content-Encoding`. Raises `Fault` UNSUPPORTED_MEDIA_TYPE."""
    given = ", ".join(values).strip().lower()
    if given not in _NAMES:
        raise Fault.of(
            FaultKind.UNSUPPORTED_MEDIA_TYPE,
            f"The Content-Encoding '{excerpt(given)}' is not supported. Send the body with "
            f"gzip, deflate, {'zstd, ' if HAS_ZSTD else ''}or no encoding.",
        )
    return _NAMES[given]


def decompress(body: bytes, coding: Coding, limit: int) -> bytes:
    """Returns the decompressed body. Raises `Fault` for bad data, `TooLarge` above `limit` bytes."""
    if coding == "zstd":
        return _decompress_zstd(body, limit)
    try:
        return _inflate(body, _GZIP_WINDOW if coding == "gzip" else zlib.MAX_WBITS, limit)
    except zlib.error:
        if coding == "deflate":
            try:  # some clients leave zlib's head and end out
                return _inflate(body, -zlib.MAX_WBITS, limit)
            except zlib.error:
                pass
        raise bad_request(f"The request body is not valid {coding} data.") from None


def _inflate(body: bytes, window: int, limit: int) -> bytes:
    """Decompresses piece by piece: zlib copies what it leaves of its input."""
    out, given, at = bytearray(), memoryview(body), 0
    for _ in range(MAX_PARTS):
        part = zlib.decompressobj(window)
        while not part.eof:
            piece = given[at : at + _STEP]
            found = part.decompress(piece, min(_STEP, limit - len(out) + 1))
            if not (piece or found):
                raise _incomplete()
            out += found
            if len(out) > limit:
                raise TooLarge
            # At the end both have what is left, if an earlier call has left something.
            at += len(piece) - len(part.unused_data if part.eof else part.unconsumed_tail)
        if at == len(given):
            return bytes(out)
        if window != _GZIP_WINDOW:
            raise zlib.error("there is data after the end")
    raise _too_many_parts("gzip")


def _decompress_zstd(body: bytes, limit: int) -> bytes:
    out, given, at = bytearray(), memoryview(body), 0
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    try:
        for _ in range(MAX_PARTS):
            frame = zstd.ZstdDecompressor(options=options)  # a frame to be skipped is one without content
            while not frame.eof:
                piece = given[at : at + _STEP] if frame.needs_input else b""
                if frame.needs_input and not piece:
                    raise _incomplete()
                out += frame.decompress(piece, min(_STEP, limit - len(out) + 1))
                if len(out) > limit:
                    raise TooLarge
                at += len(piece)
            at -= len(frame.unused_data)
            if at == len(given):
                return bytes(out)
    except zstd.ZstdError:
        raise bad_request(
            "The request body is not valid zstd data, or needs a window of more than 8 MiB."
        ) from None
    raise _too_many_parts("zstd")


def _incomplete() -> Fault:
    return bad_request("The request body is incomplete: its compressed data ends too early.")


def _too_many_parts(coding: Coding) -> Fault:
    return bad_request(
        f"The request body has more than {MAX_PARTS} parts of {coding} data, one behind the other."
    )
