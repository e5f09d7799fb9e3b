"""Converts a turn's history to the system prompt and the lines for Claude Code. The lines of user and assistant
alternate, as Anthropic's API requires; a call's output is in the line after the call, and the last line is the user's.
Only Claude Code's own reasoning (`ThinkingBlock`), which is signed, is kept.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from codex_proxy.agents.claude_code.messages import assistant_line, user_line
from codex_proxy.agents.claude_code.tool_names import call_input, model_name
from codex_proxy.agents.dialects.conversions import image_data, items_of
from codex_proxy.core.events import RawItem
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    TextPart,
)

Block = dict[str, Any]

NO_OUTPUT: Final = "No output: the call was cut off before it was answered."
"""The output of a call that has none. The provider refuses a conversation without it."""
CONTINUE: Final = "Continue."
"""The user's last line, if the history ends with a message of the assistant."""
BEGIN: Final = "(The conversation begins with your message.)"
"""The user's first line if the history begins with a message of the assistant, which the provider would refuse as
the first line."""
LATER_INSTRUCTIONS: Final = "<developer_message>\n{}\n</developer_message>"
"""The template for instructions in the middle of a conversation. Only those at its beginning are in the system
prompt."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]+")


_SEAL: Final = "claude-thinking:"
"""The prefix of the `encrypted_content` of reasoning items that contain a thinking block of Claude Code."""


class ThinkingBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """A thinking block of Anthropic's API, and the `model` that wrote it: only for that model, and with its
    `signature`, the API accepts it in a history.
    """

    model: str
    thinking: str = ""
    signature: str = ""
    data: str = ""
    """The encrypted content of a `redacted_thinking` block, which has neither text nor signature; else empty."""

    @property
    def block(self) -> Block:
        """The content block of Anthropic's API: `thinking`, or `redacted_thinking` if `data` is set."""
        if self.data:
            return {"type": "redacted_thinking", "data": self.data}
        return {"type": "thinking", "thinking": self.thinking, "signature": self.signature}

    def raw_item(self) -> RawItem:
        """Returns the block as a reasoning item of the Responses API, for the history of later turns.
        `thinking_block_in` reads it.
        """
        sealed = _SEAL + base64.b64encode(msgspec.json.encode(self)).decode()
        item = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
        return RawItem("reasoning", msgspec.json.encode(item))


class _RawThinking(msgspec.Struct, frozen=True):
    type: str = ""
    encrypted_content: str | None = None


def thinking_block_in(raw: bytes) -> ThinkingBlock | None:
    """Returns the thinking block in the JSON of a reasoning item that `ThinkingBlock.raw_item` made; None for every
    other item.
    """
    try:
        item = msgspec.json.decode(raw, type=_RawThinking)
        sealed = item.encrypted_content or ""
        if item.type != "reasoning" or not sealed.startswith(_SEAL):
            return None
        return msgspec.json.decode(
            base64.b64decode(sealed.removeprefix(_SEAL), validate=True), type=ThinkingBlock
        )
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


class Line(msgspec.Struct):
    """One message of the conversation: everything that the user or the assistant said without the other in between."""

    role: Literal["user", "assistant"]
    blocks: list[Block]
    model: str = ""
    """In a line of the assistant: the model that signed the thinking blocks in it; empty if there are none."""


class Conversation(msgspec.Struct, frozen=True):
    """The system prompt, and the messages of the conversation. The last one is the user's."""

    system: str
    lines: tuple[Line, ...]


def conversation(history: Sequence[HistoryItem]) -> Conversation:
    """Converts a whole history. The instructions at its beginning become the system prompt; if there is nothing else,
    the user's message.
    """
    items = list(_plain(history))
    system: list[str] = []
    while items and _is_instruction(items[0]):
        system.append(_text(items.pop(0).parts))  # type: ignore[union-attr]
    prompt = "\n\n".join(text for text in system if text)
    if not items:  # nobody but the system speaks
        return Conversation("", (Line("user", [_text_block(prompt or CONTINUE)]),))
    return Conversation(prompt, _lines(items))


def lines_of(history: Sequence[HistoryItem]) -> tuple[Line, ...]:
    """Converts a history, or its part that the agent has not seen, to lines. Instructions become text of the user."""
    return _lines(_plain(history))


def _lines(items: Iterable[HistoryItem | ThinkingBlock]) -> tuple[Line, ...]:
    writer = _Writer()
    for item in items:
        writer.add(item)
    return tuple(writer.close())


