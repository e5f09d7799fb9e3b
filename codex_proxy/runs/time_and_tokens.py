"""What a turn takes: its time, with one timer for the earliest limit, and the tokens of its attempts. A turn that was
cut before its agent has reported any has an estimate: of its text, and of what the agent adds to it, as a whole turn
has shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from codex_proxy.core.events import Event, Retrying, Stop, TurnEnded, Usage, UsageReported
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.interfaces import TimerHandle, Timers
from codex_proxy.core.items import RawHistoryItem, images_in, texts_in
from codex_proxy.core.media import url_tokens
from codex_proxy.core.repair import ENDS_WELL, TurnRepair
from codex_proxy.core.tokens import estimate_all
from codex_proxy.core.turn import Turn


class Deadlines(msgspec.Struct, frozen=True):
    """Seconds: `first` until the client sees something, `idle` without output for the turn, `total` for the
    turn. Output that no dialect knows counts as well: it may be the progress of a newer agent.
    """

    first: float = 60.0
    idle: float = 300.0
    total: float = 3600.0


class DeadlineWatch:
    """Calls `on_expired` once, with a TIMED_OUT failure. The time begins with `start`."""

    def __init__(self, deadlines: Deadlines, timers: Timers, on_expired: Callable[[Failure], None]) -> None:
        self._deadlines = deadlines
        self._timers = timers
        self._on_expired: Callable[[Failure], None] | None = on_expired
        self._began = self._last = 0.0
        self.visible = False
        """Whether there was an event that the client sees."""
        self.paused = False
        """Whether the agent waits for this server."""
        self.stopped = False
        self._timer: TimerHandle | None = None
        self._held: float | None = None
        """Since when the time stands still, if it does."""

    def start(self) -> None:
        self._began = self._last = self._timers.time()
        self._arm()

    def note_event(self, *, visible: bool) -> None:
        """Notes an event; a `visible` one meets `first`."""
        self._last = self._timers.time()
        self.visible = self.visible or visible

    def pause(self) -> None:
        """Stops the idle deadline until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Starts the idle deadline again, with its full time."""
        self.paused = False
        self._last = self._timers.time()
        if self._timer is not None:
            self._timer.cancel()
            self._arm()

    def hold(self) -> None:
        """Stops the time until `go_on`."""
        if self._held is None:
            self._held = self._timers.time()
            self._cancel()

    def go_on(self) -> None:
        """Lets the time go on, and the idle deadline begin again."""
        if self._held is not None and not self.stopped:
            self._last = self._timers.time()
            self._began += self._last - self._held
            self._held = None
            self._arm()

    def stop(self) -> None:
        self.stopped = True
        self._on_expired = None
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> tuple[float, str, float]:
        limits = self._deadlines
        candidates = [(self._began + limits.total, "the whole answer", limits.total)]
        if not self.paused:
            candidates.append((self._last + limits.idle, "the next sign of life", limits.idle))
        if not self.visible:
            candidates.append((self._began + limits.first, "the first word", limits.first))
        return min(candidates)

    def _arm(self) -> None:
        self._timer = self._timers.call_at(self._next()[0], self._check)

    def _check(self) -> None:
        when, what, seconds = self._next()
        if when > self._timers.time():
            self._arm()
            return
        self._timer = None
        message = f"The agent took longer than {seconds:g} s for {what}. Try again, or raise the time limit."
        if self._on_expired is not None:
            self._on_expired(Failure(FaultKind.TIMED_OUT, message))


def deadline_failure(late: Failure, retrying: Retrying | None, retries: int, hint: str) -> Failure:
    """Returns the failure of a turn that a deadline (`late`) ends: that of the agent's last unanswered retry
    (`retrying`), if any. `hint` says what the agent may be doing.
    """
    if retrying is None:
        return msgspec.structs.replace(late, message=f"{late.message} {hint}") if hint else late
    times = "once" if retries == 1 else f"{retries} times"
    if retrying.failure is None:
        message = f"{late.message} It had retried its model request {times}: {retrying.message}"
        return msgspec.structs.replace(late, message=message)
    reason = retrying.failure.message.rstrip(".")
    message = f"{reason}. The agent retried {times} and ran out of time: {late.message}"
    return msgspec.structs.replace(retrying.failure, message=message)


# --- the tokens -----------------------------------------------------------------------------------

MAX_CHARS: Final = 2000
"""Maximum characters of a request from which is learned: the error of its estimate would count as the agent's."""
_CUT_ENDS: Final = frozenset({Stop.LENGTH, Stop.INTERRUPTED, Stop.CONTENT_FILTER})


