"""Who is told of every byte that a client sends or gets: nobody, but where the operator wants content in the log."""

from __future__ import annotations

from typing import Literal, Protocol

from aiohttp import web


class Tell(Protocol):
    """Hears of bytes of one request, or of the answer to it."""

    def __call__(self, what: Literal["request", "answer"], data: bytes) -> None: ...


TELL = web.RequestKey("tell", Tell)


def tell(request: web.Request, what: Literal["request", "answer"], data: bytes) -> None:
    """Says what came or goes, to whoever listens on this request."""
    teller = request.get(TELL)
    if teller is not None:
        teller(what, data)
