"""What a model server sends costs what it weighs, in each of its APIs: CPU time and memory in proportion to the bytes.

A further shape is a row of a table; a further reader is a column.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import pytest

from codex_proxy.agents.dialect import MAX_UNANSWERED, Dialect
from codex_proxy.core.events import TurnEnded
from codex_proxy.core.faults import FaultKind
from codex_proxy.core.items import HistoryMessage, TextPart, Tool
from codex_proxy.core.json_values import LONG_JSON, MAX_DEPTH
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import ForwardedRequest, HostedTools, Turn
from codex_proxy.parts.upstream.failures import ErrorReader, Secrets, SecretsReader
from codex_proxy.parts.upstream.openai_chat.chat_dialects import ForwardedTurn, OpenAIChat
from codex_proxy.parts.upstream.openai_responses.responses_dialect import OpenAIResponses
from codex_proxy.parts.upstream.stream import (
    AnswerReader,
    End,
    Head,
    Message,
    StreamEvent,
    decode_event,
)
from codex_proxy.parts.upstream.turn import UpstreamContext
from tests.growth import assert_linear
from tests.parts.upstream.serving import new_pass_through

READ_BYTES: Final = 1 << 16
"""What one read of a connection brings at most."""
TURN: Final = Turn(
    model="m",
    history=(HistoryMessage("user", (TextPart("weather?"),)),),
    tools=(Tool(name="f"), Tool(name="patch", kind="custom")),
    hosted=HostedTools({"code_interpreter": (msgspec.Raw(b'{"type":"code_interpreter"}'),)}),
)
FIELDS: Final = {"messages": msgspec.Raw(b'[{"role":"user","content":"hi"}]')}


def context(reasoning_back: str = "") -> UpstreamContext:
    numbers = itertools.count()
    return UpstreamContext(
        ErrorReader(()), set(), lambda prefix: f"{prefix}{next(numbers)}", lambda: 1000.0, reasoning_back
    )


def forwarding_dialect(stream: bool) -> Dialect[Message]:
    return ForwardedTurn(
        ForwardedRequest(fields=FIELDS, stream=stream, include_usage=True, model_asked="m"), "m", context()
    )


CHAT: Final[dict[str, Callable[[], Dialect[Message]]]] = {
    "openai-chat": lambda: OpenAIChat("m", context("reasoning")),
    "forwarded stream": lambda: forwarding_dialect(True),
    "forwarded whole": lambda: forwarding_dialect(False),
}


@pytest.fixture
def any_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer has too many calls: the cost of many is looked at."""
    for limit in ("MAX_UNANSWERED", "MAX_OPEN_ITEMS", "MAX_STARTED"):
        monkeypatch.setattr(f"codex_proxy.parts.upstream.turn.{limit}", 1 << 30)


def events_of(dialect: Dialect[Message], body: bytes, turn: Turn = TURN) -> list[Any]:
    """The events of an answer with this body."""
    events = list(dialect.begin(turn).events)
    events += dialect.receive([Head(200)]).events
    for start in range(0, len(body), READ_BYTES):
        events += dialect.receive([body[start : start + READ_BYTES]]).events
    events += dialect.receive([End()]).events
    return events


def line(event: Any) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def chunks(deltas: Iterable[dict[str, Any]], **more: Any) -> bytes:
    """A stream of chunks with these deltas."""
    said = [
        line({"choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}]}) for delta in deltas
    ]
    return b"".join(said) + line({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


def messages_that_end(message: dict[str, str], count: int) -> bytes:
    """So many chunks with a message, numbered, and a finish reason."""
    numbered = [{name: text.format(i) for name, text in message.items()} for i in range(count)]
    return b"".join(line({"choices": [{"message": each, "finish_reason": "stop"}]}) for each in numbered)


def whole(message: dict[str, Any]) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()


def chunks_of(count: int, **delta: Any) -> bytes:
    return chunks([delta] * count)


def call(arguments: str = "{}", name: str = "f", **place: Any) -> dict[str, Any]:
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}, **place}]}


def piece(i: int) -> dict[str, Any]:
    return {"id": f"c{i}", "function": {"name": "f", "arguments": "{}"}}


def calls(count: int, make: Callable[[int], dict[str, Any]]) -> bytes:
    return chunks(map(make, range(count)))


def arguments(count: int, first: str, following: str, **call_fields: Any) -> bytes:
    return calls(count, lambda i: call(first if i == 0 else following, index=0, **call_fields))


