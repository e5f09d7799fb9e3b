"""The handler of the stream of all sessions of a key."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from codex_proxy.http.middleware.request_context import NOTES
from codex_proxy.parts.sessions.handlers import send_events
from codex_proxy.parts.sessions.request_values import query_of, sessions_at
from codex_proxy.parts.sessions.summaries import Viewer, newest_summarized, summaries_of
from codex_proxy.parts.sessions.summary_handlers import viewer_of

FIRST_SUMMARIES: Final = 50
"""How many sessions the beginning of the stream has."""


async def stream_all_events(request: web.Request) -> web.StreamResponse:
    """Returns the events of all sessions from now on, as server-sent events, and their summaries.

    It begins with the summaries of the sessions that were active last; then each that has changed comes again.
    """
    sessions, owner = sessions_at(request)
    query_of(request)
    store, opened_by = sessions.store, viewer_of(request)

    def viewer() -> Viewer:
        return opened_by._replace(client=sessions.responses.clients.renew(opened_by.client))

    request[NOTES] |= {"stream": True}
    with sessions.streams.count(owner):
        reader = sessions.streams.feed_reader(owner, store, viewer)
        try:
            newest = (await newest_summarized(store, owner))[:FIRST_SUMMARIES]
            reader.begin(await summaries_of(store, owner, newest, viewer()))
        except BaseException:
            reader.close()
            raise
        if sessions.responses.runs.draining:
            reader.end()
        return await send_events(request, reader)
