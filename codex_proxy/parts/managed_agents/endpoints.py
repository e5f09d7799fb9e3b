"""The endpoints of Anthropic's Managed Agents API."""

from __future__ import annotations

from typing import Any, Final

from codex_proxy.http.endpoint import (
    FLAG_SCHEMA,
    TEXT_SCHEMA,
    AnswerType,
    Endpoint,
    Handler,
    Kind,
    Parameter,
    Schema,
    one_of,
)
from codex_proxy.http.endpoints import SANDBOX
from codex_proxy.parts.managed_agents import handlers, resources, session_handlers, session_wire, wire
from codex_proxy.parts.managed_agents.agents import AgentObject
from codex_proxy.parts.managed_agents.environments import EnvironmentDeleted, EnvironmentObject
from codex_proxy.parts.managed_agents.log_pages import MAX_EVENTS
from codex_proxy.parts.managed_agents.pages import DEFAULT_LIMIT, MAX_CURSOR, ObjectPage
from codex_proxy.parts.managed_agents.sessions import (
    FileResourceObject,
    SentEvents,
    SessionDeleted,
    SessionObject,
    SessionPage,
    ThreadObject,
)
from codex_proxy.parts.managed_agents.stream import PREVIEWS
from codex_proxy.parts.sessions.endpoints import CREATION
from codex_proxy.parts.sessions.records import MAX_PAGE
from codex_proxy.surfaces.answers.renderer import Object

_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
PAGE: Final = (
    Parameter(
        "limit",
        "query",
        {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_LIMIT},
        "Maximum objects of the page.",
    ),
    Parameter(
        "page", "query", {**TEXT_SCHEMA, "maxLength": MAX_CURSOR}, "The `next_page` of the page before."
    ),
)
ARCHIVED: Final = Parameter(
    "include_archived", "query", FLAG_SCHEMA, "Whether archived objects are listed, too."
)
_CREATED: Final = (
    Parameter("created_at[gte]", "query", _TIME, "Only objects made at this time or later."),
    Parameter("created_at[lte]", "query", _TIME, "Only objects made at this time or before."),
)
_LATER: Final = (
    Parameter("created_at[gt]", "query", _TIME, "Only objects made after this time."),
    Parameter("created_at[lt]", "query", _TIME, "Only objects made before this time."),
)
_ORDER: Final = Parameter("order", "query", one_of("asc", "desc"), "By time.")
_STATUSES: Final = Parameter(
    "statuses[]",
    "query",
    {"type": "array", "items": one_of("rescheduling", "running", "idle", "terminated")},
    "Only those in one of these states.",
)
_OF_SESSIONS: Final = (
    _STATUSES,
    Parameter("agent_id", "query", TEXT_SCHEMA, "Only sessions of this agent."),
    Parameter(
        "agent_version", "query", {"type": "integer", "minimum": 1}, "With `agent_id`: of this version."
    ),
)
_EVENTS_PAGE: Final = (
    Parameter(
        "limit",
        "query",
        {"type": "integer", "minimum": 1, "maximum": MAX_EVENTS, "default": MAX_EVENTS},
        "Maximum objects of the page.",
    ),
    PAGE[1],
)
_TYPES: Final = Parameter(
    "types[]", "query", {"type": "array", "items": TEXT_SCHEMA}, "Only events of these types."
)
_OF_EVENTS: Final = (*_EVENTS_PAGE, _ORDER, *_CREATED, *_LATER, _TYPES)
_DELTAS: Final = Parameter(
    "event_deltas[]",
    "query",
    {"type": "array", "items": one_of(*PREVIEWS)},
    "The types of events of which there are previews: `event_start`, `event_delta`.",
)
_VERSION: Final = Parameter(
    "version", "query", {"type": "integer", "minimum": 1}, "The version; the newest without it."
)
_IDS: Final = {
    "id": "The id of the agent, environment or session.",
    "thread_id": "The id of a thread.",
    "resource_id": "The id of a resource.",
}


def endpoint(
    route: str, handler: Handler, answer: AnswerType, *, kind: Kind = "stored", **more: Any
) -> Endpoint:
    """Returns an endpoint of the Managed Agents API. `route` is its path without `/v1`; `more` are further fields of
    `Endpoint`.
    """
    ids = {name: text for name, text in _IDS.items() if f"{{{name}}}" in route}
    return Endpoint(
        route, handler, answer, chapter="Managed Agents", kind=kind, errors="messages", ids=ids, **more
    )


_SESSION: Final = "/sessions/{id}"
_RESOURCE: Final = f"{_SESSION}/resources/{{resource_id}}"
_THREAD: Final = f"{_SESSION}/threads/{{thread_id}}"

