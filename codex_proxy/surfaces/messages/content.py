"""The content blocks of an answer, as stream frames and whole. SDKs need the `event:` line of every frame, and the end
of every block. Source: docs/messages.md#streams.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from codex_proxy.surfaces.base import BLANK_LINE, Text, json_bytes, json_text, raw_text

SIGNATURE: Final = "cxp1"
"""The `signature` of thinking blocks, by which this server knows its own."""

BLOCK_TYPES: Final = (
    *("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result"),
)
"""All types of blocks ever sent: some SDKs fail on others."""
EVENT_TYPES: Final = (
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop", "ping", "error"),
)
"""All types of events ever sent: some SDKs fail on others."""


def frame(type: str, fields: dict[str, Any]) -> bytes:
    """Returns one server-sent event; its data has `type` and these fields."""
    return b"event: %b\ndata: %b\n\n" % (type.encode(), json_bytes({"type": type, **fields}))


PING: Final = frame("ping", {})


class GrowingBlock:
    """A block of text or thinking, which grows by deltas. Methods append SSE frames to `out`."""

    def __init__(self, kind: str, index: int) -> None:
        """`kind`: `text` or `thinking`. `index` is the block's index in the answer's `content`."""
        self.kind = kind
        self._index = index
        before = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
            b'{"type":"%b_delta","%b":' % (index, kind.encode(), kind.encode())
        )
        self._text = Text(before, b"}}\n\n")

    def open(self, out: list[bytes]) -> None:
        empty = {"type": self.kind, self.kind: ""} | ({"signature": ""} if self.kind == "thinking" else {})
        out.append(frame("content_block_start", {"index": self._index, "content_block": empty}))

    def add(self, texts: list[str], out: list[bytes]) -> None:
        """Appends the frames of the deltas `texts` to `out`."""
        self._text.add_all(texts, out)

    def close(self, out: list[bytes]) -> None:
        if self.kind == "thinking":
            # Once and whole: SDKs overwrite what came before it.
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            out.append(frame("content_block_delta", {"index": self._index, "delta": delta}))
        out.append(_stop(self._index))

    @property
    def text(self) -> bytes:
        """The whole text as one JSON string."""
        return bytes(self._text.whole())

    def whole(self) -> dict[str, Any]:
        text = {"type": self.kind, self.kind: self._text.whole()}
        return text | ({"signature": SIGNATURE} if self.kind == "thinking" else {})


class WholeBlock:
    """A block sent in one piece: its type, its fields, and `input`, the JSON text of an object (or None)."""

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
        """`input` as a JSON string, for counting tokens."""
        return json_text(self._input or "")

    def whole(self) -> dict[str, Any]:
        return self._head | ({} if self._input is None else {"input": msgspec.Raw(self._input.encode())})


def _stop(index: int) -> bytes:
    return frame("content_block_stop", {"index": index})


class TextItem:
    """A message or reasoning that becomes a block. Until it is opened (`block`), `kept` has its text; `over`: it has
    ended.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.block: GrowingBlock | None = None
        self.kept: list[str] = []
        """The texts that came while another block was open."""
        self.over = False
        self._part: int | None = None

    def with_break(self, part: int, text: str) -> str:
        """Returns a delta, behind a blank line if the one before was of another summary part."""
        text = BLANK_LINE + text if self._part not in (None, part) else text
        self._part = part
        return text
