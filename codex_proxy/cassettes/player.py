"""Plays a recorded session's lines to today's dialect: a `Transport` that needs no agent.

The lines come in order, without waiting for the dialect's output, except where the agent waited for a call's output.
JSON-RPC ids become those of today's requests of the same method.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import Decision, Dialect, Ended, RemakeContext, Reply, Step, ToolReply
from codex_proxy.agents.processes.session import AgentSession, TransportReader
from codex_proxy.agents.recorded import (
    UnknownDialectError,
    is_rpc,
    message_of,
    message_of_object,
    remake,
    rpc_of,
)
from codex_proxy.cassettes.content import key_of
from codex_proxy.cassettes.format import Cassette, Line, Session
from codex_proxy.cassettes.scrubbing import stable_id
from codex_proxy.core.events import ApprovalRequested, Event, InputRequested, ToolCallRequested
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    ImagePart,
    Part,
    RawHistoryItem,
    TextPart,
)
from codex_proxy.core.turn import Turn

BATCH: Final = 256
"""Maximum lines given to a dialect at once."""
BARRIERS: Final = frozenset({"to", "answer", "ended", "failed"})
"""Kinds of lines before which the dialect reads all earlier ones: its answers then decide later ids."""
STUCK_SECONDS: Final = 20.0
"""Maximum seconds to wait for a call's output; then today's server does not make it."""

OVER: Final = Failure(
    kind=FaultKind.AGENT_PROTOCOL,
    message="The cassette ends here, but this version of codex-proxy reads no end of the turn in it. Record it anew, "
    "or report that the cassette could be read before.",
)
STUCK: Final = Failure(
    kind=FaultKind.AGENT_PROTOCOL,
    message="In the cassette the agent waits for an output here, which this version of codex-proxy does not give.",
)

Pace = Callable[[float], float]
"""Converts the recorded seconds between two lines to those to wait."""


class RequestIds:
    """Maps recorded ids of a session's JSON-RPC requests to today's."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Any]] = defaultdict(deque)
        """Recorded ids of requests that today's dialect has not made yet, by method."""
        self._today: dict[Any, Any] = {}
        self._recorded: set[Any] = set()

    def expect(self, lines: Iterable[Line]) -> None:
        """Adds the requests of the session's next turn."""
        for line in lines:
            id, method = rpc_of(line.value[0]) if line.kind == "to" else (None, None)
            if id is not None and method is not None:
                self._waiting[method].append(id)
                self._recorded.add(id)

    def note_written(self, writes: bytes) -> None:
        """Takes bytes that today's dialect writes: its first request of a method stands for the first recorded one."""
        for line in writes.split(b"\n"):
            id, method = rpc_of(line) if line else (None, None)
            if method is not None and id is not None and self._waiting[method]:
                self._today[self._waiting[method].popleft()] = id

    def todays_id(self, recorded: Any) -> Any:
        """Returns today's id for a recorded one, if any. A request from before the recording, as for a session opened
        ahead, keeps its id.
        """
        return self._today.get(recorded) if recorded in self._recorded else recorded


class Script:
    """The lines of a session's turn, as a dialect reads them."""

    def __init__(self, dialect: str, lines: Sequence[Line], ids: RequestIds) -> None:
        """`ids`: those of the whole session."""
        self._dialect = dialect
        self._lines = deque(lines)
        self._ids = ids
        ids.expect(lines)

    def note_written(self, writes: bytes) -> None:
        """Takes bytes that today's dialect writes."""
        if is_rpc(self._dialect):
            self._ids.note_written(writes)

    @property
    def next(self) -> Line | None:
        return self._lines[0] if self._lines else None

    def pop(self) -> Line:
        return self._lines.popleft()

    def message(self, line: Line) -> Any:
        """Returns a line as the dialect reads it; None if the dialect does not."""
        kind, value = line.kind, line.value
        if kind == "from":
            return self._message(value[0])
        if kind == "data":
            return b"data: " + value[0] + b"\n\n"
        if kind == "line":
            return value.encode() + (b"\n\n" if value.startswith("data:") else b"\n")
        if kind == "body":
            return value[0]
        if kind in ("head", "over", "event"):
            return message_of_object(kind, value)
        return None

    def _message(self, line: bytes) -> Any:
        message = message_of(self._dialect, line)
        if not is_rpc(self._dialect) or message is None or message.method is not None:
            return message
        id = self._ids.todays_id(message.id)
        return None if id is None else msgspec.structs.replace(message, id=id)


