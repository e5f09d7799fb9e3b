"""The handlers that make a session of what is there: of another session, or of a stored response. They raise `Fault`:
INVALID_REQUEST, NOT_FOUND for what does not exist or is another key's. Source: docs/agents-api.md#beside-openais-api.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import groupby
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.middleware.request_context import CLIENT, NOTES
from codex_proxy.http.responses import stored_response
from codex_proxy.parts.sessions import wire
from codex_proxy.parts.sessions.commands import conflict
from codex_proxy.parts.sessions.conversation import MANY_ENTRIES
from codex_proxy.parts.sessions.creation_handlers import (
    environment_of,
    sandbox_in,
    worktree_in,
    worktrees_for,
)
from codex_proxy.parts.sessions.creations import Creation, creation
from codex_proxy.parts.sessions.files_of_turns import FILES_OF_TURNS, WORKTREES, NewWorktree, points_before
from codex_proxy.parts.sessions.forks import (
    beginning_in,
    fork_of,
    kept_entries,
    past_of,
    thread_to_copy,
    with_thread,
)
from codex_proxy.parts.sessions.records import records_of
from codex_proxy.parts.sessions.request_values import id_in, parse, sessions_at
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.parts.sessions.sessions import (
    AgentThread,
    Entry,
    Session,
    SessionTurn,
    folder_environment,
    session_object,
)
from codex_proxy.parts.sessions.state import Stored
from codex_proxy.parts.sessions.stored_responses import (
    convert,
    settings_of_response,
    turn_of_response,
)
from codex_proxy.store.health import require_store, store_errors_as_faults
from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    ChainTurn,
    ContextTooLarge,
    NotStored,
    Record,
    StoredItem,
    StoredResponse,
)

MANY_BYTES: Final = 1 << 20
"""Bytes of responses above which they are converted in a thread."""

NO_FILES: Final = (
    "This server keeps no files of turns: leave 'folder' out, or ask the operator to set PROXY_SNAPSHOTS."
)
MAX_READS: Final = 10
"""How often a session at work is read to be forked."""


async def fork_session(request: web.Request) -> web.Response:
    """Creates a session with the settings of another one, and with its items before `before_item`, or with all.

    `folder`: the fork works in this new or empty folder, which gets the files as they were at that point. With the
    header `X-Codex-Worktree: true` it works in a worktree of its own with these files. `X-Codex-Sandbox` narrows the
    sandbox that it has of the other session.
    """
    given, body = await parse(request, wire.ForkBody)
    async with creation(request, body) as asked:
        return json_response(session_object(asked.known or await _fork(request, given, asked)), 201)


async def _fork(request: web.Request, given: wire.ForkBody, asked: Creation) -> Session:
    sessions, owner = sessions_at(request)
    source, turns, entries = await _read(sessions, owner, id_in(request))
    sandbox = sandbox_in(request, source.sandbox)
    cut = len(entries)
    if given.before_item is not None:
        places = [place for place, entry in enumerate(entries) if entry.id == given.before_item]
        if not places:
            raise bad_request("The session has no such item. GET .../items lists them.", "before_item")
        cut = places[0]
    points, entries = points_before(entries, cut), entries[:cut]
    long = len(entries) > MANY_ENTRIES
    kept = await beside_the_loop(partial(kept_entries, entries, source.turn), long=long)
    seen, entries = thread_to_copy(source, entries, kept), kept
    fork = fork_of(source, sessions.new_id("sess_"), entries, given.title, sessions.now())
    fork = replace(fork, sandbox=sandbox)
    files, in_worktree = request.app.get(FILES_OF_TURNS), worktree_in(request)
    if in_worktree and given.folder is not None:
        raise bad_request("A worktree has a folder of its own: give either 'folder' or the header.", "folder")
    if in_worktree:
        worktrees = worktrees_for(request, source)
        await sessions.turn_requests.check_settings(owner, fork)  # before anything is written
        made = worktrees.made(request[CLIENT], fork, points)
        return await _create(request, fork, turns, entries, asked, made)
    if given.folder is None:
        shares = request.app.get(WORKTREES)
        shared = [] if shares is None else await shares.of_fork(owner, source.id, fork.id)
        created = fork

        async def copy_and_create() -> None:
            nonlocal created
            async with _copy_of(sessions, owner, source, fork, seen) as thread:
                created = await _create(request, fork, turns, entries, asked, more=shared, thread=thread)

        # To the end, though the client leaves: the copy belongs to the fork.
        await sessions.run(copy_and_create())
        return created
    if files is None:
        raise wire.refuse(NO_FILES, "folder")
    await sessions.turn_requests.check_settings(owner, fork)  # before anything is written
    placed = files.placed(owner, request[CLIENT], source, points, given.folder)
    return await _create(request, fork, turns, entries, asked, placed)


@contextlib.asynccontextmanager
async def _copy_of(
    sessions: Sessions, owner: str, source: Session, fork: Session, seen: AgentThread | None
) -> AsyncIterator[AgentThread | None]:
    """Has the agent copy its own session of `source` (`seen`) for a fork in the same folder. Yields the copy; None
    where the agent cannot, or the session went on meanwhile: then the fork's first turn replays the items. The copy is
    deleted if the block fails.
    """
    services, copy = sessions.responses.runs.services, None
    if seen is not None and source.environment.get("workspace_directory") is not None:
        # Checked before the agent stores anything.
        prepared = await sessions.turn_requests.check_settings(owner, fork)
        id = await services.fork_stored(seen.agent, seen.id, replace(prepared.turn, owner=owner))
        copy = replace(seen, id=id) if id else None
    try:
        if copy is not None:
            now = await sessions.session(owner, source.id)
            if now.turn or now.queued or now.thread != seen:
                await services.delete_stored(owner, fork.id, copy.agent, copy.id)
                copy = None
        yield copy
    except BaseException:
        if copy is not None:
            sessions.responses.background.tasks.spawn(
                services.delete_stored(owner, fork.id, copy.agent, copy.id)
            )
        raise


async def _read(sessions: Sessions, owner: str, id: str) -> tuple[Session, list[SessionTurn], list[Entry]]:
    """Reads a session, its turns and its entries: again while another turn begins or ends meanwhile, for the session
    says which items have not ended.
    """
    source = await sessions.session(owner, id)
    for _ in range(MAX_READS):
        turn = source.turn
        entries = await sessions.store.all_entries(owner, id)
        turns = await sessions.store.all_turns(owner, id)
        source = await sessions.session(owner, id)
        if source.turn == turn:
            return source, turns, entries
    raise conflict("The session's turns come and go too fast. Try again when it is idle.")


async def create_session_of_response(request: web.Request) -> web.Response:
    """Creates a session that goes on with a stored response, and with what that has continued.

    Without an `environment` nothing runs commands.
    """
    given, body = await parse(request, wire.ResponseSessionBody)
    async with creation(request, body) as asked:
        return json_response(session_object(asked.known or await _continue(request, given, asked)), 201)


async def _continue(request: web.Request, given: wire.ResponseSessionBody, asked: Creation) -> Session:
    sessions, _ = sessions_at(request)
    found = await stored_response(request)
    if found.is_running:
        raise conflict("The response has not ended. Continue it when it has, or cancel it.")
    chain = await _chain_of(require_store(sessions.responses.store), found)
    size = sum(item.size for turn in chain for item in (*turn.input, *turn.output))
    converted = await beside_the_loop(partial(convert, chain), long=size > MANY_BYTES)
    now, id, agent_id = sessions.now(), sessions.new_id("sess_"), sessions.new_id("agent_")
    response = msgspec.json.decode(found.json, type=dict[str, Any])
    session = Session(
        id=id,
        created_at=now,
        last_active_at=now,
        agent_id=agent_id,
        agent=settings_of_response(response, converted.items),
        environment=environment_of(given.environment, id),
        beginning=beginning_in(converted.entries),
        sandbox=sandbox_in(request),
    )
    turns = [turn_of_response(turn, agent_id, now) for turn in converted.turns]
    return await _create(request, session, turns, converted.entries, asked)


async def _chain_of(store: Store, found: StoredResponse) -> list[ChainTurn]:
    """Returns what a response continues, oldest first, and the response: of one in a conversation all items of that, as
    one turn.
    """
    with store_errors_as_faults():
        try:
            if found.conversation_id is None:
                return await store.context(found.owner, found.id)
            items: list[StoredItem] = []
            await store.scan_conversation(found.owner, found.conversation_id, items.append)
            return [ChainTurn(found.id, tuple(items), ())]
        except ContextTooLarge as error:
            raise bad_request(f"The response cannot become a session: {error}.", "id") from None
        except NotStored as error:
            raise Fault.of(FaultKind.NOT_FOUND, f"'{excerpt(error.id)}' was deleted.") from None


async def _create(
    request: web.Request,
    session: Session,
    turns: Sequence[SessionTurn],
    entries: Sequence[Entry],
    asked: Creation,
    placed: AbstractAsyncContextManager[NewWorktree | str | None] | None = None,
    more: Sequence[Record] = (),
    thread: AgentThread | None = None,
) -> Session:
    """Stores a new session with copies of these entries, which are of some of these turns. `placed`: writes its files,
    and yields its worktree or folder; `more`: what else is stored with it; `thread`: the agent's own session for it.
    """
    sessions, owner = sessions_at(request)
    request[NOTES] |= {"session": session.id, "model": session.agent.model}
    created = session

    async def create() -> None:
        nonlocal created
        async with placed or contextlib.nullcontext() as place:
            folder, records = (
                (place.folder, [place.record]) if isinstance(place, NewWorktree) else (place, [])
            )
            if folder is not None:
                created = replace(session, environment=folder_environment(session.id, folder))
            records += [*asked.records(created), *more]
            created, copies = await _store(sessions, owner, created, turns, entries, records, thread)
        files = request.app.get(FILES_OF_TURNS)
        if files is not None and session.forked_from:
            copied = [turn for turn, _ in groupby(entries, lambda entry: entry.turn)]
            await files.copy(owner, zip(copied, (copy.id for copy in copies), strict=True), folder)

    await sessions.run(create())
    return created


async def _store(
    sessions: Sessions,
    owner: str,
    session: Session,
    turns: Sequence[SessionTurn],
    entries: Sequence[Entry],
    more: Sequence[Record],
    thread: AgentThread | None,
) -> tuple[Session, list[SessionTurn]]:
    """Stores a new session with these records. Returns it with the copies of the turns of which it has entries, in
    their order.
    """
    prepared = await sessions.turn_requests.check_settings(owner, session)
    now, long = sessions.epoch(), len(entries) > MANY_ENTRIES
    past = await beside_the_loop(partial(past_of, session, turns, entries, sessions.new_id, now), long=long)
    session = session if thread is None else with_thread(session, thread, past)
    stored: list[Stored] = [*past.turns, *past.entries, *([past.page] if past.page else [])]
    records, _ = await beside_the_loop(partial(records_of, session, stored, now, session.storage), long=long)
    live = sessions.new(owner, session, past)
    await sessions.create(live, [], prepared, [*records, *more])
    return live.session, past.turns
