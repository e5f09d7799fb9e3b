"""The handlers of sessions, their events and threads of the Managed Agents API. They raise `Fault`: INVALID_REQUEST,
NOT_FOUND for what does not exist or is another key's, CONFLICT. Source: docs/managed-agents.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.items import ToolCall
from codex_proxy.core.shown_text import excerpt
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.exchange import stream_response
from codex_proxy.http.middleware.request_context import NOTES
from codex_proxy.http.sse import EventStream
from codex_proxy.http.turns import note_admitted
from codex_proxy.parts.managed_agents import session_wire as wire
from codex_proxy.parts.managed_agents.agents import settings_of
from codex_proxy.parts.managed_agents.environments import ENVIRONMENT, refused
from codex_proxy.parts.managed_agents.events import LogOf, item_of, thread_id
from codex_proxy.parts.managed_agents.handlers import (
    at,
    find_agent,
    page_response,
    parse,
    parse_with_bytes,
)
from codex_proxy.parts.managed_agents.log_pages import MAX_EVENTS, list_events, times_of
from codex_proxy.parts.managed_agents.pages import (
    Cursor,
    PageQuery,
    flag_in,
    list_page,
    page_query,
    time_range,
    unknown_cursor,
)
from codex_proxy.parts.managed_agents.resources import place_files
from codex_proxy.parts.managed_agents.sessions import (
    Sending,
    SentEvents,
    SessionDeleted,
    SessionPage,
    ThreadObject,
    in_words,
    log_of,
    messages_of,
    no_such_call,
    primary_thread,
    session_agent,
    session_object,
    status_of,
    subagent_thread,
    unserved,
)
from codex_proxy.parts.managed_agents.stream import PING, PING_SECONDS, PREVIEWS, ManagedReader
from codex_proxy.parts.sessions.agents import StoredAgent
from codex_proxy.parts.sessions.answers import marked
from codex_proxy.parts.sessions.commands import Interrupt, patched
from codex_proxy.parts.sessions.creation_handlers import sandbox_in
from codex_proxy.parts.sessions.creations import Creation, creation
from codex_proxy.parts.sessions.items import WholeItem
from codex_proxy.parts.sessions.placed_files import remove_files
from codex_proxy.parts.sessions.records import ENTRY, SESSION, SUBAGENT, TURN
from codex_proxy.parts.sessions.request_values import id_in
from codex_proxy.parts.sessions.running import LiveSession
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.parts.sessions.sessions import AgentItem, Session, Subagent, folder_environment
from codex_proxy.responses.prepare import PreparedResponse
from codex_proxy.store.values import Order, PageRequest
from codex_proxy.surfaces.requests.body import integer_in, unsupported_value

MAX_THREADS: Final = 1000
_STATUSES: Final = ("rescheduling", "running", "idle", "terminated")


# --- sessions -------------------------------------------------------------------------------------


async def create_managed_session(request: web.Request) -> web.Response:
    """Creates a session of an agent, and begins its first turn if it has `initial_events`. `resources`: uploaded files
    that are put into its folder before.

    `metadata.workdir` names the folder of an agent that has tools of its own.
    """
    sessions, _ = at(request)
    _ = sessions.store  # without one the body is not read
    given, body = await parse_with_bytes(request, wire.ManagedSessionBody)
    _check_unserved(given)
    async with creation(request, body) as asked:
        return json_response(session_object(asked.known or await _create(request, given, asked)))


async def _create(request: web.Request, given: wire.ManagedSessionBody, asked: Creation) -> Session:
    sessions, owner = at(request)
    store = sessions.store
    environment = await store.get(owner, ENVIRONMENT, given.environment_id)
    environment.require_active()
    agent = await _agent_of(sessions, owner, given.agent)
    messages = messages_of(given.initial_events or ())
    now, id = sessions.now(), sessions.new_id("sesn_")
    session = Session(
        id=id,
        created_at=now,
        last_active_at=now,
        agent_id=agent.id,
        agent=agent.settings,
        agent_version=agent.version,
        environment=_place(agent, id, (given.metadata or {}).get("workdir", "")),
        environment_id=environment.id,
        metadata=given.metadata or {},
        title=given.title,
        sandbox=sandbox_in(request),
    )
    request[NOTES] |= {"session": id, "model": session.agent.model}
    sessions.check_room(owner)
    try:
        prepared = await sessions.turn_requests.check_settings(owner, session, messages)
    except Fault as fault:
        raise _of_creation(fault) from None
    note_admitted(request, prepared.turn)
    made: list[LiveSession] = []

    async def create() -> None:
        placed = await place_files(request, session, prepared.turn, given.resources or (), "resources")
        made.append(sessions.new(owner, replace(_in_folder(session, prepared), resources=placed)))
        try:
            await sessions.create(made[0], messages, prepared, asked.records(session))
        except BaseException:
            await remove_files(placed)
            raise

    await sessions.run(create())
    return made[0].session


def _check_unserved(given: wire.ManagedSessionBody | wire.ManagedSessionUpdate) -> None:
    if given.budget is not None:
        message = "list costs are not known here. Leave it out: the tokens are in the session's usage."
        raise refused(message, "budget")
    if given.vault_ids:
        message = (
            "vaults are not served here; give the MCP server its own credentials in this server's settings."
        )
        raise refused(message, "vault_ids")


async def _agent_of(
    sessions: Sessions, owner: str, given: str | wire.AgentReference | wire.AgentWithOverrides
) -> StoredAgent:
    """Returns the agent of a new session, with its settings there."""
    if isinstance(given, str):
        agent = await find_agent(sessions, owner, given)
    else:
        agent = await find_agent(sessions, owner, given.id, given.version)
    agent.require_active()
    if isinstance(given, wire.AgentWithOverrides):
        agent = replace(agent, settings=settings_of(given, agent.settings, "agent."))
    return agent


def _place(agent: StoredAgent, session: str, workdir: str) -> dict[str, Any]:
    """Returns where the session works: an agent without own tools, nowhere."""
    toolset = agent.settings.toolset
    if toolset is not None and not toolset.enabled and not workdir:
        return {"type": "none"}
    return folder_environment(session, workdir)


def _in_folder(session: Session, prepared: PreparedResponse) -> Session:
    """Returns the session with the folder that its turns will have, also if it has not named any."""
    if session.environment["type"] == "none":
        return session
    folder = prepared.turn.workdir
    return replace(session, environment={**session.environment, "workspace_directory": folder})


_FIRST_IMAGE: Final = re.compile(r"input\[(\d+)\]\.content\[(\d+)\]\.image_url")
"""Matches an image in the request of a session's first turn."""


