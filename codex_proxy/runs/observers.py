"""Observers of turns: the page's records, traces, and recorders. A turn that starts in a context with
`REQUEST_RECORDER` is recorded.

The page has records of the running turns, and of the last `MAX_TURNS` that have ended. A record has names, times,
counts and kinds of events; its only text is a failure's message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.caches import OwnedEntries
from codex_proxy.core.events import (
    MODEL_DELTAS,
    VISIBLE_OUTPUT,
    Event,
    ForwardedBytes,
    ItemEnded,
    ItemStarted,
    Retrying,
    ServedBy,
    StepCompleted,
    ToolCallRequested,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.items import Activity, Item, McpCall, Message, Reasoning, ToolCall
from codex_proxy.core.own_errors import call_observer
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import Turn
from codex_proxy.runs.event_log import TurnObserver
from codex_proxy.runs.server_calls import ToolRunner

log = structlog.get_logger(__name__)

PROGRESS_SECONDS: Final = 30.0
"""Seconds between a running turn's lines in the log."""
MAX_TURNS: Final = 500
"""Maximum ended turns that are remembered. Beyond it the owner with most loses its first one."""
MAX_EVENTS: Final = 200
"""Maximum remembered events of a turn: the first ones, and its end."""
ACTIVITIES: Final[dict[str, str]] = {
    "command": "running a command",
    "file_change": "changing files",
    "web_search": "searching the web",
    "mcp_call": "calling a tool",
    "plan": "planning",
    "image": "looking at an image",
    "question": "asking a question",
}
"""What a turn does while an `Activity` of this kind is open."""
WRITING: Final = "writing the answer"
WORKER_TURNS: Final = 1_000_000
"""The distance between the first numbers of two processes' turns."""
CHARS_OF_TOKEN: Final = 4
"""The characters of a token, for estimates: about right for English."""
_TIMELINE_EVENTS: Final = frozenset(
    {
        ItemStarted,
        ItemEnded,
        ToolCallRequested,
        StepCompleted,
        UsageReported,
        Retrying,
        ServedBy,
        TurnStarted,
        TurnEnded,
    }
)


class TurnOrigin(msgspec.Struct, frozen=True):
    """A turn's request. After a restart of the server only `model` is known."""

    request_id: str = ""
    api: str = ""
    model: str = ""
    """The client's name of the model."""
    session_turn: str = ""
    """The id of the session's turn to which it belongs, if it belongs to any."""


TURN_ORIGIN: Final[ContextVar[TurnOrigin]] = ContextVar("turn_origin", default=TurnOrigin())  # noqa: B039 - frozen
"""The origin of the turn that starts in this context."""


MAX_NAME: Final = 100
"""Maximum characters of a model's name in the log and on the page."""


def note_model_asked(name: str) -> None:
    """Notes the client's name of the model for the turns that start in this context."""
    TURN_ORIGIN.set(msgspec.structs.replace(TURN_ORIGIN.get(), model=name))


def note_session_turn(id: str) -> None:
    """Sets the id of the session's turn for all agent turns that start in this context (of `contextvars`)."""
    TURN_ORIGIN.set(msgspec.structs.replace(TURN_ORIGIN.get(), session_turn=id))


def model_asked(turn: Turn) -> str:
    """Returns the client's name of the model, for the turn that starts in this context; else the agent's name of it."""
    return (TURN_ORIGIN.get().model or turn.model)[:MAX_NAME]


class TimelineEvent(msgspec.Struct, frozen=True):
    """Seconds since the start, a name, and a detail such as the kind of an item."""

    at: float
    event: str
    detail: str = ""


class TurnSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A turn for the page. Times in seconds: `started` since 1970, the others since the start, if that has happened.
    `model` is the name that the client asked for, `response_model` the agent's name of the model that answers, if it
    has told any; `folder` is where an agent turn works. `input` and `output` are reported tokens, `estimated` estimates
    the output so far.
    """

    id: int
    request_id: str
    owner: str
    api: str
    agent: str
    model: str
    response_model: str
    mode: str
    folder: str
    doing: str
    started: float
    first: float | None
    seconds: float | None
    input: int | None
    output: int | None
    estimated: int
    end: str | None
    error: str | None
    message: str | None
    recorded: bool


class TurnRecord:
    """The record of one turn. `on_change` is called after each change."""

    def __init__(
        self,
        id: int,
        turn: Turn,
        agent: str,
        origin: TurnOrigin,
        clock: Clock,
        on_change: Callable[[TurnRecord], None],
    ) -> None:
        self.id = id
        self.owner = turn.owner
        self.version = 0
        """The value of `TurnRecords.version` after this record's last change."""
        self.timeline: list[TimelineEvent] = []
        self.events_left_out = 0
        self._turn = (agent, model_asked(turn), turn.mode, turn.workdir if turn.mode == "agent" else "")
        self._response_model = ""
        self._origin = origin
        self._clock = clock
        self._on_change = on_change
        self._started, self._began = clock.epoch(), clock.monotonic()
        self._first: float | None = None
        self._seconds: float | None = None
        self._doing = activity_of(None)
        self._kinds: dict[str, str] = {}
        """The kinds of the open items, by id."""
        self._tokens: tuple[int, int] | None = None
        self._chars = 0
        """The characters that the model has written."""
        self._ended: TurnEnded | None = None
        self.recording: Path | None = None
        """The recording's file, once written."""
        on_change(self)

    def add(self, events: Sequence[Event]) -> None:
        is_recorded = False
        for event in events:
            if type(event) in MODEL_DELTAS:
                self._chars += len(event.text)  # type: ignore[union-attr]
            elif type(event) in _TIMELINE_EVENTS:
                is_recorded = True
        if self._first is None and not VISIBLE_OUTPUT.isdisjoint(map(type, events)):
            self._first = self._now()
            self._note("first_word")
            if any(type(event) is ForwardedBytes for event in events):  # which has no items
                self._doing = WRITING
        elif not is_recorded:
            return
        for event in events:
            if type(event) in _TIMELINE_EVENTS:
                self._record(event)
        self._on_change(self)

    def is_from(self, id: str) -> bool:
        """Whether it belongs to the request, or to the session's turn, with this id."""
        return id in (self._origin.request_id, self._origin.session_turn)

    def on_written(self, file: Path) -> None:
        self.recording = file
        self._on_change(self)

    def summary(self) -> TurnSummary:
        agent, model, mode, folder = self._turn
        failure = None if self._ended is None else self._ended.failure
        read, written = self._tokens or (None, None)
        return TurnSummary(
            id=self.id, request_id=self._origin.request_id, owner=self.owner, api=self._origin.api,
            agent=agent, model=model, response_model=self._response_model, mode=mode,
            folder=folder, doing="" if self._ended else self._doing,
            started=self._started, first=self._first, seconds=self._seconds,
            input=read, output=written, estimated=self.estimated,
            end=None if self._ended is None else excerpt(str(self._ended.stop)),
            error=None if failure is None else failure.kind.value,
            message=None if failure is None else failure.message, recorded=self.recording is not None,
        )  # fmt: skip

    @property
    def estimated(self) -> int:
        """Estimates the tokens that the model has written."""
        return -(-self._chars // CHARS_OF_TOKEN)

    @property
    def has_ended(self) -> bool:
        return self._ended is not None

    def _now(self) -> float:
        return self._clock.monotonic() - self._began

    def _record(self, event: Event) -> None:
        if isinstance(event, TurnStarted):
            self._response_model = excerpt(event.model)
        elif isinstance(event, ItemStarted):
            self._doing = activity_of(event.item)
            self._kinds[event.item.id] = kind = _kind_of(event.item)
            self._note("item_started", kind)
        elif isinstance(event, ItemEnded):
            self._doing = activity_of(None)
            self._note("item_ended", f"{self._kinds.pop(event.id, 'item')}, {event.status}")
        elif isinstance(event, ToolCallRequested):
            self._note("tool_call", excerpt(event.name))
        elif isinstance(event, UsageReported):
            if not event.partial:  # an estimate, or of a model call that has only begun
                self._tokens = (event.usage.input, event.usage.output)
        elif isinstance(event, StepCompleted):
            used = "" if event.usage is None else f"{event.usage.input} tokens in, {event.usage.output} out"
            self._note("model_call_completed", used)
        elif isinstance(event, Retrying):
            self._note("model_call_repeated")
        elif isinstance(event, ServedBy):
            self._note("served_by", f"{event.upstream} attempt {event.attempts}".strip())
        elif isinstance(event, TurnEnded):
            self._ended = event
            self._seconds = self._now()
            self.timeline.append(TimelineEvent(self._seconds, "turn_ended", excerpt(str(event.stop))))

    def _note(self, event: str, detail: str = "") -> None:
        if len(self.timeline) < MAX_EVENTS:
            self.timeline.append(TimelineEvent(self._now(), event, detail))
        else:
            self.events_left_out += 1


class TurnRecords:
    def __init__(self, clock: Clock, worker: int = 0) -> None:
        """`worker`: the number of this process, 0 without others; its turns' numbers begin with it, so that another
        process's turn is not found here.
        """
        self.version = 0
        """Number of changes so far."""
        self._clock = clock
        self._last_id = worker * WORKER_TURNS
        self._running: dict[int, TurnRecord] = {}
        self._ended: OwnedEntries[int, TurnRecord] = OwnedEntries(lambda _, record: record.owner)

    def begin(self, turn: Turn, agent: str) -> TurnRecord:
        self._last_id += 1
        return TurnRecord(self._last_id, turn, agent, TURN_ORIGIN.get(), self._clock, self._on_change)

    def of_owner(self, owner: str, after: int = -1) -> list[TurnRecord]:
        """Returns the owner's records that changed after the version `after`, the newest turn first."""
        found = [
            each
            for records in (self._running.values(), self._ended.values())
            for each in records
            if each.owner == owner and each.version > after
        ]
        return sorted(found, key=lambda record: -record.id)

    def estimates(self, owner: str) -> dict[int, int]:
        """Returns estimated tokens of the owner's running turns, by number."""
        return {each.id: each.estimated for each in self._running.values() if each.owner == owner}

    def find(self, owner: str, id: int) -> TurnRecord | None:
        return next((each for each in self.of_owner(owner) if each.id == id), None)

    def of_origin(self, owner: str, id: str) -> TurnRecord | None:
        """Returns the newest turn of a request, or of a session's turn."""
        return next((each for each in self.of_owner(owner) if each.is_from(id)), None)

    def _on_change(self, record: TurnRecord) -> None:
        self.version += 1
        record.version = self.version
        if not record.has_ended:
            self._running[record.id] = record
        elif self._running.pop(record.id, None) is not None:
            self._ended[record.id] = record
            if len(self._ended) > MAX_TURNS:
                del self._ended[self._ended.oldest_of_most()]


def activity_of(item: Item | None) -> str:
    """Returns what a turn with this open item is doing, without its content."""
    if isinstance(item, Activity):
        return ACTIVITIES.get(item.kind, "using a tool")
    if isinstance(item, Message):
        return WRITING
    if isinstance(item, Reasoning):
        return "thinking"
    return "waiting for the agent" if item is None else "calling a tool"


class ProgressLines:
    """Lines in the server's log that say what a turn does, every `PROGRESS_SECONDS`."""

    def __init__(self, repair: TurnRepair, context: Context) -> None:
        self._repair = repair
        self._context = context
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float = PROGRESS_SECONDS) -> None:
        """Plans the line that says that the turn runs for so many seconds, and those behind it."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(PROGRESS_SECONDS, self._write, seconds, context=self._context)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self, seconds: float) -> None:
        log.info("turn_still_running", seconds=round(seconds), doing=activity_of(self._repair.open_item))
        self.start(seconds + PROGRESS_SECONDS)


def _kind_of(item: Item) -> str:
    if isinstance(item, Activity):
        return item.kind
    if isinstance(item, ToolCall | McpCall):
        return f"call of {excerpt(item.name)}"
    return type(item).__name__.lower()


class TurnWatcher(Protocol):
    def begin(self, turn: Turn, agent: str) -> TurnObserver:
        """Returns the observer of a turn that starts now, in its context."""


class TurnPreparer(Protocol):
    """What is to be done before the agent may begin a turn."""

    async def prepare(self, turn: Turn) -> TurnWatcher | None:
        """Returns when the turn may begin, soon and whatever fails. What it returns, if anything, watches the turn."""

    def expect(self, turn: Turn, session: str) -> None:
        """Called when a session was opened without a turn, but with what its turns will have. Returns at once."""

    async def settle(self, session_turn: str) -> None:
        """Returns when a session may tell that its turn has ended, soon and whatever fails."""


class TurnRecorder(Protocol):
    on_written: Callable[[Path], None]

    async def prepare(self, runner: ToolRunner | None) -> ToolRunner | None:
        """Returns when the turn may begin, soon and whatever fails: a runner that also records calls and outputs."""

    def settle(self, end: TurnEnded) -> Sequence[Coroutine[Any, Any, None]]:
        """Returns the work that has to be done before the turn's end is logged. It raises nothing, and is soon done."""

    def on_session(self, session: AgentSession) -> None:
        """Records the session, before the turn begins or continues on it."""

    def on_failure(self, failure: Failure) -> None:
        """Called when this server ends the turn with a failure."""

    def on_end(self, end: TurnEnded) -> None:
        """Called when the turn is over."""


class RequestRecorder(Protocol):
    def turn(self, turn: Turn, agent: Agent, first: Sequence[Event]) -> TurnRecorder | None:
        """Returns the recorder of a turn that is about to start, if it is recorded. `first`: events before the
        agent's.
        """

    def on_final_object(self, body: bytes) -> None:
        """Takes the final object of a background response."""


REQUEST_RECORDER: ContextVar[RequestRecorder | None] = ContextVar("request_recorder", default=None)
"""Records the request that is being answered; None: not recorded."""


def observe(
    turn: Turn, agent: Agent, watchers: Sequence[TurnWatcher], first: Sequence[Event]
) -> tuple[list[TurnObserver], TurnRecorder | None]:
    """Begins the observers of a turn that starts now, and its recorder, if any, which tells the page's record its file.
    `first`: events before the agent's.
    """
    observers: list[TurnObserver] = []
    for watcher in watchers:
        observers += call_observer(watcher.begin, turn, agent.name) or ()
    request = REQUEST_RECORDER.get()
    if request is None:
        return observers, None
    recorder = request.turn(turn, agent, first)
    record = next((each for each in observers if isinstance(each, TurnRecord)), None)
    if recorder is not None and record is not None:
        recorder.on_written = record.on_written
    return observers, recorder
