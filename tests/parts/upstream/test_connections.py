"""How the upstream is reached, and every way in which it is not: each is a fault of the table, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from structlog.testing import capture_logs

from codex_proxy.agents.spec import NoAgentError
from codex_proxy.app.server import make_server
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import FaultKind
from codex_proxy.parts.upstream.server import models_in
from codex_proxy.settings.fields import Settings
from codex_proxy.surfaces.answers.fault_table import TABLE
from tests.http.serving import ENVIRONMENT, Proxy, fake_proxy, running_proxy, user
from tests.http_responses.test_websocket import answer_to, error_of, open_socket, send
from tests.model_server import CASES, Case, chunk, event, proxy_before, raw_upstream, text, upstream
from tests.parts.sessions.approving import START_KEY, keyless_proxy
from tests.parts.upstream.serving import connecting_proxy
from tests.response_events import message, response_with
from tests.stream_server import Talk, stream_server
from tests.waiting import PATIENCE, eventually
from tests.weather_tool import CHAT_WEATHER

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
ROLE = event(chunk({"role": "assistant", "content": ""}))
CREATED = event({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}})
HI = event(chunk({"content": "Hi"}))
HI_OF_RESPONSES = event({"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hi"})
KEY = "sk-operators-own"


def talk_of(*pieces: bytes) -> Talk:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return talk


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    own = writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def endless_headers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(100_000):
        writer.write(b"x-%d: y\r\n" % number)
        await writer.drain()


async def endless_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"data: ")
    for _ in range(100):
        writer.write(b"x" * (1 << 20))
        await writer.drain()


async def endless_events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Events that both APIs read and neither shows."""
    nothing = event(
        {"type": "response.image_generation_call.partial_image", "choices": [], "x": "x" * 50_000}
    )
    writer.write(OK)
    while True:
        writer.write(nothing)
        await writer.drain()


REDIRECT = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/v1\r\ncontent-length: 0\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nNot Found"
PACKED = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x8b\x08\x00"
TOO_LONG = b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n"
AGENTS = {"openai-chat": ROLE, "openai-responses": CREATED}
"""The agents of upstreams, and how an answer begins that says nothing yet."""
Bad = tuple[Talk, int, str]
BEFORE_AN_ANSWER: dict[str, Bad] = {
    "not HTTP": (talk_of(b"220 mail.example ESMTP\r\n"), 502, "upstream_error"),
    "closes without a word": (talk_of(), 502, "upstream_disconnected"),
    "resets": (reset, 502, "upstream_disconnected"),
    "a broken chunk": (talk_of(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"), 502, "upstream_error"),
    "endless headers": (endless_headers, 502, "upstream_error"),
    "a line of 100 MB": (endless_line, 502, "upstream_error"),
    "silence": (silent, 504, "request_timeout"),
    "a redirection": (talk_of(REDIRECT), 502, "upstream_error"),
    "packed though not asked": (talk_of(PACKED), 502, "upstream_error"),
    "a packed error": (talk_of(PACKED.replace(b"200 OK", b"429 No")), 429, "rate_limit_exceeded"),
    "only words": (talk_of(b"HTTP/1.1 200 OK\r\ncontent-length: 18\r\n\r\nPlease, try later."), 502, "upstream_error"),
    "no such endpoint": (talk_of(NOT_FOUND), 500, "agent_misconfigured"),
    "HTML": (talk_of(OK, b"<html>"), 502, "upstream_error"),
}  # fmt: skip


def _bad_in_an_answer(begin: bytes) -> dict[str, Bad]:
    """What goes wrong behind this beginning of an answer."""
    return {
        "closes after the beginning": (talk_of(OK, begin), 502, "upstream_disconnected"),
        "closes in the middle of a line": (talk_of(OK, begin, b'data: {"choi'), 502, "upstream_disconnected"),
        "closes too early for its length": (talk_of(TOO_LONG, begin), 502, "upstream_disconnected"),
    }


BAD = [
    (agent, name, bad)
    for agent, begin in AGENTS.items()
    for name, bad in (BEFORE_AN_ANSWER | _bad_in_an_answer(begin)).items()
]


def own_agent(proxy: Proxy) -> Any:
    """The agent that has the connections."""
    return proxy.server.agent


async def wait_until_nothing_is_left(proxy: Proxy) -> None:
    """No turn, no exchange and no connection of the agent's."""
    await proxy.settled()
    agent = own_agent(proxy)
    await eventually(lambda: not agent._transports)
    await eventually(lambda: not any(map(is_of_exchange, asyncio.all_tasks())))
    assert agent._late.value.client._session.connector._acquired == set()


def is_of_exchange(task: asyncio.Task[Any]) -> bool:
    return repr(task.get_coro()).startswith("<coroutine object Exchange")


def _request_of_unknown_model(path: str, streamed: bool) -> dict[str, Any]:
    """A request for a model that no list has."""
    body = {"input": "Hi"} if path.endswith("responses") else user()
    return {**body, "model": "m", "stream": streamed}


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("agent", "name", "bad"), BAD, ids=[f"{agent} {name}" for agent, name, _ in BAD])
async def test_a_bad_upstream_is_a_fault_of_the_table(
    agent: str, name: str, bad: Bad, streamed: bool, path: str, tmp_path: Path
) -> None:
    talk, status, code = bad
    patience = 0.2 if name == "silence" else PATIENCE
    async with (
        raw_upstream(talk) as url,
        proxy_before(url, tmp_path, table={"first_byte_timeout": patience}, agent=agent) as proxy,
    ):
        answer = await proxy.send("POST", path, _request_of_unknown_model(path, streamed))
        if path.endswith("responses") and answer.status == 200:  # it had begun
            assert '"status":"failed"' in answer.text
            assert '"response.completed"' not in answer.text
        else:
            assert (answer.status, answer.error["code"]) == (status, code)
        assert url.split("/")[2] not in answer.text
        await wait_until_nothing_is_left(proxy)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.status != 200])
