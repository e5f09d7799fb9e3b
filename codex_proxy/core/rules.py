"""The rules of a turn: any sequence of events becomes a well-formed one, here and nowhere else.

What comes out always holds:
- exactly one `TurnStarted`, first of all but notes, and one `TurnEnded`, last;
- a delta only inside an open item of its kind, every item opened once and closed once;
- the deltas of an item, joined, are its final text; nothing that was said is unsaid;
- no `*Whole` and no `Retrying`: a text that comes in deltas and whole is sent once, and what the
  agent repeats after a retry is swallowed as far as it repeats what was sent, else the turn fails.

It knows no dialect and no wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from codex_proxy.core.events import (
    AccountLimitsReported,
    ArgumentsDelta,
    Event,
    FullArguments,
    FullReasoning,
    FullText,
    ItemEnded,
    ItemStarted,
    Notice,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    Retrying,
    StepCompleted,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import (
    CALLS,
    PRINTING,
    SERVER_ITEMS,
    Item,
    ItemStatus,
    Message,
    Reasoning,
    ToolCall,
)

CUT_SHORT = Failure(
    kind=FaultKind.UPSTREAM_DISCONNECTED,
    message="The model's answer broke off after part of it was sent, and the agent's next try said something "
    "else. Send the request again.",
)
UNEXPLAINED = Failure(
    kind=FaultKind.AGENT_PROTOCOL, message="The agent reported a failed turn without saying why. Try again."
)
BROKEN_OFF = TurnEnded(Stop.FAILED, "provider", CUT_SHORT)
ENDS_WELL = frozenset({Stop.STOP, Stop.TOOL_CALLS, Stop.FUNCTION_CALL})


class _Open:
    """An item while it is open, and what was said in it. After its end kept only for a retry of its step."""

    __slots__ = ("expected", "id", "item", "matched", "open", "said", "whole")

    def __init__(self, item: Item) -> None:
        self.id = item.id
        self.item = item
        self.open = True
        self.said: dict[tuple[str, int], list[str]] = {}
        self.whole: frozenset[tuple[str, int]] = frozenset()
        """Texts that were told as a whole: a delta that comes after that repeats them."""
        self.expected: str | None = None
        """While the agent repeats itself: what was sent already, to be matched from `matched` on."""
        self.matched = 0

    def text(self, key: tuple[str, int]) -> str:
        return "".join(self.said.get(key, ()))

    @property
    def still_to_repeat(self) -> bool:
        """The agent has not repeated yet all that was sent of it."""
        return self.expected is not None and self.matched < len(self.expected)


TEXT, REFUSAL, ARGUMENTS, OUTPUT = ("text", 0), ("refusal", 0), ("arguments", 0), ("output", 0)


class TurnRepair:
    """The state of one turn. `feed` takes what a dialect says and gives what a log may hold."""

    def __init__(self) -> None:
        self.started = False
        self.ended = False
        self._items: dict[str, _Open] = {}
        """By the id that the child uses; a renamed or repeated item has several keys."""
        self._order: list[_Open] = []
        """Open items, in the order in which they were opened."""
        self._used: set[str] = set()
        self._step: list[_Open] = []
        """Items of the model call that is under way, ended ones too."""
        self._replay: list[_Open] = []
        """After a retry: messages of the step that are still to be repeated, oldest first."""
        self._mute_reasoning = False
        self._out: list[Event] = []

    def feed(self, events: Iterable[Event]) -> list[Event]:
        """The same events, repaired. Empty once the turn has ended."""
        self._out = out = []
        handlers = HANDLERS
        # Most events are pieces of one message in a row, of which nothing has to be found out again.
        speaker: str | None = None
        said: list[str] = []
        for event in events:
            kind = type(event)
            if kind is TextDelta and event.id == speaker and event.text:  # type: ignore[union-attr]
                said.append(event.text)  # type: ignore[union-attr]
                out.append(event)
                continue
            if self.ended:
                break
            if not self.started and kind not in (TurnStarted, Notice, AccountLimitsReported):
                self._turn_started(TurnStarted())
            handler = handlers.get(kind)
            if handler is None:
                out.append(event)
            else:
                handler(self, event)
            if kind is TextDelta and self._plain(event.id):  # type: ignore[union-attr]
                speaker = event.id  # type: ignore[union-attr]
                said = self._items[speaker].said.setdefault(TEXT, [])
            else:
                speaker = None
        return out

    def _plain(self, id: str) -> bool:
        """Whether the next piece of this message goes on as it is."""
        held = self._items.get(id)
        return (
            held is not None
            and held.id == id
            and held.open
            and held.expected is None
            and not held.whole
            and type(held.item) is Message
            and not self.ended
        )

    # --- the turn -------------------------------------------------------------------------------

    def _turn_started(self, event: TurnStarted) -> None:
        if not self.started:
            self.started = True
            self._out.append(event)

    def _turn_ended(self, event: TurnEnded) -> None:
        if event.stop in ENDS_WELL and any(held.still_to_repeat for held in self._step):
            event = BROKEN_OFF
        stop, failure = event.stop, event.failure
        if stop == Stop.FAILED and failure is None:
            failure = UNEXPLAINED
        elif stop != Stop.FAILED:
            failure = None
        status: ItemStatus = "completed" if stop in ENDS_WELL else "incomplete"
        for held in list(self._order):
            self._close(held, status)
        self.ended = True
        self._out.append(TurnEnded(stop, event.trigger, failure, event.choice_stops))

    def _step_completed(self, event: StepCompleted) -> None:
        if any(held.still_to_repeat for held in self._step):
            self._turn_ended(BROKEN_OFF)
            return
        for held in self._step:
            held.expected = None
        self._step.clear()
        self._replay.clear()
        self._mute_reasoning = False
        self._out.append(event)

    def _retrying(self, event: Retrying) -> None:
        self._out.append(Notice("agent_retry", event.message))
        if any(isinstance(held.item, ToolCall) or REFUSAL in held.said for held in self._step):
            self._turn_ended(BROKEN_OFF)
            return
        for held in [held for held in self._order if isinstance(held.item, Reasoning)]:
            self._close(held, "incomplete")
        self._mute_reasoning = self._mute_reasoning or any(
            isinstance(held.item, Reasoning) and held.said for held in self._step
        )
        self._replay.clear()
        for held in self._step:
            if isinstance(held.item, Message):
                held.expected, held.matched, held.whole = held.text(TEXT), 0, frozenset()
                if held.expected or held.open:
                    self._replay.append(held)
                else:
                    held.expected = None

    # --- items ----------------------------------------------------------------------------------

    def _item_started(self, event: ItemStarted) -> None:
        item = event.item
        held = self._items.get(item.id)
        to_repeat = held in self._replay
        if held is not None and not to_repeat and (held.open or held.expected is not None):
            return
        if self._replay and isinstance(item, Message):
            self._items[item.id] = self._replay.pop(self._replay.index(held) if held and to_repeat else 0)
            return
        if held is not None and held.open:
            return
        if isinstance(item, Reasoning) and self._mute_reasoning:
            return
        self._open(item)

    def _open(self, item: Item) -> _Open:
        named, tries = item, 2
        while named.id in self._used:  # some providers count their ids from 0 in every answer
            named = msgspec.structs.replace(item, id=f"{item.id}~{tries}")
            tries += 1
        held = _Open(named)
        self._used.add(named.id)
        self._items[item.id] = held
        self._order.append(held)
        if not isinstance(named, SERVER_ITEMS):
            self._step.append(held)
        self._out.append(ItemStarted(named))
        return held

    def _item_ended(self, event: ItemEnded) -> None:
        held = self._items.get(event.id)
        if held is None or held in self._replay:
            return
        if held.still_to_repeat:
            self._turn_ended(BROKEN_OFF)
            return
        held.expected = None
        if held.open:
            self._close(held, event.status)

    def _close(self, held: _Open, status: ItemStatus) -> None:
        held.open = False
        self._order.remove(held)
        self._out.append(ItemEnded(held.id, status))

    def _kind(self, id: str, kinds: tuple[type[Item], ...]) -> type[Item]:
        """Which of the kinds the item is of; the first for one that is none of them, or not there."""
        held = self._items.get(id)
        return type(held.item) if held is not None and type(held.item) in kinds else kinds[0]

    def _inside(self, id: str, kind: type[Item], implied: Item | None) -> _Open | None:
        """The open item that a delta belongs to; opened now where the child forgot to."""
        held = self._items.get(id)
        if held is None:
            if implied is None:
                self._out.append(Notice("stray_delta", kind.__name__))
                return None
            self._item_started(ItemStarted(implied))
            held = self._items.get(id)
        if held is None:
            return None
        if held.expected is not None and type(held.item) is kind:
            if held in self._replay:
                self._replay.remove(held)
            return held
        if not held.open or type(held.item) is not kind:
            self._out.append(Notice("late_delta", kind.__name__))
            return None
        return held

    # --- texts ----------------------------------------------------------------------------------

    def _text_delta(self, event: TextDelta) -> None:
        held = self._items.get(event.id)
        if held is None or not held.open or held.expected is not None or type(held.item) is not Message:
            held = self._inside(event.id, Message, Message(event.id))
            if held is None:
                return
        text = event.text
        if held.whole and not self._is_new(held, TEXT):
            return
        if held.expected is not None:
            text = self._unsent_suffix(held, text)
            if self.ended:
                return
        if text:
            held.said.setdefault(TEXT, []).append(text)
            same = held.id == event.id and text is event.text
            self._out.append(event if same else TextDelta(held.id, text))

    def _unsent_suffix(self, held: _Open, text: str) -> str:
        """While the agent repeats a message: nothing as long as it says the same, then what is new."""
        assert held.expected is not None
        left = held.expected[held.matched : held.matched + len(text)]
        if not text.startswith(left):
            self._turn_ended(BROKEN_OFF)
            return ""
        held.matched += len(left)
        text = text[len(left) :]
        if text:
            if not held.open:  # it was complete, and now it goes on
                self._turn_ended(BROKEN_OFF)
                return ""
            held.expected = None
        return text

    def _text_whole(self, event: FullText) -> None:
        held = self._items.get(event.id)
        if held is not None and not held.open and held.expected is None:
            return
        held = self._inside(event.id, Message, Message(event.id))
        if held is None:
            return
        if held.expected is None:
            self._missing(held, TEXT, event.text, TextDelta)
        elif event.text.startswith(held.expected[: held.matched]):
            self._text_delta(TextDelta(event.id, event.text[held.matched :]))
        else:
            self._out.append(Notice("revised_text", TEXT[0]))
        held.whole |= {TEXT}

    def _missing(
        self, held: _Open, key: tuple[str, int], whole: str, delta: Callable[[str, str], Event]
    ) -> None:
        """Says what the deltas have not said yet. A text that was revised stays as it was sent."""
        held.whole |= {key}
        said = held.text(key)
        if whole.startswith(said):
            if len(whole) > len(said):
                held.said.setdefault(key, []).append(whole[len(said) :])
                self._out.append(delta(held.id, whole[len(said) :]))
        else:
            self._out.append(Notice("revised_text", key[0]))

    def _is_new(self, held: _Open, key: tuple[str, int]) -> bool:
        """Whether a delta says something new: not when the whole text was told before."""
        if key in held.whole:
            self._out.append(Notice("late_delta", key[0]))
            return False
        return True

    def _refusal_delta(self, event: RefusalDelta) -> None:
        held = self._inside(event.id, Message, Message(event.id))
        if held is not None and held.open and event.text:
            held.said.setdefault(REFUSAL, []).append(event.text)
            self._out.append(RefusalDelta(held.id, event.text))

    def _reasoning_delta(self, event: ReasoningDelta) -> None:
        if self._mute_reasoning:
            return
        held = self._inside(event.id, Reasoning, Reasoning(event.id))
        if held is not None and event.text and self._is_new(held, (event.kind, event.part)):
            held.said.setdefault((event.kind, event.part), []).append(event.text)
            self._out.append(ReasoningDelta(held.id, event.text, event.part, event.kind))

    def _reasoning_whole(self, event: FullReasoning) -> None:
        held = self._items.get(event.id)
        if self._mute_reasoning or (held is not None and not held.open):
            return
        held = self._inside(event.id, Reasoning, Reasoning(event.id))
        if held is not None:
            self._missing(
                held,
                (event.kind, event.part),
                event.text,
                lambda id, text: ReasoningDelta(id, text, event.part, event.kind),
            )

    def _arguments_delta(self, event: ArgumentsDelta) -> None:
        held = self._inside(event.id, self._kind(event.id, CALLS), None)
        if held is not None and event.text and self._is_new(held, ARGUMENTS):
            held.said.setdefault(ARGUMENTS, []).append(event.text)
            self._out.append(ArgumentsDelta(held.id, event.text))

    def _arguments_whole(self, event: FullArguments) -> None:
        held = self._items.get(event.id)
        if held is not None and not held.open:
            return
        held = self._inside(event.id, self._kind(event.id, CALLS), None)
        if held is not None:
            self._missing(held, ARGUMENTS, event.text, ArgumentsDelta)

    def _output_delta(self, event: OutputDelta) -> None:
        held = self._inside(event.id, self._kind(event.id, PRINTING), None)
        if held is not None and event.text:
            self._out.append(OutputDelta(held.id, event.text))


HANDLERS: Final[dict[type, Callable[[TurnRepair, Any], None]]] = {
    TurnStarted: TurnRepair._turn_started,
    TurnEnded: TurnRepair._turn_ended,
    ItemStarted: TurnRepair._item_started,
    ItemEnded: TurnRepair._item_ended,
    TextDelta: TurnRepair._text_delta,
    FullText: TurnRepair._text_whole,
    RefusalDelta: TurnRepair._refusal_delta,
    ReasoningDelta: TurnRepair._reasoning_delta,
    FullReasoning: TurnRepair._reasoning_whole,
    ArgumentsDelta: TurnRepair._arguments_delta,
    FullArguments: TurnRepair._arguments_whole,
    OutputDelta: TurnRepair._output_delta,
    StepCompleted: TurnRepair._step_completed,
    Retrying: TurnRepair._retrying,
}
"""What each event does; the others pass as they are. One table for all turns: bound methods in a turn's own would keep
it alive until the garbage collector looks."""
