"""The handlers of `/v1/agents`. They raise `Fault`: INVALID_REQUEST, NOT_FOUND for what does not exist or is another
key's, CONFLICT. Source: docs/agents-api.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.http.app_keys import RUNS
from codex_proxy.http.body import IGNORED_HEADER, name_ignored, read_body
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.exchange import stream_response
from codex_proxy.http.listing import MAX_PAGE_ITEMS, list_object
from codex_proxy.http.middleware.request_context import NOTES, REPLY_HEADERS
from codex_proxy.http.sse import EventStream
from codex_proxy.http.turns import agent_headers, note_admitted
from codex_proxy.parts.sessions import wire
from codex_proxy.parts.sessions.agents import (
    AgentDeleted,
    StoredAgent,
    agent_object,
    settings_of,
)
from codex_proxy.parts.sessions.answers import marked
from codex_proxy.parts.sessions.approvals import Approval
from codex_proxy.parts.sessions.commands import Result, Submitted
from codex_proxy.parts.sessions.creations import idempotency_key
from codex_proxy.parts.sessions.files_of_turns import LIST_OF_ARTIFACTS
from codex_proxy.parts.sessions.items import item_object
from codex_proxy.parts.sessions.records import (
    AGENT,
    ENTRY,
    SESSION,
    SUBAGENT,
    TURN,
    Kind,
    agent_record,
    matches,
    not_found,
)
from codex_proxy.parts.sessions.request_values import (
    id_in,
    list_response,
    page_in,
    parse,
    query_of,
    sessions_at,
)
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.parts.sessions.sessions import (
    CallResult,
    Content,
    Environment,
    Session,
    SessionDeleted,
    SessionTurn,
    Subagent,
    session_object,
    turn_object,
)
from codex_proxy.parts.sessions.stream import CONNECTED, EventReader
from codex_proxy.parts.sessions.subagents import subagent_object
from codex_proxy.parts.sessions.versions import change_agent
from codex_proxy.responses.prepare import PreparedResponse
from codex_proxy.store.values import Page, PageRequest
from codex_proxy.surfaces.requests.body import unsupported_value

T = TypeVar("T")

THREAD_HEADER: Final = "x-codex-thread"
_METADATA: Final = re.compile(r"metadata\[(.+)\]", re.DOTALL)


# --- agents -------------------------------------------------------------------------------------


async def create_agent(request: web.Request) -> web.Response:
    """Saves an agent."""
    sessions, owner = sessions_at(request)
    given, _ = await parse(request, wire.CreateAgentBody)
    now = sessions.now()
    agent = StoredAgent(
        id=sessions.new_id("agent_"),
        settings=settings_of(given, None),
        created_at=now,
        updated_at=now,
        metadata=given.metadata or {},
    )
    await sessions.store.write(owner, [agent_record(agent)])
    return json_response(agent_object(agent), 201)


async def list_agents(request: web.Request) -> web.Response:
    """Lists the saved agents."""
    sessions, owner = sessions_at(request)
    page = await sessions.store.page(owner, AGENT, page_in(request, clamps=True))
    return list_response([agent_object(agent) for agent in page.items], page)


async def retrieve_agent(request: web.Request) -> web.Response:
    """Returns a saved agent."""
    sessions, owner = sessions_at(request)
    return json_response(agent_object(await sessions.store.get(owner, AGENT, id_in(request))))


async def update_agent(request: web.Request) -> web.Response:
    """Changes a saved agent. Sessions that were created with it keep what they have.

    An object replaces a whole one; null clears a field.
    """
    sessions, owner = sessions_at(request)
    given, _ = await parse(request, wire.AgentBody)

    def changed(agent: StoredAgent) -> StoredAgent:
        agent.require_active()
        metadata = (given.metadata or {}) if "metadata" in given.model_fields_set else agent.metadata
        return replace(agent, settings=settings_of(given, agent.settings), metadata=metadata)

    return json_response(agent_object(await change_agent(sessions, owner, id_in(request), changed)))


async def delete_agent(request: web.Request) -> web.Response:
    """Deletes a saved agent. Its sessions stay."""
    sessions, owner = sessions_at(request)
    id = id_in(request)
    if not await sessions.store.delete(owner, AGENT, id):
        raise not_found(AGENT, id)
    deleted: AgentDeleted = {"id": id, "object": "agent.deleted", "deleted": True}
    return json_response(deleted)


# --- sessions -------------------------------------------------------------------------------------


def note_agent(request: web.Request, prepared: PreparedResponse) -> None:
    """Names the agent, and the settings that have no effect with it, in headers of the answer."""
    note_admitted(request, prepared.turn)
    found = agent_headers(request.app[RUNS].agent, prepared.parsed, prepared.turn)
    ignored = found.pop(IGNORED_HEADER, "")
    request[REPLY_HEADERS].update(found)
    name_ignored(request, [f"agent.{name}" for name in ignored.split(", ") if name])


def _name_thread(request: web.Request, session: Session) -> None:
    """Names the agent's own session in a header of the answer, if there is one: the agent's program opens it."""
    if session.thread is not None:
        request[REPLY_HEADERS][THREAD_HEADER] = session.thread.id


def messages_of(given: str | Sequence[wire.InputMessage] | None) -> list[Content]:
    if given is None:
        return []
    if isinstance(given, str):
        return [({"type": "input_text", "text": given},)]
    return [_content(message.content) for message in given]


def _content(parts: Sequence[Any]) -> Content:
    return tuple(part.as_given() for part in parts)


async def list_sessions(request: web.Request) -> web.Response:
    """Lists the sessions, also those of one agent or with some metadata."""
    sessions, owner = sessions_at(request)
    asked = page_in(request, clamps=True)
    agent_id = request.query.get("agent_id")
    wanted = {key[1]: value for name, value in request.query.items() if (key := _METADATA.fullmatch(name))}
    if len(wanted) > 16:
        raise bad_request("'metadata' may name at most 16 keys.", "metadata")
    found: list[Session] = []
    after, more = asked.after, True
    while more and len(found) <= asked.limit:
        request_page = PageRequest(MAX_PAGE_ITEMS, asked.order, after)
        page = await sessions.store.page(owner, SESSION, request_page)
        found += [
            each
            for each in page.items
            if agent_id in (None, each.agent_id) and matches(each.metadata, wanted)
        ]
        after, more = page.items[-1].id if page.items else after, page.has_more
    shown = Page(tuple(found[: asked.limit]), more or len(found) > asked.limit)
    return list_response([session_object(each) for each in shown.items], shown)


async def retrieve_session(request: web.Request) -> web.Response:
    """Returns a session.

    The header `x-codex-thread` has the id of the agent's own session, if the agent stores one.
    """
    sessions, owner = sessions_at(request)
    session = await sessions.session(owner, id_in(request))
    _name_thread(request, session)
    return json_response(session_object(session))


async def update_session(request: web.Request) -> web.Response:
    """Changes a session's metadata, or the settings of its agent from the next turn on."""
    sessions, owner = sessions_at(request)
    id = id_in(request)
    given, _ = await parse(request, wire.SessionUpdateBody)
    session = await sessions.session(owner, id)
    if not given.model_fields_set:
        raise bad_request("Give at least one of 'metadata', 'agent' and 'review'.")

    def changed(session: Session) -> Session:
        if "metadata" in given.model_fields_set:
            session = replace(session, metadata=given.metadata or {})
        if given.agent is not None:
            session = replace(session, agent=settings_of(given.agent, session.agent, "agent."))
        return session

    if given.agent is not None:
        prepared = await sessions.turn_requests.check_settings(owner, changed(session))
        if given.agent.model is not None:
            await _check_agent(sessions, owner, session, prepared)
        note_agent(request, prepared)
    await sessions.run(sessions.change(owner, id, changed))
    session = await sessions.session(owner, id)
    _name_thread(request, session)
    return json_response(session_object(session))


