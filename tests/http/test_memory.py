"""What a request has left in memory when it is over: nothing, without a look of the garbage collector."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import pkgutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from codex_proxy.agents.codex_app_server import app_server_setup as app_server_setup
from codex_proxy.agents.codex_app_server.app_server_dialect import AppServerTurn
from codex_proxy.agents.codex_proto.proto_dialect import CodexProto
from codex_proxy.agents.process_pool.plan import ONE_TURN_AHEAD
from codex_proxy.agents.sessions import child_per_turn
from codex_proxy.agents.sessions.child_per_turn import ChildTransport
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.faults import Fault
from codex_proxy.core.items import HistoryMessage
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import ForwardedRequest, Turn
from codex_proxy.http.body import HeldBytes
from codex_proxy.http.exchange import LogReader, TurnTimings
from codex_proxy.parts import absent_parts
from codex_proxy.process.child import Child
from codex_proxy.responses.background import BackgroundResponse
from codex_proxy.responses.context import Context
from codex_proxy.responses.foreground import ForegroundResponse, ResponseReader
from codex_proxy.responses.prepare import PreparedResponse
from codex_proxy.responses.running import FrameBuffer, FrameReader
from codex_proxy.runs.event_log import EventLog
from codex_proxy.runs.run import Run
from codex_proxy.surfaces.chat.forward import ForwardedAnswer
from codex_proxy.surfaces.chat.parse import ParsedChat
from codex_proxy.surfaces.chat.render import ChatRenderer
from codex_proxy.surfaces.messages.parse import ParsedMessages
from codex_proxy.surfaces.messages.render import MessagesRenderer
from codex_proxy.surfaces.ollama.parse import ParsedOllama
from codex_proxy.surfaces.ollama.render import OllamaRenderer
from codex_proxy.surfaces.responses.parse import ParsedResponse
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from codex_proxy.tools.attempt import Attempt
from codex_proxy.tools.policy import ToolPolicy
from tests.http.serving import Proxy, fake_proxy, until, user
from tests.model_server import Case, proxy_before, upstream
from tests.pictures import PNG
from tests.waiting import out_of_patience, turns_shown
from tests.weather_tool import CHAT_WEATHER

pytestmark = pytest.mark.sampled(every=2, first=1)

OF_AN_UPSTREAM = tuple(
    pkgutil.resolve_name(f"codex_proxy.parts.upstream.{name}")
    for name in (
        *("attempts:AttemptedTurn", "exchange:Exchange", "exchange:OutgoingRequest"),
        *("openai_chat.chat_dialects:OpenAIChat", "openai_chat.chat_dialects:ForwardedTurn"),
        *("transport:UpstreamAnswer", "transport:UpstreamTransport"),
    )
    if "upstream" not in absent_parts()
)
OF_A_REQUEST = (
    *(
        web.Request,
        ParsedChat,
        ParsedResponse,
        PreparedResponse,
        Context,
        Turn,
        HistoryMessage,
        Attempt,
        ToolPolicy,
    ),
    *(
        Run,
        EventLog,
        TurnRepair,
        AgentSession,
        ChildTransport,
        CodexProto,
        AppServerTurn,
        ChatRenderer,
        ResponsesRenderer,
    ),
    *(BackgroundResponse, ForegroundResponse, ResponseReader, FrameBuffer, FrameReader, Fault),
    *(HeldBytes, LogReader, MessagesRenderer, OllamaRenderer, ParsedMessages, ParsedOllama, TurnTimings),
    *(ForwardedAnswer, ForwardedRequest, *OF_AN_UPSTREAM),
    *map(type, (iter(()), iter([]), iter({}), iter({}.values()), iter({}.items()), (_ for _ in ()))),
)
"""What is made for a request, and holds of it what its client has sent or its agent has said; and iterators, of which
libraries in C have left one for each call."""

PICTURE = base64.b64encode(PNG).decode()
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
FUNCTION = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}


def there() -> Counter[str]:
    """How many there are of each."""
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in OF_A_REQUEST)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # so that a look at all objects sees only what is made from now on
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def no_child_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that waits for the next turn is nothing that a request leaves."""
    without = msgspec.structs.replace(ONE_TURN_AHEAD, spare_uses=0)
    monkeypatch.setattr(child_per_turn, "ONE_TURN_AHEAD", without)
    monkeypatch.setattr(app_server_setup, "ONE_TURN_AHEAD", without)


