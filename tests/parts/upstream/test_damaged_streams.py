"""Streams of upstreams under damages that real servers and gateways do: no text is lost, and every turn ends. What is
passed on are whole chunks, and the SDK's own reader reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pytest
from openai._streaming import SSEDecoder

from codex_proxy.parts.upstream.stream import AnswerReader
from tests.model_server import CASES, DONE, SPELLINGS, chunk, event, respelled
from tests.parts.upstream.mutated_responses import ANSWERS, Form, Known, body_of
from tests.parts.upstream.serving import new_pass_through
from tests.parts.upstream.test_mutated_responses import answer_in, known_answer, log_of
from tests.parts.upstream.test_openai_chat_dialect import events_of, messages_of, summary_of, turn_with_tool

NOTHINGS: Final = (
    *(
        b"data: : keepalive\n\n",
        b"data:\n\n",
        b"data: {}\n\n",
        b"data: null\n\n",
        b"data: []\n\n",
        b"data\n\n",
    ),
    *(
        b'data: {"type":"ping"}\n\n',
        b'data: "ping"\n\n',
        b"data: ping\n\n",
        b": ping\n\n",
        b"event: ping\n\n",
    ),
    *(
        b"id: 7\n\n",
        b"retry: 100\n\n",
        b"event: ping\ndata: {}\n\n",
        b"\n\n",
        b"data: 5\n\ndata: keep-alive\n\n",
    ),
)
"""What says nothing."""
Damage = Callable[[bytes], bytes]


def between(body: bytes, nothing: bytes) -> bytes:
    """The body with `nothing` before, between and behind its events."""
    return nothing + body.replace(b"\n\n", b"\n\n" + nothing)


def over_lines(body: bytes) -> bytes:
    """The body with each JSON over several `data:` lines."""
    lines = [line for line in body.split(b"\n") if not line.startswith((b"id:", b"event:"))]
    out = []
    for line in lines:
        try:
            value = json.loads(line.removeprefix(b"data:"))
            text = json.dumps(value, indent=1)
        except ValueError:
            out.append(line)
        else:
            out += [b"data: " + each.encode() for each in text.split("\n")]
    return b"\n".join(out)


DAMAGES: Final[dict[str, Damage]] = {
    **{f"nothing {n}": partial(between, nothing=each) for n, each in enumerate(NOTHINGS)},
    "CR": lambda body: body.replace(b"\n", b"\r"),
    "CRLF": lambda body: body.replace(b"\n", b"\r\n"),
    "BOM": lambda body: b"\xef\xbb\xbf" + body,
    "no space": lambda body: body.replace(b"data: ", b"data:"),
    "several lines": over_lines,
    "several lines, CR": lambda body: over_lines(body).replace(b"\n", b"\r"),
    "ids": lambda body: body.replace(b"data: {", b"id: 5\ndata: {"),
    "ids behind": lambda body: body.replace(b"}\n\n", b"}\nid: 5\nretry: 3\n\n"),
    "no blank lines": lambda body: body.replace(b"\n\n", b"\n"),
    "without the last blank line": lambda body: body.rstrip(b"\n"),
    "DONE twice": lambda body: body + DONE + DONE,
}
CHAT: Final = sorted(
    name
    for name, case in CASES.items()
    if case.status == 200 and not case.cut and case.stop != "failed" and case.body.startswith(b"data:")
)


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


@pytest.mark.sampled(every=37)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", CHAT)
def test_a_damaged_stream_of_chat_says_what_the_whole_one_says(name: str, damage: str) -> None:
    case = CASES[name]
    known = summary_of(events_of(turn_with_tool(), messages_of(case, [case.body])))
    body = DAMAGES[damage](case.body)
    for size in (1, 7, len(body)):
        assert summary_of(events_of(turn_with_tool(), messages_of(case, cut(body, size)))) == known


@pytest.mark.sampled(every=37)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("items", ANSWERS)
def test_a_damaged_stream_of_responses_says_what_the_whole_one_says(
    items: Sequence[Known], damage: str
) -> None:
    assert answer_in(log_of(DAMAGES[damage](body_of(items, Form())))) == known_answer(items)


def chunks_read(body: bytes) -> list[dict[str, Any]]:
    """What openai-python reads of a stream."""
    found = []
    for each in SSEDecoder().iter_bytes(iter([body])):
        if each.data.startswith("[DONE]"):
            break
        found.append(each.json())
    return found


@pytest.mark.sampled(every=37)
@pytest.mark.parametrize("shown", [None, "mine"])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", CHAT)
def test_what_is_passed_on_of_a_damaged_stream_are_whole_chunks(
    name: str, damage: str, spelling: str, shown: str | None
) -> None:
    whole = respelled(CASES[name].body, SPELLINGS[spelling])
    body = DAMAGES[damage](whole)
    known = None
    for size in (1, 7, len(body)):
        passing = new_pass_through(stream=True, wants_usage=True, model_shown=shown)
        out = b"".join([*map(passing.feed, cut(body, size)), passing.close()])
        assert passing.fault is None
        assert b"\nid:" not in b"\n" + out.replace(b"\r", b"\n")
        read = chunks_read(out)
        assert all("choices" in each or each.get("usage") for each in read)
        plain = new_pass_through(stream=True, wants_usage=True, model_shown=shown)
        known = known or chunks_read(b"".join([plain.feed(whole), plain.close()]))
        assert read == known


@pytest.mark.usefixtures("each_spelling")
def test_a_keep_alive_of_this_server_stands_between_whole_events() -> None:
    passing = new_pass_through(stream=True, wants_usage=True)
    body = b"".join(b"id: %d\n" % n + event(chunk({"content": "Hi"})) for n in range(4))
    out = b": 1\n\n".join(map(passing.feed, cut(body, 40)))
    assert len(chunks_read(out)) == 4
    assert all(each["choices"] for each in chunks_read(out))


def test_json_that_is_broken_is_an_error_and_text_too() -> None:
    for broken in (b'data: {"choices":[\n\n', b"data: Internal Server Error\n\n"):
        assert [each.kind for each in AnswerReader().feed(broken)] == ["no_json"]
