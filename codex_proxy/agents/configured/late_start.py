"""Makes and starts values, such as an agent, without ending the server if that fails: the first turn after 30 seconds
tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import structlog

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.interfaces import Clock

log = structlog.get_logger(__name__)

RETRY_START_SECONDS: Final = 30.0

T = TypeVar("T")


class LateStart(Generic[T]):
    def __init__(self, name: str, make: Callable[[], Awaitable[T]], clock: Clock) -> None:
        """`make` returns the value, started, or raises `Fault`."""
        self.value: T | None = None
        self.failure: Failure | None = None
        self._name = name
        self._make = make
        self._clock = clock
        self._failed_at = 0.0
        self._lock = asyncio.Lock()

    async def start(self) -> T:
        """Makes the value, unless it exists. Raises `Fault` if that fails, which is also logged."""
        async with self._lock:
            if self.value is not None:
                return self.value
            try:
                self.value = await self._make()
            except Fault as fault:
                self.failure = fault.failure
            except Exception as error:
                log.exception("agent_internal_error", agent=self._name)
                message = (
                    f"The agent {self._name} cannot start ({type(error).__name__}). The server's log "
                    "has the reason."
                )
                self.failure = Failure(FaultKind.INTERNAL, message)
            else:
                self.failure = None
                return self.value
            self._failed_at = self._clock.monotonic()
            log.warning("agent_not_started", agent=self._name, reason=self.failure.unquoted)
            raise Fault(self.failure)

    async def for_turn(self) -> T:
        """Makes the value, unless it exists or has just failed. Raises `Fault` (UNAVAILABLE)."""
        if self.value is None and self._clock.monotonic() - self._failed_at >= RETRY_START_SECONDS:
            with contextlib.suppress(Fault):
                await self.start()
        if self.value is not None:
            return self.value
        why = "" if self.failure is None else f" {self.failure.message}"
        message = f"The agent {self._name} could not be started.{why}"
        quoted = "" if self.failure is None else self.failure.quoted
        raise Fault(Failure(FaultKind.UNAVAILABLE, message, retry_after=RETRY_START_SECONDS, quoted=quoted))