@pytest.fixture(params=["proto", "app-server"])
async def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Proxy]:
    """One that keeps no threads between requests: they are not over with theirs."""
    async with fake_proxy(tmp_path, fake_dialect=request.param, kept_threads=0) as running:
        yield running


async def assert_nothing_is_left(proxy: Proxy, act: Callable[[], Awaitable[object]]) -> None:
    """Acts once for what is made once, then again, with nobody to collect what holds itself. A connection holds its
    last request until the next one, or until it closes: so there is one before, too."""
    await act()
    await proxy.settled()
    with without_collector():
        await act()
        await proxy.settled()
        before = there()
        for _ in range(3):
            await act()
        await proxy.settled()
        try:
            await until(lambda: sum((there() - before).values()) == 0)
        except AssertionError:
            pytest.fail(f"left behind: {there() - before}")


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """A request with an image."""
    return user(**fields) | {
        "messages": [{"role": "user", "content": [{"type": "text", "text": text}, IMAGE]}]
    }


def response(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "codex-5", "input": text, **fields}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        pytest.param(CHAT, chat("Hello."), 200, id="chat"),
        pytest.param(CHAT, chat("Hello.", stream=True), 200, id="chat, streamed"),
        pytest.param(CHAT, chat("Hello.", n=3), 200, id="chat, several choices"),
        pytest.param(CHAT, chat("[[fake:tool_call]]", tools=[CHAT_WEATHER]), 200, id="chat, tools"),
        pytest.param(
            CHAT, chat("[[fake:text]]", response_format={"type": "json_object"}), 502, id="chat, a hidden second try"
        ),
        pytest.param(
            CHAT, chat("[[fake:text]]", tools=[CHAT_WEATHER], tool_choice="required"), 502, id="chat, no required call"
        ),
        pytest.param(CHAT, b"{", 400, id="no JSON"),
        pytest.param(CHAT, chat("Hello.", n=99), 400, id="not valid"),
        pytest.param("/v1/nothing", chat("Hello."), 404, id="no path"),
        pytest.param(CHAT, chat("[[fake:error]]", stream=True), None, id="chat, failed"),
        pytest.param(RESPONSES, response("Hello."), 200, id="a response"),
        pytest.param(RESPONSES, response("Hello.", stream=True), 200, id="a response, streamed"),
        pytest.param(RESPONSES, response("Hello.", store=False), 200, id="a response, not stored"),
        pytest.param(RESPONSES, response("[[fake:tool_call]]", tools=[FUNCTION]), 200, id="a response, tools"),
        pytest.param(RESPONSES, response("[[fake:error]]"), None, id="a response, failed"),
    ],
)  # fmt: skip
async def test_a_request_that_is_over_leaves_nothing(
    proxy: Proxy, path: str, body: Any, status: int | None
) -> None:
    async def ask() -> None:
        got = (await proxy.send("POST", path, body)).status
        assert got == status if status else got >= 400

    await assert_nothing_is_left(proxy, ask)


def message(text: str, **fields: Any) -> dict[str, Any]:
    return chat(text, **fields) | {"max_tokens": 100, "messages": [{"role": "user", "content": text}]}


APIS = {CHAT: chat, RESPONSES: response, "/v1/messages": message, "/api/chat": message}
HANGS = "[[fake:text say=Wait misbehave=hang behind=Wait]]"
ENDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "well": ("Hello.", {}),
    "refused": ("Hello.", {"model": 1}),
    "an unknown model": ("Hello.", {"model": "nothing"}),
    "failed": ("[[fake:error_500]]", {}),
    "failed in the middle": ("[[fake:error_mid_text]]", {}),
    "its process died": ("[[fake:text misbehave=crash at=4]]", {}),
    "timed out": (HANGS, {}),
    "its client has left": (HANGS, {}),
}


@pytest.mark.sampled(every=15)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("path", APIS)
async def test_a_request_of_any_api_that_ends_in_any_way_leaves_nothing(
    proxy: Proxy, path: str, ending: str, stream: bool
) -> None:
    text, fields = ENDINGS[ending]
    body = APIS[path](text, stream=stream, **fields)
    runs = proxy.server.runs

    async def ask() -> None:
        asking = asyncio.create_task(proxy.send("POST", path, body))
        if text == HANGS:
            await until(lambda: turns_shown(runs) > 0)
        if ending == "timed out":
            out_of_patience(runs)
        if ending == "its client has left":
            asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await proxy.settled()

    await assert_nothing_is_left(proxy, ask)


