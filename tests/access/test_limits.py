"""What one request may bring: each limit is a refusal that names what was too much, and never an accident."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSCloseCode, WSMsgType

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.http.middleware.access import MAX_HEADER_BYTES, MAX_HEADERS, MAX_LINE
from codex_proxy.http.middleware.rate_limit import REQUEST_LIMITS
from codex_proxy.http.websocket import MAX_WAITING
from codex_proxy.surfaces.requests.body import MAX_BRACKETS, MAX_DEPTH, MAX_ITEMS, MAX_VALUES, decode_object
from tests.http.serving import Answer, Proxy, fake_proxy, until, user
from tests.waiting import PATIENCE
from tests.weather_tool import CHAT_WEATHER

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path) as running:
        yield running


@pytest.fixture
async def tight(tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy whose operator allows little."""
    async with fake_proxy(tmp_path, max_input_items=3, body_limit=4096) as running:
        yield running


def error_facts(answer: Answer) -> tuple[int, str, str | None]:
    return answer.status, answer.error["code"], answer.error["param"]


def body_of(path: str, items: int) -> dict[str, Any]:
    said = [{"role": "user", "content": "a"}] * items
    return {"model": "codex-5", "messages" if path == CHAT else "input": said}


PATHS = [CHAT, RESPONSES, "/v1/responses/compact", "/v1/responses/input_tokens"]


@pytest.mark.parametrize("path", PATHS)
async def test_as_many_items_as_the_operator_allows_and_not_one_more(tight: Proxy, path: str) -> None:
    assert (await tight.send("POST", path, body_of(path, 3))).status == 200
    field = "messages" if path == CHAT else "input"
    answer = await tight.send("POST", path, body_of(path, 4))
    assert error_facts(answer) == (400, "array_above_max_length", field)
    assert "PROXY_MAX_INPUT_ITEMS" in answer.error["message"]


async def test_a_turn_of_a_websocket_has_the_same_limits(tight: Proxy) -> None:
    async with tight.session.ws_connect(tight.url + RESPONSES) as socket:
        await socket.send_json({"type": "response.create", **body_of(RESPONSES, 4)})
        frame = await socket.receive_json(timeout=PATIENCE)
        assert (frame["status"], frame["error"]["param"]) == (400, "input")


@pytest.mark.parametrize(("size", "most"), [(1, MAX_WAITING), (1500, 2)])
async def test_a_connection_whose_turns_pile_up_is_ended_with_the_reason(
    tmp_path: Path, size: int, most: int
) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with (
        fake_proxy(tmp_path, environment, body_limit=4096) as proxy,
        proxy.session.ws_connect(proxy.url + RESPONSES) as socket,
    ):
        held = {"type": "response.create", "model": "codex-5", "input": '[[fake:text say="a b" hold=1]]'}
        await socket.send_json(held)
        await until(lambda: proxy.server.runs.running == 1)
        for _ in range(most + 1):
            await socket.send_json({**held, "user": "x" * size})
        types = []
        while (message := await socket.receive(timeout=PATIENCE)).type is WSMsgType.TEXT:
            types.append(message.json()["type"])
        assert types.count("error") == 1
        assert types[-1] == "error"
        assert socket.close_code == WSCloseCode.TRY_AGAIN_LATER
        await until(lambda: proxy.server.runs.running == 0)


async def test_a_connection_takes_any_number_of_turns_one_after_the_other(tight: Proxy) -> None:
    async with tight.session.ws_connect(tight.url + RESPONSES) as socket:
        for _ in range(5):
            turn = {"type": "response.create", **body_of(RESPONSES, 1), "instructions": "x" * 1500}
            await socket.send_json(turn)
            while (type := (await socket.receive_json(timeout=PATIENCE))["type"]) != "response.completed":
                assert type != "error"


