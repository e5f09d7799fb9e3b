"""A server among others: one worker of several, or one of the servers of a store, with which it keeps keys and limits
in step; and `GET /v1/cluster`, which lists them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Final, Literal, TypedDict

import structlog
from aiohttp import web

from codex_proxy import __version__
from codex_proxy.admission.clients import Clients
from codex_proxy.app.keyring import Keyring
from codex_proxy.app.server_parts import ServerPart, ServerParts
from codex_proxy.core.checks import Check, failed_check
from codex_proxy.core.faults import Fault, UserError
from codex_proxy.core.own_errors import repeat
from codex_proxy.http.app_keys import CLIENTS, CLOCK, RESPONSES
from codex_proxy.http.body import BODY_BUDGET, ByteBudget, body_budget
from codex_proxy.http.endpoint import Endpoint, json_response
from codex_proxy.http.metrics import METER
from codex_proxy.http.middleware.rate_limit import REQUEST_LIMITS, RequestLimits
from codex_proxy.http.server_info import NODE_NAME
from codex_proxy.parts import own_settings
from codex_proxy.parts.machines import MachinesSettings
from codex_proxy.parts.machines.supervisor import answer_supervisor
from codex_proxy.process.own_process import memory_bytes
from codex_proxy.settings.fields import Settings
from codex_proxy.store.health import require_store, store_errors_as_faults
from codex_proxy.store.team import Team
from codex_proxy.store.values import StoreUnavailable
from codex_proxy.surfaces.answers.renderer import Count


class ClusterNode(TypedDict):
    """A server process. `seen_at` is when it last renewed its leases, and `lag` how many seconds ago; it is no longer
    listed when its leases have run out. `responses` counts the background responses that it runs.
    """

    object: Literal["cluster.node"]
    id: str
    name: str
    url: str
    version: str
    started_at: float
    seen_at: float
    lag: float
    responses: Count


class Cluster(TypedDict):
    """The processes that share the store, oldest first. `name` and `version` are those of the process that answers
    this request; `store_seconds` is how long the store took to answer that process.
    """

    object: Literal["cluster"]
    name: str
    version: str
    store_seconds: float
    data: list[ClusterNode]


async def retrieve_cluster(request: web.Request) -> web.Response:
    """Returns the server processes that share the store.

    Raises `Fault` INVALID_REQUEST without a store, and UNAVAILABLE if it cannot be read.
    """
    clock, store = request.app[CLOCK], require_store(request.app[RESPONSES].store)
    asked = clock.monotonic()
    with store_errors_as_faults():
        nodes = await store.leases.nodes()
    now = clock.epoch()
    body: Cluster = {
        "object": "cluster",
        "name": request.app[NODE_NAME],
        "version": __version__,
        "store_seconds": round(clock.monotonic() - asked, 6),
        "data": [
            {
                "object": "cluster.node",
                "id": node.id,
                "name": node.name,
                "url": node.url,
                "version": node.version,
                "started_at": node.started,
                "seen_at": node.seen,
                "lag": round(max(0.0, now - node.seen), 3),
                "responses": node.responses,
            }
            for node in nodes
        ],
    }
    return json_response(body)


ENDPOINTS: Final = (
    Endpoint(
        "GET /cluster",
        retrieve_cluster,
        Cluster,
        chapter="The server itself",
        kind="stored",
        description="Details: docs/machines.md.",
    ),
)


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

    async def run(self, _: web.Application) -> AsyncIterator[None]:
        """For `Application.cleanup_ctx`: reads the stored keys, then goes on with it. Raises `UserError`."""
        try:
            await self._exchange()
        except StoreUnavailable as error:
            raise UserError(str(error)) from error
        after = partial(asyncio.sleep, EXCHANGE_SECONDS)
        task = asyncio.create_task(repeat(self._try_to_exchange, after=after, failed="team_not_reached"))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

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


class ServerAmongOthers(ServerPart):
    def __init__(self, workers: int) -> None:
        """`workers`: how many processes share the port."""
        self._workers = workers

    async def start(self, server: ServerParts) -> None:
        self._server = server

    def add_to(self, app: web.Application) -> None:
        server = self._server
        if self._workers > 1:
            app[BODY_BUDGET] = ByteBudget(*body_budget(memory_bytes() // self._workers))
        if server.worker and METER in app:
            # Imported here, since most servers have no metrics.
            from codex_proxy.parts.machines.worker_metrics import WorkerMetrics

            of_all = WorkerMetrics(app[METER], server.worker, supervisor=os.getppid())
            app.cleanup_ctx.append(of_all.share)
            app[METER] = of_all.exposition
        store = None if server.store_lifecycle is None else server.store_lifecycle.store
        if store is not None and store.team is not None:
            sync = TeamSync(store.team, server.keyring, app[CLIENTS], app[REQUEST_LIMITS])
            app.cleanup_ctx.append(sync.run)

    def serving(self, stop_wanted: asyncio.Event) -> None:
        if self._server.worker:
            answer_supervisor(stop_wanted)

    def banner(self) -> list[str]:
        return [f"  workers    {self._workers} processes"] if self._workers > 1 else []


def server_part(settings: Settings, _environ: Mapping[str, str]) -> ServerPart | None:
    """Returns what makes a server one among others, or None for one that is alone. Raises `UserError` if its workers
    cannot share the store.
    """
    if wrong := store_of_one_process(settings):
        raise UserError(wrong)
    workers = own_settings(settings, MachinesSettings).workers
    return ServerAmongOthers(workers) if workers > 1 or settings.in_database else None


async def checks(settings: Settings, _environ: Mapping[str, str]) -> list[Check]:
    """Returns a failed check if the workers cannot share the store."""
    wrong = store_of_one_process(settings)
    return [failed_check("workers", wrong)] if wrong else []


def store_of_one_process(settings: Settings) -> str:
    """Returns why workers cannot share the store; empty if they can, or there is one."""
    workers = own_settings(settings, MachinesSettings).workers
    if workers == 1 or settings.in_database or settings.store == "off":
        return ""
    return (
        f"--workers {workers}: a store in {'a file' if settings.in_file else 'memory'} belongs to one process, and the "
        "others would not know its responses. Set PROXY_STORE=postgresql://... (docs/machines.md), or PROXY_STORE=off "
        "to store nothing."
    )
