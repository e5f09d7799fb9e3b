"""What the APIs have in common in tools, their names and calls. Raises `Fault` INVALID_REQUEST."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryOutput, TextPart, Tool
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.tool_names import generated_name
from codex_proxy.core.turn import ToolChoice
from codex_proxy.surfaces.answers.renderer import json_text


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True):
    """The offered `tools`, and which may or must be called."""

    tools: tuple[Tool, ...]
    choice: ToolChoice = "auto"


def refuse_duplicates(tools: Sequence[Tool], fields: Sequence[str]) -> None:
    """Raises `Fault` for two tools of one name. `fields`: the paths of the names."""
    names: set[str] = set()
    for tool, field in zip(tools, fields, strict=True):
        if tool.name in names:
            raise bad_request(f"The tool name '{tool.name}' is given twice.", field)
        names.add(tool.name)


def with_grammar(description: str, syntax: str, definition: str) -> str:
    # Agents have no field for a grammar.
    words = f"The input must follow this {syntax} grammar:\n{definition}"
    return f"{description}\n\n{words}" if description else words


def known_tool(name: str, kind: str, tools: Sequence[Tool], param: str) -> str:
    """Returns a chosen tool's name. Raises `Fault` if `tools` have none of this name and kind."""
    if any(tool.name == name and tool.kind == kind for tool in tools):
        return name
    given = ", ".join(f"'{tool.name}'" for tool in tools if tool.kind == kind) or "none"
    raise bad_request(f"The request has no {kind} '{excerpt(name)}'; it has: {given}.", param)


MAX_CHARS: Final = 64
"""Maximum characters that providers accept; Anthropic accepts 128."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST: Final = 8


def model_name(name: str) -> str:
    """Returns the model's name of a client's tool, which depends on `name` alone: if too long or not allowed, cut, with
    a digest.
    """
    if _PLAIN_NAME.fullmatch(name):
        return name
    return generated_name(name, "", kept=MAX_CHARS - _DIGEST - 1, digits=_DIGEST)


def input_of(arguments: str) -> str | None:
    """Returns the arguments if they are a JSON object, else None."""
    text = arguments.strip() or "{}"
    try:
        return text.encode("utf-8").decode() if isinstance(msgspec.json.decode(text), dict) else None
    except UNREADABLE:
        return None


def whole_input(arguments: str, *, custom: bool, complete: bool) -> str | None:
    """Returns the arguments as a JSON object; if they are none, or a custom tool's, as a text in `input`. None for a
    call that was cut off.
    """
    found = None if custom else input_of(arguments)
    if not complete and (found is None or not arguments.strip()):
        return None
    return (b'{"input":%b}' % json_text(arguments)).decode() if found is None else found


class HistoryWithCalls:
    """Keeps a message's calls, their outputs and the items between them until `finish_calls`."""

    def __init__(self) -> None:
        self.items: list[HistoryItem] = []
        self.calls: dict[str, HistoryCall] = {}
        """The calls since the last `finish_calls`."""
        self.outputs: dict[str, HistoryOutput] = {}
        self._beside: list[HistoryItem] = []

    def add(self, item: HistoryItem) -> None:
        """Adds an item; one behind a call is kept until `finish_calls`."""
        (self._beside if self.calls else self.items).append(item)

    def add_call(self, call: HistoryCall) -> None:
        self.calls[call.call_id] = call
        self.items.append(call)

    @property
    def unanswered(self) -> list[HistoryCall]:
        return [call for call_id, call in self.calls.items() if call_id not in self.outputs]

    def finish_calls(self, missing: str = "") -> None:
        """Adds each call's output (else `missing`), then the items between them."""
        for call_id in self.calls:
            self.items.append(self.outputs.get(call_id) or HistoryOutput(call_id, (TextPart(missing),)))
        self.items += self._beside
        self.calls, self.outputs, self._beside = {}, {}, []
