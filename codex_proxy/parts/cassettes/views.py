"""Shows a cassette as a conversation, or converts it to a scenario of the fake agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from codex_proxy.core.events import (
    ItemTexts,
    RefusalDelta,
    StepCompleted,
    ToolCallRequested,
    TurnEnded,
    UsageReported,
)
from codex_proxy.core.items import Activity, Item, Message, Reasoning, ToolCall
from codex_proxy.core.repair import TurnRepair
from codex_proxy.parts.cassettes.format import Cassette
from codex_proxy.parts.cassettes.player import events_in


class ShownItem(msgspec.Struct):
    kind: str
    """`message`, `refusal`, `reasoning`, `call` or `activity`."""
    name: str = ""
    """A tool's name, or an activity's kind and text."""
    pieces: list[str] = []
    output: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class TurnOutput(msgspec.Struct, frozen=True):
    items: list[ShownItem]
    usage: dict[str, int] | None
    end: TurnEnded | None


def turn_output(cassette: Cassette) -> TurnOutput:
    """Returns the output of a turn."""
    events = TurnRepair().feed(events_in(cassette.lines))
    said = ItemTexts()
    said.add(events)
    refusals = {event.id for event in events if isinstance(event, RefusalDelta)}
    items = list[ShownItem]()
    for id, item in said.items.items():
        kind, name = _kind_and_name(item)
        items.append(
            ShownItem("refusal" if id in refusals else kind, name, said.pieces.get(id, []), said.output(id))
        )
    if all(item.kind != "call" for item in items):
        requested = {event.call_id: event for event in events if isinstance(event, ToolCallRequested)}
        items += [ShownItem("call", each.name, [each.arguments]) for each in requested.values()]
    reports = [event.usage for event in events if isinstance(event, UsageReported | StepCompleted)]
    usage = next((each for each in reversed(reports) if each is not None), None)
    end = next((event for event in events if isinstance(event, TurnEnded)), None)
    return TurnOutput(items, None if usage is None else msgspec.structs.asdict(usage), end)


def _kind_and_name(item: Item) -> tuple[str, str]:
    match item:
        case Message():
            return "message", ""
        case Reasoning():
            return "reasoning", ""
        case ToolCall():
            return "call", item.name
        case Activity():
            return "activity", f"{item.kind}: {item.text}"
    return "activity", ""


# --- as a conversation ----------------------------------------------------------------------------


def as_conversation(cassette: Cassette) -> str:
    """Returns a cassette as a text for people: who said what."""
    lines = [
        f"{cassette.name}: {cassette.agent} {cassette.version}".rstrip(),
        f"{cassette.request.line}, {cassette.content['mode']}, answered with {cassette.answer.status}",
    ]
    if cassette.after:
        lines.append(f"continues {cassette.after} (turn {cassette.order} of its session)")
    tools = [tool["name"] for tool in cassette.content["tools"]]
    if tools:
        lines.append(f"tools: {', '.join(tools)}")
    for message in cassette.content["messages"]:
        lines += ["", *_message_lines(message)]
    for call in cassette.calls:
        lines += ["", f"[MCP call] {call['tool']}({call['arguments']})", call["output"]["text"]]
    answer = turn_output(cassette)
    for item in answer.items:
        lines += ["", *_item_lines(item)]
    if cassette.file_lines:
        lines += ["", "[files]", *(each.shown for each in cassette.file_lines)]
    lines += ["", *_end_lines(answer)]
    return "\n".join(lines)


def _message_lines(message: dict[str, Any]) -> Iterator[str]:
    if "role" in message:
        yield f"[{message['role']}]"
        yield message["text"]
        yield from (f"(image {each[:60]})" for each in message.get("images", ()))
    elif "call" in message:
        yield f"[call {message['call']}] {message['tool']}({json.dumps(message['arguments'])})"
    else:
        yield f"[output {message['output']}]"
        yield message["text"]


def _item_lines(item: ShownItem) -> Iterator[str]:
    if item.kind == "call":
        yield f"[calls] {item.name}({item.text})"
        return
    yield f"[{'assistant' if item.kind == 'message' else item.kind}] {item.name}".rstrip()
    if item.text or item.output:
        yield item.text or item.output


def _end_lines(answer: TurnOutput) -> Iterator[str]:
    if answer.usage is not None:
        yield ", ".join(f"{value} {name}" for name, value in answer.usage.items()) + " tokens"
    if answer.end is not None and answer.end.failure is not None:
        yield f"failed: {answer.end.failure.message}"
    elif answer.end is not None:
        yield f"ended: {answer.end.stop}"


# --- as a scenario --------------------------------------------------------------------------------


def scenario(chain: Sequence[Cassette]) -> str:
    """Returns a scenario of the fake agent with a step for each of these cassettes."""
    steps = [_step(turn_output(cassette)) for cassette in chain]
    last = chain[-1]
    text = {"about": f"Recorded from {last.agent} {last.version}".rstrip() + ".", "steps": steps}
    return json.dumps(text, indent=1, ensure_ascii=False)


def _step(answer: TurnOutput) -> dict[str, Any]:
    actions: list[dict[str, Any]] = []
    calls = []
    for item in answer.items:
        if item.kind == "message" and item.text:
            actions.append({"do": "message", "deltas": item.pieces})
        elif item.kind == "reasoning" and item.text:
            actions.append({"do": "reasoning", "parts": [item.pieces]})
        elif item.kind == "call":
            calls.append({"name": item.name, "arguments": item.pieces})
        elif item.kind == "activity" and item.name.startswith("command: "):
            command = item.name.removeprefix("command: ")
            actions.append({"do": "command", "command": command, "output": [item.output], "exit_code": 0})
    if calls:
        actions.append({"do": "calls", "calls": calls})
    step: dict[str, Any] = {"actions": actions}
    if calls:
        step["end"] = "tool_calls"
    if answer.usage is not None:
        step["usage"] = {name: answer.usage[name] for name in ("input", "cached", "output", "reasoning")}
    return step
