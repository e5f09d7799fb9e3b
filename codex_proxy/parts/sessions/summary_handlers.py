"""The handlers of `/v1/agents/session_summaries` and `/v1/agents/sessions/{id}/summary`. They raise `Fault`:
INVALID_REQUEST, NOT_FOUND for what does not exist or is another key's, CONFLICT. Source:
docs/agents-api.md#beside-openais-api.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.faults import bad_request
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.listing import MAX_PAGE_ITEMS, list_object
from codex_proxy.http.middleware.request_context import CLIENT, NOTES
from codex_proxy.parts.sessions import wire
from codex_proxy.parts.sessions.conversation import beginning_of
from codex_proxy.parts.sessions.records import ENTRY, TURN
from codex_proxy.parts.sessions.request_values import id_in, parse, query_of, sessions_at
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.parts.sessions.sessions import Session, UserMessage
from codex_proxy.parts.sessions.summaries import SessionSummary, Viewer, summary_object, title_of
from codex_proxy.store.values import PageRequest
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
    found = await newest_summarized(sessions, owner, archived=archived == "true", search=search)
    after = query.get("after")
    if after is not None:
        places = [place for place, each in enumerate(found) if each.id == after]
        if not places:
            raise bad_request("No such session is in this list: leave 'after' out, to begin anew.", "after")
        found = found[places[0] + 1 :]
    summaries: list[Any] = [*await summaries_of(sessions, owner, found[:limit], viewer_of(request))]
    return json_response(list_object(summaries, has_more=len(found) > limit))


async def retrieve_session_summary(request: web.Request) -> web.Response:
    """Returns a session in short."""
    sessions, owner = sessions_at(request)
    return json_response(await _summary(request, await sessions.session(owner, id_in(request))))


async def update_session_summary(request: web.Request) -> web.Response:
    """Renames a session, archives it, or restores an archived one. Refused for one at work.

    `title` null: the beginning of the first message is the title again.
    """
    sessions, owner = sessions_at(request)
    id = id_in(request)
    given, _ = await parse(request, wire.SummaryBody)
    request[NOTES] |= {"session": id}
    if not given.model_fields_set:
        raise bad_request("Give at least one of 'title' and 'archived'.")
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


async def newest_summarized(
    sessions: Sessions, owner: str, *, archived: bool = False, search: str = ""
) -> list[Session]:
    """Returns sessions, the one that was active last first: of those that were made last, the archived ones or the
    others that a search finds.
    """
    made = await sessions.store.newest_sessions(owner)
    found = [each for each in made if (each.archived_at is not None) == archived]
    if search:
        said, lower = await sessions.store.sessions_with(owner, search), search.casefold()
        found = [each for each in found if each.id in said or lower in title_of(each).casefold()]
    return sorted(found, key=lambda each: (each.last_active_at, each.created_at), reverse=True)


async def summaries_of(
    sessions: Sessions, owner: str, found: Sequence[Session], viewer: Viewer
) -> list[SessionSummary]:
    """Returns the summaries of sessions, in their order."""
    return [await summary_of(sessions, owner, each, viewer) for each in found]


async def summary_of(sessions: Sessions, owner: str, session: Session, viewer: Viewer) -> SessionSummary:
    turn = None
    if session.turn:
        turn = await sessions.store.find(owner, TURN, session.turn)
    if not title_of(session):  # stored by a release that did not keep the beginning
        page = await sessions.store.page(owner, ENTRY, PageRequest(1, "asc", None), parent=session.id)
        first = page.items[0].item if page.items else None
        if isinstance(first, UserMessage):
            session = replace(session, beginning=beginning_of([first.content]))
    return summary_object(session, turn, viewer)


async def _summary(request: web.Request, session: Session) -> SessionSummary:
    sessions, owner = sessions_at(request)
    return await summary_of(sessions, owner, session, viewer_of(request))
