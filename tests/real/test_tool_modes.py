"""A client's tools beside the agent's own: kept apart as a rule, side by side where the operator says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.tools.replay import CUT_OFF
from tests.real.model_plans import PutOut, call, plan, say
from tests.real.model_scenarios import text_of, tools_of
from tests.real.model_server import ModelServer, Request
from tests.real.shared import EVERY_WAY, Proxies
from tests.real.tool_loop import (
    call_ids,
    functions_called,
    input_of,
    loop_of,
    outputs_of,
)

PARIS = call(city="Paris")


def shell(command: str) -> PutOut:
    """A call of the agent's own tool."""
    return call("exec_command", cmd=command)


def own_items(call: Request) -> list[dict[str, Any]]:
    """What the model put out and got back: its input without messages of client and agent."""
    return [item for item in input_of(call) if item["type"].startswith("function_call")]


@pytest.mark.exhaustive
@EVERY_WAY
async def test_a_client_with_tools_has_the_model_for_itself(
    own_proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    (own_proxies.home.path / "AGENTS.md").write_text("Speak of the host's secret rule.")
    (own_proxies.home.workdir / "AGENTS.md").write_text("Speak of the folder's secret rule.")
    async with loop_of(own_proxies, way) as loop:
        loop.say("[[model:tool rounds=2 say=Done.]] Weather?")
        await loop.run(lambda name, arguments: "sunny")
    for each in model_server.calls:
        assert list(tools_of(each.body)) == ["get_weather"]
        assert "secret rule" not in json.dumps(each.body)
        assert [item.get("role") for item in input_of(each) if item["type"] == "message"] == ["user"]


@pytest.mark.exhaustive
@EVERY_WAY
async def test_with_always_the_agent_s_own_command_runs_and_the_client_s_call_goes_to_the_client(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    (proxies.home.workdir / "seen.txt").write_text("a file of the workspace")
    async with loop_of(proxies, way, builtin_tools="always") as loop:
        loop.say(plan([shell("cat seen.txt")], [PARIS], [say("Done.")]))
        first = await loop.ask()
        [called] = functions_called(first)
        assert called.name == "get_weather"
        assert first.usage is not None
        assert first.usage.total_tokens == 240
        loop.output(call_ids(first)[0], "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert {"exec_command", "get_weather"} <= set(tools_of(model_server.calls[0].body))
    [(_, own)] = outputs_of(model_server.calls[1])
    assert "a file of the workspace" in own
    assert outputs_of(model_server.calls[2]) == [("call_0_0", own), ("call_1_0", "sunny")]
    assert own_items(model_server.calls[2])[:2] == own_items(model_server.calls[1])
    assert len(model_server.calls) == 3


@pytest.mark.sampled(every=2)
@EVERY_WAY
@pytest.mark.parametrize(
    "command",
    [
        "echo counted >> runs.txt; echo made",
        pytest.param("sleep 0.3; echo counted >> runs.txt; echo made", marks=pytest.mark.exhaustive),
    ],
)
async def test_a_command_beside_a_client_s_call_runs_once_and_its_output_is_reported_in_the_next_step(
    proxies: Proxies, model_server: ModelServer, way: str, command: str
) -> None:
    settings = {"builtin_tools": "always", "sandbox": "danger-full-access"}
    async with loop_of(proxies, way, **settings) as loop:
        loop.say(plan([shell(command), PARIS], [say("Done.")]))
        first = await loop.ask()
        assert [each.name for each in functions_called(first)] == ["get_weather"]
        loop.output(call_ids(first)[0], "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    outputs = dict(outputs_of(model_server.calls[1]))
    assert outputs["call_0_1"] == "sunny"
    assert_true(outputs["call_0_0"], proxies.home.workdir / "runs.txt", way)


def assert_true(told: str, runs: Path, way: str) -> None:
    """What the model is told of its command is so, whether the end of the turn came before it ran, while it did, or
    afterwards: that is nowhere ordered but where the turn goes on."""
    counted = runs.read_text() if runs.exists() else ""
    if "made" in told:
        assert counted == "counted\n"
    else:
        assert way != "kept"
        assert told == CUT_OFF
        assert "may have had its effect" in told
        assert counted in ("", "counted\n"), "once at most"


@pytest.mark.exhaustive
@EVERY_WAY
async def test_a_command_after_a_client_s_call_is_never_reported_as_done_when_it_is_not(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    settings = {"builtin_tools": "always", "sandbox": "danger-full-access"}
    async with loop_of(proxies, way, **settings) as loop:
        loop.say(plan([PARIS, shell("echo counted >> runs.txt; echo made")], [say("Done.")]))
        first = await loop.ask()
        loop.output(call_ids(first)[0], "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    outputs = dict(outputs_of(model_server.calls[1]))
    assert outputs["call_0_0"] == "sunny"
    assert_true(outputs["call_0_1"], proxies.home.workdir / "runs.txt", way)


async def test_what_the_agent_did_is_still_known_when_its_thread_was_lost(
    proxies: Proxies, model_server: ModelServer
) -> None:
    settings = {"builtin_tools": "always", "sandbox": "danger-full-access"}
    async with loop_of(proxies, "kept", **settings) as loop:
        loop.say(plan([shell("echo counted >> runs.txt; echo made")], [PARIS], [PARIS], [say("Done.")]))
        for _ in range(2):
            loop.output(call_ids(await loop.ask())[0], "sunny")
            loop.lose_threads()
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert (proxies.home.workdir / "runs.txt").read_text() == "counted\n"
    seen = [own_items(each) for each in model_server.calls]
    assert seen[-1][: len(seen[2])] == seen[2]
    assert "made" in outputs_of(model_server.calls[-1])[0][1]


async def test_a_request_may_ask_for_the_agent_beside_its_tools(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.say(plan([PARIS], [say("Done.")]))
        await loop.ask(extra_headers={"X-Codex-Mode": "agent"})
    assert {"exec_command", "get_weather"} <= set(tools_of(model_server.calls[0].body))


ESCALATED = call(
    "exec_command", cmd="touch outside.txt", sandbox_permissions="require_escalated", justification="Please?"
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "own", [ESCALATED, call("request_user_input", questions=[])], ids=["escalation", "question"]
)
async def test_what_the_agent_may_not_do_is_refused_at_once_and_the_turn_goes_on(
    proxies: Proxies, model_server: ModelServer, own: PutOut
) -> None:
    async with loop_of(proxies, "kept", builtin_tools="always") as loop:
        loop.say(plan([own], [PARIS], [say("Done.")]))
        first = await loop.ask()
        assert [each.name for each in functions_called(first)] == ["get_weather"]
        loop.output(call_ids(first)[0], "sunny")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert not (proxies.home.workdir / "outside.txt").exists()
    assert len(model_server.calls) == 3


@pytest.mark.exhaustive
async def test_a_client_with_tools_that_forbids_the_agent_s_gets_no_shell(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with loop_of(proxies, "kept", builtin_tools="never") as loop:
        loop.say("[[model:tool]]")
        await loop.ask()
        loop.messages = [{"role": "user", "content": "[[model:text]]"}]
        await loop.ask(tools=[])
    assert [list(tools_of(each.body)) for each in model_server.calls] == [["get_weather"], []]
    assert [text_of(item) for item in input_of(model_server.calls[1])] == ["[[model:text]]"]
