"""Logs the contents of requests and answers. Recognised keys are masked, images left out, long texts cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, Protocol

import structlog
from aiohttp import web

from codex_proxy.core.safety import MIN_SECRET_CHARS
from codex_proxy.http.endpoint import OPEN_PATHS, Handler
from codex_proxy.http.middleware.access import keys_in

log = structlog.get_logger("codex_proxy.http")


class ContentLog(Protocol):
    def __call__(self, what: Literal["request", "answer"], data: bytes) -> None: ...


CONTENT_LOG: Final = web.RequestKey("content_log", ContentLog)
"""Gets the request's content; set only if it is logged or recorded."""

MAX_CHARS: Final = 16_384
MASK: Final = "***"

_NAMES: Final = (
    r"authorization|proxy-authorization|cookie|[\w-]*api[_-]?key|[\w-]*token|[\w-]*secret|password|passwd"
)
# In JSON, also in JSON that is a string of JSON: there every quote has so many backslashes in front, and those inside
# of the value have more. It begins at a quote: at a backslash, it would look through a run of them from each place.
_VALUE: Final = re.compile(rf'("(?:{_NAMES})(\\*)"\s*:\s*\2").*?((?<!\\)\2"|\Z)', re.IGNORECASE | re.DOTALL)
# An MCP server's own headers, or variables: each value may be a secret, whatever its name. Every alternative begins
# with another character and is never tried again, so that the cost is linear.
_SECRETS: Final = re.compile(
    r'("(?:headers|http_headers|env)"\s*:\s*)\{(?>"(?:[^"\\]|\\.)*+(?:"|\Z)|[^"}])*+(?:\}|\Z)',
    re.IGNORECASE | re.DOTALL,
)
_SECRETS_IN_STRING: Final = re.compile(
    r'("(?:headers|http_headers|env)(\\+)"\s*:\s*)\{[^}]*(?:\}|\Z)', re.IGNORECASE
)
_BEARER: Final = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{4,}", re.IGNORECASE)
_KEY: Final = re.compile(r"\b(?:sk|rk|pk|ghp|gho|xox[abp])[-_][\w-]{8,}")
_IMAGE: Final = re.compile(r"(data:[\w/+.-]{0,80};base64,)[\w+/=-]{64,}")
_IMAGE_BEGINS: Final = "data:"


def mask_secrets(text: str, keys: Sequence[str] = ()) -> str:
    """Returns the text without images and keys, cut to `MAX_CHARS`."""
    text, left = _without_images(text, 2 * MAX_CHARS)  # a key that begins within the line is seen to its end
    whole = len(text) + left
    for key in sorted(keys, key=len, reverse=True):  # one may be a part of the other
        if len(key) >= MIN_SECRET_CHARS:
            text = text.replace(key, MASK)
    text = _VALUE.sub(rf"\1{MASK}\3", text)
    text = _SECRETS.sub(rf'\1"{MASK}"', text)
    text = _SECRETS_IN_STRING.sub(rf'\1\2"{MASK}\2"', text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _KEY.sub(MASK, text)
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}... ({whole - MAX_CHARS} more)"


def _without_images(text: str, limit: int) -> tuple[str, int]:
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
    """Logs whole answers, and sets `request[CONTENT_LOG]` for bodies, streams and frames; not for paths without a
    key.
    """
    if request.path in request.app[OPEN_PATHS]:
        return await handler(request)
    write = _content_log(keys_in(request))
    watch_contents(request, write)
    response = await handler(request)
    if isinstance(response, web.Response) and isinstance(response.body, bytes):
        write("answer", response.body)
    return response


def watch_contents(request: web.Request, observer: ContentLog) -> None:
    """Passes bodies and frames of a request and its answer also to `observer`."""
    before = request.get(CONTENT_LOG)

    def both(what: Literal["request", "answer"], data: bytes) -> None:
        if before is not None:
            before(what, data)
        observer(what, data)

    request[CONTENT_LOG] = observer if before is None else both


def _content_log(keys: Sequence[str]) -> ContentLog:
    def write(what: Literal["request", "answer"], data: bytes) -> None:
        log.info("content", of=what, said=mask_secrets(data.decode("utf-8", "replace"), keys))

    return write
