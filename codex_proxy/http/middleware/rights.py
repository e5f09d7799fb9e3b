"""Ends a request when its key is no longer valid, however long its answer would last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from aiohttp import web

from codex_proxy.admission.clients import HeldRights
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.http.middleware.request_context import CLIENT

ABORT_SECONDS: Final = 0.2
"""Seconds for the last bytes of an answer whose key is no longer valid; then its connection is closed."""

RIGHTS: Final = web.AppKey("rights", HeldRights)


class RequestRight:
    """The right to a request's answer. If it is lost, the request's task is cancelled; a `with` of this raises the
    `Fault` INVALID_API_KEY in place of that cancellation.
    """

    def __init__(self, request: web.Request) -> None:
        self._task = asyncio.current_task()
        self._transport = request.transport
        self._failure: Failure | None = None
        self._abort: asyncio.TimerHandle | None = None
        self._give_up = request.app[RIGHTS].hold(request[CLIENT], self._on_lost)

    def _on_lost(self, failure: Failure) -> None:
        assert self._task is not None, "a request has a task"
        self._failure = failure
        self._task.cancel()
        if self._transport is not None:
            self._abort = self._task.get_loop().call_later(ABORT_SECONDS, self._transport.abort)

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._failure is None or not isinstance(error, asyncio.CancelledError) or self._task is None:
            return
        failure, self._failure = self._failure, None
        if not self._task.uncancel():  # else somebody else has cancelled it, too
            raise Fault(failure) from None

    def release(self) -> None:
        self._give_up()
        if self._abort is not None:
            self._abort.cancel()
        self._task = self._transport = None  # the task holds the request, and the request this


RIGHT: Final = web.RequestKey("right", RequestRight)
"""Not set for paths that need no key."""


@contextmanager
def hold_right(request: web.Request) -> Iterator[None]:
    """Ends the request with the `Fault` INVALID_API_KEY as soon as its key is no longer valid."""
    if CLIENT not in request:
        yield
        return
    right = request[RIGHT] = RequestRight(request)
    try:
        with right:
            yield
    finally:
        right.release()
