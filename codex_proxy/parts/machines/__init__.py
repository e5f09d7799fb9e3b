"""Several servers with one store, in PostgreSQL."""

from typing import Final

from codex_proxy.parts import Part

_POSTGRESQL: Final = "codex_proxy.parts.machines.postgresql.store:PostgresStore"

PART: Final = Part(
    name="machines",
    page="machines.md",
    stores={"postgresql": _POSTGRESQL, "postgres": _POSTGRESQL},
    server="codex_proxy.parts.machines.server_part:server_part",
)
