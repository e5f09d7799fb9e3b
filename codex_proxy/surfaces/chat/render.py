"""Events of a turn, rendered as a chat completion: SSE bytes as they come, or one body at the end.

In: batches of well-formed events (`core/rules.py` saw to that). Out: `feed` gives the bytes of a batch,
`result` the whole answer; both are made of the same `Choice`s, so they cannot disagree. Order, placeholders
and the error frame: seed 001 ("Streaming Contract", "Streaming Errors").

It does not know HTTP: until `visible` is true a `failure` can still be a plain status, and whoever owns the
exchange decides that. `result` of a failed turn raises the `Fault`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    ReasoningDelta,
    RefusalDelta,
    StepCompleted,
    TurnEnded,
    UsageSeen,
)
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.items import Activity, Item, McpCall, Message, Reasoning, ToolCall
from codex_proxy.surfaces.base import json_bytes, json_text, raw_text
from codex_proxy.surfaces.chat.choice import Choice, Chunk
from codex_proxy.surfaces.chat.usage import Measure, StreamMetrics, chat_usage
from codex_proxy.surfaces.errors import error_frame
from codex_proxy.surfaces.pieces import Pieces, pieces_together
from codex_proxy.surfaces.usage import Spending, Spent

DONE: Final = b"data: [DONE]\n\n"
NOT_MEASURED: Final = StreamMetrics()
_SAID: Final = (Message, Reasoning, ToolCall)
"""Items that have a place in an answer of this surface."""
NOBODY: Final[tuple[Choice, ...]] = ()


class ChatRenderer:
    """One answer. `feed` it every event of the turn, in order, in batches of any size.

    `whole_calls` is for `parallel_tool_calls: false`: seed 001 wants each call as one consolidated delta.
    """

    def __init__(
        self,
        *,
        id: str,
        created: int,
        model: str,
        choices: int = 1,
        stream: bool = False,
        include_usage: bool = False,
        legacy_function_call: bool = False,
        whole_calls: bool = False,
        show_activity: bool = True,
        prompt_letters: int = 0,
        metrics: Measure | None = None,
    ) -> None:
        self._envelope: dict[str, Any] = {"id": raw_text(id), "created": created, "model": raw_text(model)}
        self._chunk_head = (
            b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":['
            % (json_text(id), created, json_text(model))
        )
        chunk = Chunk(self._chunk_head, b'],"usage":null}\n\n' if include_usage else b"]}\n\n")
        self._choices = tuple(
            Choice(index, chunk, legacy=legacy_function_call, whole_calls=whole_calls)
            for index in range(choices)
        )
        self._targets: dict[str, tuple[Choice, ...]] = {}
        self._stream = stream
        self._include_usage = include_usage
        self._show_activity = show_activity
        self._prompt_letters = prompt_letters
        self._measure = metrics
        self._routed = False
        self.spent = Spent()
        self.visible = False
        self.ended = False
        self.failure: Failure | None = None
        self._handlers: dict[type, Callable[[Any, list[bytes]], None]] = {
            Pieces: self._pieces,
            ArgumentsDelta: self._arguments_delta,
            ReasoningDelta: self._reasoning_delta,
            RefusalDelta: self._refusal_delta,
            ItemStarted: self._item_started,
            ItemEnded: self._item_ended,
            UsageSeen: lambda event, out: self.spent.seen(event),
            StepCompleted: lambda event, out: self.spent.step(event),
            TurnEnded: self._turn_ended,
        }

    # --- what an exchange asks ------------------------------------------------------------------

    def feed(self, events: Iterable[Event]) -> bytes:
        """The SSE bytes of a batch; nothing where the answer is given whole. After the end: nothing."""
        out: list[bytes] = []
        handlers = self._handlers
        for event in pieces_together(events):
            if self.ended:
                break
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event, out)
        return b"".join(out) if self._stream else b""

    def open(self) -> bytes:
        """The role of every choice, if it has not gone out: what a first keepalive brings along."""
        out: list[bytes] = []
        if self._stream and not self.visible:
            self._begin(out)
        return b"".join(out)

    def result(self) -> bytes:
        """The whole answer as JSON: the fold of what `feed` rendered. Raises `Fault` for a failed turn."""
        if self.failure is not None:
            raise Fault(self.failure)
        choices = [choice.whole() for choice in self._choices]
        head = {"id": self._envelope["id"], "object": "chat.completion"}
        return json_bytes({**head, **self._envelope, "choices": choices, "usage": self._figures()})

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """One per choice, once the turn has ended well."""
        return tuple(choice.finish_reason for choice in self._choices if choice.finish_reason)

    # --- what happens in a turn -----------------------------------------------------------------

    def _begin(self, out: list[bytes]) -> None:
        self.visible = True
        for choice in self._choices:
            choice.begin(out)

    def _pieces(self, pieces: Pieces, out: list[bytes]) -> None:
        targets = self._hearing(pieces.id, out)
        if len(targets) == 1:
            targets[0].say(pieces.id, pieces.texts, out)
            return
        for text in pieces.texts:  # each piece goes to all choices before the next one does
            for choice in targets:
                choice.say(pieces.id, [text], out)

    def _refusal_delta(self, event: RefusalDelta, out: list[bytes]) -> None:
        for choice in self._hearing(event.id, out):
            choice.refuse(event.id, event.text, out)

    def _reasoning_delta(self, event: ReasoningDelta, out: list[bytes]) -> None:
        """Summaries only: raw reasoning is not meant for clients."""
        if event.kind == "summary":
            for choice in self._hearing(event.id, out):
                choice.think(event.id, event.part, event.text, out)

    def _arguments_delta(self, event: ArgumentsDelta, out: list[bytes]) -> None:
        for choice in self._hearing(event.id, out):
            choice.argue(event.id, event.text, out)

    def _hearing(self, id: str, out: list[bytes]) -> tuple[Choice, ...]:
        """The choices that an item speaks to; what it says makes the answer begin."""
        targets = self._targets.get(id, NOBODY)
        if targets and not self.visible:
            self._begin(out)
        return targets

    def _item_started(self, event: ItemStarted, out: list[bytes]) -> None:
        item = event.item
        line = self._line_of(item)
        if line is None and not isinstance(item, _SAID):
            return
        self._targets[item.id] = self._addressed(item)
        if isinstance(item, Message):
            for choice in self._targets[item.id]:
                choice.open_message(item.id)
        elif isinstance(item, ToolCall):
            for choice in self._hearing(item.id, out):
                choice.open_call(item, out)
        elif line is not None:
            for choice in self._hearing(item.id, out):
                choice.act(line, out)

    def _line_of(self, item: Item) -> str | None:
        """What the agent or this server did, as one line for those who want to see it."""
        if not self._show_activity:
            return None
        if isinstance(item, McpCall):
            return f"[mcp_call] {item.server_label}.{item.name}"
        return f"[{item.kind}] {item.text}" if isinstance(item, Activity) else None

    def _addressed(self, item: Item) -> tuple[Choice, ...]:
        """Everybody, where the agent speaks of one answer; else the choice it names, if that was asked."""
        if item.choice is None:
            return self._choices
        self._routed = True
        return self._choices[item.choice : item.choice + 1] if item.choice >= 0 else NOBODY

    def _item_ended(self, event: ItemEnded, out: list[bytes]) -> None:
        for choice in self._targets.pop(event.id, NOBODY):
            choice.close_message(event.id, out)
            choice.close_call(event.id, out)

    def _turn_ended(self, event: TurnEnded, out: list[bytes]) -> None:
        self.ended = True
        if event.failure is not None:
            self.failure = event.failure
            out += (error_frame(event.failure), DONE)
            return
        if not self.visible:
            self._begin(out)
        stops = event.choice_stops or {}
        for index, choice in enumerate(self._choices):
            choice.finish(stops.get(index, event.stop), out)
        self.spent.ended(event.trigger)
        if self._include_usage and self._stream:
            out.append(self._usage_chunk())
        out.append(DONE)

    # --- usage ----------------------------------------------------------------------------------

    def _figures(self) -> dict[str, Any]:
        return chat_usage(
            self.spent,
            copies=1 if self._routed else len(self._choices),
            prompt_letters=self._prompt_letters,
            answer_letters=sum(choice.length() for choice in self._choices),
        )

    def spending(self) -> Spending:
        """What the turn has cost so far. An answer that was told to every choice was paid for once."""
        copies = 1 if self._routed else len(self._choices)
        return self.spent.spending(
            prompt_letters=self._prompt_letters,
            answer_letters=lambda: sum(choice.length() for choice in self._choices) // copies,
            failed=self.failure is not None,
        )

    def _usage_chunk(self) -> bytes:
        figures = self._figures()
        measured = NOT_MEASURED if self._measure is None else self._measure(figures["completion_tokens"])
        figures["time_to_first_token"] = measured.time_to_first_token
        figures["throughput_after_first_token"] = measured.throughput_after_first_token
        figures["emission_trigger"] = self.spent.trigger
        return self._chunk_head + b'],"usage":' + json_bytes(figures) + b"}\n\n"
