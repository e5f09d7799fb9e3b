"""What holds up the event loop of a server under test: the callback that took the most CPU time."""

from __future__ import annotations

import asyncio
import threading

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

    def forget(self) -> None:
        """Begins anew."""
        self.longest, self.who = 0.0, ""

    def __enter__(self) -> Holds:
        holds, run = self, self._run

        def timed(handle: asyncio.Handle) -> None:
            if threading.get_ident() != holds.thread:
                return run(handle)
            began = cpu_seconds()
            run(handle)
            took = cpu_seconds() - began
            if took > holds.longest:
                holds.longest = took
                holds.who = _name_of(handle) if took > MAX_HOLD_SECONDS else ""
            return None

        asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]


def _name_of(handle: asyncio.Handle) -> str:
    """The callback, and what is logged with each line of it: of a request its `req_id`."""
    context = handle._context  # type: ignore[attr-defined]  # a task's callback does not say whose it is
    logged = {variable.name: value for variable, value in context.items() if "structlog" in variable.name}
    return f"{handle!r:.300} {logged}"
