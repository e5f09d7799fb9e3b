"""A session: steps both ways, one release, and a fault of ours that stays in its turn."""

from __future__ import annotations

import asyncio

import pytest

from codex_proxy.agents.dialect import Decision, Ended, ToolReply
from codex_proxy.agents.sessions.session import FINISH_SECONDS, AgentSession, LineTooLong
from codex_proxy.core.events import Event, TextDelta
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import TextPart
from tests.runs.actors import DONE, TURN, WordDialect, WordTransport, deltas
from tests.runs.virtual import virtual

WORDS = deltas("Hi.")


class RecordingListener:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.failures: list[Failure] = []
        self.broken = 0
        self.breaks = False

    def on_session_output(self, session: AgentSession, events: list[Event], size: int) -> None:
        self.events += events
        if self.breaks:
            raise ZeroDivisionError("a fault of ours")

    def on_session_failure(self, session: AgentSession, failure: Failure) -> None:
        self.failures.append(failure)

    def on_session_error(self, session: AgentSession) -> None:
        self.broken += 1


class Around:
    """A session with everything around it."""

    def __init__(self, *, exclusive: bool = False) -> None:
        self.dialect, self.transport, self.heard = (
            WordDialect(),
            WordTransport(exclusive=exclusive),
            RecordingListener(),
        )
        self.released: list[bool] = []
        self.session = AgentSession(TURN, self.dialect, self.transport)
        self.session.claim(
            self.heard, asyncio.get_running_loop(), lambda _, finished: self.released.append(finished)
        )
        self.session.begin()


@virtual
async def test_what_the_dialect_writes_is_sent_and_its_events_are_reported() -> None:
    around = Around()
    around.transport.say(*WORDS)
    around.session.answer("q", Decision())
    around.session.answer("t", ToolReply((TextPart("out"),)))
    around.session.resume(TURN, ())
    assert around.transport.sent == [b"begin", b"receive", b"answer q", b"answer t", b"resume"]
    assert around.heard.events == WORDS
    assert around.released == []


@virtual
async def test_a_step_that_closes_stdin_does_so_behind_what_it_writes() -> None:
    around = Around(exclusive=True)
    around.dialect.closes_stdin = True
    around.session.answer("q", Decision())
    assert around.transport.sent == [b"begin", b"answer q", b"<end of stdin>"]


@virtual
async def test_a_closed_session_interrupts_the_agent_once_and_is_released_once() -> None:
    around = Around()
    around.session.close()
    around.session.close()
    assert around.dialect.calls == ["begin", "interrupt"]
    assert around.released == [True]


@virtual
async def test_a_session_is_kept_until_the_agent_has_dropped_the_turn() -> None:
    around = Around()
    around.dialect.slow_to_finish = True
    around.session.close()
    assert around.released == []
    around.dialect.finished = True
    around.transport.say(TextDelta("a", "late"))
    assert around.released == [True]
    await asyncio.sleep(2 * FINISH_SECONDS)
    assert around.released == [True]


@virtual
async def test_an_agent_that_does_not_drop_it_is_given_up_after_its_time() -> None:
    around = Around()
    around.dialect.slow_to_finish = True
    around.session.close()
    await asyncio.sleep(FINISH_SECONDS - 0.1)
    assert around.released == []
    await asyncio.sleep(0.2)
    assert around.released == [False]


@virtual
async def test_an_exclusive_child_need_not_drop_anything() -> None:
    around = Around(exclusive=True)
    around.dialect.slow_to_finish = True
    around.session.close()
    assert around.released == [True]


@virtual
async def test_a_session_whose_child_ended_is_released() -> None:
    around = Around()
    around.dialect.can_resume = True
    assert around.session.can_resume
    around.session.on_end(Ended(code=1))
    assert around.session.gone
    assert not around.session.can_resume
    assert around.released == [True]
    around.session.close()
    assert around.released == [True]


@virtual
@pytest.mark.parametrize("where", ["receive", "answer q", "resume"])
async def test_an_error_of_the_proxys_in_a_step_is_reported_and_releases_the_session(where: str) -> None:
    around = Around()
    around.dialect.breaks = where
    {
        "receive": lambda: around.transport.say(*WORDS),
        "answer q": lambda: around.session.answer("q", Decision()),
        "resume": lambda: around.session.resume(TURN, ()),
    }[where]()
    assert around.heard.broken == 1
    assert around.released == [False]


@virtual
async def test_a_listener_that_raises_is_informed_and_the_session_released() -> None:
    around = Around()
    around.heard.breaks = True
    around.transport.say(*WORDS)
    assert around.heard.broken == 1
    assert around.released == [False]


@virtual
async def test_a_broken_protocol_is_reported_to_the_listener() -> None:
    around = Around()
    failure = Failure(kind=FaultKind.AGENT_PROTOCOL, message="nonsense")
    around.session.fail(failure)
    assert around.heard.failures == [failure]


@virtual
async def test_a_session_that_can_resume_may_be_kept_until_it_is_closed() -> None:
    around = Around()
    around.transport.say(*WORDS, DONE)
    assert not around.session.can_resume
    around.dialect.can_resume = True
    assert around.session.can_resume
    around.session.close()
    assert not around.session.can_resume


@virtual
async def test_only_an_exclusive_child_can_be_paused() -> None:
    shared, alone = Around(), Around(exclusive=True)
    assert not shared.session.pause_reading()
    assert not shared.transport.paused
    assert alone.session.pause_reading()
    assert alone.transport.paused
    alone.session.close()
    assert not alone.transport.paused, "it has to hear that it is to stop"


@virtual
@pytest.mark.parametrize(
    ("limit", "kind", "named"),
    [
        (40, FaultKind.REQUEST_TOO_LARGE, "was given 20 bytes"),
        (41, FaultKind.AGENT_PROTOCOL, "longer than 41 bytes"),
    ],
)
async def test_a_line_too_long_is_the_requests_fault_where_it_may_repeat_it(
    limit: int, kind: FaultKind, named: str
) -> None:
    around = Around()
    around.session.answer("x" * 13, Decision())  # the largest of three writes
    around.session.answer("y", Decision())
    around.session.on_long_line(LineTooLong(limit, []))
    (failure,) = around.heard.failures
    assert failure.kind is kind
    assert named in failure.message
