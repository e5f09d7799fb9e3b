"""Kept threads: who gets one, how many there are, and how each of them ends."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.sessions.session import AgentSession
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
from codex_proxy.core.options import OPTIONS, Option
from codex_proxy.core.turn import HostedTools, NamedTools, StoredSession, Turn
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
PENDING_CALLS = PendingOutputs(frozenset({"a", "b"}))


def message(text: str, role: Any = "user") -> HistoryMessage:
    return HistoryMessage(role, (TextPart(text),))


def output(call_id: str, text: str = "out") -> HistoryOutput:
    return HistoryOutput(call_id, (TextPart(text),))


HISTORY: tuple[HistoryItem, ...] = (message("hi"), message("hello", "assistant"))
HISTORY_WITH_CALLS: tuple[HistoryItem, ...] = (message("hi"), *CALLS)


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


def make_sessions(count: int = 8, seconds: float = 60.0) -> IdleSessions:
    return IdleSessions(IdleLimits(count, seconds), asyncio.get_running_loop)


def add_session(
    threads: IdleSessions,
    seen: tuple[HistoryItem, ...] = HISTORY,
    pending: PendingOutputs | None = None,
    key: bytes = KEY,
    thread: str = "",
    owner: str = "",
) -> IdleSeat:
    resting = IdleSeat()
    resting.dialect.reopen_id = thread
    threads.put(owner, key, resting.session, item_digests(seen)[0], pending or PendingOutputs())
    return resting


def turn_with(history: tuple[HistoryItem, ...], **more: Any) -> Turn:
    return msgspec.structs.replace(TURN, history=history, **more)


@virtual
async def test_a_history_that_goes_on_gets_the_thread_and_what_is_new_to_it() -> None:
    threads = make_sessions()
    resting = add_session(threads)
    new = message("and now?")
    hit = threads.take(KEY, turn_with((*HISTORY, new)))
    assert hit is not None
    assert (hit.session, hit.new_items) == (resting.session, (new,))
    assert len(threads) == 0
    assert threads.take(KEY, turn_with((*HISTORY, new))) is None, "it serves one request at a time"


def test_a_custom_call_is_another_than_a_function_of_the_same_words() -> None:
    call = HistoryCall("x", "f", "{}")
    custom = msgspec.structs.replace(call, kind="custom")
    assert item_digests([call]) != item_digests([custom])


@virtual
async def test_an_answer_without_text_is_nothing_new_to_the_thread_that_gave_it() -> None:
    threads = make_sessions()
    add_session(threads, seen=HISTORY[:1])
    new = message("and now?")
    hit = threads.take(KEY, turn_with((*HISTORY[:1], message("", "assistant"), new)))
    assert hit is not None
    assert hit.new_items == (new,)


@virtual
@pytest.mark.parametrize(
    "history",
    [
        HISTORY,
        HISTORY[:1],
        (message("hi"), message("other", "assistant"), message("now?")),
        (message("ho"), *HISTORY[1:], message("now?")),
        (message("before"), *HISTORY, message("now?")),
        (*HISTORY, HistoryCall("x", "f", "{}"), output("x")),
        (),
    ],
    ids=["nothing new", "shorter", "another answer", "another question", "longer before", "calls", "empty"],
)
async def test_a_history_that_is_not_continued_gets_no_idle_session(history: tuple[HistoryItem, ...]) -> None:
    threads = make_sessions()
    resting = add_session(threads)
    assert threads.take(KEY, turn_with(history)) is None
    assert len(threads) == 1
    assert resting.dialect.calls == []
    threads.close()


@virtual
async def test_a_closed_session_that_its_agent_can_reopen_is_remembered_for_one_request() -> None:
    threads = make_sessions(seconds=60.0)
    resting = add_session(threads, thread="thread_1")
    new = message("and now?")
    assert threads.take_closed(KEY, turn_with((*HISTORY, new))) is None, "it is not closed yet"
    await asyncio.sleep(61)
    assert resting.closed
    assert threads.take_closed(b"another", turn_with((*HISTORY, new))) is None
    assert threads.take_closed(KEY, turn_with((message("hi"), message("other", "assistant"), new))) is None
    assert threads.take_closed(KEY, turn_with(HISTORY)) is None
    assert threads.take_closed(KEY, turn_with((*HISTORY, new))) == ClosedSession("thread_1", (new,))
    assert threads.take_closed(KEY, turn_with((*HISTORY, new))) is None
    assert not threads


@virtual
async def test_a_session_is_remembered_when_its_process_ends_but_not_when_it_waited_for_outputs() -> None:
    threads = make_sessions()
    idle, waiting = (
        add_session(threads, thread="idle"),
        add_session(threads, HISTORY_WITH_CALLS, PENDING_CALLS, thread="waiting"),
    )
    for resting in (idle, waiting):
        resting.session.on_end(Ended())
    new = message("and now?")
    assert threads.take_closed(KEY, turn_with((*HISTORY_WITH_CALLS, output("a"), output("b")))) is None
    assert threads.take_closed(KEY, turn_with((*HISTORY_WITH_CALLS, new))) is None
    assert threads.take_closed(KEY, turn_with((*HISTORY, new))) == ClosedSession("idle", (new,))


@virtual
async def test_of_closed_sessions_the_one_that_has_seen_the_most_is_reopened() -> None:
    threads = make_sessions(count=1)
    longer = (*HISTORY, message("more"), message("sure", "assistant"))
    add_session(threads, HISTORY, thread="shorter")
    add_session(threads, longer, thread="longer")
    add_session(threads, (message("x"), message("y", "assistant")))
    new = message("and now?")
    assert threads.take_closed(KEY, turn_with((*longer, new))) == ClosedSession("longer", (new,))
    hit = threads.take_closed(KEY, turn_with((*longer, new)))
    assert hit is not None
    assert hit.reopen_id == "shorter"


@virtual
async def test_closed_sessions_are_forgotten_after_a_day_and_the_oldest_beyond_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codex_proxy.runs.idle_sessions.MAX_CLOSED", 2)
    threads = make_sessions(count=1)
    for name in "abcd":
        add_session(threads, (message(name), *HISTORY), thread=name)
    new = message("and now?")
    assert threads.take_closed(KEY, turn_with((message("a"), *HISTORY, new))) is None
    assert threads.take_closed(KEY, turn_with((message("b"), *HISTORY, new))) == ClosedSession("b", (new,))
    await asyncio.sleep(CLOSED_SECONDS + 1)
    assert threads.take_closed(KEY, turn_with((message("c"), *HISTORY, new))) is None


@virtual
async def test_a_turn_with_another_thread_key_gets_no_idle_session() -> None:
    threads = make_sessions()
    add_session(threads)
    assert threads.take(b"another", turn_with((*HISTORY, message("now?")))) is None
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
    threads = make_sessions()
    hidden = (HiddenOutput("c", output("c", "ours")),)
    add_session(threads, HISTORY_WITH_CALLS, msgspec.structs.replace(PENDING_CALLS, hidden=hidden))
    hit = threads.take(KEY, turn_with((*HISTORY_WITH_CALLS, *fresh)))
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
    threads = make_sessions()
    add_session(threads, HISTORY_WITH_CALLS, PENDING_CALLS)
    history = (*HISTORY_WITH_CALLS, output("a"), output("b"), *behind)
    if behind:
        assert threads.take(KEY, turn_with(history)) is None
    hit = threads.take(KEY, turn_with(history, instructions_in_outputs=True))
    assert (hit is None) is (last is None)
    if hit is not None and last is not None:
        assert hit.new_items == (output("a"), HistoryOutput("b", last))
    threads.close()


@virtual
async def test_an_instruction_behind_an_output_with_an_image_stands_behind_the_image() -> None:
    threads = make_sessions()
    add_session(threads, HISTORY_WITH_CALLS, PENDING_CALLS)
    shown = HistoryOutput("b", (ImagePart("data:"),))
    history = (*HISTORY_WITH_CALLS, output("a"), shown, message("be brief", "developer"))
    hit = threads.take(KEY, turn_with(history, instructions_in_outputs=True))
    assert hit is not None
    assert hit.new_items[1] == HistoryOutput("b", (ImagePart("data:"), TextPart(REMINDER)))
    threads.close()


@virtual
async def test_of_two_threads_that_fit_the_one_kept_last_is_taken() -> None:
    threads = make_sessions()
    first, last = add_session(threads), add_session(threads)
    hit = threads.take(KEY, turn_with((*HISTORY, message("now?"))))
    assert hit is not None
    assert hit.session is last.session
    threads.close()
    assert first.closed


@virtual
async def test_one_session_too_many_ends_the_one_kept_longest() -> None:
    threads = make_sessions(count=2)
    oldest, *others = [add_session(threads) for _ in range(3)]
    assert oldest.closed
    assert not any(each.closed for each in others)
    assert len(threads) == 2
    threads.close()


@virtual
async def test_an_owner_with_many_idle_sessions_displaces_none_of_another() -> None:
    threads = make_sessions(count=3)
    other = add_session(threads, owner="other")
    many = [add_session(threads, owner="busy") for _ in range(5)]
    assert not other.closed
    assert [each.closed for each in many] == [True, True, True, False, False]


@virtual
async def test_an_owner_with_many_closed_sessions_displaces_none_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codex_proxy.runs.idle_sessions.MAX_CLOSED", 2)
    threads = make_sessions(count=1)
    add_session(threads, key=b"other", thread="thr_other", owner="other")
    for number in range(5):
        add_session(threads, key=b"busy", thread=f"thr_{number}", owner="busy")
    assert threads.take_closed(b"other", turn_with((*HISTORY, message("now?")))) is not None


@virtual
async def test_a_session_is_closed_at_once_where_no_idle_ones_are_allowed() -> None:
    threads = make_sessions(count=0)
    resting = add_session(threads)
    assert resting.closed
    assert len(threads) == 0


@virtual
async def test_a_thread_that_nobody_comes_back_for_ends_when_its_time_is_up() -> None:
    threads = make_sessions(seconds=60.0)
    resting = add_session(threads)
    await asyncio.sleep(59.9)
    assert not resting.closed
    await asyncio.sleep(0.2)
    assert resting.closed
    assert len(threads) == 0


@virtual
async def test_a_thread_that_was_taken_has_no_time_limit_any_more() -> None:
    threads = make_sessions(seconds=60.0)
    resting = add_session(threads)
    assert threads.take(KEY, turn_with((*HISTORY, message("now?")))) is not None
    await asyncio.sleep(120)
    assert not resting.closed


@virtual
async def test_a_thread_that_is_kept_again_has_all_of_its_time_again() -> None:
    threads = make_sessions(seconds=60.0)
    resting = add_session(threads)
    await asyncio.sleep(40)
    assert threads.take(KEY, turn_with((*HISTORY, message("now?")))) is not None
    threads.put("", KEY, resting.session, item_digests(HISTORY)[0], PendingOutputs())
    await asyncio.sleep(40)
    assert not resting.closed
    await asyncio.sleep(21)
    assert resting.closed


@virtual
async def test_a_session_that_is_not_idle_is_closed() -> None:
    threads = make_sessions()
    resting = IdleSeat()
    resting.dialect.can_resume = False
    threads.put("", KEY, resting.session, item_digests(HISTORY)[0], PendingOutputs())
    assert resting.closed
    assert len(threads) == 0


@virtual
async def test_closing_ends_every_thread() -> None:
    threads = make_sessions()
    all_of_them = [add_session(threads) for _ in range(3)]
    threads.close()
    await settle()
    assert all(each.closed for each in all_of_them)
    assert len(threads) == 0


@virtual
async def test_the_end_of_a_child_ends_its_idle_sessions() -> None:
    threads = make_sessions()
    resting = add_session(threads)
    resting.session.on_end(Ended(code=1))
    assert len(threads) == 0
    assert resting.released == [True]
    assert threads.take(KEY, turn_with((*HISTORY, message("now?")))) is None


@virtual
async def test_a_child_that_is_not_to_be_trusted_loses_its_threads() -> None:
    threads = make_sessions()
    resting = add_session(threads)
    resting.session.fail(Failure(kind=FaultKind.AGENT_PROTOCOL, message="nonsense"))
    assert resting.closed
    assert len(threads) == 0


@virtual
async def test_an_internal_error_loses_the_thread_and_releases_its_transport() -> None:
    threads = make_sessions()
    resting = add_session(threads)
    resting.dialect.breaks = "receive"
    resting.transport.say(TextDelta("x", "x"))
    assert len(threads) == 0
    assert resting.released == [False]


@virtual
@pytest.mark.parametrize("ask", [ApprovalRequested("q", "command", "rm"), InputRequested("q", "?")])
async def test_a_question_of_an_idle_agent_is_declined_at_once(
    ask: ApprovalRequested | InputRequested,
) -> None:
    threads = make_sessions()
    resting = add_session(threads)
    resting.transport.say(ask)
    assert "answer q" in resting.dialect.calls
    assert len(threads) == 1
    threads.close()


@virtual
async def test_an_agent_that_goes_on_by_itself_is_not_kept() -> None:
    threads = make_sessions()
    resting = add_session(threads)
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
    "hosted": HostedTools({"file_search": (msgspec.Raw(b"{}"),)}),
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


def test_a_stored_thread_serves_its_conversation_whatever_it_has_seen() -> None:
    first, later, other = (
        msgspec.structs.replace(BASE, stored_session=stored)
        for stored in (StoredSession("a"), StoredSession("a", "T", "d", 1), StoredSession("b"))
    )
    assert session_key("me", first) == session_key("me", later) != session_key("me", other)


def test_a_thread_serves_only_its_owner() -> None:
    assert session_key("me", BASE) != session_key("you", BASE)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.field)
def test_a_session_depends_on_the_options_that_the_table_names(option: Option) -> None:
    value = StoredSession("another") if option.field == "stored_session" else "another"
    other = msgspec.structs.replace(BASE, **{option.field: value})
    assert (session_key("me", BASE) != session_key("me", other)) is option.fixes_session


def test_a_session_depends_on_all_that_only_some_agents_can_do() -> None:
    """Model servers, which take sampling, keep no sessions; this server keeps calls apart by itself."""
    loose = {option.field for option in OPTIONS if option.needs and not option.fixes_session}
    assert loose == {"sampling", "parallel_tool_calls"}
    assert {option.field for option in OPTIONS if option.fixes_session} >= {*DIFFERENT}
