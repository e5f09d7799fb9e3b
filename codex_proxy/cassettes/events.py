"""What an answer says, in a form in which two of the same can be compared. Pure.

Ids become the number in which they come, times 0, and the deltas of a text one event, since an agent's lines may be
read in other pieces.
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
OPAQUE: Final = frozenset({"signature", "encrypted_content", "obfuscation"})
"""Fields that are made at random, or sealed: only whether they are there is compared."""


def events_of(answer: Answer) -> list[Any]:
    """Returns the status of an answer, then its events, or its body, then the final object of a background response."""
    said = [answer.body] if answer.sent is None else list(_joined(answer.sent))
    final = [] if answer.final is None else [{"final": answer.final}]
    numbers: dict[str, str] = {}
    return [{"status": answer.status}, *(_comparable(each, numbers) for each in [*said, *final])]


def diff(
    recorded: Sequence[Any], today: Sequence[Any], names: tuple[str, str] = ("recorded", "today")
) -> list[str]:
    """Returns the lines of a diff of events; none if they are the same."""
    old, new = ([line for event in events for line in _lines(event)] for events in (recorded, today))
    return [line.rstrip("\n") for line in difflib.unified_diff(old, new, *names, lineterm="", n=1)]


def _lines(event: Any) -> list[str]:
    """Returns an event as one line, or a large one as several."""
    text = msgspec.json.encode(event).decode()
    return [text] if len(text) <= 160 else msgspec.json.format(text, indent=1).split("\n")


def _comparable(value: Any, numbers: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            name: _field(name, each, numbers) for name, each in value.items() if name != "sequence_number"
        }
    if isinstance(value, list):
        return [_comparable(each, numbers) for each in value]
    return value


def _field(name: str, value: Any, numbers: dict[str, str]) -> Any:
    if name in TIMES and isinstance(value, int | float) and not isinstance(value, bool):
        return 0
    if name in OPAQUE and isinstance(value, str):
        return "..." if value else ""
    if name in IDS and isinstance(value, str) and value:
        kind = value.rpartition("_")[0] or value.partition("-")[0]
        return numbers.setdefault(value, f"{kind} {len(numbers) + 1}")
    return _comparable(value, numbers)


# --- deltas ---------------------------------------------------------------------------------------


def _joined(events: Sequence[Any]) -> Iterator[Any]:
    """Returns the events with deltas of the same text joined to one."""
    held: tuple[Any, list[str], list[str]] | None = None
    for event in events:
        path = _text_in(event)
        rest = None if path is None else _without(event, path)
        if held is not None and path == held[1] and rest == held[0]:
            held[2].append(_at(event, path))
            continue
        if held is not None:
            yield _with(held[0], held[1], "".join(held[2]))
        if path is None:
            held = None
            yield event
        else:
            held = (rest, path, [_at(event, path)])
    if held is not None:
        yield _with(held[0], held[1], "".join(held[2]))


def _text_in(event: Any) -> list[Any] | None:
    """Returns where an event has a piece of text and nothing else that is new; None if it is no such event."""
    if not isinstance(event, dict):
        return None
    if str(event.get("type", "")).endswith(".delta") and isinstance(event.get("delta"), str):
        return ["delta"]
    if event.get("type") == "content_block_delta":
        delta = event.get("delta", {})
        return next((["delta", key] for key in ("text", "partial_json", "thinking") if key in delta), None)
    choices = event.get("choices")
    if not (isinstance(choices, list) and len(choices) == 1 and len(choices[0].get("delta", {})) == 1):
        return None
    ((key, value),) = choices[0]["delta"].items()
    where: list[Any] = ["choices", 0, "delta", key]
    if isinstance(value, str) and key in ("content", "reasoning_content", "refusal"):
        return where
    if (
        key == "tool_calls"
        and len(value) == 1
        and "id" not in value[0]
        and "arguments" in value[0].get("function", {})
    ):
        return [*where, 0, "function", "arguments"]
    return None


def _at(value: Any, path: Sequence[Any]) -> Any:
    for step in path:
        value = value[step]
    return value


def _with(value: Any, path: Sequence[Any], text: str) -> Any:
    if not path:
        return text
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _with(value[path[0]], path[1:], text)
    return copy


def _without(event: Any, path: Sequence[Any]) -> Any:
    rest = _with(event, path, "")
    return {name: value for name, value in rest.items() if name not in ("sequence_number", "obfuscation")}
