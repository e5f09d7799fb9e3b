"""Turns that tests tell: each a short list of events."""

from __future__ import annotations

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    StepCompleted,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import (
    Activity,
    ItemStatus,
    McpApproval,
    McpCall,
    McpTools,
    Message,
    Reasoning,
    ToolCall,
)

USAGE = Usage(input=11, cached=3, output=7, reasoning=2)
TOOLS = b'[{"name":"read","description":"Reads.","input_schema":{"type":"object"}}]'
CRASH = Failure(kind=FaultKind.TIMED_OUT, message="The agent took too long.")


def text_item(*texts: str, id: str = "m", choice: int | None = None) -> list[Event]:
    """A message, one delta per text."""
    deltas = [TextDelta(id, text) for text in texts]
    return [ItemStarted(Message(id, choice)), *deltas, ItemEnded(id)]


def tool_call(
    *arguments: str, id: str = "t", name: str = "get_weather", choice: int | None = None
) -> list[Event]:
    """A call of a function; its call id is `call_` and the item's id."""
    deltas = [ArgumentsDelta(id, text) for text in arguments]
    return [ItemStarted(ToolCall(id, f"call_{id}", name, choice=choice)), *deltas, ItemEnded(id)]


def reasoning_item(*texts: str, id: str = "r") -> list[Event]:
    """A reasoning item, one summary part per text."""
    deltas = [ReasoningDelta(id, text, part) for part, text in enumerate(texts)]
    return [ItemStarted(Reasoning(id)), *deltas, ItemEnded(id)]


def activity(text: str, id: str = "c") -> list[Event]:
    return [ItemStarted(Activity(id, "command", text)), ItemEnded(id)]


def tool_list(id: str = "l", error: str | None = None) -> list[Event]:
    """What a server has, or why it has nothing."""
    status: ItemStatus = "completed" if error is None else "failed"
    item = McpTools(id, "files", b"[]" if error else TOOLS, error)
    return [ItemStarted(item), ItemEnded(id, status)]


def open_call(id: str = "a", arguments: str = '{"path":"x"}', approved_by: str | None = None) -> list[Event]:
    """A call of ours that is under way."""
    item = McpCall(id, f"call_{id}", "files", "read", approved_by)
    return [ItemStarted(item), ArgumentsDelta(id, arguments)]


def gave(text: str, id: str = "a", status: ItemStatus = "completed") -> list[Event]:
    return [OutputDelta(id, text), ItemEnded(id, status)]


def approval(id: str = "q") -> list[Event]:
    """A call that the client is to approve."""
    started = ItemStarted(McpApproval(id, f"call_{id}", "files", "write"))
    return [started, ArgumentsDelta(id, '{"path":'), ArgumentsDelta(id, '"x"}'), ItemEnded(id)]


def usage(usage: Usage = USAGE) -> list[Event]:
    return [UsageReported(usage, "token_count")]


def step(usage: Usage | None) -> list[Event]:
    return [StepCompleted(usage)]


def turn(
    *parts: list[Event], stop: str = "stop", choice_stops: dict[int, str] | None = None, cut: bool = False
) -> list[Event]:
    """A whole turn that ends well."""
    events = [event for part in parts for event in part]
    return [TurnStarted(), *events, TurnEnded(stop, choice_stops=choice_stops, cut=cut)]


def failed_turn(*parts: list[Event]) -> list[Event]:
    return [*turn(*parts)[:-1], TurnEnded("failed", failure=CRASH)]
