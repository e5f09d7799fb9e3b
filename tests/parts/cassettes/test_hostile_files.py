"""A cassette is data: no line of it names code, a setting, another server or a file that is not read."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from click.testing import CliRunner

from codex_proxy.cli import main
from codex_proxy.core.events import AccountLimitsReported
from codex_proxy.core.faults import UserError
from codex_proxy.parts.cassettes import format
from tests.parts.cassettes.talking import running_server

ROOT: Final = Path(__file__).parents[3]
RECORDED: Final = ROOT / "examples/tests_with_openai/cassettes/two-cities"
NAME: Final = "0001-fake-tool-calls-is-it-sunny-in-paris-an"
COMMANDS: Final = ("show", "check", "to-scenario", "update", "diff")
SESSION: Final = 5
"""The line of the session, from 0."""


def recorded_lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / f"{NAME}.jsonl").read_text("utf-8").splitlines()]


def write(folder: Path, lines: list[dict[str, Any]], name: str = "x") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return file


def run(command: str, folder: Path) -> tuple[int, str]:
    """Runs a command on the cassettes in a folder; returns its exit status and output."""
    given = {"show": [folder / "x"], "to-scenario": [folder / "x"], "diff": [folder, folder]}
    arguments = ["cassettes", command, *map(str, given.get(command, [folder]))]
    done = CliRunner().invoke(main, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


async def start_replay(folder: Path) -> None:
    async with running_server(folder.parent, cassettes={"replay": folder}):
        pass


def test_a_cassette_of_version_1_is_refused_with_what_to_do(tmp_path: Path) -> None:
    lines = recorded_lines()
    lines[0]["cassette"] = 1
    file = write(tmp_path / "cassettes", lines)
    for command in COMMANDS:
        status, said = run(command, file.parent)
        assert (status, f"{file}, line 1: the cassette has format 1, " in said) == (1, True), said
        assert "Convert it with `codex-proxy cassettes update` of release 0.3, or record it anew." in said
    with pytest.raises(UserError, match="line 1: the cassette has format 1"):
        asyncio.run(start_replay(file.parent))


@pytest.mark.parametrize("file", ["", ".", "/"])
def test_a_path_without_a_name_is_no_cassette(file: str) -> None:
    done = CliRunner().invoke(main, ["cassettes", "show", file])
    assert (done.exit_code, "There is no cassette" in done.output) == (1, True), done.output


HOSTED: Final = {"event": "hosted_event", "id": "a", "type": "", "json": {}}
RAW: Final = {"event": "raw_item", "type": "message"}
FORGED: Final = 'x\n\nevent: response.completed\ndata: {"forged":1}\n\nevent: y'
ACTIVITY: Final = {"item": "activity", "id": "a", "kind": "other", "text": "", "hosted": "x_call"}
EVENTS: Final[dict[str, dict[str, Any]]] = {
    "an event that forges others": {**HOSTED, "type": FORGED},
    "an event of no hosted tool": {**HOSTED, "type": "response.completed"},
    "a hosted event that is a list": {**HOSTED, "json": [1]},
    "a hosted event that is a text": {**HOSTED, "json": "x"},
    "a hosted item that is not known": {"event": "item_started", "item": ACTIVITY},
    **{
        f"an item whose {name} is a number": {**RAW, "json": {"type": "message", name: 5}}
        for name in ("role", "call_id", "name", "arguments", "content", "encrypted_content")
    },
    "content of other parts": {**RAW, "json": {"type": "message", "content": [5]}},
    "tokens of another field": {"event": "answer_details", "tokens": {"total_tokens": {"a": 1}}},
    "another field of the answer": {"event": "answer_details", "fields": {"choices": []}},
    "a field of another type": {"event": "answer_details", "fields": {"service_tier": [1]}},
}
"""Events that could be decoded, and not rendered."""
LINES: Final[dict[str, dict[str, Any]]] = {
    "a session of a dialect": {"ms": 1, "session": "app-server"},
    "a session of a class": {"ms": 1, "session": "oneshot_agent.dialect:OneShotTurn"},
    "a session with facts": {"ms": 1, "session": {"name": "acp", "facts": {"preset": "gemini"}}},
    "a line of an agent": {"ms": 1, "from": {"method": "turn/completed"}},
    "an end of a program": {"ms": 1, "ended": {"code": 0}},
    "an event that is not known": {"ms": 1, "events": [{"event": "subprocess:Popen", "args": ["touch"]}]},
    "an event without a name": {"ms": 1, "events": [{"id": "a"}]},
    "a delta that is not known": {"ms": 1, "events": [{"event": "deltas", "first": {"event": "notice"}}]},
    "forwarded bytes": {"ms": 1, "events": [{"event": "forwarded_bytes", "data": "e30="}]},
    "an item that is not known": {"ms": 1, "events": [{"event": "item_started", "item": {"item": "os"}}]},
    "events that are an object": {"ms": 1, "events": {"event": "notice", "code": "a"}},
    "a reply to a number": {"ms": 1, "reply": {"to": 1}},
    "a reply with another part": {"ms": 1, "reply": {"to": "a", "parts": [{"file": "/etc/passwd"}]}},
    "a failure of another kind": {"ms": 1, "failed": {"kind": "os:system", "message": "x"}},
    "a time before the turn": {"ms": -1, "events": []},
    **{what: {"ms": 1, "events": [event]} for what, event in EVENTS.items()},
}


@pytest.mark.parametrize("what", LINES)
def test_a_line_that_no_recording_writes_is_an_error_with_its_number(tmp_path: Path, what: str) -> None:
    lines = recorded_lines()
    lines.insert(SESSION + 1, LINES[what])
    file = write(tmp_path / "cassettes", lines)
    for command in COMMANDS:
        status, said = run(command, file.parent)
        assert (status, f"{file}, line {SESSION + 2}: " in said) == (1, True), said
    with pytest.raises(UserError, match=f"line {SESSION + 2}: "):
        asyncio.run(start_replay(file.parent))


def test_json_with_line_ends_within_is_read_as_one_line(tmp_path: Path) -> None:
    lines = recorded_lines()
    lines[SESSION + 1] = {"ms": 1, "events": [{"event": "account_limits_reported", "json": {"a": 1}}]}
    file = write(tmp_path / "cassettes", lines)
    file.write_bytes(file.read_bytes().replace(b'{"a": 1}', b'{"a":\r\r1}\r'))
    assert format.read(file).lines[1].value == [AccountLimitsReported(b'{"a":1}')]


def test_events_without_a_session_are_an_error_with_their_line(tmp_path: Path) -> None:
    lines = recorded_lines()
    del lines[SESSION]
    file = write(tmp_path / "cassettes", lines)
    status, said = run("show", file.parent)
    assert (status, f"{file}, line {SESSION + 1}: there is no `session`" in said) == (1, True), said


HEADS: Final[dict[str, Any]] = {
    "an agent to start": {"settings": {"agent": "acp", "acp": {"command": "touch MARK"}}},
    "another address": {"settings": {"host": "0.0.0.0"}},
    "servers of tools": {"settings": {"mcp_config": "/tmp/mcp.json"}},
    "a plugin": {"settings": {"agent_plugin": "planted_module:SPEC"}},
    "a folder to record into": {"settings": {"cassettes": {"record": "MARK"}}},
    "a place of the store": {"settings": {"store": "MARK/x"}},
    "a key": {"settings": {"api_key": None}},
    "a value of another type": {"settings": {"max_chat_choices": "many"}},
    "a value out of bounds": {"settings": {"max_chat_choices": -1}},
    "a setting that is not known": {"settings": {"nothing": 1}},
    "settings that are a list": {"settings": []},
    "a field to match that is not known": {"match": ["everything"]},
    "an order of another type": {"order": "first"},
    "tools without names": {"mcp": [{}]},
    "tools of another type": {"mcp": [{"name": 1, "mcp": {"server_label": "a", "name": "b"}}]},
    "tools without a server": {"mcp": [{"name": "a"}]},
    "tools that are texts": {"mcp": ["a"]},
    "a listed tool of another type": {
        "mcp": [{"name": "a", "mcp": {"server_label": "a", "name": "b"}, "listed": [1]}]
    },
}


@pytest.mark.parametrize("what", HEADS)
def test_a_head_with_what_no_recording_writes_is_an_error_with_its_line(tmp_path: Path, what: str) -> None:
    mark = tmp_path / "mark"
    lines = recorded_lines()
    lines[0] |= json.loads(json.dumps(HEADS[what]).replace("MARK", str(mark)))
    file = write(tmp_path / "cassettes", lines)
    for command in ("check", "show"):
        status, said = run(command, file.parent)
        assert (status, f"{file}, line 1: " in said) == (1, True), said
    with pytest.raises(UserError, match="line 1: "):
        asyncio.run(start_replay(file.parent))
    assert not mark.exists()


@pytest.mark.parametrize(
    "line",
    [
        *("POST @127.0.0.1:PORT/v1/chat/completions", "POST .evil.example/", "POST :1@127.0.0.1:PORT/"),
        *("POST", "", "POST /v1/\r\nX: y", "CONNECT /v1/chat/completions", "POST http://127.0.0.1:PORT/"),
        *("DELETE /v1/responses/x", "post /v1/chat/completions"),
    ],
)
def test_a_recorded_request_goes_to_no_other_server(tmp_path: Path, line: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        lines = recorded_lines()
        lines[1]["request"] = line.replace("PORT", str(other.getsockname()[1]))
        file = write(tmp_path / "cassettes", lines)
        status, said = run("check", file.parent)
        assert (status, f"{file}, line 2: " in said) == (1, True), said
        with pytest.raises(BlockingIOError):
            other.accept()


@pytest.mark.parametrize("headers", [{"x-a": "b\r\nc: d"}, {"x\n": "a"}, {"x-a": 1}, [], {"": "a"}])
def test_recorded_headers_are_headers(tmp_path: Path, headers: Any) -> None:
    lines = recorded_lines()
    lines[1]["headers"] = headers
    file = write(tmp_path / "cassettes", lines)
    status, said = run("check", file.parent)
    assert (status, f"{file}, line 2: " in said) == (1, True), said


# --- files ----------------------------------------------------------------------------------------


def _socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # the name of a socket may have 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(before)


def _link_to_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    path.symlink_to("pipe")


NO_FILES: Final[dict[str, Callable[[Path], object]]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a socket": _socket,
    "a folder": lambda path: path.mkdir(),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a pipe": _link_to_pipe,
    "a file of a process": lambda path: path.symlink_to("/proc/self/mem"),
}


@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_no_file_is_an_error_that_names_it_and_nothing_waits_for_it(
    tmp_path: Path, what: str
) -> None:
    folder = tmp_path / "cassettes"
    write(folder, recorded_lines(), "good")
    NO_FILES[what](folder / "x.jsonl")
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "from codex_proxy.cli import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "cassettes", "check", str(folder)],
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert str(folder / "x.jsonl") in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_beyond_the_limit_is_an_error_whatever_its_size_was_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format, "MAX_FILE_BYTES", 1000)
    file = write(tmp_path / "cassettes", recorded_lines())
    status, said = run("show", file.parent)
    assert (status, f"{file} is larger than" in said) == (1, True)


def test_a_folder_of_very_many_folders_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    file = write(folder, recorded_lines())
    depth, below = 1100, str(folder)
    for _ in range(depth):
        below += "/d"
        os.mkdir(below)
    try:
        assert run("check", folder) == (0, "1 cassettes: as recorded.\n")
    finally:
        file.unlink()
        for _ in range(depth):
            os.rmdir(below)
            below = below.removesuffix("/d")


def test_a_link_to_a_folder_above_does_not_make_an_endless_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    write(folder, recorded_lines())
    (folder / "again").symlink_to(folder)
    assert run("check", folder) == (0, "1 cassettes: as recorded.\n")


# --- requests by name -----------------------------------------------------------------------------


async def test_a_request_by_name_without_the_recorded_tools_is_a_400(tmp_path: Path) -> None:
    write(tmp_path / "cassettes", recorded_lines())
    async with (
        running_server(tmp_path, cassettes={"replay": tmp_path / "cassettes"}) as server,
        aiohttp.ClientSession() as session,
    ):
        for path, asked in (
            ("v1/chat/completions", {"messages": [{"role": "user", "content": "Hello."}]}),
            ("v1/responses", {"input": "Hello."}),
            ("v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}),
            ("api/chat", {"messages": [{"role": "user", "content": "Hello."}], "stream": False}),
        ):
            url = f"http://127.0.0.1:{server.port}/{path}"
            headers = {"x-codex-cassette": "x"}
            async with session.post(url, json={"model": "codex-5", **asked}, headers=headers) as reply:
                text = await reply.text()
                assert (reply.status, "get_weather" in text) == (400, True), text