async def _check_agent(sessions: Sessions, owner: str, session: Session, prepared: PreparedResponse) -> None:
    """Raises `Fault` if the turn `prepared` would run on another agent than those of the session so far."""
    before = sessions.turn_requests.agent_of(await sessions.turn_requests.check_settings(owner, session))
    if sessions.turn_requests.agent_of(prepared) != before:
        message = (
            f"The session's agent is {before}, and this model is another one's. Create a session for it."
        )
        raise bad_request(message, "agent.model", "unsupported_by_agent")


async def delete_session(request: web.Request) -> web.Response:
    """Deletes a session with its turns and items.

    Refused while a turn goes on. Open streams end.
    """
    sessions, owner = sessions_at(request)
    id = id_in(request)
    await sessions.run(sessions.delete(owner, id))
    deleted: SessionDeleted = {"id": id, "object": "agent.session.deleted", "deleted": True}
    return json_response(deleted)


# --- events ---------------------------------------------------------------------------------------


async def create_session_events(request: web.Request) -> web.Response:
    """Sends messages, results of calls, or the wish to end the turn: all are accepted, or none.

    The answer is empty: what becomes of them is in the session's events.
    """
    sessions, owner = sessions_at(request)
    given, body = await parse(request, wire.EventsBody)
    id = id_in(request)
    await sessions.require(owner, id)
    request[NOTES] |= {"session": id}
    key = idempotency_key(request)
    changes = [_change(event, f"events[{index}]") for index, event in enumerate(given.events)]
    if not changes:
        return web.Response(status=202)
    known = None if key is None else (key, hashlib.sha256(body).hexdigest())
    await sessions.run(sessions.submit(owner, id, marked(changes, request), known))
    return web.Response(status=202)