class PlayedTransport:
    """A `Transport` that plays a script."""

    exclusive = True

    def __init__(self, script: Script, pace: Pace) -> None:
        self._script = script
        self._pace = pace
        self._reader: TransportReader | None = None
        self._at = 0
        self._answers = 0
        """How many outputs of this server the script has not passed yet."""
        self._paused = False
        self._timer: asyncio.Handle | None = None
        self._waits = False

    def attach(self, reader: TransportReader) -> None:
        self._reader = reader
        self._later(0.0)

    def send(self, writes: bytes) -> None:
        self._script.note_written(writes)

    def on_answer(self) -> None:
        """Called when this server has given an output or a decision."""
        self._answers += 1
        if self._waits:
            self._waits = False
            self._later(0.0)

    def close_stdin(self) -> None:
        """Does nothing: there is no program."""

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            if not self._waits and self._timer is None:
                self._later(0.0)

    def set_idle(self, idle: bool) -> None:
        """Does nothing: sessions are not kept."""

    async def release(self, *, finished: bool) -> None:
        self._reader = None
        if self._timer is not None:
            self._timer.cancel()

    def _later(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._play) if seconds > 0 else loop.call_soon(self._play)

    def _play(self) -> None:
        self._timer = None
        messages: list[Any] = []
        size = 0
        while self._reader is not None and not self._paused:
            line = self._script.next
            wait = 0.0 if line is None else self._pace(max(0, line.ms - self._at) / 1000)
            if line is None or wait > 0 or len(messages) >= BATCH or line.kind in BARRIERS:
                if messages:
                    reader, given, messages = self._reader, messages, []
                    reader.received(given, size)
                    size = 0
                    if self._reader is None or self._paused:
                        return
                if line is None or wait > 0 or not self._passes(line):
                    self._at = self._at if line is None else line.ms
                    self._pause(line, wait)
                    return
                continue
            self._at = line.ms
            message = self._script.message(self._script.pop())
            if message is not None:
                messages.append(message)
                size += len(message) if isinstance(message, bytes) else 100
        if messages and self._reader is not None:
            self._reader.received(messages, size)

    def _passes(self, line: Line) -> bool:
        """Plays a line that is no message. Returns False if it must wait, or the script has ended."""
        if line.kind == "answer":
            if not self._answers:
                return False
            self._answers -= 1
        self._script.pop()
        if line.kind == "ended" and self._reader is not None:
            self._reader.ended(msgspec.convert(line.value, Ended))
        elif line.kind == "failed" and self._reader is not None:
            self._reader.fail(msgspec.convert(line.value, Failure))
        else:
            return True
        self._reader = None
        return False

    def _pause(self, line: Line | None, wait: float) -> None:
        if self._reader is None:
            return
        if line is None:
            self._timer = asyncio.get_running_loop().call_soon(self._fail, OVER)
        elif wait > 0:
            self._later(wait)
        else:
            self._waits = True
            self._timer = asyncio.get_running_loop().call_later(STUCK_SECONDS, self._fail, STUCK)

    def _fail(self, failure: Failure) -> None:
        if self._reader is not None:
            self._reader.fail(failure)


class PlayedSession(AgentSession):
    """A session of a cassette, which serves one turn."""

    def __init__(
        self, turn: Turn, dialect: Dialect[Any], transport: PlayedTransport, start: _TurnStart
    ) -> None:
        super().__init__(turn, dialect, transport)
        self._played = transport
        self._start = start

    def begin(self) -> None:
        how = self._start
        turn = self.turn
        if how.act == "begin":
            super().begin()
            return
        self.transport.attach(self)
        if how.act == "resume":
            self._do(self._dialect.resume, turn, how.new_items)
        else:
            self._do(self._dialect.reopen, turn, how.thread, how.new_items)  # type: ignore[attr-defined]

    def answer(self, request_id: str, reply: Reply) -> None:
        super().answer(request_id, reply)
        self._played.on_answer()

    @property
    def can_resume(self) -> bool:
        return False

    @property
    def thread(self) -> str:
        return ""


class _TurnStart(msgspec.Struct, frozen=True):
    """How a turn begins on its session: its first act (`begin`, `reopen` or `resume`) and its arguments."""

    act: str
    new_items: tuple[HistoryItem, ...] = ()
    thread: str = ""


def make_played_session(
    chain: Sequence[Cassette], index: int, turn: Turn, pace: Pace, now: Callable[[], float]
) -> PlayedSession:
    """Returns a session that plays session `index` of the last cassette of `chain`, after reading those that it
    continues. Raises `UnknownDialectError` if the dialect cannot be made.
    """
    cassette = chain[-1]
    session = cassette.sessions[index]
    count = 0

    def new_id(prefix: str) -> str:
        nonlocal count
        count += 1
        return stable_id(prefix + "1", key_of(chain[0].content, ("messages", "tools")), count)

    dialect = remake(session.dialect, session.facts, RemakeContext(turn.model, new_id, now))
    act, thread, before, lines = _start_of(session)
    ids = RequestIds()
    new_items = turn.history[_new_from(turn.history, 1) :]
    if act == "resume":
        if len(chain) < 2:
            raise UnknownDialectError(
                f"{cassette.name} continues {cassette.after or 'another cassette'}, which is not in the folder"
            )
        _read_earlier_turns(chain[:-1], dialect, turn, ids)
        _read_all(Script(session.dialect, before, ids), dialect, before, ())
        before = []
    script = Script(session.dialect, [*before, *lines], ids)
    transport = PlayedTransport(script, pace)
    return PlayedSession(turn, dialect, transport, _TurnStart(act, new_items, thread))


