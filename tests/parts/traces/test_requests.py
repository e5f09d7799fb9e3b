"""The spans of requests, through a whole server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id

from codex_proxy.parts.traces.watcher import MAX_CALLS
from tests.forked_fake import no_forks
from tests.http.serving import Proxy, user
from tests.model_server import upstream
from tests.parts.traces.traced import facts, is_below, one, recorded_traces, spans_named, traced_proxy
from tests.weather_tool import CHAT_WEATHER

CLIENT_TRACE, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"}


async def loop(proxy: Proxy, headers: dict[str, str]) -> None:
    """A tool loop over two requests."""
    body = user("[[fake:tool_call]]", tools=[CHAT_WEATHER])
    said = (await proxy.ask(body, headers=headers)).body["choices"][0]["message"]
    output = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "sunny"}
    body["messages"] += [said, output]
    answer = await proxy.ask(body, headers=headers)
    assert answer.body["choices"][0]["finish_reason"] == "stop", answer.text


async def test_a_tool_loop_over_two_requests_is_one_trace_that_reads_in_order(tmp_path: Path) -> None:
    async with traced_proxy(tmp_path) as (proxy, spans):
        await loop(proxy, {})
        first, second = spans_named(spans, "POST /v1/chat/completions")
        turn, resumed = spans_named(spans, "invoke_agent fake")
        call = one(spans, "execute_tool get_weather")
        assert len({span.context.trace_id for span in spans.get_finished_spans()}) == 1
        assert first.parent is None
        assert [is_below(turn, first), is_below(call, turn)] == [True, True]
        assert [is_below(second, call), is_below(resumed, second)] == [True, True]
        assert resumed.links[0].context.span_id == call.context.span_id
        assert [is_below(each, turn) for each in spans_named(spans, "chat")] == [True, False]
        assert (first.kind, facts(first)["http.response.status_code"]) == (SpanKind.SERVER, 200)


async def test_the_trace_of_the_client_is_continued(tmp_path: Path) -> None:
    async with traced_proxy(tmp_path) as (proxy, spans):
        await loop(proxy, TRACEPARENT)
        for request in spans_named(spans, "POST"):
            assert request.parent is not None
            assert format_trace_id(request.context.trace_id) == CLIENT_TRACE
            assert format_span_id(request.parent.span_id) == CLIENT_SPAN
        call, resumed = one(spans, "execute_tool"), spans_named(spans, "invoke_agent")[1]
        assert resumed.links[0].context.span_id == call.context.span_id


async def test_an_upstream_gets_the_trace_of_the_turn(tmp_path: Path) -> None:
    async with upstream() as server:
        given: dict[str, Any] = {"agent": "openai-chat", "upstream_url": server.url}
        async with traced_proxy(tmp_path, **given) as (proxy, spans):
            answer = await proxy.ask(user() | {"model": "small"}, headers=TRACEPARENT)
            assert answer.status == 200, answer.text
            turn = one(spans, "invoke_agent").context
            sent = server.requests[-1].headers["traceparent"]
            assert sent == f"00-{CLIENT_TRACE}-{format_span_id(turn.span_id)}-01"


async def test_the_start_of_a_process_is_a_part_of_its_turn(tmp_path: Path) -> None:
    async with traced_proxy(tmp_path) as (proxy, spans):
        await proxy.ask(user())
        assert is_below(one(spans, "start fake"), one(spans, "invoke_agent"))


async def test_a_process_that_cannot_be_started_fails_its_turn_and_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with traced_proxy(tmp_path) as (proxy, spans):
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with no_forks():
            answer = await proxy.ask(user())
        assert answer.status == 500, answer.text
        assert facts(one(spans, "start"))["error.type"] == "spawn_failed"
        assert facts(one(spans, "invoke_agent"))["error.type"] == "spawn_failed"
        assert facts(one(spans, "POST"))["error.type"] == "spawn_failed"
        records = proxy.server.runs.records
        assert records is None or records.of_owner("local")[0].summary().error == "spawn_failed"


async def test_a_request_without_a_turn_is_a_span_and_health_and_the_page_are_none(tmp_path: Path) -> None:
    async with traced_proxy(tmp_path, ui=True) as (proxy, spans):
        for path in ("/healthz", "/ui/page.js", "/ui/api/turns", "/v1/models", "/v1/responses/resp_0"):
            await proxy.send("GET", path)
        assert [span.name for span in spans.get_finished_spans()] == [
            "GET /v1/models",
            "GET /v1/responses/{id}",
        ]
        assert facts(one(spans, "GET /v1/responses"))["error.type"] == "not_found"


async def test_a_refused_request_has_the_kind_of_its_error(tmp_path: Path) -> None:
    async with traced_proxy(tmp_path) as (proxy, spans):
        await proxy.ask({"model": "codex-5"}, headers={"x-request-id": "mine"})
        found = facts(one(spans, "POST"))
        assert (found["error.type"], found["codex_proxy.request_id"]) == ("invalid_request", "mine")


async def test_a_background_response_is_in_the_trace_of_its_request(tmp_path: Path) -> None:
    async with traced_proxy(tmp_path) as (proxy, spans):
        asked: dict[str, Any] = {"model": "codex-5", "input": "Hello.", "background": True}
        await proxy.send("POST", "/v1/responses", asked)
        await proxy.settled()
        assert is_below(one(spans, "invoke_agent"), one(spans, "POST"))


def test_the_number_of_remembered_calls_is_bounded() -> None:
    traces, _ = recorded_traces()
    with traces._provider.get_tracer("test").start_as_current_span("call") as span:
        for number in range(MAX_CALLS + 5):
            traces._remember("ann", f"c{number}", span.get_span_context())
    assert ("ann", "c5") in traces._calls
    assert ("ann", "c4") not in traces._calls
