"""Converts items to history. System messages become the developer's; an output moves to its call; a repeated call is
left out. Raises `Fault` INVALID_REQUEST for missing calls or outputs, and unsupported items. Sources:
docs/contract.md#message-validation, docs/contract.md#outputs-without-their-call.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    Role,
    TextPart,
    code_call,
)
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.responses import mcp
from codex_proxy.surfaces.responses.client_tools import as_function_item, name_of
from codex_proxy.surfaces.responses.items import ItemDict
from codex_proxy.surfaces.responses.mcp import McpHistory
from codex_proxy.surfaces.responses.output import ACTIVITY_TYPE

_MARK: Final = "codex-proxy-summary-1."


def encode_summary(summary: str) -> str:
    """Returns a summary as `encrypted_content`: encoded, not encrypted."""
    return _MARK + base64.urlsafe_b64encode(summary.encode("utf-8", "replace")).decode()


def decode_summary(content: str) -> str | None:
    """Decodes a summary that `encode_summary` has encoded. None: the `encrypted_content` is another server's."""
    if not content.startswith(_MARK):
        return None
    try:
        return base64.b64decode(content[len(_MARK) :], b"-_", validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None


SUMMARY_WORDS: Final = "What was said before, in a summary:\n"
_APPROVED: Final = "The user has approved this call. It has yet to be made."
_ROLES: Final[dict[str, Role]] = {"user": "user", "assistant": "assistant"}
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
_type_of = itemgetter("type")
_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input"}


class HistoryEntry(NamedTuple):
    """A history item, with its input item's index."""

    item_index: int
    part: HistoryItem


def history_entries(items: Sequence[ItemDict], *, earlier: int = 0) -> list[HistoryEntry]:
    """Returns the history, each item with its index. The first `earlier` items are stored. Faults name `input[N]` of
    the request, or `input`.
    """
    items = [item if item.get("call_id") is None else as_function_item(item) for item in items]
    reader = _Reader(items, earlier)
    for index, item in enumerate(items):
        reader.read(item, index)
    reader.finish_calls()
    return reader.entries


def history_of(items: Sequence[ItemDict], *, earlier: int = 0) -> tuple[HistoryItem, ...]:
    """Returns `history_entries` without indexes."""
    return tuple(entry.part for entry in history_entries(items, earlier=earlier))


def orphaned_outputs(items: Sequence[ItemDict]) -> frozenset[int]:
    """Returns the indexes of outputs whose calls are nowhere, and that do not say what was called."""
    items = [item if item.get("call_id") is None else as_function_item(item) for item in items]
    calls = {item["call_id"] for item in items if item["type"] in _CALLS or _has_call(item)}
    return frozenset(
        index for index, item in enumerate(items) if item["type"] in _OUTPUTS and item["call_id"] not in calls
    )


def _has_call(item: ItemDict) -> bool:
    return item["type"] in _OUTPUTS and item.get("name") is not None and item.get("arguments") is not None


class _Reader:
    def __init__(self, items: Sequence[ItemDict], earlier: int) -> None:
        self.entries: list[HistoryEntry] = []
        self._earlier = earlier
        self._announced = {item["call_id"] for item in items if item["type"] in _CALLS}
        self._mcp: McpHistory | None = None
        """Reads the items of MCP, if there are any."""
        if not mcp.KINDS.isdisjoint(map(_type_of, items)):
            self._mcp = McpHistory(items, earlier, self._announced)
        self._calls: dict[str, HistoryCall] = {}
        self._waiting: dict[str, ItemDict] = {}
        """Outputs that came before their calls."""
        self._answered: set[str] = set()
        self._cut: set[str] = set()
        """Calls cut off while the model wrote them, without outputs."""
        self._seen: set[str] = set()
        self._kind = ""
        """The last item's type."""

    def read(self, item: ItemDict, index: int) -> None:
        kind, before = item["type"], self._kind
        self._kind = kind
        if kind == "compaction" and before == "compaction_trigger":
            self.entries = [entry for entry in self.entries if outlasts_compaction(entry.part)]
        if kind in _CALLS:
            self._add_call(item, index)
        elif kind in _OUTPUTS:
            self._add_output(item, index)
        elif self._mcp is not None and kind in mcp.KINDS:
            self._add(index, *self._mcp.convert(item, index))
        elif kind in _CONVERSIONS:
            self._add(index, *_CONVERSIONS[kind](item, self._seen))
        else:
            raise bad_request(f"The agent does not accept items of type '{kind}'.", self._place(index))

    def finish_calls(self) -> None:
        """Leaves out calls that were cut off, and answers approvals. Raises `Fault` for other calls without output."""
        if not self._calls and self._mcp is None:
            return
        unanswered = [call for call in self._calls.values() if call.call_id not in self._answered]
        for call in unanswered:
            if call.call_id not in self._cut:
                raise bad_request(f"No tool output found for function call {call.call_id}.", "input")
        dropped = {id(call) for call in unanswered}
        outputs: dict[int, HistoryOutput] = {}
        if self._mcp is not None:
            outputs = {id(call): output for call, output in self._mcp.unanswered_requests()}
        if dropped or outputs:
            self.entries = list(_complete_calls(self.entries, dropped, outputs))

    def _add(self, index: int, *parts: HistoryItem) -> None:
        for part in parts:
            self.entries.append(HistoryEntry(index, part))

    def _place(self, index: int) -> str:
        return "input" if index < self._earlier else f"input[{index - self._earlier}]"

    def _add_call(self, item: ItemDict, index: int) -> None:
        call = _past_call(item)
        known = self._calls.get(call.call_id)
        if known is None:
            self._calls[call.call_id] = call
            self._add(index, call)
            if item.get("status") == "incomplete":
                self._cut.add(call.call_id)
            if call.call_id in self._waiting:
                self._join_output(self._waiting.pop(call.call_id), index)
        elif known.name != call.name or known.canonical_arguments != call.canonical_arguments:
            raise bad_request(
                f"Two different calls have the call_id '{call.call_id}'.", f"{self._place(index)}.call_id"
            )

    def _add_output(self, item: ItemDict, index: int) -> None:
        call_id = item["call_id"]
        if call_id in self._answered or call_id in self._waiting:
            return
        if call_id not in self._announced:
            self._add_missing_call(item, index)
        if call_id in self._calls:
            self._join_output(item, index)
        else:
            self._waiting[call_id] = item

    def _add_missing_call(self, item: ItemDict, index: int) -> None:
        call_id = item["call_id"]
        if not _has_call(item):
            message = f"No tool call found for function call output with call_id {call_id}."
            raise bad_request(message, f"{self._place(index)}.call_id")
        kind = "custom" if item["type"].startswith("custom") else "function"
        self._announced.add(call_id)
        self._calls[call_id] = HistoryCall(call_id, item["name"], item["arguments"], kind)  # type: ignore[arg-type]
        self._add(index, self._calls[call_id])

    def _join_output(self, item: ItemDict, index: int) -> None:
        call = self._calls[item["call_id"]]
        self._answered.add(call.call_id)
        self._add(index, HistoryOutput(call.call_id, _output_parts(item["output"]), call.kind))


def _complete_calls(
    entries: Iterable[HistoryEntry], dropped: Collection[int], outputs: Mapping[int, HistoryOutput]
) -> Iterator[HistoryEntry]:
    """Yields entries without the `dropped` calls, with the `outputs` behind their calls (by `id()`)."""
    held: list[HistoryEntry] = []
    for each in entries:
        if held and not isinstance(each.part, HistoryCall | HistoryOutput):
            yield from held
            held = []
        if id(each.part) not in dropped:
            yield each
        if id(each.part) in outputs:
            held.append(HistoryEntry(each.item_index, outputs[id(each.part)]))
    yield from held


def _past_call(item: ItemDict) -> HistoryCall:
    field = _CALLS[item["type"]]
    id = item.get("id") or ""
    return HistoryCall(
        item["call_id"],
        name_of(item.get("namespace"), item["name"]),
        item[field],
        "custom" if field == "input" else "function",
        id if id.startswith(("fc_", "ctc_")) else None,
    )


def _output_parts(output: Any) -> tuple[Part, ...]:
    if isinstance(output, str):
        return (TextPart(output),)
    return tuple(_part(part) for part in output)


def _part(part: ItemDict) -> Part:
    if part["type"] == "input_image":
        return ImagePart(part["image_url"], part.get("detail"))
    return TextPart(part["refusal"] if part["type"] == "refusal" else part["text"])


# --- items that stand alone ---------------------------------------------------------------------


def _message(item: ItemDict, seen: set[str]) -> list[HistoryItem]:
    role = _ROLES.get(item["role"], "developer")
    parts = tuple([_part(part) for part in item["content"]])
    if role == "assistant":
        parts = tuple(part for part in parts if not (isinstance(part, TextPart) and not part.text))
    if not parts:
        return []
    id = item.get("id") or ""
    # Providers take ids of their own form only, and need none of what people said.
    own = id if role == "assistant" and id.startswith("msg_") else None
    return [HistoryMessage(role, parts, item.get("phase"), own)]


def _sub_agent_message(item: ItemDict, seen: set[str]) -> list[HistoryItem]:
    texts = [part.get("text") or part.get("encrypted_content") or "" for part in item["content"]]
    return [HistoryMessage("user", (TextPart("".join(texts)),))]


def _reasoning(item: ItemDict, seen: set[str]) -> list[HistoryItem]:
    id = item.get("id") or ""
    if not item.get("encrypted_content") or (id and id in seen):
        return []
    seen.add(id)
    fields = ("summary", "content", "encrypted_content")
    raw = {"type": "reasoning"} | ({"id": id} if id.startswith("rs_") else {})
    return _raw(raw | {field: item[field] for field in fields if field in item})


def _compaction(item: ItemDict, seen: set[str]) -> list[HistoryItem]:
    summary = decode_summary(item["encrypted_content"])
    if summary is None:
        return _raw({"type": "compaction", "encrypted_content": item["encrypted_content"]})
    return [HistoryMessage("developer", (TextPart(SUMMARY_WORDS + summary),))]


def note_unrun_call(item: HistoryItem) -> HistoryItem:
    """Returns the item; the empty output of an approved MCP call is replaced by one that says that the call was not
    run.
    """
    if isinstance(item, HistoryOutput) and item.approved_by is not None:
        return HistoryOutput(item.call_id, (TextPart(_APPROVED),))
    return item


def outlasts_compaction(item: HistoryItem) -> bool:
    """Whether an item stays in the history behind the compaction of all before it: instructions do, earlier summaries
    do not.
    """
    if not isinstance(item, HistoryMessage) or item.role != "developer":
        return False
    return not (isinstance(item.parts[0], TextPart) and item.parts[0].text.startswith(SUMMARY_WORDS))


def _unchanged_item(item: ItemDict, seen: set[str]) -> list[HistoryItem]:
    return _raw(item)


def _code_call(item: ItemDict, seen: set[str]) -> list[HistoryItem]:
    """Converts a call of `code_interpreter`: without a container, which model servers want, as one of a function."""
    if item.get("container_id"):
        return _raw(item)
    return code_call(item)


def _image_call(item: ItemDict, seen: set[str]) -> list[HistoryItem]:
    # Without its image it would name one that the account at the model server has.
    return _raw(item) if item.get("result") else []


def _nothing(item: ItemDict, seen: set[str]) -> list[HistoryItem]:
    return []


def _raw(item: ItemDict) -> list[HistoryItem]:
    return [RawHistoryItem(json_bytes(item))]


_CONVERSIONS: Final[dict[str, Callable[[ItemDict, set[str]], list[HistoryItem]]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "compaction": _compaction,
    "compaction_trigger": _nothing,
    "configuration_update": _nothing,
    ACTIVITY_TYPE: _nothing,
    "additional_tools": _nothing,
    "agent_message": _sub_agent_message,
    "tool_search_call": _nothing,
    "tool_search_output": _nothing,
    "web_search_call": _unchanged_item,
    "code_interpreter_call": _code_call,
    "file_search_call": _unchanged_item,
    "image_generation_call": _image_call,
    "local_shell_call": _unchanged_item,
}
STAND_ALONE: Final = frozenset(_CONVERSIONS)
"""Types of items whose conversion does not depend on other items."""
