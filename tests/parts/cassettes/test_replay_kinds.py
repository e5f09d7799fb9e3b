"""Kinds of turns beside a plain answer: MCP calls, background, WebSockets, other agents; and the pace of a replay."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from codex_proxy.app.server import Server
from codex_proxy.parts.cassettes.format import read
from codex_proxy.parts.cassettes.replay import pace_of
from tests.mcp.serving import web_server
from tests.model_server import upstream
from tests.parts.cassettes.talking import LOOPS, chat_loop, openai_client, running_server
from tests.parts.mcp.test_requests import CALLS, operators, weather
from tests.parts.mcp.test_requests import settings as mcp_settings
from tests.response_events import CALL_ITEM, THOUGHT, message, response_with
from tests.waiting import eventually, poll

FINAL_TEXT = "The tool said: Sunny in Paris."
ENVIRONMENT = {"PATH": "/usr/bin:/bin", **CALLS}


async def _items(server: Server, **more: Any) -> list[Any]:
    """What a response says, without ids."""
    async with openai_client(server) as client:
        answer = await client.responses.create(model="codex-5", input="How is it?", **more)
    left = [item.to_dict() for item in answer.output]
    return [{name: each for name, each in item.items() if name not in ("id", "content")} for item in left] + [
        answer.output_text
    ]


@pytest.mark.exhaustive
async def test_calls_of_a_requests_mcp_server_are_replayed_with_their_outputs(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    with web_server("http", "--only", "get_weather") as (port, _):
        settings = mcp_settings(port) | {"model_aliases": ""}
        async with running_server(tmp_path, ENVIRONMENT, cassettes={"record": folder}, **settings) as server:
            recorded = await _items(server, tools=[weather(port)])
    assert recorded[-1] == FINAL_TEXT
    kinds = [item["type"] for item in recorded[:-1]]
    assert kinds == ["mcp_list_tools", "mcp_call", "message"]
    async with running_server(tmp_path, {"PATH": ""}, cassettes={"replay": folder}) as server:
        assert await _items(server, tools=[weather(port)]) == recorded


async def test_calls_of_the_operators_mcp_servers_are_replayed_on_every_api(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    config = operators(tmp_path)
    async with running_server(
        tmp_path, ENVIRONMENT, cassettes={"record": folder}, mcp_config=config
    ) as server:
        recorded = await _items(server)
    assert recorded[-1] == FINAL_TEXT
    (file,) = folder.iterdir()
    calls = [line.value for line in read(file).lines if line.kind == "call"]
    assert [(call["tool"], call["output"]["text"]) for call in calls] == [
        ("desk__get_weather", "Sunny in Paris.")
    ]
    async with running_server(tmp_path, {"PATH": ""}, cassettes={"replay": folder}) as server:
        assert await _items(server) == recorded
        async with openai_client(server) as client:
            messages: Any = [{"role": "user", "content": "How is it?"}]
            answer = await client.chat.completions.create(model="codex-5", messages=messages)
    assert answer.choices[0].message.content == FINAL_TEXT


async def test_a_background_response_is_replayed(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"

    async def ask(server: Server) -> str:
        async with openai_client(server) as client:
            begun = await client.responses.create(
                model="codex-5", input="[[fake:text say=later]]", background=True
            )

            async def wait_for_end() -> Any:
                answer = await client.responses.retrieve(begun.id)
                return answer if answer.status == "completed" else None

            return (await poll(wait_for_end)).output_text  # type: ignore[no-any-return]

    async with running_server(tmp_path, cassettes={"record": folder}) as server:
        assert await ask(server) == "later"
        await eventually(lambda: list(folder.glob("*.jsonl")))
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        assert await ask(server) == "later"


async def test_turns_of_a_websocket_are_replayed_on_one_and_by_requests(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"

    async def talk(server: Server) -> list[str]:
        said = []
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"http://127.0.0.1:{server.port}/v1/responses") as socket,
        ):
            for number in ("one", "two"):
                text = f"[[fake:text say={number}]]"
                await socket.send_json({"type": "response.create", "model": "codex-5", "input": text})
                while (event := await socket.receive_json())["type"] != "response.completed":
                    pass
                said.append(event["response"]["output"][0]["content"][0]["text"])
        return said

    async with running_server(tmp_path, cassettes={"record": folder}) as server:
        assert await talk(server) == ["one", "two"]
        await eventually(lambda: len(list(folder.glob("*.jsonl"))) == 2)
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        assert await talk(server) == ["one", "two"]
        async with openai_client(server) as client:
            answer = await client.responses.create(model="codex-5", input="[[fake:text say=two]]")
        assert answer.output_text == "two"


async def test_a_tool_loop_at_an_upstream_with_the_responses_api_is_replayed_on_every_api(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "cassettes"
    second = CALL_ITEM | {"id": "fc_2", "call_id": "call_b", "arguments": '{"city":"Rome"}'}
    async with upstream() as model:
        model.script = [
            response_with(THOUGHT, message("Let me see."), CALL_ITEM, second),
            response_with(message("It is sunny.")),
        ]
        settings: dict[str, Any] = {
            "agent": "openai-responses",
            "upstream_url": model.url,
            "cassettes": {"record": folder},
        }
        async with running_server(tmp_path, **settings) as server:
            recorded = await chat_loop(server, model="small")
    assert recorded["calls"] == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})]
    assert recorded["text"] == "Let me see.It is sunny."
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        for name, loop in LOOPS.items():
            for stream in (False, True):
                assert await loop(server, stream=stream) == recorded, (name, stream)


async def test_a_replay_keeps_the_pace_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, cassettes={"record": folder}) as server:
        await _ask(server, "[[fake:text]]")
    (file,) = folder.iterdir()
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    from_first = [index for index, line in enumerate(lines) if "events" in line or "next" in line]
    for index in from_first[-3:]:
        lines[index]["ms"] = lines[from_first[0]]["ms"] + 2000
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")

    async def seconds(pace: str) -> float:
        async with running_server(tmp_path, cassettes={"replay": folder, "pace": pace}) as server:
            begun = time.monotonic()
            assert await _ask(server, "[[fake:text]]")
            return time.monotonic() - begun

    assert await seconds("20") >= 0.1
    assert await seconds("4") >= 0.5


@pytest.mark.parametrize(
    ("pace", "waits"), [("none", 0.0), ("", 0.0), ("recorded", 3.0), ("2", 1.5), ("0.5", 6.0)]
)
def test_a_pace_says_how_long_a_line_waits(pace: str, waits: float) -> None:
    assert pace_of(pace)(3.0) == waits


async def test_a_folder_of_folders_is_replayed(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, cassettes={"record": folder / "one"}) as server:
        recorded = await chat_loop(server)
    shutil.copytree(folder / "one", folder / "two")
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        for _ in range(3):
            assert await chat_loop(server) == recorded


async def _ask(server: Server, text: str) -> str:
    async with openai_client(server) as client:
        messages: Any = [{"role": "user", "content": text}]
        answer = await client.chat.completions.create(model="codex-5", messages=messages)
    return answer.choices[0].message.content or ""