def _of_creation(fault: Fault) -> Fault:
    """Returns a refusal of the session's folder, or of an image of its first messages, with its own field."""
    failure = fault.failure
    if image := _FIRST_IMAGE.fullmatch(failure.param or ""):
        return Fault(replace(failure, param=f"initial_events[{image[1]}].content[{image[2]}].source"))
    if failure.param != "environment.workspace_directory":
        return fault
    message = failure.message.replace("environment.workspace_directory", "metadata.workdir")
    return Fault(
        replace(failure, kind=FaultKind.NOT_ALLOWED, param="metadata.workdir", message=message, code=None)
    )


async def list_managed_sessions(request: web.Request) -> web.Response:
    """Lists the sessions, also those of one agent, of some states or times. Newest first without `order`."""
    sessions, owner = at(request)
    query, asked = page_query(request.query, ordered=True), request.query
    archived, made, statuses = flag_in(asked, "include_archived"), time_range(asked), _statuses(request)
    version = (
        integer_in("agent_version", asked["agent_version"], 1, 2**31 - 1) if asked.get("agent_version") else 0
    )
    elsewhere = bool(asked.get("deployment_id") or asked.get("memory_store_id"))

    def wanted(session: Session) -> bool:
        return (
            not elsewhere
            and (archived or session.archived_at is None)
            and session.created_at in made
            and (not statuses or status_of(session) in statuses)
            and asked.get("agent_id", session.agent_id) == session.agent_id
            and (not version or "agent_id" not in asked or session.agent_version == version)
        )

    if query.cursor is not None and not query.cursor.id:  # the first page, as `prev_page`
        query = replace(query, cursor=None)
    found, following = await list_page(sessions.store, owner, SESSION, query, wanted)
    before = None
    if query.cursor is not None and found:
        order: Order = "asc" if query.order == "desc" else "desc"
        back = PageQuery(query.limit + 1, order, Cursor(order, found[0].id, float(found[0].created_at)))
        earlier, _ = await list_page(sessions.store, owner, SESSION, back, wanted)
        if len(earlier) > query.limit:
            before = str(Cursor(query.order, earlier[-1].id, float(earlier[-1].created_at)))
        elif earlier:
            before = str(Cursor(query.order, "", 0.0))
    data = [session_object(each) for each in found]
    page: SessionPage = {"data": data, "next_page": following, "prev_page": before}
    return json_response(page)


