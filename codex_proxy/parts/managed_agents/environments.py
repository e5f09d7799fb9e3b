"""Environments of the Managed Agents API: names for places where sessions work. Every one is this machine (`cloud`):
there is nothing to configure, and what would be is refused. Raises `Fault`. Source: docs/managed-agents.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final, Literal, TypedDict

import msgspec
from msgspec.structs import replace

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.parts.managed_agents import wire
from codex_proxy.parts.managed_agents.pages import optional_time, time_text
from codex_proxy.parts.sessions.commands import patched
from codex_proxy.parts.sessions.records import Kind, WriteOptions
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.store.values import Record
from codex_proxy.surfaces.answers.renderer import Object


class StoredEnvironment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An environment. Times: seconds since 1970."""

    id: str
    name: str
    description: str | None = None
    metadata: dict[str, str] = {}
    created_at: int
    updated_at: int
    archived_at: int | None = None

    def require_active(self) -> None:
        """Raises `Fault` CONFLICT for an archived environment."""
        if self.archived_at is not None:
            message = (
                f"The environment '{self.id}' is archived: it cannot be changed or used. Create another one."
            )
            raise Fault.of(FaultKind.CONFLICT, message)


class NamedEnvironment(msgspec.Struct, frozen=True):
    """The id of the environment that was last given a name. It has the name unless it is gone, archived or renamed."""

    id: str


class EnvironmentNames(msgspec.Struct, frozen=True):
    """What a server holds while it gives or takes a name: two that look for one at once would both find it free."""


ENVIRONMENT: Final = Kind("environment", StoredEnvironment, "Environment")
ENVIRONMENT_NAME: Final = Kind("environment_name", NamedEnvironment, "Name")
ENVIRONMENT_NAMES: Final = Kind("environment_names", EnvironmentNames, "Names")
NAMES_ID: Final = "environment names"
"""The id of that record of a key."""


def name_id(name: str) -> str:
    """Returns the id of the record of a name, which no object's id is like."""
    return f"environment name/{name}"


def environment_records(environment: StoredEnvironment) -> list[Record]:
    """Returns the records of an environment, and of its name."""
    created = float(environment.created_at)
    named = msgspec.json.encode(NamedEnvironment(environment.id))
    return [
        Record(
            kind=ENVIRONMENT.name, id=environment.id, json=msgspec.json.encode(environment), created=created
        ),
        Record(kind=ENVIRONMENT_NAME.name, id=name_id(environment.name), json=named, created=created),
    ]


@contextlib.asynccontextmanager
async def holding_names(sessions: Sessions, owner: str) -> AsyncIterator[WriteOptions]:
    """Holds the names of a key's environments, when no other request or server does. Yields the options of a write
    that fails if they are no longer held. Raises `Fault`.
    """
    store, (kind, id) = sessions.store, ENVIRONMENT_NAMES.key(NAMES_ID)
    async with sessions.changing(owner, id):
        if await store.find(owner, ENVIRONMENT_NAMES, id) is None:
            json = msgspec.json.encode(EnvironmentNames())
            await store.write(owner, [Record(kind=kind, id=id, json=json, created=sessions.epoch())])
        async with store.holding(owner, ENVIRONMENT_NAMES, id) as held:
            yield held


def name_taken(name: str) -> Fault:
    message = f"There is an environment with the name '{excerpt(name)}': use it, or choose another name."
    return Fault.of(FaultKind.CONFLICT, message, param="name")


def check_config(config: wire.EnvironmentConfig | None) -> None:
    """Raises `Fault` for what this machine does not give a session."""
    if config is None:
        return
    if isinstance(config, wire.SelfHostedConfig):
        message = (
            'self_hosted environments are not served here; tools run on this machine. Use {"type": "cloud"}.'
        )
        raise refused(message, "config.type")
    if isinstance(config.networking, wire.LimitedNetwork):
        message = "this server cannot limit the network of a session. Use unrestricted."
        raise refused(message, "config.networking")
    if config.packages is not None and config.packages.has_any:
        message = "packages are not installed here; install them on this machine."
        raise refused(message, "config.packages")


def refused(message: str, param: str) -> Fault:
    """Returns the fault of a field for what this server does not have."""
    return bad_request(f"{param}: {message}", param, "unsupported_by_server")


def changed(environment: StoredEnvironment, given: wire.EnvironmentUpdate) -> StoredEnvironment:
    """Returns the environment with the fields that a request has. Raises `Fault`."""
    environment.require_active()
    check_config(given.config)
    if given.name is not None:
        environment = replace(environment, name=given.name)
    if "description" in given.model_fields_set:
        environment = replace(environment, description=given.description)
    # An empty value deletes, too, unlike that of an agent.
    patch = {key: value or None for key, value in (given.metadata or {}).items()}
    return replace(environment, metadata=patched(environment.metadata, patch))


# --- as clients see them ------------------------------------------------------------------------


class EnvironmentObject(TypedDict):
    """An environment. `config` is the same for all."""

    id: str
    type: Literal["environment"]
    name: str
    description: str | None
    config: Object
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    archived_at: str | None


class EnvironmentDeleted(TypedDict):
    id: str
    type: Literal["environment_deleted"]


CONFIG: Final[dict[str, Any]] = {
    "type": "cloud",
    "networking": {"type": "unrestricted"},
    "packages": {"type": "packages", "apt": [], "cargo": [], "gem": [], "go": [], "npm": [], "pip": []},
}


def environment_object(environment: StoredEnvironment) -> EnvironmentObject:
    return {
        "id": environment.id,
        "type": "environment",
        "name": environment.name,
        "description": environment.description,
        "config": CONFIG,
        "metadata": environment.metadata,
        "created_at": time_text(environment.created_at),
        "updated_at": time_text(environment.updated_at),
        "archived_at": optional_time(environment.archived_at),
    }
