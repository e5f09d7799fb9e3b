"""Lines that differ in one text from the one before are written short, and read again to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codex_proxy.agents.recorded import DIALECTS
from codex_proxy.cassettes import format, pieces
from codex_proxy.cassettes.content import Content
from codex_proxy.cassettes.format import Answer, Cassette, Line, Request, Session, parse, sent_data, text_of
from codex_proxy.cassettes.settings import CassetteError

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
    sessions = [Session(next(iter(DIALECTS)), {}, lines)]
    return Cassette(
        name="a",
        agent="fake",
        request=Request("POST /v1/responses"),
        content=content,
        sessions=sessions,
        answer=Answer(200, None, list(map(sent_data, sent))),
    )


def texts_of(found: Cassette) -> list[bytes]:
    return list(text_of(found))


def written_lines(lines: list[bytes]) -> list[bytes]:
    return b"".join(texts_of(cassette(lines_from_agent(lines), []))).split(b"\n")


def lines_from_agent(lines: list[bytes]) -> list[Line]:
    return [Line(1, "from", line) for line in lines]


def delta(text: object, **more: object) -> bytes:
    return msgspec.json.encode({"method": "delta", "params": {"id": "a", "delta": text}, **more})


def lines_after_reading(lines: list[bytes], sent: list[bytes]) -> tuple[list[bytes], list[object]]:
    again = parse(b"".join(texts_of(cassette(lines_from_agent(lines), sent))), Path("a.jsonl"))
    assert again.answer.sent is not None
    return [line.value for line in again.sessions[0].lines], again.answer.sent


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


@given(lines_of_an_agent, lines_of_an_agent)
@example([], [b'{"a":"x"}', b'{"a":"\\ud83d"}'])  # half a surrogate pair
def test_shortened_lines_are_read_as_they_were_written(lines: list[bytes], sent: list[bytes]) -> None:
    read, answered = lines_after_reading(lines, sent)
    assert read == lines
    decoded = []
    for each in sent:
        try:
            decoded.append(msgspec.json.decode(each))
        except (msgspec.DecodeError, UnicodeDecodeError):
            decoded.append(each.decode("utf-8", "replace"))
    assert answered == decoded


def test_long_texts_and_many_lines_are_read_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_STEP", 3)
    lines = [delta(text) for text in ('a\\"b\n' * 5, "", '"' * 4, "é\\" * 3, "z" * 9, "y")]
    lines += [b'{"method":"other"}', delta("x"), delta("w" * 4)]
    assert lines_after_reading(lines, lines) == (lines, [msgspec.json.decode(line) for line in lines])
    assert sum(b'"from":' in line for line in written_lines(lines)) == 3


def test_the_deltas_of_a_text_are_short_lines_and_ids_are_not() -> None:
    lines = [delta("It"), delta(" is"), delta(' "so".\n'), b'{"id":"a1"}', b'{"id":"a2"}']
    assert written_lines(lines)[4:9] == [
        b'{"ms":1,"from":' + lines[0] + b"}",
        b'{"ms":1,"next":{"delta":" is"}}',
        b'{"ms":1,"next":{"delta":" \\"so\\".\\n"}}',
        b'{"ms":1,"from":{"id":"a1"}}',
        b'{"ms":1,"from":{"id":"a2"}}',
    ]


@pytest.mark.parametrize(
    ("before", "line", "says"),
    [
        ("from", b'{"ms":1,"next":{"other":"x"}}', 'the line before has no text "other"'),
        ("from", b'{"next":{"delta":"x"}}', "it does not fit the lines before it"),
        ("begin", b'{"ms":1,"next":{"delta":"x"}}', "no line before it has a text that it could change"),
    ],
)
def test_a_short_line_that_is_like_none_is_named(before: str, line: bytes, says: str) -> None:
    data = b"".join(texts_of(cassette([Line(1, before, delta("It") if before == "from" else {})], [])))
    with pytest.raises(CassetteError, match=f"line 6: {says}"):
        parse(data.replace(b'{"answer"', line + b'\n{"answer"'), Path("a.jsonl"))


@pytest.mark.parametrize("more", [{}, {"n": 0}])
def test_a_long_turn_is_written_in_pieces_of_a_limited_size(more: dict[str, int]) -> None:
    lines = [delta("word", **dict.fromkeys(more, number)) for number in range(40_000)]
    texts = texts_of(cassette(lines_from_agent(lines), lines))
    assert max(map(len, texts)) <= 2 * format.SLICE_BYTES
    assert [line.value for line in parse(b"".join(texts), Path("a.jsonl")).sessions[0].lines] == lines


VALUES = [None, 5, "x", [], {}, [1], {"a": 1}, True]
LINES = [delta(text) for text in ("It", " is")] + [b"no JSON"]


@given(st.data())
def test_a_damaged_file_is_read_or_is_an_error_that_names_the_line(data: st.DataObject) -> None:
    lines = b"".join(texts_of(cassette(lines_from_agent(LINES), LINES))).split(b"\n")
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