class PendingLines:
    """The lines that have not been written to the program yet. The next ones are written when the program has confirmed
    the previous line of the user.
    """

    def __init__(self, lines: Sequence[Line], first_number: int, *, takes_mark: bool = True) -> None:
        """`takes_mark`: see `user_line`."""
        self._lines = list(lines)
        self._number = first_number
        self._takes_mark = takes_mark

    @property
    def number(self) -> int:
        """The number that the next line of the assistant gets (see `assistant_line`)."""
        return self._number

    def next(self) -> tuple[bytes, bool]:
        """Removes the next lines, up to a line of the user. Returns their bytes, and whether that was the last line,
        which the model answers.
        """
        writes = []
        while self._lines:
            line = self._lines.pop(0)
            if line.role == "assistant":
                writes.append(assistant_line(line.blocks, self._number, line.model))
                self._number += 1
                continue
            last = not self._lines
            writes.append(user_line(line.blocks, query=last, takes_mark=self._takes_mark))
            return b"".join(writes), last
        return b"".join(writes), True


class _Writer:
    """Collects the blocks of a history into lines, with each output in the line after its call."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._waiting: dict[str, str] = {}
        """The calls that have no output yet: the id that is written, by the client's id."""
        self._thoughts: list[ThinkingBlock] = []
        """The thinking blocks since the last other block, for the assistant's next block, because no line may end with
        one.
        """

    def add(self, item: HistoryItem | ThinkingBlock) -> None:
        if isinstance(item, ThinkingBlock):
            self._thoughts.append(item)
        elif isinstance(item, HistoryMessage):
            if item.role == "assistant":
                self._add("assistant", [_text_block(text)] if (text := _text(item.parts)) else [])
            elif item.role == "user":
                self._add("user", _blocks(item.parts))
            elif text := _text(item.parts):
                self._add("user", [_text_block(LATER_INSTRUCTIONS.format(text))])
        elif isinstance(item, HistoryCall):
            id = _usable_id(item.call_id)
            call = call_input(item.arguments, item.kind)
            block = {"type": "tool_use", "id": id, "name": model_name(item.name), "input": call}
            self._add("assistant", [block])
            self._waiting[item.call_id] = id
        elif isinstance(item, HistoryOutput):
            self._output(item)

    def close(self) -> list[Line]:
        """Returns all lines, with `NO_OUTPUT` for calls without an output. The first and last are the user's, added if
        needed.
        """
        self._answer_waiting()
        if not self._lines or self._lines[-1].role == "assistant":
            self._lines.append(Line("user", [_text_block(CONTINUE)]))
        if self._lines[0].role == "assistant":
            self._lines.insert(0, Line("user", [_text_block(BEGIN)]))
        return self._lines

    def _output(self, item: HistoryOutput) -> None:
        id = self._waiting.pop(item.call_id, None)
        content = _blocks(item.parts) or [_text_block(" ")]
        if id is None:
            self._add("user", [_text_block(f"Output of the tool call {item.call_id}:"), *content])
        else:
            self._add("user", [{"type": "tool_result", "tool_use_id": id, "content": content}], result=True)

    def _add(self, role: Literal["user", "assistant"], blocks: list[Block], *, result: bool = False) -> None:
        if not blocks:
            return
        if role == "assistant" and self._lines and self._lines[-1].role == "user":
            self._answer_waiting()
        if not self._lines or self._lines[-1].role != role:
            self._lines.append(Line(role, []))
        line = self._lines[-1]
        if result:  # outputs come before what the user says
            place = sum(block["type"] == "tool_result" for block in line.blocks)
            line.blocks[place:place] = blocks
            return
        thoughts, self._thoughts = self._thoughts, []
        for thought in thoughts if role == "assistant" else ():
            if line.model in ("", thought.model):
                line.model = thought.model
                line.blocks.append(thought.block)
        line.blocks += blocks

    def _answer_waiting(self) -> None:
        """Adds the output `NO_OUTPUT` to every call without one."""
        waiting, self._waiting = self._waiting, {}
        for id in waiting.values():
            content = [_text_block(NO_OUTPUT)]
            self._add("user", [{"type": "tool_result", "tool_use_id": id, "content": content}], result=True)


def _plain(history: Iterable[HistoryItem]) -> Iterable[HistoryItem | ThinkingBlock]:
    """Yields the items of the history, with Responses items converted, or left out if they cannot be."""
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
    """Returns the call id with `_` in place of the characters that Anthropic's API does not accept."""
    return call_id if _ID.fullmatch(call_id) else re.sub(r"[^A-Za-z0-9_-]", "_", call_id) or "call"


def _text(parts: Sequence[Part]) -> str:
    return "\n\n".join(part.text for part in parts if isinstance(part, TextPart) and part.text)


def _text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def _blocks(parts: Sequence[Part]) -> list[Block]:
    """Converts parts of a message to content blocks. Empty texts are left out, since the provider refuses them."""
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
