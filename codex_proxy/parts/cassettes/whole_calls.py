"""Calls as a turn wants them: what this server checks, runs or hides has to be whole before the client hears of it, and
may have been recorded for a request that got it in pieces. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    FullArguments,
    ItemEnded,
    ItemStarted,
    Retrying,
    StepCompleted,
    Stop,
    ToolCallRequested,
    TurnEnded,
)
from codex_proxy.core.items import ToolCall
from codex_proxy.core.turn import Turn


class WholeCalls:
    """Replaces the items of calls by requests, which the tool policy decides about."""

    def __init__(self, turn: Turn, events: Iterable[Event], *, takes_replies: bool) -> None:
        """`events`: all of the session. `takes_replies`: whether its agent takes outputs within a turn, so that a call
        which it did not request is one that it would have.
        """
        self._parallel = turn.parallel_tool_calls
        self._held = {tool.name for tool in turn.tools if tool.is_checked or tool.mcp is not None}
        self._takes_replies = takes_replies
        self._requested = {
            event.item_id or event.call_id for event in events if isinstance(event, ToolCallRequested)
        }
        self._hidden: set[str] = set()
        """The items that are left out."""
        self._calls: dict[str, tuple[ToolCall, list[str]]] = {}
        """The step's calls that were not requested, and the pieces of their arguments, by their items."""

    def feed(self, event: Event) -> list[Event]:
        """Takes the next recorded event, and returns the events in its place."""
        if isinstance(event, ToolCallRequested):
            is_shown = not event.item_reported or self._is_shown(event.name)
            return [event if is_shown else replace(event, item_reported=False)]
        if isinstance(event, ItemStarted):
            return [] if isinstance(event.item, ToolCall) and self._hide(event.item) else [event]
        if not self._hidden:
            return [event]
        if isinstance(event, ArgumentsDelta | FullArguments | ItemEnded) and event.id in self._hidden:
            self._take(event)
            return []
        if isinstance(event, StepCompleted):
            return [*self._requests(), event]
        if isinstance(event, Retrying):
            self._calls.clear()
        if isinstance(event, TurnEnded) and event.stop in (Stop.TOOL_CALLS, Stop.FUNCTION_CALL):
            left = self._requests()  # the calls end the turn if they are valid
            return [*left, StepCompleted()] if left else []
        return [event]

    def _is_shown(self, name: str) -> bool:
        return self._parallel and name not in self._held

    def _hide(self, item: ToolCall) -> bool:
        """Whether a call's item is left out."""
        if self._is_shown(item.name) or item.choice or item.kind == "legacy":
            return False
        if item.id not in self._requested:
            if not self._takes_replies:
                return False
            self._calls[item.id] = item, []
        self._hidden.add(item.id)
        return True

    def _take(self, event: ArgumentsDelta | FullArguments | ItemEnded) -> None:
        if event.id not in self._calls:
            return
        _, pieces = self._calls[event.id]
        if isinstance(event, FullArguments):
            pieces.clear()
        if not isinstance(event, ItemEnded):
            pieces.append(event.text)
        elif event.status != "completed":
            del self._calls[event.id]

    def _requests(self) -> list[ToolCallRequested]:
        calls, self._calls = self._calls, {}
        return [
            ToolCallRequested(
                *(item.call_id, item.call_id, item.name, "".join(pieces), item.id),
                kind="custom" if item.kind == "custom" else "function",
                old_form=item.old_form,
            )
            for item, pieces in calls.values()
        ]
