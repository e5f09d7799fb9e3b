"""The handlers that make a session of what is there: of another session, or of a stored response. They raise `Fault`:
INVALID_REQUEST, NOT_FOUND for what does not exist or is another key's. Source: docs/agents-api.md#beside-openais-api.
"""

from __future__ import annotations

from functools import partial

from aiohttp import web

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.faults import bad_request
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.middleware.request_context import NOTES
from codex_proxy.parts.sessions import wire
from codex_proxy.parts.sessions.forks import fork_of, kept_entries, past_of
from codex_proxy.parts.sessions.records import records_of
from codex_proxy.parts.sessions.request_values import id_in, parse, sessions_at
from codex_proxy.parts.sessions.running import MANY_ENTRIES
from codex_proxy.parts.sessions.sessions import session_object
from codex_proxy.parts.sessions.state import Stored


async def fork_session(request: web.Request) -> web.Response:
    """Creates a session with the settings of another one, and with its items before `before_item`, or with all."""
    sessions, owner = sessions_at(request)
    given, _ = await parse(request, wire.ForkBody)
    source = await sessions.session(owner, id_in(request))
    entries = await sessions.store.all_entries(owner, source.id)
    if given.before_item is not None:
        places = [place for place, entry in enumerate(entries) if entry.id == given.before_item]
        if not places:
            raise bad_request("The session has no such item. GET .../items lists them.", "before_item")
        entries = entries[: places[0]]
    turns = await sessions.store.all_turns(owner, source.id)
    long = len(entries) > MANY_ENTRIES
    entries = await beside_the_loop(partial(kept_entries, entries, source.turn), long=long)
    fork = fork_of(source, sessions.new_id("sess_"), entries, given.title, sessions.now())
    request[NOTES] |= {"session": fork.id, "model": fork.agent.model}
    prepared = await sessions.check_settings(owner, fork)
    now = sessions.epoch()
    past = await beside_the_loop(partial(past_of, fork, turns, entries, sessions.new_id, now), long=long)
    stored: list[Stored] = [*past.turns, *past.entries, *([past.page] if past.page else [])]
    records = await beside_the_loop(partial(records_of, fork, stored, now), long=long)
    live = sessions.new(owner, fork, past)
    await sessions.run(sessions.create(live, [], prepared, records))
    return json_response(session_object(live.session), 201)
