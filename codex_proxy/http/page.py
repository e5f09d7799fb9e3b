"""The page for browsers at `/` (its files are in `http/ui`), and its API. A key sees only its own turns and responses,
the agents that it may use, and no content but what the store keeps for it, and messages of failures.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

import msgspec
from aiohttp import web

from codex_proxy.core.checks import Check
from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import SANDBOXES
from codex_proxy.http.app_keys import CLIENTS, RESPONSES, RUNS
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.middleware.request_context import CLIENT, OWNER, REPLY_HEADERS
from codex_proxy.http.server_info import STARTED, WORKER, agent_health, agents_for, root, tool_server_health
from codex_proxy.http.sse import EventStream
from codex_proxy.runs.observers import WORKER_TURNS, TurnRecord, TurnRecords
from codex_proxy.store.health import require_store, store_errors_as_faults
from codex_proxy.store.store import Store
from codex_proxy.store.values import NotStored, StoredResponse

FILES: Final = {
    "index.html": "text/html",
    "style.css": "text/css",
    "sessions.css": "text/css",
    "page.js": "text/javascript",
    "sessions.js": "text/javascript",
    "conversation.js": "text/javascript",
    "composer.js": "text/javascript",
    "notices.js": "text/javascript",
    "live.js": "text/javascript",
    "live_worker.js": "text/javascript",
    "feed.js": "text/javascript",
    "playground.js": "text/javascript",
    "code.js": "text/javascript",
    "lib.js": "text/javascript",
    "items.js": "text/javascript",
    "items.css": "text/css",
    "output.js": "text/javascript",
    "markdown.js": "text/javascript",
    "inline.js": "text/javascript",
    "diff.js": "text/javascript",
    "changes.js": "text/javascript",
    "turn_files.js": "text/javascript",
    "asks.js": "text/javascript",
    "forms.js": "text/javascript",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
LIVE_SECONDS: Final = 0.5
"""Seconds between two looks for changed turns."""
PING_SECONDS: Final = 15.0
"""Seconds of silence until the stream of changes gets a comment."""
MAX_STORED_PER_PAGE: Final = 100
"""Maximum stored responses or conversations in one answer."""
MAX_SEARCH: Final = 200
MAX_SHOWN: Final = 300
"""Maximum characters of a stored response in the list."""


class PageContent(msgspec.Struct, frozen=True):
    """What the page shows. `findings` returns what `doctor` finds, and `clients` how each known client is configured
    for a server at an address (ending with `/v1`).
    """

    findings: Callable[[], Awaitable[Sequence[Check]]]
    clients: Callable[[str], Sequence[Mapping[str, Any]]]


PAGE: Final = web.AppKey("page", PageContent)


@cache
def _file(name: str) -> tuple[bytes, bytes, str]:
    """Returns a file, the same compressed, and its tag, which both have."""
    body = (files("codex_proxy.http") / "ui" / name).read_bytes()
    return body, gzip.compress(body, mtime=0), f'W/"{sha256(body).hexdigest()[:16]}"'


async def ui_file(request: web.Request) -> web.Response:
    """Returns a file of the page.

    304 if the browser has it.
    """
    name = request.path.rpartition("/")[2] or "index.html"
    body, packed, tag = _file(name)
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "ETag": tag,
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept, Accept-Encoding",
    }
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        body = packed
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, content_type=FILES[name], charset="utf-8", headers=headers)


async def home(request: web.Request) -> web.StreamResponse:
    """Says that a server runs here; a browser gets the page. Anthropic's clients request it first."""
    wants_page = PAGE in request.app and "text/html" in request.headers.get("Accept", "")
    return await (ui_file(request) if wants_page else root(request))


# --- the API of the page ------------------------------------------------------------------------


