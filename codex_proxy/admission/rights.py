"""Ends what a client's key has permitted once that key is no longer valid: long answers, turns in the background. A
new key of the same name is another key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from codex_proxy.admission.clients import Client, Clients
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.keys import KeySet
from codex_proxy.core.own_errors import release_all

LOOK_SECONDS: Final = 0.2
"""Seconds between two looks for changed keys, while a right is held."""

OnLost: TypeAlias = Callable[[Failure], None]


class HeldRights:
    """The rights on which something depends that goes on."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._held: dict[object, tuple[Client, OnLost]] = {}
        self._checked: KeySet | None = None
        """The keys by which all rights were checked last."""
        self._looking = False

    def hold(self, client: Client, on_lost: OnLost) -> Callable[[], object]:
        """Calls `on_lost`, once, if requests of the client's key would be refused from now on; until the returned
        function is called.
        """
        mark = object()
        self._held[mark] = (client, on_lost)
        if not self._looking:
            self._look_later()
        return partial(self._held.pop, mark, None)

    def _look_later(self) -> None:
        self._looking = True
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = False
        if not self._held:
            return
        self._look_later()
        keys = self._clients.keys
        if keys is not self._checked:
            self._checked = keys
            release_all(*self._lost())

    def _lost(self) -> Sequence[Callable[[], None]]:
        found: dict[str, Failure | None] = {}
        lost = []
        for mark, (client, on_lost) in list(self._held.items()):
            if client.digest not in found:
                found[client.digest] = self._failure_of(client)
            failure = found[client.digest]
            if failure is not None:
                del self._held[mark]
                lost.append(partial(on_lost, failure))
        return lost

    def _failure_of(self, client: Client) -> Failure | None:
        try:
            self._clients.renew(client)
        except Fault as fault:
            return fault.failure
        return None
