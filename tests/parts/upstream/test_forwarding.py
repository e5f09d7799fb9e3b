"""Chat Completions in front of Chat Completions: what the upstream can do goes to it and comes back as it is."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from codex_proxy.http.app_keys import USAGE as USAGE_BOOK
from tests.access.keyed import key_header, look_now, write_keys
from tests.http.serving import Proxy, user
from tests.mcp.serving import PROGRAM
from tests.model_server import (
    DONE,
    USAGE,
    Case,
    Upstream,
    chunk,
    event,
    proxy_before,
    raw_upstream,
    stream,
    text,
)
from tests.parts.upstream.test_connections import OK, talk_of
from tests.waiting import PATIENCE
from tests.weather_tool import CHAT_WEATHER

pytestmark = pytest.mark.usefixtures("each_spelling")

AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
FILE = {"type": "file", "file": {"file_id": "file-1"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
WORDS = {"type": "text", "text": "What is this?"}


def request(**more: Any) -> dict[str, Any]:
    """A request for the upstream's own model."""
    return user(**more) | {"model": "small"}


# --- bytes ----------------------------------------------------------------------------------------


async def test_a_stream_is_the_upstreams_own_bytes(proxy: Proxy, server: Upstream) -> None:
    first = chunk({"role": "assistant", "content": ""}, id="chatcmpl-UP", system_fingerprint="fp_1")
    more = chunk({"content": "Hi", "reasoning": "Hm."}, provider="x", service_tier="flex")
    end = chunk({}, "stop")
    sent = b": one\n\n" + b"".join(map(event, (first, more, end, {"choices": [], "usage": USAGE}))) + DONE
    server.script = [sent]
    answer = await proxy.ask(request(stream=True, stream_options={"include_usage": True}))
    assert answer.text.encode() == sent
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_whole_answer_is_the_upstreams_own_bytes(proxy: Proxy, server: Upstream) -> None:
    message = {
        "role": "assistant",
        "content": None,
        "audio": {"id": "audio_1", "data": "UklG", "expires_at": 1},
    }
    sent = json.dumps(
        {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}, indent=2
    )
    server.script = [sent.encode()]
    answer = await proxy.ask(request(modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"}))
    assert answer.text == sent
    asked = server.requests[-1].body
    assert (asked["modalities"], asked["audio"]["voice"]) == (["text", "audio"], "alloy")
    assert asked.get("stream") in (None, False)


async def test_several_choices_and_log_probabilities_are_the_upstreams(
    proxy: Proxy, server: Upstream
) -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}]}
    made = [chunk({"content": "a"}, logprobs=logprobs), chunk({"content": "b"})]
    made[1]["choices"][0]["index"] = 1
    made[0]["choices"][0]["logprobs"] = logprobs
    server.script = [b"".join(map(event, made)) + event(chunk({}, "stop")) + DONE]
    async with AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client:
        answer: Any = await client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "?"}], n=2, logprobs=True, top_logprobs=1,
            tools=[CHAT_WEATHER], stream=True,
        )  # fmt: skip
        said = {
            choice.index: choice async for part in answer for choice in part.choices if choice.delta.content
        }
    assert (said[0].delta.content, said[1].delta.content) == ("a", "b")
    assert said[0].logprobs is not None
    assert said[0].logprobs.content is not None
    assert said[0].logprobs.content[0].logprob == -0.1
    asked = server.requests[-1].body
    assert (asked["n"], asked["logprobs"], asked["top_logprobs"]) == (2, True, 1)


async def test_the_body_reaches_the_upstream_as_it_was_written(tmp_path: Path) -> None:
    came: list[bytes] = []

    async def talk(reader: Any, writer: Any) -> None:
        came.append(await reader.readuntil(b"}]}"))
        await talk_of(OK, stream({"content": "Hi"}))(reader, writer)

    async with raw_upstream(talk) as url, proxy_before(url, tmp_path) as proxy:
        body = (
            b'{"model":"m","temperature":0.70,"seed":9007199254740993,"x_own":{"a":1.0},"reasoning":{"effort":null},'
            b'"web_search_options":{},"service_tier":"scale","metadata":{"a":"b"},'
            b'"messages":[{"role":"user","content":"\\u00e9","name":"Ann"}]}'
        )
        answer = await proxy.ask(body)
    assert answer.status == 200
    assert answer.headers["x-codex-passed-params"] == "x_own"
    assert "x-codex-ignored-params" not in answer.headers
    assert came == [body.replace(b',"reasoning":{"effort":null}', b"")]


async def test_an_effort_reaches_the_upstream_by_its_one_name(proxy: Proxy, server: Upstream) -> None:
    await proxy.ask(request(reasoning={"effort": "low"}))
    assert server.requests[-1].body["reasoning_effort"] == "low"
    assert "reasoning" not in server.requests[-1].body
    await proxy.ask(request(reasoning={"max_tokens": 500}))
    assert server.requests[-1].body["reasoning"] == {"max_tokens": 500}