def _change(event: Any, place: str) -> Submitted:
    if isinstance(event, wire.CancelInput):
        return "cancel"
    if isinstance(event, wire.MessageInput):
        return messages_of(event.input)
    if isinstance(event, wire.ToolResultInput):
        output = _content(event.output) if isinstance(event.output, list) else event.output
        return Result(event.turn_id, CallResult(event.call_id, event.success, output, event.error))
    if isinstance(event, wire.McpApprovalInput):
        return Approval(event.request_id, event.response.decision)
    raise wire.refuse("This server has no hosted browser that asks for approval.", f"{place}.type")


async def stream_session_events(request: web.Request) -> web.StreamResponse:
    """Returns the session's events from now on, as server-sent events."""
    sessions, owner = sessions_at(request)
    session = await sessions.session(owner, id_in(request))
    request[NOTES] |= {"session": session.id, "stream": True}
    _name_thread(request, session)
    given = query_of(request).get("include_obfuscation", "true")
    if given not in ("true", "false"):
        raise unsupported_value("include_obfuscation", given, "'true', 'false'")
    with sessions.streams.count(owner):
        reader = await sessions.follow(owner, session.id, partial(EventReader, obfuscated=given == "true"))
        return await send_events(request, reader)


async def send_events(request: web.Request, reader: EventReader, status: int = 200) -> web.StreamResponse:
    stream = EventStream(request, dict)
    stream.response.set_status(status)
    keepalive = sessions_at(request)[0].responses.heartbeat
    return await stream_response(reader, stream, keepalive=keepalive, comment=lambda: CONNECTED)


# --- items and turns ------------------------------------------------------------------------------


async def list_session_items(request: web.Request) -> web.Response:
    """Lists the items of a session."""
    sessions, owner = sessions_at(request)
    return await _items_below(request, await sessions.session(owner, id_in(request)))


async def _items_below(request: web.Request, parent: Session | Subagent) -> web.Response:
    sessions, owner = sessions_at(request)
    asked = page_in(request, clamps=True)
    page = await sessions.store.page(owner, ENTRY, asked, parent=parent.id, unknown_after=_unknown_item())
    return list_response([item for item in map(item_object, page.items) if item], page)


async def list_session_turns(request: web.Request) -> web.Response:
    """Lists the turns of a session."""
    sessions, owner = sessions_at(request)
    session = await sessions.session(owner, id_in(request))
    page = await sessions.store.page(owner, TURN, page_in(request), parent=session.id)
    return list_response([turn_object(turn) for turn in page.items], page)


async def retrieve_session_turn(request: web.Request) -> web.Response:
    """Returns a turn of a session."""
    return json_response(turn_object(await _turn(request)))


async def list_turn_items(request: web.Request) -> web.Response:
    """Lists the items of a turn."""
    return await _items_of(request, await _turn(request))


async def _items_of(request: web.Request, turn: SessionTurn) -> web.Response:
    sessions, owner = sessions_at(request)
    asked = page_in(request, clamps=True)
    if asked.after is not None:
        after = await sessions.store.find(owner, ENTRY, asked.after)
        if after is None or after.turn != turn.id:
            raise _unknown_item()
    page = await sessions.store.entries_of(owner, turn, asked)
    return list_response([item for item in map(item_object, page.items) if item], page)