def _several(request: web.Request, name: str) -> list[str]:
    """Returns the values of a parameter that may be there more than once."""
    return [*request.query.getall(f"{name}[]", []), *request.query.getall(name, [])]


def _statuses(request: web.Request) -> list[str]:
    """Returns the states that are asked for. Raises `Fault` for one that there is not."""
    statuses = _several(request, "statuses")
    for status in statuses:
        if status not in _STATUSES:
            raise unsupported_value("statuses", status, ", ".join(map(repr, _STATUSES)))
    return statuses


async def retrieve_managed_session(request: web.Request) -> web.Response:
    """Returns a session."""
    sessions, owner = at(request)
    return json_response(session_object(await sessions.session(owner, id_in(request))))


async def update_managed_session(request: web.Request) -> web.Response:
    """Changes the title and metadata of a session, or the tools and MCP servers of its agent while no turn runs."""
    sessions, owner = at(request)
    given = await parse(request, wire.ManagedSessionUpdate)
    _check_unserved(given)
    id = id_in(request)

    async def update() -> None:
        async with sessions.changing(owner, f"{id}/settings"):  # what is checked is what is changed
            await _update(sessions, owner, id, given)

    await sessions.session(owner, id)
    await sessions.run(update())
    return json_response(session_object(await sessions.session(owner, id)))


async def _update(sessions: Sessions, owner: str, id: str, given: wire.ManagedSessionUpdate) -> None:
    session = await sessions.session(owner, id)

    def changed(session: Session) -> Session:
        if "title" in given.model_fields_set:
            session = replace(session, title=given.title)
        if given.metadata is not None:
            session = replace(session, metadata=patched(session.metadata, given.metadata))
        if given.agent is not None:
            session = replace(session, agent=settings_of(given.agent, session.agent, "agent."))
        return session

    after = changed(session)
    if after.metadata.get("workdir") != session.metadata.get("workdir"):
        raise refused("a session stays in its folder. Create another one.", "metadata.workdir")
    if given.agent is not None:
        await _check_agent(sessions, owner, session, after, given.agent.model_fields_set)
    fields: dict[str, Any] = {}
    if after.title != session.title:
        fields["title"] = after.title
    if after.metadata != session.metadata:
        fields["metadata"] = after.metadata
    if after.agent != session.agent:
        fields["agent"] = session_agent(after)
    if fields:

        def without_metadata(session: Session) -> Session:
            return replace(changed(session), metadata=session.metadata)

        await sessions.change(owner, id, without_metadata, fields, given.metadata)


async def _check_agent(
    sessions: Sessions, owner: str, before: Session, after: Session, named: set[str]
) -> None:
    """Raises `Fault` for a change of a session's agent that cannot be."""
    others = sorted(named - {"tools", "mcp_servers"})
    if others:
        message = "only 'tools' and 'mcp_servers' of a session can be changed. Create another one with it."
        raise refused(message, f"agent.{others[0]}")
    if before.status == "in_progress":
        raise bad_request("It can only be changed while the session is not running.", "agent")
    toolset = after.agent.toolset
    if after.environment["type"] == "none" and toolset is not None and toolset.enabled:
        message = (
            "this session began without tools of the agent's own, and has no folder. Create another one."
        )
        raise refused(message, "agent.tools")
    await sessions.turn_requests.check_settings(owner, after)