SOURCE: Final = {"type": "url_citation", "url_citation": {"url": "x" * 50}}
CHOICE: Final = {"index": 0, "delta": {"content": "a"}}
NESTED: Final = json.loads("[" * 50 + "]" * 50)

CHAT_SHAPES: Final[dict[str, tuple[int, Callable[[int], bytes]]]] = {
    "many deltas": (1500, lambda n: chunks_of(n, content="word " * 20)),
    "many deltas of reasoning": (800, lambda n: chunks_of(n, reasoning="word " * 20)),
    "many deltas of a refusal": (800, lambda n: chunks_of(n, refusal="word")),
    "one long text": (1 << 19, lambda n: whole({"content": "word " * (n // 5)})),
    "one long event": (1 << 19, lambda n: chunks_of(1, content="word " * (n // 5))),
    "spaces, one at a time": (800, lambda n: chunks([{"content": " " * 500 * n}, *[{"content": " "}] * n])),
    "half a tag at a time": (800, lambda n: chunks([{"content": "<think>"}, *[{"content": "</thin"}] * n])),
    "spaces behind a tag": (800, lambda n: chunks([{"content": "<think></think>"}, *[{"content": " "}] * n])),
    "many parts": (8000, lambda n: chunks_of(1, content=[{"type": "text", "text": "a"}] * n)),
    "many calls": (500, lambda n: calls(n, lambda i: call(index=i, id=f"c{i}"))),
    "many calls at once": (1500, lambda n: whole({"tool_calls": [piece(i) for i in range(n)]})),
    "many unknown calls": (500, lambda n: calls(n, lambda i: call("x", "g", index=i, id=f"c{i}"))),
    "many calls without an id": (500, lambda n: calls(n, lambda i: call())),
    "many calls of one id": (500, lambda n: calls(n, lambda i: call(id="same"))),
    "many calls without a name": (500, lambda n: calls(n, lambda i: call(name="", id=f"c{i}"))),
    "many calls in one delta": (1500, lambda n: chunks_of(1, tool_calls=[piece(i) for i in range(n)])),
    "arguments with a name and no id": (800, lambda n: arguments(n, '{"a":"' + "x" * 100 * n, "x")),
    "arguments that are no JSON": (800, lambda n: arguments(n, "x" * 100 * n, "x")),
    "arguments of many brackets": (800, lambda n: arguments(n, "[" * 20 * n, "]")),
    "arguments in many deltas": (800, lambda n: arguments(n, "{", "xy" * 50, id="c")),
    "input of a custom tool": (800, lambda n: arguments(n, '{"input":"', "\\u00e9" * 5, id="c", name="patch")),
    "calls in the old form": (800, lambda n: chunks_of(n, function_call={"name": "f", "arguments": "x"})),
    "annotations": (800, lambda n: chunks_of(n, content="a", annotations=[SOURCE])),
    "images": (1500, lambda n: chunks_of(n, images=[{"image_url": {"url": "x" * 20}}])),
    "messages in place of deltas": (1500, lambda n: line({"choices": [{"message": {"content": "word "}}]}) * n),
    "messages beside deltas": (800, lambda n: chunks([{"content": "word "}] * n, message={"content": "word "})),
    "messages that end": (800, lambda n: messages_that_end({"content": "word {}"}, n)),
    "refusals that end": (800, lambda n: messages_that_end({"refusal": "word {}"}, n)),
    "calls of messages beside deltas": (800, lambda n: chunks([call("x", index=0, id="c")] * n, message=call("x"))),
    "log probabilities": (1500, lambda n: chunks([{"content": "a"}] * n, logprobs={"content": [{"token": "a"}]})),
    "unknown fields": (1500, lambda n: chunks({f"field_{i}": "x" * 50} for i in range(n))),
    "nested lists": (500, lambda n: line({"choices": [], "x": NESTED}) * n),
    "many choices": (1500, lambda n: b"".join(line({"choices": [{**CHOICE, "index": i}]}) for i in range(n))),
    "blank lines": (1 << 17, lambda n: b"\n" * n + chunks_of(1, content="a")),
    "blank lines in a stream": (1 << 17, lambda n: chunks_of(1, content="a") + b"\n" * n),
    "carriage returns": (1 << 17, lambda n: b"data: {}\n\n" + b"\r\n" * n),
    "comments": (3000, lambda n: b": keep-alive\n\n" * n),
    "spaces before the answer": (1 << 20, lambda n: b" " * n),
    "data without blank lines": (800, lambda n: chunks_of(n, content="a").replace(b"\n\n", b"\n")),
    "half of a surrogate pair": (300, lambda n: chunks_of(n, content="\ud83d")),
    "one long number": (1 << 14, lambda n: b'data: {"choices":[],"x":' + b"9" * n + b"}\n\n"),
    "usage in each chunk": (800, lambda n: line({"choices": [CHOICE], "usage": {"prompt_tokens": 1}}) * n),
    "an error of many values": (1 << 14, lambda n: line({"error": {"message": "x", "more": [[]] * n}})),
    "an error with a long message": (1 << 17, lambda n: line({"error": {"message": "word " * n}})),
}  # fmt: skip


@pytest.mark.sampled(every=31)
@pytest.mark.usefixtures("any_number_of_calls")
@pytest.mark.parametrize("shape", CHAT_SHAPES)
@pytest.mark.parametrize("reader", CHAT)
def test_an_answer_of_chat_completions_takes_time_proportional_to_its_size(reader: str, shape: str) -> None:
    size, make = CHAT_SHAPES[shape]
    assert_linear(make, lambda body: events_of(CHAT[reader](), body), size)


def event(kind: str, **fields: Any) -> bytes:
    return line({"type": f"response.{kind}", **fields})


def completion(*output: Any) -> bytes:
    return event("completed", response={"object": "response", "status": "completed", "output": list(output)})


def item_added(item: dict[str, Any]) -> bytes:
    return event("output_item.added", item=item)


def item_done(item: dict[str, Any], **more: Any) -> bytes:
    return event("output_item.done", item=item, **more)


def function(i: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{i}",
        "call_id": f"c{i}",
        "name": "f",
        "arguments": "{}",
        **more,
    }


def message(i: int, **part: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": "a", **part}]
    return {"type": "message", "id": f"m{i}", "role": "assistant", "content": content}


def search(i: int) -> dict[str, Any]:
    return {"type": "web_search_call", "id": f"ws_{i}", "action": {"query": "q"}}


def each(count: int, make: Callable[[int], bytes]) -> bytes:
    """The events that this makes, and the end of the answer."""
    return b"".join(map(make, range(count))) + completion()


def at_0(kind: str, **fields: Any) -> bytes:
    return event(kind, output_index=0, **fields)


def open_at_0(i: int) -> bytes:
    return at_0("output_item.added", item=message(i))


def deltas(count: int, kind: str = "output_text", **fields: Any) -> bytes:
    return event(f"{kind}.delta", **{"item_id": "m", "delta": "word " * 10, **fields}) * count + completion()


def many_open(count: int) -> bytes:
    return b"".join(item_added(function(i)) for i in range(count))


ARGUMENTS: Final = "function_call_arguments"
CODE: Final = at_0("output_item.added", item={"type": "code_interpreter_call", "id": "ci_0", "code": ""})
RUNNING: Final = at_0("code_interpreter_call_code.delta", item_id="ci_0", delta="x")
THOUGHT: Final = at_0("reasoning_text.delta", item_id="rs_0", delta="hm")

RESPONSES_SHAPES: Final[dict[str, tuple[int, Callable[[int], bytes]]]] = {
    "many deltas": (1500, deltas),
    "many deltas without an id": (1500, lambda n: deltas(n, item_id=None)),
    "one long delta": (1 << 17, lambda n: deltas(1, delta="word " * n)),
    "reasoning": (1500, lambda n: deltas(n, "reasoning_summary_text")),
    "refusals": (1500, lambda n: deltas(n, "refusal")),
    "many messages": (500, lambda n: each(n, lambda i: item_added(message(i)) + item_done(message(i), output_index=i))),
    "many messages left open": (500, lambda n: each(n, lambda i: item_added(message(i)))),
    "many messages at the end": (1500, lambda n: completion(*map(message, range(n)))),
    "many items without an id": (1500, lambda n: completion(*({"type": "message", "content": []} for _ in range(n)))),
    "many items of one id": (1500, lambda n: item_done(message(0)) * n + completion(*[message(0)] * n)),
    "many searches": (800, lambda n: each(n, lambda i: item_done(search(i)))),
    "many calls": (500, lambda n: each(n, lambda i: item_added(function(i)) + item_done(function(i)))),
    "many calls left open": (500, lambda n: many_open(n) + completion()),
    "many calls of one id": (500, lambda n: each(n, lambda i: item_done(function(i, call_id="same")))),
    "many unknown calls": (500, lambda n: each(n, lambda i: item_done(function(i, name="g")))),
    "many calls without a name": (500, lambda n: each(n, lambda i: item_done(function(i, name="")))),
    "arguments": (1500, lambda n: item_added(function()) + deltas(n, ARGUMENTS, item_id="fc_0")),
    "arguments of many calls": (500, lambda n: many_open(n) + deltas(n, ARGUMENTS, item_id=None)),
    "custom input": (1500, lambda n: item_added(function(name="patch")) + deltas(n, ARGUMENTS, item_id="fc_0")),
    "annotations": (1500, lambda n: event("output_text.annotation.added", item_id="m", annotation=SOURCE) * n),
    "annotations of a message": (3000, lambda n: completion(message(0, annotations=[{"start_index": 1}] * n))),
    "parts of a message": (3000, lambda n: completion({**message(0), "content": message(0)["content"] * n})),
    "parts of reasoning": (
        3000, lambda n: completion({"type": "reasoning", "id": "r", "summary": [{"text": "a"}] * n})),
    "events of a tool after other items": (
        1000, lambda n: CODE + b"".join(map(open_at_0, range(n))) + RUNNING * n + completion()),
    "events of a tool among other items": (1000, lambda n: CODE + each(n, lambda i: open_at_0(i) + RUNNING)),
    "reasoning among other items": (1000, lambda n: THOUGHT + each(n, lambda i: open_at_0(i) + THOUGHT)),
    "searches at the index of other items": (
        1000, lambda n: b"".join(map(open_at_0, range(n)))
        + each(n, lambda i: at_0("output_item.done", item=search(i)))),
    "unknown events": (1500, lambda n: event("image_generation_call.partial_image", partial_image_b64="x" * 200) * n),
    "comments": (8000, lambda n: b": keep-alive\n\n" * n),
    "blank lines": (1 << 17, lambda n: b"\n" * n),
}  # fmt: skip


@pytest.mark.sampled(every=17)
@pytest.mark.usefixtures("any_number_of_calls")
@pytest.mark.parametrize("shape", RESPONSES_SHAPES)
def test_an_answer_of_the_responses_api_takes_time_proportional_to_its_size(shape: str) -> None:
    size, make = RESPONSES_SHAPES[shape]
    assert_linear(make, lambda body: events_of(OpenAIResponses("m", context()), body), size)


@pytest.mark.parametrize("dialect", [OpenAIChat, OpenAIResponses])
def test_an_answer_of_more_than_a_thousand_calls_is_refused(
    dialect: type[OpenAIChat] | type[OpenAIResponses],
) -> None:
    def body(count: int) -> bytes:
        if dialect is OpenAIChat:
            return calls(count, lambda i: call(index=i, id=f"c{i}"))
        return each(count, lambda i: item_done(function(i)))

    for turn in (TURN, msgspec.structs.replace(TURN, parallel_tool_calls=False)):  # its calls stream, or wait
        for count in (MAX_UNANSWERED, MAX_UNANSWERED + 1):
            told = TurnRepair().feed(events_of(dialect("m", context()), body(count), turn))
            failures = [event.failure for event in told if isinstance(event, TurnEnded)]
            if count > MAX_UNANSWERED:
                assert [failure and failure.kind for failure in failures] == [FaultKind.UPSTREAM_ERROR]
            else:
                assert not any(failures)


KEY: Final = "sk-aaaa/aaaa-key"
HIDDEN_SHAPES: Final[dict[str, tuple[int, int, Callable[[int], bytes]]]] = {
    "one long text": (1 << 19, READ_BYTES, lambda n: b"word " * (n // 5)),
    "one long text in one read": (1 << 20, 1 << 30, lambda n: b"word " * (n // 5)),
    "keys": (1 << 14, READ_BYTES, lambda n: KEY.encode() * n),
    "keys, a byte at a time": (200, 1, lambda n: KEY.encode() * n),
    "keys that are escaped": (1 << 12, READ_BYTES, lambda n: b"".join(b"\\u%04x" % ord(c) for c in KEY) * n),
    "escaped keys, a byte at a time": (60, 1, lambda n: b"".join(b"\\u%04X" % ord(c) for c in KEY) * n),
    "beginnings of keys": (1 << 14, READ_BYTES, lambda n: KEY[:-1].encode() * n),
    "beginnings of keys, a few bytes at a time": (400, 7, lambda n: KEY[:-1].encode() * n),
    "what a key repeats": (1 << 16, READ_BYTES, lambda n: b"sk-" + b"a" * n),
    "backslashes": (1 << 17, READ_BYTES, lambda n: b"\\" * n),
    "backslashes, a byte at a time": (2000, 1, lambda n: b"\\" * n),
    "escapes that do not end": (1 << 15, READ_BYTES, lambda n: b"\\u00" * n),
}  # fmt: skip


def hide_secrets(secrets: Secrets, body: bytes, at_once: int) -> bytes:
    """The body without the secrets, read in pieces of so many bytes."""
    reader = SecretsReader(secrets)
    parts = [reader.feed(body[start : start + at_once]) for start in range(0, len(body), at_once)]
    return b"".join([*parts, reader.close()])


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("shape", HIDDEN_SHAPES)
def test_to_hide_a_key_takes_time_proportional_to_the_answer(shape: str) -> None:
    size, at_once, make = HIDDEN_SHAPES[shape]
    secrets = Secrets([KEY, "another/key"])
    assert_linear(make, lambda body: hide_secrets(secrets, body, at_once), size)


ENDLESS: Final = {
    "blank lines": b"\n" * 600,
    "comments": b": keep-alive\n\n" * 50,
    "spaces": b" " * 600,
    "events without content": line({"choices": [], "x": "x" * 600}),
    "an event without an end": b"data: " + b"x" * 600,
}


@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.parametrize("stream", [True, False])
def test_what_has_no_end_and_no_content_is_not_passed_on_for_ever(what: str, stream: bool) -> None:
    passing = new_pass_through(stream=stream, wants_usage=True, max_event=10_000)
    passed = b"".join(passing.feed(ENDLESS[what]) for _ in range(20))
    assert (passed, passing.fault) == (b"", StreamEvent("too_long"))


@pytest.mark.parametrize("what", ["blank lines", "comments", "spaces", "an event without an end"])
def test_an_upstream_that_never_sends_an_event_is_not_read_for_ever(what: str) -> None:
    reader = AnswerReader(max_line=10_000)
    events = [event for _ in range(40) for event in reader.feed(ENDLESS[what])]
    assert events == [StreamEvent("too_long")]


@pytest.mark.parametrize("levels", [100, 250, 990, 2000, 50_000])
@pytest.mark.parametrize("place", ["content", "logprobs", "tool_calls"])
@pytest.mark.parametrize("reader", CHAT)
def test_values_nested_hundreds_deep_are_merged_or_refused(reader: str, place: str, levels: int) -> None:
    nested = b'{"a":' * levels + b"1" + b"}" * levels
    calls = b'{"tool_calls":[{"index":0,"id":"c","x":%b}]}' % nested
    choice = {
        "content": b'{"index":0,"delta":{"content":"a","x":%b}}' % nested,
        "logprobs": b'{"index":0,"delta":{"content":"a"},"logprobs":%b}' % nested,
        "tool_calls": b'{"index":0,"delta":%b}' % calls,
    }[place]
    ended = events_of(CHAT[reader](), b'data: {"choices":[%b]}\n\n' % choice * 3 + chunks_of(1, content="a"))[
        -1
    ]
    failure = getattr(ended, "failure", None)
    assert (failure is None) == (levels < MAX_DEPTH)
    assert failure is None or failure.kind in (FaultKind.UPSTREAM_ERROR, FaultKind.UPSTREAM_DISCONNECTED)


@pytest.mark.parametrize("value", [b"[]", b"{}", b"1", b'{"a":[]}'])
def test_an_event_of_so_many_values_that_they_would_fill_the_memory_is_refused(value: bytes) -> None:
    body = b'{"choices":[' + (value + b",") * LONG_JSON + b"1]}"
    assert decode_event(body, "chunk") == StreamEvent("too_long")


def test_an_event_with_a_long_text_is_read_although_it_has_many_commas() -> None:
    body = json.dumps({"choices": [{"delta": {"content": "one, two, three, four. " * 200_000}}]}).encode()
    assert decode_event(body, "chunk").kind == "chunk"