class TokensAddedByAgents:
    """The tokens that agents add to a request, such as their own instructions and tools: for each agent and mode, as of
    the newest turn that showed it. They say nothing of a client, since the text of the request is subtracted.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], int] = {}

    def learn(self, turn: Turn, agent: str, input: int) -> None:
        """Takes the reported input of a turn that was one model call. Long requests are ignored, and those with images
        or raw items, whose tokens are not known, or with a part of a conversation.
        """
        if _is_part(turn):
            return
        chars = 0
        for text in _texts(turn):
            chars += len(text)
            if chars > MAX_CHARS:
                return
        known = self._known.get((agent, turn.mode))
        if known is not None and 0 <= input - known <= chars:
            return  # as far as can be told without counting
        if RawHistoryItem in map(type, turn.history) or images_in(turn.history):
            return
        self._known[agent, turn.mode] = max(0, input - estimate_all(_texts(turn)))

    def estimate(self, turn: Turn, agent: str) -> int | None:
        """Estimates a turn's input; None if nothing is known of its agent."""
        added = self._known.get((agent, turn.mode))
        if added is None or _is_part(turn):
            return None
        images = sum(url_tokens(image.url) for image in images_in(turn.history))
        return added + estimate_all(_texts(turn)) + images


def _is_part(turn: Turn) -> bool:
    return turn.stored_session is not None and turn.stored_session.before != ""


def _texts(turn: Turn) -> Iterator[str]:
    yield from texts_in(turn.history)
    for tool in turn.tools:
        yield tool.description
        yield bytes(tool.parameters or b"").decode()
    yield bytes(turn.output_schema or b"").decode()


def _count_reports(events: Sequence[Event]) -> int:
    return sum(isinstance(each, UsageReported) for each in events)


class TurnUsage:
    """The tokens of all attempts: the client pays for a discarded one too."""

    def __init__(self, turn: Turn, agent: str, added: TokensAddedByAgents) -> None:
        self._turn, self._agent, self._added = turn, agent, added
        self._before = Usage()
        """The tokens of a discarded first attempt."""
        self._newest: UsageReported | None = None
        self._reports = 0
        """The number of reports of the current attempt."""
        self._uncounted = False
        """Whether an attempt was discarded whose tokens were not reported."""
        self._is_first = True

    def add(self, reported: UsageReported) -> UsageReported:
        """Returns the report plus the discarded attempt's usage."""
        self._newest = reported
        self._reports += 1
        if self._is_first:
            return reported
        partial = self._uncounted or reported.partial
        return UsageReported(self._before + reported.usage, reported.trigger, partial=partial)

    def begin_attempt(self, *, begun: bool) -> list[Event]:
        """Discards the current attempt, and returns its usage. `begun`: whether the attempt may have used tokens
        that were not reported.
        """
        newest, self._newest, self._is_first, self._reports = self._newest, None, False, 0
        if newest is None:
            self._uncounted = self._uncounted or begun
            return []
        self._before += newest.usage
        # Until the new attempt's tokens are reported, if they ever are.
        return [UsageReported(self._before, newest.trigger, partial=True)]

    def at_end(
        self, ended: TurnEnded, given: Sequence[Event], logged: Sequence[Event], repair: TurnRepair
    ) -> list[Event]:
        """Returns an estimate of a turn that was cut before its agent has reported tokens. Learns from one that ended
        well. `given`: the last batch; `logged`: what of it is within the limits.
        """
        newest = self._newest
        if ended.cut or ended.stop in _CUT_ENDS:
            # A report behind the cut does not count: it depends on the pipe whether it comes in the same batch.
            dropped = _count_reports(given) - _count_reports(logged)
            tokens = self._added.estimate(self._turn, self._agent) if self._reports == dropped else None
            if tokens is None:
                return []
            output, limit = estimate_all(repair.texts()), self._turn.max_tokens
            usage = Usage(input=tokens, output=output if limit is None else min(output, limit))
            return [UsageReported(self._before + usage, "provider", partial=True)]
        # Only of one model call is it known what the client's part of the input was.
        is_one_call = self._is_first and repair.has_only_texts and not self._turn.forwarded
        if is_one_call and ended.stop in ENDS_WELL and newest is not None and not newest.partial:
            self._added.learn(self._turn, self._agent, newest.usage.input)
        return []
