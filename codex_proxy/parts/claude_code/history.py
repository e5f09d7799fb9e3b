"""Converts a history to the system prompt and lines for Claude Code. User and assistant alternate, as Anthropic's API
requires: outputs are in the line after the call's, and the user's is last. Only Claude Code's own reasoning
(`ThinkingBlock`) is kept.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from codex_proxy.agents.shared.conversions import image_data, items_of, message_for_agent
from codex_proxy.core.events import RawItem
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    texts_of,
)
from codex_proxy.core.json_values import UNREADABLE, encode_json
from codex_proxy.parts.claude_code.calls import call_input, model_name
from codex_proxy.parts.claude_code.messages import assistant_line, user_line

Block = dict[str, Any]

NO_OUTPUT: Final = "No output: the call was cut off before it was answered."
"""The output of a call without one, which the provider refuses."""
CONTINUE: Final = "Continue."
BEGIN: Final = "(The conversation begins with your message.)"
LATER_INSTRUCTIONS: Final = "<developer_message>\n{}\n</developer_message>"
"""The user's text that replaces instructions in the middle of a conversation."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]+")


_THINKING_PREFIX: Final = "claude-thinking:"
"""The prefix of `encrypted_content` in reasoning items with a thinking block."""


class ThinkingBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """A thinking block of Anthropic's API, which it accepts only for the `model` that wrote it, and with its
    `signature`.
    """

    model: str
    thinking: str = ""
    signature: str = ""
    data: str = ""
    """The only content of a `redacted_thinking` block."""

    @property
    def block(self) -> Block:
        if self.data:
            return {"type": "redacted_thinking", "data": self.data}
        return {"type": "thinking", "thinking": self.thinking, "signature": self.signature}

    def raw_item(self) -> RawItem:
        """Returns the block as a reasoning item, which `thinking_block_in` reads."""
        sealed = _THINKING_PREFIX + base64.b64encode(encode_json(self)).decode()
        item = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
        return RawItem("reasoning", msgspec.json.encode(item))


class _RawThinking(msgspec.Struct, frozen=True):
    encrypted_content: str | None = None


def thinking_block_in(raw: bytes) -> ThinkingBlock | None:
    try:
        item = msgspec.json.decode(raw, type=_RawThinking)
        sealed = item.encrypted_content or ""
        if not sealed.startswith(_THINKING_PREFIX):
            return None
        return msgspec.json.decode(
            base64.b64decode(sealed.removeprefix(_THINKING_PREFIX), validate=True), type=ThinkingBlock
        )
    except UNREADABLE:
        return None


class Line(msgspec.Struct):
    """Successive messages of the user or the assistant."""

    role: Literal["user", "assistant"]
    blocks: list[Block]
    model: str = ""
    outputs: list[Block] = []
    """Outputs of calls, which come before what the user says."""


class Conversation(msgspec.Struct, frozen=True):
    system: str
    lines: tuple[Line, ...]


def conversation(history: Sequence[HistoryItem]) -> Conversation:
    """Converts a history. Instructions at the beginning are the system prompt, or the user's message if nothing
    follows.
    """
    items = list(_without_raw_items(history))
    system: list[str] = []
    while items and _is_instruction(items[0]):
        system.append(_instruction(items.pop(0)))  # type: ignore[arg-type]
    prompt = "\n\n".join(text for text in system if text)
    if not items:  # nobody but the system speaks
        return Conversation("", (Line("user", [_text_block(prompt or CONTINUE)]),))
    return Conversation(prompt, _lines(items))


def lines_of(history: Sequence[HistoryItem]) -> tuple[Line, ...]:
    """Converts items that the agent has not seen. Instructions become text of the user."""
    return _lines(_without_raw_items(history))


def _lines(items: Iterable[HistoryItem | ThinkingBlock]) -> tuple[Line, ...]:
    writer = _Writer()
    for item in items:
        writer.add(item)
    return tuple(writer.close())


class PendingLines:
    """The lines still to be written. After each line of the user, the program must first confirm it."""

    def __init__(self, lines: Sequence[Line], first_number: int, *, takes_mark: bool = True) -> None:
        self._lines = list(lines)
        self.number = first_number
        """The number of the next assistant line (see `assistant_line`)."""
        self._takes_mark = takes_mark

    def next(self) -> tuple[bytes, bool]:
        """Removes and returns the lines up to the user's next one, as bytes, and whether none is left."""
        writes = []
        while self._lines:
            line = self._lines.pop(0)
            if line.role == "assistant":
                writes.append(assistant_line(line.blocks, self.number, line.model))
                self.number += 1
                continue
            last = not self._lines
            writes.append(user_line(line.blocks, query=last, takes_mark=self._takes_mark))
            return b"".join(writes), last
        return b"".join(writes), True


