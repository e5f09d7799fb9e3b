"""Lines that differ in one text from the one before are written short, and read again to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codex_proxy.core.event_rows import decode_row, encode_row
from codex_proxy.core.events import Event, HostedEvent, ItemEnded, RawItem, TextDelta, ToolCallRequested
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.parts.cassettes import file_lines, format
from codex_proxy.parts.cassettes.content import Content
from codex_proxy.parts.cassettes.file_lines import Line, ReplyLine
from codex_proxy.parts.cassettes.format import (
    VERSION,
    Answer,
    Cassette,
    Request,
    parse,
    sent_data,
    text_of,
)
from codex_proxy.parts.cassettes.player import events_in
from codex_proxy.parts.cassettes.settings import CassetteError
from codex_proxy.parts.upstream.openai_responses.answer import HOSTED_EVENTS
from tests.core.strategies import EVENT_LISTS

CONTENT: dict[str, Any] = {
    "mode": "agent",
    "format": "text",
    "model": "m",
    "tool_choice": "auto",
    "effort": None,
    "sampling": {},
}


def cassette(lines: list[Line], sent: list[bytes]) -> Cassette:
    content: Content = {**CONTENT, "tools": [], "messages": []}
    return Cassette(
        cassette=VERSION,
        name="a",
        agent="fake",
        request=Request("POST /v1/responses"),
        content=content,
        lines=[Line(0, "session", "begin"), *lines],
        answer=Answer(200, None, list(map(sent_data, sent))),
    )


def said(*events: Event) -> list[Line]:
    """Returns a line for each event."""
    return [Line(1, "events", [event]) for event in events]


def texts_of(found: Cassette) -> list[bytes]:
    return list(text_of(found))


def written_lines(*events: Event) -> list[bytes]:
    return b"".join(texts_of(cassette(said(*events), []))).split(b"\n")


def delta(text: object, **more: object) -> bytes:
    return msgspec.json.encode({"method": "delta", "params": {"id": "a", "delta": text}, **more})


def sent_after_reading(sent: list[bytes]) -> list[object]:
    again = parse(b"".join(texts_of(cassette([], sent))), Path("a.jsonl"))
    assert again.answer.sent is not None
    return again.answer.sent


def events_after_reading(lines: list[Line]) -> list[Event]:
    return events_in(parse(b"".join(texts_of(cassette(lines, []))), Path("a.jsonl")).lines)


values = st.one_of(
    st.text(max_size=6), st.sampled_from(['"', "\\", '":"', '","delta":"', "é", "\n", "", 1, None])
)
lines_of_an_agent = st.lists(
    st.one_of(
        st.builds(delta, values),
        st.builds(delta, values, other=values),
        st.builds(lambda text: msgspec.json.encode({"id": text, "result": {"id": "x"}}), values),
        st.sampled_from(
            [b"no json", b'"delta":"', b"\xff\xfe", b'{"a":"\\ud83d"}', b'{"a":"x"}', b'{"a":"y"}']
        ),
    ),
    max_size=12,
)


@given(lines_of_an_agent)
@example([b'{"a":"x"}', b'{"a":"\\ud83d"}'])  # half a surrogate pair
def test_shortened_lines_are_read_as_they_were_written(sent: list[bytes]) -> None:
    decoded = []
    for each in sent:
        try:
            decoded.append(msgspec.json.decode(each))
        except (msgspec.DecodeError, UnicodeDecodeError):
            decoded.append(each.decode("utf-8", "replace"))
    assert sent_after_reading(sent) == decoded


@given(st.lists(EVENT_LISTS, max_size=6))
def test_events_are_read_as_they_were_written(batches: list[list[Event]]) -> None:
    lines = [Line(number, "events", batch) for number, batch in enumerate(batches)]
    stored = [event for batch in batches for event in decode_row(encode_row(batch))]
    assert events_after_reading(lines) == stored


def test_every_event_of_a_hosted_tool_is_read_as_it_was_written() -> None:
    events: list[Event] = [HostedEvent("a", kind, b"{}") for kind in ("", *HOSTED_EVENTS)]
    assert events_after_reading(said(*events)) == events


def test_json_of_an_agent_with_line_ends_is_one_line() -> None:
    item = RawItem("message", b'{\n "a": [\r\n1]\n}')
    assert events_after_reading(said(item)) == [RawItem("message", b'{"a":[1]}')]


def test_a_long_line_is_not_shortened_to_its_text_and_no_file_may_do_so() -> None:
    long = "i" * 5000
    events: list[Event] = [
        TextDelta(long, "a"),
        TextDelta(long, "b"),
        TextDelta("a", long),
        TextDelta("a", "b"),
    ]
    assert events_after_reading([line for event in events for line in said(event)]) == events
    written = written_lines(*events)
    assert sum(b'"next"' in line for line in written) == 1
    (second,) = (at for at, line in enumerate(written) if line.endswith(b'"b"}]}'))
    written[second] = b'{"ms":1,"next":{"text":"b"}}'
    with pytest.raises(CassetteError, match=rf"line {second + 1}: .* more than 4 KiB beside the text"):
        parse(b"\n".join(written), Path("a.jsonl"))


def test_long_texts_and_many_lines_are_read_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lines, "_STEP", 3)
    texts = ['a\\"b\n' * 5, "", '"' * 4, "é\\" * 3, "z" * 9, "y"]
    events: list[Event] = [TextDelta("a", text) for text in texts]
    events += [ItemEnded("a"), TextDelta("b", "x"), TextDelta("b", "w" * 4)]
    assert events_after_reading(said(*events)) == events
    assert sum(b'"events":' in line for line in written_lines(*events)) == 3
    lines = [*map(delta, texts), b'{"method":"other"}', delta("x")]
    assert sent_after_reading(lines) == [msgspec.json.decode(line) for line in lines]


def test_the_deltas_of_a_text_are_short_lines_and_ids_are_not() -> None:
    texts = (TextDelta("a", "It"), TextDelta("a", " is"), TextDelta("a", ' "so".\n'))
    batch = Line(2, "events", [*texts[1:], ItemEnded("a1"), ItemEnded("a2")])
    lines = b"".join(texts_of(cassette([*said(texts[0]), batch, *said(ItemEnded("a3"))], []))).split(b"\n")
    assert lines[4:10] == [
        b'{"ms":1,"events":[{"event":"text_delta","id":"a","text":"It"}]}',
        b'{"ms":2,"next":{"text":" is"}}',
        b'{"ms":2,"next":{"text":" \\"so\\".\\n"}}',
        b'{"ms":2,"events":[{"event":"item_ended","id":"a1"}]}',
        b'{"ms":2,"events":[{"event":"item_ended","id":"a2"}]}',
        b'{"ms":1,"events":[{"event":"item_ended","id":"a3"}]}',
    ]


@pytest.mark.parametrize(
    ("before", "line", "says"),
    [
        ("events", b'{"ms":1,"next":{"other":"x"}}', 'the line before has no text "other"'),
        ("events", b'{"next":{"text":"x"}}', "it does not fit the lines before it"),
        ("answer", b'{"next":{"text":"x"}}', "no line before it has a text that it could change"),
    ],
)
def test_a_short_line_that_is_like_none_is_named(before: str, line: bytes, says: str) -> None:
    data = b"".join(texts_of(cassette(said(TextDelta("a", "It")), [])))
    number = 6 if before == "events" else 7
    at = b'{"answer"' if before == "events" else b'{"end"'
    with pytest.raises(CassetteError, match=f"line {number}: {says}"):
        parse(data.replace(at, line + b"\n" + at), Path("a.jsonl"))


@pytest.mark.parametrize("items", [1, 40_000])
def test_a_long_turn_is_written_in_pieces_of_a_limited_size(items: int) -> None:
    events: list[Event] = [TextDelta(f"a{number % items}", "word") for number in range(40_000)]
    texts = texts_of(cassette(said(*events), [delta("word")] * 40_000))
    assert max(map(len, texts)) <= 2 * format.SLICE_BYTES
    assert events_in(parse(b"".join(texts), Path("a.jsonl")).lines) == events


VALUES = [None, 5, "x", [], {}, [1], {"a": 1}, True]
LINES = [delta(text) for text in ("It", " is")] + [b"no JSON"]
SAID = [
    *said(TextDelta("a", "It"), TextDelta("a", " is"), ToolCallRequested("r", "r", "add", "{}")),
    Line(2, "reply", ReplyLine("r", [])),
    Line(2, "failed", Failure(FaultKind.TIMED_OUT, "too slow")),
]


@given(st.data())
def test_a_damaged_file_is_read_or_is_an_error_that_names_the_line(data: st.DataObject) -> None:
    lines = b"".join(texts_of(cassette(SAID, LINES))).split(b"\n")
    at = data.draw(st.integers(0, len(lines) - 2))
    damage = data.draw(st.sampled_from(["without", "twice", "cut", "other value"]))
    if damage == "without":
        del lines[at]
    elif damage == "twice":
        lines.insert(at, lines[at])
    elif damage == "cut":
        lines[at:] = [lines[at][: data.draw(st.integers(1, len(lines[at]) - 1))]]
    else:
        value = json.loads(lines[at])
        value[data.draw(st.sampled_from(list(value)))] = data.draw(st.sampled_from(VALUES))
        lines[at] = json.dumps(value).encode()
    says = ""
    try:
        parse(b"\n".join(lines), Path("a.jsonl"))
    except CassetteError as error:
        says = str(error)
    assert says.startswith("a.jsonl, line ") or damage == "other value"
