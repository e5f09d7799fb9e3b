"""What an agent says costs what it weighs on its way to a client: each stage from the repair to the renderers takes
CPU time and memory in proportion to the events, whatever their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pytest

from codex_proxy.core.events import (
    AnnotationAdded,
    AnswerDetails,
    ArgumentsDelta,
    Event,
    FullArguments,
    FullText,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    RawItem,
    ReasoningDelta,
    RefusalDelta,
    Retrying,
    StepCompleted,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.items import Activity, Item, McpCall, Message, Reasoning, ToolCall
from codex_proxy.core.limits import TurnLimits
from codex_proxy.core.repair import TurnRepair
from codex_proxy.runs.event_log import EventLog
from tests.growth import assert_linear
from tests.surfaces.chat import answering as chat
from tests.surfaces.messages import answering as messages
from tests.surfaces.responses import answering as responses

BATCH: Final = 20
"""Events of one read."""
END: Final[list[Event]] = [StepCompleted(), TurnEnded(Stop.STOP)]


def turn(*parts: Iterable[Event]) -> list[Event]:
    said: list[Event] = [event for part in parts for event in part]
    return [TurnStarted(), *said, *END]


def call(id: str) -> ToolCall:
    return ToolCall(id, f"call_{id}", "f", "function")


def one_by_one(count: int, item: Callable[[str], Item], *inside: Callable[[str], Event]) -> list[Event]:
    """Items that each end before the next begins."""
    ids = map(str, range(count))
    return turn(*([ItemStarted(item(id)), *(make(id) for make in inside), ItemEnded(id)] for id in ids))


def side_by_side(count: int, item: Callable[[str], Item], inside: Callable[[str], Event]) -> list[Event]:
    """Items that all begin before the first ends."""
    ids = [str(number) for number in range(count)]
    return turn(
        (ItemStarted(item(id)) for id in ids), map(inside, ids), map(inside, ids), map(ItemEnded, ids)
    )


def backwards(count: int, item: Callable[[str], Item], inside: Callable[[str], Event]) -> list[Event]:
    """The same, but the last one ends first."""
    ids = [str(number) for number in range(count)]
    return turn((ItemStarted(item(id)) for id in ids), map(inside, ids), map(ItemEnded, reversed(ids)))


def text(id: str) -> Event:
    return TextDelta(id, "word ")


def reasoning_delta(id: str) -> Event:
    return ReasoningDelta(id, "word ")


def arguments(id: str) -> Event:
    return ArgumentsDelta(id, "word ")


def output(id: str) -> Event:
    return OutputDelta(id, "word ")


def source(id: str) -> Event:
    return AnnotationAdded(id, b'{"type":"url_citation","url":"x","start_index":1,"end_index":2}')


def command(id: str) -> Activity:
    return Activity(id, "command", "ls")


def search(id: str) -> Activity:
    return Activity(id, "web_search", "q")


def mcp(id: str) -> McpCall:
    return McpCall(id, f"call_{id}", "server", "tool")


def inside(item: Item, *events: Event) -> list[Event]:
    return turn([ItemStarted(item)], events, [ItemEnded(item.id)])


ENCRYPTED: Final = b'{"type":"reasoning","encrypted_content":"x"}'
SHAPES: Final[dict[str, tuple[int, Callable[[int], list[Event]]]]] = {
    "deltas": (3000, lambda n: inside(Message("a"), *[text("a")] * n)),
    "deltas of reasoning": (2000, lambda n: inside(Reasoning("a"), *[reasoning_delta("a")] * n)),
    "deltas of arguments": (2000, lambda n: inside(call("a"), *[arguments("a")] * n)),
    "deltas of a refusal": (2000, lambda n: inside(Message("a"), *[RefusalDelta("a", "word")] * n)),
    "deltas of an output": (2000, lambda n: inside(command("a"), *[output("a")] * n)),
    "parts of reasoning": (1000, lambda n: inside(Reasoning("a"), *(ReasoningDelta("a", "a", i) for i in range(n)))),
    "sources": (1000, lambda n: inside(Message("a"), text("a"), *[source("a")] * n)),
    "sources behind many deltas": (500, lambda n: inside(Message("a"), *[text("a"), source("a")] * n)),
    "sources of many messages": (1200, lambda n: one_by_one(n, Message, text, source)),
    "messages": (1200, lambda n: one_by_one(n, Message, text)),
    "messages without a text": (500, lambda n: one_by_one(n, Message)),
    "messages side by side": (240, lambda n: side_by_side(n, Message, text)),
    "messages that end backwards": (240, lambda n: backwards(n, Message, text)),
    "messages without an end": (240, lambda n: turn(ItemStarted(Message(str(i))) for i in range(n))),
    "reasoning": (1200, lambda n: one_by_one(n, Reasoning, reasoning_delta)),
    "reasoning side by side": (240, lambda n: side_by_side(n, Reasoning, reasoning_delta)),
    "reasoning that ends backwards": (240, lambda n: backwards(n, Reasoning, reasoning_delta)),
    "calls": (1200, lambda n: one_by_one(n, call, arguments)),
    "calls side by side": (240, lambda n: side_by_side(n, call, arguments)),
    "calls that end backwards": (240, lambda n: backwards(n, call, arguments)),
    "calls of tools of MCP": (240, lambda n: side_by_side(n, mcp, arguments)),
    "commands": (1200, lambda n: one_by_one(n, command, output)),
    "commands side by side": (240, lambda n: side_by_side(n, command, output)),
    "searches": (1200, lambda n: one_by_one(n, search)),
    "one id again and again": (1200, lambda n: turn(*[[ItemStarted(Message("a")), text("a"), ItemEnded("a")]] * n)),
    "whole texts": (1200, lambda n: one_by_one(n, Message, text, lambda id: FullText(id, "word and more"))),
    "whole texts again and again": (300, lambda n: inside(Message("a"), *[text("a"), FullText("a", "word ")] * n)),
    "whole arguments": (1200, lambda n: one_by_one(n, call, lambda id: FullArguments(id, "{}"))),
    "steps": (1200, lambda n: turn(*(
        [ItemStarted(Message(str(i))), text(str(i)), ItemEnded(str(i)), StepCompleted()] for i in range(n)
    ))),
    "retries": (45, lambda n: turn([ItemStarted(Message("a")), text("a")], *[[Retrying("again"), text("a")]] * n)),
    "raw items": (1000, lambda n: turn([RawItem("reasoning", ENCRYPTED)] * n)),
    "details": (500, lambda n: turn(AnswerDetails({}, b"[]", {}) for _ in range(n))),
    "late deltas": (1000, lambda n: turn(text("a") for _ in range(n))),
}  # fmt: skip


def batches(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    return (events[start : start + BATCH] for start in range(0, len(events), BATCH))


def repair_events(events: Sequence[Event]) -> list[list[Event]]:
    repair = TurnRepair()
    return [repair.feed(batch) for batch in batches(events)]


def limit_events(events: Sequence[Event]) -> list[Any]:
    limits = TurnLimits(chars=1 << 30, stop=["never", "wor never"], max_tokens=1 << 30)
    return [limits.feed(batch) for batch in repair_events(events)]


def logged(events: Sequence[Event]) -> EventLog:
    log = EventLog()
    readers = [log.cursor() for _ in range(3)]
    for number, batch in enumerate(repair_events(events)):
        log.append(batch, BATCH)
        readers[number % 3].take()
    return log


def renderer_call(make: Callable[[], Any]) -> Callable[[Sequence[Event]], Any]:
    def read(events: Sequence[Event]) -> Any:
        renderer = make()
        frames = [renderer.feed(batch) for batch in repair_events(events)]
        return frames, renderer.result(), renderer.spending()

    return read


READERS: Final[dict[str, Callable[[Sequence[Event]], Any]]] = {
    "repair": repair_events,
    "limits": limit_events,
    "log": logged,
    "chat": renderer_call(lambda: chat.renderer(stream=True)),
    "responses": renderer_call(lambda: responses.renderer(stream=True, encrypted_reasoning=True)),
    "responses with activity": renderer_call(lambda: responses.renderer(stream=True, activity="items")),
    "messages": renderer_call(lambda: messages.renderer(stream=True)),
}


@pytest.mark.sampled(every=37)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reader", READERS)
def test_a_turn_takes_time_proportional_to_its_events(reader: str, shape: str) -> None:
    size, make = SHAPES[shape]
    if reader.startswith("responses"):  # of the slowest renderer a third takes long enough
        size = max(size // 3, 45)
    assert_linear(make, READERS[reader], size)
