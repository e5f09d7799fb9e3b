"""A key that is removed, or replaced, ends every answer that it was given: which routes have such answers is listed
here, and each of them is tried.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import aiohttp
import pytest
from aiohttp import web

from codex_proxy.admission.clients import LOOK_SECONDS
from codex_proxy.app.keyring import CHECK_SECONDS
from codex_proxy.core.keys import digest_of
from codex_proxy.core.passing import PASSED_PATHS
from codex_proxy.http.app_keys import CLIENTS
from codex_proxy.http.middleware.access import ABORT_SECONDS, RIGHTS
from codex_proxy.http.middleware.rate_limit import CONNECTIONS
from codex_proxy.http.page import FILES
from codex_proxy.parts import absent_part
from tests.access.keyed import key_header, keyed_proxy, look_now, write_keys
from tests.http.serving import Proxy, fake_proxy, until, user
from tests.waiting import PATIENCE, poll

HELD: Final = '[[fake:text say="a b" hold=1]]'
"""A prompt whose answer stops after its first word."""


class Ask(NamedTuple):
    """A request whose answer lasts, until somebody lets it go on."""

    body: Mapping[str, Any]
    runs: int = 1
    """How many turns run for it."""


CHAT: Final = user(HELD)
MESSAGES: Final = {**CHAT, "max_tokens": 100}
RESPONSE: Final = {"model": "codex-5", "input": HELD}

SESSION: Final = {"environment": {"type": "none"}, "agent": {"model": "codex-5"}, "input": HELD}
BETA: Final = {"OpenAI-Beta": "agents=v1"}

OF_SESSIONS: Final = {
    "POST /agents/sessions": [Ask({**SESSION, "stream": True})],
    "GET /agents/sessions/{id}/events": [Ask({}, runs=0)],
    "GET /agents/session_events": [Ask({}, runs=0)],
}
SHORT_OF_SESSIONS: Final = (
    *("POST /agents", "GET /agents", "GET /agents/{id}", "POST /agents/{id}", "DELETE /agents/{id}"),
    *("GET /agents/sessions", "GET /agents/sessions/{id}", "POST /agents/sessions/{id}"),
    *("DELETE /agents/sessions/{id}", "POST /agents/sessions/{id}/events", "GET /agents/sessions/{id}/items"),
    *("POST /agents/sessions/{id}/asks/{request_id}", "POST /responses/{id}/session"),
    *("GET /agents/session_summaries", "GET /agents/sessions/{id}/summary"),
    *("POST /agents/sessions/{id}/summary", "POST /agents/sessions/{id}/fork"),
    *("GET /agents/sessions/{id}/turns", "GET /agents/sessions/{id}/turns/{turn_id}"),
    *("GET /agents/sessions/{id}/turns/{turn_id}/items", "GET /agents/sessions/{id}/subagents"),
    *(
        f"GET /agents/sessions/{{id}}/subagents/{{subagent_id}}{below}"
        for below in ("", "/items", "/turns", "/turns/{turn_id}", "/turns/{turn_id}/items")
    ),
    *("GET /agents/sessions/{id}/artifacts", "GET /agents/sessions/{id}/traces"),
    *("GET /agents/environments", "POST /agents/environments", "GET /agents/environments/{id}"),
    *("GET /agents/environments/templates", "POST /agents/environments/templates"),
    *("GET /agents/automations", "POST /agents/automations", "GET /vaults", "POST /vaults"),
)
HAS_SESSIONS: Final = not absent_part("paths", "/vaults")
SHORT_OF_SNAPSHOTS: Final = (
    *(
        "GET /agents/sessions/{id}/turns/{turn_id}/changes",
        "POST /agents/sessions/{id}/turns/{turn_id}/revert",
        "GET /agents/sessions/{id}/worktree",
        "POST /agents/sessions/{id}/merge",
    ),
    *("GET /agents/sessions/{id}/patch", "GET /agents/sessions/{id}/artifacts/{artifact_id}"),
    "GET /agents/sessions/{id}/artifacts/{artifact_id}/content",
    *("GET /turns", "GET /turns/{turn_id}/changes", "POST /turns/{turn_id}/revert"),
)
HAS_SNAPSHOTS: Final = not absent_part("settings", "snapshots")

OF_MANAGED_AGENTS: Final = {
    "GET /sessions/{id}/events/stream": [Ask({}, runs=0)],
    "GET /sessions/{id}/threads/{thread_id}/stream": [Ask({}, runs=0)],
}
SHORT_OF_MANAGED_AGENTS: Final = (
    *("POST /agents/{id}/archive", "GET /agents/{id}/versions"),
    *("POST /environments", "GET /environments", "GET /environments/{id}", "POST /environments/{id}"),
    *("DELETE /environments/{id}", "POST /environments/{id}/archive"),
    *(
        "POST /sessions",
        "GET /sessions",
        "GET /sessions/{id}",
        "POST /sessions/{id}",
        "DELETE /sessions/{id}",
    ),
    *("POST /sessions/{id}/archive", "POST /sessions/{id}/events", "GET /sessions/{id}/events"),
    *("GET /sessions/{id}/threads", "GET /sessions/{id}/threads/{thread_id}"),
    *("POST /sessions/{id}/threads/{thread_id}/archive", "GET /sessions/{id}/threads/{thread_id}/events"),
    *("GET /sessions/{id}/resources", "POST /sessions/{id}/resources"),
    *("GET /sessions/{id}/resources/{resource_id}", "DELETE /sessions/{id}/resources/{resource_id}"),
)
HAS_MANAGED_AGENTS: Final = not absent_part("paths", "/sessions")

HAS_UPSTREAMS: Final = not absent_part("settings", "upstreams")
OF_UPSTREAMS: Final = {
    "POST /api/embed": [Ask({"model": "local/m", "input": "x"}, runs=0)],
    "POST /api/embeddings": [Ask({"model": "local/m", "prompt": "x"}, runs=0)],
    **{f"POST {path}": [Ask({"model": "local/m", "input": "x"}, runs=0)] for path in PASSED_PATHS},
}
LASTING: Final[Mapping[str, list[Ask]]] = {
    "POST /chat/completions": [Ask(CHAT), Ask({**CHAT, "stream": True}), Ask({**CHAT, "n": 2}, runs=2)],
    "POST /messages": [Ask(MESSAGES), Ask({**MESSAGES, "stream": True})],
    "POST /responses": [
        Ask({**RESPONSE, **more, "stream": stream})
        for more in ({}, {"store": False})
        for stream in (True, False)
    ]
    + [Ask({**RESPONSE, "stream": True, "background": True})],
    "POST /responses/compact": [Ask(RESPONSE)],
    "GET /responses": [Ask({}, runs=0), Ask({"type": "response.create", **RESPONSE})],
    "GET /responses/{id}": [Ask({}, runs=0)],
    "POST /api/chat": [Ask(CHAT), Ask({**CHAT, "stream": False})],
    "POST /api/generate": [Ask({"model": "codex-5", "prompt": HELD})],
    "GET /ui/api/live": [Ask({}, runs=0)],
    **(OF_UPSTREAMS if HAS_UPSTREAMS else {}),
    **(OF_SESSIONS if HAS_SESSIONS else {}),
    **(OF_MANAGED_AGENTS if HAS_MANAGED_AGENTS else {}),
}
"""The routes whose answers last as long as a turn, an upstream or the client."""

SHORT_OF_FILES: Final = (
    "POST /files",
    "GET /files",
    "GET /files/{id}",
    "DELETE /files/{id}",
    "GET /files/{id}/content",
)
SHORT: Final = frozenset(
    {
        *("GET /", "GET /v1", "GET /api/hello", "GET /healthz", "GET /livez", "GET /readyz"),
        *(() if absent_part("paths", "/cluster") else ("GET /cluster",)),
        *("GET /openapi.json", "GET /metrics", "GET /__test/conc", "POST /__test/conc/release"),
        *("GET /models", "GET /models/{id}", "GET /usage", "GET /usage/limits"),
        *("GET /api/version", "GET /api/tags", "GET /api/ps", "POST /api/show"),
        *("POST /messages/count_tokens", "POST /responses/input_tokens"),
        *("DELETE /responses/{id}", "GET /responses/{id}/input_items", "POST /responses/{id}/cancel"),
        *("POST /conversations", "POST /conversations/{id}", "GET /conversations/{id}"),
        *("DELETE /conversations/{id}", "POST /conversations/{id}/items", "GET /conversations/{id}/items"),
        *("GET /conversations/{id}/items/{item_id}", "DELETE /conversations/{id}/items/{item_id}"),
        *(f"GET /ui/{name}" for name in FILES if name != "index.html"),
        *(
            "GET /ui/api/state",
            "GET /ui/api/turns",
            "GET /ui/api/turns/{id}",
            "GET /ui/api/connect",
            "GET /ui/api/choices",
        ),
        *("GET /ui/api/turns/{id}/cassette", "POST /ui/api/turns/{id}/cancel"),
        *(() if HAS_UPSTREAMS else ("POST /api/embed", "POST /api/embeddings", "POST /completions")),
        *(SHORT_OF_SESSIONS if HAS_SESSIONS else ()),
        *(SHORT_OF_SNAPSHOTS if HAS_SNAPSHOTS else ()),
        *(SHORT_OF_MANAGED_AGENTS if HAS_MANAGED_AGENTS else ()),
        *(() if absent_part("paths", "/files") else SHORT_OF_FILES),
        # What lasts of these has an MCP session, which is tried in tests/parts/mcp_server.
        *(() if absent_part("paths", "/mcp") else ("POST /mcp", "GET /mcp", "DELETE /mcp")),
        *("GET /ui/api/stored", "GET /ui/api/stored/{id}/tree", "GET /ui/api/conversations"),
    }
)
"""The routes that answer at once, from what the server knows or has stored."""

KEYS: Final[dict[str, dict[str, Any]]] = {"one": {}, "two": {}}
GONE: Final[Mapping[str, dict[str, dict[str, Any]]]] = {
    "removed": {"two": {}},
    "replaced": {"one": {"sha256": digest_of("another")}, "two": {}},
}


def routes_of(app: web.Application) -> set[str]:
    """The methods and paths that are served, each once."""
    found = set()
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        found.add(f"{route.method} {path if path == '/v1' else path.removeprefix('/v1')}")
    return {each for each in found if not each.startswith("HEAD ")}


def unlisted(app: web.Application) -> set[str]:
    """The routes of which nobody has said whether their answers last."""
    return routes_of(app) - SHORT - LASTING.keys()


@asynccontextmanager
async def stuck_upstream() -> AsyncIterator[str]:
    """A model server that begins to answer whatever it is asked, and does not go on."""

    async def begin(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b"{")
        await asyncio.Event().wait()
        return response

    app = web.Application()
    app.router.add_post("/{path:.*}", begin)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    """A server with every endpoint, on the fake agent and an upstream that does not go on."""
    async with stuck_upstream() as url:
        table = {"url": url, "retries": 0, "models": ["m"], "paths": list(PASSED_PATHS)}
        settings: dict[str, Any] = {
            "agent": "fake",
            **({"upstreams": {"local": table}} if HAS_UPSTREAMS else {}),
            "max_running_turns": 100,
            "choices": "sample",
            "ui": True,
            "metrics": True,
            "test_endpoints": True,
        }
        environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go"), "FAKE_CODEX_HOLD": "1"}
        async with keyed_proxy(tmp_path, KEYS, environment, **settings) as proxy:
            yield proxy


def take_away(proxy: Proxy, folder: Path, how: str = "removed") -> None:
    """Removes the key `one`, or replaces it by another of its name."""
    write_keys(folder, **GONE[how])
    look_now(proxy.server)


class Cut(NamedTuple):
    """An answer to its end: its bytes, and whether its connection broke off."""

    data: bytes
    broken: bool


Begun: TypeAlias = Callable[[], None]


async def read(reply: aiohttp.ClientResponse, begun: Begun) -> Cut:
    data = b""
    try:
        async for chunk, _ in reply.content.iter_chunks():
            data += chunk
            begun()
    except aiohttp.ClientError:
        return Cut(data, broken=True)
    return Cut(data, broken=False)


async def send(
    proxy: Proxy, route: str, ask: Ask, key: str, id: str = "", begun: Begun = lambda: None
) -> Cut:
    """Sends a request of a route, and reads its answer to its end. Calls `begun` for each piece of it."""
    method, _, path = route.partition(" ")
    path = path.replace("{id}", id).replace("{thread_id}", f"sthr_{id.partition('_')[2]}")
    path += "?stream=true" if id else ""
    prefix = "" if path.startswith(("/api/", "/ui/")) else "/v1"
    if route == "GET /responses":
        return await talk(proxy, ask, key, begun)
    try:
        async with proxy.session.request(
            method,
            proxy.url + prefix + path,
            json=ask.body if ask.body else None,
            headers=key_header(key) | BETA,
        ) as reply:
            return await read(reply, begun)
    except aiohttp.ClientError:
        return Cut(b"", broken=True)


async def talk(proxy: Proxy, ask: Ask, key: str, begun: Begun) -> Cut:
    """Opens a WebSocket, sends a frame if there is one, and reads until it is closed."""
    async with proxy.session.ws_connect(proxy.url + "/v1/responses", headers=key_header(key)) as socket:
        if ask.body:
            await socket.send_json(ask.body)
        data = b""
        async for message in socket:
            data += b"data: " + message.data.encode() + b"\n\n"
            begun()
        assert socket.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION
    return Cut(data, broken=False)


async def response_in_background(proxy: Proxy, key: str) -> str:
    """Creates a response in the background, and returns its id while it runs."""
    body = {**RESPONSE, "stream": True, "background": True}
    async with proxy.session.post(proxy.url + "/v1/responses", json=body, headers=key_header(key)) as reply:
        async for line in reply.content:
            if line.startswith(b"data: "):
                id: str = json.loads(line[6:])["response"]["id"]
                return id
    raise AssertionError("there is no event")


def test_a_lost_right_is_seen_and_its_connection_closed_within_a_second() -> None:
    assert CHECK_SECONDS + LOOK_SECONDS + ABORT_SECONDS < 1


async def test_every_route_is_known_to_be_short_or_to_last(proxy: Proxy) -> None:
    assert routes_of(proxy.app) >= SHORT | LASTING.keys(), "a route of these lists is not served"
    assert unlisted(proxy.app) == set()


async def test_a_new_route_is_found() -> None:
    app = web.Application()

    async def planted(request: web.Request) -> web.Response:
        raise NotImplementedError

    app.router.add_get("/v1/planted", planted)
    assert unlisted(app) == {"GET /planted"}


async def session_at_work(proxy: Proxy, key: str) -> str:
    """Creates a session, and returns its id while its turn runs."""
    answer = await proxy.send("POST", "/v1/agents/sessions", SESSION, headers=key_header(key) | BETA)
    id: str = answer.body["id"]
    return id


async def id_for(proxy: Proxy, route: str, key: str) -> str:
    """The id of a new object for a route; empty for one without an id."""
    if "{id}" not in route:
        return ""
    return await (session_at_work if "/sessions/" in route else response_in_background)(proxy, key)


@pytest.mark.parametrize("how", GONE)
async def test_a_key_that_is_gone_ends_all_its_answers_and_no_other_ones(
    proxy: Proxy, tmp_path: Path, how: str
) -> None:
    cases = [(route, ask) for route, asks in LASTING.items() for ask in asks]
    ids = {(key, route): await id_for(proxy, route, key) for key in KEYS for route in LASTING}
    begun = {
        (key, f"{route} {dict(ask.body)}"): asyncio.create_task(send(proxy, route, ask, key, ids[key, route]))
        for key in KEYS
        for route, ask in cases
    }
    turns = 2 * sum(ask.runs for _, ask in cases) + len([*filter(None, ids.values())])
    await until(lambda: proxy.server.runs.running >= turns and len(proxy.app[RIGHTS]._held) >= len(begun))
    take_away(proxy, tmp_path, how)
    try:
        await asyncio.wait([task for (key, _), task in begun.items() if key == "one"], timeout=PATIENCE)
        assert [case for (key, case), task in begun.items() if key == "one" and not task.done()] == []
        assert [case for (key, case), task in begun.items() if key == "two" and task.done()] == []
    finally:
        for task in begun.values():
            task.cancel()
        await asyncio.wait(begun.values())


# --- how they end ---------------------------------------------------------------------------------


async def end_of(proxy: Proxy, folder: Path, route: str, ask: Ask) -> Cut:
    """How an answer ends whose key is taken away after its first bytes, or if it is not streamed, in its turn."""
    begun = asyncio.Event()
    id = await id_for(proxy, route, "one")
    asked = asyncio.create_task(send(proxy, route, ask, "one", id, begun.set))
    if ask.body.get("stream", True):
        await asyncio.wait_for(begun.wait(), PATIENCE)
    else:
        await until(lambda: proxy.server.runs.running)
    take_away(proxy, folder)
    async with asyncio.timeout(PATIENCE):
        return await asked


def told_in(data: bytes) -> list[Any]:
    """The events of a stream, or its lines of JSON."""
    lines = [
        line.removeprefix(b"data: ") for line in data.splitlines() if not line.startswith((b"event", b":"))
    ]
    return [json.loads(line) for line in lines if line and line != b"[DONE]"]


@pytest.mark.parametrize(
    ("route", "body", "ends"),
    [
        ("POST /chat/completions", {**CHAT, "stream": True}, [{"code": "invalid_api_key"}]),
        ("POST /messages", {**MESSAGES, "stream": True}, [{"type": "authentication_error"}]),
        ("POST /responses", {**RESPONSE, "stream": True}, ["error", "response.failed"]),
        ("POST /responses", {**RESPONSE, "stream": True, "store": False}, ["error", "response.failed"]),
        ("GET /responses/{id}", {}, ["error"]),
        ("GET /responses", {"type": "response.create", **RESPONSE}, ["error"]),
        ("POST /api/chat", CHAT, ["no longer valid"]),
        ("POST /api/generate", {"model": "codex-5", "prompt": HELD}, ["no longer valid"]),
        pytest.param(
            "GET /agents/sessions/{id}/events",
            {},
            [{"code": "invalid_api_key"}],
            marks=pytest.mark.part("sessions"),
        ),
    ],
)
async def test_a_stream_says_in_its_own_form_that_its_key_is_gone(
    proxy: Proxy, tmp_path: Path, route: str, body: dict[str, Any], ends: list[Any]
) -> None:
    cut = await end_of(proxy, tmp_path, route, Ask(body))
    assert not cut.broken
    last = told_in(cut.data)[-len(ends) :]
    assert "no longer valid" in json.dumps(last)
    for told, expected in zip(last, ends, strict=True):
        if isinstance(expected, dict):
            assert expected.items() <= told["error"].items()
        else:
            assert expected in (told.get("type") or told["error"])


@pytest.mark.parametrize(
    ("route", "body", "ends"),
    [
        ("POST /chat/completions", CHAT, "invalid_api_key"),
        ("POST /messages", MESSAGES, "authentication_error"),
        ("POST /responses", RESPONSE, "invalid_api_key"),
        ("POST /responses/compact", RESPONSE, "invalid_api_key"),
        ("POST /api/chat", CHAT, "no longer valid"),
    ],
)
async def test_an_answer_that_has_not_begun_becomes_an_error(
    proxy: Proxy, tmp_path: Path, route: str, body: dict[str, Any], ends: str
) -> None:
    cut = await end_of(proxy, tmp_path, route, Ask({**body, "stream": False}))
    assert not cut.broken
    assert ends in json.dumps(json.loads(cut.data)["error"])


@pytest.mark.parametrize(
    "route", ["GET /ui/api/live", pytest.param("POST /moderations", marks=pytest.mark.part("upstream"))]
)
async def test_an_answer_without_a_form_for_errors_breaks_off(
    proxy: Proxy, tmp_path: Path, route: str
) -> None:
    assert (await end_of(proxy, tmp_path, route, LASTING[route][0])).broken


async def test_a_body_that_is_still_sent_is_read_no_further(proxy: Proxy, tmp_path: Path) -> None:
    posts = sorted(route for route in routes_of(proxy.app) if route.startswith("POST "))
    posts = [
        each for each in posts if not each.endswith(("/archive", "/cancel", "/release"))
    ]  # they read none
    writers, replies = [], []
    for route in posts:
        path = re.sub(r"{\w+}", "x", route.removeprefix("POST "))
        path = path if path.startswith(("/api/", "/ui/", "/mcp")) else f"/v1{path}"
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.server.port)
        authorization = key_header("one")["Authorization"]
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {authorization}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in BETA.items())
        kind = "multipart/form-data; boundary=b" if path == "/v1/files" else "application/json"
        writer.write(f"{head}Content-Type: {kind}\r\nContent-Length: 9\r\n\r\n{{".encode())
        writers.append(writer)
        replies.append(asyncio.create_task(reader.readline()))
    await until(lambda: len(proxy.app[RIGHTS]._held) == len(posts))
    take_away(proxy, tmp_path)
    async with asyncio.timeout(PATIENCE):
        statuses = {line.split()[1] for line in await asyncio.gather(*replies)}
    assert statuses == {b"401"}
    for writer in writers:
        writer.close()


async def test_a_client_that_reads_nothing_is_disconnected(tmp_path: Path) -> None:
    flood = user("[[fake:count n=60000 size=100]]")
    async with keyed_proxy(tmp_path, KEYS) as proxy:
        for stream in (True, False):
            payload = json.dumps({**flood, "stream": stream}).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.server.port, limit=1)
            authorization = key_header("one")["Authorization"]
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {authorization}\r\n"
            )
            writer.write(
                f"{head}Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n".encode()
                + payload
            )
            await reader.readexactly(15)
            assert await until(lambda: list(proxy.app[RIGHTS]._held))
            take_away(proxy, tmp_path)
            await until(lambda: not proxy.app[RIGHTS]._held)
            await until(lambda: not proxy.app[CONNECTIONS].running)
            writer.close()
            write_keys(tmp_path, **KEYS)
            look_now(proxy.server)


async def test_a_handler_that_goes_on_all_the_same_loses_its_connection(proxy: Proxy, tmp_path: Path) -> None:
    may_end = asyncio.Event()

    async def go_on(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x")
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()
        return response

    proxy.app.router._frozen = False
    proxy.app.router.add_get("/v1/planted", go_on)
    try:
        assert (await end_of(proxy, tmp_path, "GET /planted", Ask({}))).broken
    finally:
        may_end.set()


# --- what else a key has permitted ----------------------------------------------------------------


@pytest.mark.parametrize("how", GONE)
async def test_a_response_in_the_background_fails_with_its_key(
    proxy: Proxy, tmp_path: Path, how: str
) -> None:
    ids = {key: await response_in_background(proxy, key) for key in KEYS}
    take_away(proxy, tmp_path, how)
    store = proxy.server.store_lifecycle.store  # type: ignore[union-attr]

    async def failed() -> bytes:
        found = await store.response("one", ids["one"])
        return found.json if found is not None and found.status == "failed" else b""

    assert b"no longer valid" in await poll(failed)
    other = await store.response("two", ids["two"])
    assert other is not None
    assert other.status == "in_progress"


async def test_an_answer_goes_on_when_the_limits_of_its_key_change(proxy: Proxy, tmp_path: Path) -> None:
    begun = asyncio.Event()
    ask = Ask({**CHAT, "stream": True})
    asked = asyncio.create_task(send(proxy, "POST /chat/completions", ask, "one", begun=begun.set))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    write_keys(tmp_path, one={"models": ["other"], "rpm": 1}, two={})
    look_now(proxy.server)
    keys = proxy.app[CLIENTS].keys
    await until(lambda: proxy.app[RIGHTS]._checked is keys)
    (tmp_path / "go").write_text("go")
    assert (await asked).data.endswith(b"data: [DONE]\n\n")


async def test_with_the_first_key_answers_without_one_end(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, ui=True) as proxy, proxy.session.get(proxy.url + "/ui/api/live") as reply:
        await reply.content.readany()
        write_keys(tmp_path, one={})
        look_now(proxy.server)
        assert (await read(reply, lambda: None)).broken