@pytest.mark.parametrize("path", PATHS[:2])
async def test_long_conversations_are_within_the_limits_that_nobody_has_set(proxy: Proxy, path: str) -> None:
    assert (await proxy.send("POST", path, body_of(path, MAX_ITEMS // 10))).status == 200
    assert error_facts(await proxy.send("POST", path, body_of(path, MAX_ITEMS + 1)))[0] == 400


@pytest.mark.parametrize(("path", "tool"), [(CHAT, CHAT_WEATHER), (RESPONSES, TOOL)])
async def test_tools_are_as_many_as_openai_takes(proxy: Proxy, path: str, tool: dict[str, Any]) -> None:
    answer = await proxy.send("POST", path, {**body_of(path, 1), "tools": [tool] * 129})
    assert error_facts(answer) == (400, "array_above_max_length", "tools")


@pytest.mark.parametrize("path", [*PATHS, "/v1/conversations"])
async def test_a_body_that_is_nested_too_deep_is_refused(proxy: Proxy, path: str) -> None:
    deep = b'{"metadata":' * (MAX_DEPTH + 1) + b"{}" + b"}" * (MAX_DEPTH + 1)
    answer = await proxy.send("POST", path, deep)
    assert error_facts(answer)[:2] == (400, "invalid_json")
    assert str(MAX_DEPTH) in answer.error["message"]


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("path", [*PATHS, "/v1/conversations"])
@pytest.mark.parametrize("filler", [0, [], "", {}])
async def test_a_body_of_too_many_values_is_refused_whichever_they_are(
    proxy: Proxy, path: str, filler: Any
) -> None:
    body = {**body_of(path, 1), "unknown": [filler] * MAX_VALUES}
    assert error_facts(await proxy.send("POST", path, body)) == (413, "request_too_large", "unknown")
    parts = {"unknown": [[filler] * 1000] * (MAX_VALUES // 1000)}
    assert error_facts(await proxy.send("POST", path, {**body_of(path, 1), **parts}))[0] == 413


@pytest.mark.parametrize("one", [b"[]", b"{}"])
def test_a_body_that_would_take_long_to_decode_is_not_decoded(one: bytes) -> None:
    with pytest.raises(Fault) as fault:
        decode_object(b'{"messages":[' + b",".join([one] * (MAX_BRACKETS + 1)) + b"]}")
    assert fault.value.failure.kind is FaultKind.REQUEST_TOO_LARGE
    assert fault.value.failure.param is None  # which field it is, only decoding tells
    assert decode_object(b'{"text":"' + b"[" * (MAX_BRACKETS // 2) + b'"}')


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_of_too_many_bytes_is_refused(tight: Proxy, path: str) -> None:
    body = {**body_of(path, 1), "user": "x" * 5000}
    answer = await tight.send("POST", path, body)
    assert error_facts(answer) == (413, "request_too_large", None)
    assert "PROXY_BODY_LIMIT" in answer.error["message"]


async def with_headers(proxy: Proxy, headers: list[tuple[str, str]]) -> Answer:
    async with aiohttp.ClientSession() as session:
        url, body = proxy.url + CHAT, json.dumps(user())
        content = [("Content-Type", "application/json")]
        async with session.post(url, data=body, headers=[*content, *headers]) as reply:
            return Answer(reply.status, reply.headers, await reply.text())


async def test_headers_that_are_too_many_or_too_large_are_refused(proxy: Proxy) -> None:
    few = [(f"X-{number}", "x") for number in range(MAX_HEADERS // 2)]
    assert (await with_headers(proxy, few)).status == 200
    assert (await with_headers(proxy, [("Cookie", "x" * (MAX_HEADER_BYTES // 2))])).status == 200
    for headers in (
        [(f"X-{number}", "x") for number in range(MAX_HEADERS)],
        [("Cookie", "x" * MAX_HEADER_BYTES)],
        [(f"X-{number}", "x" * 1000) for number in range(MAX_HEADER_BYTES // 1000 + 1)],
        [("Cookie", "x" * (MAX_LINE + 1))],
    ):
        answer = await with_headers(proxy, headers)
        assert error_facts(answer) == (431, "headers_too_large", None)
        assert answer.headers["x-request-id"]


async def test_after_every_refusal_the_server_serves(tight: Proxy) -> None:
    for body in (body_of(CHAT, 4), {"user": "x" * 5000}, b"[" * 1000):
        assert (await tight.ask(body)).status in (400, 413)
    assert (await tight.ask(user())).status == 200
    assert tight.app[REQUEST_LIMITS].running.of("local") == 0


@pytest.mark.parametrize(
    ("body", "is_half"),
    [
        (rb'{"a":"a\ud83d"}', True),
        (rb'{"a":"\ud83dab"}', True),
        (rb'{"a":"\ud83d and more text"}', True),
        (rb'{"a":"\ude00"}', True),
        (rb'{"a":"a\ud83d', False),
        (b'{"a":"x"', False),
    ],
)
def test_half_of_a_surrogate_pair_is_named_as_such(body: bytes, is_half: bool) -> None:
    with pytest.raises(Fault) as caught:
        decode_object(body)
    assert ("half of a surrogate pair" in str(caught.value)) == is_half
