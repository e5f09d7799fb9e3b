"""A turn that is recorded again gives the same file: ids, times and durations do not count, and what the model says is
kept as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from codex_proxy.app.server import Server
from codex_proxy.core.events import Event, RawItem
from codex_proxy.parts.cassettes.file_lines import Line
from codex_proxy.parts.cassettes.format import text_of
from codex_proxy.parts.cassettes.scrubbing import TurnIds
from tests.parts.cassettes.golden_turns import DIALECTS, Change, events_of, names_of_turns
from tests.parts.cassettes.talking import LOOPS, openai_client, running_server
from tests.parts.cassettes.test_pieces import cassette


def _hex(found: re.Match[bytes], salt: bytes = b"") -> str:
    return hashlib.sha256(salt + found[0]).hexdigest()


def _other_uuid(found: re.Match[bytes]) -> bytes:
    digest = _hex(found)
    parts = (digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32])
    return "-".join(parts).encode()


def _other_word(found: re.Match[bytes]) -> bytes:
    digest = "a0" + _hex(found)
    return digest[: len(found[0])].encode()


def _other_number(found: re.Match[bytes]) -> bytes:
    return str(int(_hex(found)[:8], 16) % 9000 + 7).encode()


MUTATIONS: Final[dict[str, tuple[re.Pattern[bytes], Callable[[re.Match[bytes]], bytes] | bytes]]] = {
    "UUIDs": (re.compile(rb"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), _other_uuid),
    "words in ids": (re.compile(rb"(?<=[a-z]_)(?=[A-Za-z]*\d)[A-Za-z0-9]{20,40}(?=\")"), _other_word),
    "short ids": (re.compile(rb"(?<=\"request_id\":\")[0-9a-f]{8}(?=\")"), _other_word),
    "seconds": (re.compile(rb"(?<=:)1[678]\d{8}(?=[,}])"), lambda found: b"17%08d" % (int(found[0]) % 9999)),
    "milliseconds": (
        re.compile(rb"(?<=:)1[678]\d{11}(?=[,}])"),
        lambda found: b"17%011d" % (int(found[0]) % 9999),
    ),
    "fractions of seconds": (re.compile(rb"(?<=:1[678]\d{8})\.\d+(?=[,}])"), b".25"),
    "dates": (
        re.compile(rb"(?<=\"20)\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?=Z)"),
        b"27-02-03T04:05:06.789",
    ),
    "durations": (
        re.compile(rb"(?<=ms\":)\d+|(?<=Ms\":)\d{1,9}(?=[,}])|(?<=[dD]uration\":)\d+|(?<=Seconds\":)\d+"),
        _other_number,
    ),
    "durations as objects": (re.compile(rb"(?<=secs\":)\d+|(?<=nanos\":)\d+"), _other_number),
    "processes": (
        re.compile(rb"(?<=\"processId\":\")\d+|(?<=\"pid\":)\d+|(?<=/cc-socks/)\d+"),
        _other_number,
    ),
    "chunks": (re.compile(rb"(?<=Chunk ID: )[0-9a-f]{6}"), lambda found: _hex(found)[:6].encode()),
    "wall times": (re.compile(rb"(?<=nWall time: )\d+\.\d+(?= seconds\\n)"), b"17.25"),
    "today": (re.compile(rb"(?<=<current_date>)[0-9-]+"), b"2027-02-03"),
    "ports": (re.compile(rb"(?<=\"url\":\"http://127\.0\.0\.1:)\d+"), b"4567"),
}
"""What another recording of the same turn has in other words."""


def written(events: list[Event]) -> bytes:
    """Returns the file of a turn with these events."""
    turn = cassette([Line(0, "events", events)], [])
    return b"".join(text_of(turn, replace_ids=TurnIds({}, b"key", b"{}").replace))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_differs_in_another_recording_of_a_real_turn_is_not_written(dialect: str) -> None:
    wrong: list[Any] = []
    for name in names_of_turns(dialect):
        once = _written_turn(dialect, name)
        for what, (pattern, other) in MUTATIONS.items():
            again = _written_turn(dialect, name, partial(pattern.sub, other))
            wrong += [(name, what, *pair) for pair in zip(once, again, strict=True) if pair[0] != pair[1]]
    assert not wrong


def _written_turn(dialect: str, name: str, change: Change = bytes) -> list[bytes]:
    return written(events_of(dialect, name, change)).splitlines()


def test_times_and_ids_of_codex_are_the_same_in_each_recording() -> None:
    def written(uuid: str, number: int) -> bytes:
        item: dict[str, object] = {"id": f"fco_{uuid}", "message": f"msg_{uuid}"}
        item |= {"durationMs": number, "create_time": 1790000000.5 + number}
        text = b'{"ms":1,"session":"begin"}\n' + json.dumps(item, separators=(",", ":")).encode()
        return TurnIds({}, b"key", b"{}").replace(text)

    one = written("019f0000-0000-7000-8000-00000000000a", 1)
    assert one == written("019f0000-0000-7000-8000-00000000000b", 200)
    assert b'"durationMs":0,"create_time":0' in one


UPSTREAM_LINES: Final = {
    "OpenAI": '{"id":"chatcmpl-%(word)s","created":%(seconds)d,"choices":[]}',
    "vLLM": '{"id": "chatcmpl-%(hex)s", "created": %(seconds)d, "choices": [{"delta": {"tool_calls": [{"id": '
    '"chatcmpl-tool-%(hex)s"}]}}]}',
    "a UUID": '{"id": "chatcmpl-%(uuid)s", "choices": [{"delta": {"tool_calls": [{"id": "call_%(uuid)s"}]}}]}',
    "OpenRouter": '{"id":"gen-%(seconds)d-%(word)s","provider":"a","created":%(seconds)d}',
    "Groq": '{"id":"chatcmpl-%(uuid)s","x_groq":{"id":"req_%(short)s%(short)s"},"usage":{"queue_time":0.%(number)d,'
    '"total_time":%(number)d.5}}',
    "llama.cpp": '{"timings":{"prompt_ms":%(number)d.25,"predicted_per_token_ms":1%(number)d,'
    '"predicted_per_second":%(number)d.5e-1}}',
    "Ollama": '{"id":"call_%(short)s","total_duration":%(number)d,"created_at":"2026-11-29T04:05:06.%(number)d+01:00"}',
    "Mistral": '{"choices":[{"delta":{"tool_calls":[{"id":"D%(short)s","index":0}]}}]}',
    "Responses": '{"type":"response.output_text.delta","item_id":"msg_%(hex)s"}',
}
"""Lines of model servers; what stands in brackets differs in each answer."""


@pytest.mark.parametrize("server", UPSTREAM_LINES)
def test_what_differs_in_each_answer_of_a_model_server_is_not_written(server: str) -> None:
    def line(number: int) -> bytes:
        digest = hashlib.sha256(b"%d" % number).hexdigest()
        values = {
            "word": "aB3" + digest[:26],
            "hex": digest[:32],
            "short": "a1" + digest[:6],
            "uuid": f"{digest[:8]}-{digest[8:12]}-4{digest[12:15]}-8{digest[15:18]}-{digest[18:30]}",
            "seconds": 1790000000 + number,
            "number": 123 + number,
        }
        return (UPSTREAM_LINES[server] % values).encode()

    assert written([RawItem("message", line(1))]) == written([RawItem("message", line(22))])


KEPT: Final[dict[str, dict[str, Any]]] = {
    "a UUID that the model says": {"delta": "019f0000-0000-7000-8000-00000000000a"},
    "an id that the model says": {"text": "run_0123456789abcdef0123"},
    "an id in arguments": {
        "arguments": {"run_id": "run_0123456789abcdef0123", "callId": "call_0123456789abcdef"}
    },
    "a time in arguments": {
        "input": {"created_at": 1790000000, "a": [{"b": "}"}], "timestamp": 1790000000000}
    },
    "a date in arguments": {"rawInput": {"startTime": "2026-11-29T04:05:06Z", "timeout_ms": 30000}},
    "arguments as a text": {"arguments": '{"created_at":1790000000,"run_id":"run_0123456789abcdef0123"}'},
    "the name of a model": {"modelId": "claude3sonnet20240229v1", "currentModelId": "gpt5codex0123456789a"},
    "the id of an option": {"configId": "thought_level", "id": "allow_always"},
    "a commit": {"sha": "0123456789abcdef0123456789abcdef01234567"},
    "a number that is no time": {"size": 1790000000, "total_tokens": 1200, "exitCode": 1},
}
"""What does not depend on when and where a turn is recorded."""


@pytest.mark.parametrize("what", KEPT)
@pytest.mark.parametrize("blanks", [False, True])
def test_what_is_content_is_written_as_it_is(what: str, blanks: bool) -> None:
    line = json.dumps({"v": KEPT[what]}, separators=None if blanks else (",", ":")).encode()
    lines = [json.loads(each) for each in written([RawItem("message", line)]).splitlines()]
    assert json.dumps(KEPT[what]) in json.dumps(lines)


@pytest.mark.parametrize("dialect", ["app-server", "proto", "acp"])
async def test_the_arguments_of_a_call_are_replayed_as_the_model_gave_them(
    tmp_path: Path, dialect: str
) -> None:
    arguments = {
        "created_at": 1790000000,
        "run_id": "run_0123456789abcdef0123",
        "since": "2026-11-29T04:05:06Z",
    }
    asked = f"[[fake:tool_calls calls=1 name=look_up args={json.dumps(json.dumps(arguments))}]] Look it up."
    tool: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    folder, answers = tmp_path / "cassettes", []
    for cassettes in ({"record": folder}, {"replay": folder}):
        async with (
            running_server(tmp_path, fake_dialect=dialect, cassettes=cassettes) as server,
            openai_client(server) as client,
        ):
            messages: list[Any] = [{"role": "user", "content": asked}]
            answer = await client.chat.completions.create(model="codex-5", messages=messages, tools=[tool])
            made: Any = answer.choices[0].message.tool_calls
            call = made[0]
            assert json.loads(call.function.arguments) == arguments
            messages += [
                answer.choices[0].message,
                {"role": "tool", "tool_call_id": call.id, "content": "It is."},
            ]
            answer = await client.chat.completions.create(model="codex-5", messages=messages, tools=[tool])
            answers.append(answer.choices[0].message.content)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("api", [*LOOPS, "ollama"])
async def test_a_turn_that_is_recorded_twice_gives_the_same_files_on_each_api(
    tmp_path: Path, api: str
) -> None:
    files = []
    for name in ("first", "second"):
        async with running_server(tmp_path, cassettes={"record": tmp_path / name}) as server:
            for stream in (False, True):
                if api in LOOPS:
                    await LOOPS[api](server, stream=stream)
                else:
                    await ollama_turn(server, stream)
        files.append({path.name: without_ms(path.read_bytes()) for path in (tmp_path / name).iterdir()})
    assert files[0] == files[1]


async def ollama_turn(server: Server, stream: bool) -> None:
    messages = [{"role": "user", "content": "[[fake:reasoning]] Hello?"}]
    url = f"http://127.0.0.1:{server.port}/api/chat"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"model": "codex-5", "messages": messages, "stream": stream}) as reply,
    ):
        assert reply.status == 200, await reply.text()
        await reply.read()


def without_ms(text: bytes) -> bytes:
    """Returns a file with 0 for the milliseconds of its lines, which alone may differ."""
    return re.sub(rb'^\{"ms":\d+', b'{"ms":0', text, flags=re.MULTILINE)
