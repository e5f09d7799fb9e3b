"""Converts answers to a form in which two can be compared: ids are numbers in their order, times 0, and the deltas of a
text one event. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.cassettes.format import Answer

TIMES: Final = frozenset(
    {
        *("created", "created_at", "completed_at", "cancelled_at", "failed_at", "expires_at"),
        *("time_to_first_token", "throughput_after_first_token"),
    }
)
IDS: Final = frozenset({"id", "response_id", "previous_response_id", "item_id", "call_id", "tool_use_id"})
OPAQUE: Final = frozenset({"signature", "encrypted_content"})
"""Random or encrypted fields, of which only the presence is compared."""
COUNTED: Final = frozenset({"sequence_number", "obfuscation"})
"""Fields that differ in each event, or depend on the number of deltas."""
TEXTS: Final = frozenset(
    {
        *("delta", "text", "content", "reasoning_content", "refusal", "arguments"),
        *("thinking", "partial_json", "response"),
    }
)
"""The fields with pieces of texts."""


def events_of(answer: Answer) -> list[Any]:
    """Returns an answer's status, its events or body, and a background response's final object."""
    said = [answer.body] if answer.sent is None else list(_join_deltas(answer.sent))
    final = [] if answer.final is None else [{"final": answer.final}]
    numbers: dict[str, str] = {}
    return [{"status": answer.status}, *(_comparable(each, numbers) for each in [*said, *final])]


def ids_of(answer: Answer) -> list[str]:
    numbers: dict[str, str] = {}
    _comparable([answer.body, answer.sent, answer.final], numbers)
    return list(numbers)


def diff(
    recorded: Sequence[Any], today: Sequence[Any], names: tuple[str, str] = ("recorded", "today")
) -> list[str]:
    """Returns the diff of two answers' events in lines; none if they are the same."""
    old, new = ([line for event in events for line in _lines(event)] for events in (recorded, today))
    return [line.rstrip("\n") for line in difflib.unified_diff(old, new, *names, lineterm="", n=1)]


def _lines(event: Any) -> list[str]:
    """Returns an event as one line, a large one as several."""
    text = msgspec.json.encode(event).decode()
    return [text] if len(text) <= 160 else msgspec.json.format(text, indent=1).split("\n")


def _comparable(value: Any, numbers: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _field(name, each, numbers) for name, each in value.items() if name not in COUNTED}
    if isinstance(value, list):
        return [_comparable(each, numbers) for each in value]
    return value


def _field(name: str, value: Any, numbers: dict[str, str]) -> Any:
    if (name in TIMES or name.endswith("_duration")) and isinstance(value, int | float | str) and value:
        return 0
    if name in OPAQUE and isinstance(value, str):
        return "..." if value else ""
    if name in IDS and isinstance(value, str) and value:
        kind = value.rpartition("_")[0] or value.partition("-")[0]
        return numbers.setdefault(value, f"{kind} {len(numbers) + 1}")
    return _comparable(value, numbers)


# --- deltas ---------------------------------------------------------------------------------------

Place = tuple[str | int, ...]
"""The names and indexes that lead to a value in an event."""


def _join_deltas(events: Sequence[Any]) -> Iterator[Any]:
    """Joins successive events that differ in one text alone."""
    rest: Any = None
    place: Place = ()
    pieces: list[str] = []
    for event in events:
        texts = list(_texts_in(event, ()))
        where, text = texts[0] if len(texts) == 1 else ((), "")
        without = _with_text(event, where, "") if where else None
        if where and pieces and where == place and without == rest:
            pieces.append(text)
            continue
        if pieces:
            yield _with_text(rest, place, "".join(pieces))
        rest, place, pieces = without, where, [text] if where else []
        if not where:
            yield event
    if pieces:
        yield _with_text(rest, place, "".join(pieces))


def _texts_in(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Yields the texts in an event that may be deltas, with their places."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, each in steps:
        if isinstance(each, str):
            if each and step in TEXTS:
                yield (*place, step), each
        else:
            yield from _texts_in(each, (*place, step))


def _with_text(value: Any, place: Place, text: str) -> Any:
    """Returns the event with another text at a place, without the fields that differ in each event."""
    if not place:
        return text
    copy: Any = (
        list(value) if isinstance(value, list) else {k: v for k, v in value.items() if k not in COUNTED}
    )
    copy[place[0]] = _with_text(value[place[0]], place[1:], text)
    return copy
