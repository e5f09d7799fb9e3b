"""Renders a turn as an Anthropic message, streamed or whole, from the same blocks. One block is open at a time; calls
come last, behind the raw items: a client that cuts its history at a call keeps both. Source: docs/messages.md#streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Unpack

from codex_proxy.core.events import (
    ArgumentsDelta,
    ItemEnded,
    ItemStarted,
    RawItem,
    ReasoningDelta,
    RefusalDelta,
    Stop,
    TurnEnded,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import Activity, Message, Reasoning, ToolCall
from codex_proxy.surfaces.answers.renderer import (
    RenderOptions,
    StreamRenderer,
    TextRun,
    activity_line,
    json_bytes,
    json_text,
    raw_text,
)
from codex_proxy.surfaces.answers.usage import json_tokens
from codex_proxy.surfaces.messages.answer import (
    GrowingBlock,
    MessageEnd,
    MessageUsage,
    WholeBlock,
    error_event,
    frame,
)
from codex_proxy.surfaces.messages.answer import Message as MessageBody
from codex_proxy.surfaces.messages.state import OUTPUTS, pack_items
from codex_proxy.surfaces.requests.options import whole_input

_STOP_REASONS: Final[dict[str, str]] = {
    Stop.STOP: "end_turn",
    Stop.TOOL_CALLS: "tool_use",
    Stop.FUNCTION_CALL: "tool_use",
    Stop.LENGTH: "max_tokens",
    Stop.CONTENT_FILTER: "refusal",
}


class _Call:
    """A call of a client's tool, and the pieces of its arguments."""

    def __init__(self, item: ToolCall) -> None:
        self.item = item
        self.pieces: list[str] = []
        self.complete = False


