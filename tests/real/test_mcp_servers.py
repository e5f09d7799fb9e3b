"""MCP servers of the operator through the real binary: who hears of which call, and what the model sees of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.serving import PROGRAM
from tests.real.codex_home import MODEL, CodexHome
from tests.real.model_plans import PutOut, call, plan, say
from tests.real.model_scenarios import tools_of
from tests.real.model_server import ModelServer
from tests.real.proxy import proxy as serving
from tests.real.shared import EVERY_WAY, Proxies
from tests.real.tool_loop import WEATHER, call_ids, functions_called, loop_of, outputs_of
from tests.waiting import eventually

pytest.importorskip("codex_proxy.parts.mcp")


def operators_file(folder: Path, *options: str, **more: Any) -> Path:
    """The operator's file, with one server over stdio."""
    server = {"command": sys.executable, "args": [PROGRAM, "stdio", *options]}
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"desk": server, **more}}))
    return file


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of proxies that several tests share."""
    return operators_file(tmp_path_factory.mktemp("desk"))


def chat_arguments(*responses: list[PutOut], **request: Any) -> dict[str, Any]:
    """A chat request of a client that is the agent itself; the model puts these out, one after the other."""
    messages = [{"role": "system", "content": "Help."}, {"role": "user", "content": plan(*responses)}]
    return {"model": MODEL, "messages": messages, **request}


def outputs(model_server: ModelServer, number: int) -> list[Any]:
    """What the model saw of its calls, in this request to it."""
    return [output for _, output in outputs_of(model_server.calls[number])]


async def test_a_chat_gets_the_answer_behind_the_calls_of_the_operator_s_tools(
    proxies: Proxies, model_server: ModelServer, desk: Path
) -> None:
    async with proxies.serving(mcp_config=desk) as proxy:
        answer = await proxy.client.chat.completions.create(
            **chat_arguments([say("Looking."), call("desk__echo", text="found")], [say("Done.")])
        )
    message = answer.choices[0].message
    assert message.content == "Looking.\n\nDone."
    assert message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert "desk__echo" in tools_of(model_server.calls[0].body)
    assert outputs(model_server, 1) == ["found"]


async def test_a_stream_brings_each_part_as_it_comes(
    proxies: Proxies, model_server: ModelServer, tmp_path: Path, desk: Path
) -> None:
    """Not only the last round: the words before a call are there while the call still runs."""
    async with proxies.serving(mcp_config=desk) as proxy:
        stream = await proxy.client.chat.completions.create(
            **chat_arguments([say("Looking."), call("desk__hang", folder=str(tmp_path))]), stream=True
        )
        said = ""
        async for chunk in stream:
            said += chunk.choices[0].delta.content or ""
            if said == "Looking.":
                break
        await eventually((tmp_path / "called").exists)
        await stream.close()
        await eventually((tmp_path / "cancelled").exists)
        await eventually(lambda: proxy.idle)


async def test_several_calls_of_one_step_run_beside_each_other(
    proxies: Proxies, model_server: ModelServer, desk: Path
) -> None:
    async with proxies.serving(mcp_config=desk) as proxy:
        meeting = [call("desk__meet", count=2, text=name) for name in ("one", "two")]
        answer = await proxy.client.chat.completions.create(**chat_arguments(meeting, [say("Met.")]))
    assert answer.choices[0].message.content == "Met."
    assert sorted(outputs(model_server, 1)) == ["one", "two"]


@pytest.mark.exhaustive
@EVERY_WAY
async def test_a_step_with_calls_of_both_gives_both_outputs_to_the_model(
    proxies: Proxies, model_server: ModelServer, desk: Path, way: str
) -> None:
    async with loop_of(proxies, way, mcp_config=desk) as loop:
        loop.say(plan([call("desk__echo", text="ours"), call(city="Rome")], [say("Both.")]))
        first = await loop.ask()
        assert [each.name for each in functions_called(first)] == ["get_weather"]
        assert first.choices[0].finish_reason == "tool_calls"
        loop.output(call_ids(first)[0], "theirs")
        last = await loop.ask()
    assert last.choices[0].message.content == "Both."
    assert outputs(model_server, 1) == ["ours", "theirs"]
    assert len(model_server.calls) == 2


@pytest.mark.exhaustive
async def test_images_and_structured_content_reach_the_model(
    proxies: Proxies, model_server: ModelServer, desk: Path
) -> None:
    async with proxies.serving(mcp_config=desk) as proxy:
        await proxy.client.chat.completions.create(**chat_arguments([call("desk__mixed")], [say("Seen.")]))
    [output] = outputs(model_server, 1)
    assert [part["type"] for part in output] == ["input_text", "input_image", "input_text"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("desk__refuse", {}, "not today"),
        ("desk__die", {}, "ended"),
        ("desk__big", {"size": 20 << 20}, "too large"),
    ],
)
async def test_the_model_gets_the_error_of_a_call_and_answers(
    codex_home: CodexHome,
    model_server: ModelServer,
    tmp_path: Path,
    tool: str,
    arguments: dict[str, Any],
    told: str,
) -> None:
    async with serving(codex_home, mcp_config=operators_file(tmp_path)) as proxy:
        answer = await proxy.client.chat.completions.create(
            **chat_arguments([call(tool, **arguments)], [say("Never mind.")])
        )
    assert answer.choices[0].message.content == "Never mind."
    assert told in json.dumps(outputs(model_server, 1))


async def test_a_tool_that_the_request_brings_wins_and_a_choice_keeps_the_others_out(
    proxies: Proxies, model_server: ModelServer, desk: Path
) -> None:
    mine = {"type": "function", "function": {"name": "echo", "parameters": {"type": "object"}}}
    async with proxies.serving(mcp_config=desk) as proxy:
        create = proxy.client.chat.completions.create
        await create(**chat_arguments([say("Yes.")], tools=[mine]))
        await create(**chat_arguments([call(city="Rome")], tools=[WEATHER], tool_choice="required"))
        await create(**chat_arguments([say("No.")], tools=[WEATHER], tool_choice="none"))
    first, second, third = (list(tools_of(each.body)) for each in model_server.calls)
    assert {"echo", "desk__refuse"} <= set(first)
    assert "desk__echo" not in first
    assert second == ["get_weather"]
    assert third == []


@pytest.mark.exhaustive
async def test_a_proxy_that_stops_ends_its_servers(
    codex_home: CodexHome, model_server: ModelServer, tmp_path: Path
) -> None:
    async with serving(codex_home, mcp_config=operators_file(tmp_path)) as proxy:
        await proxy.client.chat.completions.create(**chat_arguments([call("desk__pid")], [say("Done.")]))
        [pid] = outputs(model_server, 1)
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.exhaustive
async def test_servers_of_the_agent_s_own_home_stay_the_agent_s_and_show_as_activity(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    codex_home.config.write_text(
        codex_home.config.read_text()
        + f'\n[mcp_servers.own]\ncommand = "{sys.executable}"\nargs = ["{PROGRAM}", "stdio"]\nrequired = true\n'
        'default_tools_approval_mode = "approve"\n'
    )
    async with serving(codex_home) as proxy:
        put_out = {**call("echo", text="found"), "namespace": "mcp__own"}
        answer = await proxy.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": plan([put_out], [say("Done.")])}]
        )
    message = answer.choices[0].message
    assert (message.content, message.tool_calls) == ("Done.", None)
    assert "[mcp_call] own.echo" in (message.model_extra or {})["reasoning_content"]
    assert "found" in json.dumps(outputs(model_server, 1))
