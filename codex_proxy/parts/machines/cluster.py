"""`GET /v1/cluster`: the server processes that share the store."""

from __future__ import annotations

from typing import Final, Literal, TypedDict

from aiohttp import web

from codex_proxy import __version__
from codex_proxy.http.app_keys import CLOCK, RESPONSES
from codex_proxy.http.endpoint import Endpoint, json_response
from codex_proxy.http.server_info import NODE_NAME
from codex_proxy.store.health import require_store, store_errors_as_faults
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