class MessagesRenderer(StreamRenderer):
    def __init__(
        self,
        *,
        id: str,
        model: str,
        request_id: str = "",
        thinking: bool = False,
        state_identity: str | None = None,
        web_search: bool = False,
        client_names: Mapping[str, str] | None = None,
        show_activity: bool = True,
        **options: Unpack[RenderOptions],
    ) -> None:
        """`state_identity`: agent and model, if the answer has raw items. `web_search`: whether web searches are
        sent as blocks. `client_names`: see `MessagesTools`. `show_activity`: whether the agent's actions are shown
        as thinking.
        """
        super().__init__(**options)
        self._id, self._model, self._request_id = id, model, request_id
        self._thinking = thinking
        self._state_identity = state_identity
        self._web_search = web_search
        self._client_names = client_names or {}
        self._show_activity = show_activity and thinking
        self._blocks: list[GrowingBlock | WholeBlock] = []
        self._growing: dict[str, GrowingBlock] = {}
        """Blocks that have not ended, by the item's id."""
        self._open_block: GrowingBlock | None = None
        self._waiting: deque[GrowingBlock] = deque()
        self._calls: dict[str, _Call] = {}
        self._raw: list[bytes] = []
        self._ran_tools = False
        """Whether calls ran that the client does not see, and whose state is not sent yet."""
        self._searches = 0
        self._stop_sequence: str | None = None

    # --- what an exchange asks ------------------------------------------------------------------

    def estimate_prompt(self) -> None:
        """Estimates the request for the first event, while the agent starts."""
        self._prompt_tokens()

    def _whole(self) -> bytes:
        message = self._message([block.whole() for block in self._blocks], self._usage())
        return json_bytes({**message, **self._end()})

    # --- the frames around the blocks -----------------------------------------------------------

    def _begin(self, out: list[bytes]) -> None:
        self.visible = True
        usage: MessageUsage = {
            "input_tokens": max(1, self._prompt_tokens()),
            "output_tokens": 1,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        }
        out.append(frame("message_start", {"message": self._message([], usage)}))

    def _message(self, content: list[Any], usage: MessageUsage) -> MessageBody:
        return {
            "id": raw_text(self._id),
            "type": "message",
            "role": "assistant",
            "model": raw_text(self._model),
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _end(self) -> MessageEnd:
        sequence = self._stop_sequence
        return {
            "stop_reason": self.finish_reason,
            "stop_sequence": None if sequence is None else raw_text(sequence),
        }

    def _on_turn_ended(self, event: TurnEnded, out: list[bytes]) -> None:
        self.ended = True
        self.failure = event.failure
        if self.failure is not None:
            out.append(self._error(self.failure))
            return
        if not self.visible:
            self._begin(out)
        self._send_state(out)
        calls = self._send_calls(out)
        self._finish((event.choice_stops or {}).get(0, event.stop), event.stop_sequence, calls)
        self.spent.end(event)
        out.append(frame("message_delta", {"delta": self._end(), "usage": self._usage()}))
        out.append(frame("message_stop", {}))

    def _error(self, failure: Failure) -> bytes:
        return error_event(failure, self._request_id)

    def _finish(self, stop: str, sequence: str | None, calls: int) -> None:
        reason = _STOP_REASONS.get(stop, "end_turn")
        if reason == "end_turn" and sequence is not None:
            reason, self._stop_sequence = "stop_sequence", sequence
        elif calls and reason == "end_turn":
            reason = "tool_use"
        elif not calls and reason == "tool_use":
            reason = "end_turn"
        self.finish_reason = reason

    # --- what is said, one block at a time ------------------------------------------------------

    def _on_text(self, pieces: TextRun, out: list[bytes]) -> None:
        self._add_text(pieces.id, pieces.texts, out)

    def _on_refusal(self, event: RefusalDelta, out: list[bytes]) -> None:
        self._add_text(event.id, [event.text], out)

    def _on_reasoning(self, event: ReasoningDelta, out: list[bytes]) -> None:
        block = self._growing.get(event.id)
        if event.kind == "summary" and block is not None:  # raw reasoning is not sent to clients
            self._add_text(event.id, [block.with_separator(event.part, event.text)], out)

    def _add_text(self, id: str, texts: list[str], out: list[bytes]) -> None:
        block = self._growing.get(id)
        if block is None:
            return
        if self._open_block is None:
            self._open(block, out)
        if block.is_open:
            block.add(texts, out)
            return
        if not block.kept:
            self._waiting.append(block)
        block.kept += texts

    def _open(self, block: GrowingBlock, out: list[bytes]) -> None:
        if block.kind == "text" and self._ran_tools:  # Claude Code takes the last block for the result
            self._send_state(out)
        if not self.visible:
            self._begin(out)
        self._open_block = block
        block.open(len(self._blocks), out)
        self._blocks.append(block)

    def _close(self, block: GrowingBlock, out: list[bytes]) -> None:
        block.ended = True
        if block is not self._open_block:
            return
        block.close(out)
        self._open_block = None
        while self._waiting and self._open_block is None:
            following = self._waiting.popleft()
            self._open(following, out)
            if following.ended:
                following.close(out)
                self._open_block = None

    def _send(self, kind: str, fields: dict[str, Any], out: list[bytes], input: str | None = None) -> None:
        if not self.visible:
            self._begin(out)
        block = WholeBlock(kind, len(self._blocks), fields, input)
        self._blocks.append(block)
        block.send(out)

    # --- items ----------------------------------------------------------------------------------

    def _on_item_started(self, event: ItemStarted, out: list[bytes]) -> None:
        item = event.item
        if item.choice:  # one answer is all that a client of this API can ask for
            return
        if isinstance(item, Message):
            self._growing[item.id] = GrowingBlock("text")
        elif isinstance(item, Reasoning):
            if self._thinking:
                self._growing[item.id] = GrowingBlock("thinking")
        elif isinstance(item, ToolCall):
            self._calls[item.id] = _Call(item)
        elif isinstance(item, Activity) and item.kind == "web_search" and self._web_search:
            self._send_search(item, out)
        elif self._show_activity and (line := activity_line(item)) is not None:
            self._growing[item.id] = block = GrowingBlock("thinking")
            self._add_text(item.id, [line], out)
            self._close(block, out)

    def _send_search(self, item: Activity, out: list[bytes]) -> None:
        """Sends Anthropic's two blocks of a search, unless another is open."""
        if self._open_block is not None:
            return
        self._searches += 1
        id = raw_text(f"srvtoolu_{self._id.removeprefix('msg_')}_{self._searches}")
        query = (b'{"query":%b}' % json_text(item.text)).decode()
        self._send("server_tool_use", {"id": id, "name": "web_search"}, out, query)
        self._send("web_search_tool_result", {"tool_use_id": id, "content": []}, out)

    def _on_arguments(self, event: ArgumentsDelta, out: list[bytes]) -> None:
        call = self._calls.get(event.id)
        if call is not None:
            call.pieces.append(event.text)

    def _on_item_ended(self, event: ItemEnded, out: list[bytes]) -> None:
        block = self._growing.pop(event.id, None)
        if block is not None and not block.ended:
            self._close(block, out)
        if event.id in self._calls:
            self._calls[event.id].complete = event.status == "completed"

    def _on_raw_item(self, event: RawItem, out: list[bytes]) -> None:
        if self._state_identity is not None:
            self._raw.append(event.json)
            self._ran_tools = self._ran_tools or event.type in OUTPUTS

    # --- the end --------------------------------------------------------------------------------

    def _send_state(self, out: list[bytes]) -> None:
        """Sends the raw items since it last did, if there were calls: without them providers ignore earlier
        reasoning.
        """
        if self._state_identity is None or not (self._calls or self._ran_tools):
            return
        data = pack_items(self._raw, self._state_identity)
        self._raw, self._ran_tools = [], False
        if data is not None:
            self._send("redacted_thinking", {"data": data}, out)

    def _send_calls(self, out: list[bytes]) -> int:
        sent = 0
        for call in self._calls.values():
            custom = call.item.kind == "custom"
            input = whole_input("".join(call.pieces), custom=custom, complete=call.complete)
            if input is None:
                continue
            name = self._client_names.get(call.item.name, call.item.name)
            self._send("tool_use", {"id": raw_text(call.item.call_id), "name": raw_text(name)}, out, input)
            sent += 1
        return sent

    # --- usage ----------------------------------------------------------------------------------

    def _usage(self) -> MessageUsage:
        usage = self._tokens()
        cached = min(usage.cached, usage.input)
        written = min(usage.cache_written, usage.input - cached)
        return {
            "input_tokens": usage.input - cached - written,
            "output_tokens": usage.output,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": cached,
            "output_tokens_details": {"thinking_tokens": usage.reasoning},
        }

    def _count_tokens(self) -> int:
        return self._limit(json_tokens(block.text for block in self._blocks))
