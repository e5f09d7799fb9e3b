"""Every field of a cassette, damaged in every way: it is named with its file and line, or the request is a 4xx."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from codex_proxy.parts.cassettes import player
from codex_proxy.parts.cassettes.check import check_folder, update
from codex_proxy.parts.cassettes.file_lines import Line
from codex_proxy.parts.cassettes.format import EMPTY_CONTENT, Answer, Cassette, Request, lines_of, parse
from codex_proxy.parts.cassettes.replay import NAME, Folder
from codex_proxy.parts.cassettes.settings import CassetteError
from codex_proxy.parts.cassettes.views import as_conversation, scenario
from tests.core.test_event_rows import EVENTS
from tests.parts.cassettes.talking import running_server
from tests.parts.cassettes.test_hostile_files import RECORDED, recorded_lines, write

Damaged = tuple[str, str]
"""What is damaged, and the text of the file."""

HUGE: Final = "1" + "0" * 400
VALUES: Final = (
    *(
        "null",
        "true",
        "0",
        "-1",
        "1.5",
        "1e400",
        HUGE,
        '""',
        '"x"',
        '"subprocess:Popen"',
        '"codex_proxy.cli"',
    ),
    *('"\\ud800"', '"\\u0000"', "[]", "[1]", '["x"]', "[[]]", "{}", '{"a":1}', '{"text":1}', '{"type":"x"}'),
)
"""JSON of every type."""
SAID: Final = frozenset({"to", "from", "data", "sent", "next"})
"""The kinds of lines with what an agent or this server has said, which are damaged less deeply."""


class Json(str):
    """A value as it is written."""


class Twice(list[Any]):
    """The values of a name that an object has several times."""


def _dump(value: Any) -> str:
    if isinstance(value, Json):
        return str(value)
    if isinstance(value, dict):
        pairs = [
            (name, each) for name, all in value.items() for each in (all if isinstance(all, Twice) else [all])
        ]
        return "{" + ",".join(f"{json.dumps(name)}:{_dump(each)}" for name, each in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"
    return json.dumps(value)


def _paths(value: Any, depth: int, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if len(before) == depth:
        return
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, each in members:
        yield (*before, name)
        yield from _paths(each, depth, (*before, name))


def _changed(value: Any, path: tuple[Any, ...], *new: Any) -> Any:
    """Returns the value with `new` at a path: nothing, one value, or a name that is there twice."""
    name, *rest = path
    members = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    if rest:
        members[name] = _changed(members[name], tuple(rest), *new)
    elif not new:
        del members[name]
    else:
        members[name] = new[0] if len(new) == 1 else Twice(new)
    return members if isinstance(value, dict) else [*members.values()]


def _damaged_line(line: dict[str, Any]) -> Iterator[Damaged]:
    kind = next(name for name in line if name != "ms")
    for path in _paths(line, 3 if kind in SAID else 9):
        where = f"{kind} {'.'.join(map(str, path))}"
        yield f"{where} removed", _dump(_changed(line, path))
        for value in VALUES:
            yield f"{where}: {value[:20]}", _dump(_changed(line, path, Json(value)))
        if isinstance(path[-1], str):
            for value in ("null", '"x"', "{}"):
                yield f"{where} twice: {value}", _dump(_changed(line, path, None, Json(value)))
    yield from ((f"{kind} as {value[:20]}", value) for value in VALUES)
    yield f"{kind} with another field", _dump({**line, "subprocess:Popen": ["touch", "x"]})


def damaged(lines: list[dict[str, Any]]) -> Iterator[Damaged]:
    """Yields a cassette with each field damaged, and with each line removed, doubled or elsewhere."""
    texts = [json.dumps(line) for line in lines]
    known = set()
    for at, line in enumerate(lines):
        for what, text in _damaged_line(line):
            if what not in known:
                known.add(what)
                yield f"line {at + 1}, {what}", "\n".join([*texts[:at], text, *texts[at + 1 :]])
        others = [*texts[:at], *texts[at + 1 : -1]]
        for what, left in (
            ("removed", others),
            ("twice", [*texts[: at + 1], *texts[at:-1]]),
            ("last", [*others, texts[at]]),
            ("first", [texts[at], *others]),
            ("the end", texts[:at]),
        ):
            yield f"line {at + 1} {what}", "\n".join([*left, f'{{"end":{len(left)}}}'])


def made(agent: str, session: dict[str, Any], *said: dict[str, Any], **head: Any) -> list[dict[str, Any]]:
    """Returns the lines of a cassette of one question."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello?"}]}
    lines = [
        {"cassette": 2, "agent": agent, **head},
        {"request": "POST /v1/chat/completions", "headers": {"x-codex-note": "a"}, "body": body},
        {"turn": {"mode": "model", "format": "text", "model": "m", "tool_choice": "auto"}},
        {"message": {"role": "user", "text": "Hello?"}},
        session,
        *said,
        {"answer": 200, "body": {"choices": [{"index": 0, "message": {"content": "Hello."}}]}},
    ]
    return [*lines, {"end": len(lines)}]


OUTPUT: Final = {
    "parts": [{"text": "Sunny."}, {"url": "data:,", "detail": "low"}],
    "text": "Sunny.",
    "failed": False,
}
CALL: Final = {"tool": "desk__get_weather", "arguments": "{}", "output": OUTPUT}
MCP: Final = {
    "name": "desk__get_weather",
    "description": "Weather",
    "parameters": {"type": "object"},
    "mcp": {"server_label": "desk", "name": "get_weather"},
    "listed": {"name": "get_weather", "input_schema": {"type": "object"}},
}