async def test_a_refusal_is_the_same_fault_of_both_agents(name: str, agent: str, tmp_path: Path) -> None:
    case = CASES[name]
    async with upstream() as server, proxy_before(server.url, tmp_path, agent=agent) as proxy:
        for path in ("/v1/chat/completions", "/v1/responses"):
            for streamed in (False, True):
                server.script = [case] * 3  # also for the other forms of a request
                answer = await proxy.send(
                    "POST", path, _request_of_unknown_model(path, streamed) | {"model": "small"}
                )
                assert answer.status == TABLE[FaultKind(case.fault or "")].status
                assert case.message in answer.error["message"]
                await wait_until_nothing_is_left(proxy)


@pytest.mark.parametrize("agent", AGENTS)
async def test_silence_in_the_middle_ends_the_answer_as_failed(agent: str, tmp_path: Path) -> None:
    async def silent_in_the_middle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun = HI if agent == "openai-chat" else HI_OF_RESPONSES
        writer.write(OK + AGENTS[agent] + begun)
        while await reader.read(65536):
            pass

    async with (
        raw_upstream(silent_in_the_middle) as url,
        proxy_before(url, tmp_path, table={"idle_timeout": 0.2}, agent=agent) as proxy,
    ):
        frames = (await proxy.ask(user(stream=True) | {"model": "m"})).frames
        assert frames[-1] == "[DONE]"
        assert frames[-2]["error"]["code"] == "request_timeout"
        await wait_until_nothing_is_left(proxy)


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_server_starts_although_its_model_server_cannot_be_reached(
    agent: str, tmp_path: Path
) -> None:
    async with proxy_before("http://127.0.0.1:1/v1", tmp_path, agent=agent) as proxy:
        answer = await proxy.ask(user() | {"model": "small"})
        assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
        assert "nothing listens at its address" in answer.error["message"]
        ready = await proxy.send("GET", "/readyz")
        assert (ready.status, "nothing listens at its address" in ready.text) == (503, True)
        await wait_until_nothing_is_left(proxy)


