"""Stored responses as the beginning of a session: their items become entries, and their settings those of the session's
agent. Nothing here does IO. Source: docs/agents-api.md#beside-openais-api.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    TextDelta,
)
from codex_proxy.core.items import Activity, Item, McpCall, Message, Reasoning, ToolCall
from codex_proxy.core.json_values import objects_in, text_at
from codex_proxy.parts.sessions.agents import AgentSettings
from codex_proxy.parts.sessions.forks import kept_entries
from codex_proxy.parts.sessions.sessions import (
    AgentItem,
    CallResult,
    Content,
    Entry,
    EntryItem,
    SessionTurn,
    UserMessage,
)
from codex_proxy.store.values import ChainTurn, StoredItem

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_INSTRUCTING: Final = ("system", "developer")
_TEXTS: Final = ("input_text", "output_text", "text")
_NOT_KEPT: Final = "[a part that a session does not take]"


def settings_of_response(response: Mapping[str, Any], items: Iterable[Mapping[str, Any]]) -> AgentSettings:
    """Returns the settings of a session that goes on with a response. `items`: those of its context, whose instructions
    are the session's, too. MCP servers are left out, for a response does not keep what they are called with.
    """
    said = [_text_of(item) for item in items if item.get("role") in _INSTRUCTING]
    instructions = "\n\n".join(filter(None, [text_at(response, "instructions"), *said]))
    return AgentSettings(
        model=text_at(response, "model"),
        instructions=instructions or None,
        tools=tuple(filter(None, map(_tool, objects_in(response.get("tools"))))),
        effort=text_at(response, "reasoning", "effort") or None,
        summary=text_at(response, "reasoning", "summary") or None,
        verbosity=text_at(response, "text", "verbosity") or None,
    )


def _tool(given: Mapping[str, Any]) -> dict[str, Any] | None:
    if text_at(given, "type") == "function":
        found = {"type": "function", "name": text_at(given, "name")}
        return {
            **found,
            "description": text_at(given, "description"),
            "parameters": given.get("parameters") or {"type": "object", "properties": {}},
        }
    return {"type": "web_search"} if text_at(given, "type").startswith("web_search") else None


class Converted(NamedTuple):
    """A chain of responses as turns, their items as clients see them, and the entries made of these."""

    turns: list[ChainTurn]
    items: list[dict[str, Any]]
    entries: list[Entry]


def convert(chain: Iterable[ChainTurn]) -> Converted:
    """Converts a chain, oldest first. Calls without results are left out."""
    found = Converted(_turns_in(chain), [], [])
    for turn in found.turns:
        items = _items_in(turn)
        found.items.extend(items)
        found.entries.extend(_entries_of(turn.response_id, items))
    return found._replace(entries=kept_entries(found.entries, ""))


def _turns_in(chain: Iterable[ChainTurn]) -> list[ChainTurn]:
    """Returns a chain of responses as turns: one with the result of an earlier call goes on with the turn of it."""
    turns: list[ChainTurn] = []
    for each in chain:
        if turns and _has_earlier_result(each):
            before = turns.pop()
            input = (*before.input, *before.output, *each.input)
            turns.append(ChainTurn(before.response_id, input, each.output))
        else:
            turns.append(each)
    return turns


def _has_earlier_result(turn: ChainTurn) -> bool:
    """Whether a response has a result of a call that is not its own: the client may send it behind a message."""
    calls, results = set[str](), set[str]()
    for item in _items_in(turn):
        kind = text_at(item, "type")
        if kind.endswith("_call"):
            calls.add(text_at(item, "call_id"))
        elif kind.endswith("_output"):
            results.add(text_at(item, "call_id"))
    return not results <= calls


def _items_in(turn: ChainTurn) -> list[dict[str, Any]]:
    """Returns the items of a response that clients see, in their order."""
    return [_decode(item.json) for item in (*turn.input, *turn.output) if item.visible]


def turn_of_response(turn: ChainTurn, agent_id: str, now: int) -> SessionTurn:
    """Returns a response as a turn that has ended. `now`: seconds since 1970, if none of its items has a time."""
    items: tuple[StoredItem, ...] = (*turn.input, *turn.output)
    time = int(max((item.created for item in items), default=0)) or now
    return SessionTurn(
        id=turn.response_id,
        session="",
        agent_id=agent_id,
        created_at=time,
        started_at=time,
        completed_at=time,
        status="completed",
    )


def _entries_of(turn: str, items: Sequence[Mapping[str, Any]]) -> Iterator[Entry]:
    """Yields the entries of a turn with these items of the Responses API; what a session cannot have is left out."""
    for number, item in enumerate(items):
        kind, id = text_at(item, "type") or "message", f"{number}_{text_at(item, 'id')}"
        convert = _CONVERSIONS.get(kind)
        entry = None if convert is None else convert(item, id)
        if entry is not None:
            yield Entry(id, turn, entry)


def _message(item: Mapping[str, Any], id: str) -> EntryItem | None:
    if item.get("role") == "assistant":
        phase = text_at(item, "phase") or None
        return _item(Message(id, phase=phase), TextDelta(id, _text_of(item)))
    content = _content(item.get("content"))
    return UserMessage(content) if item.get("role") == "user" and content else None


def _content(parts: object) -> Content:
    given = [{"type": "input_text", "text": parts}] if isinstance(parts, str) else objects_in(parts)
    found: list[dict[str, Any]] = []
    for part in given:
        url = text_at(part, "image_url")
        if url:
            found.append({"type": "input_image", "image_url": url})
        else:
            instead = "" if text_at(part, "type") in _TEXTS else _NOT_KEPT
            found.append({"type": "input_text", "text": text_at(part, "text") or instead})
    return tuple(found)


def _text_of(item: Mapping[str, Any]) -> str:
    parts = item.get("content")
    if isinstance(parts, str):
        return parts
    return "".join(text_at(part, "text") or text_at(part, "refusal") for part in objects_in(parts))


def _reasoning(item: Mapping[str, Any], id: str) -> EntryItem | None:
    texts = [text_at(part, "text") for part in objects_in(item.get("summary"))]
    deltas = [ReasoningDelta(id, text, place) for place, text in enumerate(texts)]
    return _item(Reasoning(id), *deltas) if deltas else None


def _call(item: Mapping[str, Any], id: str) -> EntryItem:
    call = ToolCall(id, text_at(item, "call_id"), text_at(item, "name"))
    return _item(call, ArgumentsDelta(id, text_at(item, "arguments")))


def _result(item: Mapping[str, Any], _: str) -> EntryItem:
    output = item.get("output")
    return CallResult(text_at(item, "call_id"), True, output if isinstance(output, str) else _content(output))


def _mcp_call(item: Mapping[str, Any], id: str) -> EntryItem:
    call = McpCall(id, id, text_at(item, "server_label"), text_at(item, "name"))
    error = text_at(item, "error")
    texts = ArgumentsDelta(id, text_at(item, "arguments")), OutputDelta(id, error or text_at(item, "output"))
    return _item(call, *texts, failed=bool(error))


def _web_search(item: Mapping[str, Any], id: str) -> EntryItem:
    return _item(Activity(id, "web_search", text_at(item, "action", "query")))


def _item(item: Item, *pieces: Event, failed: bool = False) -> AgentItem:
    end = ItemEnded(item.id, "failed" if failed else "completed")
    return AgentItem.of([ItemStarted(item), *pieces, end])


_CONVERSIONS: Final[Mapping[str, Callable[[Mapping[str, Any], str], EntryItem | None]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _call,
    "function_call_output": _result,
    "mcp_call": _mcp_call,
    "web_search_call": _web_search,
}
