"""Answers with the faults that a test asks for, through every API and to the official SDKs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio

from tests.faults.test_upstreams import serve_agent
from tests.http.serving import Proxy, fake_proxy
from tests.parts.cassettes.talking import openai_client, running_server
from tests.waiting import eventually, turns_shown

PROMPT = '[[fake:text say="Grüße an alle"]]'
MESSAGE = {"role": "user", "content": PROMPT}
PLACES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [MESSAGE]},
    "/v1/responses": {"input": PROMPT},
    "/v1/messages": {"messages": [MESSAGE], "max_tokens": 1000},
    "/api/chat": {"messages": [MESSAGE]},
    "/v1/agents/sessions": {"agent": {"model": "codex-5"}, "environment": {"type": "none"}, "input": PROMPT},
}
"""A request of each API, without `model` and `stream`."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path_factory.mktemp("server")) as found:
        yield found


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def read(
    proxy: Proxy, path: str, fault: str, *, stream: bool = True
) -> tuple[int, bytes, Exception | None]:
    """The status, the bytes of an answer, and what broke it."""
    body = {**PLACES[path], "stream": stream}
    if "agent" not in body:
        body["model"] = "codex-5"
    headers = {"OpenAI-Beta": "agents=v1", **({"X-Codex-Fault": fault} if fault else {})}
    read = bytearray()
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            async with session.post(proxy.url + path, json=body, headers=headers) as answer:
                async for piece in answer.content.iter_any():
                    read += piece
                return answer.status, bytes(read), None
        except (aiohttp.ClientError, OSError) as error:
            return 0, bytes(read), error


def events_in(path: str, body: bytes) -> list[bytes]:
    end = b"\n" if path == "/api/chat" else b"\n\n"
    return [each for each in body.split(end) if each and not each.startswith(b":")]


@pytest.mark.parametrize("path", PLACES)
async def test_a_stream_is_cut_behind_an_event(path: str, proxy: Proxy) -> None:
    _, body, error = await read(proxy, path, "cut; events=2")
    assert isinstance(error, aiohttp.ClientPayloadError)
    assert len(events_in(path, body)) == 2
    await proxy.settled()


