"""The handlers of agents and environments of the Managed Agents API. They raise `Fault`: INVALID_REQUEST, NOT_FOUND for
what does not exist or is another key's, CONFLICT. Source: docs/managed-agents.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.media import PdfTexts
from codex_proxy.http.body import name_ignored, parse_body, read_body
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.middleware.request_context import OWNER
from codex_proxy.parts.managed_agents import agents, environments, wire
from codex_proxy.parts.managed_agents.documents import with_pdf_texts
from codex_proxy.parts.managed_agents.environments import (
    ENVIRONMENT,
    ENVIRONMENT_NAME,
    EnvironmentDeleted,
    StoredEnvironment,
    environment_object,
    environment_records,
    holding_names,
    name_id,
    name_taken,
)
from codex_proxy.parts.managed_agents.pages import (
    Cursor,
    ObjectPage,
    flag_in,
    list_page,
    page_query,
    time_range,
)
from codex_proxy.parts.managed_agents.serving import check_served
from codex_proxy.parts.sessions.agents import StoredAgent
from codex_proxy.parts.sessions.records import AGENT, AGENT_VERSION, agent_record, not_found, version_id
from codex_proxy.parts.sessions.request_values import id_in
from codex_proxy.parts.sessions.service import SESSIONS, Sessions
from codex_proxy.parts.sessions.versions import change_agent
from codex_proxy.parts.sessions.wire import parse_body_of
from codex_proxy.store.values import PageRequest
from codex_proxy.surfaces.requests.body import RequestModel, integer_in

M = TypeVar("M", bound=RequestModel)
T = TypeVar("T")


async def parse(request: web.Request, model: type[M]) -> M:
    """Returns the body, and names its fields without effect in a header of the answer."""
    return (await parse_with_bytes(request, model))[0]


async def parse_with_bytes(request: web.Request, model: type[M]) -> tuple[M, bytes]:
    """Returns what `parse` does, and the body as it came."""
    body = await read_body(request)

    def parse_with_pdfs(body: bytes, pdfs: PdfTexts | None) -> tuple[M, tuple[str, ...]]:
        given, ignored = parse_body_of(model, body)
        return with_pdf_texts(given, pdfs), ignored

    given, ignored = await parse_body(request, body, parse_with_pdfs)
    name_ignored(request, ignored)
    return given, body


def at(request: web.Request) -> tuple[Sessions, str]:
    """Returns the sessions of the server, and the owner of the request."""
    return request.app[SESSIONS], request[OWNER]


def page_response(data: Sequence[T], next_page: str | None) -> web.Response:
    body: ObjectPage[T] = {"data": list(data), "next_page": next_page}
    return json_response(body)


# --- agents -------------------------------------------------------------------------------------


async def create_managed_agent(request: web.Request) -> web.Response:
    """Saves an agent, as version 1."""
    sessions, owner = at(request)
    store = sessions.store  # without one the body is not read
    given = await parse(request, wire.ManagedAgentBody)
    settings = agents.settings_of(given, None)
    check_served(sessions, owner, settings)
    now = sessions.now()
    agent = StoredAgent(
        id=sessions.new_id("agent_"),
        settings=settings,
        created_at=now,
        updated_at=now,
        metadata=given.metadata or {},
    )
    await store.write(owner, [agent_record(agent)])
    return json_response(agents.agent_object(agent))


async def list_managed_agents(request: web.Request) -> web.Response:
    """Lists the agents, newest first."""
    sessions, owner = at(request)
    archived, made = flag_in(request.query, "include_archived"), time_range(request.query)

    def wanted(agent: StoredAgent) -> bool:
        return (archived or agent.archived_at is None) and agent.created_at in made

    found, following = await list_page(sessions.store, owner, AGENT, page_query(request.query), wanted)
    return page_response([*map(agents.agent_object, found)], following)


async def retrieve_managed_agent(request: web.Request) -> web.Response:
    """Returns an agent, or a version of it."""
    sessions, owner = at(request)
    version = (
        integer_in("version", request.query["version"], 1, 2**31 - 1) if "version" in request.query else None
    )
    return json_response(agents.agent_object(await find_agent(sessions, owner, id_in(request), version)))


async def find_agent(sessions: Sessions, owner: str, id: str, version: int | None = None) -> StoredAgent:
    """Returns an agent; without a `version` the newest. Raises `Fault` NOT_FOUND."""
    agent = await sessions.store.get(owner, AGENT, id)
    if version in (None, agent.version):
        return agent
    found = await sessions.store.find(owner, AGENT_VERSION, version_id(id, version or 0))
    if found is None:
        raise Fault.of(FaultKind.NOT_FOUND, f"The agent '{id}' has no version {version}.", param="version")
    return replace(found, archived_at=agent.archived_at)


async def update_managed_agent(request: web.Request) -> web.Response:
    """Changes an agent, which becomes a new version. Sessions that were created with it keep what they have.

    Lists and objects replace whole ones; null clears a field. `version`: the newest, else it is a 409.
    """
    sessions, owner = at(request)
    given = await parse(request, wire.ManagedAgentUpdate)

    def changed(before: StoredAgent) -> StoredAgent:
        agent = agents.changed(before, given)
        if agent.settings != before.settings:
            check_served(sessions, owner, agent.settings)
        return agent

    return json_response(agents.agent_object(await change_agent(sessions, owner, id_in(request), changed)))


async def archive_managed_agent(request: web.Request) -> web.Response:
    """Archives an agent: it can be read, but not changed or used."""
    sessions, owner = at(request)
    now = sessions.now()
    agent = await change_agent(
        sessions, owner, id_in(request), lambda agent: replace(agent, archived_at=agent.archived_at or now)
    )
    return json_response(agents.agent_object(agent))


async def list_agent_versions(request: web.Request) -> web.Response:
    """Lists the versions of an agent, newest first."""
    sessions, owner = at(request)
    query = page_query(request.query)
    agent = await sessions.store.get(owner, AGENT, id_in(request))
    shown, after = [agent], None
    if query.cursor is not None:  # its id is the version that was shown last
        last = integer_in("page", query.cursor.id, 1, agent.version)
        shown, after = [], version_id(agent.id, last) if last < agent.version else None
    older = await sessions.store.page(
        owner, AGENT_VERSION, PageRequest(query.limit - len(shown), "desc", after), parent=agent.id
    )
    shown += [replace(each, archived_at=agent.archived_at) for each in older.items]
    last_shown = Cursor("desc", str(shown[-1].version), 0.0) if older.has_more else ""
    return page_response([*map(agents.agent_object, shown)], str(last_shown) or None)


# --- environments -------------------------------------------------------------------------------


async def create_managed_environment(request: web.Request) -> web.Response:
    """Saves an environment, which is this machine. A name that is taken is a 409."""
    sessions, owner = at(request)
    given = await parse(request, wire.EnvironmentBody)
    environments.check_config(given.config)
    now = sessions.now()
    environment = StoredEnvironment(
        id=sessions.new_id("env_"),
        name=given.name,
        description=given.description,
        metadata=given.metadata or {},
        created_at=now,
        updated_at=now,
    )
    async with holding_names(sessions, owner) as held:
        await _require_free(sessions, owner, environment)
        await sessions.store.write(owner, environment_records(environment), **held)
    return json_response(environment_object(environment))


async def _require_free(sessions: Sessions, owner: str, environment: StoredEnvironment) -> None:
    """Raises `Fault` CONFLICT if another environment that is not archived has the name."""
    named = await sessions.store.find(owner, ENVIRONMENT_NAME, name_id(environment.name))
    if named is None:
        return
    other = await sessions.store.find(owner, ENVIRONMENT, named.id)
    if other is None or other.id == environment.id or other.archived_at is not None:
        return
    if other.name == environment.name:
        raise name_taken(environment.name)


async def list_managed_environments(request: web.Request) -> web.Response:
    """Lists the environments, newest first."""
    sessions, owner = at(request)
    archived = flag_in(request.query, "include_archived")
    found, following = await list_page(
        sessions.store,
        owner,
        ENVIRONMENT,
        page_query(request.query),
        lambda environment: archived or environment.archived_at is None,
    )
    return page_response([*map(environment_object, found)], following)


async def retrieve_managed_environment(request: web.Request) -> web.Response:
    """Returns an environment."""
    sessions, owner = at(request)
    return json_response(environment_object(await sessions.store.get(owner, ENVIRONMENT, id_in(request))))


async def update_managed_environment(request: web.Request) -> web.Response:
    """Changes an environment."""
    given = await parse(request, wire.EnvironmentUpdate)
    return await _change(request, lambda environment: environments.changed(environment, given))


async def archive_managed_environment(request: web.Request) -> web.Response:
    """Archives an environment: it can be read, but not changed or used, and its name is free."""
    now = request.app[SESSIONS].now()
    return await _change(
        request, lambda environment: replace(environment, archived_at=environment.archived_at or now)
    )


async def _change(
    request: web.Request, change: Callable[[StoredEnvironment], StoredEnvironment]
) -> web.Response:
    sessions, owner = at(request)
    async with holding_names(sessions, owner) as held:
        before = await sessions.store.get(owner, ENVIRONMENT, id_in(request))
        environment = change(before)
        if environment != before:
            environment = replace(environment, updated_at=sessions.now())
            await _require_free(sessions, owner, environment)
            await sessions.store.write(owner, environment_records(environment), **held)
    return json_response(environment_object(environment))


async def delete_managed_environment(request: web.Request) -> web.Response:
    """Deletes an environment. Its sessions stay."""
    sessions, owner = at(request)
    id = id_in(request)
    async with holding_names(sessions, owner):  # what is changed meanwhile would bring it back
        if not await sessions.store.delete(owner, ENVIRONMENT, id):
            raise not_found(ENVIRONMENT, id)
    deleted: EnvironmentDeleted = {"id": id, "type": "environment_deleted"}
    return json_response(deleted)