async def ui_state(request: web.Request) -> web.Response:
    """Returns the server, its agents, and what `doctor` would complain about."""
    client, runs = request[CLIENT], request.app[RUNS]
    agents = []
    for agent in agents_for(request, client):
        about = agent_health(agent, request, in_detail=True)
        counts = msgspec.to_builtins(agent.processes())
        counts["each"] = msgspec.to_builtins(agent.each_process())
        agents.append({**about, "warning": agent.warning, "processes": counts})
    return json_response(
        {
            "started": request.app[STARTED],
            "worker": request.app[WORKER],
            "workdir": client.settings.workdir,
            "sandbox": client.settings.sandbox,
            "keys_required": request.app[CLIENTS].keys_required,
            "key": request[OWNER],
            "running": runs.running,
            "queued": runs.queued,
            "agents": agents,
            "mcp": tool_server_health(request, client),
            "findings": [
                each for each in await request.app[PAGE].findings() if each.status in ("failed", "warning")
            ],
        }
    )


async def ui_choices(request: web.Request) -> web.Response:
    """Returns what a turn of the key may choose: its agent, its mode, and the folder and the sandbox of an agent turn.

    `plain`: the agents that have no agent turns.
    """
    client = request[CLIENT]
    sandbox = SANDBOXES.index(client.settings.sandbox)
    agents = [agent.name for agent in agents_for(request, client)]
    acts = any(name not in client.catalog.plain for name in client.catalog.members or ("",))
    return json_response(
        {
            "agents": agents,
            "builtin_tools": client.settings.builtin_tools if acts else "never",
            "folder": client.workspace.folder,
            "plain": [name for name in agents if name in client.catalog.plain],
            "sandboxes": SANDBOXES[: sandbox + 1],
            "roots": client.workspace.roots,
            "worktrees": bool(client.workspace.own),
            "worker": request.app[WORKER],
        }
    )


async def ui_turns(request: web.Request) -> web.Response:
    """Returns the turns of the key: those that run, and the last ones; and the agents that it may use."""
    records = _records(request).of_owner(request[OWNER])
    agents = [agent.name for agent in agents_for(request, request[CLIENT])]
    return json_response(
        {"object": "list", "data": [record.summary() for record in records], "agents": agents}
    )


async def ui_turn(request: web.Request) -> web.Response:
    """Returns a turn with its events and their times, without their content.

    It is named by its number, its request's id, or the id of the session's turn to which it belongs.

    Raises `Fault` NOT_FOUND.
    """
    record = _record_of(request)
    return json_response(
        {
            **msgspec.to_builtins(record.summary()),
            "events": record.timeline,
            "events_left_out": record.events_left_out,
        }
    )


async def ui_cassette(request: web.Request) -> web.Response:
    """Returns the recording of a turn, if the server records.

    Raises `Fault` NOT_FOUND.
    """
    recording = _record_of(request).recording
    try:
        body = None if recording is None else await asyncio.to_thread(recording.read_bytes)
    except OSError:
        body = None
    if body is None:
        raise _not_found("There is no recording of this turn.")
    return web.Response(body=body, content_type="application/x-ndjson")


async def ui_cancel(request: web.Request) -> web.Response:
    """Ends a turn of the key with an error, which its client gets.

    Raises `Fault` NOT_FOUND.
    """
    record = _record_of(request)
    request.app[RUNS].cancel(record)
    return json_response(record.summary())


def _records(request: web.Request) -> TurnRecords:
    records = request.app[RUNS].records
    assert records is not None, "a server with a page remembers its turns"
    return records


def _record_of(request: web.Request) -> TurnRecord:
    id, worker = request.match_info["id"], request.app[WORKER]
    number = int(id) if id.isdecimal() and len(id) < 16 else 0
    records, owner = _records(request), request[OWNER]
    found = records.find(owner, number) if number else records.of_origin(owner, id)
    if found is None:
        if worker and number // WORKER_TURNS != worker:
            # The page tries again on a new connection, which may reach the worker that has the turn.
            request[REPLY_HEADERS]["Connection"] = "close"
        raise _not_found("There is no such turn. Only those that run and the last ones are remembered.")
    return found


