"""What becomes of a body under each fault, however it is cut into pieces."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.parts.cassettes.stream_faults import Act, FaultyBody, Pause, fault_of

SSE = "text/event-stream"
EVENTS = [b'data: {"text": "Gr\xc3\xbc\xc3\x9fe"}\n\n', b": ping\n\n", b"data: two\n\n", b"data: [DONE]\n\n"]
BODY = b"".join(EVENTS)


def sent(fault: str, body: bytes = BODY, media_type: str = SSE, *, cuts: tuple[int, ...] = ()) -> list[Act]:
    """What is sent of a body that is written in pieces; neighbouring bytes as one."""
    faulty = FaultyBody(fault_of(fault), media_type)
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    acts = [act for begin, end in pairwise(places) for act in faulty.feed(body[begin:end])]
    joined: list[Act] = []
    for act in (*acts, *faulty.finish()):
        if isinstance(act, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += act
        else:
            joined.append(act)
    return joined


@pytest.mark.parametrize(
    ("fault", "acts"),
    [
        ("cut; events=0", ["cut", BODY]),
        ("cut; events=1", [EVENTS[0], "cut", b"".join(EVENTS[1:])]),
        ("reset; events=2", [b"".join(EVENTS[:3]), "reset", EVENTS[3]]),
        ("end; bytes=9", [BODY[:9], "end", BODY[9:]]),
        ("cut; character=2", [BODY[:21], "cut", BODY[21:]]),
        ("stall; events=1", [EVENTS[0], Pause(math.inf), b"".join(EVENTS[1:])]),
        ("stall; bytes=3; seconds=0.5", [BODY[:3], Pause(0.5), BODY[3:]]),
        ("repeat; events=2", [b"".join([*EVENTS[:3], EVENTS[2], EVENTS[3]])]),
        ("slow; seconds=2", [EVENTS[0], Pause(2), b"".join(EVENTS[1:3]), Pause(2), EVENTS[3], Pause(2)]),
        ("cut; events=9", [BODY]),
        ("cut; bytes=9999", [BODY]),
        ("cut; character=9", [BODY]),
    ],
)
@given(cuts=st.lists(st.integers(0, 200), max_size=6))
def test_a_fault_of_a_stream_does_not_depend_on_how_the_body_is_written(
    fault: str, acts: list[Act], cuts: list[int]
) -> None:
    assert sent(fault, cuts=tuple(cuts)) == acts


def test_lines_of_ollamas_streams_are_events() -> None:
    assert sent("cut; events=1", b'{"a":1}\n{"b":2}\n', "application/x-ndjson") == [
        b'{"a":1}\n',
        "cut",
        b'{"b":2}\n',
    ]


def test_a_whole_answer_is_one_event() -> None:
    assert sent("cut; events=1", b"{}", "application/json") == [b"{}", "cut"]
    assert sent("end; events=0", b"{}", "application/json") == ["end", b"{}"]
    assert sent("cut; bytes=1", b"{}", "application/json") == [b"{", "cut", b"}"]


def test_the_character_that_is_cut_is_cut_inside() -> None:
    first = sent("cut; character=1")[0]
    assert isinstance(first, bytes)
    with pytest.raises(UnicodeDecodeError, match="unexpected end of data"):
        first.decode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no fault ''; choose one of cut, reset, end, stall, slow, repeat, refuse"),
        ("explode; events=1", "there is no fault 'explode'"),
        ("cut", "'cut' needs one place: events=N, bytes=N, character=N"),
        ("cut; events=1; bytes=1", "'cut' needs one place"),
        ("cut; events=1; events=2", "'events=2' is no option of 'cut'"),
        ("cut; event=1", "'event=1' is no option of 'cut'; it has events=N, bytes=N, character=N"),
        ("cut; events=-1", "'events=-1' is no option"),
        ("cut; events=1.5", "the number of events and of times has to be an integer"),
        ("cut; bytes=9999999999", "the number of bytes and of times has to be an integer up to 1073741824"),
        ("cut; character=0", "'cut' counts its character from 1"),
        ("repeat; events=0", "'repeat' counts its events from 1"),
        ("repeat; bytes=1", "'bytes=1' is no option of 'repeat'; it has events=N"),
        ("stall; events=1; seconds=3601", "`seconds` is at most 3600"),
        ("refuse; status=418", "there is no failure with the status 418"),
    ],
)
def test_a_fault_that_is_not_known_says_what_is(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="^" + reason.replace("(", r"\(")):
        fault_of(text)