PASSED_ON = {
    "a chat": (CHAT, {"messages": chat("Hello.")["messages"]}),
    "a chat with a tool": (
        CHAT,
        {"messages": [{"role": "user", "content": "Hello."}], "tools": [CHAT_WEATHER]},
    ),
    "a response": (RESPONSES, {"input": "Hello."}),
    "no turn": ("/v1/embeddings", {"input": "Hello."}),
}


@pytest.mark.part("upstream")
@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("ending", ["well", "failed", "its client has left"])
@pytest.mark.parametrize("what", PASSED_ON)
async def test_a_request_that_an_upstream_answers_leaves_nothing(
    tmp_path: Path, what: str, ending: str
) -> None:
    path, fields = PASSED_ON[what]
    async with upstream() as served, proxy_before(served.url, tmp_path) as proxy:

        async def ask() -> None:
            if ending == "failed":
                served.script = [Case(500, {}, [], [], "")]
            if ending == "its client has left":
                served.held.clear()
            served.is_held.clear()
            asking = asyncio.create_task(
                proxy.send("POST", path, {"model": "small", "stream": True, **fields})
            )
            if ending == "its client has left":
                await served.is_held.wait()
                asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            served.held.set()
            await proxy.settled()

        await assert_nothing_is_left(proxy, ask)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_in_the_background_leaves_nothing(proxy: Proxy, stream: bool) -> None:
    async def ask() -> None:
        text = (await proxy.send("POST", RESPONSES, response("Hello.", background=True, stream=stream))).text
        assert "resp_" in text
        assert proxy.server.background is not None
        await until(lambda: not proxy.server.background.leases)

    await assert_nothing_is_left(proxy, ask)


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(proxy: Proxy) -> None:
    async def leave() -> None:
        async with proxy.open(chat("[[fake:text n=10000 delay=20]]", stream=True)) as reply:
            await reply.content.readany()
        await proxy.settled()

    await assert_nothing_is_left(proxy, leave)


async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(proxy: Proxy) -> None:
    async def leave() -> None:
        host = f"127.0.0.1:{proxy.server.port}"
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.server.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n"
        writer.write(head.encode() + b'{"model": ')
        await writer.drain()
        writer.close()

    await assert_nothing_is_left(proxy, leave)


async def test_a_child_that_dies_leaves_nothing_of_its_turn(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:

        async def ask() -> None:
            answer = await proxy.ask(chat("[[fake:text misbehave=crash at=4]]"))
            assert answer.status == 500

        await assert_nothing_is_left(proxy, ask)
        assert not [each for each in gc.get_objects() if type(each) is Child and each.alive]


async def test_turns_of_a_websocket_leave_nothing(proxy: Proxy) -> None:
    async with proxy.session.ws_connect(f"{proxy.url}/v1/responses") as socket:

        async def ask() -> None:
            await socket.send_json({"type": "response.create", **response("Hello.", store=False)})
            while (await socket.receive_json())["type"] != "response.completed":
                pass

        await assert_nothing_is_left(proxy, ask)


async def test_turns_that_wait_and_are_then_refused_leave_nothing(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, max_running_turns=1, queue_wait=0.05) as proxy:
        held = asyncio.ensure_future(proxy.ask(user("[[fake:text misbehave=hang at=4]]")))
        await until(lambda: proxy.server.runs.running == 1)

        async def ask() -> None:
            assert (await proxy.ask(chat("Hello."))).status == 429

        await ask()
        with without_collector():
            await ask()
            before = there()
            for _ in range(3):
                await ask()
            await until(lambda: sum((there() - before).values()) == 0)
        held.cancel()
        with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError):
            await held


async def test_a_thread_that_is_used_again_has_nothing_of_the_turn_before(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:

        async def ask() -> None:
            for path, body in (
                (CHAT, chat("Hello.")),
                (CHAT, chat("[[fake:tool_call]]", tools=[CHAT_WEATHER])),
            ):
                assert (await proxy.send("POST", path, body)).status == 200

        await ask()
        await proxy.settled()
        with without_collector():
            before = there()["HistoryMessage"]
            await ask()
            await until(lambda: len(proxy.server.runs.services.idle_sessions) == 4)
            await until(lambda: there()["HistoryMessage"] == before)