@pytest.mark.parametrize("name", ["silent", "endless", "no list", "not implemented"])
async def test_a_list_of_models_that_cannot_be_read_keeps_nobody_from_being_served(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.upstream.server.LIST_SECONDS", 60.0 if name != "silent" else 0.05)
    monkeypatch.setattr("codex_proxy.parts.upstream.server.MAX_LIST_BYTES", 1 << 20)
    left = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await endless_line(reader, writer)
        except ConnectionError:
            left.set()

    listing = {
        "silent": silent,
        "endless": endless,
        "no list": talk_of(b"HTTP/1.1 200 OK\r\n\r\n<html>"),
        "not implemented": talk_of(b"HTTP/1.1 501 Not Implemented\r\n\r\n"),
    }
    async with (
        raw_upstream(talk_of(OK, text("Hello.")), listing[name]) as url,
        proxy_before(url, tmp_path) as proxy,
    ):
        if name == "endless":
            await asyncio.wait_for(left.wait(), PATIENCE)
        assert (proxy.server.agent.trouble() is not None) == (name == "silent")
        answer = await proxy.ask(user() | {"model": "m"})
        assert (answer.status, answer_text(answer.text)) == (200, "Hello.")
        await wait_until_nothing_is_left(proxy)


@pytest.mark.parametrize(("agent", "stream"), [("openai-chat", True), ("openai-responses", False)])
async def test_an_answer_without_an_end_is_cut_off_and_blamed_on_the_model_server(
    agent: str, stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.upstream.exchange.MAX_ANSWER_BYTES", 1 << 20)
    async with raw_upstream(endless_events) as url, proxy_before(url, tmp_path, agent=agent) as proxy:
        answer = await proxy.ask(user() | {"model": "m", "stream": stream})
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert "The model server's answer is too large." in answer.error["message"]
        await wait_until_nothing_is_left(proxy)


async def test_a_name_without_an_address_is_reported_as_such(tmp_path: Path) -> None:
    async with proxy_before("http://no-such-host.invalid/v1", tmp_path) as proxy:
        answer = await proxy.ask(user() | {"model": "small"})
        assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
        assert "no-such-host" not in answer.text


async def test_an_upstream_that_comes_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codex_proxy.parts.upstream.server.RETRY_SECONDS", 0.01)
    async with upstream() as server:
        server.key = KEY
        with capture_logs() as lines:
            async with proxy_before(server.url, tmp_path) as proxy:
                assert (await proxy.send("GET", "/readyz")).status == 503
                await eventually(lambda: server.listed > 2)
                server.key = None
                agent = proxy.server.agent
                await eventually(lambda: agent.trouble() is None)
                assert (await proxy.send("GET", "/readyz")).status == 200
                assert [model.id for model in agent.models()] == ["small", "large"]
    logged = [line["event"] for line in lines if line["event"] in ("upstream_trouble", "upstream_is_back")]
    assert logged == ["upstream_trouble", "upstream_is_back"]


async def test_an_upstream_is_asked_again_though_its_list_once_met_a_fault_of_this_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.upstream.server.RETRY_SECONDS", 0.01)
    faults = [RuntimeError("a fault")]

    def models_or_fault(body: bytes) -> tuple[AgentModel, ...] | None:
        if faults:
            raise faults.pop()
        return models_in(body)

    async with upstream() as server:
        server.key = KEY
        async with proxy_before(server.url, tmp_path) as proxy:
            monkeypatch.setattr("codex_proxy.parts.upstream.server.models_in", models_or_fault)
            server.key = None
            await eventually(lambda: proxy.server.agent.trouble() is None)
    assert faults == []


async def test_connections_are_used_again(tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        for number in range(6):
            await proxy.ask(user(stream=bool(number % 2)))
            await wait_until_nothing_is_left(proxy)
        assert len(server.peers) == 1


@pytest.mark.exhaustive
async def test_two_hundred_streams_at_once_keep_their_answers_apart_and_leave_nothing(tmp_path: Path) -> None:
    """Every third is passed on, every third is told anew, every third is one of Responses."""
    count = 200

    def body_of(number: int) -> tuple[str, dict[str, Any]]:
        said = f"Answer {number}, and all of it."
        if number % 3 == 2:
            return "/v1/responses", {"model": "small", "input": said, "stream": True, "store": False}
        tools = [{"type": "function", "function": {"name": "f"}}] if number % 3 else []
        return "/v1/chat/completions", user(said, stream=True, tools=tools) | {"model": "small"}

    async def answer_of(client: aiohttp.ClientSession, number: int) -> str:
        path, body = body_of(number)
        async with client.post(proxy.url + path, json=body) as reply:
            lines = (await reply.text()).splitlines()
        frames = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        if path == "/v1/responses":
            return "".join(
                frame["delta"] for frame in frames if frame["type"] == "response.output_text.delta"
            )
        return "".join(each["delta"].get("content") or "" for frame in frames for each in frame["choices"])

    before = asyncio.all_tasks()
    async with upstream() as server:
        server.echoes = True
        async with (
            proxy_before(server.url, tmp_path, max_running_turns=count, drain_ms=0) as proxy,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
            asyncio.timeout(PATIENCE),
        ):
            for _ in range(2):  # the second time on the connections of the first
                server.requests.clear()
                server.held.clear()
                answers = asyncio.gather(*(answer_of(client, number) for number in range(count)))
                await eventually(lambda: len(server.requests) == count)
                server.held.set()
                expected = [f"Answer {number}, and all of it." for number in range(count)]
                assert await answers == expected
                await wait_until_nothing_is_left(proxy)
            assert len(server.peers) <= count + 1  # one more has asked for the models
            assert server.open() <= count + 1
        await eventually(lambda: server.open() == 0)
    await eventually(lambda: asyncio.all_tasks() <= before)


async def test_a_reused_connection_that_is_dead_costs_nobody_their_answer(tmp_path: Path) -> None:
    served = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        body = text("Hello.")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")  # the rest of this request, or the next: it is not answered

    async with raw_upstream(talk) as url, proxy_before(url, tmp_path) as proxy:
        for _ in range(3):
            assert (await proxy.ask(user() | {"model": "m"})).status == 200
        assert served == 3


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_client_that_leaves_closes_the_connection_to_the_upstream(path: str, tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        server.held.clear()
        body = {"model": "small", "stream": True} | ({"input": "Hi"} if "resp" in path else user(stream=True))
        async with proxy.session.post(proxy.url + path, json=body) as reply:
            await reply.content.readany()
            await server.is_held.wait()
        await server.closed.wait()
        await wait_until_nothing_is_left(proxy)


@pytest.mark.parametrize("way", ["leaves", "cancels"])
async def test_the_connection_to_the_upstream_is_closed_within_50_ms(way: str, tmp_path: Path) -> None:
    took: list[float] = []
    loop = asyncio.get_running_loop()
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        server.held.clear()
        for _ in range(20):  # a busy machine is slow now and then
            for seen in (server.is_held, server.closed):
                seen.clear()
            body = {"model": "small", "input": "Hi"}
            if way == "leaves":
                reply = await proxy.session.post(f"{proxy.url}/v1/responses", json=body | {"stream": True})
                await reply.content.readany()
                await server.is_held.wait()
                begun = loop.time()
                reply.close()
            else:
                made = await proxy.send("POST", "/v1/responses", body | {"background": True})
                await server.is_held.wait()
                begun = loop.time()
                await proxy.send("POST", f"/v1/responses/{made.body['id']}/cancel")
            await server.closed.wait()
            took.append(loop.time() - begun)
            await wait_until_nothing_is_left(proxy)
            if min(took) < 0.05:
                break
    assert min(took) < 0.05


async def test_a_slow_client_holds_up_the_upstream(tmp_path: Path) -> None:
    written = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(OK + ROLE)
        for _ in range(3000):
            data = event(chunk({"content": "x" * 32768}))
            writer.write(data)
            await writer.drain()
            written += len(data)

    async with raw_upstream(talk) as url, proxy_before(url, tmp_path) as proxy:
        async with proxy.open(user(stream=True) | {"model": "m"}) as reply:
            await reply.content.readexactly(100)
            agent = own_agent(proxy)
            [transport] = agent._transports
            await eventually(lambda: not transport._exchanges[-1]._may_read)
            assert written < 64 << 20, "the rest waits where it is made"
        await wait_until_nothing_is_left(proxy)


async def test_the_next_request_of_a_turn_waits_for_a_slow_client_too(tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        server.held.clear()
        async with proxy.open(user(stream=True) | {"model": "small"}):
            await server.is_held.wait()
            [transport] = own_agent(proxy)._transports
            transport.pause_reading()
            server.is_held.clear()
            transport.send(b'{"model": "small", "stream": true}')
            await server.is_held.wait()
            assert not transport._exchanges[-1]._may_read
            transport.resume_reading()
            assert transport._exchanges[-1]._may_read
        await wait_until_nothing_is_left(proxy)


@pytest.mark.parametrize("agent", AGENTS)
async def test_silence_after_the_upstream_had_to_wait_fails_the_answer(agent: str, tmp_path: Path) -> None:
    async def silent_in_the_middle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + AGENTS[agent] + (HI if agent == "openai-chat" else HI_OF_RESPONSES))
        while await reader.read(65536):
            pass

    async with (
        raw_upstream(silent_in_the_middle) as url,
        proxy_before(url, tmp_path, table={"idle_timeout": 0.2}, agent=agent) as proxy,
        proxy.open(user(stream=True) | {"model": "m"}) as reply,
    ):
        while b"Hi" not in await reply.content.readline():
            pass
        [transport] = own_agent(proxy)._transports
        transport.pause_reading()
        transport.resume_reading()
        assert b"request_timeout" in await reply.content.read()


async def test_the_server_stops_while_the_upstream_is_silent(tmp_path: Path) -> None:
    async with raw_upstream(silent) as url, proxy_before(url, tmp_path) as proxy:
        asking = asyncio.create_task(proxy.ask(user() | {"model": "m"}))
        await eventually(lambda: proxy.server.runs.running)
        await proxy.server.runs.drain(0)
        assert (await asking).status == 503
        await wait_until_nothing_is_left(proxy)


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["variable", "file"])
async def test_the_operators_key_is_sent_and_never_the_clients(where: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    given = {"upstream_key": KEY} if where == "variable" else {"table": {"key_file": file}}
    async with upstream() as server:
        server.key = KEY
        async with proxy_before(server.url, tmp_path, **given) as proxy:
            answer = await proxy.ask(user(), headers={"Authorization": "Bearer sk-clients"})
            assert answer.status == 200
            assert server.requests[-1].headers["Authorization"] == f"Bearer {KEY}"
            assert "sk-clients" not in str(server.requests[-1].headers)


async def test_a_refused_upstream_key_is_a_502_that_names_neither_key_nor_server(
    tmp_path: Path, log_lines: list[Any]
) -> None:
    async with upstream() as server:
        server.key = "another"
        async with proxy_before(server.url, tmp_path, upstream_key=KEY, log_level="debug") as proxy:
            answers = [await proxy.ask(user(stream=streamed) | {"model": "m"}) for streamed in (False, True)]
            paths = ("/healthz", "/readyz", "/v1/models", "/metrics")
            answers += [await proxy.send("GET", path) for path in paths]
            assert (answers[0].status, answers[0].error["code"]) == (502, "upstream_unauthorized")
            for answer in answers:
                assert KEY not in answer.text
                assert server.url.split("/")[2] not in answer.text
    assert KEY not in str(log_lines)
    assert server.url.split("/")[2] not in str(log_lines)


async def test_each_clients_own_key_is_passed_on_where_the_operator_says_so(tmp_path: Path) -> None:
    async with upstream() as server:
        server.key = "sk-clients"
        async with proxy_before(server.url, tmp_path, upstream_key="client") as proxy:
            body = user() | {"model": "small"}
            assert (await proxy.ask(body, headers={"Authorization": "Bearer sk-clients"})).status == 200
            response = {"model": "small", "input": "Hi"}
            headers = {"Authorization": "Bearer sk-clients"}
            assert (await proxy.send("POST", "/v1/responses", response, headers=headers)).status == 200
            refused = await proxy.ask(body, headers={"Authorization": "Bearer sk-wrong"})
            assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
            assert "sk-wrong" not in refused.text
            assert (await proxy.ask(body)).status == 401


async def test_beside_the_key_of_this_start_the_other_key_is_passed_on(tmp_path: Path) -> None:
    async with upstream() as server:
        server.key = "sk-clients"
        given = {"agent": "openai-chat", "upstream_url": server.url, "upstream_key": "client"}
        async with keyless_proxy(tmp_path, **given, approvals="decline") as proxy:
            both = {"Authorization": f"Bearer {START_KEY}", "x-api-key": "sk-clients"}
            assert (await proxy.ask(user() | {"model": "small"}, headers=both)).status == 200
            alone = {"Authorization": f"Bearer {START_KEY}"}
            assert (await proxy.ask(user() | {"model": "small"}, headers=alone)).status == 401


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "--upstream-url"),
        ({"upstream_url": "127.0.0.1:11434"}, "must be an address"),
        ({"upstream_url": "ftp://x/v1"}, "must be an address"),
        ({"upstream_url": "http://user:pw@x/v1"}, "PROXY_UPSTREAM_KEY"),
        ({"upstream_url": "http://x/v1?key=1"}, "without a query"),
        ({"upstream_url": "http://x", "upstream_key": "a\nb"}, "characters that are not allowed"),
        ({"upstreams": {"default": {"url": "http://x", "key_file": "/nowhere"}}}, "cannot be read"),
        ({"upstreams": {"default": {"url": "http://x", "key_file": "/x"}}, "upstream_key": "a"}, "set twice"),
        ({"upstream_url": "http://x", "upstream_key": "client", "api_key": "b"}, "Use only one"),
        (
            {"upstreams": {"default": {"url": "https://x", "ca_file": "/nowhere"}}},
            "ca_file of [upstreams.default]: /nowhere cannot be read",
        ),
    ],
)
async def test_wrong_settings_of_an_upstream_end_the_start(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(NoAgentError) as caught:
        async with fake_proxy(tmp_path, agent="openai-chat", **settings):
            pass
    assert words in str(caught.value)
    assert "pw" not in str(caught.value)


async def test_the_names_of_open_responses_server_are_taken_and_its_key_only_beside_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with upstream() as server:
        address = server.url.removesuffix("/v1")
        names = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL_INTERNAL": address, "STREAM_TIMEOUT": "7"}
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        settings = Settings(agent="openai-chat", port=0, workdir=tmp_path, state_dir=tmp_path / "state")
        async with running_proxy(await make_server(settings, names)) as proxy:
            await proxy.ask(user())
            assert proxy.server.settings.idle_timeout == 7
        assert server.requests[-1].headers["Authorization"] == f"Bearer {KEY}"
        monkeypatch.delenv("OPENAI_BASE_URL_INTERNAL")
        async with proxy_before(address, tmp_path, {"OPENAI_API_KEY": KEY}) as proxy:
            await proxy.ask(user())
        assert "Authorization" not in server.requests[-1].headers


# --- the way there ----------------------------------------------------------------------------------


async def test_a_certificate_is_checked_and_one_of_the_operators_is_taken(tmp_path: Path) -> None:
    a, b = two_folders(tmp_path)
    from tests.certificates import certificate  # a package that only some tests need

    own = Path(certificate(tmp_path, "localhost"))
    async with upstream(own) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        async with proxy_before(url, a) as proxy:
            answer = await proxy.ask(user() | {"model": "m"})
            assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
            assert "certificate" in answer.error["message"]
            assert server.requests == []
            await wait_until_nothing_is_left(proxy)
        async with proxy_before(url, b, table={"ca_file": own}) as proxy:
            for path, body in (("/v1/chat/completions", user()), ("/v1/responses", {"input": "Hi"})):
                answer = await proxy.send("POST", path, body | {"model": "small"})
                assert (answer.status, answer_text(answer.text)) == (200, "Hello.")
        async with proxy_before(server.url, a, table={"ca_file": own}) as proxy:  # it is for another name
            assert (await proxy.ask(user() | {"model": "m"})).status == 502


async def test_a_websocket_is_answered_by_the_upstream_and_its_end_stops_it(tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        async with open_socket(proxy) as socket:
            first = await answer_to(socket, "Hi", model="small", store=False)
            assert first["output"][0]["content"][0]["text"] == "Hello."
            second = await answer_to(
                socket, "And?", model="large", store=False, previous_response_id=first["id"]
            )
            assert second["status"] == "completed"
            assert [each["content"] for each in server.requests[-1].body["messages"]] == [
                "Hi",
                "Hello.",
                "And?",
            ]
            server.script = [CASES["http_500"]]
            await send(socket, "Hi", model="small")
            failed = await error_of(socket)
            assert (failed["status"], failed["code"]) == (502, "upstream_error")
            server.held.clear()
            server.is_held.clear()
            await send(socket, "Hi", model="small")
            await server.is_held.wait()
        await server.closed.wait()
        await wait_until_nothing_is_left(proxy)


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_private_authority_is_trusted_through_a_proxy_of_the_environment(
    agent: str, tmp_path: Path, log_lines: list[Any]
) -> None:
    from tests.certificates import signed_certificate  # a package that only some tests need

    authority, host = signed_certificate(tmp_path, "localhost")
    a, b = two_folders(tmp_path)
    async with upstream(host) as server, connecting_proxy() as (url, heads):
        server.key = KEY
        server.script = [text("Hello.") if agent == "openai-chat" else response_with(message("Hello."))]
        far = server.url.replace("127.0.0.1", "localhost")
        through = {"https_proxy": url.replace("//", "//me:sk-proxys-own@")}
        given: dict[str, Any] = {"agent": agent, "upstream_key": KEY}
        async with proxy_before(far, a, through, {"ca_file": authority}, **given) as proxy:
            answer = await proxy.ask(user() | {"model": "small"})
            assert (answer.status, answer_text(answer.text)) == (200, "Hello.")
        async with proxy_before(far, b, through, **given) as proxy:
            refused = await proxy.ask(user() | {"model": "small"})
            assert (refused.status, refused.error["code"]) == (502, "upstream_unreachable")
            assert "certificate" in refused.error["message"]
    assert heads
    assert all(head.startswith(b"CONNECT localhost:") for head in heads)
    assert not any(KEY.encode() in head for head in heads), "the key is for the upstream alone"
    for secret in ("sk-proxys-own", KEY):
        assert secret not in refused.text + str(log_lines)


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_proxy_of_the_environment_that_fails_is_named_as_what_fails(
    is_there: bool, tmp_path: Path
) -> None:
    async with connecting_proxy(status=407) as (url, _):
        through = {"https_proxy": url if is_there else "http://127.0.0.1:1"}
        async with proxy_before("https://models.example/v1", tmp_path, through) as proxy:
            answer = await proxy.ask(user() | {"model": "m"})
            assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
            assert "HTTP proxy of the environment" in answer.error["message"]
            assert ("HTTP 407" in answer.error["message"]) is is_there
            assert "127.0.0.1" not in answer.text
            await wait_until_nothing_is_left(proxy)


@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_the_proxy_of_the_environment_is_used_unless_a_setting_forbids_it(
    scheme: str, tmp_path: Path
) -> None:
    async with upstream() as other, upstream() as server:
        through = {"HTTP_PROXY": scheme + other.url.removeprefix("http://").removesuffix("/v1")}
        async with proxy_before(server.url, tmp_path, through) as proxy:
            await proxy.ask(user())
        assert (len(other.requests), len(server.requests)) == (1, 0)
        async with proxy_before(server.url, tmp_path, {**through, "NO_PROXY": "127.0.0.1"}) as proxy:
            await proxy.ask(user())
        assert (len(other.requests), len(server.requests)) == (1, 1)


async def test_a_proxy_of_the_environment_gets_the_whole_address_and_its_own_password(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            heads.append(head)
            _, _, length = head.lower().partition(b"content-length: ")
            await reader.readexactly(int(length.partition(b"\r\n")[0] or 0))
            body = text("Hello.")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    async with stream_server(talk) as port:
        through = {"http_proxy": f"http://me:secret@127.0.0.1:{port}"}
        async with proxy_before("http://models.invalid/v1", tmp_path, through) as proxy:
            for _ in range(2):
                assert (await proxy.ask(user() | {"model": "m"})).status == 200
    assert [head.partition(b" HTTP")[0] for head in heads] == [
        b"GET http://models.invalid/v1/models",
        *[b"POST http://models.invalid/v1/chat/completions"] * 2,
    ]
    assert all(b"\r\nHost: models.invalid\r\n" in head for head in heads)
    assert all(b"\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n" in head for head in heads)


async def test_no_cookie_of_the_upstream_goes_from_one_client_to_the_next(tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        server.script = [Case(200, {"set-cookie": "session=1"}, [text("Hi").decode()], [], "stop")]
        for _ in range(2):
            await proxy.ask(user())
        assert "Cookie" not in server.requests[-1].headers


async def test_the_upstreams_wait_reaches_the_client(tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        server.script = [CASES["http_429"]]
        answer = await proxy.ask(user())
        assert (answer.status, answer.headers["Retry-After"]) == (429, "2")


@pytest.mark.parametrize("coding", ["Identity", "none", "utf-8", ""])
async def test_a_plain_answer_is_read_whatever_it_calls_its_coding(coding: str, tmp_path: Path) -> None:
    body = json.dumps(
        {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}
    ).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with raw_upstream(talk_of(head, body)) as url, proxy_before(url, tmp_path) as proxy:
        assert (await proxy.ask(user(model="m"))).status == 200


async def test_a_context_that_is_too_long_names_the_models_window(tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        server.script = [CASES["toolong_llamacpp"]]
        answer = await proxy.ask(user())
        assert answer.error["code"] == "context_length_exceeded"
        assert "8192" in answer.error["message"]


# --- this server before itself --------------------------------------------------------------------


@pytest.mark.exhaustive
async def test_two_of_these_servers_work_in_a_row(tmp_path: Path) -> None:
    a, b = two_folders(tmp_path)
    async with (
        fake_proxy(tmp_path, {"FAKE_CODEX_MODELS": "any"}) as inner,
        proxy_before(f"{inner.url}/v1", a) as middle,
        proxy_before(f"{middle.url}/v1", b) as outer,
    ):
        for path, body in (
            ("/v1/chat/completions", user("Say hello.")),
            ("/v1/responses", {"model": "fake-model", "input": "Say hello."}),
        ):
            for streamed in (False, True):
                own = await inner.send("POST", path, {**body, "stream": streamed})
                far = await outer.send("POST", path, {**body, "model": "fake-model", "stream": streamed})
                assert (far.status, answer_text(far.text)) == (200, answer_text(own.text))
        asking = user("[[fake:tool_call]]", tools=[CHAT_WEATHER])
        own, far = [await proxy.ask({**asking, "model": "fake-model"}) for proxy in (inner, outer)]
        calls = [each.body["choices"][0]["message"]["tool_calls"] for each in (own, far)]
        assert calls[0][0]["function"] == calls[1][0]["function"]
        message = {"model": "fake-model", "max_tokens": 50, "messages": user("Say hello.")["messages"]}
        own, far = [await proxy.send("POST", "/v1/messages", message) for proxy in (inner, outer)]
        assert (far.status, far.body["content"]) == (200, own.body["content"])
        for proxy in (outer, middle):
            await wait_until_nothing_is_left(proxy)


async def test_a_client_that_leaves_stops_the_agent_behind_two_of_these_servers(tmp_path: Path) -> None:
    a, b = two_folders(tmp_path)
    async with (
        fake_proxy(tmp_path) as inner,
        proxy_before(f"{inner.url}/v1", a) as middle,
        proxy_before(f"{middle.url}/v1", b) as outer,
    ):
        asking = asyncio.create_task(outer.ask(user("[[fake:silent]]", stream=True) | {"model": "codex-5"}))
        await eventually(lambda: inner.server.runs.running)
        asking.cancel()
        for proxy in (outer, middle):
            await wait_until_nothing_is_left(proxy)
        await inner.settled()


def two_folders(folder: Path) -> tuple[Path, Path]:
    a, b = folder / "a", folder / "b"
    for each in (a, b):
        each.mkdir()
    return a, b


def answer_text(text: str) -> str:
    """The text of an answer, whole or streamed, of either API."""
    found = []
    for line in text.splitlines():
        data = line.removeprefix("data: ")
        if not data.startswith("{"):
            continue
        value = json.loads(data)
        said = (choice.get("delta") or choice.get("message") or {} for choice in value.get("choices", ()))
        found += [each.get("content") or "" for each in said]
        if value.get("type") == "response.output_text.delta":
            found.append(value["delta"])
        for item in value.get("output", ()):
            found += [part["text"] for part in item.get("content", ())]
    return "".join(found)


async def test_a_request_that_comes_back_is_refused(tmp_path: Path) -> None:
    a, b = two_folders(tmp_path)
    async with (
        upstream() as server,
        proxy_before(server.url, a) as first,
        proxy_before(f"{first.url}/v1", b) as second,
    ):
        await point_at(first, f"{second.url}/v1")
        answer = await second.ask(user() | {"model": "small"})
        assert answer.status >= 500
        assert "sent the request back to this server" in answer.error["message"]
        assert server.requests == []
        await point_at(first, server.url)


async def point_at(proxy: Proxy, url: str) -> None:
    """Gives the proxy another upstream, as no operator can while it runs."""
    agent = own_agent(proxy)
    client = agent._late.value.client
    await client.close()
    client._upstream = msgspec.structs.replace(client._upstream, url=url)
    await client.start()


def test_the_environment_of_these_tests_has_no_proxy_of_its_own() -> None:
    assert not any(name.lower().endswith("_proxy") for name in ENVIRONMENT)
