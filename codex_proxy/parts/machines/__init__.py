"""Several servers with one store, in PostgreSQL, and several processes of one server."""

from collections.abc import Callable
from typing import Any, Final

import click
from pydantic import BaseModel, Field

from codex_proxy.parts import Flag, Part

_POSTGRESQL: Final = "codex_proxy.parts.machines.postgresql.store:PostgresStore"


class MachinesSettings(BaseModel, defer_build=True):
    workers: int = Field(
        1,
        ge=1,
        le=256,
        description="number of processes that share the port; more than one needs a shared store (docs/machines.md)",
    )


def commands(say: Callable[..., None], settings_option: Callable[..., Any]) -> list[click.Command]:
    """Returns the command. `say` prints a text."""

    @click.command(name="store copy")
    @settings_option
    @click.argument("source", metavar="FROM")
    @click.argument("target", metavar="TO")
    def store_copy(source: str, target: str, settings: Any) -> None:
        """Copy everything from one store into another.

        FROM and TO are files or postgresql:// URLs that no server uses. A copy that was interrupted goes on if the
        command is repeated.
        """
        import asyncio

        from codex_proxy.parts.machines.store_copy import copy_store

        def tell(table: str, count: int) -> None:
            say(f"{table}: {count} rows", err=True)

        say(asyncio.run(copy_store(settings, source, target, tell)))

    return [store_copy]


PART: Final = Part(
    name="machines",
    page="machines.md",
    settings="codex_proxy.parts.machines:MachinesSettings",
    flags=(Flag("workers", "workers", "N"),),
    stores={"postgresql": _POSTGRESQL, "postgres": _POSTGRESQL},
    extra="postgres",
    commands="codex_proxy.parts.machines:commands",
    serve="codex_proxy.parts.machines.supervisor:serve",
    endpoints="codex_proxy.parts.machines.server_part:ENDPOINTS",
    checks="codex_proxy.parts.machines.server_part:checks",
    server="codex_proxy.parts.machines.server_part:server_part",
)
