"""A seat: steps both ways, one release of its lane, and a fault of ours that stays in its turn."""

from __future__ import annotations

import asyncio

import pytest

from codex_proxy.agents.agent import Opened
from codex_proxy.agents.base import Decision, Ended, ToolReply
from codex_proxy.core.events import Event, TextDelta
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import TextPart
from codex_proxy.runs.seat import SETTLE_SECONDS, Seat
from tests.runs.actors import DONE, TURN, WordDialect, WordLane, said
from tests.runs.virtual import virtual

WORDS = said("Hi.")


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.failures: list[Failure] = []
        self.broken = 0
        self.breaks = False

    def stepped(self, seat: Seat, events: list[Event], size: int) -> None:
        self.events += events
        if self.breaks:
            raise ZeroDivisionError("a fault of ours")

    def failed(self, seat: Seat, failure: Failure) -> None:
        self.failures.append(failure)

    def broke(self, seat: Seat) -> None:
        self.broken += 1


class Place:
    """A seat with everything around it."""

    def __init__(self, *, alone: bool = False) -> None:
        self.dialect, self.lane, self.heard = WordDialect(), WordLane(alone=alone), Heard()
        self.released: list[bool] = []
        opened = Opened(TURN, self.dialect, self.lane)
        self.seat = Seat(opened, self.heard, asyncio.get_running_loop(), self.released.append)
        self.seat.begin()


@virtual
async def test_what_the_dialect_writes_is_sent_and_what_it_reads_is_heard() -> None:
    place = Place()
    place.lane.say(*WORDS)
    place.seat.answer("q", Decision())
    place.seat.answer("t", ToolReply((TextPart("out"),)))
    place.seat.proceed(TURN, ())
    assert place.lane.sent == [b"begin", b"receive", b"answer q", b"answer t", b"proceed"]
    assert place.heard.events == WORDS
    assert place.released == []


@virtual
async def test_a_step_that_closes_stdin_does_so_behind_what_it_writes() -> None:
    place = Place(alone=True)
    place.dialect.closes_stdin = True
    place.seat.answer("q", Decision())
    assert place.lane.sent == [b"begin", b"answer q", b"<end of stdin>"]


@virtual
async def test_a_closed_seat_tells_the_agent_once_and_lets_its_lane_go_once() -> None:
    place = Place()
    place.seat.close()
    place.seat.close()
    assert place.dialect.calls == ["begin", "interrupt"]
    assert place.released == [True]


@virtual
async def test_a_lane_is_kept_until_the_agent_has_forgotten_the_turn() -> None:
    place = Place()
    place.dialect.slow_to_settle = True
    place.seat.close()
    assert place.released == []
    place.dialect.settled = True
    place.lane.say(TextDelta("a", "late"))
    assert place.released == [True]
    await asyncio.sleep(2 * SETTLE_SECONDS)
    assert place.released == [True]


@virtual
async def test_an_agent_that_does_not_forget_it_is_given_up_after_its_time() -> None:
    place = Place()
    place.dialect.slow_to_settle = True
    place.seat.close()
    await asyncio.sleep(SETTLE_SECONDS - 0.1)
    assert place.released == []
    await asyncio.sleep(0.2)
    assert place.released == [False]


@virtual
async def test_a_child_of_ones_own_need_not_forget_anything() -> None:
    place = Place(alone=True)
    place.dialect.slow_to_settle = True
    place.seat.close()
    assert place.released == [True]


@virtual
async def test_a_child_that_ended_is_gone_and_its_lane_let_go() -> None:
    place = Place()
    place.dialect.resting = True
    assert place.seat.resting
    place.seat.ended(Ended(code=1))
    assert place.seat.gone
    assert not place.seat.resting
    assert place.released == [True]
    place.seat.close()
    assert place.released == [True]


@virtual
@pytest.mark.parametrize("where", ["receive", "answer q", "proceed"])
async def test_a_fault_of_ours_in_a_step_is_told_and_gives_the_lane_up(where: str) -> None:
    place = Place()
    place.dialect.breaks = where
    {
        "receive": lambda: place.lane.say(*WORDS),
        "answer q": lambda: place.seat.answer("q", Decision()),
        "proceed": lambda: place.seat.proceed(TURN, ()),
    }[where]()
    assert place.heard.broken == 1
    assert place.released == [False]


@virtual
async def test_a_listener_that_breaks_is_told_so_and_the_lane_given_up() -> None:
    place = Place()
    place.heard.breaks = True
    place.lane.say(*WORDS)
    assert place.heard.broken == 1
    assert place.released == [False]


@virtual
async def test_a_child_that_is_not_to_be_trusted_is_its_listener_s_affair() -> None:
    place = Place()
    failure = Failure(kind=FaultKind.AGENT_PROTOCOL, message="nonsense")
    place.seat.fail(failure)
    assert place.heard.failures == [failure]


@virtual
async def test_a_resting_seat_may_be_kept_until_it_is_closed() -> None:
    place = Place()
    place.lane.say(*WORDS, DONE)
    assert not place.seat.resting
    place.dialect.resting = True
    assert place.seat.resting
    place.seat.close()
    assert not place.seat.resting


@virtual
async def test_only_a_child_of_ones_own_can_be_made_to_wait() -> None:
    shared, alone = Place(), Place(alone=True)
    assert not shared.seat.pause()
    assert not shared.lane.paused
    assert alone.seat.pause()
    assert alone.lane.paused
    alone.seat.close()
    assert not alone.lane.paused, "it has to hear that it is to stop"
