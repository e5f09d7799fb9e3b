"""`codex proto` shares ids between items, gives them again, renames items at their end, or leaves ids out: each item
comes once, with its own text.
"""

from __future__ import annotations

import base64
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
from tests.agents import proto_child

Item = tuple[str, str, str]
"""The kind of an item, what it says or runs, and its output."""
LIST: Final[Item] = ("command", "ls", "a.txt")
SHOW: Final[Item] = ("command", "cat a.txt", "text")
IDS: Final[dict[str, Callable[[int, str], str | None]]] = {
    "own": lambda place, line: f"item_{place}",
    "shared": lambda place, line: "item",
    "renewed at the end": lambda place, line: f"item_{place}{line}",
    "empty": lambda place, line: "",
    "missing": lambda place, line: None,
}


def named(fields: dict[str, Any], name: str, id: str | None) -> dict[str, Any]:
    return fields if id is None else fields | {name: id}


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