async def archive_managed_session(request: web.Request) -> web.Response:
    """Archives a session: it can be read and deleted, and takes no events. Refused while it runs."""
    sessions, owner = at(request)
    id = id_in(request)
    session = await sessions.session(owner, id)
    if session.archived_at is None:
        await _end_waiting(sessions, owner, session, "archive")
        now = sessions.now()
        await sessions.run(sessions.change(owner, id, lambda session: replace(session, archived_at=now)))
    return json_response(session_object(await sessions.session(owner, id)))


async def delete_managed_session(request: web.Request) -> web.Response:
    """Deletes a session with its events, and ends its streams. Refused while it runs."""
    sessions, owner = at(request)
    id = id_in(request)
    await _end_waiting(sessions, owner, await sessions.session(owner, id), "delete")

    try:
        await sessions.run(sessions.delete(owner, id))
    except Fault as fault:
        raise _running(fault, "delete") from None
    deleted: SessionDeleted = {"id": id, "type": "session_deleted"}
    return json_response(deleted)


async def _end_waiting(sessions: Sessions, owner: str, session: Session, what: str) -> None:
    """Ends a turn that waits for the client. Raises `Fault` for one at which the agent works."""
    if session.status == "in_progress":
        raise bad_request(f"Cannot {what} session while it is running")
    if session.status == "requires_action":
        ending = Interrupt(sessions.new_id(""))
        await sessions.run(sessions.submit(owner, session.id, [ending], None))
        await sessions.rest(owner, session.id)


def _running(fault: Fault, what: str) -> Fault:
    if fault.failure.kind is not FaultKind.CONFLICT:
        return fault
    return bad_request(f"Cannot {what} session while it is running")


# --- events ---------------------------------------------------------------------------------------


async def send_managed_events(request: web.Request) -> web.Response:
    """Sends messages, interrupts, and answers to calls: all are accepted, or none.

    The answer has the events; `processed_at` is null for a message that waits until the turn has ended.
    """
    sessions, owner = at(request)
    given = await parse(request, wire.ManagedEventsBody)
    session = await sessions.session(owner, id_in(request))
    request[NOTES] |= {"session": session.id}
    sending = Sending(session, sessions.new_id("turn_"), sessions.new_id(""))
    for index, event in enumerate(given.events):
        await _add(sending, sessions, owner, session, event, f"events[{index}]")
    changes = [each.change for each in sending.sent if each.change is not None]
    if changes:
        try:
            await sessions.run(sessions.submit(owner, session.id, marked(changes, request), None))
        except Fault as fault:
            now = await sessions.session(owner, session.id)
            raise in_words(fault, given.events, sending.sent, now) from None
    ids = {each.event["id"] for each in sending.sent}
    times = await times_of(sessions.store, owner, log_of(session), ids) if ids else {}
    sent: SentEvents = {
        "data": [{**each.event, "processed_at": times.get(each.event["id"])} for each in sending.sent]
    }
    return json_response(sent)


async def _add(
    sending: Sending, sessions: Sessions, owner: str, session: Session, event: Any, place: str
) -> None:
    """Adds an event of a client. Raises `Fault`."""
    match event:
        case wire.MessageEvent():
            sending.add_message(event, place)
        case wire.InterruptEvent():
            sending.add_interrupt(event, place)
        case wire.ConfirmationEvent():
            sending.add_confirmation(event, place)
        case wire.CustomResultEvent():
            turn, call_id = await _call_of(sessions, owner, session, event)
            sending.add_result(event, place, turn, call_id)
        case _:
            raise unserved(event, place)


async def _call_of(
    sessions: Sessions, owner: str, session: Session, event: wire.CustomResultEvent
) -> tuple[str, str]:
    """Returns the turn, and the agent's id, of the call that a result is for. Raises `Fault` if there is none."""
    entry = await sessions.store.find(owner, ENTRY, item_of(event.custom_tool_use_id))
    if entry is not None and isinstance(entry.item, AgentItem):
        item = WholeItem.of(entry.item.events()).item
        turn = await sessions.store.find(owner, TURN, entry.turn)
        if isinstance(item, ToolCall) and turn is not None and turn.session == session.id:
            return entry.turn, item.call_id
    raise no_such_call(event)


