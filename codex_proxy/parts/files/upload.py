"""Reads the form of an upload (`multipart/form-data`) while it comes, by aiohttp's reader. Raises `Fault` for a form
that is too slow, ends too early or is none.
"""

from __future__ import annotations

import asyncio
import mimetypes
import re
import warnings
from collections.abc import AsyncIterator, Awaitable
from typing import Final, TypeVar

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.multipart import BadContentDispositionHeader, BadContentDispositionParam

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.http.body import coding_of, let_body_come
from codex_proxy.http.middleware.access import FORM
from codex_proxy.parts.files.service import UPLOAD_SECONDS, Files, Receiving
from codex_proxy.surfaces.requests.body import missing_parameter

T = TypeVar("T")

CHUNK_BYTES: Final = 256 << 10
MAX_FIELDS: Final = 20
MAX_FIELD_BYTES: Final = 1_000
MAX_NAME: Final = 255
FORM_BYTES: Final = 64 << 10
"""Bytes of a form beside its file."""
_MEDIA_TYPE: Final = re.compile(r"[\w.+-]{1,63}/[\w.+-]{1,63}", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ANY_TYPE: Final = "application/octet-stream"
_UNREADABLE: Final = (
    ValueError,
    AssertionError,
    LookupError,
    RuntimeError,
    HttpProcessingError,
    web.RequestPayloadError,
    BadContentDispositionHeader,
    BadContentDispositionParam,
)
"""What aiohttp's reader raises for a form that it cannot read."""
# Two of them are warnings, which would quote the client on the terminal.
for _warning in (BadContentDispositionHeader, BadContentDispositionParam):
    warnings.simplefilter("error", _warning)


class Form(msgspec.Struct):
    """What a form has beside the bytes of its file."""

    name: str = ""
    media_type: str = ""
    has_file: bool = False
    fields: dict[str, str] = {}


def check_form(request: web.Request, files: Files) -> None:
    """Checks what the headers say of the form, before anything is received."""
    if request.content_type != FORM:
        raise bad_request(f"Send the file as the field 'file' of a form (`Content-Type: {FORM}`).", "file")
    if coding_of(request.headers.getall("Content-Encoding", [])) is not None:
        raise Fault.of(FaultKind.UNSUPPORTED_MEDIA_TYPE, "Send the form without a Content-Encoding.")
    files.check_size((request.content_length or 0) - FORM_BYTES)


async def receive_form(request: web.Request, receiving: Receiving) -> Form:
    """Returns a form; its file is written to `receiving`."""
    form = Form()
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            await let_body_come(request)
            async for part in _parts(request):
                await _read_part(part, form, receiving)
    except TimeoutError:
        raise bad_request(f"The form was not received within {UPLOAD_SECONDS:g} s.") from None
    if not form.has_file:
        raise missing_parameter("file")
    return form


async def _parts(request: web.Request) -> AsyncIterator[BodyPartReader]:
    reader = await _readable(request.multipart())
    for _ in range(MAX_FIELDS + 1):
        part = await _readable(reader.next())
        if part is None:
            return
        if not isinstance(part, BodyPartReader) or not part.name:
            raise _unreadable("a part of it has no name, or is itself a form")
        if part.headers.get("Content-Transfer-Encoding", "binary").lower() not in ("binary", "8bit", "7bit"):
            raise _unreadable("a part of it has a Content-Transfer-Encoding")
        yield part
    raise bad_request(f"The form has more than {MAX_FIELDS} fields.")


async def _read_part(part: BodyPartReader, form: Form, receiving: Receiving) -> None:
    name = part.name or ""
    if name == "file":
        if form.has_file:
            raise bad_request("The form has two files. Send one at a time.", "file")
        form.has_file = True
        form.name, form.media_type = _name_and_type(part)
        while chunk := await _readable(part.read_chunk(CHUNK_BYTES)):
            await receiving.write(chunk)
        return
    if name in form.fields:
        field = excerpt(name)
        raise bad_request(f"Invalid '{field}': the form has it twice. Send it once.", field)
    value = bytearray()
    while chunk := await _readable(part.read_chunk(CHUNK_BYTES)):
        value += chunk
        if len(value) > MAX_FIELD_BYTES:
            field = excerpt(name)
            raise bad_request(f"Invalid '{field}': it is longer than {MAX_FIELD_BYTES} bytes.", field)
    form.fields[name] = bytes(value).decode(errors="replace").strip()


def _name_and_type(part: BodyPartReader) -> tuple[str, str]:
    """Returns name and media type of a file; of a path only the name counts."""
    given = (part.filename or "").encode("utf-8", "surrogateescape").decode(errors="replace")
    name = _CONTROL.sub("_", re.split(r"[/\\]", given)[-1])
    if len(name) > MAX_NAME:
        raise bad_request(f"The name of the file is longer than {MAX_NAME} characters.", "file")
    named = part.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    media_type = named if _MEDIA_TYPE.fullmatch(named) else _ANY_TYPE
    if media_type == _ANY_TYPE:
        media_type = mimetypes.guess_type(name)[0] or _ANY_TYPE
    return name or f"unnamed{mimetypes.guess_extension(media_type) or ''}", media_type


async def _readable(step: Awaitable[T]) -> T:
    try:
        return await step
    except _UNREADABLE:
        raise _unreadable("it ends too early, or its boundaries or headers are wrong") from None


def _unreadable(why: str) -> Fault:
    return bad_request(f"The request body is no form that can be read ({FORM}): {why}.")
