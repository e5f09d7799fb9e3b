"""Halves of surrogate pairs in Chat that is passed on: the official SDK reads whole characters, or U+FFFD."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.model_server import CASES, DONE, USAGE, chunk
from tests.parts.upstream.serving import new_pass_through
from tests.parts.upstream.test_damaged_streams import CHAT, chunks_read, cut

SMILE: Final = "\U0001f600"
HALF, OTHER = "\ud83d", "\ude00"
Place = Callable[[str], dict[str, Any]]
PLACES: Final[dict[str, Place]] = {
    "content": lambda text: {"content": text},
    "reasoning": lambda text: {"reasoning_content": text, "content": None},
    "refusal": lambda text: {"refusal": text},
    "arguments": lambda text: {"tool_calls": [{"index": 0, "function": {"arguments": text}}]},
    "arguments of the second call": lambda text: {
        "tool_calls": [{"index": 1, "function": {"arguments": text}}]
    },
    "the old form": lambda text: {"function_call": {"arguments": text}},
    "details": lambda text: {"reasoning_details": [{"type": "reasoning.text", "text": text}]},
}


def texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in texts_in(each)]


def as_event(value: Any) -> bytes:
    """An event with escapes, as servers in Python and JavaScript write them."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def streamed(body: bytes, size: int, **more: Any) -> list[dict[str, Any]]:
    passing = new_pass_through(**{"stream": True, "wants_usage": True, **more})
    out = b"".join([*map(passing.feed, cut(body, size)), passing.close()])
    assert passing.fault is None
    read = chunks_read(out if passing.done else out + passing.finish())
    for each in read:
        json.dumps(each, ensure_ascii=False).encode()
    return read


def said(chunks: list[dict[str, Any]], index: int = 0) -> str:
    deltas = [each["delta"] for one in chunks for each in one["choices"] if each["index"] == index]
    return "".join(text for delta in deltas for text in texts_in(delta) if text != "reasoning.text")


@pytest.mark.parametrize("model_shown", [None, "mine"])
@pytest.mark.parametrize("place", PLACES)
def test_a_pair_over_two_deltas_is_one_character(place: str, model_shown: str | None) -> None:
    text = f"a{SMILE}{SMILE}b"
    units = [text.encode("utf-16-le", "surrogatepass")[n : n + 2] for n in range(0, len(text) * 2 + 4, 2)]
    letters = [unit.decode("utf-16-le", "surrogatepass") for unit in units]
    for pieces in (
        letters,
        ["".join(letters[:2]), "", "".join(letters[2:])],
        ["".join(letters[:4]), letters[4], "b"],
    ):
        body = b"".join(as_event(chunk(PLACES[place](piece))) for piece in pieces)
        body += as_event(chunk({}, "stop")) + as_event({**chunk({}), "choices": [], "usage": USAGE}) + DONE
        for size in (1, 7, len(body)):
            read = streamed(body, size, model_shown=model_shown)
            assert said(read) == text
            assert [each["finish_reason"] for one in read for each in one["choices"]][-1] == "stop"


ENDS: Final = {
    "a finish reason": as_event(chunk({}, "stop")) + DONE,
    "a finish reason with a text": as_event(chunk({"content": ""}, "stop")) + DONE,
    "DONE alone": DONE,
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_half_alone_becomes_the_replacement_character(place: str, end: str) -> None:
    for pieces in (["Hi", HALF], ["Hi", OTHER], [f"Hi{HALF}"], [f"Hi{OTHER}"], ["H", "i", HALF, ""]):
        body = b"".join(as_event(chunk(PLACES[place](piece))) for piece in pieces)
        for size in (1, len(body)):
            assert said(streamed(body + ENDS[end], size)) == "Hi\ufffd"
    body = b"".join(as_event(chunk(PLACES[place](piece))) for piece in (HALF, "Hi", HALF + HALF, OTHER))
    assert said(streamed(body + ENDS[end], len(body))) == f"\ufffdHi\ufffd{SMILE}"


def test_each_text_of_each_choice_waits_for_its_own_half() -> None:
    one, other = chunk({"content": HALF, "refusal": HALF}), chunk({"content": f"b{HALF}"})
    other["choices"][0]["index"] = 1
    both = chunk({"content": OTHER})
    both["choices"].append({"index": 1, "delta": {"content": OTHER}, "finish_reason": "stop"})
    read = streamed(b"".join(map(as_event, (one, other, both, chunk({}, "stop")))) + DONE, 5)
    assert said(read) == f"{SMILE}\ufffd"
    assert said(read, 1) == f"b{SMILE}"


@pytest.mark.parametrize("end", ENDS)
def test_halves_in_lists_of_any_form_break_nothing(end: str) -> None:
    for content in (["a" + HALF], [[HALF]], [{"x": [HALF, OTHER]}, HALF]):
        body = as_event(chunk({"content": content})) + ENDS[end]
        assert "\ufffd" in said(streamed(body, len(body)))


def test_what_the_last_chunk_says_stays_beside_a_half() -> None:
    audio = [{"audio": {"transcript": f"a{HALF}"}}, {"audio": {"data": "AAAA"}}]
    body = as_event(chunk(audio[0])) + as_event(chunk(audio[1], "stop")) + DONE
    *_, last = (each["choices"][0]["delta"] for each in streamed(body, 5))
    assert last == {"audio": {"transcript": "\ufffd", "data": "AAAA"}}


def test_a_pair_in_a_message_in_place_of_a_delta_is_one_character() -> None:
    chunks = [chunk({"content": HALF}), chunk({"content": OTHER}), chunk({}, "stop")]
    for each in chunks:
        each["choices"][0]["message"] = each["choices"][0].pop("delta")
    read = streamed(b"".join(map(as_event, chunks)) + DONE, 5)
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in read) == SMILE
    assert not any("message" in one["choices"][0] for one in read)


@pytest.mark.parametrize("place", PLACES)
def test_a_whole_answer_has_whole_characters(place: str) -> None:
    for pieces, known in (([HALF, OTHER], SMILE), (["a", HALF], "a\ufffd"), ([f"{HALF}{OTHER}"], SMILE)):
        body = b"".join(as_event(chunk(PLACES[place](piece))) for piece in pieces) + as_event(
            chunk({}, "stop")
        )
        passing = new_pass_through(stream=False, wants_usage=True)
        out = passing.feed(body + DONE)
        texts = texts_in(json.loads(out.decode())["choices"][0]["message"])
        assert known in "".join(text for text in texts if text != "reasoning.text")
        for stream in (False, True):
            message = {"role": "assistant", **PLACES[place]("".join(pieces))}
            whole = {"object": "chat.completion", "model": "m", "choices": [{"index": 0, "message": message}]}
            passing = new_pass_through(
                stream=stream, wants_usage=True, model_shown="mine" if stream else None
            )
            out = passing.feed(json.dumps(whole).encode()) + passing.close()
            told = chunks_read(out) if stream else json.loads(out.decode())
            assert known in "".join(texts_in(told))


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", CHAT)
def test_a_stream_without_halves_passes_unchanged_however_it_is_escaped(name: str) -> None:
    body = CASES[name].body
    passing = new_pass_through(stream=True, wants_usage=True)
    known = chunks_read(passing.feed(body) + passing.close())
    assert streamed(body.replace(b"Hello", rb"Hell\u00f6 \ud83d\ude00 \\ud83d"), 9) == json.loads(
        json.dumps(known).replace("Hello", r"Hell\u00f6 \ud83d\ude00 \\ud83d")
    )
