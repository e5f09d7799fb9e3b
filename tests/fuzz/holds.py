"""What holds up the event loop of a server under test: the callback that took the most CPU time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextvars import Token
from typing import Any

import structlog

from tests.cpu_time import cpu_seconds

MAX_HOLD_SECONDS = 0.1
"""CPU time of one callback of the server's event loop: as long nobody else is served."""


class Holds:
    """Which callback held the loop of a thread longest. A busy machine, a wait for the interpreter and a collection of
    the tests' garbage make none longer. `who` names those alone that took too long."""

    def __init__(self) -> None:
        self.thread = 0
        self.longest = 0.0
        self.who = ""
        self._run = asyncio.Handle._run
        self._bind = structlog.contextvars.bind_contextvars
        self._bound: dict[str, object] = {}

    def forget(self) -> None:
        """Begins anew."""
        self.longest, self.who = 0.0, ""

    def __enter__(self) -> Holds:
        holds, run = self, self._run

        def timed(handle: asyncio.Handle) -> None:
            if threading.get_ident() != holds.thread:
                return run(handle)
            holds._bound.clear()
            began = cpu_seconds()
            run(handle)
            took = cpu_seconds() - began
            if took > holds.longest:
                holds.longest = took
                holds.who = holds._name_of(handle) if took > MAX_HOLD_SECONDS else ""
            return None

        def bound(**values: object) -> Mapping[str, Token[Any]]:
            if threading.get_ident() == holds.thread:
                holds._bound |= values
            return holds._bind(**values)

        asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
        structlog.contextvars.bind_contextvars = bound
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]
        structlog.contextvars.bind_contextvars = self._bind

    def _name_of(self, handle: asyncio.Handle) -> str:
        """The callback, and what is logged with each line of it: of a request its `req_id`. Since Python 3.12 a handler
        may begin in the callback of its connection, whose context does not know the request."""
        context = handle._context  # type: ignore[attr-defined]  # a task's callback does not say whose it is
        logged = {variable.name: value for variable, value in context.items() if "structlog" in variable.name}
        return f"{handle!r:.300} {logged | self._bound}"