class _Writer:
    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._waiting: dict[str, str] = {}
        """Calls without an output: their ids as written, by the client's ids."""
        self._thoughts: list[ThinkingBlock] = []
        """Thinking blocks for the assistant's next block: no line may end with one."""

    def add(self, item: HistoryItem | ThinkingBlock) -> None:
        if isinstance(item, ThinkingBlock):
            self._thoughts.append(item)
        elif isinstance(item, HistoryMessage):
            if item.role == "assistant":
                self._add("assistant", [_text_block(text)] if (text := _text(item.parts)) else [])
            elif item.role == "user":
                self._add("user", _blocks(item.parts))
            elif text := _instruction(item):
                self._add("user", [_text_block(LATER_INSTRUCTIONS.format(text))])
        elif isinstance(item, HistoryCall):
            id = _usable_id(item.call_id)
            call = call_input(item.arguments, item.kind)
            block = {"type": "tool_use", "id": id, "name": model_name(item.name), "input": call}
            self._add("assistant", [block])
            self._waiting[item.call_id] = id
        elif isinstance(item, HistoryOutput):
            self._add_output(item)

    def close(self) -> list[Line]:
        """Returns all lines, with `NO_OUTPUT` where needed. The first and the last are lines of the user."""
        self._add_missing_outputs()
        if not self._lines or self._lines[-1].role == "assistant":
            self._lines.append(Line("user", [_text_block(CONTINUE)]))
        if self._lines[0].role == "assistant":
            self._lines.insert(0, Line("user", [_text_block(BEGIN)]))
        for line in self._lines:
            line.blocks[:0], line.outputs = line.outputs, []
        return self._lines

    def _add_output(self, item: HistoryOutput) -> None:
        id = self._waiting.pop(item.call_id, None)
        content = _blocks(item.parts) or [_text_block(" ")]
        if id is None:
            self._add("user", [_text_block(f"Output of the tool call {item.call_id}:"), *content])
        else:
            self._add("user", [{"type": "tool_result", "tool_use_id": id, "content": content}], output=True)

    def _add(self, role: Literal["user", "assistant"], blocks: list[Block], *, output: bool = False) -> None:
        if not blocks:
            return
        if role == "assistant" and self._lines and self._lines[-1].role == "user":
            self._add_missing_outputs()
        if not self._lines or self._lines[-1].role != role:
            self._lines.append(Line(role, []))
        line = self._lines[-1]
        if output:
            line.outputs += blocks
            return
        thoughts, self._thoughts = self._thoughts, []
        for thought in thoughts if role == "assistant" else ():
            if line.model in ("", thought.model):
                line.model = thought.model
                line.blocks.append(thought.block)
        line.blocks += blocks

    def _add_missing_outputs(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for id in waiting.values():
            content = [_text_block(NO_OUTPUT)]
            self._add("user", [{"type": "tool_result", "tool_use_id": id, "content": content}], output=True)


def _without_raw_items(history: Iterable[HistoryItem]) -> Iterable[HistoryItem | ThinkingBlock]:
    for item in history:
        if isinstance(item, RawHistoryItem):
            thought = thinking_block_in(item.json)
            if thought is not None:
                yield thought
            else:
                yield from items_of(item.json)
        else:
            yield item


def _is_instruction(item: HistoryItem | ThinkingBlock) -> bool:
    return isinstance(item, HistoryMessage) and item.role == "developer"


def _usable_id(call_id: str) -> str:
    return call_id if _ID.fullmatch(call_id) else re.sub(r"[^A-Za-z0-9_-]", "_", call_id) or "call"


def _instruction(message: HistoryMessage) -> str:
    return _text(message_for_agent(message, lambda name: f"`{model_name(name)}`").parts)


def _text(parts: Sequence[Part]) -> str:
    return "\n\n".join(filter(None, texts_of(parts)))


def _text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def _blocks(parts: Sequence[Part]) -> list[Block]:
    blocks: list[Block] = []
    for part in parts:
        if isinstance(part, ImagePart):
            blocks.append(_image(part))
        elif part.text:
            blocks.append(_text_block(part.text))
    return blocks


def _image(part: ImagePart) -> Block:
    image = image_data(part)
    if image is None:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": image[0], "data": image[1]}}