async def test_developers_become_system_for_servers_that_know_no_other(
    proxy: Proxy, server: Upstream
) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [WORDS]}]
    await proxy.ask({"model": "small", "messages": messages})
    assert server.requests[-1].body["messages"] == [{"role": "system", "content": "Be brief."}, messages[1]]


@pytest.mark.parametrize("tools", [[], [CHAT_WEATHER]])
async def test_audio_files_and_addresses_of_images_reach_the_upstream(
    tools: list[Any], proxy: Proxy, server: Upstream
) -> None:
    more = {"tools": tools} if tools else {}
    for part in (AUDIO, FILE, IMAGE):
        content = [WORDS, part]
        answer = await proxy.ask(
            {"model": "small", "messages": [{"role": "user", "content": content}], "x_own": 1, "user": "u"}
            | more
        )
        assert answer.status == 200, answer.text
        asked = server.requests[-1].body
        assert asked["messages"][-1]["content"] == content
        assert (asked["x_own"], asked["user"]) == (1, "u")
        assert answer.headers["x-codex-passed-params"] == "x_own"


# --- names and usage ------------------------------------------------------------------------------


VIDEO = {"type": "video_url", "video_url": {"url": "https://example.com/cat.mp4", "fps": 2.50}}


@pytest.mark.parametrize("with_tools", [False, True], ids=["passed on", "told anew"])
async def test_parts_of_a_type_that_nobody_here_knows_reach_the_upstream_and_are_named(
    with_tools: bool, proxy: Proxy, server: Upstream
) -> None:
    content = [{"type": "text", "text": "What is it?"}, VIDEO]
    messages = [{"role": "user", "content": content}]
    more: dict[str, Any] = {"tools": [CHAT_WEATHER]} if with_tools else {}
    answer = await proxy.ask({"model": "small", "messages": messages, **more})
    assert answer.status == 200
    assert server.requests[-1].body["messages"] == messages
    assert answer.headers["x-codex-passed-params"] == "messages[].content[].video_url"


async def test_a_part_for_upstreams_only_is_refused_by_its_place_where_it_cannot_be_forwarded(
    proxy: Proxy, server: Upstream, tmp_path: Path
) -> None:
    calls = {"role": "assistant", "content": [VIDEO]}
    answer = await proxy.ask(user() | {"messages": [*user()["messages"], calls], "tools": [CHAT_WEATHER]})
    assert (answer.status, answer.error["param"]) == (400, "messages[1].content[0].type")
    assert "'text', 'refusal'" in answer.error["message"]
    (tmp_path / "b").mkdir()
    async with proxy_before(server.url, tmp_path / "b", agent="openai-responses") as other:
        answer = await other.ask({"model": "small", "messages": [{"role": "user", "content": [VIDEO]}]})
    assert (answer.status, answer.error["param"]) == (400, "messages[0].content[0].type")
    assert "'video_url'" in answer.error["message"]
    assert server.requests == []


async def test_a_model_asked_for_by_another_name_is_answered_by_that_name(
    server: Upstream, tmp_path: Path
) -> None:
    async with proxy_before(server.url, tmp_path, model_aliases="mine=large") as proxy:
        streamed = await proxy.ask(user(stream=True) | {"model": "mine"})
        assert {frame["model"] for frame in streamed.frames[:-1]} == {"mine"}
        whole = await proxy.ask(user() | {"model": "mine"})
        assert whole.body["model"] == "mine"
    assert [each.body["model"] for each in server.requests] == ["large", "large"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_usage_is_requested_recorded_and_sent_if_the_client_asked(
    streamed: bool, proxy: Proxy, server: Upstream
) -> None:
    answer = await proxy.ask(request(stream=streamed))
    assert streamed == ("usage" not in answer.text)
    if streamed:
        assert server.requests[-1].body["stream_options"] == {"include_usage": True}
    book = proxy.app[USAGE_BOOK]
    await book.flush()
    report = (await proxy.send("GET", "/v1/usage")).text
    assert '"input_tokens":11' in report
    assert '"output_tokens":7' in report


async def test_max_tokens_are_counted_by_the_upstream_alone(proxy: Proxy, server: Upstream) -> None:
    server.script = [text("many many words " * 20)] * 2
    for more in ({}, {"tools": [CHAT_WEATHER]}):
        answer = await proxy.ask(request(max_tokens=5, **more))
        assert answer.body["choices"][0]["message"]["content"] == "many many words " * 20
        assert server.requests[-1].body["max_tokens"] == 5


async def test_an_upstream_that_knows_no_stream_options_is_asked_without_them(
    proxy: Proxy, server: Upstream
) -> None:
    refusal = Case(400, {}, ['{"error":{"message":"Unknown parameter: stream_options"}}'], [], "failed")
    server.script = [refusal]
    for _ in range(2):
        assert (await proxy.ask(request(stream=True))).frames[-1] == "[DONE]"
    assert ["stream_options" in each.body for each in server.requests] == [True, False, False]


# --- faults ---------------------------------------------------------------------------------------


async def test_limits_and_refusals_come_with_the_upstreams_words(proxy: Proxy, server: Upstream) -> None:
    busy = '{"error":{"message":"Slow down, please.","type":"rate_limit_error"}}'
    bad = '{"error":{"message":"n is too large.","type":"invalid_request_error","param":"n","code":"bad_n"}}'
    server.script = [
        Case(429, {"Retry-After": "7"}, [busy], [], "failed"),
        Case(400, {}, [bad], [], "failed"),
    ]
    answer = await proxy.ask(request(stream=True))
    assert (answer.status, answer.headers["Retry-After"]) == (429, "7")
    assert "Slow down, please." in answer.error["message"]
    answer = await proxy.ask(request(n=3))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "bad_n", "n")
    assert "n is too large." in answer.error["message"]