async def ui_live(request: web.Request) -> web.StreamResponse:
    """Returns a stream of the turns that change.

    The running turns, then every half second the changed ones, until the client leaves or the server stops.
    `estimates`: tokens of running turns, by number; `worker`: the process of these turns, 0 for the only one.
    """
    runs, records = request.app[RUNS], _records(request)
    stream = EventStream(request, dict)
    seen, silent = -1, 0.0
    estimates: dict[int, int] = {}
    stopping = asyncio.ensure_future(runs.until_draining())
    try:
        while not stopping.done():
            changed = records.of_owner(request[OWNER], after=seen)
            if seen < 0:
                changed = [record for record in changed if not record.has_ended]
            before, estimates = estimates, records.estimates(request[OWNER])
            if changed or seen < 0 or estimates != before:
                body: dict[str, Any] = {
                    "turns": [record.summary() for record in changed],
                    "worker": request.app[WORKER],
                    "estimates": {id: tokens for id, tokens in estimates.items() if before.get(id) != tokens},
                    "running": runs.running,
                    "queued": runs.queued,
                }
                await stream.write(b"data: " + msgspec.json.encode(body) + b"\n\n")
                silent = 0.0
            elif silent >= PING_SECONDS:
                await stream.write(b": ping\n\n")
                silent = 0.0
            seen = records.version
            await asyncio.wait([stopping], timeout=LIVE_SECONDS)
            silent += LIVE_SECONDS
        return await stream.close()
    finally:
        stream.stop()
        stopping.cancel()


async def ui_stored(request: web.Request) -> web.Response:
    """Returns the key's stored responses, newest first.

    Raises `Fault` INVALID_REQUEST, NOT_FOUND for an unknown `after`, or UNAVAILABLE.
    """
    search, after = _search_of(request)
    with _store_of(request) as store:
        page = await store.newest_responses(
            request[OWNER], search=search, after=after, limit=MAX_STORED_PER_PAGE
        )
    return _stored_page(
        await asyncio.to_thread(lambda: [_entry(each) for each in page.items]), has_more=page.has_more
    )


async def ui_conversations(request: web.Request) -> web.Response:
    """Returns the key's conversations, newest first."""
    search, after = _search_of(request)
    with _store_of(request) as store:
        page = await store.newest_conversations(
            request[OWNER], search=search, after=after, limit=MAX_STORED_PER_PAGE
        )
    data = [{"id": each.id, "created_at": each.created, "metadata": each.metadata} for each in page.items]
    return _stored_page(data, has_more=page.has_more)


def _search_of(request: web.Request) -> tuple[str, str | None]:
    search = request.query.get("search", "")
    if len(search) > MAX_SEARCH:
        raise bad_request(f"'search' is longer than {MAX_SEARCH} characters.", "search")
    return search, request.query.get("after") or None


def _stored_page(data: list[dict[str, Any]], *, has_more: bool) -> web.Response:
    last_id = data[-1]["id"] if data else None
    return json_response({"object": "list", "data": data, "has_more": has_more, "last_id": last_id})


async def ui_tree(request: web.Request) -> web.Response:
    """Returns the responses that continue each other around this one.

    Raises `Fault` NOT_FOUND, or UNAVAILABLE.
    """
    with _store_of(request) as store:
        nodes = await store.response_tree(request[OWNER], request.match_info["id"])
    branches: dict[str, dict[str, Any]] = {}
    for node in nodes:
        branches[node.id] = branch = {"id": node.id, "deleted": node.deleted, "next": []}
        if node.previous_id in branches:
            branches[node.previous_id]["next"].append(branch)
    return json_response(next(iter(branches.values())))


@contextmanager
def _store_of(request: web.Request) -> Iterator[Store]:
    try:
        with store_errors_as_faults():
            yield require_store(request.app[RESPONSES].store)
    except NotStored as error:
        raise _not_found(f"There is no {error.kind} {error.id!r}.") from error


def _not_found(message: str) -> Fault:
    return Fault.of(FaultKind.NOT_FOUND, message)


def _entry(stored: StoredResponse) -> dict[str, Any]:
    response: dict[str, Any] = msgspec.json.decode(stored.json)
    parts = (part for item in response.get("output", ()) for part in item.get("content") or ())
    text = " ".join(str(part.get("text", "")) for part in parts)
    return {
        "id": stored.id,
        "created_at": stored.created,
        "status": stored.status,
        "model": response.get("model"),
        "conversation": stored.conversation_id,
        "previous": stored.previous_id,
        "text": excerpt(text, MAX_SHOWN),
    }


async def ui_connect(request: web.Request) -> web.Response:
    """Returns how each known client is configured for this server."""
    guides = request.app[PAGE].clients(f"{request.url.origin()}/v1")
    return json_response({"object": "list", "data": guides})