async def _turn(request: web.Request) -> SessionTurn:
    sessions, owner = sessions_at(request)
    session = await sessions.session(owner, id_in(request))
    id = request.match_info["turn_id"]
    turn = await sessions.store.get(owner, TURN, id)
    if turn.session != session.id or turn.subagent:
        raise not_found(TURN, id)
    return turn


# --- subagents ------------------------------------------------------------------------------------


async def list_subagents(request: web.Request) -> web.Response:
    """Lists the subagents of a session, also closed ones."""
    sessions, owner = sessions_at(request)
    session = await sessions.session(owner, id_in(request))
    return await _resources_below(request, session.id, SUBAGENT, subagent_object)


async def _resources_below(
    request: web.Request, parent: str, kind: Kind[T], shown: Callable[[T], Any]
) -> web.Response:
    sessions, owner = sessions_at(request)
    asked, fault = page_in(request), _unknown_resource()
    page = await sessions.store.page(owner, kind, asked, parent=parent, unknown_after=fault)
    return list_response([*map(shown, page.items)], page)


async def retrieve_subagent(request: web.Request) -> web.Response:
    """Returns a subagent of a session."""
    return json_response(subagent_object(await _subagent(request)))


async def list_subagent_items(request: web.Request) -> web.Response:
    """Lists the items of a subagent."""
    return await _items_below(request, await _subagent(request))


async def list_subagent_turns(request: web.Request) -> web.Response:
    """Lists the turns of a subagent."""
    return await _resources_below(request, (await _subagent(request)).id, TURN, turn_object)


async def retrieve_subagent_turn(request: web.Request) -> web.Response:
    """Returns a turn of a subagent."""
    return json_response(turn_object(await _subagent_turn(request)))


async def list_subagent_turn_items(request: web.Request) -> web.Response:
    """Lists the items of a turn of a subagent."""
    return await _items_of(request, await _subagent_turn(request))


async def _subagent(request: web.Request) -> Subagent:
    sessions, owner = sessions_at(request)
    session = await sessions.session(owner, id_in(request))
    id = request.match_info["subagent_id"]
    subagent = await sessions.store.get(owner, SUBAGENT, id)
    if subagent.session != session.id:
        raise not_found(SUBAGENT, id)
    return subagent


async def _subagent_turn(request: web.Request) -> SessionTurn:
    sessions, owner = sessions_at(request)
    subagent = await _subagent(request)
    id = request.match_info["turn_id"]
    turn = await sessions.store.get(owner, TURN, id)
    if turn.subagent != subagent.id:
        raise not_found(TURN, id)
    return turn


def _unknown_resource() -> Fault:
    return bad_request("Invalid resource ID in `after`", "after")


# --- what sessions of this server do not have -----------------------------------------------------


async def list_nothing(request: web.Request) -> web.Response:
    """Lists what sessions of this server do not have: an empty list."""
    sessions, owner = sessions_at(request)
    if "id" in request.match_info:
        await sessions.session(owner, id_in(request))
    if page_in(request).after is not None:
        raise _unknown_resource()
    return json_response(list_object([], has_more=False))


async def list_artifacts(request: web.Request) -> web.Response:
    """Lists the artifacts of a session: what the snapshots of its turns have of the files that the settings name."""
    return await request.app.get(LIST_OF_ARTIFACTS, list_nothing)(request)


async def retrieve_environment(request: web.Request) -> web.Response:
    """Returns the environment of a session, a folder of this machine."""
    sessions, owner = sessions_at(request)
    id = id_in(request)
    session = await sessions.store.find(owner, SESSION, id.replace("env_", "sess_"))
    if session is None:  # of Anthropic's API
        session = await sessions.store.find(owner, SESSION, id.replace("env_", "sesn_"))
    if session is None or session.environment.get("id") != id:
        raise Fault.of(FaultKind.NOT_FOUND, f"Environment with id '{excerpt(id)}' not found.")
    shown: Environment = {
        "id": id,
        "object": "agent.environment",
        "type": "self_hosted",
        "status": "connected",
        "files": [],
        "plugins": [],
        "skills": [],
    }
    return json_response(shown)


async def refuse_hosted(request: web.Request) -> web.Response:
    """Refuses what only OpenAI's service has."""
    await read_body(request)
    raise wire.refuse("Only OpenAI's service has this: this server runs agents on its own machine.", None)


# --- queries --------------------------------------------------------------------------------------


def _unknown_item() -> Fault:
    return bad_request("Invalid session item ID in `after`", "after")
