"""Renders a turn as a response, streamed or whole, from the same items. Messages and the client's calls come one after
the other, this server's calls side by side. Reasoning waits for wanted encrypted content, lists of MCP tools for the
first output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Unpack

import msgspec

from codex_proxy.core.events import (
    AnnotationAdded,
    AnswerDetails,
    ArgumentsDelta,
    Event,
    HostedEvent,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    RawItem,
    ReasoningDelta,
    RefusalDelta,
    StepCompleted,
    TextDelta,
    TurnEnded,
    UsageReported,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.interfaces import Clock, IdSource
from codex_proxy.core.items import (
    Activity,
    ClientName,
    McpApproval,
    McpCall,
    McpTools,
    Message,
    Reasoning,
    ToolCall,
)
from codex_proxy.surfaces.answers.renderer import (
    Renderer,
    RenderOptions,
    SerialOutput,
    TextRun,
    activity_line,
    json_bytes,
    merge_text_deltas,
)
from codex_proxy.surfaces.responses.events import OutputOrder, ResponseEvents
from codex_proxy.surfaces.responses.output import (
    ACTIVITY_TYPE,
    ANNOTATION_KEY,
    ARGUMENTS_KEY,
    LINE_KEY,
    OUTPUT_KEY,
    REFUSAL_KEY,
    TEXT_KEY,
    WHOLE_CALLS,
    HostedItem,
    OutputItem,
    Part,
    PartKey,
    event_fields,
    output_item,
)
from codex_proxy.surfaces.responses.response_object import (
    ResponseHead,
    ResponseUsage,
    error_object,
    failed_response,
    incomplete_details,
    status_of,
    usage_object,
)

EMPTY_MESSAGE: Final = Message("")


class _RawReasoning(msgspec.Struct, frozen=True):
    id: str | None = None
    encrypted_content: str | None = None


_OF_THE_TURN: Final = frozenset({UsageReported, StepCompleted, TurnEnded})


class ResponsesRenderer(Renderer):
    unshown: tuple[type, ...] = ()

    def __init__(
        self,
        *,
        id: str,
        created_at: int,
        echo: Mapping[str, Any],
        ids: IdSource,
        clock: Clock,
        background: bool = False,
        activity: str = "summaries",
        encrypted_reasoning: bool = False,
        keep_frames: bool = False,
        client_names: Mapping[str, ClientName] | None = None,
        **options: Unpack[RenderOptions],
    ) -> None:
        """`echo`: fields of the request (`response_object.echo_of`). `background`: the response begins as `queued`.
        `keep_frames`: see `take_frames`; `client_names`, `activity`: see `output_item`.
        """
        super().__init__(**options)
        self._head = ResponseHead(id, created_at, echo)
        self._ids = ids
        self._clock = clock
        self._activity = activity
        self._encrypted = encrypted_reasoning
        self._client_names = client_names or {}
        self._frames: list[tuple[int, bytes]] | None = [] if keep_frames else None
        self._events: ResponseEvents = self._new_events()
        self._items: dict[str, OutputItem] = {}
        self._serial_outputs: dict[type, SerialOutput] = {Message: SerialOutput(), ToolCall: SerialOutput()}
        self._order = OutputOrder(self._events)
        self._output = self._order.items
        self._lists: list[OutputItem] = []
        """Lists of MCP tools before the answer."""
        self._awaiting: dict[str | None, OutputItem] = {}
        """Reasoning without its encrypted content yet, by the agent's ids."""
        self._step_began = False
        self._begun = False
        self._status = "queued" if background else "in_progress"
        self._final: dict[str, Any] | None = None

    def _new_events(self) -> ResponseEvents:
        return ResponseEvents()

    # --- what an exchange asks ------------------------------------------------------------------

    def pieces(self, events: Iterable[Event]) -> list[bytes]:
        for event in merge_text_deltas(events):
            if self.ended:
                if isinstance(event, TurnEnded) and not self._stream:
                    self._end_again(event.failure)
                continue
            self._status = "in_progress"
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(self, event)
        return self._take_frames()

    def open(self) -> bytes:
        if self.ended:
            return b""
        self._begin()
        return b"".join(self._take_frames())

    def take_frames(self) -> list[tuple[int, bytes]]:
        """Returns the new frames with their numbers, without `[DONE]`; none without `keep_frames`."""
        taken, self._frames = self._frames or [], None if self._frames is None else []
        return taken

    def events_to_keep(self, events: Iterable[Event]) -> list[Event]:
        """Returns what must be kept of events that were rendered, to render the response again: what it shows."""
        return [kept for event in events if (kept := self._to_keep(event)) is not None]

    def _to_keep(self, event: Event) -> Event | None:
        kind = type(event)
        if kind not in self._handlers and kind is not TextDelta:
            return None
        if isinstance(event, RawItem):
            if event.type != "reasoning" or not self._encrypted:
                return None
            return RawItem(event.type, json_bytes(msgspec.json.decode(event.json, type=_RawReasoning)))
        if isinstance(event, AnswerDetails):
            return AnswerDetails(
                {name: value for name, value in event.fields.items() if name == "service_tier"}
            )
        if kind in _OF_THE_TURN:
            return event
        output = self._items.get(event.item.id if isinstance(event, ItemStarted) else event.id)  # type: ignore[union-attr]
        if output is None or (isinstance(event, ReasoningDelta) and event.kind == "raw"):
            return None
        if isinstance(event, OutputDelta) and not (output.made_by_server or self._activity == "items"):
            return None
        return event

    def estimated_prompt(self) -> int:
        """Returns the estimate of the prompt's tokens in the usage; 0 if the agent has told them."""
        return self._prompt_tokens() if self.spent.is_estimated else 0

    def _whole(self) -> bytes:
        return json_bytes(self._current())

    def _error(self, failure: Failure) -> bytes:
        # The client has not got these.
        self._events.number -= len(self._events.take()) + len(self.take_frames())
        if not self._events.number:
            self._events.begin(self._head.object(self._status, []))
        self._final = self._head.object("failed", [], error=error_object(failure))
        self._events.fail(failure)
        self._events.finish(self._final)
        return b"".join(self._take_frames())

    def response(self) -> dict[str, Any]:
        """Returns the final object, also of a failed turn."""
        assert self.ended, "the turn is not over"
        return self.snapshot()

    @property
    def completed_at(self) -> int | None:
        assert self._final is not None, "the turn is not over"
        at: int | None = self._final["completed_at"]
        return at

    def snapshot(self) -> dict[str, Any]:
        """Returns the current object, for a client that polls."""
        decoded: dict[str, Any] = msgspec.json.decode(json_bytes(self._current()))
        return decoded

    # --- the turn -------------------------------------------------------------------------------

    def _current(self) -> dict[str, Any]:
        if self._final is not None:
            return self._final
        return self._head.object(self._status, self._whole_output())

    def _whole_output(self) -> list[dict[str, Any]]:
        return [output.done or output.whole() for output in self._output]

    def _take_frames(self) -> list[bytes]:
        frames = self._events.take()
        if self._frames is not None:
            first = self._events.number - len(frames)
            self._frames += enumerate(frames, first)
        if not self._stream:
            return []
        return [*frames, self._events.end] if self.ended and frames else frames

    def _begin(self, *, visible: bool = True) -> None:
        if not self._begun:
            self._begun = True
            self._events.begin(self._head.object(self._status, []))
            for output in self._lists:
                self._resume(output)
        self.visible = self.visible or visible

    def _on_usage(self, event: UsageReported) -> None:
        self.spent.add_total(event)

    def _on_step_completed(self, event: StepCompleted) -> None:
        self.spent.add_call(event)
        self._step_began = False
        for output in self._awaiting.values():
            output.awaiting = False
        self._awaiting.clear()

    def _on_turn_ended(self, event: TurnEnded) -> None:
        stop = (event.choice_stops or {}).get(0, event.stop)
        status = status_of(stop)
        if status == "completed" and all(isinstance(output.item, McpTools) for output in self._output):
            empty = OutputItem(EMPTY_MESSAGE, "message", self._ids.new("msg_"))
            self._announce(empty)
            self._new_part(empty, TEXT_KEY)
            self._order.end_item(empty, "completed")
        self._begin(visible=event.failure is None or (self._stream and self.sends_as_event(event.failure)))
        self._order.end(status)
        self.ended = True
        self.spent.end(event)
        self.failure = event.failure
        self.finish_reason = status
        self._final = self._head.object(
            status,
            self._whole_output(),
            completed_at=int(self._clock.epoch()) if status == "completed" else None,
            error=None if event.failure is None else error_object(event.failure),
            incomplete=incomplete_details(stop),
            usage=self._usage(),
        )
        if event.failure is not None:
            self._events.fail(event.failure)
        self._events.finish(self._final)

    def _end_again(self, failure: Failure | None) -> None:
        """Makes an answer fail whose last frame nobody has taken yet: it could not be saved."""
        if failure is None or failure == self.failure:
            return
        assert self._final is not None
        self._take_frames()
        self.failure, self.finish_reason = failure, "failed"
        unended = {"completed_at": None, "incomplete_details": None}
        self._final = failed_response({**self._final, **unended}, failure)
        if self._frames:
            self._frames.pop()
            self._events.number -= 1
        self._events.fail(failure)
        self._events.finish(self._final)

    def sends_as_event(self, failure: Failure) -> bool:
        """Whether a failure before the first event is sent as an event."""
        return False

    def _on_details(self, event: AnswerDetails) -> None:
        tier = event.fields.get("service_tier")
        if tier is not None and bytes(tier) != b"null":
            self._head.set_service_tier(tier)

    def _usage(self) -> ResponseUsage | None:
        if self.spent.reported is None and self.failure is not None:
            return None
        return usage_object(self._tokens(), estimated=self.spent.is_estimated)

    def _count_tokens(self) -> int:
        return self._limit(sum(output.tokens() for output in self._output if output.kind != "reasoning"))

    # --- items ----------------------------------------------------------------------------------

    def _on_item_started(self, event: ItemStarted) -> None:
        item = event.item
        if item.choice or isinstance(item, self.unshown):
            return  # a response has one answer, so another choice has no place in it
        output: OutputItem | None
        if isinstance(item, Activity) and item.hosted:
            output = HostedItem(item, self._ids)
        else:
            output = output_item(item, self._ids, activity=self._activity, client_names=self._client_names)
        if output is None:
            return
        self._step_began = self._step_began or not output.made_by_server
        self._items[item.id] = output
        output.waiting = self._waits(output)
        if not output.waiting:
            self._start(output)

    def _waits(self, output: OutputItem) -> bool:
        """Whether an item must wait: behind another, as an approval request (sent whole), or as a list of MCP tools
        before the answer.
        """
        item = output.item
        if isinstance(item, McpTools) and not self._begun:
            self._lists.append(output)
            return True
        serial = self._serial_outputs.get(type(item))
        return isinstance(item, McpApproval) or (serial is not None and not serial.open(item.id))

    def _start(self, output: OutputItem) -> None:
        """Starts an item: messages and reasoning with their first text, but reasoning at once if its encrypted content
        is wanted; `WHOLE_CALLS` at their end.
        """
        item = output.item
        if output.kind in WHOLE_CALLS or isinstance(output, HostedItem):
            return  # its arguments or fields are not known yet
        if isinstance(item, ToolCall | McpCall):
            self._announce(output)
            self._new_part(output, ARGUMENTS_KEY)
        elif isinstance(item, McpApproval):
            # It has no events for its arguments, so they come with it; half of them nobody could judge.
            output.parts.append(Part(ARGUMENTS_KEY, 0))
            output.parts[0].add(["".join(text for _, text in output.kept)])
            output.kept.clear()
            self._announce(output)
        elif isinstance(item, McpTools):
            self._order.add(output)
        elif isinstance(item, Activity):
            self._announce(output)
            if output.kind != ACTIVITY_TYPE:
                self._add_text(item.id, LINE_KEY, activity_line(item) or "")
        elif isinstance(item, Reasoning) and self._encrypted:
            output.awaiting = True
            self._awaiting[item.id] = output
            self._announce(output)

    def _announce(self, output: OutputItem) -> None:
        self._begin()
        self._order.add(output)

    def _on_item_ended(self, event: ItemEnded) -> None:
        output = self._items.get(event.id)
        if output is None:
            return
        if not output.waiting:
            self._end(output, event.status)
        else:
            output.status = event.status
            if isinstance(output.item, McpApproval) and event.status != "incomplete":
                self._resume(output)
        serial = self._serial_outputs.get(type(output.item))
        if serial is None:
            return
        for id, _ in serial.close(event.id):
            self._resume(self._items[id])

    def _resume(self, output: OutputItem) -> None:
        output.waiting = False
        ended, output.status = output.status, "in_progress"
        self._start(output)
        for key, text in output.kept:
            self._add_text(output.item.id, key, text)
        output.kept.clear()
        if ended != "in_progress":
            self._end(output, ended)

    def _end(self, output: OutputItem, status: str) -> None:
        if output.kind in WHOLE_CALLS and status != "incomplete":
            self._announce(output)
        self._order.end_item(output, status)

    # --- texts ----------------------------------------------------------------------------------

    def _on_text(self, pieces: TextRun) -> None:
        self._add_text(pieces.id, TEXT_KEY, *pieces.texts)

    def _on_refusal(self, event: RefusalDelta) -> None:
        self._add_text(event.id, REFUSAL_KEY, event.text)

    def _on_arguments(self, event: ArgumentsDelta) -> None:
        self._add_text(event.id, ARGUMENTS_KEY, event.text)

    def _on_annotation(self, event: AnnotationAdded) -> None:
        self._add_text(event.id, ANNOTATION_KEY, event.json.decode())

    def _add_text(self, id: str, key: PartKey, *texts: str) -> None:
        """Sends each text as a delta; keeps it if the item waits or has no such events."""
        output = self._items.get(id)
        if output is None:
            return
        if output.waiting:
            output.kept += [(key, text) for text in texts]
            return
        if output.kind in WHOLE_CALLS:
            output.printed += texts  # it has no events for its arguments
            return
        if output.index is None:
            self._announce(output)
        if key == ANNOTATION_KEY:
            self._annotate(output, texts)
            return
        part = output.part(key) or self._new_part(output, key)
        self._events.send_deltas(output, part, part.add(texts))

    def _annotate(self, output: OutputItem, annotations: Iterable[str]) -> None:
        part = output.part(TEXT_KEY) or self._new_part(output, TEXT_KEY)
        for annotation in annotations:
            part.annotations.append(msgspec.Raw(annotation))
            self._events.send_annotation_added(output, part)

    def _new_part(self, output: OutputItem, key: PartKey) -> Part:
        if output.parts:
            self._events.send_part_done(output, output.parts[-1])
        part = Part(key, len(output.parts))
        output.parts.append(part)
        self._events.send_part_added(output, part)
        return part

    def _on_reasoning(self, event: ReasoningDelta) -> None:
        if event.kind == "summary":  # raw reasoning is not sent to clients
            self._add_text(event.id, ("summary", event.part), event.text)

    def _on_output(self, event: OutputDelta) -> None:
        """Keeps the output of this server's call; sends the agent's if wanted."""
        output = self._items.get(event.id)
        if output is not None and output.made_by_server:
            output.printed.append(event.text)
        elif self._activity == "items":
            self._add_text(event.id, OUTPUT_KEY, event.text)

    def _on_hosted(self, event: HostedEvent) -> None:
        output = self._items.get(event.id)
        if not isinstance(output, HostedItem):
            return
        if not event.type:
            output.set(event.json)
        if output.index is None:
            self._announce(output)
        if event.type:
            self._events.send_hosted(output, event.type, event_fields(event.json))

    # --- encrypted reasoning --------------------------------------------------------------------

    def _on_raw_item(self, event: RawItem) -> None:
        if event.type != "reasoning" or not self._encrypted:
            return
        raw = msgspec.json.decode(event.json, type=_RawReasoning)
        id = raw.id if raw.id in self._awaiting else next(iter(self._awaiting), None)
        output = None if id is None else self._awaiting.pop(id)
        if output is None:
            # Behind a message it would be out of order: then it is better not there.
            if self._step_began or raw.encrypted_content is None:
                return
            output = OutputItem(Reasoning(raw.id or ""), "reasoning", self._ids.new("rs_"))
            self._announce(output)
            self._order.end_item(output, "completed")
        output.encrypted = raw.encrypted_content
        output.awaiting = False
