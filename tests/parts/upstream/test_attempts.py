"""When another attempt is made for a turn, at the same upstream or at another, and when none is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import fake_proxy, user
from tests.model_server import CASES, Case, Upstream, ask, raw_upstream, text
from tests.parts.upstream.serving import several
from tests.parts.upstream.test_connections import HI, OK, ROLE, answer_text, silent, talk_of
from tests.response_events import THOUGHT, message, response_with
from tests.waiting import eventually


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_upstream_that_fails_before_its_answer_is_asked_again(
    path: str, streamed: bool, a: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.upstream.attempts.FIRST_WAIT", 0.001)
    async with several(tmp_path, upstreams={"a": {"url": a.url, "retries": 2}}) as proxy:
        a.script = [CASES["http_500"], CASES["http_500"]]
        body = {"model": "a/small", "stream": streamed} | (
            {"input": "Hi"} if "resp" in path else user(stream=streamed) | {"model": "a/small"}
        )
        answer = await proxy.send("POST", path, body)
        assert answer.status == 200
        assert answer_text(answer.text) == "Hello."
        assert (answer.headers["x-codex-upstream"], answer.headers["x-codex-attempts"]) == ("a", "3")
        assert len(a.requests) == 3
        await proxy.settled()


def error_case(status: int, **headers: str) -> Case:
    return Case(status, headers, ['{"error":{"message":"Not now."}}'], [], "failed")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("agent", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize("status", [408, 429, 500, 503, 504])
async def test_a_single_upstream_is_asked_again_by_default_as_one_of_a_table_is(
    agent: str, status: int, a: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.upstream.attempts.FIRST_WAIT", 0.001)
    good = text("Hello.") if agent == "openai-chat" else response_with(message("Hello."))
    async with fake_proxy(tmp_path, agent=agent, upstream_url=a.url) as proxy:
        for path, asked in (("/v1/chat/completions", user()), ("/v1/responses", {"input": "Hi"})):
            a.script = [error_case(status), error_case(status), good]
            answer = await proxy.send("POST", path, {**asked, "model": "small", "stream": True})
            assert answer.status == 200
            assert answer_text(answer.text) == "Hello."
            assert answer.headers["x-codex-attempts"] == "3"
            assert "x-codex-upstream" not in answer.headers, "it has no name"
        assert len(a.requests) == 6
        await proxy.settled()


async def test_of_several_servers_in_a_row_only_the_first_asks_again(
    a: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.upstream.attempts.FIRST_WAIT", 0.001)
    for name in ("inner", "outer"):
        (tmp_path / name).mkdir()
    async with (
        fake_proxy(tmp_path / "inner", agent="openai-chat", upstream_url=a.url) as inner,
        fake_proxy(tmp_path / "outer", agent="openai-chat", upstream_url=f"{inner.url}/v1") as outer,
    ):
        a.script = [error_case(500)] * 9
        answer = await outer.ask(ask("small"))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert len(a.requests) == 3


@pytest.mark.parametrize(
    ("case", "table", "asked"),
    [
        (error_case(500), {"retries": 0}, 1),
        (error_case(400), {}, 2),  # the second without `stream_options`
        (error_case(401), {}, 1),
        (error_case(429, **{"retry-after": "31"}), {}, 1),
        (error_case(503, **{"retry-after": "2"}), {"retry_wait": 1}, 1),
        (error_case(500), {"retries": 1}, 2),
        (CASES["cut_mid"], {}, 1),
    ],
    ids=[
        *("no retries", "its refusal", "a refused key", "a wait above 30 s", "a wait above the setting"),
        *("as many as the setting says", "after the first word"),
    ],
)
async def test_a_single_upstream_is_asked_no_more_than_makes_sense(
    case: Case,
    table: dict[str, Any],
    asked: int,
    a: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codex_proxy.parts.upstream.attempts.FIRST_WAIT", 0.001)
    async with fake_proxy(tmp_path, agent="default", upstreams={"default": {"url": a.url, **table}}) as proxy:
        a.script = [case] * 5
        await proxy.ask(ask("small", stream=True))
        assert len(a.requests) == asked


async def test_a_single_upstream_that_keeps_failing_is_left_alone_for_a_while(
    a: Upstream, tmp_path: Path
) -> None:
    table = {"url": a.url, "retries": 0}
    async with fake_proxy(tmp_path, agent="openai-chat", upstreams={"default": table}, metrics=True) as proxy:
        a.script = [error_case(500)] * 9
        statuses = [(await proxy.ask(ask("small"))).status for _ in range(6)]
        assert statuses == [*[502] * 5, 503]
        answer = await proxy.ask(ask("small"))
        assert 0 < int(answer.headers["retry-after"]) <= 10
        assert "'" not in answer.error["message"], "it has no name"
        assert len(a.requests) == 5
        assert (await proxy.send("GET", "/healthz")).body["agent"]["breaker"] == "open"
        metrics = (await proxy.send("GET", "/metrics")).text
        assert 'codex_proxy_upstream_breaker{agent="openai-chat",state="open"} 1.0' in metrics
        assert 'codex_proxy_upstream_attempts_total{agent="openai-chat",outcome="failed"} 5.0' in metrics


async def test_encrypted_reasoning_of_a_single_upstream_is_not_marked(a: Upstream, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, agent="openai-responses", upstream_url=a.url) as proxy:
        a.script = [response_with(THOUGHT, message("Hm."))]
        include = ["reasoning.encrypted_content"]
        answer = await proxy.send(
            "POST", "/v1/responses", {"model": "small", "input": "?", "include": include}
        )
        assert answer.body["output"][0]["encrypted_content"] == THOUGHT["encrypted_content"]


async def test_another_upstream_is_asked_where_one_limits(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    upstreams = {"a": {"url": a.url, "fallback": ["b"]}, "b": {"url": b.url}}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        a.script = [CASES["http_429"]]
        answer = await proxy.ask(ask("a/small"))
        assert answer.status == 200
        assert (answer.headers["x-codex-upstream"], answer.headers["x-codex-attempts"]) == ("b", "2")
        assert answer.headers["x-codex-agent"] == "a"
        assert (len(a.requests), b.requests[-1].body["model"]) == (1, "small")


async def test_a_fallback_may_name_its_own_model(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    upstreams = {"a": {"url": a.url, "retries": 0, "fallback": ["b/vendor/big"]}, "b": {"url": b.url}}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        a.script = [CASES["http_500"]]
        assert (await proxy.ask(ask("a/large"))).status == 200
        assert b.requests[-1].body["model"] == "vendor/big"


async def test_a_bad_request_is_asked_of_nobody_else(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    upstreams = {"a": {"url": a.url, "fallback": ["b"]}, "b": {"url": b.url}}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        a.script = [CASES["toolong_llamacpp"]]
        answer = await proxy.ask(ask("a/small"))
        assert answer.error["code"] == "context_length_exceeded"
        assert "8192" in answer.error["message"]
        assert (len(a.requests), len(b.requests)) == (1, 0)


async def test_another_upstream_is_asked_after_silence_before_the_first_byte(
    b: Upstream, tmp_path: Path
) -> None:
    async with raw_upstream(silent) as url:
        upstreams = {"a": {"url": url, "first_byte_timeout": 0.3, "fallback": ["b"]}, "b": {"url": b.url}}
        async with several(tmp_path, upstreams=upstreams) as proxy:
            answer = await proxy.ask(ask("a/small"))
            assert (answer.status, answer.headers["x-codex-upstream"]) == (200, "b")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_nobody_else_is_asked_after_the_first_word(path: str, b: Upstream, tmp_path: Path) -> None:
    async with raw_upstream(talk_of(OK, ROLE, HI)) as url:
        upstreams = {"a": {"url": url, "fallback": ["b"], "retries": 2}, "b": {"url": b.url}}
        async with several(tmp_path, upstreams=upstreams) as proxy:
            body = {"model": "a/m", "stream": True} | (
                {"input": "Hi"} if "resp" in path else user(stream=True) | {"model": "a/m"}
            )
            answer = await proxy.send("POST", path, body)
            assert answer.status == 200
            assert "Hi" in answer.text
            assert "upstream_disconnected" in answer.text
            assert (answer.headers["x-codex-upstream"], answer.headers["x-codex-attempts"]) == ("a", "1")
            assert b.requests == []


async def test_a_client_that_leaves_ends_the_wait_for_another_attempt(
    a: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.upstream.attempts.FIRST_WAIT", 100.0)
    monkeypatch.setattr("codex_proxy.parts.upstream.attempts.MAX_WAIT", 100.0)
    async with several(tmp_path, upstreams={"a": {"url": a.url, "concurrency": 1}}) as proxy:
        a.script = [CASES["http_500"]]
        request = asyncio.ensure_future(proxy.ask(ask("a/small", stream=True)))
        await eventually(lambda: bool(a.requests))
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await proxy.settled()
        assert (await proxy.ask(ask("a/small"))).status == 200  # its place is free again


async def test_the_answer_of_a_compaction_names_the_upstream_and_the_attempts(
    a: Upstream, tmp_path: Path
) -> None:
    async with several(tmp_path, upstreams={"a": {"url": a.url, "retry_wait": 0.01}}) as proxy:
        a.script = [CASES["http_500"]]
        answer = await proxy.send("POST", "/v1/responses/compact", {"model": "a/small", "input": "Hello."})
        assert answer.status == 200
        assert answer.headers["x-codex-attempts"] == "2"


async def test_an_upstream_that_keeps_failing_is_left_alone_for_a_while(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    rules = {"retries": 0, "breaker_failures": 2, "breaker_seconds": 0.2}
    upstreams = {"a": {"url": a.url, **rules}, "b": {"url": b.url}}
    async with several(tmp_path, upstreams=upstreams, metrics=True) as proxy:
        a.script = [CASES["http_500"], CASES["http_500"]]
        for _ in range(2):
            assert (await proxy.ask(ask("a/small"))).status == 502
        answer = await proxy.ask(ask("a/small"))
        assert (answer.status, answer.error["code"]) == (503, "service_unavailable")
        assert len(a.requests) == 2
        metrics = (await proxy.send("GET", "/metrics")).text
        assert 'codex_proxy_upstream_breaker{agent="a",state="open"} 1.0' in metrics
        assert 'codex_proxy_upstream_attempts_total{agent="a",outcome="failed"} 2.0' in metrics
        assert 'codex_proxy_agents_ready{agent="b"} 1.0' in metrics
        assert 'codex_proxy_agent_requests_total{agent="a",error="upstream_error"} 2.0' in metrics
        assert (await proxy.send("GET", "/healthz")).body["agents"][0]["breaker"] == "open"
        member: Any = proxy.server.agent.members["a"]
        await eventually(lambda: member.breaker_state == "half-open")
        assert (await proxy.ask(ask("a/small"))).status == 200
        assert member.breaker_state == "closed"


async def test_turns_beyond_its_number_wait_or_go_to_another_upstream(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    upstreams = {
        "a": {"url": a.url, "concurrency": 1},
        "busy": {"url": a.url, "concurrency": 1, "fallback": ["b"]},
        "b": {"url": b.url},
    }
    async with several(tmp_path, upstreams=upstreams, queue_wait=0.2) as proxy:
        for name, expected in (("a", (429, None)), ("busy", (200, "b"))):
            a.held.clear()
            a.is_held.clear()
            async with proxy.open(ask(f"{name}/small", stream=True)) as first:
                await a.is_held.wait()
                answer = await proxy.ask(ask(f"{name}/small"))
                assert (answer.status, answer.headers.get("x-codex-upstream")) == expected
                a.held.set()
                assert answer_text(await first.text()) == "Hello."


async def test_a_failed_turn_is_repeated_where_it_is_the_only_one_that_may_run(
    a: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.upstream.attempts.FIRST_WAIT", 0.001)
    async with several(tmp_path, upstreams={"a": {"url": a.url, "concurrency": 1, "retries": 1}}) as proxy:
        a.script = [error_case(500)]
        answer = await proxy.ask(ask("a/small"))
        assert (answer.status, answer.headers["x-codex-attempts"]) == (200, "2")
        assert (await proxy.ask(ask("a/small"))).status == 200, "its place is free again"


async def test_an_upstream_that_cannot_start_is_followed_by_its_fallback(b: Upstream, tmp_path: Path) -> None:
    broken = {"url": "http://127.0.0.1:1/v1", "key_env": "NO_SUCH_KEY", "fallback": ["b"]}
    async with several(tmp_path, upstreams={"a": broken, "b": {"url": b.url}}) as proxy:
        answer = await proxy.ask(ask("a/small"))
        assert (answer.status, answer.headers["x-codex-upstream"]) == (200, "b")
        assert answer.headers["x-codex-attempts"] == "1", "the other one was not asked"
