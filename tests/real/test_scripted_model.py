"""The scripted model does what its scenarios say, as the real binary sees it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents.codex_app_server.connection import initialize_params
from codex_proxy.agents.codex_app_server.turn_params import thread_params
from codex_proxy.core.turn import Turn
from tests.real.codex_home import CodexHome
from tests.real.driver import Codex, codex
from tests.real.items import user
from tests.real.model_scenarios import choose
from tests.real.model_server import ModelServer
from tests.real.shared import living_on

pytestmark = pytest.mark.exhaustive


@living_on()
async def child(codex_home: CodexHome, model_server: ModelServer, tmp_path: Path) -> AsyncIterator[Codex]:
    home = codex_home.shadow(tmp_path / "shadow")
    initialize = initialize_params("codex-proxy-test", "1")
    async with codex(
        home.plain_argv(), home.environment(), str(home.workdir), initialize=initialize
    ) as running:
        yield running


async def play(child: Codex, prompt: str) -> dict[str, Any]:
    """One turn on a thread of its own."""
    thread = await child.start_thread(thread_params(Turn(model="", history=(), mode="model", workdir="/")))
    return await child.run_turn(thread, [user(prompt)])


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ("text", "Hello from the scripted model."),
        ('text say="two  words\n" delay=1 first=1', "two  words\n"),
        ("text n=3 word=w", "w0 w1 w2 "),
        ("reasoning", "The answer is 42."),
        ("json body='{\"a\":[[1]]}'", '{"a":[[1]]}'),
        ("multi msgs=2", "Message number 0.Message number 1."),
        ("limits", "Hello from the scripted model."),
        ("echo", '{"roles": ["user"], "tools": [], "effort": null}'),
        ("nodelta", ""),
        ("refusal", ""),
    ],
)
async def test_a_scenario_that_ends_well_streams_its_text(
    child: Codex, model_server: ModelServer, marker: str, text: str
) -> None:
    turn = await play(child, f"[[model:{marker}]]")
    assert (turn["status"], child.text_of(turn["id"])) == ("completed", text)
    assert await model_server.calls[0].ending() == "completed"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("marker", "message", "ending"),
    [
        ("incomplete", "reason: max_output_tokens", "completed"),
        ("incomplete why=content_filter finish=0", "reason: content_filter", "completed"),
        ("failed n=2 code=server_is_overloaded", "overloaded|capacity", "completed"),
        ("failed code=odd msg='Something odd.'", "Something odd", "completed"),
        ("http status=400 code=bad msg='No such thing.'", "No such thing", "refused"),
        ("http status=503 raw='<html>down</html>'", "503", "refused"),
        ("drop n=2", "stream disconnected", "dropped"),
        ("nonsense", "no scenario", "refused"),
    ],
)
async def test_a_scenario_that_ends_badly_fails_the_turn(
    child: Codex, model_server: ModelServer, marker: str, message: str, ending: str
) -> None:
    turn = await play(child, f"[[model:{marker}]]")
    assert turn["status"] == "failed"
    with pytest.raises(RuntimeError, match=message):
        raise RuntimeError(turn["error"]["message"])
    assert await model_server.calls[0].ending() == ending


async def test_a_fault_with_times_ends_after_as_many_requests(
    child: Codex, model_server: ModelServer
) -> None:
    prompt = "[[model:http status=500 times=1]]"
    assert [(await play(child, prompt))["status"] for _ in range(2)] == ["failed", "completed"]


async def test_reasoning_streams_its_parts_and_raw_text(child: Codex, model_server: ModelServer) -> None:
    await play(child, "[[model:reasoning parts=2 n=1 raw=1]]")
    summary = [one.params for one in child.messages if one.method == "item/reasoning/summaryTextDelta"]
    raw = [one.params["delta"] for one in child.messages if one.method == "item/reasoning/textDelta"]
    assert [one["summaryIndex"] for one in summary] == [0, 0, 1, 1]
    assert "".join(one["delta"] for one in summary) == "**Head0**\n\nthink0.0 **Head1**\n\nthink1.0 "
    assert "".join(raw) == "raw0 "


async def test_usage_is_what_the_marker_says(child: Codex, model_server: ModelServer) -> None:
    await play(child, "[[model:text in=7 out=5 cached=3 reasoning=2]]")
    usage = (await child.until("rawResponse/completed")).params["usage"]
    names = ("inputTokens", "outputTokens", "cachedInputTokens", "reasoningOutputTokens", "totalTokens")
    assert [usage[name] for name in names] == [7, 5, 3, 2, 12]


async def test_rate_limit_headers_reach_the_client(child: Codex, model_server: ModelServer) -> None:
    await play(child, "[[model:limits]]")
    limits = (await child.until("account/rateLimits/updated")).params["rateLimits"]
    assert limits["primary"]["windowDurationMins"] == 300


async def test_a_gate_holds_the_stream_until_the_test_opens_it(
    child: Codex, model_server: ModelServer
) -> None:
    thread = await child.start_thread(thread_params(Turn(model="", history=(), mode="model", workdir="/")))
    turn = await child.start_turn(thread, [user("[[model:stall n=1 gate=go say=on]]")])
    await child.until("item/agentMessage/delta")
    assert (child.text_of(turn), len(model_server.open)) == ("word0 ", 1)
    model_server.open_gate("go")
    await child.until("turn/completed")
    assert (child.text_of(turn), len(model_server.open)) == ("word0 on", 0)


async def test_a_burst_says_when_each_delta_was_sent(child: Codex, model_server: ModelServer) -> None:
    turn = await play(child, "[[model:burst n=50]]")
    stamps = [float(stamp) for stamp in child.text_of(turn["id"]).split()]
    assert len(stamps) == 50
    assert stamps == sorted(stamps)


def test_the_last_marker_counts_and_tool_outputs_after_it_are_steps() -> None:
    body = {
        "input": [
            user("[[model:json]] [[model:tool n=2]]"),
            {"type": "function_call", "call_id": "a"},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            user("no marker here, [[model:open"),
        ]
    }
    chosen = choose(json.loads(json.dumps(body)))
    assert (chosen.name, chosen.options, chosen.step) == ("tool", {"n": "2"}, 1)
    assert choose({"input": "plain words"}).name == "text"
