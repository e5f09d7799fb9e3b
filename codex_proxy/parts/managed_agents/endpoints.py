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
)
from codex_proxy.parts.managed_agents import handlers, wire
from codex_proxy.parts.managed_agents.agents import AgentObject
from codex_proxy.parts.managed_agents.environments import EnvironmentDeleted, EnvironmentObject
from codex_proxy.parts.managed_agents.pages import DEFAULT_LIMIT, MAX_CURSOR, ObjectPage
from codex_proxy.parts.sessions.records import MAX_PAGE

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
_VERSION: Final = Parameter(
    "version", "query", {"type": "integer", "minimum": 1}, "The version; the newest without it."
)
_IDS: Final = {"id": "The id of the agent or environment."}


def endpoint(
    route: str, handler: Handler, answer: AnswerType, *, kind: Kind = "stored", **more: Any
) -> Endpoint:
    """Returns an endpoint of the API."""
    ids = {name: text for name, text in _IDS.items() if f"{{{name}}}" in route}
    return Endpoint(
        route, handler, answer, chapter="Managed Agents", kind=kind, errors="messages", ids=ids, **more
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
)
