"""Checks whether the store can be written, and converts its errors to faults. The error itself is only logged, because
it contains paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.interfaces import Clock
from codex_proxy.store.store import Store
from codex_proxy.store.values import NotStored, StoreConflict, StoreDamaged, StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

FRESH_SECONDS: Final = 5.0
"""Seconds for which a successful check is reused, because supervisors poll."""
FRESH_TROUBLE_SECONDS: Final = 1.0
"""Seconds for which a failed check is reused."""
ANSWER_SECONDS: Final = 2.0
"""Seconds after which a check counts as failed."""


class WriteCheck:
    """Tells whether the store can be written, by a write that is made at most every few seconds. Simultaneous callers
    share one check.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._writable = True
        self._good_until = clock.monotonic()
        self._check: asyncio.Task[None] | None = None

    async def is_writable(self) -> bool:
        if self._clock.monotonic() >= self._good_until:
            if self._check is None or self._check.done():
                self._check = asyncio.get_running_loop().create_task(self._check_store())
            done, _ = await asyncio.wait({self._check}, timeout=ANSWER_SECONDS)
            if not done:
                self._set_result("it does not answer")
        return self._writable

    async def _check_store(self) -> None:
        try:
            await self._store.check_writable()
        except StoreError as error:
            self._set_result(str(error))
        except Exception:
            log.exception("store_not_checked")
            self._set_result("its check has failed")
        else:
            self._set_result(None)

    def _set_result(self, trouble: str | None) -> None:
        if trouble is not None and self._writable:
            log.error("store_takes_no_writes", reason=trouble)
        elif trouble is None and not self._writable:
            log.info("store_takes_writes_again")
        self._writable = trouble is None
        fresh = FRESH_SECONDS if trouble is None else FRESH_TROUBLE_SECONDS
        self._good_until = self._clock.monotonic() + fresh


UNAVAILABLE = Failure(
    FaultKind.UNAVAILABLE,
    "The store cannot be read or written at the moment (its disk is full, another process has "
    "locked it, or its database cannot be reached). The server's log says why. Try again. Answers that are not stored "
    "(Responses with 'store': false, Chat, Messages) are given meanwhile.",
)
DAMAGED = Failure(
    FaultKind.INTERNAL,
    "Its stored data is damaged and cannot be returned. The server's log names it; the "
    "operator can list all damaged data with `codex-proxy store check`.",
    code="store_damaged",
)
TURN_LOST = Failure(
    FaultKind.UNAVAILABLE,
    "This server was stopped for so long that another one has continued the conversation meanwhile. This answer does "
    "not know that turn, so it is not stored. Send the request again.",
)
STORE_OFF = Failure(
    FaultKind.INVALID_REQUEST,
    "This server keeps no responses and no conversations (PROXY_STORE=off).",
    code="store_disabled",
)


@contextmanager
def store_errors_as_faults() -> Iterator[None]:
    """Logs `StoreUnavailable` and `StoreDamaged` and raises a `Fault` UNAVAILABLE or INTERNAL instead."""
    try:
        yield
    except StoreDamaged as error:
        log.error("store_damaged", reason=str(error))
        raise Fault(DAMAGED) from error
    except StoreUnavailable as error:
        log.error("store_unavailable", reason=str(error))
        raise Fault(UNAVAILABLE) from error


def require_store(store: Store | None) -> Store:
    """Returns the store. Raises `Fault` INVALID_REQUEST if the server runs without one."""
    if store is None:
        raise Fault(STORE_OFF)
    return store


def failure_of(error: StoreError) -> Failure:
    """Logs why a response could not be saved, and returns the failure with which it ends: NOT_FOUND if what it
    continues was deleted, INTERNAL if stored data is damaged or contradicts it, else UNAVAILABLE, also if another
    server has continued the conversation.
    """
    log.error("not_saved", reason=str(error))
    if isinstance(error, NotStored):
        message = (
            f"The {error.kind} that this response continues was deleted before the response was complete."
        )
        return Failure(FaultKind.NOT_FOUND, message)
    if isinstance(error, StoreConflict):
        if error.reason == "turn":
            return TURN_LOST
        return Failure(FaultKind.INTERNAL, "The response conflicts with data that is already stored.")
    return DAMAGED if isinstance(error, StoreDamaged) else UNAVAILABLE
