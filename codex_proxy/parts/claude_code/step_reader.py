"""Converts the stream of model calls (steps) to events and calls of the client's tools, and adds raw items for later
turns. Arguments are passed on as they arrive, unless this server must check them. With a schema, the answer is the
input of the model's call of `StructuredOutput`; other text is passed on only before a call of a client's tool, or
without structured output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from codex_proxy.agents.dialect import HeldSize
from codex_proxy.agents.shared.history_items import raw_call, raw_message
from codex_proxy.agents.shared.json_lines import UnreadableError
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
from codex_proxy.core.items import ActionDetails, Activity, Message, Reasoning, Tool, ToolCall
from codex_proxy.core.limits import DELTA_SIZE, ITEM_SIZE
from codex_proxy.core.turn import Turn
from codex_proxy.parts.claude_code.calls import MODEL_PREFIX, Call, Calls, activity, output_text
from codex_proxy.parts.claude_code.history import ThinkingBlock
from codex_proxy.parts.claude_code.messages import StreamEvent, WholeBlock, WholeMessage
from codex_proxy.parts.claude_code.own_tools import with_use
from codex_proxy.parts.claude_code.task_plan import TaskPlan
from codex_proxy.parts.claude_code.tasks import described

T = TypeVar("T")
STRUCTURED_OUTPUT: Final = "StructuredOutput"


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

    def __init__(self, turn: Turn, tools: Mapping[str, Tool], task_plan: TaskPlan | None = None) -> None:
        """`task_plan`: that of the session, if it has begun."""
        self.events: list[Event] = []
        self.calls = Calls()
        self._tools = tools
        self._plain = turn.mode == "model"
        self._describe = described if turn.subagents else activity
        self._toolset = turn.toolset
        self._structured = turn.output_schema is not None
        # What the server checks, runs or hides has to be whole before the client hears of it.
        held = any(tool.kind == "custom" or tool.is_checked or tool.mcp is not None for tool in turn.tools)
        self._streams_calls = turn.parallel_tool_calls and not held
        self._message = ""
        self._streamed: set[str] = set()
        """Ids of messages that came in deltas; their complete form is ignored."""
        self._last_text = ""
        """The text of the last step."""
        self._open: dict[int, str] = {}
        """The items of open text blocks."""
        self._thinking: dict[int, str] = {}
        """The items of open thinking blocks."""
        self._ends: list[ItemEnded | RawItem] = []
        """Ends of items that are held until more arrives: a stream that breaks off ends its blocks, too."""
        self._model = ""
        self._thoughts: dict[int, _Thought] = {}
        self._reading: dict[int, Call | None] = {}
        """The open blocks of calls; None for tools that are not the client's."""
        self._held_size = HeldSize("arguments of calls, signatures and texts before an answer")
        self._held: list[Event] = []
        """Events of texts that may be no part of the answer."""
        self._held_texts: set[str] = set()
        self._message_texts: list[str] = []
        self._activities: dict[str, deque[Activity]] = {}
        """Calls of the agent's own tools without an output, by the program's ids."""
        self._shared_ids = 0
        self.task_plan = task_plan or TaskPlan()

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
            self._add(TextDelta(self._text_item(event.index), delta.text))
        elif delta.thinking:
            self.events.append(ReasoningDelta(self._thinking_item(event.index), delta.thinking))
            self._think(event.index, thinking=delta.thinking)
        elif delta.signature:
            self._think(event.index, signature=delta.signature)
        elif delta.partial_json:
            call = _at(event.index, self._reading)
            if call is not None:
                self._held_size.add(len(delta.partial_json) + DELTA_SIZE)
                call.parts.append(delta.partial_json)
                if self._streams_calls:
                    self.events.append(ArgumentsDelta(call.id, delta.partial_json))
        elif delta.type in DELTAS and getattr(delta, DELTAS[delta.type]) is None:
            raise UnreadableError("its delta cannot be read")

    def _think(self, index: int, *, thinking: str = "", signature: str = "") -> None:
        known = _at(index, self._thoughts)
        if known is not None and thinking:
            known.thinking.append(thinking)
        if known is not None and signature:
            self._held_size.add(len(signature) + DELTA_SIZE)
            known.signature.append(signature)

    def _text_item(self, index: int) -> str:
        """Returns the item of a text; begins one if no block is open."""
        id = _at(index, self._open)
        if id is None:
            id = self._open[index] = f"{self._message}_text_{index}"
            self._add(ItemStarted(Message(id)))
        return id

    def _thinking_item(self, index: int) -> str:
        id = _at(index, self._thinking)
        if id is None:
            id = self._thinking[index] = f"{self._message}_thinking_{index}"
            self.events.append(ItemStarted(Reasoning(id)))
        return id

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
        self._on_block_ended(event.index)  # of an earlier block without an end
        self._release_ends()
        id = f"{self._message}_{event.index}"
        if block.type == "text":
            self._open[event.index] = id
            self._add(ItemStarted(Message(id)))
        elif block.type == "thinking":
            self._thinking[event.index] = id
            self.events.append(ItemStarted(Reasoning(id)))
            self._thoughts[event.index] = _Thought()
        elif block.type == "redacted_thinking" and block.data:
            self._held_size.add(len(block.data) + ITEM_SIZE)
            self._ends.append(ThinkingBlock(self._model, data=block.data).raw_item())
        elif block.type == "tool_use":
            name = block.name or ""
            tool = self._tools.get(name)
            call = None if tool is None else self._begin_call(event.index, block.id or "", tool)
            self._reading[event.index] = call
            if tool is None and self._plain and name != STRUCTURED_OUTPUT:
                self.events.append(Notice("unoffered_call", name.removeprefix(MODEL_PREFIX)))

    def _begin_call(self, index: int, id: str, tool: Tool) -> Call:
        self._release_held()
        self._held_size.add(ITEM_SIZE)
        call = self.calls.begin(id, tool, f"{self._message or 'call'}_{index}")
        if self._streams_calls:
            self.events.append(ItemStarted(ToolCall(call.id, call.id, tool.name)))
        return call

    def _on_block_ended(self, index: int) -> None:
        self._reading.pop(index, None)
        for open in (self._open, self._thinking):
            if index in open:
                self._ends.append(ItemEnded(open.pop(index)))
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

    def is_new(self, message: WholeMessage, *, step_open: bool) -> bool:
        """Whether a complete message is no part of a step that comes as stream events. `step_open`: whether the stream
        has not ended; the program sends each block while it is open.
        """
        has_id = message.id in self._streamed
        if step_open and (self._open or self._thinking or self._reading):
            return not has_id and message.stop_reason is not None
        if not has_id:
            return True
        if step_open:
            return message.stop_reason is not None
        return not all(map(self._is_known, message.blocks))

    def _is_known(self, block: WholeBlock) -> bool:
        """Whether the last step has said this."""
        if block.type == "text":
            return (block.text or "") in self._last_text
        tool = self._tools.get(block.name or "")
        arguments = _text(block.input)
        return tool is None or self.calls.find_complete(block.id or "", tool, arguments, ()) is not None

    def read_message(self, message: WholeMessage, *, new: bool) -> None:
        """Reads a complete message. `new` False: its texts came as stream events, and are skipped."""
        if new:
            self._drop_step()
            self._message = message.id
        for index, block in enumerate(message.blocks):
            if block.type == "tool_use":
                self._add_whole_call(block, index, new=new)
            elif new and block.type == "text" and block.text:
                id = f"{message.id}_{index}"
                self._add(ItemStarted(Message(id)))
                self._add(FullText(id, block.text))
                self._add(ItemEnded(id))

    def _add_whole_call(self, block: WholeBlock, index: int, *, new: bool) -> None:
        name, id = block.name or "", block.id or ""
        tool = self._tools.get(name)
        if tool is not None:
            text = _text(block.input)
            call = (
                None
                if new
                else self.calls.find_complete(id, tool, text, filter(None, reversed(self._reading.values())))
            )
            (call or self._begin_call(index, id, tool)).whole = text
        elif not self._plain and name != STRUCTURED_OUTPUT and not name.startswith(MODEL_PREFIX):
            self.start_activity(block)

    def start_activity(self, block: WholeBlock) -> None:
        """Begins the activity of a call of the agent's own tools, once."""
        id = block.id or ""
        found = self._describe(id or "activity", block.name or "", block.input)
        details = with_use(found.details, block.name or "", block.input, self._toolset)
        found = msgspec.structs.replace(found, details=details)
        running = self._activities.setdefault(id, deque())
        if any((each.kind, each.text) == (found.kind, found.text) for each in running):
            return
        if running:
            self._shared_ids += 1
            found = msgspec.structs.replace(found, id=f"{found.id}~~{self._shared_ids}")
        running.append(found)
        self.task_plan.begin(id, block.name or "", block.input)
        self.events.append(ItemStarted(found))

    def end_activity(self, block: WholeBlock) -> None:
        """Ends the first activity that the program means by this id."""
        id = block.tool_use_id or ""
        running = self._activities.get(id)
        if running:
            ended = running.popleft()
            own = ended.id
            if not running:
                del self._activities[id]
            text = output_text(block.content)
            if text:
                self.events.append(OutputDelta(own, text))
            failed = bool(block.is_error)
            plan = self.task_plan.end(id, text, failed=failed)
            details = None
            if plan:
                details = msgspec.structs.replace(ended.details or ActionDetails(), plan=plan)
            self.events.append(ItemEnded(own, "failed" if failed else "completed", details))

    # --- the end of a step ----------------------------------------------------------------------

    def take_calls(self) -> Sequence[ToolCallRequested]:
        """Ends the step: adds its text and calls as raw items. Returns the calls."""
        for index in (*self._open, *self._thinking):
            self._on_block_ended(index)  # it had no end
        self._release_ends()
        requests = [call.request() for call in self.calls.take_unasked()]
        self._end_text()
        self.events += map(raw_call, requests)
        self._reading.clear()
        return requests

    def find_requested(
        self, id: str, name: str, arguments: str, waits: Callable[[str], bool]
    ) -> tuple[str, ToolCallRequested | None]:
        """Returns the id of the call whose output the program requests, and the call if the client was not asked for it
        because it was not in the stream (a sub-agent's). The id is empty if no such tool was offered. `waits`: see
        `Calls`.
        """
        tool = self._tools.get(MODEL_PREFIX + name)
        if tool is None:
            return "", None
        call = self.calls.find_requested(id, tool, arguments, waits)
        if call is not None:
            return call.id, None
        if not id:
            return "", None
        asked = self.calls.begin_apart(id, tool, arguments, waits).request()
        return asked.call_id, asked

    def finish(self, structured: str | None) -> None:
        """Ends the answer of a turn that has succeeded: adds `structured`, the answer under a schema, or, if it is
        None, the text that was held back.
        """
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
        self._last_text = text = "".join(self._message_texts)
        if text:
            self.events.append(raw_message(f"{self._message}_message", text))
        self._message_texts.clear()

    def _drop_step(self) -> None:
        """Forgets the current step, when another begins: an unfinished one is repeated."""
        self._open.clear()
        self._thinking.clear()
        self._thoughts.clear()
        self._ends.clear()
        self._reading.clear()
        self.calls.start_step()
        self._clear_held()
        self._held_size.clear()
        self._message_texts.clear()


def _text(json: msgspec.Raw) -> str:
    return bytes(json).decode("utf-8", "replace")


def _at(index: int, open: dict[int, T]) -> T | None:
    """Returns the open block with this index, else the newest: some providers give the indexes of other blocks."""
    found = open.get(index)
    return next(reversed(open.values()), None) if found is None else found
