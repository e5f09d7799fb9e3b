"""`codex exec` and `codex proto` share ids between items, give them again, rename items at their end, leave ids out, or
repeat lines: each item comes once, with its own text.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    FullArguments,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    TextDelta,
)
from codex_proxy.core.items import Activity, Message, ToolCall
from codex_proxy.core.repair import TurnRepair
from tests.agents import exec_child, proto_child
from tests.core.well_formed import violations

Item = tuple[str, str, str]
"""The kind of an item, what it says or runs, and its output."""
THINK: Final[Item] = ("reasoning", "Let me think.", "")
HELLO: Final[Item] = ("message", "Hello", "")
BYE: Final[Item] = ("message", "Goodbye", "")
LIST: Final[Item] = ("command", "ls", "a.txt")
SHOW: Final[Item] = ("command", "cat a.txt", "text")
SEARCH: Final[Item] = ("web_search", "cats", "")
ANSWERS: Final = (
    (HELLO,),
    (THINK, HELLO),
    (HELLO, LIST, BYE),
    (LIST, SHOW, HELLO),
    (THINK, LIST, SEARCH, SHOW, ("reasoning", "And more.", ""), BYE),
)
IDS: Final[dict[str, Callable[[int, str], str | None]]] = {
    "own": lambda place, line: f"item_{place}",
    "shared": lambda place, line: "item",
    "renewed at the end": lambda place, line: f"item_{place}{line}",
    "empty": lambda place, line: "",
    "missing": lambda place, line: None,
}


def named(fields: dict[str, Any], name: str, id: str | None) -> dict[str, Any]:
    return fields if id is None else fields | {name: id}


def exec_lines(items: Sequence[Item], ids: str, starts: str, repeats: int) -> list[bytes]:
    types = {"message": "agent_message", "command": "command_execution"}
    begins: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for place, (kind, text, output) in enumerate(items):
        item = {"type": types.get(kind, kind)} | (
            {"command": text}
            if kind == "command"
            else {"query": text}
            if kind == "web_search"
            else {"text": text}
        )
        begin = {"type": "item.started", "item": named(item, "id", IDS[ids](place, "begin"))}
        done = item | ({"aggregated_output": output, "status": "completed"} if output else {})
        end = {"type": "item.completed", "item": named(done, "id", IDS[ids](place, "end"))}
        if kind == "command" and starts != "no starts":
            (begins if starts == "together" else lines).extend([begin] * repeats)
        (ends if starts == "together" else lines).extend([end] * repeats)
    return [json.dumps(line).encode() for line in (*begins, *lines, *ends)] + [exec_child.DONE]


def shown(log: Sequence[Event]) -> list[Item]:
    items = {event.item.id: event.item for event in log if isinstance(event, ItemStarted)}
    texts = dict.fromkeys(items, "")
    for event in log:
        if isinstance(event, TextDelta | ReasoningDelta | OutputDelta | ArgumentsDelta):
            texts[event.id] += event.text
    assert sorted(items) == sorted(event.id for event in log if isinstance(event, ItemEnded))
    found: list[Item] = []
    for id, item in items.items():
        if isinstance(item, Activity):
            found.append((item.kind, item.text, texts[id]))
        else:
            found.append(("message" if isinstance(item, Message) else "reasoning", texts[id], ""))
    return found


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("starts", ["each", "together", "no starts"])
@pytest.mark.parametrize("ids", IDS)
def test_each_item_of_codex_exec_comes_once_and_whole(ids: str, starts: str, repeats: int) -> None:
    if repeats > 1 and (ids != "own" or starts == "together"):
        return  # nobody can tell a repetition
    for items in ANSWERS:
        log = TurnRepair().feed(exec_child.events_of(exec_lines(items, ids, starts, repeats)))
        assert violations(log) == []
        expected = sorted(items) if starts == "together" else [*items]
        assert (sorted(shown(log)) if starts == "together" else shown(log)) == expected


def proto_line(type: str, **fields: Any) -> bytes:
    return json.dumps({"id": "1", "msg": {"type": type, **fields}}).encode()


PROTO_IDS: Final = IDS | {"renewed in each event": lambda place, line: f"item_{place}-{line}"}


@pytest.mark.parametrize("ids", PROTO_IDS)
def test_each_command_of_codex_proto_is_an_item_of_its_own(ids: str) -> None:
    lines = [proto_line("task_started")]
    for place, (_, text, output) in enumerate(items := (LIST, SHOW, LIST)):
        for line, fields in (
            ("begin", {"command": text}),
            ("output_delta", {"chunk": base64.b64encode(output.encode()).decode()}),
            ("end", {"exit_code": 0}),
        ):
            event = named(fields, "call_id", PROTO_IDS[ids](place, line))
            lines.append(proto_line(f"exec_command_{line}", **event))
    lines.append(proto_line("task_complete"))
    log = TurnRepair().feed(proto_child.events_of(lines))
    assert shown(log) == [*items]


def test_two_commands_of_codex_proto_that_run_at_once_under_one_id_both_come() -> None:
    lines = [proto_line("exec_command_begin", call_id="c", command=text) for text in ("ls a", "ls a", "ls b")]
    lines += [proto_line("exec_command_end", call_id="c", exit_code=code) for code in (0, 1, 0)]
    lines += [proto_line("exec_command_end", call_id="other", exit_code=1), proto_line("task_complete")]
    log = TurnRepair().feed(proto_child.events_of(lines))
    assert [text for _, text, _ in shown(log)] == ["ls a", "ls b"]
    assert [event.status for event in log if isinstance(event, ItemEnded)] == ["completed", "failed"]


CALLS: Final = (("get_weather", "Oslo"), ("get_weather", "Rome"), ("add", "Oslo"))
CALL_IDS: Final = {
    name: ids
    for name, ids in PROTO_IDS.items()
    if name in ("own", "shared", "empty", "missing", "renewed at the end")
}


@pytest.mark.parametrize("indexes", ["own", "all 0"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("ids", CALL_IDS)
def test_each_call_of_codex_proto_comes_once_with_an_id_of_its_own(
    ids: str, whole: bool, indexes: str
) -> None:
    if indexes != "own" and ids not in ("own", "renewed at the end"):
        return  # nothing tells the calls apart
    lines = []
    for place, (name, city) in enumerate(CALLS):
        said = json.dumps({"city": city})
        index = place if indexes == "own" else 0
        for line, piece in (("begin", said[:4]), ("more", said[4:])):
            function = {"arguments": piece} | ({"name": name} if line == "begin" else {})
            call = named({"index": index, "function": function}, "id", CALL_IDS[ids](place, line))
            lines.append(proto_line("tool_calls_delta", tool_calls=[call]))
        if whole:
            call = {"index": index, "function": {"name": name, "arguments": said}}
            told = named(call, "id", CALL_IDS[ids](place, "end"))
            lines.append(proto_line("agent_message", tool_calls=[told]))
    lines.append(proto_line("task_complete"))
    log = TurnRepair().feed(proto_child.events_of(lines))
    assert not any(isinstance(event, FullArguments) for event in log)
    calls = {event.item.id: event.item for event in log if isinstance(event, ItemStarted)}
    texts = dict.fromkeys(calls, "")
    for event in log:
        if isinstance(event, ArgumentsDelta):
            texts[event.id] += event.text
    found = [
        (item.name, json.loads(texts[id])["city"]) for id, item in calls.items() if isinstance(item, ToolCall)
    ]
    assert found == [*CALLS]
    own = [item.call_id for item in calls.values() if isinstance(item, ToolCall)]
    assert len(set(own)) == len(own)


def test_repeated_items_of_codex_exec_are_known_by_what_they_say() -> None:
    told = [exec_child.item("agent_message", "x", text=text) for text in ("One.", "One.", "Two.", "Two.")]
    reasoned = exec_child.item("reasoning", "x", text="Hm.")
    log = TurnRepair().feed(exec_child.events_of([reasoned, *told, exec_child.DONE]))
    assert [text for _, text, _ in shown(log)] == ["Hm.", "One.", "Two."]
    assert list(itertools.chain(*violations(log))) == []
