"""What was recorded through one API is replayed through every other one, without the agent."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from codex_proxy.app.server import Server
from codex_proxy.core.events import TextDelta, TurnEnded, TurnStarted
from codex_proxy.core.faults import Failure, FaultKind, UserError
from codex_proxy.core.turn import Turn
from codex_proxy.parts.cassettes import recorder
from codex_proxy.parts.cassettes.format import write_new
from codex_proxy.parts.cassettes.player import PlayedTransport, events_in, sessions_of
from codex_proxy.parts.cassettes.turn_recorder import CassetteTurnRecorder
from tests.parts.cassettes.talking import (
    LOOPS,
    chat_loop,
    messages_loop,
    openai_client,
    responses_loop,
    running_server,
)
from tests.process.children import have_ended
from tests.waiting import PATIENCE, eventually


@pytest.mark.parametrize("dialect", ["app-server", "proto", "acp"])
async def test_a_tool_loop_that_was_recorded_on_one_api_is_replayed_on_all_of_them(
    dialect: str, tmp_path: Path
) -> None:
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, fake_dialect=dialect, cassettes={"record": folder}) as server:
        recorded = await chat_loop(server)
    assert len(recorded["calls"]) == 2
    assert recorded["text"] == "It is sunny."
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        assert server.agent.processes().busy == server.agent.processes().idle == 0
        for name, loop in LOOPS.items():
            for stream in (False, True):
                replayed = await loop(server, stream=stream)
                if (
                    dialect == "acp" and name == "messages"
                ):  # it has told no tokens: each API estimates its own
                    replayed["tokens"] = recorded["tokens"]
                assert replayed == recorded, (name, stream)


async def test_a_recording_of_another_api_and_a_stream_is_replayed_on_chat_completions(
    tmp_path: Path,
) -> None:
    for name, loop in (("responses", responses_loop), ("messages", messages_loop)):
        folder = tmp_path / name
        async with running_server(tmp_path, cassettes={"record": folder}) as server:
            recorded = await loop(server, stream=True)
        async with running_server(tmp_path, cassettes={"replay": folder}) as server:
            assert await chat_loop(server) == recorded


async def test_the_error_of_a_request_without_a_cassette_names_the_nearest_one_and_what_differs(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, cassettes={"record": folder}) as server:
        await chat_loop(server)
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        with pytest.raises(openai.BadRequestError) as caught:
            await chat_loop(server, asked="[[fake:tool_calls]] What is the weather in Paris and in Oslo?")
    message = caught.value.message
    assert caught.value.code == "cassette_missing"
    assert "The nearest is 0001-fake-tool-calls-what-is-the-weather-in" in message
    assert "messages[1].text" in message
    assert "in Oslo?" in message
    assert "in Rome?" in message


async def test_fields_that_match_does_not_name_are_not_compared(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, cassettes={"record": folder}) as server:
        recorded = await chat_loop(server)
    async with (
        running_server(tmp_path, cassettes={"replay": folder, "match": "messages"}) as server,
        openai_client(server) as client,
    ):
        answer = await client.chat.completions.create(
            model="codex-5",
            temperature=0.1,
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "[[fake:tool_calls]] What is the weather in Paris and in Rome?"},
            ],
            tools=[{"type": "function", "function": {"name": "get_weather"}}],
        )
        assert len(answer.choices[0].message.tool_calls or ()) == len(recorded["calls"])


async def test_repeats_get_the_recordings_in_order_and_then_the_last_one_again(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, cassettes={"record": folder}) as server:
        for _ in range(2):
            await _ask(server, "[[fake:text say=first]]")
    _, again = sorted(folder.iterdir())
    head, begin, rest = again.read_bytes().partition(b'"session"')
    again.write_bytes(head + begin + rest.replace(b"first", b"second"))
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        said = [await _ask(server, "[[fake:text say=first]]") for _ in range(3)]
    assert said == ["first", "second", "second"]


async def test_missing_turns_are_asked_of_the_agent_and_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, cassettes={"record": folder, "replay": folder}) as server:
        first = await chat_loop(server)
        assert await responses_loop(server) == first
    assert len(list(folder.iterdir())) == 2
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        assert await messages_loop(server) == first


@pytest.mark.parametrize("end", ["killed", "closed"])
async def test_the_processes_of_missing_turns_end_with_the_agent(end: str, tmp_path: Path) -> None:
    async with running_server(
        tmp_path, cassettes={"record": tmp_path / "c", "replay": tmp_path / "c"}
    ) as server:
        await _ask(server, "[[fake:text]]")
        pids = [each.pid for each in server.agent.each_process()]
        assert pids
        if end == "killed":
            server.agent.kill()
            await eventually(lambda: have_ended(pids))
    assert have_ended(pids)


async def test_the_process_of_a_missing_turn_alone_ends_with_it(tmp_path: Path) -> None:
    cassettes = {"record": tmp_path / "c", "replay": tmp_path / "c"}
    async with running_server(tmp_path, fake_dialect="proto", cassettes=cassettes) as server:
        await _ask(server, "[[fake:text]]")
        await eventually(lambda: server.agent.processes().busy == 0)


def _playbacks() -> list[str]:
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return [name for name in names if name == PlayedTransport._play.__qualname__]


async def test_a_replay_ends_when_its_client_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, cassettes={"record": folder}) as server:
        await _ask(server, "[[fake:text n=3 delay=5]]")
    async with (
        running_server(tmp_path, cassettes={"replay": folder, "pace": "0.0001"}) as server,
        openai_client(server) as client,
    ):
        messages: Any = [{"role": "user", "content": "[[fake:text n=3 delay=5]]"}]
        asking = asyncio.create_task(client.chat.completions.create(model="codex-5", messages=messages))
        await eventually(_playbacks)
        asking.cancel()
        await eventually(lambda: not _playbacks())


async def test_a_turn_that_is_still_being_written_is_not_asked_of_the_agent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_for, flush = threading.Event(), recorder.Recorder.flush

    def slowly(folder: str, name: str, texts: Any) -> None:
        waited_for.wait(PATIENCE)
        write_new(folder, name, texts)

    async def flush_noted(of: recorder.Recorder) -> None:
        waited_for.set()
        await flush(of)

    monkeypatch.setattr(recorder, "MAX_AT_ONCE", 0)
    monkeypatch.setattr(recorder, "write_new", slowly)
    monkeypatch.setattr(recorder.Recorder, "flush", flush_noted)
    folder = tmp_path / "cassettes"
    async with running_server(tmp_path, cassettes={"record": folder, "replay": folder}) as server:
        for _ in range(2):
            assert await _ask(server, "[[fake:text say=first]]") == "first"
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"pace": "fast"}, "--pace fast is not known"),
        ({"match": "messages,seed"}, "--match seed is not known"),
        ({}, "has no cassettes"),
    ],
)
async def test_a_replay_that_cannot_work_stops_the_start(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = tmp_path / "cassettes"
    folder.mkdir()
    with pytest.raises(UserError, match=reason):
        async with running_server(tmp_path, cassettes={"replay": folder, **settings}):
            pass


async def _ask(server: Server, text: str) -> str:
    async with openai_client(server) as client:
        messages: Any = [{"role": "user", "content": text}]
        answer = await client.chat.completions.create(model="codex-5", messages=messages)
    return answer.choices[0].message.content or ""


async def test_a_turn_that_was_recorded_with_a_stop_ends_there_or_says_that_more_was_not_recorded(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "cassettes"
    messages: Any = [
        {"role": "user", "content": '[[fake:text delay=100 pieces=\'["One,", " two,", " three."]\']]'}
    ]

    async def ask(server: Server, stop: list[str]) -> str:
        async with openai_client(server) as client:
            answer = await client.chat.completions.create(model="codex-5", messages=messages, stop=stop)
        return answer.choices[0].message.content or ""

    async with running_server(tmp_path, cassettes={"record": folder}) as server:
        assert await ask(server, [" two"]) == "One,"
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        assert await ask(server, [" two", "x"]) == "One,"
        assert await ask(server, ["ne"]) == "O"
        with pytest.raises(openai.BadRequestError, match="the recording ends here") as caught:
            await ask(server, ["three"])
    assert caught.value.code == "cassette_invalid"


def test_a_session_whose_process_ended_without_output_is_not_recorded() -> None:
    agent: Any = SimpleNamespace(name="fake", version="", capabilities=())
    turn = CassetteTurnRecorder(Turn(model="m", history=()), agent, (), lambda: None)
    gone = TurnEnded.with_failure(Failure(FaultKind.AGENT_CRASHED, "It has ended."))
    for events in ([TurnStarted(), gone], [TurnStarted(), TextDelta("a", "Hello.")]):
        session: Any = SimpleNamespace(recorder=None)
        turn.on_session(session)
        session.recorder.on_step("begin", (), (), 0)
        session.recorder.on_step("receive", (), events, 10)
    turn.on_end(TurnEnded(stop="stop"))
    assert [len(lines) for lines in sessions_of(turn.lines())] == [1]
    assert events_in(turn.lines()) == [TurnStarted(), TextDelta("a", "Hello.")]
