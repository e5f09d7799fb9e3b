"""A session's state without a server: what clients and the agent do to it, and what of it is stored and told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    Stop,
    TextDelta,
    TurnEnded,
    Usage,
)
from codex_proxy.core.items import Message, ToolCall
from codex_proxy.parts.sessions.agents import AgentSettings
from codex_proxy.parts.sessions.approvals import Approval, Ask, Choice
from codex_proxy.parts.sessions.commands import Result, is_new_answer, is_new_result
from codex_proxy.parts.sessions.items import item_object
from codex_proxy.parts.sessions.log import Logged
from codex_proxy.parts.sessions.sessions import Call, CallResult, Content, Entry, Session, SessionTurn
from codex_proxy.parts.sessions.state import SessionState

HELLO: Content = ({"type": "input_text", "text": "Hello."},)
TOKENS = Usage(input=10, cached=2, output=5, reasoning=1)


def new_session() -> Session:
    return Session(
        id="sess_1",
        created_at=1,
        last_active_at=1,
        agent_id="agent_1",
        agent=AgentSettings(model="codex-5"),
        environment={"type": "none"},
    )


class Driven:
    """A state, with all that was stored, and all that readers were told."""

    def __init__(self, *, begins: bool = True) -> None:
        self.state = SessionState(new_session())
        self.events: list[dict[str, Any]] = []
        self.logged: list[Logged] = []
        self.entries: dict[str, Entry] = {}
        self.calls: dict[str, Call] = {}
        self.asks: dict[str, Ask] = {}
        self.turns: dict[str, SessionTurn] = {}
        self._made = 0
        self.state.create([HELLO] if begins else [], self._turn_id(), 1)
        self.take()

    def _turn_id(self) -> str:
        self._made += 1
        return f"turn_{self._made}"

    def take(self) -> list[str]:
        """Stores and tells what has changed. Returns the types of what was told."""
        changes = self.state.take(7)
        events = changes.events
        self.logged += [each for page in changes.pages.values() for each in page.logged]
        for record in changes.records:
            if isinstance(record, Entry):
                self.entries[record.id] = record
            elif isinstance(record, Call):
                self.calls[record.call_id] = record
            elif isinstance(record, Ask):
                self.asks[record.request_id] = record
            elif isinstance(record, SessionTurn):
                self.turns[record.id] = record
        self.events += events
        return [short(event) for event in events]

    def feed(self, *events: Event) -> list[str]:
        """The agent tells these events of a run."""
        self.state.on_run_began(2)
        self.state.feed(events, 3)
        return self.take()

    def end_run(self, stop: str = Stop.STOP, usage: Usage | None = TOKENS, **more: Any) -> list[str]:
        self.state.on_run_ended(TurnEnded(stop, **more), usage, 3)
        return self.settle()

    def settle(self) -> list[str]:
        self.state.settle(3)
        return self.take()

    def say(self, *texts: str) -> list[str]:
        """A client sends messages."""
        self.state.add_messages(
            [({"type": "input_text", "text": text},) for text in texts], self._turn_id(), 4
        )
        return self.take()

    def answer(self, call_id: str, output: str = "sunny", **more: Any) -> list[str]:
        """A client sends a result of a call."""
        self.give(result(call_id, output, **more))
        return self.take()

    def give(self, given: Result) -> None:
        id = given.result.call_id
        if is_new_result(given, self.state.call(id) or self.calls.get(id), self.state.session):
            self.state.add_result(given, 5)

    def decide(self, request_id: str, choice: Choice, denial: str = "") -> tuple[bool, list[str]]:
        """A client answers a question. Returns whether that is new, and what was told."""
        given = Approval(request_id, choice, denial)
        ask = self.state.ask(request_id) or self.asks.get(request_id)
        new = is_new_answer(given, ask, self.state.session)
        if new and ask is not None:
            self.state.add_answer(given, ask, 5)
        return new, self.take()

    def cancel(self) -> tuple[bool, list[str]]:
        """A client cancels. Returns whether a run has to be ended, and what was told."""
        interrupts = self.state.cancel(6)
        self.state.settle(6)
        return interrupts, self.take()

    @property
    def status(self) -> str:
        return self.state.session.status

    @property
    def items(self) -> list[dict[str, Any]]:
        return [item_object(entry) for entry in self.entries.values()]


def calling(*call_ids: str) -> Driven:
    """A session whose agent has ended a run with these calls."""
    driven = Driven()
    for call_id in call_ids:
        driven.feed(*call(call_id))
    driven.end_run(Stop.TOOL_CALLS)
    return driven


def result(
    call_id: str, output: str | None = "sunny", *, turn: str = "turn_1", success: bool = True
) -> Result:
    return Result(turn, CallResult(call_id, success, output, None if success else "no"))


def message(text: str, id: str = "m") -> Sequence[Event]:
    return ItemStarted(Message(id)), TextDelta(id, text), ItemEnded(id)


def call(call_id: str, arguments: str = '{"city":"Paris"}') -> Sequence[Event]:
    id = f"item of {call_id}"
    return ItemStarted(ToolCall(id, call_id, "get_weather")), ArgumentsDelta(id, arguments), ItemEnded(id)


def short(event: dict[str, Any]) -> str:
    """The type of an event, without what all have in common, and with the type of its item."""
    name = str(event["type"]).removeprefix("agent.session.")
    return f"{name} {event['item']['type']}" if "item" in event else name
