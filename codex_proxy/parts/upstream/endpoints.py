"""The endpoints of requests that are no turns (embeddings, ranking, audio, images, moderation): they are sent on to the
upstream that has the model. JSON is sent on whole, a large form while it comes.
"""

from __future__ import annotations

import asyncio
import mmap
import tempfile
from collections.abc import AsyncIterator
from typing import Any, Final

from aiohttp import web

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.passing import PASSED_PATHS
from codex_proxy.http.body import BodyReader, coding_of, read_body
from codex_proxy.http.endpoint import Endpoint
from codex_proxy.http.middleware.access import FORM
from codex_proxy.http.middleware.content_log import CONTENT_LOG
from codex_proxy.http.middleware.request_context import CLIENT
from codex_proxy.http.pass_through import send_on
from codex_proxy.parts.upstream.forms import FormReader, form_body, passed_form
from codex_proxy.surfaces.requests.passed import PassedBody, json_body

MAX_FORM_HEAD: Final = 1 << 20
"""Maximum bytes of a form in memory. A larger one is sent on while it comes if its beginning has the model; else it is
put into a file, because clients may send the model last.
"""


async def pass_through(request: web.Request) -> web.StreamResponse:
    """Passes the request on to the upstream that has its model.

    Serves any of `PASSED_PATHS`. Raises `Fault` NOT_FOUND if no upstream serves it, NOT_ALLOWED for the key, or the
    upstream's failure.
    """
    path = request.path.removeprefix("/v1")
    if request.content_type != FORM:
        return await send_on(request, json_body(await read_body(request)), path)
    passed, rest = await _read_form(request, request.headers["Content-Type"])
    try:
        return await send_on(request, passed, path, rest)
    finally:
        if rest is not None:
            await rest.wait_for_readers()


async def _read_form(request: web.Request, kind: str) -> tuple[PassedBody, _RestOfForm | None]:
    """Returns a form; of a large one only its beginning, with the rest, if the model is there, and what comes behind it
    need not be known before the form is sent on.
    """
    if coding_of(request.headers.getall("Content-Encoding", [])) is not None:
        return form_body(await read_body(request), kind), None
    reader, form = BodyReader(request), FormReader(kind)
    head = await reader.read(MAX_FORM_HEAD)
    log = request.get(CONTENT_LOG)
    if log is not None:
        log("request", head)
    beginning = form.feed(head)
    if reader.at_end:
        form.end()
        return passed_form(beginning, form), None
    rest = _RestOfForm(reader, form)
    if form.model is not None and request[CLIENT].models is None:
        return passed_form(beginning, form), rest
    return passed_form(await _read_into_file(beginning, rest), form), None


class _RestOfForm:
    """The rest of a form, made anew while it comes (see `RestOfBody`)."""

    def __init__(self, reader: BodyReader, form: FormReader) -> None:
        self._reader = reader
        self._form = form
        self._fault: Fault | None = None

    @property
    def begun(self) -> bool:
        return self._reader.begun

    @property
    def left(self) -> int | None:
        left = self._reader.left
        return None if left is None else left + self._form.held

    @property
    def error(self) -> Exception | None:
        return self._fault or self._reader.error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._reader:
                if made := self._form.feed(chunk):
                    yield made
            self._form.end()
        except Fault as fault:
            self._fault = fault
            raise

    async def wait_for_readers(self) -> None:
        await self._reader.wait_for_readers()


async def _read_into_file(head: bytes, rest: _RestOfForm) -> memoryview:
    try:
        with tempfile.TemporaryFile() as file:
            await asyncio.to_thread(file.write, head)
            async for chunk in rest:
                await asyncio.to_thread(file.write, chunk)
            await asyncio.to_thread(file.flush)
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except ConnectionError:
        raise  # the client has left
    except OSError as error:
        message = f"This server has no room for the form ({error.strerror}). Put its field 'model' before its files."
        raise Fault.of(FaultKind.UNAVAILABLE, message) from error


_WITH_FILES: Final = ("/audio/transcriptions", "/audio/translations", "/images/edits", "/images/variations")

ENDPOINTS: Final = tuple(
    Endpoint(
        f"POST {path}",
        pass_through,
        Any,
        operation_id="pass_" + path[1:].replace("/", "_"),
        chapter="Model servers",
        kind="turn",
        takes_form=path in _WITH_FILES,
        description="Only `model` is changed. Details: docs/upstreams.md.",
        body="PassedBody",
    )
    for path in PASSED_PATHS
    if path != "/completions"  # which is also served by turns
)
