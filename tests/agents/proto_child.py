"""A `codex proto` child played to the dialect: its recordings, hand-written lines, and the resulting events."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from codex_proxy.agents.codex_proto.proto_dialect import CodexProto
from codex_proxy.agents.dialect import Dialect, Ended
from codex_proxy.core import events as ev
from codex_proxy.core.items import (
    HistoryCall,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Message,
    RawHistoryItem,
    TextPart,
)
from codex_proxy.core.turn import Turn
from tests.captures import child, names_of

ROOT = Path(__file__).parents[2]
FAKE = (sys.executable, "-m", "fake_proto")
PROMPT = HistoryMessage("user", (TextPart("go"),))
HISTORY = (
    HistoryMessage("developer", (TextPart("Be brief."),)),
    HistoryMessage("user", (TextPart("What is it?"), ImagePart("data:a"))),
    RawHistoryItem(b'{"type":"reasoning"}'),
    HistoryCall("call_1", "look", '{"x":1}'),
    HistoryOutput("call_1", (TextPart("a cat"), ImagePart("data:b"))),
    HistoryMessage("assistant", (TextPart("A cat."),)),
    HistoryMessage("user", (TextPart("Sure?"),)),
)


ALL = {name: child("proto", name) for name in names_of("proto")}


def begin_turn(turn: Turn | None = None, **options: bool) -> CodexProto:
    dialect = CodexProto(**options)
    dialect.begin(turn or Turn(model="m", history=(PROMPT,)))
    return dialect


def events_of(lines: Iterable[bytes], ended: Ended | None = None) -> list[ev.Event]:
    """Returns all events of one child, read line by line, its end included."""
    return events_to_end(begin_turn(), lines, ended)


def events_to_end(dialect: Dialect[bytes], lines: Iterable[bytes], ended: Ended | None) -> list[ev.Event]:
    events = [event for line in lines for event in dialect.receive([line]).events]
    return events + dialect.eof(ended or Ended(code=0)).events


def assert_well_formed(events: list[ev.Event]) -> None:
    """Asserts what the dialect guarantees by itself, before events are repaired."""
    live: set[str] = set()
    for position, event in enumerate(events):
        match event:
            case ev.TurnEnded():
                assert position == len(events) - 1
            case ev.ItemStarted(item):
                assert item.id not in live
                live.add(item.id)
            case ev.ItemEnded(item_id):
                live.remove(item_id)
            case ev.TextDelta() | ev.FullText() | ev.ReasoningDelta() | ev.FullReasoning():
                assert event.id in live
            case ev.ArgumentsDelta() | ev.FullArguments() | ev.OutputDelta():
                assert event.id in live
            case _:
                pass
    assert isinstance(events[-1], ev.TurnEnded)


def end_of(events: list[ev.Event]) -> ev.TurnEnded:
    (end,) = (event for event in events if isinstance(event, ev.TurnEnded))
    return end


def messages(events: list[ev.Event]) -> list[str]:
    """Returns the text of each message: its full text if that came, otherwise its deltas."""
    texts = {e.item.id: "" for e in events if isinstance(e, ev.ItemStarted) and isinstance(e.item, Message)}
    for event in events:
        if isinstance(event, ev.TextDelta):
            texts[event.id] += event.text
    full_texts = {event.id: event.text for event in events if isinstance(event, ev.FullText)}
    return list((texts | full_texts).values())


def event_line(kind: str, submission: str | None = "1", **fields: Any) -> bytes:
    return json.dumps({"id": submission, "msg": {"type": kind, **fields}}).encode()


def flat_line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode()
