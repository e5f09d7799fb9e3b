"""Whether a store takes writes just now, for whoever asks often: a supervisor that polls the server's health."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from codex_proxy.core.ids import Clock
from codex_proxy.store.base import Maintenance, StoreUnavailable

log = structlog.get_logger(__name__)

FRESH_SECONDS: Final = 5.0
"""How long the answer that it takes writes is good for: asking often must not keep the disk busy."""
FRESH_TROUBLE_SECONDS: Final = 1.0
"""The same for the answer that it does not: it is well again as soon as there is room."""
ANSWER_SECONDS: Final = 2.0
"""How long a check may take; a store that takes longer takes no writes."""


class WriteCheck:
    """Checks whether the store takes writes. Callers that ask at the same time share one check."""

    def __init__(self, store: Maintenance, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._writable = True
        self._good_until = clock.monotonic()
        self._check: asyncio.Task[None] | None = None

    async def is_writable(self) -> bool:
        """Whether the store takes writes now, or did within the last seconds."""
        if self._clock.monotonic() >= self._good_until:
            if self._check is None or self._check.done():
                self._check = asyncio.get_running_loop().create_task(self._look())
            done, _ = await asyncio.wait({self._check}, timeout=ANSWER_SECONDS)
            if not done:
                self._found("it does not answer")
        return self._writable

    async def _look(self) -> None:
        try:
            await self._store.check_writable()
        except StoreUnavailable as error:
            self._found(str(error))
        else:
            self._found(None)

    def _found(self, trouble: str | None) -> None:
        if trouble is not None and self._writable:
            log.error("store_takes_no_writes", reason=trouble)
        elif trouble is None and not self._writable:
            log.info("store_takes_writes_again")
        self._writable = trouble is None
        fresh = FRESH_SECONDS if trouble is None else FRESH_TROUBLE_SECONDS
        self._good_until = self._clock.monotonic() + fresh
