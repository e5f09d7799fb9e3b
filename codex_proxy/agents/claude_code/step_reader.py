"""Converts the stream of model calls (steps) to events and calls of the client's tools, and adds raw items for later
turns. Arguments are passed on as they arrive, unless this server must check them. With a schema, the answer is the
input of the model's call of `StructuredOutput`; other text is passed on only before a call of a client's tool, or
without structured output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from codex_proxy.agents.claude_code import activities
from codex_proxy.agents.claude_code.history import ThinkingBlock
from codex_proxy.agents.claude_code.messages import StreamEvent, WholeBlock, WholeMessage
from codex_proxy.agents.claude_code.tool_names import MODEL_PREFIX
from codex_proxy.agents.dialect import HeldSize
from codex_proxy.agents.dialects.conversions import custom_input
from codex_proxy.agents.dialects.json_lines import UnreadableError
from codex_proxy.agents.dialects.response_items import raw_call, raw_message
from codex_proxy.agents.dialects.tool_names import ToolsByAgentName
from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    FullText,
    ItemEnded,
    ItemStarted,
    Notice,
    OutputDelta,
    RawItem,
    ReasoningDelta,
    TextDelta,
    ToolCallRequested,
)
from codex_proxy.core.items import Message, Reasoning, Tool, ToolCall
from codex_proxy.core.limits import DELTA_SIZE, ITEM_SIZE
from codex_proxy.core.turn import Turn

STRUCTURED_OUTPUT: Final = "StructuredOutput"


class _Call(msgspec.Struct):
    """A call of a client's tool: its arguments in pieces (`parts`), and from a complete message (`whole`)."""

    id: str
    tool: Tool
    parts: list[str] = []
    whole: msgspec.Raw | None = None

    @property
    def arguments(self) -> str:
        text = "".join(self.parts) or (bytes(self.whole).decode("utf-8", "replace") if self.whole else "")
        return text if text.strip() else "{}"

    def request(self) -> ToolCallRequested:
        text = self.arguments
        if self.tool.kind == "custom":
            text = custom_input(text)
        return ToolCallRequested(self.id, self.id, self.tool.name, text, self.id, self.tool.kind)


