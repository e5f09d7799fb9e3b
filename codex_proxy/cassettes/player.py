"""Plays a recorded session's lines to today's dialect: a `Transport` that needs no agent.

The lines come in order, without waiting for the dialect's output, except where the agent waited for a call's
output. JSON-RPC ids are replaced by the ids of today's requests of the same method.
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
from codex_proxy.agents.registry import dialects_of
from codex_proxy.cassettes.content import key_of
from codex_proxy.cassettes.format import Answer, Cassette, Line, Session
from codex_proxy.cassettes.stable_values import stable_id
from codex_proxy.core.events import ApprovalRequested, Event, InputRequested, ToolCallRequested, TurnEnded
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
from codex_proxy.surfaces.fault_table import TABLE

BATCH: Final = 256
"""Maximum lines given to a dialect at once."""
BARRIER_KINDS: Final = frozenset({"to", "answer", "ended", "failed"})
"""Kinds of lines before which the dialect reads all earlier ones: its answers then decide later ids."""
STUCK_SECONDS: Final = 20.0
"""Maximum seconds to wait for a call's output; a later one is not expected any more."""

TOO_SHORT: Final = "this version of codex-proxy reads no end of the turn in it"
OUTPUT_NOT_GIVEN: Final = (
    "its agent waits for an output here, which this version of codex-proxy does not give"
)

Pace = Callable[[float], float]
"""Converts the recorded seconds between two lines to those to wait."""


def invalid(name: str, why: str) -> Failure:
    """Returns the failure of a turn whose cassette cannot be replayed."""
    message = f"The cassette {name} cannot be replayed: {why.removesuffix('.')}. Record it anew."
    return Failure(kind=FaultKind.INVALID_REQUEST, code="cassette_invalid", message=message)


class LineReader:
    """Converts the recorded lines of a session to messages for today's dialect."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._waiting: dict[str, deque[Any]] = defaultdict(deque)
        """Recorded ids of requests that today's dialect has not made yet, by method."""
        self._today: dict[Any, Any] = {}
        self._recorded: set[Any] = set()

    def expect(self, lines: Iterable[Line]) -> None:
        """Adds the requests of the session's next turn."""
        for line in lines:
            id, method = rpc_of(line.value) if line.kind == "to" else (None, None)
            if id is not None and method is not None:
                self._waiting[method].append(id)
                self._recorded.add(id)

    def note_written(self, writes: bytes) -> None:
        """Takes bytes that today's dialect writes: its first request of a method stands for the first recorded one."""
        for line in writes.split(b"\n") if is_rpc(self._dialect) else ():
            id, method = rpc_of(line) if line else (None, None)
            if method is not None and id is not None and self._waiting[method]:
                self._today[self._waiting[method].popleft()] = id

    def message(self, line: Line) -> Any:
        """Returns a line as the dialect reads it; None if the dialect does not."""
        kind, value = line.kind, line.value
        if kind == "from":
            return self._message(value)
        if kind == "data":
            return b"data: " + value + b"\n\n"
        if kind == "line":
            return value.encode() + (b"\n\n" if value.startswith("data:") else b"\n")
        if kind == "body":
            return value
        if kind in ("head", "over", "event"):
            return message_of_object(kind, value)
        return None

    def _message(self, line: bytes) -> Any:
        message = message_of(self._dialect, line)
        if not is_rpc(self._dialect) or message is None or message.method is not None:
            return message
        if message.id not in self._recorded:
            return message  # it answers a request from before the recording, as for a session opened ahead
        id = self._today.get(message.id)
        return None if id is None else msgspec.structs.replace(message, id=id)


