"""Converts answers to a form in which two can be compared: ids are numbers in their order, times 0, and the deltas of a
text one event. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codex_proxy.parts.cassettes.format import Answer
from codex_proxy.parts.cassettes.pieces import group_similar_lines

TIMES: Final = frozenset(
    {
        *("created", "created_at", "completed_at", "cancelled_at", "failed_at", "expires_at"),
        *("time_to_first_token", "throughput_after_first_token"),
    }
)
IDS: Final = frozenset({"id", "response_id", "previous_response_id", "item_id", "call_id", "tool_use_id"})
OPAQUE_FIELDS: Final = frozenset({"signature", "encrypted_content"})
"""Random or encrypted fields, of which only the presence is compared."""
COUNTED_FIELDS: Final = frozenset({"sequence_number", "obfuscation"})
"""Fields that differ in each event, or depend on the number of deltas."""


def events_of(answer: Answer) -> list[bytes]:
    """Returns the JSON of an answer's status, its events or body, and a background response's final object."""
    numbers: dict[str, str] = {}
    said = [answer.body] if answer.sent is None else answer.sent
    final = [] if answer.final is None else [{"final": answer.final}]
    events = [_comparable(each, numbers) for each in ({"status": answer.status}, *said, *final)]
    groups = group_similar_lines(msgspec.json.encode({"sent": each}) for each in events)
    return [group.with_text(group.text()).removeprefix(b'{"sent":').removesuffix(b"}") for group in groups]


def ids_of(answer: Answer) -> list[str]:
    numbers: dict[str, str] = {}
    _comparable([answer.body, answer.sent, answer.final], numbers)
    return list(numbers)


def diff(
    recorded: Sequence[bytes], today: Sequence[bytes], names: tuple[str, str] = ("recorded", "today")
) -> list[str]:
    """Returns the diff of two answers' events in lines; none if they are the same."""
    old, new = ([line for event in events for line in _lines(event)] for events in (recorded, today))
    return [line.rstrip("\n") for line in difflib.unified_diff(old, new, *names, lineterm="", n=1)]


def _lines(event: bytes) -> list[str]:
    text = event.decode()
    return [text] if len(text) <= 160 else msgspec.json.format(text, indent=1).split("\n")


def _comparable(value: Any, numbers: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            name: _field(name, each, numbers) for name, each in value.items() if name not in COUNTED_FIELDS
        }
    if isinstance(value, list):
        return [_comparable(each, numbers) for each in value]
    return value


def _field(name: str, value: Any, numbers: dict[str, str]) -> Any:
    if (name in TIMES or name.endswith("_duration")) and isinstance(value, int | float | str) and value:
        return 0
    if name in OPAQUE_FIELDS and isinstance(value, str):
        return "..." if value else ""
    if name in IDS and isinstance(value, str) and value:
        kind = value.rpartition("_")[0] or value.partition("-")[0]
        return numbers.setdefault(value, f"{kind} {len(numbers) + 1}")
    return _comparable(value, numbers)
