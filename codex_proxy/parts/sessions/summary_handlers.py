"""The handlers of `/v1/agents/session_summaries` and `/v1/agents/sessions/{id}/summary`. They raise `Fault`:
INVALID_REQUEST, NOT_FOUND for what does not exist or is another key's, CONFLICT. Source:
docs/agents-api.md#beside-openais-api.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.faults import bad_request
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.listing import MAX_PAGE_ITEMS, list_object
from codex_proxy.http.middleware.request_context import CLIENT, NOTES
from codex_proxy.parts.sessions import wire
from codex_proxy.parts.sessions.request_values import id_in, parse, query_of, sessions_at
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.parts.sessions.summaries import (
    SessionSummary,
    Viewer,
    newest_summarized,
    summaries_of,
    summary_of,
)
from codex_proxy.surfaces.requests.body import integer_in, unsupported_value

DEFAULT_SUMMARIES: Final = 50
MAX_SEARCH: Final = 200
"""Maximum characters of a search."""


async def list_session_summaries(request: web.Request) -> web.Response:
    """Lists the sessions in short, also those that a search finds: the one that was active last comes first."""
    sessions, owner = sessions_at(request)
    query = query_of(request)
    limit = integer_in("limit", query.get("limit", str(DEFAULT_SUMMARIES)), 1, MAX_PAGE_ITEMS)
    archived = query.get("archived", "false")
    if archived not in ("true", "false"):
        raise unsupported_value("archived", archived, "'true', 'false'")
    search = query.get("search", "")
    if len(search) > MAX_SEARCH or not search.isprintable():
        raise bad_request(f"'search' must be printable text of at most {MAX_SEARCH} characters.", "search")
    found = await newest_summarized(sessions.store, owner, archived=archived == "true", search=search)
    after = query.get("after")
    if after is not None:
        places = [place for place, each in enumerate(found) if each.id == after]
        if not places:
            raise bad_request("No such session is in this list: leave 'after' out, to begin anew.", "after")
        found = found[places[0] + 1 :]
    summaries: list[Any] = [*await summaries_of(sessions.store, owner, found[:limit], viewer_of(request))]
    return json_response(list_object(summaries, has_more=len(found) > limit))


async def retrieve_session_summary(request: web.Request) -> web.Response:
    """Returns a session in short.

    What other programs have done meanwhile in an idle one becomes its turns, at most every five seconds.
    """
    sessions, owner = sessions_at(request)
    session = await sessions.session(owner, id_in(request))
    if session.thread is not None:
        await sessions.import_elsewhere(owner, session)
        session = await sessions.session(owner, session.id)
    return json_response(await _summary(request, session))


async def update_session_summary(request: web.Request) -> web.Response:
    """Renames a session, archives it, or restores an archived one. Refused for one at work.

    `title` null: the beginning of the first message is the title again.
    """
    sessions, owner = sessions_at(request)
    id = id_in(request)
    given, _ = await parse(request, wire.SummaryBody)
    request[NOTES] |= {"session": id}
    named = given.model_fields_set & wire.SummaryBody.model_fields.keys()
    if not named:
        raise bad_request("Give at least one of 'title' and 'archived'.")
    if given.archived and named == {"archived"}:
        session = await sessions.session(owner, id)
        if session.archived_at is not None:
            return json_response(await _summary(request, session))
    now = sessions.now()

    def changed(session: Session) -> Session:
        if "title" in given.model_fields_set:
            session = replace(session, title=given.title)
        if "archived" in given.model_fields_set:
            session = replace(session, archived_at=(session.archived_at or now) if given.archived else None)
        return session

    await sessions.run(sessions.change(owner, id, changed, is_activity=False))
    return json_response(await _summary(request, await sessions.session(owner, id)))


def viewer_of(request: web.Request) -> Viewer:
    return Viewer(request[CLIENT], sessions_at(request)[0].responses.runs.services.agent)


async def _summary(request: web.Request, session: Session) -> SessionSummary:
    sessions, owner = sessions_at(request)
    return await summary_of(sessions.store, owner, session, viewer_of(request))