class PlayedTransport:
    """A `Transport` that plays a turn's lines."""

    exclusive = True

    def __init__(self, name: str, lines: Sequence[Line], read: LineReader, pace: Pace) -> None:
        """`name`: the cassette's."""
        self._name = name
        self._lines = lines
        self._read = read
        self._pace = pace
        self._answers = asyncio.Semaphore(0)
        """Counts the tool outputs and approvals of this server that the playback has not used yet."""
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._task: asyncio.Task[None] | None = None

    def attach(self, reader: TransportReader) -> None:
        self._task = asyncio.ensure_future(self._play(reader))

    def send(self, writes: bytes) -> None:
        self._read.note_written(writes)

    def on_answer(self) -> None:
        """Called when this server has given an output or a decision."""
        self._answers.release()

    def close_stdin(self) -> None:
        """Does nothing: there is no program."""

    def pause_reading(self) -> None:
        self._resumed.clear()

    def resume_reading(self) -> None:
        self._resumed.set()

    def set_idle(self, idle: bool) -> None:
        """Does nothing: sessions are not kept."""

    async def release(self, *, finished: bool) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _play(self, reader: TransportReader) -> None:
        try:
            end = await self._play_lines(reader)
        except TimeoutError:
            end = invalid(self._name, OUTPUT_NOT_GIVEN)
        if isinstance(end, Ended):
            reader.on_end(end)
        else:
            reader.fail(end)

    async def _play_lines(self, reader: TransportReader) -> Ended | Failure:
        at, messages = 0, list[Any]()
        for line in self._lines:
            wait = self._pace(max(0, line.ms - at) / 1000)
            at = line.ms
            if wait > 0 or len(messages) >= BATCH or line.kind in BARRIER_KINDS:
                await self._give(reader, messages)
                messages = []
            if wait > 0:
                await asyncio.sleep(wait)
            if line.kind == "answer":
                async with asyncio.timeout(STUCK_SECONDS):
                    await self._answers.acquire()
            elif line.kind == "ended":
                return msgspec.convert(line.value, Ended)
            elif line.kind == "failed":
                return msgspec.convert(line.value, Failure)
            elif (message := self._read.message(line)) is not None:
                messages.append(message)
        await self._give(reader, messages)
        return invalid(self._name, TOO_SHORT)

    async def _give(self, reader: TransportReader, messages: Sequence[Any]) -> None:
        await self._resumed.wait()
        if messages:
            reader.on_messages(
                messages, sum(len(each) if isinstance(each, bytes) else 100 for each in messages)
            )
            await asyncio.sleep(0)
            await self._resumed.wait()


class PlayedSession(AgentSession):
    """A session of a cassette, which serves one turn."""

    def __init__(
        self, turn: Turn, dialect: Dialect[Any], transport: PlayedTransport, first: _FirstAct, at_fault: str
    ) -> None:
        """`at_fault`: the cassette, if today's failures are its own, since it was recorded without one; else empty."""
        super().__init__(turn, dialect, transport)
        self._played = transport
        self._first = first
        self._at_fault = at_fault

    def begin(self) -> None:
        self.transport.attach(self)
        self._do(*self._first)

    def _do(self, act: Callable[..., Step], *given: Any, size: int = 0) -> None:
        super()._do(lambda *given: self._blamed(act(*given)), *given, size=size)

    def _blamed(self, step: Step) -> Step:
        if self._at_fault:
            for index, event in enumerate(step.events):
                if isinstance(event, TurnEnded) and event.failure is not None:
                    step.events[index] = TurnEnded.with_failure(self._blame(event.failure))
        return step

    def fail(self, failure: Failure) -> None:
        super().fail(self._blame(failure))

    def _blame(self, failure: Failure) -> Failure:
        if not self._at_fault or TABLE[failure.kind].status < 500:
            return failure
        return invalid(self._at_fault, failure.message)

    def answer(self, request_id: str, reply: Reply) -> None:
        super().answer(request_id, reply)
        self._played.on_answer()

    @property
    def can_resume(self) -> bool:
        return False

    @property
    def reopen_id(self) -> str:
        return ""


def make_played_session(
    chain: Sequence[Cassette], index: int, turn: Turn, pace: Pace, now: Callable[[], float]
) -> PlayedSession:
    """Returns a session that plays session `index` of the last cassette of `chain`, after reading those that it
    continues. Raises `UnplayableError`.
    """
    cassette = chain[-1]
    session = cassette.sessions[index]
    if len(chain) < 2 and _act_of(session)[0] == "resume":
        raise UnplayableError(
            f"it continues {cassette.after or 'another cassette'}, which is not in the folder"
        )
    dialect, read = _remake(chain, session, turn, now)
    first, lines = _first_act(session, dialect, turn, read)
    is_last = index == len(cassette.sessions) - 1  # another one was asked after a failure
    at_fault = cassette.name if is_last and not _has_failed(cassette.answer) else ""
    return PlayedSession(turn, dialect, PlayedTransport(cassette.name, lines, read, pace), first, at_fault)


class UnplayableError(Exception):
    """The sessions of a cassette cannot be played. The text says why."""


def _has_failed(answer: Answer) -> bool:
    said = (answer.body, answer.final, *(answer.sent or ())[-3:])
    return answer.status >= 400 or any(map(_is_error, said))


