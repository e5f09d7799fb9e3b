"""Keeps keys and limits in step with the other servers of the store."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import structlog

from codex_proxy.admission.clients import Clients
from codex_proxy.app.keyring import Keyring
from codex_proxy.core.faults import Fault
from codex_proxy.core.own_errors import repeat
from codex_proxy.http.middleware.rate_limit import RequestLimits
from codex_proxy.store.team import Team
from codex_proxy.store.values import StoreUnavailable

EXCHANGE_SECONDS: Final = 0.5
"""Seconds between two exchanges: a removed key is accepted for this long."""

log = structlog.get_logger(__name__)


class TeamSync:
    """Exchanges the requests of each key, and reads stored keys when they change. Without the store, the last keys stay
    valid, and each server counts alone.
    """

    def __init__(self, team: Team, keyring: Keyring, clients: Clients, limits: RequestLimits) -> None:
        self._team = team
        self._keyring = keyring
        self._clients = clients
        self._limits = limits
        self._version = 0
        """The version of the stored keys that are valid here."""
        self._failed = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads the stored keys, then starts the task. Raises `StoreUnavailable`."""
        await self._exchange()
        self._task = asyncio.get_running_loop().create_task(
            repeat(
                self._try_to_exchange,
                after=partial(asyncio.sleep, EXCHANGE_SECONDS),
                failed="team_not_reached",
            )
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _try_to_exchange(self) -> None:
        try:
            await self._exchange()
        except StoreUnavailable as error:
            if not self._failed:
                log.warning("team_not_reached", reason=str(error))
            self._failed = True
        else:
            self._failed = False

    async def _exchange(self) -> None:
        found = await self._team.exchange(self._limits.report())
        if found.version != self._version:
            keys = await self._team.keys()
            self._keyring.use_stored(keys)
            self._version = found.version
            log.info("keys_read", count=len(keys))
        self._limits.count_elsewhere(found.others, self._rpm_of)

    def _rpm_of(self, name: str) -> int:
        try:
            return self._clients.by_name(name).rpm
        except Fault:  # the key was removed
            return 0
