"""What is written, what is not, and what happens where it cannot be written."""

from __future__ import annotations

import asyncio
import errno
import gc
import itertools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    InputTaken,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
)
from codex_proxy.core.faults import UserError
from codex_proxy.core.items import McpOrigin, Tool
from codex_proxy.core.turn import HostedTools, Turn
from codex_proxy.parts.cassettes import format, recorder
from codex_proxy.parts.cassettes.check import check_folder, report
from codex_proxy.parts.cassettes.content import content_of
from codex_proxy.parts.cassettes.format import read, write_new
from codex_proxy.parts.cassettes.replay import Folder
from codex_proxy.parts.cassettes.turn_recorder import CassetteTurnRecorder
from tests.model_server import SPELLINGS, respelled, text, upstream
from tests.parts.cassettes.talking import chat_loop, openai_client, record_steps, running_server
from tests.waiting import eventually

KEY = "sk-planted-5f0e9d8c7b6a"
ENV_KEY = "planted-environment-secret"
TOKEN = "ghp_plantedplantedplanted0123"
HOME, USER = "/home/jplanted", "jplanted"
PATTERN = "ACME-planted-[0-9]+"


async def test_planted_secrets_are_in_no_file_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setattr("getpass.getuser", lambda: USER)
    monkeypatch.setattr("socket.gethostname", lambda: "planted-host")
    folder = tmp_path / "cassettes"
    environ = {"PATH": "", "PLANTED_API_KEY": ENV_KEY, "HOME": HOME, "FAKE_CODEX_MODELS": "any"}
    words = f"{KEY} {ENV_KEY} {TOKEN} {HOME}/x.txt by {USER} on planted-host ACME-planted-42"
    pieces = json.dumps(json.dumps([words]))
    asked = f"{words} Bearer planted.token.value [[fake:text say={json.dumps(words)} pieces={pieces}]]"
    async with (
        running_server(tmp_path, environ, cassettes={"record": folder, "scrub": PATTERN}) as server,
        openai_client(server) as client,
    ):
        headers = {"x-api-key": "planted-client-key", "x-codex-note": "kept", "cookie": "planted-cookie"}
        body: Any = {"model": "codex-5", "messages": [{"role": "user", "content": asked}]}
        await client.chat.completions.create(
            **body, extra_headers=headers, extra_body={"metadata": {"a": words}}
        )
        await client.responses.create(model="codex-5", input=words, metadata={"a": "b"})
    files = [path.read_text("utf-8") for path in folder.iterdir()] + [path.name for path in folder.iterdir()]
    assert len(files) == 4
    for secret in (
        KEY,
        ENV_KEY,
        TOKEN,
        HOME,
        USER,
        "planted-host",
        "ACME-planted-42",
        "planted.token",
        "planted-cookie",
    ):
        assert not [text for text in files if secret in text], secret
    assert all("planted-client-key" not in text for text in files)
    assert any("<home>/x.txt by <user> on <host> <scrubbed>" in text for text in files)


