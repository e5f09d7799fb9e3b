"""The traces of a session's turns, in OpenTelemetry's JSON (OTLP): the turn, its calls of the model and of the agent's
tools, by the conventions for generative AI. They are made of the session's log, and say nothing of what was said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict

from aiohttp import web

from codex_proxy import __version__
from codex_proxy.core.beside_the_loop import FEW_ITEMS, beside_the_loop
from codex_proxy.core.event_rows import decode_row
from codex_proxy.core.events import Usage
from codex_proxy.core.items import Activity, McpCall
from codex_proxy.core.shown_text import excerpt
from codex_proxy.parts.sessions.items import WholeItem
from codex_proxy.parts.sessions.log import Acted, Asked, Ended, Logged, LogPage, Said, StepBegan, StepEnded
from codex_proxy.parts.sessions.records import LOG, MAX_PAGE, TURN, SessionStore, log_page_id
from codex_proxy.parts.sessions.request_values import id_in, list_response, page_in, sessions_at
from codex_proxy.parts.sessions.sessions import Session, SessionTurn, said_name
from codex_proxy.store.values import PageRequest
from codex_proxy.surfaces.answers.renderer import Count, Object

MAX_LOG_PAGES: Final = 5000
MAX_LOG_BYTES: Final = 16 << 20
"""How much of a session's log is read at most for a list, and how much of that is held, the newest first: the turns
before have empty traces.
"""
_LOGGED_BYTES: Final = 200
"""About how many bytes something logged takes, but for its row."""
_INTERNAL: Final = 1
_CLIENT: Final = 3
_ERROR: Final = 2


class Trace(TypedDict):
    """The trace of a turn, whose id it has."""

    id: str
    object: Literal["agent.session.trace"]
    created_at: Count
    session_id: str
    otlp: Object


class Happened(NamedTuple):
    """Something logged, and when: nanoseconds since 1970."""

    what: Logged
    at: int


async def list_session_traces(request: web.Request) -> web.Response:
    """Lists the traces of a session's turns: what has ended of each."""
    sessions, owner = sessions_at(request)
    session, store = await sessions.session(owner, id_in(request)), sessions.store
    asked = page_in(request)
    page = await store.page(owner, TURN, asked, parent=session.id)
    behind = await _behind(store, owner, session.id, page.items, asked.order)
    wanted = {said_name(turn, 0): turn for turn in (*(turn.id for turn in page.items), *behind)}
    pages = await _pages_of(store, owner, session.id, wanted, open_end=not behind)

    def traces() -> list[Trace]:
        log = events_by_turn(reversed(pages), wanted)
        return [trace_object(session, turn, log[turn.id]) for turn in page.items]

    long = sum(len(each.logged) for each in pages) > FEW_ITEMS
    return list_response(await beside_the_loop(traces, long=long), page)


async def _behind(
    store: SessionStore, owner: str, session: str, turns: Sequence[SessionTurn], order: str
) -> list[str]:
    """Returns the id of the turn behind a page of turns, whose beginning is their end; none if there is none."""
    if not turns:
        return []
    newest = turns[0] if order == "desc" else turns[-1]
    later = await store.page(owner, TURN, PageRequest(1, "asc", newest.id), parent=session)
    return [turn.id for turn in later.items]


async def _pages_of(
    store: SessionStore, owner: str, session: str, wanted: Collection[str], *, open_end: bool
) -> list[LogPage]:
    """Returns the pages of a session's log, newest first, that have what was logged behind the messages with these
    names; without those behind the newest of them, unless the end is open.
    """
    pages: list[LogPage] = []
    missing, read, size = set(wanted), 0, 0
    after, more = None, bool(wanted)
    while more and missing and read < MAX_LOG_PAGES and size < MAX_LOG_BYTES:
        found = await store.page(owner, LOG, PageRequest(MAX_PAGE, "desc", after), parent=session)
        for each in found.items:
            missing -= {what.name for what in each.logged if isinstance(what, Said)}
            if open_end or len(missing) < len(wanted):
                pages.append(each)
                size += _size(each)
        read += len(found.items)
        more, after = found.has_more, log_page_id(session, found.items[-1].first) if found.items else None
    return pages


