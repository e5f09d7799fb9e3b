"""Plays the recorded events of a session, without an agent. They come in order; where this server has replied, they
wait until it replies again to the same request. A call that this server checks, runs or hides comes whole, although it
may have been recorded for a request that got it in pieces. Pure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from codex_proxy.agents.dialect import NOTHING, Decision, Ended, Reply, SingleTurn, Step
from codex_proxy.agents.sessions.session import AgentSession, TransportReader
from codex_proxy.core.events import (
    ApprovalRequested,
    ArgumentsDelta,
    Event,
    FullArguments,
    InputRequested,
    ItemEnded,
    ItemStarted,
    Retrying,
    StepCompleted,
    Stop,
    ToolCallRequested,
    TurnEnded,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import ToolCall
from codex_proxy.core.turn import Turn
from codex_proxy.parts.cassettes.file_lines import Line
from codex_proxy.parts.cassettes.format import Answer, Cassette
from codex_proxy.surfaces.answers.fault_table import TABLE

BATCH: Final = 256
"""Maximum lines that are played at once."""
STUCK_SECONDS: Final = 20.0
"""Maximum seconds to wait for a reply; a later one is not expected any more."""

TOO_SHORT: Final = (
    "the recording ends here, since what followed was not asked for (by its `stop`, limits, tools or schema)"
)
DENIED: Final = "its agent was allowed to do here what this request denies"
REPLY_NOT_GIVEN: Final = "its agent waits for a reply here, which this request does not lead to"

WriteFiles = Callable[[], Awaitable[Failure | None]]
"""Writes the files of a turn, and returns why the turn fails, if it does."""
Pace = Callable[[float], float]
"""Converts the recorded seconds between two lines to those to wait."""


def invalid(name: str, why: str) -> Failure:
    """Returns the failure of a turn whose cassette cannot be replayed."""
    message = f"The cassette {name} cannot be replayed: {why.removesuffix('.')}. Record it anew."
    return Failure(kind=FaultKind.INVALID_REQUEST, code="cassette_invalid", message=message)


def sessions_of(lines: Iterable[Line]) -> list[list[Line]]:
    """Returns the lines of each session with the agent."""
    sessions = list[list[Line]]()
    for line in lines:
        if line.kind == "session":
            sessions.append([])
        elif sessions:
            sessions[-1].append(line)
    return sessions


def events_in(lines: Iterable[Line]) -> list[Event]:
    return [event for line in lines if line.kind == "events" for event in line.value]


class PlayedSession(AgentSession):
    """A session of a cassette, which serves one turn."""


def make_played_session(
    cassette: Cassette,
    lines: Sequence[Line],
    turn: Turn,
    pace: Pace,
    *,
    is_last: bool,
    write_files: WriteFiles | None = None,
) -> PlayedSession:
    """Returns a session that plays these lines of the cassette. `is_last`: no other one was asked after a failure.
    `write_files` writes the turn's files.
    """
    at_fault = cassette.name if is_last and not _has_failed(cassette.answer) else ""
    calls = WholeCalls(turn, events_in(lines), takes_replies="tool_replies" in cassette.capabilities)
    dialect = PlayedDialect(calls, at_fault)
    return PlayedSession(turn, dialect, PlayedTransport(cassette.name, lines, dialect, pace, write_files))


class PlayedDialect(SingleTurn):
    """The `Dialect` of a played session: its messages are the recorded events."""

    def __init__(self, calls: WholeCalls, at_fault: str) -> None:
        """`at_fault`: the cassette, if failures of this server are its own, since it was recorded without one; else
        empty.
        """
        self.replies: Counter[str] = Counter()
        """The number of replies to each request."""
        self.denied: set[str] = set()
        """The requests whose last reply does not approve."""
        self.replied = asyncio.Event()
        self._calls = calls
        self._at_fault = at_fault

    def begin(self, turn: Turn) -> Step:
        return NOTHING

    def receive(self, events: Sequence[Event]) -> Step:
        given = [self._blamed(asked) for event in events for asked in self._calls.feed(event)]
        self.ended = self.ended or TurnEnded in map(type, given)
        return Step(given)

    def answer(self, request_id: str, reply: Reply) -> Step:
        self.replies[request_id] += 1
        is_denied = isinstance(reply, Decision) and not reply.approve
        (self.denied.add if is_denied else self.denied.discard)(request_id)
        self.replied.set()
        return NOTHING

    def eof(self, ended: Ended) -> Step:
        """Is never called: there is no program."""
        return NOTHING

    def blame(self, failure: Failure) -> Failure:
        """Returns a failure, or that of the cassette if it is at fault."""
        if not self._at_fault or TABLE[failure.kind].status < 500:
            return failure
        return invalid(self._at_fault, failure.message)

    def _blamed(self, event: Event) -> Event:
        if isinstance(event, TurnEnded) and event.failure is not None:
            return replace(event, failure=self.blame(event.failure))
        return event


class _NotWrittenError(Exception):
    """The files of a turn were not written."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


