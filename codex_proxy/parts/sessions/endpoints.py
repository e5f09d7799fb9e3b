"""The endpoints of OpenAI's Agents API, and what the part adds to a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

from codex_proxy.app.server_parts import ServerPart
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.http.endpoint import AnswerType, Endpoint, Handler, Kind, Parameter, Schema, one_of
from codex_proxy.http.endpoints import SANDBOX
from codex_proxy.http.listing import MAX_PAGE_ITEMS
from codex_proxy.parts import own_settings
from codex_proxy.parts.sessions import (
    SessionsSettings,
    creation_handlers,
    feed_handlers,
    fork_handlers,
    handlers,
    request_values,
    summary_handlers,
    turn_traces,
    wire,
)
from codex_proxy.parts.sessions.agents import Agent, AgentDeleted
from codex_proxy.parts.sessions.answers import answer_ask
from codex_proxy.parts.sessions.creations import MAX_KEY
from codex_proxy.parts.sessions.service import SESSIONS, Sessions
from codex_proxy.parts.sessions.sessions import AgentSession, Environment, SessionDeleted, Turn
from codex_proxy.parts.sessions.subagents import SubagentObject
from codex_proxy.parts.sessions.summaries import SessionSummary
from codex_proxy.settings.fields import Settings
from codex_proxy.surfaces.answers.renderer import ItemList, Object
from codex_proxy.surfaces.requests.options import WORKTREE_HEADER

BETA: Final = "agents=v1"
"""The value of the header `OpenAI-Beta`."""

_TEXT: Final[Schema] = {"type": "string"}
PAGE: Final = (
    Parameter("after", "query", _TEXT, "The `last_id` of the page before."),
    Parameter(
        "limit",
        "query",
        {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_ITEMS, "default": request_values.DEFAULT_LIMIT},
        "Maximum objects of the page.",
    ),
    Parameter("order", "query", one_of("asc", "desc"), "By time of creation; `desc` without it."),
)
_FREE_PAGE: Final = (
    PAGE[0],
    Parameter(
        "limit",
        "query",
        {"type": "integer", "default": request_values.DEFAULT_LIMIT},
        f"Maximum objects of the page; outside of 1 to {MAX_PAGE_ITEMS} the nearest of these.",
    ),
    PAGE[2],
)
"""The parameters of lists that take every limit."""
_OBFUSCATION: Final = Parameter(
    "include_obfuscation", "query", one_of("true", "false"), "Whether events are padded; `true` without it."
)
_CHOICE: Final = (
    Parameter("agent_id", "query", _TEXT, "Only sessions of this agent."),
    Parameter(
        "metadata",
        "query",
        {"type": "object", "additionalProperties": _TEXT},
        "Only sessions with this metadata: `metadata[KEY]=VALUE`, up to 16 of them.",
    ),
)
_SUMMARY_CHOICE: Final = (
    PAGE[0],
    Parameter(
        "limit",
        "query",
        {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_PAGE_ITEMS,
            "default": summary_handlers.DEFAULT_SUMMARIES,
        },
        "Maximum objects of the page.",
    ),
    Parameter(
        "search",
        "query",
        {"type": "string", "maxLength": summary_handlers.MAX_SEARCH},
        "Only sessions with this text in the title or in a message of the client, in any case of ASCII letters.",
    ),
    Parameter("archived", "query", one_of("true", "false"), "The archived sessions, instead of the others."),
)
_IDEMPOTENCY: Final = Parameter(
    "Idempotency-Key",
    "header",
    {"type": "string", "minLength": 1, "maxLength": MAX_KEY},
    "The same events with the same key are accepted once.",
)
CREATION: Final = replace(
    _IDEMPOTENCY, description="The same request with the same key within a day gets the same session."
)
_WORKTREE: Final = Parameter(
    WORKTREE_HEADER,
    "header",
    one_of("true", "false"),
    "`true`: the session works in a folder of its own, with the files of the one that it names (docs/snapshots.md).",
)
_WORKTREE_OF_FORK: Final = replace(
    _WORKTREE,
    description="`true`: the fork works in a worktree of its own, with the files as they were at its point.",
)
_IDS: Final = {
    "id": "The id of the agent, session, environment or response.",
    "turn_id": "The id of a turn.",
    "request_id": "The id of an approval request.",
    "subagent_id": "The id of a subagent.",
}


def _endpoint(
    route: str,
    handler: Handler,
    answer: AnswerType,
    *,
    kind: Kind = "stored",
    status: str = "200",
    parameters: tuple[Parameter, ...] = (),
    beta: str = BETA,
    **more: Any,
) -> Endpoint:
    """Returns an endpoint of the API, whose answer has a `status`."""
    answers = {"answer": answer} if status == "200" else {"answer": None, "more_answers": {status: answer}}
    return Endpoint(
        route,
        handler,
        **answers,
        chapter="Agents",
        kind=kind,
        errors="agents",
        beta=beta,
        ids={name: text for name, text in _IDS.items() if f"{{{name}}}" in route},
        parameters=parameters,
        **more,
    )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


_SESSION: Final = "/agents/sessions/{id}"
_SUBAGENT: Final = f"{_SESSION}/subagents/{{subagent_id}}"

_HOSTED: Final = ("/agents/environments", "/agents/environments/templates", "/agents/automations", "/vaults")
"""What only OpenAI's service has: here the lists are empty, and nothing can be made."""

