"""A stream of Chat Completions that is joined to a whole answer, and a whole one that is sent as a stream, say what the
reader of answers makes of the same data, in the form that the official SDK knows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, Final, cast

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from codex_proxy.parts.upstream.openai_chat.answer import ChatAnswer
from codex_proxy.parts.upstream.stream import AnswerReader
from tests.model_server import CASES, DONE, USAGE, chunk, event
from tests.parts.upstream.serving import new_pass_through
from tests.parts.upstream.test_damaged_streams import CHAT
from tests.parts.upstream.test_mutated_chat import (
    IDS,
    INDEXES,
    NAMES,
    NOW,
    NOW_UNSAID,
    ORDERS,
    OSLO,
    OSLO_UNSAID,
    ROME,
    Call,
    deltas_of,
    message_chunk,
)


def read(body: bytes) -> dict[str, Any]:
    """What the reader makes of an answer, streamed or whole."""
    reader, count = AnswerReader(), itertools.count()
    answer = ChatAnswer(lambda _: f"new_{next(count)}", streamed_kind=lambda _: None, taken_ids=())
    for each in [*reader.feed(body), *reader.close()]:
        if each.kind == "chunk":
            answer.feed(each.value)
    answer.close()
    assert not answer.contradicts
    calls = answer.calls.named_calls()
    return {
        "text": with_pairs(str(answer.text)),
        "reasoning": "".join(answer.reasoning),
        "calls": [(call.name, json.loads(call.text)) for call in calls],
        "finish": answer.finish or ("tool_calls" if calls else "stop"),
        "usage": answer.usage,
    }


def with_pairs(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def passed(body: bytes, *, stream: bool) -> bytes:
    passing = new_pass_through(stream=stream, wants_usage=True)
    out = passing.feed(body) + passing.close()
    assert passing.fault is None
    return out if passing.done else out + passing.finish()


def check(body: bytes) -> dict[str, Any]:
    """Checks what is made of a stream, and of that again. Returns what the stream says."""
    known = read(body)
    whole = passed(body, stream=False)
    again = passed(whole, stream=True)
    for made in (whole, again):
        assert read(made) == known
    ChatCompletion.model_validate(json.loads(whole), strict=True)
    for line in again.split(b"\n\n"):
        if line.startswith(b"data: {"):
            ChatCompletionChunk.model_validate(json.loads(line[6:]), strict=True)
    if b'"function_call": {' not in body:
        assert joined_calls(again) == known["calls"]
        if b'"message"' not in body:  # which may repeat calls
            assert joined_calls(passed(body, stream=True)) == known["calls"]
    return known


def joined_calls(stream: bytes) -> list[tuple[str, Any]]:
    """The calls in a stream as SDKs join them: all texts of an index."""
    calls: dict[int, list[str]] = {}
    lines = [json.loads(line[6:]) for line in stream.split(b"\n\n") if line.startswith(b"data: {")]
    for choice in (choice for made in lines for choice in made["choices"]):
        for delta in choice["delta"].get("tool_calls") or ():
            texts = calls.setdefault(delta["index"], ["", "", ""])
            function = delta["function"]
            for place, text in enumerate((delta.get("id"), function.get("name"), function.get("arguments"))):
                texts[place] += text or ""
    assert len({id for id, _, _ in calls.values() if id}) == len(calls), "each has an id of its own"
    return [(name, json.loads(text or "{}")) for _, name, text in calls.values()]


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("indexes", INDEXES)
@pytest.mark.parametrize("ids", IDS)
def test_calls_of_a_joined_stream_are_those_of_the_stream(
    ids: str, indexes: str, names: str, order: str
) -> None:
    answers: Sequence[tuple[Call, ...]] = (
        (OSLO, ROME),
        (OSLO, OSLO),
        (NOW, OSLO, ROME),
        (NOW_UNSAID, OSLO_UNSAID),
    )
    for whole, calls in itertools.product((False, True), answers):
        deltas = deltas_of(calls, ids, indexes, names=names, whole=whole, order=order)
        body = b"".join(map(event, [*map(chunk, deltas), chunk({}, "tool_calls")])) + DONE
        try:
            read(body)
        except ValueError:
            continue  # nobody can tell the calls apart
        check(body)


@pytest.mark.parametrize("name", CHAT)
def test_a_known_stream_says_the_same_joined(name: str) -> None:
    case = CASES[name]
    known, whole = read(case.body), passed(case.body, stream=False)
    assert read(whole) == known
    assert read(passed(whole, stream=True)) == known


def parts(*said: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": each} if isinstance(each, str) else each for each in said]}


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


THOUGHT: Final = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
USED: Final = {**chunk({}), "choices": [], "usage": USAGE}
ODD: Final[dict[str, tuple[list[dict[str, Any]], dict[str, Any]]]] = {
    "a list of parts": ([chunk(parts("Hel", "lo")), chunk(parts("."), "stop")], {"text": "Hello."}),
    "a text, then parts, then a text": (
        [chunk({"content": "Hel"}), chunk(parts(THOUGHT, "lo")), chunk({"content": "."}, "stop")],
        {"text": "Hello.", "reasoning": "Hm."},
    ),
    "an empty text, then parts": (
        [chunk({"role": "assistant", "content": ""}), chunk(parts(THOUGHT)), chunk(parts("Hello."), "stop")],
        {"text": "Hello.", "reasoning": "Hm."},
    ),
    "a part of another type": (
        [chunk(parts("Hello.", {"type": "reference", "reference_ids": [1]}, None, 5), "stop")],
        {"text": "Hello."},
    ),
    "arguments in an object": (
        [
            chunk(
                {"tool_calls": [call("now", {}, id="a"), call("get", {"city": "Oslo"}, id="b")]}, "tool_calls"
            )
        ],
        {"calls": [("now", {}), ("get", {"city": "Oslo"})]},
    ),
    "other arguments than objects": (
        [chunk({"tool_calls": [call("now", [1], id="a"), call("get", 5, id="b")]}, "tool_calls")],
        {"calls": [("now", [1]), ("get", 5)]},
    ),
    "an id and a name in each delta": (
        [chunk({"tool_calls": [call("get", each, id="a", index=0)]}) for each in ('{"a"', ":1", "}")],
        {"calls": [("get", {"a": 1})]},
    ),
    "calls of index 0": (
        [
            chunk(
                {"tool_calls": [call("get", '{"a":1}', index=0), call("get", '{"a":2}', index=0)]},
                "tool_calls",
            )
        ],
        {"calls": [("get", {"a": 1}), ("get", {"a": 2})]},
    ),
    "calls without ids and indexes": (
        [
            chunk({"tool_calls": [call("get", '{"a":1}')]}),
            chunk({"tool_calls": [call("get", '{"a":2}')]}, "stop"),
        ],
        {"calls": [("get", {"a": 1}), ("get", {"a": 2})]},
    ),
    "an empty id in later pieces": (
        [
            chunk({"tool_calls": [call("get", '{"a"', id="a", index=0)]}),
            chunk(
                {"tool_calls": [{"id": "", "index": 0, "function": {"name": "", "arguments": ":1}"}}]}, "stop"
            ),
        ],
        {"calls": [("get", {"a": 1})]},
    ),
    "a negative index": (
        [chunk({"tool_calls": [call("get", '{"a":1}', index=-1), call("now", "", index=-2)]}, "stop")],
        {"calls": [("get", {"a": 1}), ("now", {})]},
    ),
    "null for calls": (
        [chunk({"content": "Hello.", "tool_calls": None, "function_call": None, "refusal": None}, "stop")],
        {"text": "Hello.", "calls": []},
    ),
    "no calls in a list": (
        [chunk({"content": "Hello.", "tool_calls": []}, "stop")],
        {"text": "Hello.", "finish": "stop"},
    ),
    "entries that are no calls": (
        [chunk({"content": "Hello.", "tool_calls": [None, 5]}, "stop")],
        {"text": "Hello."},
    ),
    "the old form": (
        [
            chunk({"content": None, "function_call": {"name": "get", "arguments": '{"a"'}}),
            chunk({"function_call": {"arguments": ":1}"}}, "function_call"),
        ],
        {"calls": [("get", {"a": 1})], "finish": "function_call"},
    ),
    "a message behind the deltas of a call of the old form": (
        [
            chunk({"function_call": {"name": "get", "arguments": '{"a"'}}),
            chunk({"function_call": {"arguments": ":1}"}}),
            message_chunk({"function_call": {"name": "get", "arguments": '{"a":1}'}}, "function_call"),
        ],
        {"calls": [("get", {"a": 1})], "finish": "function_call"},
    ),
    "the old form with an object": (
        [chunk({"function_call": {"name": "get", "arguments": {"a": 1}}}, "function_call")],
        {"calls": [("get", {"a": 1})]},
    ),
    "no finish reason": ([chunk({"content": "Hello."})], {"text": "Hello.", "finish": "stop"}),
    "an empty finish reason": (
        [chunk({"content": "Hello."}, ""), chunk({}, "length"), chunk({}, "")],
        {"text": "Hello.", "finish": "length"},
    ),
    "a finish reason of another type": (
        [chunk({"content": "Hello."}, cast("str", 5))],
        {"text": "Hello.", "finish": "stop"},
    ),
    "calls without a finish reason": (
        [chunk({"tool_calls": [call("get", '{"a":1}', id="a")]})],
        {"calls": [("get", {"a": 1})], "finish": "tool_calls"},
    ),
    "entries that are no choices": (
        [{**chunk({}), "choices": [None, 5, *chunk({"content": "Hello."}, "stop")["choices"]]}],
        {"text": "Hello."},
    ),
    "a choice without an index": (
        [{**chunk({}), "choices": [{"delta": {"content": "Hello."}, "finish_reason": "stop"}]}],
        {"text": "Hello."},
    ),
    "null for usage": ([{**chunk({"content": "Hello."}, "stop"), "usage": None}], {"usage": None}),
    "usage, then null": (
        [chunk({"content": "Hello."}, "stop"), USED, {**USED, "usage": None}],
        {"text": "Hello."},
    ),
    "a message behind its deltas": (
        [chunk({"content": "Hel"}), chunk({"content": "lo."}), message_chunk({"content": "Hello."}, "stop")],
        {"text": "Hello."},
    ),
    "messages in place of deltas": (
        [message_chunk({"content": "Hel"}, None), message_chunk({"content": "lo."}, "stop")],
        {"text": "Hello."},
    ),
    "a last piece that is the beginning": (
        [message_chunk({"content": said}, None) for said in ("1", " + 0 = ")]
        + [message_chunk({"content": "1"}, "stop")],
        {"text": "1 + 0 = 1"},
    ),
    "a last piece of white space": (
        [message_chunk({"content": "Hello."}, None), message_chunk({"content": "\n"}, "stop")],
        {"text": "Hello.\n"},
    ),
    "a last piece that is the whole message": (
        [
            message_chunk({"reasoning_content": "Hm.", "content": "Hel"}, None),
            message_chunk({"content": "lo.", "tool_calls": [call("get", '{"a":1}', id="a")]}, None, {}),
            message_chunk(
                {
                    "reasoning_content": "Hm.",
                    "content": "Hello. Bye.",
                    "tool_calls": [call("get", '{"a":1}', id="a")],
                },
                "stop",
            ),
        ],
        {"text": "Hello. Bye.", "reasoning": "Hm.", "calls": [("get", {"a": 1})]},
    ),
    "calls that only the whole message has": (
        [
            message_chunk({"content": "Hello."}, None),
            message_chunk(
                {"content": "Hello.", "tool_calls": [call("get", '{"a":1}', id="a")]}, "tool_calls"
            ),
        ],
        {"text": "Hello.", "calls": [("get", {"a": 1})]},
    ),
    "half of a pair in a message beside an empty delta, and the other": (
        [message_chunk({"content": "Hi \ud83d"}, None, {}), message_chunk({"content": "\ude00"}, "stop", {})],
        {"text": "Hi \U0001f600"},
    ),
    "a message behind the deltas of its calls": (
        [
            chunk({"tool_calls": [call("get", '{"a"', id="a", index=0)]}),
            message_chunk({"content": None, "tool_calls": [call("get", '{"a":1}', id="a")]}, "tool_calls"),
        ],
        {"calls": [("get", {"a": 1})]},
    ),
    "half of a pair, and the other": (
        [chunk({"content": "Hi \ud83d"}), chunk({"content": "\ude00"}, "stop")],
        {"text": "Hi \U0001f600"},
    ),
}
"""Chunks, and what the reader makes of them."""


def as_event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@pytest.mark.parametrize("name", ODD)
def test_an_odd_stream_is_joined_to_what_the_reader_makes_of_it(name: str) -> None:
    chunks, known = ODD[name]
    body = b"".join(map(as_event, chunks)) + DONE
    for found in (check(body), read(passed(body, stream=True))):
        assert {key: found[key] for key in known} == known
