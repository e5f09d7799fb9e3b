"""Makes any sequence of a turn's events well-formed. Everything that reads a turn's log relies on these properties:

- exactly one `TurnStarted`, which only a `Notice` or `AccountLimitsReported` may precede, and one `TurnEnded`, last;
- a delta comes only inside an open item of its kind, and every item is opened once and closed once;
- the deltas of an item, joined, are its final text: what was sent is never changed or withdrawn;
- both halves of a surrogate pair are in one delta: the first waits for the second. Alone it becomes U+FFFD;
- the turns of a subagent are well-formed in the same way, and have ended when the turn itself ends for good;
- no `Full*` and no `Retrying`: a text that the agent sends both in deltas and whole, or repeats after a retry
  (`core/retries.py`), is returned once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import msgspec

from codex_proxy.core.events import (
    AccountLimitsReported,
    AnnotationAdded,
    ApprovalRequested,
    ArgumentsDelta,
    Event,
    FullArguments,
    FullReasoning,
    FullText,
    HostedEvent,
    InputRequested,
    InputTaken,
    ItemEnded,
    ItemStarted,
    Notice,
    OfSubagent,
    OutputDelta,
    ReasoningDelta,
    ReasoningKind,
    RefusalDelta,
    Retrying,
    StepCompleted,
    Stop,
    TextDelta,
    TurnEnded,
    TurnSigns,
    TurnStarted,
    UsageReported,
    explain_empty_answer,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import (
    CALLS,
    SERVER_ITEMS,
    WITH_OUTPUT,
    ActionDetails,
    Activity,
    Item,
    ItemStatus,
    Message,
    Reasoning,
)
from codex_proxy.core.json_values import without_surrogates
from codex_proxy.core.retries import (
    ARGUMENTS_KEY,
    FIRST_HALF,
    OUTPUT_KEY,
    REFUSAL_KEY,
    SECOND_HALF,
    TEXT_KEY,
    SentItem,
    SentStep,
    TextKey,
)

MAX_OPEN_ITEMS: Final = 1000
"""Maximum open items: all are ended in one go. No agent was seen with a hundred."""
MAX_ITEMS: Final = 5000
"""Maximum items of a turn: all are in the final object. An hour's work has some hundreds."""
MAX_RETRIES: Final = 200
"""Maximum retries of a model call."""

UNEXPLAINED = Failure(
    FaultKind.AGENT_PROTOCOL, "The agent reported a failed turn without saying why. Try again."
)


def _failed_end(kind: FaultKind, message: str) -> TurnEnded:
    return TurnEnded.with_failure(Failure(kind, message))


BROKEN_OFF = _failed_end(
    FaultKind.UPSTREAM_DISCONNECTED,
    "The model's answer was interrupted after part of it was sent, and the agent's retry gave "
    "a different answer. Send the request again.",
)
TOO_MANY_OPEN = _failed_end(
    FaultKind.AGENT_PROTOCOL,
    f"The agent began more than {MAX_OPEN_ITEMS} items of its answer and ended none of them. Try again.",
)
TOO_MANY_ITEMS = _failed_end(
    FaultKind.AGENT_PROTOCOL,
    f"The agent began more than {MAX_ITEMS} items in one turn. Ask for less at once.",
)
TOO_MANY_RETRIES = _failed_end(
    FaultKind.UPSTREAM_DISCONNECTED,
    f"The agent has repeated one call of its model more than {MAX_RETRIES} times. Try again later.",
)
WAITS = frozenset({Stop.TOOL_CALLS, Stop.FUNCTION_CALL})
ENDS_WELL = WAITS | {Stop.STOP}


