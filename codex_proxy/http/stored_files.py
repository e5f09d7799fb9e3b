"""Puts uploaded files into the bodies that name them (`surfaces.requests.stored_files`). With its files a body has the
limits of one in which its client has sent them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.media import GivenFile
from codex_proxy.http.app_keys import FILE_SOURCE
from codex_proxy.http.middleware.access import FORM
from codex_proxy.http.middleware.request_context import OWNER
from codex_proxy.surfaces.requests.stored_files import named_files, with_files

READ_ON_LOOP: Final = 512 << 10
"""Maximum bytes of a body that is read on the event loop."""
MAX_FILES: Final = 1_000
"""Maximum files that a body may name."""
SENT_AS: Final = web.RequestKey("sent_as", dict[str, str])
"""The fields of files' ids, by the fields into which their contents were put."""
_BASE64: Final = 4 / 3


async def with_stored_files(request: web.Request, body: bytes, grow_to: Callable[[int], None]) -> bytes:
    """Returns a body that has `MARK`, with the files that it names, and notes their fields in `request[SENT_AS]`.
    `grow_to` counts its bytes. Raises `Fault`
    REQUEST_TOO_LARGE with files that are too large or too many, what `grow_to` raises, and if the body is no JSON
    object.
    """
    source = request.app.get(FILE_SOURCE)
    if source is None or request.content_type == FORM:
        return body
    named = await beside_the_loop(partial(named_files, body), long=len(body) > READ_ON_LOOP)
    if len(named) > MAX_FILES:
        message = (
            f"The request names {len(named)} files. One may have at most {MAX_FILES}: send some in another."
        )
        raise Fault.of(FaultKind.REQUEST_TOO_LARGE, message)
    files: dict[str, GivenFile] = {}
    size = len(body)
    for id, times in named.items():
        left = max(0, request.client_max_size - size)
        file = await source.load(request[OWNER], id, int(left / _BASE64 / times))
        if file is not None:
            files[id] = file
            size += int(len(file.data) * _BASE64) * times
            grow_to(size)
    if not files:
        return body
    body, request[SENT_AS] = await beside_the_loop(partial(with_files, body, files), long=size > READ_ON_LOOP)
    return body


def as_sent(request: web.Request, fault: Fault) -> Fault:
    """Returns a refusal of a file's content with the field that the client has sent: the file's id."""
    sent = request.get(SENT_AS, {}).get(fault.failure.param or "")
    return fault if sent is None else Fault(replace(fault.failure, param=sent))
