"""Pages of the events of a session or thread: its log, rendered. Raises `Fault`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final

import msgspec

from codex_proxy.core.json_values import encode_json
from codex_proxy.parts.managed_agents.events import (
    LogOf,
    event_of,
    id_of,
    needed_entries,
    seconds_of,
)
from codex_proxy.parts.managed_agents.pages import Cursor, PageQuery, TimeRange, time_text, unknown_cursor
from codex_proxy.parts.sessions.log import Logged, LogPage
from codex_proxy.parts.sessions.records import ENTRY, LOG, MAX_PAGE, SessionStore, log_page_id
from codex_proxy.parts.sessions.sessions import Entry
from codex_proxy.store.values import PageRequest

MAX_EVENTS: Final = 1000
"""Maximum events of a page, and how many it has without a `limit`."""
MAX_BYTES: Final = 16 << 20
"""Bytes of events with which a page ends, so that no list takes the memory of a whole session."""
_ENTRIES_AT_ONCE: Final = 16
_RECENT: Final = 50
"""Pages of the log in which what was sent just now is looked for."""


async def list_events(
    store: SessionStore,
    owner: str,
    log: LogOf,
    query: PageQuery,
    types: Collection[str],
    made: TimeRange,
) -> tuple[list[msgspec.Raw], str | None]:
    """Returns a page of events as JSON, of these types (empty: of all) and times, and the cursor of the next page."""
    found, size = list[msgspec.Raw](), 0
    after, rest, last = None, list[tuple[Logged, LogPage]](), ""
    if query.cursor is not None:
        after, rest = await _behind(store, owner, log, query.cursor)
    while True:
        rest = [each for each in rest if seconds_of(*each) in made]
        async for logged, page, entries in _with_entries(store, owner, rest):
            event = event_of(logged, page, log, entries)
            if not event or (types and event["type"] not in types):
                continue
            if len(found) == query.limit or size >= MAX_BYTES:
                return found, last
            found.append(msgspec.Raw(encode_json(event)))
            size += len(bytes(found[-1]))
            last = str(Cursor(query.order, f"{page.first}:{logged.number}", seconds_of(logged, page)))
        few = not types and made == TimeRange()  # else most of what is read may be none of what is wanted
        request = PageRequest(min(MAX_PAGE, query.limit) if few else MAX_PAGE, query.order, after)
        pages = await store.page(owner, LOG, request, parent=log.id)
        if not pages.items:
            return found, None
        after = log_page_id(log.id, pages.items[-1].first)
        rest = [each for page in pages.items for each in _in_order(page, query)]


def _in_order(page: LogPage, query: PageQuery) -> list[tuple[Logged, LogPage]]:
    logged = page.logged if query.order == "asc" else reversed(page.logged)
    return [(each, page) for each in logged]


async def _behind(
    store: SessionStore, owner: str, log: LogOf, cursor: Cursor
) -> tuple[str, list[tuple[Logged, LogPage]]]:
    """Returns the page of a cursor, and what is in it behind that."""
    first, _, number = cursor.id.partition(":")
    if not (first.isdecimal() and number.isdecimal() and len(cursor.id) < 40):
        raise unknown_cursor()
    id = log_page_id(log.id, int(first))
    page = await store.find(owner, LOG, id)
    if page is None:
        raise unknown_cursor()
    behind = [each for each in page.logged if (each.number > int(number)) is (cursor.order == "asc")]
    behind = [each for each in behind if each.number != int(number)]
    return id, [(each, page) for each in (behind if cursor.order == "asc" else reversed(behind))]


async def _with_entries(
    store: SessionStore, owner: str, rest: Sequence[tuple[Logged, LogPage]]
) -> AsyncIterator[tuple[Logged, LogPage, Mapping[str, Entry]]]:
    """Yields what is logged with its page and entries, of which few are read at once."""
    for start in range(0, len(rest), _ENTRIES_AT_ONCE):
        some = rest[start : start + _ENTRIES_AT_ONCE]
        ids = dict.fromkeys(needed_entries(logged for logged, _ in some))
        found = await asyncio.gather(*(store.get(owner, ENTRY, id) for id in ids))
        entries = {entry.id: entry for entry in found}
        for logged, page in some:
            yield logged, page, entries


async def times_of(store: SessionStore, owner: str, log: LogOf, ids: Collection[str]) -> dict[str, str]:
    """Returns when these events were processed, of those that were just now."""
    request = PageRequest(_RECENT, "desc", None)
    pages = await store.page(owner, LOG, request, parent=log.id)
    return {
        id: time_text(seconds_of(each, page))
        for page in pages.items
        for each in page.logged
        if (id := id_of(each, log)) in ids
    }
