"""Logs the contents of requests and answers, if the operator has switched this on (`log_content`) to find the
cause of an error.

Writes log events named `content` with the request's id. Keys are masked as far as they can be recognised: the
client's own key, and the values of fields in which clients put keys. Images are left out, and long texts are
cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, Protocol

import structlog
from aiohttp import web

from codex_proxy.http.endpoint import OPEN_PATHS, Handler
from codex_proxy.http.middleware.access import keys_in

log = structlog.get_logger("codex_proxy.http")


class ContentLog(Protocol):
    """The interface of the function that logs the bytes `data` of a request, or of the answer to it, as `what`
    says.
    """

    def __call__(self, what: Literal["request", "answer"], data: bytes) -> None: ...


CONTENT_LOG: Final = web.RequestKey("content_log", ContentLog)
"""The function that logs the content of a request. Set only if its content is logged."""

MAX_CHARS: Final = 16_384
"""The most characters of one line in the log."""
MASK: Final = "***"

_NAMES: Final = (
    r"authorization|proxy-authorization|cookie|[\w-]*api[_-]?key|[\w-]*token|[\w-]*secret|password|passwd"
)
# In JSON, also in JSON that is a string of JSON: there every quote has so many backslashes in front, and those inside
# of the value have more. It begins at a quote: at a backslash, it would look through a run of them from each place.
_VALUE: Final = re.compile(rf'("(?:{_NAMES})(\\*)"\s*:\s*\2").*?((?<!\\)\2"|\Z)', re.IGNORECASE | re.DOTALL)
_BEARER: Final = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{4,}", re.IGNORECASE)
_KEY: Final = re.compile(r"\b(?:sk|rk|pk|ghp|gho|xox[abp])[-_][\w-]{8,}")
_IMAGE: Final = re.compile(r"(data:[\w/+.-]{0,80};base64,)[\w+/=-]{64,}")
_IMAGE_BEGINS: Final = "data:"


def masked(text: str, keys: Sequence[str] = ()) -> str:
    """Returns the text without images and cut to `MAX_CHARS`. The `keys`, and other texts that look like keys, are
    masked.
    """
    text, left = _without_images(text, 2 * MAX_CHARS)  # a key that begins within the line is seen to its end
    whole = len(text) + left
    for key in sorted(keys, key=len, reverse=True):  # one may be a part of the other
        text = text.replace(key, MASK)
    text = _VALUE.sub(rf"\1{MASK}\3", text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _KEY.sub(MASK, text)
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}... ({whole - MAX_CHARS} more)"


def _without_images(text: str, limit: int) -> tuple[str, int]:
    """Removes the base64 of images from the text, and returns the first `limit` characters of the result, and how
    many characters of the original text come after those. The rest of the text is not searched.
    """
    kept: list[str] = []
    size = end = 0
    while (start := text.find(_IMAGE_BEGINS, end, end + limit - size)) >= 0:
        image = _IMAGE.match(text, start)
        piece = text[end:start] + (_IMAGE_BEGINS if image is None else f"{image[1]}...")
        end = start + len(_IMAGE_BEGINS) if image is None else image.end()
        kept.append(piece)
        size += len(piece)
    rest = text[end : end + max(limit - size, 0)]
    return "".join([*kept, rest]), len(text) - end - len(rest)


@web.middleware
async def log_contents(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Sets `request[CONTENT_LOG]`, and logs the answer if it is a whole body. The code that reads request bodies,
    and the code that writes streams and WebSocket frames, log these with `request[CONTENT_LOG]`. Does nothing for
    paths that need no key.

    This middleware runs before those that refuse requests, so that their answers are logged, too.
    """
    if request.path in request.app[OPEN_PATHS]:
        return await handler(request)
    write = request[CONTENT_LOG] = _content_log(keys_in(request))
    response = await handler(request)
    if isinstance(response, web.Response) and isinstance(response.body, bytes):
        write("answer", response.body)
    return response


def _content_log(keys: Sequence[str]) -> ContentLog:
    def write(what: Literal["request", "answer"], data: bytes) -> None:
        log.info("content", of=what, said=masked(data.decode("utf-8", "replace"), keys))

    return write
