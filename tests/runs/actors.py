"""An agent of words: a test says what its child says, and reads what was done to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from codex_proxy.agents.agent import AgentBase, ProcessCounts
from codex_proxy.agents.dialect import Ended, Reply, Step
from codex_proxy.agents.sessions.session import AgentSession, TransportReader
from codex_proxy.core.account import AgentModel
from codex_proxy.core.events import Event, ItemEnded, ItemStarted, Stop, TextDelta, TurnEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryItem, HistoryMessage, Message
from codex_proxy.core.options import Capability
from codex_proxy.core.turn import Turn
from codex_proxy.runs.run import Run

TURN = Turn(model="m", history=())
STARTED = ItemStarted(Message("a"))
DONE = TurnEnded(Stop.STOP)


def deltas(*words: str) -> list[Event]:
    """The first item of a turn, with these deltas."""
    return [STARTED, *(TextDelta("a", word) for word in words)]


class WordDialect:
    """Reads events as they are. Settles when its turn has ended, or when told to."""

    def __init__(self) -> None:
        self.finished = False
        self.can_resume = False
        self.calls: list[str] = []
        self.answers: dict[str, Reply] = {}
        self.over = False
        self.slow_to_finish = False
        self.breaks = ""
        self.closes_stdin = False
        self.reopen_id = ""
        self.lost = False

    def _step(self, name: str, events: Sequence[Event] = ()) -> Step:
        self.calls.append(name)
        if self.breaks == name:
            raise ZeroDivisionError(f"a fault of ours in {name}")
        if self.over:
            events = ()
        self.over = self.over or any(isinstance(event, TurnEnded) for event in events)
        if self.over and not self.slow_to_finish:
            self.finished = True
        return Step(list(events), name.encode(), close_stdin=self.closes_stdin)

    def begin(self, turn: Turn) -> Step:
        return self._step("begin")

    def resume(self, turn: Turn, fresh: Sequence[HistoryItem]) -> Step:
        return self._step("resume")

    def reopen(self, turn: Turn, thread: str, fresh: Sequence[HistoryItem]) -> Step:
        return self._step(f"reopen {thread}")

    def receive(self, lines: Sequence[Any]) -> Step:
        return self._step("receive", lines)

    def answer(self, request_id: str, reply: Reply) -> Step:
        self.answers[request_id] = reply
        return self._step(f"answer {request_id}")

    def steer(self, id: str, messages: Sequence[HistoryMessage]) -> Step:
        return self._step(f"steer {id}")

    def interrupt(self) -> Step:
        return self._step("interrupt", [TurnEnded(Stop.INTERRUPTED)])

    def eof(self, ended: Ended) -> Step:
        failure = Failure(kind=FaultKind.AGENT_CRASHED, message="It crashed.")
        self.finished = True
        return Step([] if self.over else [TurnEnded(Stop.FAILED, "provider", failure)], b"")


class WordTransport:
    """A transport without a child."""

    def __init__(self, *, exclusive: bool = False) -> None:
        self.exclusive = exclusive
        self.sent: list[bytes] = []
        self.paused = False
        self.reader: TransportReader | None = None
        self.released: list[bool] = []

    def attach(self, reader: TransportReader) -> None:
        self.reader = reader

    def send(self, writes: bytes) -> None:
        self.sent.append(writes)

    def close_stdin(self) -> None:
        self.sent.append(b"<end of stdin>")

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_idle(self, idle: bool) -> None:
        """Counted nowhere."""

    async def release(self, *, finished: bool) -> None:
        self.released.append(finished)

    def say(self, *events: Event, size: int = 1) -> None:
        assert self.reader is not None
        self.reader.on_messages(events, size)


class WordAgent(AgentBase):
    """An `Agent`. `gate`, when set, is what `open` waits for; `fault` is what it raises."""

    name = "words"
    version = "1"
    capabilities: frozenset[Capability] = frozenset()
    any_model = True

    def __init__(self, *, exclusive: bool = False) -> None:
        super().__init__()
        self.exclusive = exclusive
        self.transports: list[WordTransport] = []
        self.dialects: list[WordDialect] = []
        self.turns: list[Turn] = []
        """The turns for which sessions were opened."""
        self.gate: asyncio.Event | None = None
        self.fault: Exception | None = None
        self.breaks = ""
        self.slow_to_finish = False
        self.opening = 0
        self.closed = False

    async def open(self, turn: Turn) -> AgentSession:
        self.opening += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.opening -= 1
        if self.fault is not None:
            raise self.fault
        dialect, transport = WordDialect(), WordTransport(exclusive=self.exclusive)
        dialect.breaks, dialect.slow_to_finish = self.breaks, self.slow_to_finish
        self.dialects.append(dialect)
        self.turns.append(turn)
        self.transports.append(transport)
        return AgentSession(turn, dialect, transport)

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        await session.transport.release(finished=finished)

    def models(self) -> tuple[AgentModel, ...]:
        return ()

    def processes(self) -> ProcessCounts:
        return ProcessCounts(busy=len(self.transports))

    async def close(self) -> None:
        self.closed = True

    def kill(self) -> None:
        self.closed = True

    @property
    def held(self) -> int:
        """Transports that were given and not taken back."""
        return sum(not transport.released for transport in self.transports)


def all_events(run: Run) -> list[Event]:
    """Everything that a log holds, without being one of its readers."""
    return [event for batch in run.log.batches for event in batch.events]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def end_of(run: Run) -> TurnEnded:
    """The end of a log: there is exactly one, nothing comes after it, and nothing is left open."""
    events = all_events(run)
    ends = [event for event in events if isinstance(event, TurnEnded)]
    assert len(ends) == 1
    assert events[-1] is ends[0]
    opened = [event.item.id for event in events if isinstance(event, ItemStarted)]
    closed = [event.id for event in events if isinstance(event, ItemEnded)]
    assert opened == closed
    assert run.log.ended
    return ends[0]