class TurnRepair:
    """Repairs a turn's events: `feed` takes a dialect's events, and returns those for the log, to which the private
    methods append.
    """

    def __init__(self) -> None:
        self.started = False
        self.ended = False
        self._items: dict[str, SentItem] = {}
        """The items by the agent's ids; a renamed or repeated item has several."""
        self._open_items: dict[SentItem, None] = {}
        self._used: set[str] = set()
        self._copies: dict[str, int] = {}
        """For each id that was used several times, the number in the last name made from it."""
        self._step = SentStep()
        self.retrying: Retrying | None = None
        """The last `Retrying`; None if the model has sent something since."""
        self.retries = 0
        """Number of `Retrying` events since the model last sent something."""
        self._signs = TurnSigns()
        self._subagents: dict[str, TurnRepair] = {}
        """The repair of the last turn of each subagent."""
        self._current: tuple[str | None, list[str]] = None, []
        """The message to which the last event belongs, and its texts, if a `TextDelta` can simply be added: most events
        are pieces of one message in a row.
        """
        self._out: list[Event] = []

    @property
    def open_item(self) -> Item | None:
        """The item that was opened last and is still open, or None."""
        newest = next(reversed(self._open_items), None)
        return None if newest is None else newest.item

    @property
    def has_only_texts(self) -> bool:
        """Whether the agent has written messages and reasoning, and neither acted nor called tools."""
        return {type(held.item) for held in self._items.values()} <= {Message, Reasoning}

    def texts(self) -> Iterator[str]:
        """Yields the texts, refusals and arguments that the model has written so far."""
        for held in dict.fromkeys(self._items.values()):
            yield from (held.text(key) for key in (TEXT_KEY, REFUSAL_KEY, ARGUMENTS_KEY) if key in held.sent)

    def feed(self, events: Iterable[Event]) -> list[Event]:
        """Returns the repaired events; none once the turn has ended."""
        self._out = out = []
        handlers = HANDLERS
        current_id, sent = self._current
        for event in events:
            kind = type(event)
            if kind is TextDelta and event.id == current_id:  # type: ignore[union-attr]
                text = event.text  # type: ignore[union-attr]
                if text and (text.isascii() or not FIRST_HALF <= text[-1] < SECOND_HALF):
                    sent.append(text)
                    out.append(event)
                    continue
            if self.ended:
                break
            if not self.started and kind not in (TurnStarted, Notice, AccountLimitsReported):
                self._on_turn_started(TurnStarted())
            handler = handlers.get(kind)
            if handler is None:
                out.append(event)
            else:
                handler(self, event)
            if kind is TextDelta and self._is_plain_message(event.id):  # type: ignore[union-attr]
                current_id = event.id  # type: ignore[union-attr]
                sent = self._items[current_id].sent.setdefault(TEXT_KEY, [])
            else:
                current_id = None
            self._current = current_id, sent
        return out

    def _is_plain_message(self, id: str) -> bool:
        """Whether this message is open and undisturbed, so that its next `TextDelta` can pass unchecked."""
        held = self._items.get(id)
        return (
            held is not None
            and held.id == id
            and held.open
            and held.repetition is None
            and not (held.whole or held.halves)
            and type(held.item) is Message
            and not self.ended
        )

    # --- the turn -------------------------------------------------------------------------------

    def _on_turn_started(self, event: TurnStarted) -> None:
        if not self.started:
            self.started = True
            self._out.append(event)

    def _on_turn_ended(self, event: TurnEnded) -> None:
        if event.stop in ENDS_WELL and self._step.still_to_repeat:
            event = BROKEN_OFF
        stop, failure = event.stop, event.failure
        if stop == Stop.FAILED and failure is None:
            failure = UNEXPLAINED
        elif stop != Stop.FAILED:
            failure = None
        status: ItemStatus = "completed" if stop in ENDS_WELL else "incomplete"
        for held in list(self._open_items):
            self._close(held, status)
        self.ended = True
        if stop not in WAITS:
            self._end_subagents()
        self._out.append(TurnEnded(stop, event.trigger, failure, event.choice_stops, empty=event.empty))

    def _end_subagents(self) -> None:
        for id, repair in self._subagents.items():
            if repair.started and not repair.ended:
                self._feed_subagent(id, repair, TurnEnded(Stop.INTERRUPTED))

    def _feed_subagent(self, id: str, repair: TurnRepair, event: Event) -> None:
        self._out += [OfSubagent(id, each) for each in repair.feed([event])]

    def _on_of_subagent(self, event: OfSubagent) -> None:
        repair = self._subagents.get(event.id)
        if repair is None or repair.ended:
            repair = self._subagents[event.id] = TurnRepair()
        self._feed_subagent(event.id, repair, event.event)

    def with_reason(self, ended: TurnEnded) -> TurnEnded:
        """Returns the agent's end, which `feed` has returned; with the reason if the turn is empty or the agent has
        cancelled it, or as a failure (`core/events.py`).
        """
        items, stops = self._items.values(), ended.choice_stops or {}
        cancelled = Stop.INTERRUPTED in (ended.stop, *stops.values())
        if stops or any(map(_has_content, items)):
            return msgspec.structs.replace(ended, empty="cancelled") if cancelled else ended
        if ended.stop not in ENDS_WELL and not cancelled:
            return ended
        kinds = {type(held.item) for held in items}
        found = explain_empty_answer(self._signs, reasoned=Reasoning in kinds, acted=Activity in kinds)
        if isinstance(found, Failure):
            return TurnEnded(Stop.FAILED, ended.trigger, found)
        return msgspec.structs.replace(ended, empty="cancelled" if cancelled else found)

    def _on_usage_reported(self, event: UsageReported) -> None:
        self._signs.model_answered = self._signs.model_answered or event.usage.output > 0
        self._out.append(event)

    def _on_question(self, event: ApprovalRequested | InputRequested) -> None:
        self._signs.has_asked = True
        self._out.append(event)

    def _on_step_completed(self, event: StepCompleted) -> None:
        if self._step.still_to_repeat:
            self._on_turn_ended(BROKEN_OFF)
            return
        self._step.complete()
        self._signs.model_answered = True
        self.retrying, self.retries = None, 0
        self._out.append(event)

    def _on_input_taken(self, event: InputTaken) -> None:
        """Ends what the model was writing, as incomplete: it does not go on with that."""
        for held in [held for held in self._open_items if isinstance(held.item, Message | Reasoning)]:
            self._close(held, "incomplete")
        self._step.complete()
        self.retrying, self.retries = None, 0
        self._out.append(event)

    def _on_retrying(self, event: Retrying) -> None:
        self._out.append(Notice("agent_retry", event.message))
        self.retrying = event
        self.retries += 1
        if not self._step.can_retry:
            self._on_turn_ended(BROKEN_OFF)
            return
        if self._step.retries >= MAX_RETRIES:
            self._on_turn_ended(TOO_MANY_RETRIES)
            return
        for held in [held for held in self._open_items if isinstance(held.item, Reasoning)]:
            self._close(held, "incomplete")
        self._step.retry()

    # --- items ----------------------------------------------------------------------------------

    def _on_item_started(self, event: ItemStarted) -> None:
        self.retrying, self.retries = None, 0
        item = event.item
        held = self._items.get(item.id)
        known = held is not None and (held.open or held.repetition is not None)
        if known and not self._step.waits_for(held):
            return
        if isinstance(item, Message) and (repeated := self._step.begin_to_repeat(held)) is not None:
            self._items[item.id] = repeated
            return
        if held is not None and held.open:
            return
        if isinstance(item, Reasoning) and self._step.mutes_reasoning:
            return
        self._open(item)

    def _open(self, item: Item) -> None:
        named = item
        if item.id in self._used:  # some providers count their ids from 0 in every answer
            named = msgspec.structs.replace(item, id=self._unused_id(item.id))
        held = SentItem(named)
        self._used.add(named.id)
        self._items[item.id] = held
        self._open_items[held] = None
        if not isinstance(named, SERVER_ITEMS):
            self._step.add(held)
        self._out.append(ItemStarted(named))
        if len(self._open_items) > MAX_OPEN_ITEMS:
            self._on_turn_ended(TOO_MANY_OPEN)
        elif len(self._used) > MAX_ITEMS:
            self._on_turn_ended(TOO_MANY_ITEMS)

    def _unused_id(self, id: str) -> str:
        number = self._copies.get(id, 1) + 1
        while f"{id}~{number}" in self._used:
            number += 1
        self._copies[id] = number
        return f"{id}~{number}"

    def _on_item_ended(self, event: ItemEnded) -> None:
        held = self._items.get(event.id)
        if held is None or self._step.waits_for(held):
            return
        if held.still_to_repeat:
            self._on_turn_ended(BROKEN_OFF)
            return
        held.repetition = None
        if held.open:
            self._close(held, event.status, event.details)

    def _close(self, held: SentItem, status: ItemStatus, details: ActionDetails | None = None) -> None:
        for key, half in held.halves.items():
            text = without_surrogates(half)
            held.sent.setdefault(key, []).append(text)
            self._out.append(_delta_of(held.id, key, text))
        held.open = False
        del self._open_items[held]
        self._out.append(ItemEnded(held.id, status, details))

    def _kind_of_item(self, id: str, kinds: tuple[type[Item], ...]) -> type[Item]:
        held = self._items.get(id)
        return type(held.item) if held is not None and type(held.item) in kinds else kinds[0]

    def _item_for_delta(self, id: str, kind: type[Item], implied: Item | None) -> SentItem | None:
        """Returns the open item for a delta, or opens `implied`; else adds a `Notice` and returns None."""
        held = self._items.get(id)
        if held is None:
            if implied is None:
                self._out.append(Notice("stray_delta", kind.__name__))
                return None
            self._on_item_started(ItemStarted(implied))
            held = self._items.get(id)
        if held is None or self.ended:
            return None
        if held.repetition is not None and type(held.item) is kind:
            self._step.note_repetition(held)
            return held
        if not held.open or type(held.item) is not kind:
            self._out.append(Notice("late_delta", kind.__name__))
            return None
        return held

    # --- texts ----------------------------------------------------------------------------------

    def _on_text_delta(self, event: TextDelta) -> None:
        held = self._items.get(event.id)
        if held is None or not held.open or held.repetition is not None or type(held.item) is not Message:
            held = self._item_for_delta(event.id, Message, Message(event.id))
            if held is None:
                return
        if held.whole and not self._is_text_open(held, TEXT_KEY):
            return
        text = held.with_half(TEXT_KEY, event.text)
        if held.repetition is not None:
            text = self._unsent_suffix(held, text)
            if self.ended:
                return
        if text:
            held.sent.setdefault(TEXT_KEY, []).append(text)
            same = held.id == event.id and text is event.text
            self._out.append(event if same else TextDelta(held.id, text))

    def _unsent_suffix(self, held: SentItem, text: str) -> str:
        """Returns what a repeating message's delta has beyond what was sent; if it differs, or continues an ended
        message, fails the turn and returns "".
        """
        assert held.repetition is not None
        new = held.repetition.unsent_part_of(text)
        if new is None or (new and not held.open):  # another text, or more of one that was complete
            self._on_turn_ended(BROKEN_OFF)
            return ""
        if new:
            held.repetition = None
        return new

    def _on_full_text(self, event: FullText) -> None:
        held = self._items.get(event.id)
        if held is not None and not held.open and held.repetition is None:
            return
        held = self._item_for_delta(event.id, Message, Message(event.id))
        if held is None:
            return
        if held.repetition is None:
            self._send_missing_text(held, TEXT_KEY, event.text)
        elif (rest := held.repetition.rest_of(event.text)) is not None:
            self._on_text_delta(TextDelta(event.id, rest))
        else:
            self._out.append(Notice("revised_text", TEXT_KEY[0]))
        held.whole.add(TEXT_KEY)

    def _send_missing_text(self, held: SentItem, key: TextKey, whole: str) -> None:
        """Appends a delta with the unsent end of the item's full text `key`; a `Notice` if it does not begin with what
        was sent.
        """
        held.whole.add(key)
        if not whole.isascii():
            whole = without_surrogates(whole)
        size = held.size_sent_of(key, whole)
        if size is None:
            self._out.append(Notice("revised_text", key[0]))
            return
        held.halves.pop(key, None)
        if rest := whole[size:]:
            held.sent.setdefault(key, []).append(rest)
            self._out.append(_delta_of(held.id, key, rest))

    def _is_text_open(self, held: SentItem, key: TextKey) -> bool:
        # A delta after the full text repeats a part of it.
        if key in held.whole:
            self._out.append(Notice("late_delta", key[0]))
            return False
        return True

    def _on_refusal_delta(self, event: RefusalDelta) -> None:
        held = self._item_for_delta(event.id, Message, Message(event.id))
        if held is not None and held.open:
            text = held.with_half(REFUSAL_KEY, event.text)
            if text:
                held.sent.setdefault(REFUSAL_KEY, []).append(text)
                self._out.append(RefusalDelta(held.id, text))

    def _on_annotation_added(self, event: AnnotationAdded) -> None:
        held = self._items.get(event.id)
        if held is None or not held.open or type(held.item) is not Message:
            self._out.append(Notice("late_delta", "annotation"))
        elif held.repetition is None:  # one that is repeated was sent before
            self._out.append(AnnotationAdded(held.id, event.json))

    def _on_hosted_event(self, event: HostedEvent) -> None:
        held = self._items.get(event.id)
        if held is None or not held.open or type(held.item) is not Activity:
            self._out.append(Notice("late_delta", "hosted"))
        else:
            self._out.append(HostedEvent(held.id, event.type, event.json))

    def _on_reasoning_delta(self, event: ReasoningDelta) -> None:
        if self._step.mutes_reasoning:
            return
        held, key = self._item_for_delta(event.id, Reasoning, Reasoning(event.id)), (event.kind, event.part)
        if held is not None and event.text and self._is_text_open(held, key):
            text = held.with_half(key, event.text)
            if text:
                held.sent.setdefault(key, []).append(text)
                self._out.append(ReasoningDelta(held.id, text, event.part, event.kind))

    def _on_full_reasoning(self, event: FullReasoning) -> None:
        held = self._items.get(event.id)
        if self._step.mutes_reasoning or (held is not None and not held.open):
            return
        held = self._item_for_delta(event.id, Reasoning, Reasoning(event.id))
        if held is not None:
            self._send_missing_text(held, (event.kind, event.part), event.text)

    def _on_arguments_delta(self, event: ArgumentsDelta) -> None:
        held = self._item_for_delta(event.id, self._kind_of_item(event.id, CALLS), None)
        if held is not None and event.text and self._is_text_open(held, ARGUMENTS_KEY):
            text = held.with_half(ARGUMENTS_KEY, event.text)
            if text:
                held.sent.setdefault(ARGUMENTS_KEY, []).append(text)
                self._out.append(ArgumentsDelta(held.id, text))

    def _on_full_arguments(self, event: FullArguments) -> None:
        held = self._items.get(event.id)
        if held is not None and not held.open:
            return
        held = self._item_for_delta(event.id, self._kind_of_item(event.id, CALLS), None)
        if held is not None:
            self._send_missing_text(held, ARGUMENTS_KEY, event.text)

    def _on_output_delta(self, event: OutputDelta) -> None:
        held = self._item_for_delta(event.id, self._kind_of_item(event.id, WITH_OUTPUT), None)
        if held is not None and (text := held.with_half(OUTPUT_KEY, event.text)):
            self._out.append(OutputDelta(held.id, text))