DELTAS: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""The field of each type of delta."""


class _Thought(msgspec.Struct):
    thinking: list[str] = []
    signature: list[str] = []


class StepReader:
    """Reads the model calls of a turn. The caller empties `events`."""

    def __init__(self, turn: Turn, tools: ToolsByAgentName) -> None:
        self.events: list[Event] = []
        self._tools = tools
        self._plain = turn.mode == "model"
        self._structured = turn.output_schema is not None
        # What the server checks, runs or hides has to be whole before the client hears of it.
        held = any(tool.kind == "custom" or tool.is_checked or tool.mcp is not None for tool in turn.tools)
        self._streams_calls = turn.parallel_tool_calls and not held
        self._message = ""
        self._streamed: set[str] = set()
        """Ids of messages that came in deltas; their complete form is ignored."""
        self._open: dict[int, str] = {}
        self._ends: list[ItemEnded | RawItem] = []
        """Ends of items that are held until more arrives: a stream that breaks off ends its blocks, too."""
        self._model = ""
        self._thoughts: dict[int, _Thought] = {}
        self._reading: dict[int, _Call] = {}
        self._calls: dict[str, _Call] = {}
        self._held_size = HeldSize("arguments of calls, signatures and texts before an answer")
        self._held: list[Event] = []
        """Events of texts that may be no part of the answer."""
        self._held_texts: set[str] = set()
        self._message_texts: list[str] = []
        self._activities: set[str] = set()
        """Calls of the agent's own tools without an output."""

    def begin_turn(self) -> None:
        self._drop_step()
        self._activities.clear()
        self._streamed.clear()

    # --- the stream -----------------------------------------------------------------------------

    def feed(self, event: StreamEvent) -> None:
        """Reads a stream event; the dialect handles `message_delta`."""
        match event.type:
            case "content_block_delta":
                self._on_delta(event)
            case "content_block_start":
                self._on_block_started(event)
            case "content_block_stop":
                self._on_block_ended(event.index)
            case "message_start":
                self._drop_step()
                head = event.message
                self._message, self._model = ("", "") if head is None else (head.id, head.model)
                self._streamed.add(self._message)

    def _on_delta(self, event: StreamEvent) -> None:
        delta = event.delta
        if delta is None:
            raise UnreadableError("it has no delta")
        if delta.text:
            self._add(TextDelta(self._item(event.index), delta.text))
        elif delta.thinking:
            self.events.append(ReasoningDelta(self._item(event.index), delta.thinking))
            self._think(event.index, thinking=delta.thinking)
        elif delta.signature:
            self._think(event.index, signature=delta.signature)
        elif delta.partial_json:
            call = self._reading.get(event.index)
            if call is not None:
                self._held_size.add(len(delta.partial_json) + DELTA_SIZE)
                call.parts.append(delta.partial_json)
                if self._streams_calls:
                    self.events.append(ArgumentsDelta(call.id, delta.partial_json))
        elif delta.type in DELTAS and getattr(delta, DELTAS[delta.type]) is None:
            raise UnreadableError("its delta cannot be read")

    def _think(self, index: int, *, thinking: str = "", signature: str = "") -> None:
        known = self._thoughts.get(index)
        if known is not None and thinking:
            known.thinking.append(thinking)
        if known is not None and signature:
            self._held_size.add(len(signature) + DELTA_SIZE)
            known.signature.append(signature)

    def _item(self, index: int) -> str:
        return self._open.get(index) or f"{self._message}_{index}"

    def _add(self, event: Event) -> None:
        if self._structured:
            self._held_size.add(len(event.text) if isinstance(event, TextDelta | FullText) else ITEM_SIZE)
            self._held.append(event)
            if isinstance(event, TextDelta):
                self._held_texts.add(event.id)
            return
        self.events.append(event)
        if isinstance(event, TextDelta | FullText):
            self._message_texts.append(event.text)

    def _on_block_started(self, event: StreamEvent) -> None:
        block = event.content_block
        if block is None:
            return
        self._release_ends()
        id = f"{self._message}_{event.index}"
        if block.type == "text":
            self._open[event.index] = id
            self._add(ItemStarted(Message(id)))
        elif block.type == "thinking":
            self._open[event.index] = id
            self.events.append(ItemStarted(Reasoning(id)))
            self._thoughts[event.index] = _Thought()
        elif block.type == "redacted_thinking" and block.data:
            self._held_size.add(len(block.data) + ITEM_SIZE)
            self._ends.append(ThinkingBlock(self._model, data=block.data).raw_item())
        elif block.type == "tool_use" and block.id:
            self._call_started(event.index, block.id, block.name or "")

    def _call_started(self, index: int, id: str, name: str) -> None:
        tool = self._tools.find(name)
        if tool is None:
            if self._plain and name != STRUCTURED_OUTPUT:
                self.events.append(Notice("unoffered_call", name.removeprefix(MODEL_PREFIX)))
            return
        self._release_held()
        self._held_size.add(ITEM_SIZE)
        call = self._calls[id] = self._reading[index] = _Call(id, tool)
        if self._streams_calls:
            self.events.append(ItemStarted(ToolCall(call.id, call.id, tool.name)))

    def _on_block_ended(self, index: int) -> None:
        self._reading.pop(index, None)
        id = self._open.pop(index, None)
        if id is not None:
            self._ends.append(ItemEnded(id))
        thought = self._thoughts.pop(index, None)
        if thought is not None and thought.signature:
            text, signature = "".join(thought.thinking), "".join(thought.signature)
            self._ends.append(ThinkingBlock(self._model, thinking=text, signature=signature).raw_item())

    def _release_ends(self) -> None:
        """Passes on `_ends`; the end of a held text is held, too."""
        for event in self._ends:
            held = isinstance(event, ItemEnded) and event.id in self._held_texts
            (self._held if held else self.events).append(event)
        self._ends.clear()

    # --- whole messages -------------------------------------------------------------------------

    def is_new(self, message: WholeMessage) -> bool:
        """Whether no part of the message has come as stream events."""
        return message.id not in self._streamed

    def read_message(self, message: WholeMessage) -> None:
        """Reads a complete message. Texts that came as stream events are skipped."""
        new = self.is_new(message)
        if new:
            self._drop_step()
        for index, block in enumerate(message.blocks):
            if block.type == "tool_use" and block.id:
                self._add_whole_call(block, block.id, index)
            elif new and block.type == "text" and block.text:
                id = f"{message.id}_{index}"
                self._add(ItemStarted(Message(id)))
                self._add(FullText(id, block.text))
                self._add(ItemEnded(id))

    def _add_whole_call(self, block: WholeBlock, id: str, index: int) -> None:
        name = block.name or ""
        if id not in self._calls and self._tools.find(name) is not None:
            self._call_started(index, id, name)
        call = self._calls.get(id)
        if call is not None:
            call.whole = block.input
        elif not self._plain and name != STRUCTURED_OUTPUT and not name.startswith(MODEL_PREFIX):
            self.start_activity(block, id)

    def start_activity(self, block: WholeBlock, id: str) -> None:
        """Begins the activity of a call of the agent's own tools, once."""
        if id not in self._activities:
            self._activities.add(id)
            self.events.append(ItemStarted(activities.activity(id, block.name or "", block.input)))

    def end_activity(self, block: WholeBlock) -> None:
        id = block.tool_use_id or ""
        if id in self._activities:
            self._activities.remove(id)
            text = activities.output_text(block.content)
            if text:
                self.events.append(OutputDelta(id, text))
            self.events.append(ItemEnded(id, "failed" if block.is_error else "completed"))

    # --- the end of a step ----------------------------------------------------------------------

    def has_call(self, call_id: str) -> bool:
        return call_id in self._calls

    def take_calls(self) -> Sequence[ToolCallRequested]:
        """Ends the step: adds its text and calls as raw items. Returns the calls."""
        self._release_ends()
        requests = [call.request() for call in self._calls.values()]
        self._end_text()
        self.events += map(raw_call, requests)
        self._calls.clear()
        self._reading.clear()
        return requests

    def requested_call(self, id: str, name: str, arguments: str) -> ToolCallRequested | None:
        """Returns a call that was not in the stream (a sub-agent's); None if no such tool was offered."""
        tool = self._tools.find(MODEL_PREFIX + name)
        if tool is None:
            return None
        call = _Call(id, tool)
        call.parts.append(arguments)
        return call.request()

    def finish(self, structured: str | None) -> None:
        """Ends the answer of a turn that has succeeded. `structured` None: the held text is the answer."""
        self._release_ends()
        if structured is None:
            self._release_held()
            self._end_text()
            return
        self._clear_held()
        id = f"{self._message}_answer"
        self.events += [raw_message(id, structured), ItemStarted(Message(id)), TextDelta(id, structured)]
        self.events.append(ItemEnded(id))

    def _release_held(self) -> None:
        self.events += self._held
        self._message_texts += [event.text for event in self._held if isinstance(event, TextDelta | FullText)]
        self._clear_held()

    def _clear_held(self) -> None:
        self._held.clear()
        self._held_texts.clear()

    def _end_text(self) -> None:
        if text := "".join(self._message_texts):
            self.events.append(raw_message(f"{self._message}_message", text))
        self._message_texts.clear()

    def _drop_step(self) -> None:
        """Forgets the current step, when another begins: an unfinished one is repeated."""
        self._open.clear()
        self._thoughts.clear()
        self._ends.clear()
        self._reading.clear()
        self._calls.clear()
        self._clear_held()
        self._held_size.clear()
        self._message_texts.clear()