@pytest.mark.parametrize("rest", [b"", b'data: {"choi', event({"error": {"message": "Overloaded"}})])
async def test_what_breaks_off_behind_the_first_word_is_an_error_frame_behind_it(
    rest: bytes, tmp_path: Path
) -> None:
    word = event(chunk({"content": "Hi"}))
    async with raw_upstream(talk_of(OK, word, rest)) as url, proxy_before(url, tmp_path) as proxy:
        answer = await proxy.ask(request(stream=True) | {"model": "m"})
        assert answer.text.encode().startswith(word)
        assert [sorted(frame) for frame in answer.frames[1:-1]] == [["error"]]
        whole = await proxy.ask(request() | {"model": "m"})
    assert whole.status in (502, 503)


async def test_a_client_that_leaves_closes_the_connection_to_the_upstream_within_50_ms(
    proxy: Proxy, server: Upstream
) -> None:
    server.held.clear()
    loop, took = asyncio.get_running_loop(), [PATIENCE]
    for _ in range(99):
        if min(took) < 0.05:  # a busy machine makes some of them slower
            break
        server.closed.clear()
        server.script = [event(chunk({"content": "Hi"})) + event(chunk({"content": "x"})) * 3]
        async with proxy.open(request(stream=True)) as reply:
            await reply.content.readany()
            left = loop.time()
            reply.close()
        await server.closed.wait()
        took.append(loop.time() - left)
        await proxy.settled()
    assert min(took) < 0.05, "from the client's end to the upstream's, of which most is this test's own"


async def test_a_key_that_is_gone_ends_a_stream_that_is_passed_on(server: Upstream, tmp_path: Path) -> None:
    write_keys(tmp_path, one={})
    async with proxy_before(server.url, tmp_path) as proxy:
        server.held.clear()
        server.script = [stream(*[{"content": "Hi"}] * 20)]
        async with proxy.open(request(stream=True), headers=key_header("one")) as reply:
            said = await reply.content.readany()
            write_keys(tmp_path, other={})
            look_now(proxy.server)
            said += await reply.content.read()
        await server.closed.wait()
    first, *others, last = [json.loads(line[6:]) for line in said.splitlines() if line.startswith(b"data: {")]
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert {each["choices"][0]["delta"]["content"] for each in others} == {"Hi"}
    assert last["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_of_several_choices_is_whole_when_each_has_ended(
    stream: bool, server: Upstream, tmp_path: Path
) -> None:
    def of(index: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish}
        return event(chunk({}) | {"choices": [choice]})

    begun = of(0, {"content": "A"}) + of(1, {"content": "B"}) + of(1, {"content": "b"})
    cut = begun + of(0, {}, "stop")
    server.script = [cut, cut + of(1, {}, "length"), cut + DONE]
    async with proxy_before(server.url, tmp_path, table={"retries": 0}) as proxy:
        broken, whole, done = [await proxy.ask(request(n=2, stream=stream)) for _ in range(3)]
    assert "upstream_disconnected" in broken.text
    for answer in (whole, done):
        assert "error" not in answer.text
        assert "length" in whole.text


# --- where this server has something to do --------------------------------------------------------


@pytest.mark.exhaustive
async def test_with_tools_of_this_server_the_answer_is_its_own(server: Upstream, tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(
        json.dumps({"mcpServers": {"files": {"command": sys.executable, "args": [PROGRAM, "stdio"]}}})
    )
    async with proxy_before(server.url, tmp_path, mcp_config=config) as proxy:
        answer = await proxy.ask(request(n=2, x_own=1))
        assert [choice["index"] for choice in answer.body["choices"]] == [0, 1]
        assert "n" not in server.requests[-1].body
        assert server.requests[-1].body["x_own"] == 1
        refused = await proxy.ask(request(logprobs=True))
        assert (refused.status, refused.error["param"]) == (400, "logprobs")
