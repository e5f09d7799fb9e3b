"""Several servers with one store, in PostgreSQL, and several processes of one server."""

from typing import Final

from pydantic import BaseModel, Field

from codex_proxy.parts import Flag, Part

_POSTGRESQL: Final = "codex_proxy.parts.machines.postgresql.store:PostgresStore"


class MachinesSettings(BaseModel):
    workers: int = Field(
        1,
        ge=1,
        le=256,
        description="number of processes that share the port; more than one needs a shared store (docs/machines.md)",
    )


PART: Final = Part(
    name="machines",
    page="machines.md",
    settings="codex_proxy.parts.machines:MachinesSettings",
    flags=(Flag("workers", "workers", "N"),),
    stores={"postgresql": _POSTGRESQL, "postgres": _POSTGRESQL},
    serve="codex_proxy.parts.machines.supervisor:serve",
    endpoints="codex_proxy.parts.machines.cluster:ENDPOINTS",
    checks="codex_proxy.parts.machines.server_part:checks",
    server="codex_proxy.parts.machines.server_part:server_part",
)