def _is_error(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return value.get("type") == "error" or bool(value.get("error")) or _is_error(value.get("response"))


def offline_events(chain: Sequence[Cassette], turn: Turn) -> Iterator[Event]:
    """Returns the events that today's dialect reads in the last cassette of `chain`; `turn` has its content. Raises
    `UnplayableError`.
    """
    for session in chain[-1].sessions:
        if not session.dialect:
            continue
        dialect, read = _remake(chain, session, turn, lambda: 0.0)
        yield from _read_turn(session, dialect, turn, read)
        ended = next((line.value for line in session.lines if line.kind == "ended"), None)
        if ended is not None:
            yield from dialect.eof(msgspec.convert(ended, Ended)).events


def _remake(
    chain: Sequence[Cassette], session: Session, turn: Turn, now: Callable[[], float]
) -> tuple[Dialect[Any], LineReader]:
    """Makes the dialect of a session of the last cassette of `chain`, and lets it read the session's earlier turns.
    Returns it and the reader of further lines. Raises `UnplayableError`.
    """
    key, count = key_of(chain[0].content, ("messages", "tools")), itertools.count(1)

    def new_id(prefix: str) -> str:
        return stable_id(prefix + "1", key, next(count))

    plugin = chain[-1].plugin
    own = dialects_of(plugin) if plugin else None
    try:
        dialect = remake(session.dialect, session.facts, RemakeContext(turn.model, new_id, now), own)
    except UnknownDialectError as error:
        raise UnplayableError(str(error)) from error
    read = LineReader(session.dialect)
    if _act_of(session)[0] == "resume":
        for left in range(len(chain) - 1, 0, -1):
            history = tuple(itertools.chain.from_iterable(_rounds(turn.history)[: -2 * left]))
            earlier = msgspec.structs.replace(turn, history=history)
            before = chain[-1 - left]
            if not before.sessions or before.sessions[-1].dialect != session.dialect:
                raise UnplayableError(f"it continues {before.name}, which has no session of this agent")
            _read_turn(before.sessions[-1], dialect, earlier, read)
    return dialect, read


_FirstAct = tuple[Any, ...]
"""The method of a dialect that begins a turn, and its arguments."""


def _first_act(
    session: Session, dialect: Dialect[Any], turn: Turn, read: LineReader
) -> tuple[_FirstAct, Sequence[Line]]:
    """Returns how a turn begins on its session, and its lines. A dialect that resumes reads those before that act."""
    read.expect(session.lines)
    act, index = _act_of(session)
    if act == "begin":
        return (dialect.begin, turn), session.lines
    new_items = tuple(itertools.chain.from_iterable(_rounds(turn.history)[-1:]))
    if act == "reopen":
        return (dialect.reopen, turn, session.lines[index].value, new_items), session.lines  # type: ignore[attr-defined]
    _read_all(read, dialect, session.lines[:index])
    return (dialect.resume, turn, new_items), session.lines[index:]


def _act_of(session: Session) -> tuple[str, int]:
    acts = ((line.kind, index) for index, line in enumerate(session.lines))
    return next((each for each in acts if each[0] in ("begin", "resume", "reopen")), ("begin", 0))


def _rounds(history: Sequence[HistoryItem]) -> list[list[HistoryItem]]:
    """Returns the items of the client and of the model alternately; the last are the client's."""
    rounds = [list(same) for _, same in itertools.groupby(history, _is_models)]
    if len(rounds) > 1 and _is_models(history[-1]):
        begun = rounds.pop()  # the client asks for the rest of an answer
        rounds[-1] += begun
    return rounds


def _is_models(item: HistoryItem) -> bool:
    if isinstance(item, HistoryMessage):
        return item.role == "assistant"
    return isinstance(item, HistoryCall | RawHistoryItem)


def _read_turn(session: Session, dialect: Dialect[Any], turn: Turn, read: LineReader) -> list[Event]:
    (act, *given), lines = _first_act(session, dialect, turn, read)
    step = act(*given)
    read.note_written(step.writes)
    return [*step.events, *_read_all(read, dialect, lines, step.events)]


def parts_of(parts: Sequence[Mapping[str, Any]]) -> tuple[Part, ...]:
    """Returns an output's parts from their JSON."""
    return tuple(
        TextPart(part["text"]) if "text" in part else ImagePart(part["url"], part.get("detail"))
        for part in parts
    )


def _read_all(
    read: LineReader, dialect: Dialect[Any], lines: Sequence[Line], events: Sequence[Event] = ()
) -> list[Event]:
    """Lets a dialect read lines, and answers it as the server has done. Returns its events, without the earlier
    `events`.
    """
    found: list[Event] = []

    def take(step: Step) -> None:
        found.extend(step.events)
        read.note_written(step.writes)
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
        message = read.message(line)
        if message is not None:
            take(dialect.receive([message]))
    return found
