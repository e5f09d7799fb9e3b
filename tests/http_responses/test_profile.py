"""PROXY_RESPONSES_PROFILE=open-responses-server through the port, beside its scenarios in `tests/parts/upstream`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import Proxy, fake_proxy, frames_of
from tests.http_responses.asking import create
from tests.weather_tool import RESPONSES_WEATHER


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, responses_profile="open-responses-server") as running:
        yield running


async def stream_of(proxy: Proxy, prompt: str, **fields: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """The types, each run of deltas once, and the events."""
    *events, done = frames_of((await create(proxy, prompt, stream=True, **fields)).text)
    assert done == "[DONE]"
    types: list[str] = []
    for event in events:
        if not (types and types[-1] == event["type"] and types[-1].endswith(".delta")):
            types.append(event["type"])
    return types, events


BEGIN = ["response.created", "response.in_progress"]


@pytest.mark.parametrize("scenario", ["error_500", "quota", "text misbehave=crash at=1"])
async def test_a_fault_before_the_first_word_is_a_completed_event_too(proxy: Proxy, scenario: str) -> None:
    types, events = await stream_of(proxy, f"[[fake:{scenario}]]")
    assert types == [*BEGIN, "response.completed"]
    assert events[-1]["response"]["error"]["message"]


async def test_a_whole_answer_and_a_context_that_is_too_long_still_have_a_status(proxy: Proxy) -> None:
    assert (await create(proxy, "[[fake:error_500]]")).status == 502
    assert (await create(proxy, "[[fake:context_length]]", stream=True)).status == 400


async def test_the_output_of_a_ready_call_is_taken_in_the_next_request(proxy: Proxy) -> None:
    prompt = """[[fake:tool_call name=get_weather say="{outputs}"]]"""
    first = (await create(proxy, prompt, tools=[RESPONSES_WEATHER])).body
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "sunny"}
    second = await create(proxy, [output], previous_response_id=first["id"], tools=[RESPONSES_WEATHER])
    assert "sunny" in json.dumps(second.body["output"])


async def test_a_background_stream_has_these_events_too(proxy: Proxy) -> None:
    types, events = await stream_of(proxy, '[[fake:text say="Hello."]]', background=True)
    assert types[-1] == "response.completed"
    id = events[0]["response"]["id"]
    again = await proxy.send("GET", f"/v1/responses/{id}?stream=true")
    assert frames_of(again.text) == [*events, "[DONE]"]


async def test_a_silent_stream_gets_heartbeats(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, heartbeat_interval=0.02) as proxy:
        answer = await create(proxy, '[[fake:text say="Hello." first=200]]', stream=True)
    assert answer.text.count(": heartbeat\n\n") > 1


ORPHAN = {"type": "function_call_output", "call_id": "call_nobody", "output": "lost"}
ORPHANS: list[dict[str, Any]] = [
    ORPHAN,
    {"type": "custom_tool_call_output", "call_id": "call_nobody", "output": "lost"},
    {"type": "local_shell_call_output", "id": "lsh_1", "call_id": "call_nobody", "output": "lost"},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("orphan", ORPHANS, ids=lambda item: item["type"])
async def test_an_output_without_a_call_is_left_out_and_named(
    proxy: Proxy, orphan: dict[str, Any], stream: bool
) -> None:
    said = {"role": "user", "content": "Hello."}
    answer = await create(proxy, [orphan, said], stream=stream)
    assert answer.status == 200, answer.text
    assert answer.headers["x-codex-ignored-params"] == "input[0]"
    stored = (await create(proxy, [said, orphan])).body
    after = await create(proxy, [said], previous_response_id=stored["id"])
    assert (after.status, after.headers.get("x-codex-ignored-params")) == (200, None)


async def test_an_output_without_a_call_has_no_effect_where_a_context_is_counted_or_compacted(
    proxy: Proxy,
) -> None:
    said = {"role": "user", "content": "Hello."}
    bodies = [{"model": "codex-5", "input": items} for items in ([said], [said, ORPHAN])]
    counts = [(await proxy.send("POST", "/v1/responses/input_tokens", body)).body for body in bodies]
    assert counts[0] == counts[1]
    compacted = await proxy.send("POST", "/v1/responses/compact", bodies[1])
    assert (compacted.status, compacted.headers["x-codex-ignored-params"]) == (200, "input[1]")


async def test_an_input_of_nothing_but_outputs_without_calls_is_an_error(proxy: Proxy) -> None:
    answer = await create(proxy, [ORPHAN])
    assert (answer.status, answer.body["error"]["param"]) == (400, "input[0].call_id")


async def test_in_the_other_profile_an_output_without_a_call_is_an_error(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        answer = await create(proxy, [{"role": "user", "content": "Hello."}, ORPHAN])
    assert (answer.status, answer.body["error"]["param"]) == (400, "input[1].call_id")
