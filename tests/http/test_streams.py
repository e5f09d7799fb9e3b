"""What a stream is on the wire: framing, keepalives, time-outs, failures. Sources: docs/contract.md#streams,
docs/wire-rules.md#framing-of-streams.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import Proxy, fake_agent, fake_proxy, frames_of, proxy_of, user
from tests.waiting import out_of_patience

pytestmark = pytest.mark.sampled(every=2)

SLOW = user("[[fake:text first=150]]", stream=True)
"""Silent for 150 ms, then a short text."""

COMMENT = re.compile(r"^: \d{13}$", re.MULTILINE)


@pytest.fixture(params=["proto", "app-server"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_stream_is_server_sent_events_that_nobody_may_keep(proxy: Proxy) -> None:
    answer = await proxy.ask(user(stream=True))
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert "\r" not in answer.text


async def test_every_json_data_line_is_a_chunk_with_id_object_created_and_model(proxy: Proxy) -> None:
    answer = await proxy.ask(user(stream=True, stream_options={"include_usage": True}))
    *chunks, done = answer.frames
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], "codex-5")
    }
    assert not re.search(r"^(event|id|retry):", answer.text, re.MULTILINE)


async def test_an_event_and_its_blank_line_come_in_one_write(proxy: Proxy) -> None:
    async with proxy.open(user("[[fake:text delay=5]]", stream=True)) as reply:
        pieces = [piece async for piece, _ in reply.content.iter_chunks()]
    assert any(pieces)  # on a busy machine one of them has several events
    assert all(piece.endswith(b"\n\n") for piece in pieces if piece)


async def test_keepalive_comments_come_while_nothing_else_does(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, heartbeat_interval=0.02) as proxy:
        answer = await proxy.ask(SLOW)
    assert COMMENT.search(answer.text)
    assert answer.text.startswith("data: ")  # the first comment brings the role along, and goes behind it
    assert answer.frames[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert answer.frames[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("path", "headers"),
    [("", {"x-no-keepalive": "1"}), ("", {"X-No-Keepalive": "true"}), ("?no_keepalive=1", {})],
)
async def test_keepalives_can_be_switched_off_by_header_or_query(
    tmp_path: Path, path: str, headers: dict[str, str]
) -> None:
    async with fake_proxy(tmp_path, heartbeat_interval=0.02) as proxy:
        answer = await proxy.send("POST", f"/v1/chat/completions{path}", SLOW, headers=headers)
    assert not COMMENT.search(answer.text)
    assert answer.frames[-1] == "[DONE]"


async def test_a_keepalive_interval_of_0_is_none(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, heartbeat_interval=0) as proxy:
        assert not COMMENT.search((await proxy.ask(SLOW)).text)


async def timed_out_behind(proxy: Proxy, prompt: str, said: bytes) -> tuple[int, bytes, bytes]:
    """A stream whose time is up as soon as this was said in it: its status, what came before, and the rest."""
    async with proxy.open(user(prompt, stream=True)) as reply:
        head = b""
        while said not in head:
            head += await reply.content.readany()
            assert not reply.content.at_eof(), head
        out_of_patience(proxy.server.runs)
        return reply.status, head, await reply.content.read()


async def test_after_a_keepalive_a_failure_is_a_frame(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, heartbeat_interval=0.02) as proxy:
        status, head, rest = await timed_out_behind(proxy, "[[fake:text misbehave=hang at=1]]", b": ")
    assert status == 200
    assert b"error" not in head
    assert frames_of(rest.decode())[-2]["error"]["code"] == "request_timeout"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_time_out_before_the_first_byte_is_504_timeout_error(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    async with fake_proxy(tmp_path, first_event_timeout=0.2, fake_dialect=dialect) as proxy:
        answer = await proxy.ask(user("[[fake:text misbehave=hang at=1]]", stream=stream))
        assert answer.status == 504
        assert answer.headers["Content-Type"].startswith("application/json")
        assert (answer.error["type"], answer.error["code"]) == ("timeout_error", "request_timeout")
        await proxy.settled()


async def test_a_time_out_in_the_middle_is_a_timeout_error_frame_and_done(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        status, head, rest = await timed_out_behind(proxy, "[[fake:text misbehave=hang at=4]]", b'"content"')
        assert status == 200
        *chunks, failed, done = frames_of((head + rest).decode())
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert failed["error"]["type"] == "timeout_error"
        assert failed["error"]["code"] == "request_timeout"
        assert done == "[DONE]"
        await proxy.settled()


async def test_an_error_in_mid_stream_is_a_single_error_frame_then_done(proxy: Proxy, dialect: str) -> None:
    answer = await proxy.ask(user("[[fake:error_mid_text]]", stream=True))
    assert answer.status == 200
    *chunks, failed, done = answer.frames
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Half of an"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert set(failed) == {"error"}
    assert set(failed["error"]) == {"message", "type", "param", "code"}
    assert failed["error"]["type"] == "server_error"
    assert failed["error"]["param"] is None
    assert done == "[DONE]"
    assert answer.text.count('"error"') == answer.text.count("[DONE]") == 1


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("scenario", "status", "kind", "code"),
    [
        ("error_500", 502, "server_error", "upstream_error"),
        ("error_rate_limit", 429, "rate_limit_error", "rate_limit_exceeded"),
        ("quota", 429, "rate_limit_error", None),
        ("usage_limit", 429, "rate_limit_error", "usage_limit_reached"),
        ("context_length", 400, "invalid_request_error", "context_length_exceeded"),
        ("model_not_found", 404, "invalid_request_error", "model_not_found"),
        ("invalid_prompt", 400, "invalid_request_error", "invalid_prompt"),
        ("auth_401", 502, "server_error", "upstream_unauthorized"),
        ("text misbehave=crash at=1", 500, "server_error", "agent_crashed"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_first_token_is_plain_http_also_with_stream_true(
    proxy: Proxy, scenario: str, status: int, kind: str, code: str | None, stream: bool
) -> None:
    answer = await proxy.ask(user(f"[[fake:{scenario}]]", stream=stream))
    assert (answer.status, answer.error["type"]) == (status, kind)
    assert code in (None, answer.error["code"])
    assert answer.headers["Content-Type"].startswith("application/json")


async def test_the_agents_time_to_wait_is_reported_in_retry_after(proxy: Proxy) -> None:
    answer = await proxy.ask(user("[[fake:error_rate_limit_wait]]"))
    assert answer.status == 429
    assert answer.headers["Retry-After"] == "7"


async def test_an_agent_that_cannot_be_started_is_500_spawn_error(tmp_path: Path) -> None:
    async with proxy_of(fake_agent(program=("/nonexistent/codex",)), tmp_path) as proxy:
        for stream in (True, False):
            answer = await proxy.ask(user(stream=stream))
            assert (answer.status, answer.error["code"]) == (500, "spawn_error")
            assert answer.error["type"] == "server_error"


async def test_stop_sequences_are_exact_across_deltas_streamed_and_whole(proxy: Proxy, dialect: str) -> None:
    prompt = "[[fake:text say='one two three four']]"
    for stop, content in ((["wo thr"], "one t"), ("four", "one two three "), (["x", "one"], "")):
        whole = await proxy.ask(user(prompt, stop=stop))
        streamed = await proxy.ask(user(prompt, stop=stop, stream=True))
        choice = whole.body["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (content, "stop")
        *chunks, _ = streamed.frames
        said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert (said, chunks[-1]["choices"][0]["finish_reason"]) == (content, "stop")


async def test_a_stop_sequence_ends_the_agents_turn(tmp_path: Path) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "never")}
    async with fake_proxy(tmp_path, environment) as proxy:
        answer = await proxy.ask(user("[[fake:text hold=1]]", stop="Hello", stream=True))
        assert answer.frames[-1] == "[DONE]"
        await proxy.settled()


async def test_a_long_answer_loses_nothing_on_its_way_to_a_slow_reader(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        body = user("[[fake:count n=40000 size=100]]", stream=True)
        async with proxy.open(body) as reply:
            await reply.content.readline()
            text = (await reply.read()).decode()
    assert text.count('"content"') == 40000
    assert text.endswith("data: [DONE]\n\n")


async def test_ignored_parameters_are_named_in_a_header(proxy: Proxy) -> None:
    ignored: dict[str, Any] = {"temperature": 0.5, "seed": 7, "logit_bias": {"1": 2}}
    for stream in (True, False):
        answer = await proxy.ask(user(stream=stream, **ignored))
        assert answer.status == 200
        assert answer.headers["x-codex-ignored-params"] == "temperature, logit_bias, seed"
    assert "x-codex-ignored-params" not in (await proxy.ask(user())).headers


async def test_stream_metrics_are_null_unless_they_are_switched_on(tmp_path: Path) -> None:
    body = user("[[fake:text delay=2 out=100]]", stream=True, stream_options={"include_usage": True})
    async with fake_proxy(tmp_path) as proxy:
        usage = (await proxy.ask(body)).frames[-2]["usage"]
        assert usage["time_to_first_token"] is None
        assert usage["throughput_after_first_token"] is None
    async with fake_proxy(tmp_path, stream_metrics=True) as proxy:
        usage = (await proxy.ask(body)).frames[-2]["usage"]
        assert usage["time_to_first_token"] > 0
        assert usage["throughput_after_first_token"] > 0  # how much is for the machine to say
        assert "time_to_first_token" not in (await proxy.ask(user())).text
