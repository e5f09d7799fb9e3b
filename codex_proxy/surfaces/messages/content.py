"""Anthropic's message: its types, and its content blocks as frames and whole. SDKs need every frame's `event:` and
every block's end. Source: docs/messages.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired, Required, TypedDict

import msgspec

from codex_proxy.surfaces.answers.renderer import (
    Count,
    JsonText,
    Object,
    Text,
    TextParts,
    json_bytes,
    json_text,
    one_of,
    raw_text,
)

SIGNATURE: Final = "cxp1"
"""The signature by which this server knows its thinking blocks."""

BLOCK_TYPES: Final = (
    "text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result",
)  # fmt: skip
"""The types of blocks that are ever sent: some SDKs fail on others."""
EVENT_TYPES: Final = (
    "message_start", "content_block_start", "content_block_delta", "content_block_stop",
    "message_delta", "message_stop", "ping", "error",
)  # fmt: skip
"""The types of events that are ever sent: some SDKs fail on others."""

STOP_REASONS: Final = ("end_turn", "tool_use", "max_tokens", "refusal", "stop_sequence")


class ContentBlock(TypedDict, total=False):
    type: Required[Annotated[str, one_of(BLOCK_TYPES)]]
    text: JsonText
    thinking: JsonText
    signature: str
    data: str
    id: JsonText
    name: JsonText
    input: Object
    tool_use_id: JsonText
    content: list[Any]


class OutputDetails(TypedDict):
    thinking_tokens: Count


class MessageUsage(TypedDict):
    """`input_tokens`: without tokens read from a cache or written to it; in `message_start`, an estimate.
    `output_tokens_details` is not in `message_start`.
    """

    input_tokens: Count
    output_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count
    output_tokens_details: NotRequired[OutputDetails]


class MessageEnd(TypedDict):
    stop_reason: Annotated[str, one_of(STOP_REASONS)] | None
    stop_sequence: JsonText | None


class Message(MessageEnd):
    id: JsonText
    type: Literal["message"]
    role: Literal["assistant"]
    model: JsonText
    content: list[ContentBlock]
    usage: MessageUsage


class MessageTokens(TypedDict):
    input_tokens: Count


class MessageEvent(TypedDict):
    """The `data:` of a stream's event; `event:` is its type. The last event is `message_stop` or `error`."""

    type: Annotated[str, one_of(EVENT_TYPES)]
    message: NotRequired[Message]
    index: NotRequired[Count]
    usage: NotRequired[MessageUsage]


def frame(type: str, fields: dict[str, Any]) -> bytes:
    """Returns a server-sent event whose data has `type` and `fields`."""
    return b"event: %b\ndata: %b\n\n" % (type.encode(), json_bytes({"type": type, **fields}))


PING: Final = frame("ping", {})


class GrowingBlock(TextParts):
    """A message or reasoning that becomes a block of `text` or `thinking`. `kept`: the block's texts until it is
    opened. Methods append frames to `out`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_open = False
        self.kept: list[str] = []
        self.ended = False

    def open(self, index: int, out: list[bytes]) -> None:
        """Begins the block with the kept texts."""
        self.is_open = True
        self._index = index
        before = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
            b'{"type":"%b_delta","%b":' % (index, self.kind.encode(), self.kind.encode())
        )
        self._text = Text(before, b"}}\n\n")
        empty = {"type": self.kind, self.kind: ""} | ({"signature": ""} if self.kind == "thinking" else {})
        out.append(frame("content_block_start", {"index": index, "content_block": empty}))
        self.add(self.kept, out)
        self.kept = []

    def add(self, texts: list[str], out: list[bytes]) -> None:
        self._text.add_all(texts, out)

    def close(self, out: list[bytes]) -> None:
        if self.kind == "thinking":
            # Once and whole: SDKs overwrite what came before it.
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            out.append(frame("content_block_delta", {"index": self._index, "delta": delta}))
        out.append(_stop(self._index))

    @property
    def text(self) -> bytes:
        return bytes(self._text.whole())

    def whole(self) -> dict[str, Any]:
        text = {"type": self.kind, self.kind: self._text.whole()}
        return text | ({"signature": SIGNATURE} if self.kind == "thinking" else {})


class WholeBlock:
    """A block sent in one piece. `input`: the JSON text of an object, or None."""

    def __init__(self, kind: str, index: int, fields: dict[str, Any], input: str | None = None) -> None:
        self._head = {"type": kind, **fields}
        self._index = index
        self._input = input

    def send(self, out: list[bytes]) -> None:
        head = self._head | ({} if self._input is None else {"input": {}})
        out.append(frame("content_block_start", {"index": self._index, "content_block": head}))
        if self._input is not None:
            delta = {"type": "input_json_delta", "partial_json": raw_text(self._input)}
            out.append(frame("content_block_delta", {"index": self._index, "delta": delta}))
        out.append(_stop(self._index))

    @property
    def text(self) -> bytes:
        """The `input` as a JSON string, for counting tokens."""
        return json_text(self._input or "")

    def whole(self) -> dict[str, Any]:
        return self._head | ({} if self._input is None else {"input": msgspec.Raw(self._input.encode())})


def _stop(index: int) -> bytes:
    return frame("content_block_stop", {"index": index})
