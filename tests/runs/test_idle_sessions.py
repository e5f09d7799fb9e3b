"""Kept threads: who gets one, how many there are, and how each of them ends."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.processes.session import AgentSession
from codex_proxy.core.events import ApprovalRequested, Event, InputRequested, TextDelta
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    TextPart,
    Tool,
)
from codex_proxy.core.turn import NamedTools, Origin, Turn
from codex_proxy.runs.idle_sessions import (
    CLOSED_SECONDS,
    ClosedSession,
    IdleLimits,
    IdleSessions,
    PendingOutputs,
    item_digests,
    session_key,
)
from codex_proxy.tools.policy import HiddenOutput
from tests.runs.actors import TURN, WordDialect, WordTransport
from tests.runs.virtual import settle, virtual

KEY = b"key"
CALLS = (HistoryCall("a", "f", "{}"), HistoryCall("b", "f", "{}"))
REMINDER = "<system-reminder>\nbe brief\n</system-reminder>"
PARKED = PendingOutputs(frozenset({"a", "b"}))


def message(text: str, role: Any = "user") -> HistoryMessage:
    return HistoryMessage(role, (TextPart(text),))


def output(call_id: str, text: str = "out") -> HistoryOutput:
    return HistoryOutput(call_id, (TextPart(text),))


SEEN: tuple[HistoryItem, ...] = (message("hi"), message("hello", "assistant"))
ASKED: tuple[HistoryItem, ...] = (message("hi"), *CALLS)


class Nobody:
    """The listener of before, whose turn is over."""

    def on_session_output(self, session: AgentSession, events: list[Event], size: int) -> None: ...

    def on_session_failure(self, session: AgentSession, failure: Failure) -> None: ...

    def on_session_error(self, session: AgentSession) -> None: ...


class IdleSeat:
    """A seat at rest, and what became of it."""

    def __init__(self) -> None:
        self.dialect, self.transport = WordDialect(), WordTransport()
        self.dialect.can_resume = True
        self.released: list[bool] = []
        loop = asyncio.get_running_loop()
        self.session = AgentSession(TURN, self.dialect, self.transport)
        self.session.claim(Nobody(), loop, lambda _, finished: self.released.append(finished))
        self.transport.attach(self.session)

    @property
    def closed(self) -> bool:
        return "interrupt" in self.dialect.calls and self.released == [True]


def kept_threads(count: int = 8, seconds: float = 60.0) -> IdleSessions:
    return IdleSessions(IdleLimits(count, seconds), asyncio.get_running_loop)


def put(
    threads: IdleSessions,
    seen: tuple[HistoryItem, ...] = SEEN,
    pending: PendingOutputs | None = None,
    key: bytes = KEY,
    thread: str = "",
    owner: str = "",
) -> IdleSeat:
    resting = IdleSeat()
    resting.dialect.reopen_id = thread
    threads.put(owner, key, resting.session, item_digests(seen)[0], pending or PendingOutputs())
    return resting


def asking(history: tuple[HistoryItem, ...], **more: Any) -> Turn:
    return msgspec.structs.replace(TURN, history=history, **more)


@virtual
async def test_a_history_that_goes_on_gets_the_thread_and_what_is_new_to_it() -> None:
    threads = kept_threads()
    resting = put(threads)
    new = message("and now?")
    hit = threads.take(KEY, asking((*SEEN, new)))
    assert hit is not None
    assert (hit.session, hit.new_items) == (resting.session, (new,))
    assert len(threads) == 0
    assert threads.take(KEY, asking((*SEEN, new))) is None, "it serves one request at a time"


def test_a_custom_call_is_another_than_a_function_of_the_same_words() -> None:
    call = HistoryCall("x", "f", "{}")
    custom = msgspec.structs.replace(call, kind="custom")
    assert item_digests([call]) != item_digests([custom])


@virtual
async def test_an_answer_without_text_is_nothing_new_to_the_thread_that_gave_it() -> None:
    threads = kept_threads()
    put(threads, seen=SEEN[:1])
    new = message("and now?")
    hit = threads.take(KEY, asking((*SEEN[:1], message("", "assistant"), new)))
    assert hit is not None
    assert hit.new_items == (new,)


@virtual
@pytest.mark.parametrize(
    "history",
    [
        SEEN,
        SEEN[:1],
        (message("hi"), message("other", "assistant"), message("now?")),
        (message("ho"), *SEEN[1:], message("now?")),
        (message("before"), *SEEN, message("now?")),
        (*SEEN, HistoryCall("x", "f", "{}"), output("x")),
        (),
    ],
    ids=["nothing new", "shorter", "another answer", "another question", "longer before", "calls", "empty"],
)
async def test_a_history_that_is_not_continued_gets_no_idle_session(history: tuple[HistoryItem, ...]) -> None:
    threads = kept_threads()
    resting = put(threads)
    assert threads.take(KEY, asking(history)) is None
    assert len(threads) == 1
    assert resting.dialect.calls == []
    threads.close()


@virtual
async def test_a_closed_session_that_its_agent_can_reopen_is_remembered_for_one_request() -> None:
    threads = kept_threads(seconds=60.0)
    resting = put(threads, thread="thread_1")
    new = message("and now?")
    assert threads.take_closed(KEY, asking((*SEEN, new))) is None, "it is not closed yet"
    await asyncio.sleep(61)
    assert resting.closed
    assert threads.take_closed(b"another", asking((*SEEN, new))) is None
    assert threads.take_closed(KEY, asking((message("hi"), message("other", "assistant"), new))) is None
    assert threads.take_closed(KEY, asking(SEEN)) is None
    assert threads.take_closed(KEY, asking((*SEEN, new))) == ClosedSession("thread_1", (new,))
    assert threads.take_closed(KEY, asking((*SEEN, new))) is None
    assert not threads


@virtual
async def test_a_session_is_remembered_when_its_process_ends_but_not_when_it_waited_for_outputs() -> None:
    threads = kept_threads()
    idle, waiting = put(threads, thread="idle"), put(threads, ASKED, PARKED, thread="waiting")
    for resting in (idle, waiting):
        resting.session.on_end(Ended())
    new = message("and now?")
    assert threads.take_closed(KEY, asking((*ASKED, output("a"), output("b")))) is None
    assert threads.take_closed(KEY, asking((*ASKED, new))) is None
    assert threads.take_closed(KEY, asking((*SEEN, new))) == ClosedSession("idle", (new,))


@virtual
async def test_of_closed_sessions_the_one_that_has_seen_the_most_is_reopened() -> None:
    threads = kept_threads(count=1)
    longer = (*SEEN, message("more"), message("sure", "assistant"))
    put(threads, SEEN, thread="shorter")
    put(threads, longer, thread="longer")
    put(threads, (message("x"), message("y", "assistant")))
    new = message("and now?")
    assert threads.take_closed(KEY, asking((*longer, new))) == ClosedSession("longer", (new,))
    hit = threads.take_closed(KEY, asking((*longer, new)))
    assert hit is not None
    assert hit.reopen_id == "shorter"


@virtual
async def test_closed_sessions_are_forgotten_after_a_day_and_the_oldest_beyond_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codex_proxy.runs.idle_sessions.MAX_CLOSED", 2)
    threads = kept_threads(count=1)
    for name in "abcd":
        put(threads, (message(name), *SEEN), thread=name)
    new = message("and now?")
    assert threads.take_closed(KEY, asking((message("a"), *SEEN, new))) is None
    assert threads.take_closed(KEY, asking((message("b"), *SEEN, new))) == ClosedSession("b", (new,))
    await asyncio.sleep(CLOSED_SECONDS + 1)
    assert threads.take_closed(KEY, asking((message("c"), *SEEN, new))) is None


@virtual
async def test_a_turn_with_another_thread_key_gets_no_idle_session() -> None:
    threads = kept_threads()
    put(threads)
    assert threads.take(b"another", asking((*SEEN, message("now?")))) is None
    threads.close()


@virtual
@pytest.mark.parametrize(
    ("fresh", "fits"),
    [
        ([output("a"), output("b")], True),
        ([output("b"), output("a")], True),
        ([output("a")], False),
        ([output("a"), output("a")], False),
        ([output("a"), output("c")], False),
        ([output("a"), output("b"), output("c")], False),
        ([output("a"), output("b"), output("b")], False),
        ([output("a"), output("b"), message("and this")], False),
        ([message("never mind")], False),
    ],
    ids=[
        "both",
        "swapped",
        "one",
        "one twice",
        "a stranger",
        "one more",
        "one again",
        "and words",
        "words alone",
    ],
)
async def test_a_waiting_session_takes_exactly_the_outputs_that_it_waits_for(
    fresh: list[HistoryItem], fits: bool
) -> None:
    threads = kept_threads()
    hidden = (HiddenOutput("c", output("c", "ours")),)
    put(threads, ASKED, msgspec.structs.replace(PARKED, hidden=hidden))
    hit = threads.take(KEY, asking((*ASKED, *fresh)))
    assert (hit is not None) is fits
    if hit is not None:
        assert hit.new_items == tuple(fresh)
        assert hit.hidden == hidden
    threads.close()


@virtual
@pytest.mark.parametrize(
    ("behind", "last"),
    [
        ((), (TextPart("out"),)),
        ((message("be brief", "developer"),), (TextPart(f"out\n\n{REMINDER}"),)),
        ((message("be brief"),), None),
        ((message("be brief", "developer"), message("and you?")), None),
        ((HistoryMessage("developer", (ImagePart("data:"),)),), None),
    ],
    ids=["nothing", "an instruction", "the user", "both", "a picture"],
)
async def test_an_instruction_behind_the_outputs_is_reported_in_the_last_where_the_turn_allows_it(
    behind: tuple[HistoryItem, ...], last: tuple[TextPart, ...] | None
) -> None:
    threads = kept_threads()
    put(threads, ASKED, PARKED)
    history = (*ASKED, output("a"), output("b"), *behind)
    if behind:
        assert threads.take(KEY, asking(history)) is None
    hit = threads.take(KEY, asking(history, instructions_in_outputs=True))
    assert (hit is None) is (last is None)
    if hit is not None and last is not None:
        assert hit.new_items == (output("a"), HistoryOutput("b", last))
    threads.close()


@virtual
async def test_an_instruction_behind_an_output_with_an_image_stands_behind_the_image() -> None:
    threads = kept_threads()
    put(threads, ASKED, PARKED)
    shown = HistoryOutput("b", (ImagePart("data:"),))
    history = (*ASKED, output("a"), shown, message("be brief", "developer"))
    hit = threads.take(KEY, asking(history, instructions_in_outputs=True))
    assert hit is not None
    assert hit.new_items[1] == HistoryOutput("b", (ImagePart("data:"), TextPart(REMINDER)))
    threads.close()


@virtual
async def test_of_two_threads_that_fit_the_one_kept_last_is_taken() -> None:
    threads = kept_threads()
    first, last = put(threads), put(threads)
    hit = threads.take(KEY, asking((*SEEN, message("now?"))))
    assert hit is not None
    assert hit.session is last.session
    threads.close()
    assert first.closed


@virtual
async def test_one_session_too_many_ends_the_one_kept_longest() -> None:
    threads = kept_threads(count=2)
    oldest, *others = [put(threads) for _ in range(3)]
    assert oldest.closed
    assert not any(each.closed for each in others)
    assert len(threads) == 2
    threads.close()


@virtual
async def test_an_owner_with_many_idle_sessions_displaces_none_of_another() -> None:
    threads = kept_threads(count=3)
    other = put(threads, owner="other")
    many = [put(threads, owner="busy") for _ in range(5)]
    assert not other.closed
    assert [each.closed for each in many] == [True, True, True, False, False]


@virtual
async def test_an_owner_with_many_closed_sessions_displaces_none_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codex_proxy.runs.idle_sessions.MAX_CLOSED", 2)
    threads = kept_threads(count=1)
    put(threads, key=b"other", thread="thr_other", owner="other")
    for number in range(5):
        put(threads, key=b"busy", thread=f"thr_{number}", owner="busy")
    assert threads.take_closed(b"other", asking((*SEEN, message("now?")))) is not None


@virtual
async def test_where_no_idle_sessions_are_allowed_a_session_is_closed_at_once() -> None:
    threads = kept_threads(count=0)
    resting = put(threads)
    assert resting.closed
    assert len(threads) == 0


@virtual
async def test_a_thread_that_nobody_comes_back_for_ends_when_its_time_is_up() -> None:
    threads = kept_threads(seconds=60.0)
    resting = put(threads)
    await asyncio.sleep(59.9)
    assert not resting.closed
    await asyncio.sleep(0.2)
    assert resting.closed
    assert len(threads) == 0


@virtual
async def test_a_thread_that_was_taken_has_no_time_limit_any_more() -> None:
    threads = kept_threads(seconds=60.0)
    resting = put(threads)
    assert threads.take(KEY, asking((*SEEN, message("now?")))) is not None
    await asyncio.sleep(120)
    assert not resting.closed


@virtual
async def test_a_thread_that_is_kept_again_has_all_of_its_time_again() -> None:
    threads = kept_threads(seconds=60.0)
    resting = put(threads)
    await asyncio.sleep(40)
    assert threads.take(KEY, asking((*SEEN, message("now?")))) is not None
    threads.put("", KEY, resting.session, item_digests(SEEN)[0], PendingOutputs())
    await asyncio.sleep(40)
    assert not resting.closed
    await asyncio.sleep(21)
    assert resting.closed


@virtual
async def test_a_session_that_is_not_idle_is_closed() -> None:
    threads = kept_threads()
    resting = IdleSeat()
    resting.dialect.can_resume = False
    threads.put("", KEY, resting.session, item_digests(SEEN)[0], PendingOutputs())
    assert resting.closed
    assert len(threads) == 0


@virtual
async def test_closing_ends_every_thread() -> None:
    threads = kept_threads()
    all_of_them = [put(threads) for _ in range(3)]
    threads.close()
    await settle()
    assert all(each.closed for each in all_of_them)
    assert len(threads) == 0


@virtual
async def test_the_end_of_a_child_ends_its_idle_sessions() -> None:
    threads = kept_threads()
    resting = put(threads)
    resting.session.on_end(Ended(code=1))
    assert len(threads) == 0
    assert resting.released == [True]
    assert threads.take(KEY, asking((*SEEN, message("now?")))) is None


@virtual
async def test_a_child_that_is_not_to_be_trusted_loses_its_threads() -> None:
    threads = kept_threads()
    resting = put(threads)
    resting.session.fail(Failure(kind=FaultKind.AGENT_PROTOCOL, message="nonsense"))
    assert resting.closed
    assert len(threads) == 0


@virtual
async def test_an_internal_error_loses_the_thread_and_releases_its_transport() -> None:
    threads = kept_threads()
    resting = put(threads)
    resting.dialect.breaks = "receive"
    resting.transport.say(TextDelta("x", "x"))
    assert len(threads) == 0
    assert resting.released == [False]


@virtual
@pytest.mark.parametrize("ask", [ApprovalRequested("q", "command", "rm"), InputRequested("q", "?")])
async def test_a_question_of_an_idle_agent_is_declined_at_once(
    ask: ApprovalRequested | InputRequested,
) -> None:
    threads = kept_threads()
    resting = put(threads)
    resting.transport.say(ask)
    assert "answer q" in resting.dialect.calls
    assert len(threads) == 1
    threads.close()


@virtual
async def test_an_agent_that_goes_on_by_itself_is_not_kept() -> None:
    threads = kept_threads()
    resting = put(threads)
    resting.dialect.can_resume = False
    resting.transport.say(TextDelta("x", "x"))
    assert resting.closed
    assert len(threads) == 0


FUNCTION = Tool("f")
BASE = Turn(model="m", history=(), tools=(FUNCTION,))
DIFFERENT = {
    "mode": "model",
    "model": "n",
    "tools": (Tool("f", strict=True),),
    "tool_choice": NamedTools(("f",)),
    "web_search": True,
    "verbosity": "low",
    "workdir": "/",
    "sandbox": "workspace-write",
    "effort": "high",
    "summary": "auto",
    "service_tier": "flex",
    "output_schema": msgspec.Raw(b"{}"),
}


@pytest.mark.parametrize("field", DIFFERENT)
def test_a_thread_serves_only_turns_that_want_the_same(field: str) -> None:
    other = msgspec.structs.replace(BASE, **{field: DIFFERENT[field]})
    assert session_key("me", BASE) != session_key("me", other)


def test_a_thread_serves_only_its_owner() -> None:
    assert session_key("me", BASE) != session_key("you", BASE)


MAY_CHANGE = {
    "history": SEEN,
    "stop": ("x",),
    "max_tokens": 5,
    "parallel_tool_calls": False,
    "choices": 2,
    "reports_stop": True,
    "max_server_steps": 1,
    "max_server_calls": 1,
    "schema_field": "text.format",
    "json_object": True,
    "origin": Origin(key="k"),
    "instructions_in_outputs": True,
    "calls_without_ids": True,
}
"""What this server itself applies, or what is in the history as well."""
NEVER_WITH_A_KEPT_SESSION = {
    "owner",
    "confine_reads",
    "permissions",
    "sampling",
    "passed_fields",
    "forwarded",
}
"""The owner is compared for itself, and decides the next two; the others are for upstreams, which keep no session."""


@pytest.mark.parametrize("field", MAY_CHANGE)
def test_what_no_session_depends_on_may_change(field: str) -> None:
    assert session_key("me", BASE) == session_key(
        "me", msgspec.structs.replace(BASE, **{field: MAY_CHANGE[field]})
    )


def test_each_field_of_a_turn_is_known_to_the_comparison_of_sessions() -> None:
    """A new field must become a part of `session_key`, or have a reason here why a session does not depend on it."""
    assert {*DIFFERENT, *MAY_CHANGE, *NEVER_WITH_A_KEPT_SESSION} == set(Turn.__struct_fields__)