@pytest.mark.parametrize("path", PLACES)
async def test_a_stream_that_ends_early_looks_complete(path: str, proxy: Proxy) -> None:
    status, body, error = await read(proxy, path, "end; events=2")
    assert (status // 100, error, len(events_in(path, body))) == (2, None, 2)


@pytest.mark.parametrize("path", PLACES)
async def test_an_event_comes_twice(path: str, proxy: Proxy) -> None:
    _, body, error = await read(proxy, path, "repeat; events=2")
    events = events_in(path, body)
    assert error is None
    assert events[1] == events[2]
    assert len(events) > 3


async def test_a_stream_is_cut_inside_of_a_character(proxy: Proxy) -> None:
    _, body, error = await read(proxy, "/v1/chat/completions", "cut; character=1")
    assert isinstance(error, aiohttp.ClientPayloadError)
    assert body.endswith(b"Gr\xc3")


async def test_a_connection_is_reset(proxy: Proxy) -> None:
    _, _, error = await read(proxy, "/v1/chat/completions", "reset; events=1")
    assert error is not None
    assert "reset" in f"{error!r} {error.__cause__!r}".lower()


async def test_a_whole_answer_is_cut(proxy: Proxy) -> None:
    for fault in ("cut; bytes=20", "end; bytes=20"):  # its client knows the length, and is not left waiting
        _, body, error = await read(proxy, "/v1/chat/completions", fault, stream=False)
        assert isinstance(error, aiohttp.ClientPayloadError)
        assert len(body) == 20


async def test_a_stall_lasts_until_the_client_leaves(proxy: Proxy) -> None:
    path = "/v1/chat/completions"
    body = {**PLACES[path], "model": "codex-5", "stream": True}
    headers = {"X-Codex-Fault": "stall; events=1"}
    async with proxy.session.post(proxy.url + path, json=body, headers=headers) as answer:
        assert events_in(path, await answer.content.readuntil(b"\n\n"))
        more = asyncio.ensure_future(answer.content.readany())
        await eventually(lambda: turns_shown(proxy.server.runs) == 0)  # the agent has said all
        assert not more.done()
        more.cancel()
        answer.close()
    await proxy.settled()
    await eventually(lambda: not any("_SpoiledWriter" in repr(task) for task in asyncio.all_tasks()))


async def test_a_stall_of_some_time_and_slow_events_lose_nothing(proxy: Proxy) -> None:
    loop = asyncio.get_running_loop()
    for fault, seconds in (("stall; events=1; seconds=0.3", 0.3), ("slow; seconds=0.1", 0.3)):
        began = loop.time()
        _, body, error = await read(proxy, "/v1/chat/completions", fault)
        assert error is None
        assert body.endswith(b"data: [DONE]\n\n")
        assert loop.time() - began >= seconds


async def test_requests_are_refused_some_times_and_then_answered(proxy: Proxy) -> None:
    fault = "refuse; status=503; times=2; retry_after=1"
    found = [(await read(proxy, "/v1/chat/completions", fault))[0] for _ in range(6)]
    assert found == [503, 503, 200, 503, 503, 200]
    _, body, _ = await read(proxy, "/v1/messages", "refuse; status=429")
    assert json.loads(body)["error"]["type"] == "rate_limit_error"


async def test_a_fault_that_is_not_known_is_a_400(proxy: Proxy) -> None:
    status, body, _ = await read(proxy, "/v1/responses", "cut")
    assert status == 400
    error = json.loads(body)["error"]
    assert error["param"] == "X-Codex-Fault"
    assert error["message"].startswith("X-Codex-Fault: 'cut' needs one place")


async def test_a_socket_has_no_fault_but_a_refusal(proxy: Proxy) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await proxy.session.ws_connect(
            f"{proxy.url}/v1/responses", headers={"X-Codex-Fault": "cut; events=1"}
        )
    assert refused.value.status == 400


async def test_openais_sdk_tries_again_after_a_refusal_and_sees_a_cut(proxy: Proxy) -> None:
    asked: Any = {"model": "codex-5", "messages": [MESSAGE]}
    refused, cut = (
        {"X-Codex-Fault": each} for each in ("refuse; status=429; retry_after=0.01", "cut; events=2")
    )
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none") as client:
        answer = await client.chat.completions.create(**asked, extra_headers=refused)
        assert answer.choices[0].message.content == "Grüße an alle"
        async with await client.chat.completions.create(**asked, stream=True, extra_headers=cut) as stream:
            with pytest.raises(openai.APIConnectionError):
                async for _ in stream:
                    pass


async def test_a_replayed_answer_has_the_fault_that_its_request_asks_for(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    asked: Any = {"model": "codex-5", "messages": [MESSAGE], "stream": True}
    async with (
        running_server(tmp_path, cassettes={"record": folder}) as server,
        openai_client(server) as client,
    ):
        assert len([each async for each in await client.chat.completions.create(**asked)]) > 1
    async with (
        running_server(tmp_path, cassettes={"replay": folder}) as server,
        openai_client(server) as client,
    ):
        headers = {"X-Codex-Fault": "end; events=1"}
        stream = await client.chat.completions.create(**asked, extra_headers=headers)
        assert len([each async for each in stream]) == 1


async def test_only_a_server_with_the_fake_agent_or_a_replay_knows_the_header(
    proxy: Proxy, tmp_path: Path
) -> None:
    headers = {"X-Codex-Fault": "no fault"}
    assert (await proxy.send("GET", "/v1/models", headers=headers)).status == 400
    async with serve_agent("openai-chat", tmp_path) as there:
        assert (await there.proxy.send("GET", "/v1/models", headers=headers)).status == 200
