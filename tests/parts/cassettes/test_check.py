"""`codex-proxy cassettes`: today's code against recorded answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from codex_proxy.agents.codex_app_server import app_server_dialect
from codex_proxy.cli import main
from codex_proxy.core.events import TextDelta
from codex_proxy.parts.acp import process
from codex_proxy.surfaces.chat import render
from tests.parts.cassettes.talking import (
    WEATHER,
    chat_loop,
    messages_loop,
    openai_client,
    responses_loop,
    running_server,
)


async def record_turns(folder: Path, **settings: Any) -> Path:
    """A folder with a tool loop of each API, a stream, and a turn that fails."""
    cassettes = folder / "cassettes"
    async with (
        running_server(folder, cassettes={"record": cassettes}, **settings) as server,
        openai_client(server) as client,
    ):
        await chat_loop(server)
        await responses_loop(server, stream=True)
        await messages_loop(server, stream=True)
        messages: Any = [{"role": "user", "content": "[[fake:error_rate_limit]]"}]
        with pytest.raises(Exception, match="rate"):
            await client.chat.completions.create(model="codex-5", messages=messages)
    return cassettes


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["cassettes", *map(str, arguments)], catch_exceptions=False)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("dialect", ["app-server", "proto", "acp"])
def test_a_new_recording_is_rendered_as_recorded(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "AHEAD_PAUSE_SECONDS", 0.0)  # so that ACP sessions are opened ahead
    folder = _run(record_turns(tmp_path, fake_dialect=dialect))
    result = command("check", folder)
    assert result.output == "7 cassettes: as recorded.\n"
    assert result.exit_code == 0


async def _record_session(folder: Path) -> Path:
    cassettes = folder / "cassettes"
    agent: Any = {
        "model": "codex-5",
        "tools": [{"type": "function", "name": "get_weather", "description": "d", "parameters": WEATHER}],
    }
    async with (
        running_server(folder, cassettes={"record": cassettes}) as server,
        openai_client(server) as client,
    ):
        stream = await client.beta.agents.sessions.create(
            agent=agent,
            environment={"type": "none"},
            input="What is the weather?",
            stream=True,
            tool_handlers={"get_weather": lambda _: "sunny"},
        )
        assert (await stream.get_final_result()).output_text == "The tool said: sunny"
        await client.chat.completions.create(model="codex-5", messages=[{"role": "user", "content": "Hi"}])
    return cassettes


def test_sessions_of_the_agents_api_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = _run(_record_session(tmp_path))
    result = command("check", folder)
    assert result.output == (
        "1 cassettes: as recorded.\n2 of the Agents API: they are replayed, but not checked.\n"
    )
    assert result.exit_code == 0


def _run(work: Any) -> Any:
    import asyncio

    return asyncio.run(work)


def test_a_change_of_a_renderer_is_shown_as_exactly_that_diff_and_can_be_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _run(record_turns(tmp_path))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    _whole = render.ChatRenderer.result

    def changed(self: Any) -> bytes:
        return _whole(self).replace(b'"finish_reason":"stop"', b'"finish_reason":"done"')

    monkeypatch.setattr(render.ChatRenderer, "result", changed)
    result = command("check", folder)
    assert result.exit_code == 1
    lines = [line.strip() for line in result.output.splitlines() if line.strip().startswith(("+", "-"))]
    assert [line for line in lines if "recorded" not in line and "today" not in line] == [
        '-   "finish_reason": "stop"',
        '+   "finish_reason": "done"',
    ]
    assert "7 cassettes, 1 of them differ." in result.output
    assert command("update", folder).output.endswith("7 cassettes, 1 updated.\n")
    assert command("check", folder).exit_code == 0
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert [name for name in before if after[name] != before[name]] == ["0002-fake-tool-calls-output.jsonl"]


def test_a_change_of_a_dialect_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _run(record_turns(tmp_path))
    monkeypatch.setattr(app_server_dialect, "TextDelta", lambda id, text: TextDelta(id, text.upper()))
    assert command("check", folder).output == "7 cassettes: as recorded.\n"


def test_a_cassette_is_shown_as_a_conversation(tmp_path: Path) -> None:
    folder = _run(record_turns(tmp_path))
    said = command("show", folder / "0002-fake-tool-calls-output").output
    assert '[call 1] get_weather({"city": "Paris"})' in said
    assert "[output 2]\nsunny in Rome" in said
    assert "[assistant]\nIt is sunny." in said
    assert "20 output" in said


def test_a_scenario_of_the_fake_agent_says_the_same_as_the_recording(tmp_path: Path) -> None:
    folder = _run(record_turns(tmp_path))
    scenario = json.loads(command("to-scenario", folder / "0002-fake-tool-calls-output").output)
    calls, text = scenario["steps"]
    assert [call["name"] for call in calls["actions"][0]["calls"]] == ["get_weather", "get_weather"]
    assert calls["end"] == "tool_calls"
    assert text["actions"] == [{"do": "message", "deltas": ["It", " is", " sunny."]}]
    assert text["usage"] == {"input": 100, "cached": 40, "output": 20, "reasoning": 5}


@pytest.mark.exhaustive
def test_two_recordings_of_the_same_requests_are_compared(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = (_run(record_turns(tmp_path / name)) for name in ("old", "new"))
    assert command("diff", old, new).output == "7 of 7 requests have the same answer.\n"
    other = new / "0002-fake-tool-calls-output.jsonl"
    other.write_bytes(other.read_bytes().replace(b"It is sunny.", b"It is wet."))
    said = command("diff", old, new).output
    assert "It is wet." in said
    assert said.endswith("6 of 7 requests have the same answer.\n")


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[: len(data) // 2], "the file is half-written"),
        (lambda data: data[: data.rindex(b'{"end"')], "it has no end"),
        (lambda data: data.replace(b'"cassette":2', b'"cassette":9', 1), "format 9, and this codex-proxy reads"),
        (lambda data: data.replace(b'"session":', b'"sessions":', 1), "line 7: a line that begins with `sessions`"),
        (lambda data: b"not json\n" + data, "line 1"),
        (lambda data: data.replace(b'{"turn"', b'{"turns"', 1), "line 3"),
    ],
)  # fmt: skip
def test_a_broken_cassette_names_its_file_and_line(damage: Any, says: str, tmp_path: Path) -> None:
    folder = _run(record_turns(tmp_path))
    first = folder / "0001-fake-tool-calls-what-is-the-weather-in.jsonl"
    first.write_bytes(damage(first.read_bytes()))
    result = command("check", folder)
    assert result.exit_code == 1
    assert first.name in result.output
    assert says in result.output