ENDPOINTS: Final = (
    _endpoint("POST /agents", handlers.create_agent, Agent, status="201", body=wire.CreateAgentBody),
    _endpoint("GET /agents", handlers.list_agents, ItemList[Agent], parameters=_FREE_PAGE),
    _endpoint(
        "POST /agents/sessions",
        creation_handlers.create_session,
        AgentSession,
        kind="turn",
        status="201",
        body=wire.SessionBody,
        streams=Object,
        parameters=(CREATION, SANDBOX, _WORKTREE),
        description="Details: docs/agents-api.md.",
    ),
    _endpoint(
        "GET /agents/sessions",
        handlers.list_sessions,
        ItemList[AgentSession],
        parameters=(*_FREE_PAGE, *_CHOICE),
    ),
    _endpoint(
        "GET /agents/session_summaries",
        summary_handlers.list_session_summaries,
        ItemList[SessionSummary],
        parameters=_SUMMARY_CHOICE,
        description="Looks at the 1000 sessions that were made last. Details: docs/agents-api.md.",
    ),
    _endpoint(
        "GET /agents/session_events",
        feed_handlers.stream_all_events,
        "text/event-stream",
        head=False,
        streams=Object,
    ),
    _endpoint(f"GET {_SESSION}/summary", summary_handlers.retrieve_session_summary, SessionSummary),
    _endpoint(
        f"POST {_SESSION}/summary",
        summary_handlers.update_session_summary,
        SessionSummary,
        body=wire.SummaryBody,
    ),
    _endpoint(
        f"POST {_SESSION}/fork",
        fork_handlers.fork_session,
        AgentSession,
        status="201",
        body=wire.ForkBody,
        parameters=(CREATION, SANDBOX, _WORKTREE_OF_FORK),
    ),
    _endpoint(
        "POST /responses/{id}/session",
        fork_handlers.create_session_of_response,
        AgentSession,
        status="201",
        body=wire.ResponseSessionBody,
        body_required=False,
        parameters=(CREATION, SANDBOX),
        beta="",  # its path is one of an API that is in no beta
    ),
    *(
        each
        for path in _HOSTED
        for each in (
            _endpoint(
                f"GET {path}",
                handlers.list_nothing,
                ItemList[Object],
                parameters=PAGE,
                operation_id=f"list_{_name(path)}",
            ),
            _endpoint(f"POST {path}", handlers.refuse_hosted, None, operation_id=f"create_{_name(path)}"),
        )
    ),
    _endpoint("GET /agents/environments/{id}", handlers.retrieve_environment, Environment),
    _endpoint(f"GET {_SESSION}", handlers.retrieve_session, AgentSession),
    _endpoint(f"POST {_SESSION}", handlers.update_session, AgentSession, body=wire.SessionUpdateBody),
    _endpoint(f"DELETE {_SESSION}", handlers.delete_session, SessionDeleted),
    _endpoint(
        f"POST {_SESSION}/events",
        handlers.create_session_events,
        "",
        kind="turn",
        status="202",
        body=wire.EventsBody,
        parameters=(_IDEMPOTENCY,),
    ),
    _endpoint(
        f"GET {_SESSION}/events",
        handlers.stream_session_events,
        "text/event-stream",
        head=False,
        streams=Object,
        parameters=(_OBFUSCATION,),
    ),
    _endpoint(
        f"POST {_SESSION}/asks/{{request_id}}",
        answer_ask,
        None,
        kind="turn",
        status="202",
        body=wire.AnswerBody,
    ),
    _endpoint(f"GET {_SESSION}/items", handlers.list_session_items, ItemList[Object], parameters=_FREE_PAGE),
    _endpoint(f"GET {_SESSION}/turns", handlers.list_session_turns, ItemList[Turn], parameters=PAGE),
    _endpoint(f"GET {_SESSION}/turns/{{turn_id}}", handlers.retrieve_session_turn, Turn),
    _endpoint(
        f"GET {_SESSION}/traces",
        turn_traces.list_session_traces,
        ItemList[turn_traces.Trace],
        parameters=PAGE,
    ),
    _endpoint(
        f"GET {_SESSION}/turns/{{turn_id}}/items",
        handlers.list_turn_items,
        ItemList[Object],
        parameters=_FREE_PAGE,
    ),
    _endpoint(
        f"GET {_SESSION}/artifacts",
        handlers.list_artifacts,
        ItemList[Object],
        parameters=(
            *PAGE,
            Parameter("environment_id", "query", _TEXT, "Only artifacts of this environment."),
        ),
        operation_id="list_session_artifacts",
    ),
    _endpoint(
        f"GET {_SESSION}/subagents", handlers.list_subagents, ItemList[SubagentObject], parameters=PAGE
    ),
    _endpoint(f"GET {_SUBAGENT}", handlers.retrieve_subagent, SubagentObject),
    _endpoint(
        f"GET {_SUBAGENT}/items", handlers.list_subagent_items, ItemList[Object], parameters=_FREE_PAGE
    ),
    _endpoint(f"GET {_SUBAGENT}/turns", handlers.list_subagent_turns, ItemList[Turn], parameters=PAGE),
    _endpoint(f"GET {_SUBAGENT}/turns/{{turn_id}}", handlers.retrieve_subagent_turn, Turn),
    _endpoint(
        f"GET {_SUBAGENT}/turns/{{turn_id}}/items",
        handlers.list_subagent_turn_items,
        ItemList[Object],
        parameters=_FREE_PAGE,
    ),
    _endpoint("GET /agents/{id}", handlers.retrieve_agent, Agent),
    _endpoint("POST /agents/{id}", handlers.update_agent, Agent, body=wire.AgentBody),
    _endpoint("DELETE /agents/{id}", handlers.delete_agent, AgentDeleted),
)


class AgentsApi(ServerPart):
    def __init__(self, settings: SessionsSettings) -> None:
        self._settings = settings

    def add_to(self, app: web.Application) -> None:
        app[SESSIONS] = Sessions(app[RESPONSES], self._settings)
        app.cleanup_ctx.append(_run)


async def _run(app: web.Application) -> AsyncIterator[None]:
    """Goes on with what a restart has interrupted, and ends streams when the server begins to stop."""
    sessions = app[SESSIONS]
    await sessions.recover()
    tasks = [asyncio.create_task(work) for work in (_end_streams(sessions), sessions.keep_up())]
    yield
    for task in tasks:
        task.cancel()


async def _end_streams(sessions: Sessions) -> None:
    await sessions.responses.runs.until_draining()
    sessions.on_draining()


def server_part(settings: Settings, _environ: Mapping[str, str]) -> ServerPart:
    """Returns what makes a server serve sessions."""
    return AgentsApi(own_settings(settings, SessionsSettings))