async def test_a_recording_without_its_secrets_answers_the_request_that_has_them(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    asked = f"My token is ê{TOKEN}. [[fake:text]]"
    body: Any = {"model": "codex-5", "messages": [{"role": "user", "content": asked}]}
    async with (
        running_server(tmp_path, cassettes={"record": folder}) as server,
        openai_client(server) as client,
    ):
        await client.chat.completions.create(**body)
    assert not [path for path in folder.iterdir() if TOKEN in path.read_text("utf-8")]
    async with (
        running_server(tmp_path, cassettes={"replay": folder}) as server,
        openai_client(server) as client,
    ):
        answer = await client.chat.completions.create(**body)
    assert answer.choices[0].message.content == "Hello from the deterministic fake agent."


async def test_a_folder_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        async with running_server(tmp_path, cassettes={"record": tmp_path / "file"}):
            pass


async def test_a_disk_that_fills_up_ends_the_recording_and_not_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with running_server(tmp_path, cassettes={"record": tmp_path / "cassettes"}) as server:
        monkeypatch.setattr(recorder, "write_new", full)
        assert (await chat_loop(server))["text"] == "It is sunny."
        async with aiohttp.ClientSession() as session:
            health = await (await session.get(f"http://127.0.0.1:{server.port}/healthz")).json()
    assert health["status"] == "degraded"
    assert "No space left on device" in health["recording"]
    assert not list((tmp_path / "cassettes").glob("*.jsonl"))


def test_of_two_servers_that_write_the_same_name_at_once_one_takes_the_next_name(tmp_path: Path) -> None:
    def texts() -> Iterator[bytes]:
        with pytest.raises(FileExistsError):
            write_new(str(tmp_path), "a", [b"second"])
        yield b"first"

    write_new(str(tmp_path), "a", texts())
    with pytest.raises(FileExistsError):
        write_new(str(tmp_path), "a", [b"third"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"first"}


async def test_a_turn_that_is_recorded_again_differs_in_nothing_but_its_times(tmp_path: Path) -> None:
    texts = []
    for name in ("first", "second"):
        async with running_server(tmp_path, cassettes={"record": tmp_path / name}) as server:
            await chat_loop(server, stream=True)
        found = [path.read_text("utf-8") for path in sorted((tmp_path / name).iterdir())]
        texts.append([json.loads(line) | {"ms": 0} for text in found for line in text.splitlines()])
    assert texts[0] == texts[1]


async def test_a_large_turn_is_written_in_a_thread_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    def noted(folder: str, name: str, texts: Any) -> None:
        threads.add(threading.current_thread().name.partition("_")[0])
        write_new(folder, name, texts)

    monkeypatch.setattr(recorder, "write_new", noted)
    monkeypatch.setattr(format, "SLICE_BYTES", 100)
    texts = []
    for thread, most in (("MainThread", recorder.MAX_AT_ONCE), ("recorder", 0)):
        monkeypatch.setattr(recorder, "MAX_AT_ONCE", most)
        threads.clear()
        async with running_server(tmp_path, cassettes={"record": tmp_path / thread}) as server:
            await chat_loop(server, stream=True)
        assert threads == {thread}
        found = [path.read_text("utf-8") for path in sorted((tmp_path / thread).iterdir())]
        texts.append([json.loads(line) | {"ms": 0} for text in found for line in text.splitlines()])
    assert len(texts[0]) > 40
    assert texts[0] == texts[1]


async def test_more_large_turns_than_can_wait_are_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MAX_WAITING", 0)
    async with running_server(tmp_path, cassettes={"record": tmp_path / "cassettes"}) as server:
        assert (await chat_loop(server))["text"] == "It is sunny."
    assert not list((tmp_path / "cassettes").iterdir())


async def test_a_stream_of_ollamas_api_is_recorded_and_checked(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with (
        running_server(tmp_path, cassettes={"record": folder}) as server,
        aiohttp.ClientSession() as session,
    ):
        messages = [{"role": "user", "content": "Hello? [[fake:text]]"}]
        url = f"http://127.0.0.1:{server.port}/api/chat"
        async with session.post(url, json={"model": "codex-5", "messages": messages}) as reply:
            said = [json.loads(line) for line in (await reply.text()).splitlines()]
    (result,) = await check_folder(Folder(folder))
    assert result.same, report([result])
    sent = result.cassette.answer.sent
    assert sent is not None
    assert [each["message"]["content"] for each in sent] == [each["message"]["content"] for each in said]


async def test_the_comments_of_a_stream_are_not_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    settings: dict[str, Any] = {"heartbeat_interval": 0.02, "cassettes": {"record": folder}}
    async with running_server(tmp_path, **settings) as server, aiohttp.ClientSession() as session:
        messages = [{"role": "user", "content": "[[fake:text first=60 delay=60]]"}]
        url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
        body = {"model": "codex-5", "messages": messages, "stream": True}
        async with session.post(url, json=body) as reply:
            said = await reply.text()
    assert said.count("\n\n: ") > 1
    (file,) = folder.iterdir()
    sent = read(file).answer.sent
    assert sent is not None
    assert [type(each) for each in sent] == [dict] * (said.count("data: ") - 1) + [str]


async def test_a_background_response_is_kept_with_its_final_object(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with (
        running_server(tmp_path, cassettes={"record": folder}) as server,
        openai_client(server) as client,
    ):
        begun = await client.responses.create(model="codex-5", input="Hello?", background=True)
        await eventually(lambda: list(folder.glob("*.jsonl")))
        assert begun.status == "queued"
    (file,) = folder.glob("*.jsonl")
    cassette = read(file)
    assert cassette.answer.body["status"] == "queued"
    assert cassette.answer.final["status"] == "completed"


async def test_each_turn_of_a_websocket_is_a_cassette(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with (
        running_server(tmp_path, cassettes={"record": folder}) as server,
        aiohttp.ClientSession() as session,
    ):
        async with session.ws_connect(f"http://127.0.0.1:{server.port}/v1/responses") as socket:
            for text in ("one", "two"):
                await socket.send_json({"type": "response.create", "model": "codex-5", "input": text})
                while (await socket.receive_json())["type"] != "response.completed":
                    pass
        await eventually(lambda: len(list(folder.glob("*.jsonl"))) == 2)
    found = [read(path) for path in sorted(folder.iterdir())]
    assert [each.request.body["input"] for each in found] == ["one", "two"]
    assert all(each.request.socket and each.answer.sent[-1]["type"] == "response.completed" for each in found)  # type: ignore[index]


async def test_a_turn_of_an_upstream_is_replayed_without_it(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with upstream() as model:
        settings: dict[str, Any] = {
            "agent": "openai-chat",
            "upstream_url": model.url,
            "cassettes": {"record": folder},
        }
        async with running_server(tmp_path, **settings) as server:
            recorded = await chat_loop(server, model="small", asked="Hello?")
    assert recorded["text"]
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        for stream in (False, True):
            assert await chat_loop(server, stream=stream, asked="Hello?") == recorded


@pytest.mark.parametrize(
    ("path", "asked", "said"),
    [
        ("v1/chat/completions", "messages", '"content":'),
        ("v1/responses", "input", '"delta":'),
        ("v1/messages", "messages", '"text":'),
        ("api/chat", "messages", '"content":'),
    ],
)
async def test_a_secret_that_the_model_says_in_pieces_is_in_no_file(
    tmp_path: Path, path: str, asked: str, said: str
) -> None:
    folder = tmp_path / "cassettes"
    pieces = json.dumps(["Take gh", "p_planted", "planted", "planted", "0123", " and go."])
    messages = [{"role": "user", "content": f"[[fake:text pieces='{pieces}']]"}]
    async with (
        running_server(tmp_path, cassettes={"record": folder}) as server,
        aiohttp.ClientSession() as session,
    ):
        body: Any = {"model": "codex-5", asked: messages, "stream": True, "max_tokens": 100}
        async with session.post(f"http://127.0.0.1:{server.port}/{path}", json=body) as reply:
            assert '"p_planted"' in await reply.text()
    (file,) = folder.iterdir()
    _, agent = file.read_text("utf-8").split('"begin"')
    assert '"text":"Take <key> and go."' in agent.partition('{"answer":200')[0]
    assert f'{said}"Take <key> and go."' in agent.partition('{"answer":200')[2]
    assert [line for line in agent.splitlines() if "planted" in line and "fake:text" not in line] == []


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_secret_that_a_model_server_says_in_pieces_is_in_no_file(
    tmp_path: Path, spelling: str
) -> None:
    folder, numbers = tmp_path / "cassettes", itertools.count(100)
    said = respelled(text(f"Take {TOKEN} and go."), SPELLINGS[spelling])
    async with upstream() as model:
        model.script = [re.sub(b"}\n\n", lambda _: b',"obfuscation":"a%d"}\n\n' % next(numbers), said)]
        settings: dict[str, Any] = {"agent": "openai-chat", "upstream_url": model.url}
        async with running_server(tmp_path, cassettes={"record": folder}, **settings) as server:
            await chat_loop(server, model="small", asked="Hello?")
    (file,) = folder.iterdir()
    recorded = file.read_text("utf-8")
    assert '"text":"Take <key> and go."' in recorded.partition('"answer"')[0]
    assert "planted" not in recorded


PIECES = ("Take gh", "p_planted", "plantedplanted0123", " and go.")


@pytest.mark.parametrize(
    "delta",
    [TextDelta, RefusalDelta, ReasoningDelta, ArgumentsDelta, OutputDelta],
    ids=lambda kind: kind.__name__,
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_secret_that_any_agent_says_in_pieces_is_in_no_file(
    delta: Any, at_once: bool, tmp_path: Path
) -> None:
    events = [delta("a", text) for text in PIECES]
    record_steps(tmp_path, [events] if at_once else [[event] for event in events])
    (file,) = tmp_path.iterdir()
    recorded = file.read_text("utf-8")
    assert '"text":"Take <key> and go."' in recorded
    assert "planted" not in recorded


@pytest.mark.parametrize("took_input", [True, False])
def test_a_turn_that_took_a_message_while_it_ran_is_not_recorded(took_input: bool, tmp_path: Path) -> None:
    taken: list[Event] = [InputTaken("1")] if took_input else []
    record_steps(tmp_path, [[TextDelta("a", "One.")], taken, [TextDelta("b", "Two.")]])
    assert len(list(tmp_path.iterdir())) == (0 if took_input else 1)


async def test_turns_are_recorded_while_contents_are_logged(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, cassettes={"record": folder}, log_content=True) as server:
        await chat_loop(server, stream=True)
    first, second = (read(path) for path in sorted(folder.iterdir()))
    assert first.request.body["messages"][1]["content"] == second.request.body["messages"][1]["content"]
    assert second.answer.sent is not None
    assert second.answer.sent[-1] == "[DONE]"


async def test_two_turns_of_one_process_at_once_have_their_own_lines(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    words = [f"w{number} " * 40 for number in range(4)]

    async def ask(client: Any, text: str) -> None:
        content = f"[[fake:text pieces='{json.dumps(text.split())}']]"
        messages = [{"role": "user", "content": content}]
        await client.chat.completions.create(model="codex-5", messages=messages)

    async with (
        running_server(tmp_path, cassettes={"record": folder}) as server,
        openai_client(server) as client,
    ):
        await asyncio.gather(*(ask(client, text) for text in words))
    for path in folder.iterdir():
        asked = read(path).content["messages"][0]["text"]
        (own,) = [text.split()[0] for text in words if text.split()[0] in asked]
        said = [
            line
            for line in path.read_text("utf-8").splitlines()
            if line.startswith('{"ms"') and '"next"' in line
        ]
        assert len(said) == 39
        assert all(own in line for line in said)


def test_a_turn_that_continues_before_the_one_before_is_logged_leaves_it_its_lines() -> None:
    agent: Any = SimpleNamespace(name="fake", version="", capabilities=())
    session: Any = SimpleNamespace(recorder=None, origin=None)
    first, second = (
        CassetteTurnRecorder(Turn(model="m", history=()), agent, (), lambda: None) for _ in range(2)
    )
    first.on_session(session)
    session.recorder.on_step("begin", (first.turn,), (), 0)
    session.recorder.on_step("receive", (), [TextDelta("a", "first")], 9)
    second.on_session(session)
    session.recorder.on_step("resume", (second.turn, ()), (), 0)
    session.recorder.on_step("receive", (), [TextDelta("b", "second")], 9)
    first.on_end(TurnEnded("stop"))
    session.recorder.on_step("receive", (), [TextDelta("b", "and the rest")], 9)
    second.on_end(TurnEnded("stop"))
    assert [line.value for line in first.lines()] == ["begin", (TextDelta("a", "first"),)]
    assert [line.value for line in second.lines()] == [
        *("resume", (TextDelta("b", "second"),), (TextDelta("b", "and the rest"),))
    ]


async def test_the_turns_of_a_long_session_are_not_kept_once_they_are_over(tmp_path: Path) -> None:
    previous: Any = None
    async with (
        running_server(tmp_path, cassettes={"record": tmp_path / "cassettes"}) as server,
        openai_client(server) as client,
    ):
        for number in range(6):
            answer = await client.responses.create(
                model="codex-5", input=f"turn {number}", previous_response_id=previous
            )
            previous = answer.id
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, CassetteTurnRecorder)]
    assert max(each.order for each in kept) == 6
    assert len(kept) <= 2


def test_what_is_compared_of_a_turn_has_no_tool_that_this_server_runs() -> None:
    tools = (Tool("add", "Adds"), Tool("desk__look", "Looks", mcp=McpOrigin("desk", "look")))
    content = content_of(Turn(model="m", history=(), tools=tools))
    assert [tool["name"] for tool in content["tools"]] == ["add"]


def test_tools_of_the_model_server_are_compared_without_what_they_were_given() -> None:
    def told(secret: bytes) -> list[dict[str, Any]]:
        hosted = HostedTools({"code_interpreter": (msgspec.Raw(b'{"key":"%b"}' % secret),)})
        tools: list[dict[str, Any]] = content_of(Turn(model="m", history=(), hosted=hosted))["tools"]
        return tools

    assert [tool["name"] for tool in told(b"one")] == ["code_interpreter"]
    assert told(b"one") == told(b"one") != told(b"two")
    assert "one" not in str(told(b"one")).replace("code_interpreter", "")