class PlayedTransport:
    """A `Transport` that plays a session's lines."""

    exclusive = True

    def __init__(
        self,
        name: str,
        lines: Sequence[Line],
        dialect: PlayedDialect,
        pace: Pace,
        write_files: WriteFiles | None = None,
    ) -> None:
        """`name`: the cassette's. `write_files` is called once, before the last events are given."""
        self._name = name
        self._lines = [line for line in lines if line.kind != "file"]
        self._write_files = write_files
        self._dialect = dialect
        self._pace = pace
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._task: asyncio.Task[None] | None = None

    def attach(self, reader: TransportReader) -> None:
        self._task = asyncio.ensure_future(self._play(reader))

    def send(self, writes: bytes) -> None:
        """Does nothing: there is no program."""

    def close_stdin(self) -> None:
        """Does nothing."""

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
            failure = await self._play_lines(reader)
        except TimeoutError:
            failure = invalid(self._name, REPLY_NOT_GIVEN)
        except _NotWrittenError as error:
            failure = error.failure
        reader.fail(failure)

    async def _play_lines(self, reader: TransportReader) -> Failure:
        """Plays the lines to the turn's end, at which this task is cancelled; else returns why it fails."""
        at, events = 0, list[Event]()
        asked, expected = set[str](), Counter[str]()
        for line in self._lines:
            wait = self._pace(max(0, line.ms - at) / 1000)
            at = line.ms
            if wait > 0 or len(events) >= BATCH or line.kind != "events":
                await self._give(reader, events)
                events = []
            if wait > 0:
                await asyncio.sleep(wait)
            if line.kind == "events":
                events += line.value
                asked.update(map(_request_of, line.value))
            elif line.kind == "reply" and line.value.to in asked:
                expected[line.value.to] += 1
                async with asyncio.timeout(STUCK_SECONDS):
                    await self._wait_for_reply(line.value.to, expected[line.value.to])
                # Of others than files only what the agent says is replayed, which harms nobody.
                if (
                    self._write_files is not None
                    and line.value.approve
                    and line.value.to in self._dialect.denied
                ):
                    return invalid(self._name, DENIED)
            elif line.kind == "failed":
                await self._write()
                return self._dialect.blame(line.value)
        await self._write()
        await self._give(reader, events)
        return invalid(self._name, TOO_SHORT)

    async def _write(self) -> None:
        """Writes the turn's files, once. Raises `_NotWrittenError`."""
        write, self._write_files = self._write_files, None
        failure = None if write is None else await write()
        if failure is not None:
            raise _NotWrittenError(failure)

    async def _wait_for_reply(self, to: str, count: int) -> None:
        while self._dialect.replies[to] < count:
            self._dialect.replied.clear()
            await self._dialect.replied.wait()

    async def _give(self, reader: TransportReader, events: Sequence[Any]) -> None:
        await self._resumed.wait()
        if TurnEnded in map(type, events):
            await self._write()
        if events:
            reader.on_messages(events, sum(100 + len(getattr(event, "text", "")) for event in events))
            await asyncio.sleep(0)
            await self._resumed.wait()


def _request_of(event: Event) -> str:
    """Returns the id of what the agent asks; empty if it asks nothing."""
    asks = isinstance(event, ToolCallRequested | ApprovalRequested | InputRequested)
    return event.request_id if asks else ""  # type: ignore[union-attr]


def _has_failed(answer: Answer) -> bool:
    said = (answer.body, answer.final, *(answer.sent or ())[-3:])
    return answer.status >= 400 or any(map(_is_error, said))


def _is_error(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return value.get("type") == "error" or bool(value.get("error")) or _is_error(value.get("response"))


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
                provider_fields=item.provider_fields,
            )
            for item, pieces in calls.values()
        ]
