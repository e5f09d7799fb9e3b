"""The child's faults: at every place of a turn, asked for in every way, in both dialects. The rows are the matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from codex_proxy.core.faults import FaultKind
from tests.faults.answers import is_broken_stream, is_call, is_good, is_status
from tests.faults.scene import MODES, Dialect, Mode, Scene
from tests.http.serving import Answer
from tests.weather_tool import CHAT_WEATHER, RESPONSES_WEATHER

pytestmark = pytest.mark.asyncio(loop_scope="package")

ANSWER_TEXT = "One « file »."


@dataclass(frozen=True)
class Course:
    """A scenario of the fake agent, and the numbers of its lines.

    `shows`: the line from which on its client has something of the answer; `ends`: the line that ends the turn, so
    that a fault behind it is no longer the turn's.
    """

    scenario: str
    shows: dict[Dialect, int]
    ends: dict[Dialect, int]
    says: str
    calls: bool = False


OF_EACH_KIND = Course("course", {"proto": 4, "app-server": 7}, {"proto": 16, "app-server": 27}, ANSWER_TEXT)
WITH_A_CALL = Course(
    "tool_calls_after_text",
    {"proto": 3, "app-server": 3},
    {"proto": 11, "app-server": 12},
    "Let me check.",
    calls=True,
)

AT_ONCE = 8
"""Turns that may run at once."""

EVERY = range(1000)
"""Behind every line; 0 is before the first."""


@dataclass(frozen=True)
class Row:
    """A misbehaviour of the fake agent (see its README), and what kind of fault a client is told.

    `places`: lines behind which it strikes; -1 is the one that ends the turn, -2 the one before it, and so on. None is
    one in the middle.
    None for `kind`: no fault at all. `reads`: what a dialect finds in the nonsense, which is part of the text then.
    """

    misbehaves: str
    kind: FaultKind | None
    places: Sequence[int] | None = None
    modes: Sequence[Mode] = tuple(MODES)
    options: str = ""
    text: str | None = ANSWER_TEXT
    course: Course = OF_EACH_KIND
    only: Dialect | None = None
    reads: Mapping[Dialect, str] = field(default_factory=dict)

    def __str__(self) -> str:
        where = " behind every line" if self.places is EVERY else ""
        return self.misbehaves + (" with a call" if self.course.calls else "") + where


FOUR = (0, 2, 8, -2)
ONE_STREAM, ONE_WHOLE = (MODES[0],), (MODES[3],)

ROWS = [
    # It dies.
    Row("crash", FaultKind.AGENT_CRASHED, (*FOUR, -1)),
    Row("crash", FaultKind.AGENT_CRASHED, (*FOUR, -1), course=WITH_A_CALL),
    Row("crash", FaultKind.AGENT_CRASHED, EVERY),
    Row("crash", FaultKind.AGENT_CRASHED, EVERY, course=WITH_A_CALL),
    Row("eof_without_end", FaultKind.AGENT_CRASHED, FOUR),
    Row("torn", FaultKind.AGENT_CRASHED, FOUR),
    Row("grandchild,crash", FaultKind.AGENT_CRASHED, modes=MODES[1:3]),
    Row("plain_grandchild,crash", FaultKind.AGENT_CRASHED, modes=MODES[:2]),
    Row("stderr_flood,crash", FaultKind.AGENT_CRASHED, modes=ONE_WHOLE),
    # It hangs.
    Row("hang", FaultKind.TIMED_OUT, FOUR),
    Row("deaf", FaultKind.TIMED_OUT, modes=ONE_STREAM),
    Row("deaf,ignore_sigterm,grandchild", FaultKind.TIMED_OUT, modes=ONE_WHOLE),
    Row("close_stdout", FaultKind.AGENT_CRASHED, modes=MODES[:2]),
    # It says too much.
    Row("endless", FaultKind.AGENT_PROTOCOL, modes=ONE_STREAM),
    Row(
        "flood",
        None,
        options="n=20000 size=8",
        modes=ONE_STREAM,
        text="".join(f"{i} ".rjust(8, ".") for i in range(20000)),
    ),
    Row("big_line", None, options="bytes=2000000", modes=ONE_WHOLE),
    Row("stderr_flood", None, modes=ONE_WHOLE),
    Row("wrong_types", FaultKind.AGENT_PROTOCOL),  # a piece of text may be among what cannot be read
    # It says nonsense, which is passed over.
    Row("garbage", None, FOUR),
    Row("bad_utf8", None, FOUR, reads={"proto": "\ufffd\ufffd"}),
    Row("unknown_events", None),
    Row("strangers", None),
    Row("duplicate", None),
    Row("repeat", None, text=None),
    Row("unknown_request", None, only="app-server"),
    # It says it in an odd way.
    Row("split", None, modes=ONE_STREAM),
    Row("joined", None, modes=ONE_WHOLE),
    Row("prefixed", None, only="proto"),
    Row("legacy_shape", None, only="proto"),
]


@pytest.mark.sampled(every=13)
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=str(row), marks=[pytest.mark.exhaustive] if row.places is EVERY else [])
        for row in ROWS
    ],
)
async def test_the_answer_names_the_fault_and_nothing_is_left(there: Scene, row: Row) -> None:
    if row.only not in (None, there.dialect):
        pytest.skip("the dialect has no such thing")
    places = paths_to(row, there.dialect)
    if row.kind is FaultKind.TIMED_OUT:
        cells = [(place, mode) for place in places for mode in row.modes]
        for start in range(0, len(cells), AT_ONCE):
            await tried_silent(there, row, cells[start : start + AT_ONCE])
            await there.at_rest()
    else:
        for number, place in enumerate(places):
            # Of several places it is enough to ask in two ways at each, so that the others come at the next.
            for mode in row.modes[number % 2 :: 2] if len(places) > 1 else row.modes:
                await tried(there, row, place, mode)
                if there.dialect == "app-server":  # one process for all: it is there again, or still
                    await there.good()
        await there.at_rest()
    await there.good()


def paths_to(row: Row, dialect: Dialect) -> list[int]:
    last = row.course.ends[dialect]
    if row.places is None:
        return [row.course.shows[dialect] + 3]
    return list(range(last + 1)) if row.places is EVERY else [place % (last + 1) for place in row.places]


def tool_for(mode: Mode) -> dict[str, Any]:
    tool: dict[str, Any] = CHAT_WEATHER if mode.surface == "chat" else RESPONSES_WEATHER
    return tool


def prompt_of(row: Row, place: int) -> str:
    return f"[[fake:{row.course.scenario} misbehave={row.misbehaves} at={place} {row.options}]]"


async def tried(there: Scene, row: Row, place: int, mode: Mode) -> None:
    """One cell of the matrix."""
    tools = {"tools": [tool_for(mode)]} if row.course.calls else {}
    judge(await there.ask(mode, prompt_of(row, place), **tools), there, row, place, mode)


async def tried_silent(there: Scene, row: Row, cells: Sequence[tuple[int, Mode]]) -> None:
    """Cells whose agent says nothing more, at once."""
    asked = [(mode, prompt_of(row, place)) for place, mode in cells]
    shown = sum(place >= row.course.shows[there.dialect] for place, _ in cells)
    for (place, mode), answer in zip(cells, await there.ask_silent(asked, shown=shown), strict=True):
        judge(answer, there, row, place, mode)


def judge(answer: Answer, there: Scene, row: Row, place: int, mode: Mode) -> None:
    course = row.course
    try:
        if row.kind is None or place >= course.ends[there.dialect]:
            if course.calls:
                is_call(answer, mode, "get_weather")
            else:
                is_good(answer, mode, row.text, row.reads.get(there.dialect, ""))
        elif mode.stream and place >= course.shows[there.dialect]:
            is_broken_stream(answer, mode, row.kind, course.says)
        else:
            is_status(answer, mode, row.kind)
    except AssertionError as wrong:
        raise AssertionError(f"{mode}, behind line {place}: {wrong}\n{answer.text[-2000:]}") from wrong