def _size(page: LogPage) -> int:
    """Returns about how many bytes of memory a page takes."""
    return sum(_LOGGED_BYTES + _own_size(each) for each in page.logged)


def _own_size(logged: Logged) -> int:
    match logged:
        case Acted(row=json) | Asked(arguments=json):
            return len(json)
    return 0


def events_by_turn(pages: Iterable[LogPage], turns: Mapping[str, str]) -> dict[str, list[Happened]]:
    """Returns what was logged, by the turn in which it was. `turns`: their ids by the names of their first messages."""
    found: dict[str, list[Happened]] = {turn: [] for turn in turns.values()}
    turn = ""
    for page in pages:
        for each in page.logged:
            if isinstance(each, Said):  # also what steers a turn
                turn = turns.get(each.name, turn)
            if turn:
                found[turn].append(Happened(each, 1000 * (page.at + each.number - page.first)))
    return found


# --- spans ----------------------------------------------------------------------------------------


def trace_object(session: Session, turn: SessionTurn, happened: Sequence[Happened]) -> Trace:
    scope = {"name": "codex-proxy", "version": __version__}
    resource = {"attributes": _attributes({"service.name": "codex-proxy", "service.version": __version__})}
    spans = _spans(session, turn, happened)
    return {
        "id": turn.id,
        "object": "agent.session.trace",
        "created_at": turn.created_at,
        "session_id": session.id,
        "otlp": {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]},
    }


def _spans(session: Session, turn: SessionTurn, happened: Sequence[Happened]) -> list[Object]:
    """Returns the spans that have ended: the turn's first."""
    name = excerpt(session.agent.model)
    model = {"gen_ai.request.model": name} if name else {}
    begun: dict[int | str, Happened] = {}
    spans: list[Object] = []
    for each in happened:
        match each.what:
            case StepBegan(number=number):
                begun[number] = each
            case StepEnded(start=start, usage=usage, failed=failed) if start in begun:
                said = {"gen_ai.operation.name": "chat", **model, **_usage(usage)}
                spans.append(_span(turn.id, f"chat {name}".rstrip(), begun[start], each.at, said, failed))
            case Acted(item=item):
                begun[item] = each
            case Ended(item=item, failed=failed) if item in begun:
                act = begun[item]
                assert isinstance(act.what, Acted), "calls of tools begin so"
                tool = _tool_of(act.what)
                said = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
                said |= {"gen_ai.tool.call.id": item}
                spans.append(_span(turn.id, f"execute_tool {tool}", act, each.at, said, failed))
    if turn.completed_at is None or not happened:
        return spans
    last = max(happened[-1].at, 1_000_000_000 * turn.completed_at)
    said = {"gen_ai.operation.name": "invoke_agent", "gen_ai.conversation.id": session.id, **model}
    own = _span(turn.id, "invoke_agent", happened[0], last, said | _usage(turn.usage), turn.error is not None)
    del own["parentSpanId"]
    return [{**own, "spanId": _id(turn.id, 16)}, *spans]


def _span(
    turn: str, name: str, begun: Happened, ended: int, attributes: Mapping[str, Any], failed: bool
) -> Object:
    return {
        "traceId": _id(f"trace {turn}", 32),
        "spanId": _id(f"{turn} {begun.what.number}", 16),
        "parentSpanId": _id(turn, 16),
        "name": name,
        "kind": _CLIENT if name.startswith("chat") else _INTERNAL,
        "startTimeUnixNano": str(begun.at),
        "endTimeUnixNano": str(ended),
        "attributes": _attributes(attributes),
        "status": {"code": _ERROR} if failed else {},
    }


def _id(of: str, digits: int) -> str:
    return hashlib.sha256(of.encode()).hexdigest()[:digits]


def _attributes(values: Mapping[str, Any]) -> list[Object]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]


def _usage(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    return {"gen_ai.usage.input_tokens": usage.input, "gen_ai.usage.output_tokens": usage.output}


def _tool_of(act: Acted) -> str:
    """Returns the name of a tool that the agent has called."""
    whole = WholeItem.of(decode_row(bytes(act.row)))
    if isinstance(whole.item, McpCall):
        return excerpt(whole.item.name)
    kind = whole.item.kind if isinstance(whole.item, Activity) else "tool"
    return excerpt(whole.details.tool or kind)