def _delta_of(id: str, key: TextKey, text: str) -> Event:
    kind, part = key
    make = _DELTAS.get(kind)
    return ReasoningDelta(id, text, part, cast("ReasoningKind", kind)) if make is None else make(id, text)


def _has_content(held: SentItem) -> bool:
    item = held.item
    if isinstance(item, CALLS) or (isinstance(item, Activity) and item.hosted):
        return True
    return bool(held.sent.get(TEXT_KEY) or held.sent.get(REFUSAL_KEY))


_DELTAS: Final[dict[str, Callable[[str, str], Event]]] = {
    "text": TextDelta,
    "refusal": RefusalDelta,
    "arguments": ArgumentsDelta,
    "output": OutputDelta,
}
"""The types of deltas by the kind of a text; others are reasoning."""
HANDLERS: Final[dict[type, Callable[[TurnRepair, Any], None]]] = {
    TurnStarted: TurnRepair._on_turn_started,
    TurnEnded: TurnRepair._on_turn_ended,
    ItemStarted: TurnRepair._on_item_started,
    ItemEnded: TurnRepair._on_item_ended,
    TextDelta: TurnRepair._on_text_delta,
    FullText: TurnRepair._on_full_text,
    RefusalDelta: TurnRepair._on_refusal_delta,
    AnnotationAdded: TurnRepair._on_annotation_added,
    HostedEvent: TurnRepair._on_hosted_event,
    ReasoningDelta: TurnRepair._on_reasoning_delta,
    FullReasoning: TurnRepair._on_full_reasoning,
    ArgumentsDelta: TurnRepair._on_arguments_delta,
    FullArguments: TurnRepair._on_full_arguments,
    OutputDelta: TurnRepair._on_output_delta,
    StepCompleted: TurnRepair._on_step_completed,
    UsageReported: TurnRepair._on_usage_reported,
    ApprovalRequested: TurnRepair._on_question,
    InputRequested: TurnRepair._on_question,
    InputTaken: TurnRepair._on_input_taken,
    OfSubagent: TurnRepair._on_of_subagent,
    Retrying: TurnRepair._on_retrying,
}
"""The methods by event; other events pass unchanged. Bound methods in each turn would be a reference cycle."""