def _continued() -> list[dict[str, Any]]:
    (file,) = RECORDED.glob("0002-*.jsonl")
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def _every_event() -> list[dict[str, Any]]:
    turn = Cassette(
        cassette=2,
        name="x",
        agent="fake",
        request=Request("POST /v1/responses"),
        content={**EMPTY_CONTENT, "tools": [], "messages": []},
        answer=Answer(200),
        lines=[Line(2, "events", [event]) for event in EVENTS],
    )
    events = [json.loads(line) for line in lines_of(turn) if b'"events"' in line]
    said = [*events[:-1], {"ms": 3, "reply": REPLY}, {"ms": 3, "call": CALL}, events[-1]]
    return made("fake", {"ms": 1, "session": "begin"}, *said, {"ms": 4, "failed": FAILED}, mcp=[MCP])


REPLY: Final = {"to": "1", "parts": OUTPUT["parts"], "success": False}
FAILED: Final = {"kind": "timed_out", "message": "It was too slow.", "retry_after": 1.5}


CASSETTES: Final[dict[str, list[dict[str, Any]]]] = {
    "version 2": recorded_lines(),
    "continued": _continued(),
    "every event": _every_event(),
    "calls alone": [
        *made("fake", {"ms": 2, "call": CALL}, mcp=[MCP])[:5],
        {"answer": 200, "stream": 1},
        {"sent": {"type": "x"}},
        {"final": {"id": "x"}},
        {"end": 8},
    ],
}
"""The lines of cassettes, with every kind of line."""


def readable(name: str, every: int, first: int = 0) -> Iterator[tuple[str, str, Cassette]]:
    """Yields the damaged files of a cassette that can be read. Each other one is an error that names its line."""
    for what, text in itertools.islice(damaged(CASSETTES[name]), first, None, every):
        wrong = ""
        try:
            yield what, text, parse(f"{text}\n".encode(), Path("x.jsonl"))
        except CassetteError as error:
            wrong = str(error)
        assert not wrong or wrong.startswith("x.jsonl, line "), (what, wrong)


@pytest.mark.sampled(every=19)
@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("name", CASSETTES)
def test_a_damaged_file_is_an_error_with_its_line_or_is_shown(name: str, part: int) -> None:
    before = [
        parse("".join(f"{json.dumps(line)}\n" for line in CASSETTES[each]).encode(), Path("before.jsonl"))
        for each in ("version 2", "every event", name)
    ]
    for what, _, cassette in readable(name, 6, part):
        for chain in ([cassette], *([each, cassette] for each in before), [cassette, before[-1]]):
            try:
                as_conversation(chain[-1])
                scenario(chain)
            except Exception as error:
                raise AssertionError(what) from error


REQUESTS: Final = (
    ("v1/chat/completions", {"messages": [{"role": "user", "content": "Hello?"}]}),
    ("v1/responses", {"input": "Hello?"}),
    ("v1/messages", {"max_tokens": 99, "messages": [{"role": "user", "content": "Hello?"}]}),
    ("api/chat", {"messages": [{"role": "user", "content": "Hello?"}], "stream": False}),
)


def tool_for(path: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    if path == "v1/messages":
        return {"name": "get_weather", "input_schema": schema}
    function = {"name": "get_weather", "parameters": schema}
    return (
        {"type": "function", **function}
        if path == "v1/responses"
        else {"type": "function", "function": function}
    )


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", [name for name in CASSETTES if name != "calls alone"])
async def test_a_damaged_cassette_is_no_error_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(player, "STUCK_SECONDS", 0.1)
    folder = tmp_path / "cassettes"
    write(folder, CASSETTES[name], "good")
    asked: dict[str, str] = {}
    for number, (what, text, cassette) in enumerate(readable(name, 37)):
        if {tool["name"] for tool in cassette.content["tools"]} <= {"get_weather"}:
            (folder / f"{number}.jsonl").write_text(f"{text}\n", "utf-8")
            asked[str(number)] = what
    async with (
        running_server(tmp_path, cassettes={"replay": folder}) as server,
        aiohttp.ClientSession() as session,
    ):
        assert server.agent.name == NAME
        for number, (cassette_name, what) in enumerate([("good", "whole"), *asked.items()]):
            path, body = REQUESTS[number % len(REQUESTS)]
            url, headers = f"http://127.0.0.1:{server.port}/{path}", {"x-codex-cassette": cassette_name}
            body = {"model": "codex-5", "tools": [tool_for(path)], **body}
            async with session.post(url, json=body, headers=headers) as reply:
                text = await reply.text()
            assert reply.status < 500, (what, text)
            assert '"status":"failed"' not in text or "cassette_invalid" in text, (what, text)


@pytest.mark.sampled(every=4, first=1)
@pytest.mark.parametrize("name", CASSETTES)
async def test_damaged_cassettes_are_checked_and_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(player, "STUCK_SECONDS", 0.1)
    folder = tmp_path / "cassettes"
    write(folder, recorded_lines(), "0001-fake-tool-calls-is-it-sunny-in-paris-an")
    asked: dict[str, str] = {}
    for number, (what, text, _) in enumerate(readable(name, 23)):
        (folder / f"{number}.jsonl").write_text(f"{text}\n", "utf-8")
        asked[str(number)] = what
    found = Folder(folder)
    for result in await check_folder(found):
        what = asked.get(result.cassette.name, "whole")
        assert result.answer.status < 500 or name == "calls alone", (what, result.answer)
        update(found, result)
    assert Folder(folder).cassettes.keys() == found.cassettes.keys()