_SESSIONS: Final = (
    endpoint(
        "POST /sessions",
        session_handlers.create_managed_session,
        SessionObject,
        kind="turn",
        body=session_wire.ManagedSessionBody,
        parameters=(CREATION, SANDBOX),
        description="Details: docs/managed-agents.md.",
    ),
    endpoint(
        "GET /sessions",
        session_handlers.list_managed_sessions,
        SessionPage,
        parameters=(*PAGE, _ORDER, ARCHIVED, *_CREATED, *_LATER, *_OF_SESSIONS),
    ),
    endpoint(f"GET {_SESSION}", session_handlers.retrieve_managed_session, SessionObject),
    endpoint(
        f"POST {_SESSION}",
        session_handlers.update_managed_session,
        SessionObject,
        body=session_wire.ManagedSessionUpdate,
    ),
    endpoint(f"DELETE {_SESSION}", session_handlers.delete_managed_session, SessionDeleted),
    endpoint(f"POST {_SESSION}/archive", session_handlers.archive_managed_session, SessionObject),
    endpoint(
        f"POST {_SESSION}/events",
        session_handlers.send_managed_events,
        SentEvents,
        kind="turn",
        body=session_wire.ManagedEventsBody,
    ),
    endpoint(
        f"GET {_SESSION}/events",
        session_handlers.list_managed_events,
        ObjectPage[Object],
        parameters=_OF_EVENTS,
    ),
    endpoint(
        f"GET {_SESSION}/events/stream",
        session_handlers.stream_managed_events,
        "text/event-stream",
        head=False,
        streams=Object,
        parameters=(_DELTAS,),
    ),
    endpoint(
        f"GET {_SESSION}/threads",
        session_handlers.list_session_threads,
        ObjectPage[ThreadObject],
        parameters=(*_EVENTS_PAGE, _STATUSES),
    ),
    endpoint(f"GET {_THREAD}", session_handlers.retrieve_session_thread, ThreadObject),
    endpoint(f"POST {_THREAD}/archive", session_handlers.archive_session_thread, None),
    endpoint(
        f"GET {_THREAD}/events",
        session_handlers.list_thread_events,
        ObjectPage[Object],
        parameters=_OF_EVENTS,
    ),
    endpoint(
        f"GET {_THREAD}/stream",
        session_handlers.stream_thread_events,
        "text/event-stream",
        head=False,
        streams=Object,
        parameters=(_DELTAS,),
    ),
    endpoint(
        f"GET {_SESSION}/resources",
        resources.list_session_resources,
        ObjectPage[FileResourceObject],
        parameters=_EVENTS_PAGE,
    ),
    endpoint(
        f"POST {_SESSION}/resources",
        resources.add_session_resource,
        FileResourceObject,
        body=session_wire.Resource,
    ),
    endpoint(f"GET {_RESOURCE}", resources.retrieve_session_resource, FileResourceObject),
    endpoint(f"DELETE {_RESOURCE}", resources.delete_session_resource, resources.ResourceDeleted),
)

ENDPOINTS: Final = (
    endpoint("POST /agents", handlers.create_managed_agent, AgentObject, body=wire.ManagedAgentBody),
    endpoint(
        "GET /agents",
        handlers.list_managed_agents,
        ObjectPage[AgentObject],
        parameters=(*PAGE, ARCHIVED, *_CREATED),
    ),
    endpoint("GET /agents/{id}", handlers.retrieve_managed_agent, AgentObject, parameters=(_VERSION,)),
    endpoint("POST /agents/{id}", handlers.update_managed_agent, AgentObject, body=wire.ManagedAgentUpdate),
    endpoint("POST /agents/{id}/archive", handlers.archive_managed_agent, AgentObject),
    endpoint(
        "GET /agents/{id}/versions", handlers.list_agent_versions, ObjectPage[AgentObject], parameters=PAGE
    ),
    endpoint(
        "POST /environments",
        handlers.create_managed_environment,
        EnvironmentObject,
        body=wire.EnvironmentBody,
    ),
    endpoint(
        "GET /environments",
        handlers.list_managed_environments,
        ObjectPage[EnvironmentObject],
        parameters=(*PAGE, ARCHIVED),
    ),
    endpoint("GET /environments/{id}", handlers.retrieve_managed_environment, EnvironmentObject),
    endpoint(
        "POST /environments/{id}",
        handlers.update_managed_environment,
        EnvironmentObject,
        body=wire.EnvironmentUpdate,
    ),
    endpoint("POST /environments/{id}/archive", handlers.archive_managed_environment, EnvironmentObject),
    endpoint("DELETE /environments/{id}", handlers.delete_managed_environment, EnvironmentDeleted),
    *_SESSIONS,
)
