"""Threads that are kept between two requests of a tool loop: what they save, how they end, who gets them."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import msgspec
import psutil
import pytest

from codex_proxy.core.events import Stop, TurnEnded
from codex_proxy.core.items import HistoryCall, HistoryMessage, HistoryOutput, TextPart, Tool
from codex_proxy.core.turn import Turn
from codex_proxy.runs.run import Run
from tests.process.children import have_ended
from tests.real.codex_home import MODEL, CodexHome
from tests.real.model_plans import call, plan, say, think, wait
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy, proxy_process
from tests.real.shared import Proxies
from tests.real.tool_loop import (
    WEATHER,
    Loop,
    assert_grows,
    call_ids,
    input_of,
    loop_of,
    outputs_of,
    types_of,
    weather_report,
)
from tests.waiting import PATIENCE, eventually

ONE = {"kept_threads": 16}
STEP = [think(), call(city="Paris"), call(city="Rome")]


def keys(model_server: ModelServer) -> list[str]:
    return [call.body["prompt_cache_key"] for call in model_server.calls]


def idle_count(loop: Loop) -> int:
    assert loop.proxy is not None
    return len(loop.proxy.server.runs.services.idle_sessions)


async def lanes_free(proxy: Proxy) -> None:
    """No thread of any process is held: each has been unsubscribed, and its lane given back."""
    await eventually(lambda: all(len(process._readers) == 0 for process in proxy.processes), within=PATIENCE)
    assert proxy.idle


async def test_five_rounds_on_a_resumed_session_have_one_cache_key_and_inputs_that_only_grow(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.say(plan(STEP, STEP, STEP, STEP, [say("Done.")]))
        await loop.run(weather_report)
        loop.say(plan([think(), call(city="Oslo")], [say("There too.")]))
        last = await loop.run(weather_report)
        assert idle_count(loop) == 1
    assert last.choices[0].message.content == "There too."
    assert len(model_server.calls) == 7
    assert len(set(keys(model_server))) == 1
    assert_grows(model_server.calls)


async def test_a_thread_that_is_lost_between_two_requests_costs_its_cache_key_and_nothing_else(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.say(plan(STEP, STEP, STEP, [say("Done.")]))
        for _ in range(3):
            answer = await loop.ask()
            for id in call_ids(answer):
                loop.output(id, f"output of {id}")
            loop.lose_threads()
            assert idle_count(loop) == 0
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert len(set(keys(model_server))) == 4
    assert_grows(model_server.calls)
    expected = [f"call_{step}_{place}" for step in range(3) for place in (1, 2)]
    assert outputs_of(model_server.calls[-1]) == [(id, f"output of {id}") for id in expected]


async def test_a_loop_that_loses_its_thread_in_the_middle_goes_on_with_the_same_items(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.say(plan(STEP, STEP, STEP, STEP, [say("Done.")]))
        for round in range(4):
            for id in call_ids(await loop.ask()):
                loop.output(id, "sunny")
            if round == 1:
                loop.lose_threads()
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert len(set(keys(model_server))) == 2
    assert types_of(model_server.calls[-1]) == ["message"] + (
        ["reasoning", *["function_call"] * 2, *["function_call_output"] * 2] * 4
    )


async def test_a_conversation_that_branches_is_answered_as_if_nothing_had_been_kept(
    proxies: Proxies, model_server: ModelServer
) -> None:
    """The client says something else after the same calls: the thread that knows more is not for it."""
    async with loop_of(proxies, "kept") as loop:
        loop.say("[[model:tool say=One.]] Weather?")
        await loop.run(weather_report)
        del loop.messages[-2:]  # the answer, and the output before it
        loop.output(call_ids(loop.answers[0])[0], "rainy")
        last = await loop.ask()
    assert last.choices[0].message.content == "One."
    assert outputs_of(model_server.calls[-1]) == [(call_ids(loop.answers[0])[0], "rainy")]
    assert len(set(keys(model_server))) == 2


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "change",
    [
        {"reasoning_effort": "high"},
        {"service_tier": "flex"},
        {"tools": [WEATHER, {"type": "function", "function": {"name": "get_time"}}]},
        {"model": "another-model"},
    ],
    ids=["effort", "service tier", "tools", "model"],
)
async def test_a_request_that_wants_something_else_of_the_model_gets_it(
    proxies: Proxies, model_server: ModelServer, change: dict[str, Any]
) -> None:
    """A parked turn goes on as it began, so it is not for a request that asks for another effort."""
    async with loop_of(proxies, "kept") as loop:
        loop.say("[[model:tool say=Done.]] Weather?")
        for id in call_ids(await loop.ask()):
            loop.output(id, "sunny")
        last = await loop.ask(**change)
    assert last.choices[0].message.content == "Done."
    first, second = (each.body for each in model_server.calls)
    assert first["prompt_cache_key"] != second["prompt_cache_key"]
    named = ("model", "reasoning", "service_tier", "tools")
    assert [first.get(name) for name in named] != [second.get(name) for name in named]


async def test_another_model_does_not_see_the_reasoning_of_the_one_before(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.say(plan([think(), call(city="Paris")], [say("Done.")]))
        for id in call_ids(await loop.ask()):
            loop.output(id, "sunny")
        await loop.ask(model="another-model")
    assert types_of(model_server.calls[1]) == ["message", "function_call", "function_call_output"]
    assert input_of(model_server.calls[1])[1]["id"] == "fc_0_1"


# --- the end of what is kept ----------------------------------------------------------------------


def turn_of(prompt: str, *more: Any) -> Turn:
    history = (HistoryMessage("user", (TextPart(prompt),)), *more)
    function = WEATHER["function"]
    tool = Tool(function["name"], parameters=msgspec.Raw(msgspec.json.encode(function["parameters"])))
    return Turn(model=MODEL, history=history, mode="model", tools=(tool,))


async def wait_for_end(run: Run) -> TurnEnded:
    cursor = run.log.cursor()
    async with asyncio.timeout(PATIENCE):
        while True:
            for event in cursor.take():
                if isinstance(event, TurnEnded):
                    return event
            await cursor.wait()


async def test_nobody_but_their_owner_gets_an_idle_session_or_a_remembered_step(
    proxy: Proxy, model_server: ModelServer
) -> None:
    prompt = plan([think(), call(city="Paris")], [say("Done.")])
    scheduler = proxy.server.runs
    end = await wait_for_end(await scheduler.start(turn_of(prompt), "ada"))
    assert end.stop == Stop.TOOL_CALLS
    called = HistoryCall("call_0_1", "get_weather", '{"city": "Paris"}')
    go_on = turn_of(prompt, called, HistoryOutput("call_0_1", (TextPart("sunny"),)))
    await wait_for_end(await scheduler.start(go_on, "bob"))
    assert len(scheduler.services.idle_sessions) == 2  # Ada's, parked, and Bob's own
    await wait_for_end(await scheduler.start(go_on, "ada"))
    assert [types_of(each) for each in model_server.calls[1:]] == [
        ["message", "function_call", "function_call_output"],
        ["message", "reasoning", "function_call", "function_call_output"],
    ]
    first, bobs, adas = keys(model_server)
    assert bobs != first
    assert adas == first


@pytest.mark.exhaustive
@pytest.mark.parametrize("moment", ["before its use", "in its use"])
async def test_an_agent_that_dies_with_waiting_turns_is_no_loss(
    own_proxies: Proxies, model_server: ModelServer, moment: str
) -> None:
    async with loop_of(own_proxies, "kept", **ONE) as loop:
        loop.say(plan(STEP, [say("Done.")]))
        for id in call_ids(await loop.ask()):
            loop.output(id, "sunny")
        assert loop.proxy is not None
        [process] = loop.proxy.pool.processes_of("model")
        assert process.pid is not None
        [agent] = psutil.Process(process.pid).children()
        if moment == "in its use":
            agent.suspend()
            asking = asyncio.create_task(loop.ask())
            await eventually(lambda: loop.proxy is not None and not loop.proxy.idle)
            assert idle_count(loop) == 0, "it goes on on the parked turn"
            agent.kill()
            last = await asking
        else:
            agent.kill()
            await eventually(lambda: idle_count(loop) == 0)
            last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert_grows(model_server.calls)


@pytest.mark.exhaustive
async def test_a_proxy_that_stops_with_waiting_turns_leaves_no_process(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    async with proxy_process(codex_home) as running:
        asked = {"model": MODEL, "tools": [WEATHER]}
        for number in range(3):
            messages = [{"role": "user", "content": f"[[model:tool]] Weather {number}?"}]
            await running.client.chat.completions.create(**asked, messages=messages)  # type: ignore[call-overload]
        family = running.family()
        assert len(family) >= 2
        running.process.send_signal(signal.SIGTERM)
        assert await running.exit() == 0
        await eventually(lambda: have_ended(family))


async def test_a_client_that_leaves_while_a_resumed_session_answers_stops_it(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.say(plan([call(city="Paris")], [wait()]))
        for id in call_ids(await loop.ask()):
            loop.output(id, "sunny")
        asking = asyncio.create_task(loop.ask())
        hanging = await model_server.call(1)
        asking.cancel()
        assert await hanging.ending() == "client_gone"
        assert loop.proxy is not None
        await lanes_free(loop.proxy)
        assert idle_count(loop) == 0
