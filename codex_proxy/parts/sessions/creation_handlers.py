"""The handlers that create sessions. They raise `Fault`: INVALID_REQUEST, NOT_FOUND for what does not exist or is
another key's, CONFLICT. Source: docs/agents-api.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Literal

from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.turn import SANDBOXES, Sandbox
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.listing import MAX_PAGE_ITEMS
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, REPLY_HEADERS
from codex_proxy.parts.sessions import wire
from codex_proxy.parts.sessions.agents import settings_of
from codex_proxy.parts.sessions.creations import Creation, creation
from codex_proxy.parts.sessions.files_of_turns import WORKTREES, Worktrees
from codex_proxy.parts.sessions.handlers import messages_of, note_agent, send_events
from codex_proxy.parts.sessions.records import AGENT, SESSION
from codex_proxy.parts.sessions.request_values import parse, sessions_at
from codex_proxy.parts.sessions.sessions import Content, Session, folder_environment, session_object
from codex_proxy.parts.sessions.stream import EventReader, MakeReader, encode_event
from codex_proxy.responses.prepare import PreparedResponse
from codex_proxy.store.values import PageRequest, Record
from codex_proxy.surfaces.requests.options import SANDBOX_HEADER, WORKTREE_HEADER, sandbox_of

SAME_FOLDER_HEADER: Final = "x-codex-same-folder"
MAX_NEIGHBOURS: Final = 10
"""Maximum sessions that the header names."""


async def create_session(request: web.Request) -> web.StreamResponse:
    """Creates a session, and begins its first turn if it has input.

    With `stream` its events follow until it is idle.
    """
    sessions, owner = sessions_at(request)
    _ = sessions.store  # without one the body is not read
    given, body = await parse(request, wire.SessionBody)
    if given.stream_options is not None and not given.stream:
        raise bad_request("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    if not given.stream:
        session, _ = await _created(request, given, body, None)
        return json_response(session_object(session), 201)
    padded = given.stream_options is None or given.stream_options.include_obfuscation is not False
    with sessions.streams.count(owner):  # who may not read the session does not create it
        make = partial(EventReader, obfuscated=padded, ends_at_rest=True)
        _, reader = await _created(request, given, body, make)
        assert reader is not None, "one was to be made"
        return await send_events(request, reader, status=201)


async def _created(
    request: web.Request, given: wire.SessionBody, body: bytes, make: MakeReader | None
) -> tuple[Session, EventReader | None]:
    """Creates a session, unless the same request did before. Returns it, and the reader that `make` makes of it."""
    sessions, owner = sessions_at(request)
    async with creation(request, body) as asked:
        if asked.known is not None:
            return asked.known, None if make is None else await _reader_again(request, asked.known.id, make)
        session, messages = await _session_of(request, given)
        request[NOTES] |= {"session": session.id, "model": session.agent.model, "stream": make is not None}
        sessions.check_room(owner)
        in_worktree = worktree_in(request)
        prepared = await sessions.turn_requests.check_settings(owner, session, messages)
        note_agent(request, prepared)
        if not in_worktree:
            await _name_neighbours(request, session)
        reader = None if make is None else sessions.streams.reader(owner, session.id, make)
        created = session

        async def create() -> None:
            nonlocal created
            if in_worktree:
                created = await _create_in_worktree(request, session, messages, asked)
            else:
                created = await _create(request, session, messages, prepared, asked.records(session))

        try:
            await sessions.run(create())
        except BaseException:
            if reader is not None:
                reader.close()
            raise
        return created, reader


async def _name_neighbours(request: web.Request, session: Session) -> None:
    """Names in a header of the answer the key's other sessions in the folder of a new one, as far as they are among
    its newest.
    """
    folder = _folder_of(session)
    if not folder:
        return
    sessions, owner = sessions_at(request)
    newest = await sessions.store.page(owner, SESSION, PageRequest(MAX_PAGE_ITEMS))
    same = [each.id for each in newest.items if each.archived_at is None and _folder_of(each) == folder]
    if same:
        request[REPLY_HEADERS][SAME_FOLDER_HEADER] = ", ".join(same[:MAX_NEIGHBOURS])


def _folder_of(session: Session) -> str:
    """Returns the folder that a session names, in one spelling; empty if it has none."""
    folder = session.environment.get("workspace_directory", "")
    return os.path.normpath(folder) if folder else ""


async def _create(
    request: web.Request,
    session: Session,
    messages: Sequence[Content],
    prepared: PreparedResponse,
    records: Sequence[Record],
) -> Session:
    sessions, owner = sessions_at(request)
    live = sessions.new(owner, session)
    await sessions.create(live, messages, prepared, records)
    return live.session


async def _create_in_worktree(
    request: web.Request, session: Session, messages: Sequence[Content], asked: Creation
) -> Session:
    """Creates a session in a folder of its own, with the files of the folder that it names."""
    sessions, owner = sessions_at(request)
    async with worktrees_for(request, session).made(request[CLIENT], session) as made:
        remote = session.environment["remote_url"]
        session = replace(session, environment=folder_environment(session.id, made.folder, remote))
        prepared = await sessions.turn_requests.check_settings(owner, session, messages)
        return await _create(request, session, messages, prepared, [*asked.records(session), made.record])


def worktrees_for(request: web.Request, session: Session) -> Worktrees:
    """Returns what makes a worktree for a new session. Raises `Fault` if there is none."""
    worktrees = request.app.get(WORKTREES)
    if worktrees is None:
        message = "This server makes no worktrees: ask the operator to set PROXY_SNAPSHOTS=sessions."
        raise wire.refuse(message, WORKTREE_HEADER)
    if session.environment["type"] == "none":
        raise bad_request(
            "A session without a folder has no worktree: leave the header out.", WORKTREE_HEADER
        )
    return worktrees


def worktree_in(request: web.Request) -> bool:
    """Returns whether the client wants a worktree for a session. Raises `Fault` for a value that means neither."""
    given = request.headers.get(WORKTREE_HEADER, "").strip().lower()
    if given not in ("", "true", "false"):
        raise bad_request(f"The header {WORKTREE_HEADER} must be `true` or `false`.", WORKTREE_HEADER)
    return given == "true"


async def _session_of(request: web.Request, given: wire.SessionBody) -> tuple[Session, list[Content]]:
    """Returns the session that a body asks for, and its first messages."""
    sessions, owner = sessions_at(request)
    id = sessions.new_id("sess_")
    environment = environment_of(given.environment, id)
    inline = wire.AgentFields() if given.agent is None else given.agent
    if given.agent_id is None:
        agent_id, settings = sessions.new_id("agent_"), settings_of(inline, None, "agent.")
    else:
        base = await sessions.store.get(owner, AGENT, given.agent_id)
        base.require_active()
        agent_id, settings = base.id, settings_of(inline, base.settings, "agent.")
    messages = messages_of(given.input)
    if environment["type"] == "none" and not messages:
        raise bad_request("conversation-only sessions currently require initial input", "input")
    now = sessions.now()
    session = Session(
        id=id,
        created_at=now,
        last_active_at=now,
        agent_id=agent_id,
        agent=settings,
        environment=environment,
        metadata=given.metadata or {},
        sandbox=sandbox_in(request),
    )
    return session, messages


async def _reader_again(request: web.Request, id: str, make: MakeReader) -> EventReader:
    """Returns a reader of a session that was created before: it begins with the state of the moment."""
    sessions, owner = sessions_at(request)
    reader = await sessions.follow(owner, id, make)
    try:
        session = await sessions.session(owner, id)
        kind = f"agent.session.{session.status}"
        event = {"type": kind, "session": session_object(session)}
        reader.add([(kind, encode_event(event, sessions.new_id("event_")))])
    except BaseException:
        reader.close()
        raise
    return reader


def environment_of(given: wire.Environment, session: str) -> dict[str, Any]:
    """Returns the environment of the session with this id, as it is stored and shown. Raises `Fault` for one that this
    server does not have.
    """
    if isinstance(given, wire.OpenAIHosted):
        message = (
            "This server has no hosted sandboxes: use `self_hosted` with a folder of this machine, or `none`."
        )
        raise wire.refuse(message, "environment.type")
    if isinstance(given, wire.NoEnvironment):
        return {"type": "none"}
    return folder_environment(session, given.workspace_directory, given.remote_url or "")


def sandbox_in(request: web.Request, source: Sandbox | Literal[""] = "") -> Sandbox | Literal[""]:
    """Returns the sandbox that the client chooses for a session, else `source`, that of the session it is made of.
    Raises `Fault` for a wider one than its key's, or than `source`.
    """
    given = request.headers.get(SANDBOX_HEADER, "").strip()
    if not given:
        return source
    chosen = sandbox_of(given, request[CLIENT].settings.sandbox)
    if source and SANDBOXES.index(chosen) > SANDBOXES.index(source):
        message = f"The sandbox of the session is '{source}', and its fork has no wider one."
        raise Fault.of(FaultKind.NOT_ALLOWED, message, param=SANDBOX_HEADER)
    return chosen
