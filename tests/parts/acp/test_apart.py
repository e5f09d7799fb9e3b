"""Two clients at once on a program that confuses the MCP servers of its sessions (the fault `shares_tools` of the fake
agent, as opencode does): by its preset, or by the refusal of foreign calls, nothing of one reaches the other.

`tests/real/test_acp_apart.py` asks the same of the real programs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.acp.agent import AcpAgent, AcpLaunch
from codex_proxy.parts.acp.presets import AcpPreset, Apart
from codex_proxy.process.child import Command
from tests.access.keyed import file_in, key_header, write_keys
from tests.http.serving import ENVIRONMENT, Answer, Proxy, proxy_of, until, user
from tests.weather_tool import CHAT_WEATHER

ANN, BOB = ({"headers": key_header(name)} for name in ("ann", "bob"))
PLAIN = {"X-Codex-Mode": "model"}
"""The header of a turn for which the folder does not matter."""
APART: list[Apart] = ["folders", "processes"]


@asynccontextmanager
async def proxy_with_shared_servers(
    folder: Path, apart: Apart, *, max_output: int | None = None
) -> AsyncIterator[tuple[Proxy, AcpAgent]]:
    """A proxy on the fake agent, whose sessions in one folder use the same MCP servers."""
    preset = AcpPreset(
        name="fake",
        title="The fake agent",
        argv=(sys.executable, "-m", "fake_proto", "acp"),
        apart=apart,
        usage="turn",
        reopens=True,
        read_only=("plan",),
        max_output=max_output,
    )
    env = {**ENVIRONMENT, "FAKE_CODEX_MISBEHAVE": "shares_tools"}
    launch = AcpLaunch(preset=preset, command=Command(preset.argv, env, str(folder)), workdir=str(folder))
    agent = AcpAgent(launch)
    write_keys(folder, ann={}, bob={})
    async with proxy_of(agent, folder, keys_file=file_in(folder)) as proxy:
        yield proxy, agent


def message_of(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.text
    message: dict[str, Any] = answer.body["choices"][0]["message"]
    return message


def arguments_of(answer: Answer) -> Any:
    return json.loads(message_of(answer)["tool_calls"][0]["function"]["arguments"])


def weather_request(city: str, **more: Any) -> dict[str, Any]:
    """A request whose model calls the weather tool, and says in the end what it was told."""
    arguments = json.dumps({"city": city})
    return user(
        f"[[fake:tool_call args='{arguments}' say='It is {{outputs}}.']]", tools=[CHAT_WEATHER], **more
    )


def with_output(asked: dict[str, Any], answer: Answer, text: str) -> dict[str, Any]:
    message = message_of(answer)
    output = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": text}
    return {**asked, "messages": [*asked["messages"], message, output]}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("mode", ["agent", "model"])
@pytest.mark.parametrize("apart", APART)
async def test_two_clients_with_the_same_tool_get_their_own_calls_and_outputs(
    tmp_path: Path, apart: Apart, mode: str
) -> None:
    headers = {"X-Codex-Mode": mode}
    async with proxy_with_shared_servers(tmp_path, apart) as (proxy, _):

        async def converse(key: dict[str, Any], city: str) -> None:
            more = {"headers": key["headers"] | headers}
            asked = weather_request(city)
            for _ in range(2):  # one after the other, the second on what the first has left
                first = await proxy.ask(asked, **more)
                assert arguments_of(first) == {"city": city}
                second = await proxy.ask(with_output(asked, first, f"cold in {city}"), **more)
                assert message_of(second)["content"] == f"It is cold in {city}."

        await asyncio.gather(converse(ANN, "Oslo"), converse(BOB, "Rome"), converse(BOB, "Bern"))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("mode", ["agent", "model"])
@pytest.mark.parametrize("apart", APART)
async def test_a_turn_without_tools_is_offered_none_of_another_client(
    tmp_path: Path, apart: Apart, mode: str
) -> None:
    async with proxy_with_shared_servers(tmp_path, apart) as (proxy, _):
        more = {"headers": BOB["headers"] | {"X-Codex-Mode": mode}}
        first = await proxy.ask(weather_request("Oslo"), **ANN)
        assert arguments_of(first) == {"city": "Oslo"}
        echo = json.loads(message_of(await proxy.ask(user("[[fake:echo]]"), **more))["content"])
        assert echo["tools"] == []


@pytest.mark.parametrize("apart", APART)
async def test_a_client_that_leaves_does_not_disturb_the_others_waiting_call(
    tmp_path: Path, apart: Apart
) -> None:
    async with proxy_with_shared_servers(tmp_path, apart) as (proxy, _):
        asked = weather_request("Oslo")
        first = await proxy.ask(asked, **ANN)
        leaving = user("[[fake:count n=100000 delay=5]]", tools=[CHAT_WEATHER], stream=True)
        async with proxy.open(leaving, **BOB) as reply:
            assert await reply.content.readline()
        await proxy.settled()
        second = await proxy.ask(with_output(asked, first, "cold"), **ANN)
        assert message_of(second)["content"] == "It is cold."


@pytest.mark.exhaustive
async def test_processes_with_tools_are_used_again_by_the_same_key_only_and_are_not_too_many(
    tmp_path: Path,
) -> None:
    async with proxy_with_shared_servers(tmp_path, "processes") as (proxy, agent):

        async def ask(key: dict[str, Any], said: str) -> None:
            answer = await proxy.ask(user(f'[[fake:text say="{said}"]]', tools=[CHAT_WEATHER]), **key)
            assert message_of(answer)["content"] == said

        def owners() -> list[str]:
            return [
                scope.owner
                for scope in agent.pool._groups
                if scope.alone
                for _ in agent.pool.processes_of(scope)
            ]

        for number in range(3):
            await ask(ANN, f"ann {number}")
        assert owners() == ["ann"]
        await ask(BOB, "bob")
        assert sorted(owners()) == ["ann", "bob"]
        waiting = [await proxy.ask(weather_request(city), **ANN) for city in "abcdef"]
        assert [arguments_of(answer)["city"] for answer in waiting] == list("abcdef")
        await until(lambda: len(agent.pool.processes) <= 4)


async def test_a_call_that_a_program_delivers_to_another_client_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preset says that the program keeps its sessions apart, and it does not."""
    monkeypatch.setattr("codex_proxy.parts.acp.tool_server.UNREPORTED_SECONDS", 0.3)
    async with proxy_with_shared_servers(tmp_path, "sessions") as (proxy, _):
        asked = weather_request("Oslo")
        first = await proxy.ask(asked, **ANN)
        foreign = await proxy.ask(user("[[fake:tool_call args='{}' say='It is {outputs}.']]"), **BOB)
        assert "was refused" in message_of(foreign)["content"], "and nobody hangs"
        second = await proxy.ask(with_output(asked, first, "cold"), **ANN)
        assert message_of(second)["content"] == "It is cold."


async def test_the_folders_of_sessions_are_removed_with_the_server(tmp_path: Path) -> None:
    async with proxy_with_shared_servers(tmp_path, "folders") as (proxy, agent):
        assert (await proxy.ask(user(), headers=BOB["headers"] | PLAIN)).status == 200
        folder = agent._folder
        assert os.listdir(folder)
    assert not os.path.exists(folder)


# --- outputs that a program would cut ---------------------------------------------------------------


async def test_an_output_that_the_program_would_cut_is_given_in_a_new_session_whole(tmp_path: Path) -> None:
    async with proxy_with_shared_servers(tmp_path, "sessions", max_output=1000) as (proxy, agent):
        for size, sessions in ((1000, 1), (1001, 2)):
            asked = weather_request(f"City {size}")
            first = await proxy.ask(asked, **ANN)
            before = agent.pool.processes[0].turns_served
            output = f"{size} " + "x" * (size - 5)
            second = await proxy.ask(with_output(asked, first, output), **ANN)
            assert second.status == 200
            assert agent.pool.processes[0].turns_served - before == sessions - 1
            assert second.headers.get("x-codex-history") == (None if sessions == 1 else "flattened")