async def list_managed_events(request: web.Request) -> web.Response:
    """Lists the events of a session, oldest first without `order`."""
    sessions, owner = at(request)
    session = await sessions.session(owner, id_in(request))
    return await _events_of(request, log_of(session))


async def _events_of(request: web.Request, log: LogOf) -> web.Response:
    sessions, owner = at(request)
    query = page_query(request.query, default=MAX_EVENTS, most=MAX_EVENTS, order="asc", ordered=True)
    types, made = frozenset(_several(request, "types")), time_range(request.query)
    return page_response(*await list_events(sessions.store, owner, log, query, types, made))


async def stream_managed_events(request: web.Request) -> web.StreamResponse:
    """Returns the session's events from now on, as server-sent events."""
    sessions, owner = at(request)
    session = await sessions.session(owner, id_in(request))
    return await _stream(request, session.id, log_of(session))


async def _stream(request: web.Request, session: str, log: LogOf) -> web.StreamResponse:
    sessions, owner = at(request)
    previews = _several(request, "event_deltas")
    for each in previews:
        if each not in PREVIEWS:
            raise unsupported_value("event_deltas", each, ", ".join(map(repr, PREVIEWS)))
    request[NOTES] |= {"session": session, "stream": True}
    with sessions.streams.count(owner):
        make = partial(ManagedReader, log=log, previews=frozenset(previews))
        reader = await sessions.follow(owner, session, make)
        stream = EventStream(request, dict)
        return await stream_response(reader, stream, keepalive=PING_SECONDS, comment=lambda: PING)


# --- threads --------------------------------------------------------------------------------------


async def list_session_threads(request: web.Request) -> web.Response:
    """Lists the threads of a session: its own, then those of subagents, oldest first."""
    sessions, owner = at(request)
    session = await sessions.session(owner, id_in(request))
    query = page_query(request.query, default=MAX_THREADS, most=MAX_THREADS, order="asc")
    after, statuses = None if query.cursor is None else query.cursor.id, _statuses(request)
    shown: list[ThreadObject] = [primary_thread(session)] if after is None else []
    limit = query.limit - len(shown)
    found: Sequence[Subagent] = ()
    more = True
    if limit:
        page = await sessions.store.page(
            owner,
            SUBAGENT,
            PageRequest(limit, "asc", after or None),
            parent=session.id,
            unknown_after=unknown_cursor(),
        )
        found, more = page.items, page.has_more
    last = Cursor("asc", found[-1].id if found else "", 0.0)
    shown += [subagent_thread(session, each) for each in found]
    shown = [each for each in shown if not statuses or each["status"] in statuses]
    return page_response(shown, str(last) if more else None)


async def retrieve_session_thread(request: web.Request) -> web.Response:
    """Returns a thread of a session."""
    session, subagent = await _thread(request)
    return json_response(primary_thread(session) if subagent is None else subagent_thread(session, subagent))


async def archive_session_thread(request: web.Request) -> web.Response:
    """Refuses to archive a thread: those of subagents end with the session."""
    await _thread(request)
    raise bad_request(
        "Threads are not archived here: those of subagents rest between the turns, and end with the session. "
        "Archive the session, or leave it out."
    )


async def list_thread_events(request: web.Request) -> web.Response:
    """Lists the events of a thread, oldest first."""
    session, subagent = await _thread(request)
    return await _events_of(request, log_of(session, "" if subagent is None else subagent.id))


async def stream_thread_events(request: web.Request) -> web.StreamResponse:
    """Returns the events of a thread from now on, as server-sent events."""
    session, subagent = await _thread(request)
    return await _stream(request, session.id, log_of(session, "" if subagent is None else subagent.id))


async def _thread(request: web.Request) -> tuple[Session, Subagent | None]:
    """Returns the session and the subagent of a thread; None for the session's own thread."""
    sessions, owner = at(request)
    session = await sessions.session(owner, id_in(request))
    id: str = request.match_info["thread_id"]
    if id == thread_id(session.id):
        return session, None
    subagent = await sessions.store.find(owner, SUBAGENT, f"subagent_{id.removeprefix('sthr_')}")
    if subagent is None or subagent.session != session.id:
        raise Fault.of(FaultKind.NOT_FOUND, f"Thread with id '{excerpt(id)}' not found.")
    return session, subagent