def offline_events(chain: Sequence[Cassette], turn: Turn) -> Iterator[Event]:
    """Returns the events that today's dialect reads in the last cassette of `chain`; `turn` has its content. Raises
    `UnknownDialectError` if the dialect cannot be made.
    """
    for session in chain[-1].sessions:
        ids = RequestIds()
        dialect = remake(
            session.dialect, session.facts, RemakeContext(turn.model, _id_counter(), lambda: 0.0)
        )
        if _start_of(session)[0] == "resume":
            _read_earlier_turns(chain[:-1], dialect, turn, ids)
        yield from _read_session(session, dialect, turn, turn.history[_new_from(turn.history, 1) :], ids)
        ended = next((line.value for line in session.lines if line.kind == "ended"), None)
        if ended is not None:
            yield from dialect.eof(msgspec.convert(ended, Ended)).events


def _id_counter() -> Callable[[str], str]:
    count = itertools.count(1)
    return lambda prefix: f"{prefix}{next(count)}"


def _start_of(session: Session) -> tuple[str, str, list[Line], list[Line]]:
    """Returns a session's first act, the agent's id of a reopened one, and the lines before and after."""
    for index, line in enumerate(session.lines):
        if line.kind in ("begin", "resume", "reopen"):
            thread = line.value if line.kind == "reopen" else ""
            return line.kind, thread, list(session.lines[:index]), list(session.lines[index + 1 :])
    return "begin", "", [], list(session.lines)


def _new_from(history: Sequence[HistoryItem], nth: int) -> int:
    """Returns the index of the first item after the model's `nth` last answer."""
    found, end = 0, len(history)
    for index in range(len(history) - 1, -1, -1):
        if _is_models(history[index]):
            if index + 1 < end:
                found += 1
                if found == nth:
                    return index + 1
            end = index
    return 0


def _is_models(item: HistoryItem) -> bool:
    if isinstance(item, HistoryMessage):
        return item.role == "assistant"
    return isinstance(item, HistoryCall | RawHistoryItem)


def _read_earlier_turns(
    chain: Sequence[Cassette], dialect: Dialect[Any], turn: Turn, ids: RequestIds
) -> None:
    for number, cassette in enumerate(chain):
        left = len(chain) - number
        new = _new_from(turn.history, left + 1)
        until = _new_from(turn.history, left)
        history = turn.history[: max(new, _last_of_client(turn.history, until))]
        earlier = msgspec.structs.replace(turn, history=history)
        _read_session(cassette.sessions[-1], dialect, earlier, history[new:], ids)


def _read_session(
    session: Session, dialect: Dialect[Any], turn: Turn, new_items: Sequence[HistoryItem], ids: RequestIds
) -> list[Event]:
    act, thread, before, lines = _start_of(session)
    script = Script(session.dialect, [*before, *lines], ids)
    if act == "begin":
        step, lines = dialect.begin(turn), [*before, *lines]
    elif act == "resume":
        _read_all(script, dialect, before, ())
        step = dialect.resume(turn, new_items)
    else:
        step = dialect.reopen(turn, thread, new_items)  # type: ignore[attr-defined]
    script.note_written(step.writes)
    return [*step.events, *_read_all(script, dialect, lines, step.events)]


def _last_of_client(history: Sequence[HistoryItem], until: int) -> int:
    """Returns the index behind the client's last items before the model's answer that ends at `until`."""
    end = until
    while end and _is_models(history[end - 1]):
        end -= 1
    return end


def parts_of(parts: Sequence[Mapping[str, Any]]) -> tuple[Part, ...]:
    """Returns an output's parts from their JSON."""
    return tuple(
        TextPart(part["text"]) if "text" in part else ImagePart(part["url"], part.get("detail"))
        for part in parts
    )


def _read_all(
    script: Script, dialect: Dialect[Any], lines: Sequence[Line], events: Sequence[Event]
) -> list[Event]:
    """Lets a dialect read lines, and answers it as the server has done. Returns its events, without the earlier
    `events`.
    """
    found: list[Event] = []

    def take(step: Step) -> None:
        found.extend(step.events)
        script.note_written(step.writes)
        for event in step.events:
            if isinstance(event, ApprovalRequested | InputRequested):
                take(dialect.answer(event.request_id, Decision(approve=False)))
            elif isinstance(event, ToolCallRequested):
                asked.append(event.request_id)

    asked: list[str] = []
    take(Step(list(events)))
    found.clear()
    for line in lines:
        if line.kind == "answer":
            reply = line.value["reply"]
            if "parts" in reply and asked:  # others were given as soon as they were asked for
                to = line.value["to"] if line.value["to"] in asked else asked[0]
                asked.remove(to)
                parts = parts_of(reply["parts"])
                take(dialect.answer(to, ToolReply(parts, reply.get("success", True))))
            continue
        message = script.message(line)
        if message is not None:
            take(dialect.receive([message]))
    return found
