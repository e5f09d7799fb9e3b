"""Passing an answer's bytes on while they are observed: what a client gets, wherever the bytes are cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from codex_proxy.core.events import Usage
from codex_proxy.parts.upstream.openai_chat.pass_through import PassThrough
from codex_proxy.parts.upstream.stream import BOM, StreamEvent, decode_event
from tests.agents.damage import each_change
from tests.model_server import CASES, DONE, USAGE, chunk, event, text
from tests.parts.upstream.serving import new_pass_through
from tests.parts.upstream.test_mutated_chat import message_chunk

USAGE_CHUNK = event(chunk({}) | {"choices": [], "usage": USAGE})
TRICKY = (
    "data: ",
    '"choices":[{',
    '"usage":{"prompt_tokens":1}',
    "[DONE]",
    "\n\n",
    "\r\n",
    "error",
    "\\",
    "é🙂",
    '"',
)
"""Texts that look like the frame around them."""


def passed_bytes(pass_through: PassThrough, chunks: Sequence[bytes]) -> bytes:
    """All that is passed on of a body that comes in these pieces."""
    return b"".join([*map(pass_through.feed, chunks), pass_through.close()])


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    """The body in pieces, cut at these places."""
    marks = [0, *sorted({place % (len(body) + 1) for place in places}), len(body)]
    return [body[start:end] for start, end in pairwise(marks)]


def streams(usage: bool = True) -> st.SearchStrategy[bytes]:
    """Whole streams as servers write them: with comments, names of events, CRLF, blanks in their JSON, null fields."""
    said = st.lists(st.one_of(st.sampled_from(TRICKY), st.text(max_size=5)), max_size=4).map("".join)
    deltas = st.fixed_dictionaries({"content": said}) | st.fixed_dictionaries({"reasoning": said})
    null = st.sampled_from([{}, {"usage": None}])
    chunks = st.builds(lambda delta, more: chunk(delta, **more), deltas, null)
    end = event(chunk({"role": "assistant", "content": "."}, "stop"))

    def written(parts: list[Any], blanks: bool, comment: bool, named: bool, crlf: bool) -> bytes:
        out = []
        for part in parts:
            data = json.dumps(part, separators=None if blanks else (",", ":"), ensure_ascii=blanks)
            out.append((b"event: chunk\n" if named else b"") + b"data: " + data.encode() + b"\n\n")
        if comment:
            out.insert(len(out) // 2, b": keep-alive\n\n")
        body = b"".join([*out, end, *([USAGE_CHUNK] if usage else []), DONE])
        return body.replace(b"\n", b"\r\n") if crlf else body

    flags = st.booleans()
    return st.builds(written, st.lists(chunks, max_size=6), flags, flags, flags, flags)


places = st.lists(st.integers(0, 5000), max_size=30)


@given(body=streams(), places=places)
def test_the_bytes_passed_on_are_those_that_came_wherever_they_are_cut(
    body: bytes, places: list[int]
) -> None:
    pass_through = new_pass_through(stream=True, wants_usage=True)
    assert passed_bytes(pass_through, cut(body, places)) == body
    assert pass_through.done
    assert pass_through.fault is None
    assert pass_through.finishes == {0: "stop"}
    assert pass_through.usage == Usage(input=11, output=7)


@given(body=streams(), places=places)
def test_without_being_asked_usage_is_the_one_thing_that_is_left_out(body: bytes, places: list[int]) -> None:
    crlf = USAGE_CHUNK.replace(b"\n", b"\r\n")
    pass_through = new_pass_through(stream=True, wants_usage=False)
    assert passed_bytes(pass_through, cut(body, places)) == body.replace(USAGE_CHUNK, b"").replace(crlf, b"")
    assert pass_through.usage == Usage(input=11, output=7), "it is known all the same"


@given(body=streams(), end=st.integers(0, 5000), places=places)
def test_what_breaks_off_is_passed_on_in_whole_events(body: bytes, end: int, places: list[int]) -> None:
    end %= len(body)
    pass_through = new_pass_through(stream=True, wants_usage=True)
    out = passed_bytes(pass_through, cut(body[:end], places))
    whole = body.startswith(out.rstrip(b"\r\n"))
    assert whole
    assert not out or out.endswith((b"\n\n", b"\n\r\n"))
    assert not pass_through.done or b"[DONE]" in body[:end]


@given(body=streams(), places=places)
def test_the_model_has_the_name_that_the_client_asked_for(body: bytes, places: list[int]) -> None:
    pass_through = new_pass_through(stream=True, wants_usage=True, model_shown="my-alias")
    out = passed_bytes(pass_through, cut(body, places))
    told = [json.loads(line[5:]) for line in out.decode().split("\n") if line.startswith("data: {")]
    came = [json.loads(line[5:]) for line in body.decode().split("\n") if line.startswith("data: {")]
    assert told == [each | {"model": "my-alias"} for each in came]


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.status == 200])
def test_every_dialect_is_passed_on_or_fails_as_it_should(name: str, size: int) -> None:
    case = CASES[name]
    pass_through = new_pass_through(stream=True, wants_usage=True)
    out = passed_bytes(pass_through, [case.body[at : at + size] for at in range(0, len(case.body), size)])
    if case.stop == "failed":
        assert (
            pass_through.fault is not None
            or not (pass_through.done or pass_through.finishes)
            or "error" in pass_through.finishes.values()
        )
    else:
        assert pass_through.fault is None
        assert pass_through.done or pass_through.finishes
        if case.usage:
            assert pass_through.usage is not None
            assert (pass_through.usage.input, pass_through.usage.output) == case.usage
    assert pass_through.fault is None or b"rror" not in out, "an error of the upstream's is not passed on"


@pytest.mark.usefixtures("each_spelling")
def test_nothing_is_passed_on_before_the_first_word() -> None:
    pass_through = new_pass_through(stream=True, wants_usage=True)
    role, word = event(chunk({"role": "assistant", "content": ""})), event(chunk({"content": "Hi"}))
    assert pass_through.feed(b": queued\n\n" + role) == b""
    assert pass_through.feed(word) == b": queued\n\n" + role + word
    assert pass_through.feed(word) == word


@pytest.mark.usefixtures("each_spelling")
def test_of_a_large_block_only_the_events_that_matter_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def counting(data: bytes, name: Any) -> StreamEvent:
        decoded.append(data)
        return decode_event(data, name)

    monkeypatch.setattr("codex_proxy.parts.upstream.openai_chat.pass_through.decode_event", counting)
    role, word = event(chunk({"role": "assistant", "content": ""})), event(chunk({"content": "Hi"}))
    end = event(chunk({}, "stop"))
    body = role + word * 500 + end + event(chunk({}) | {"choices": [], "usage": USAGE}) + DONE
    for pieces in ([body], cut(body, [len(body) // 3])):
        decoded.clear()
        pass_through = new_pass_through(stream=True, wants_usage=True)
        assert passed_bytes(pass_through, pieces) == body
        assert pass_through.deltas == 502
        assert len(decoded) == 4, "the role, the first word, the end and the usage"


@pytest.mark.usefixtures("each_spelling")
def test_deltas_get_another_name_of_the_model_without_being_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def counting(data: bytes, name: Any) -> StreamEvent:
        decoded.append(data)
        return decode_event(data, name)

    monkeypatch.setattr("codex_proxy.parts.upstream.openai_chat.pass_through.decode_event", counting)
    words = [chunk({"content": word}) for word in ("Hi", '"model":"m"', 'é"', "Hi") * 50]
    body = b"".join(map(event, words)) + event(chunk({}, "stop")) + DONE
    for pieces in ([body], [body[at : at + 300] for at in range(0, len(body), 300)]):
        decoded.clear()
        pass_through = new_pass_through(stream=True, wants_usage=True, model_shown="mine")
        out = passed_bytes(pass_through, pieces)
        told = [json.loads(line[6:]) for line in out.split(b"\n") if line.startswith(b"data: {")]
        assert told == [each | {"model": "mine"} for each in (*words, chunk({}, "stop"))]
        assert pass_through.deltas == 201
        assert len(decoded) < 10


def test_a_name_of_the_model_elsewhere_in_a_delta_stays() -> None:
    first = chunk({"content": "Hi"})
    for named in (
        {"x": {"model": "m"}} | {name: value for name, value in first.items() if name != "model"},
        {"x": {"model": "m"}} | first,
        {"choices": first["choices"], "model": "m", "id": "x", "object": first["object"]},
        {"model": 5} | {name: value for name, value in first.items() if name != "model"},
    ):
        pass_through = new_pass_through(stream=True, wants_usage=True, model_shown="mine")
        out = passed_bytes(pass_through, [event(named)] * 3)
        told = [json.loads(line[6:]) for line in out.split(b"\n") if line]
        assert told == [named | ({"model": "mine"} if "model" in named else {})] * 3


FIRST = chunk({"content": "Hi"})
CHOICE = FIRST["choices"][0]


def first_with(**fields: Any) -> dict[str, Any]:
    return FIRST | {"choices": [CHOICE | fields]}


@pytest.mark.parametrize(
    ("came", "sent"),
    [
        ({**FIRST, "choices": None, "usage": USAGE}, {**FIRST, "choices": [], "usage": USAGE}),
        ({"usage": USAGE}, {"usage": USAGE, "choices": []}),
        (first_with(delta=None, finish_reason="stop"), first_with(delta={}, finish_reason="stop")),
        (first_with(index="0"), FIRST),
        ({**FIRST, "choices": [{name: CHOICE[name] for name in CHOICE if name != "index"}]}, FIRST),
        ({**FIRST, "id": 5, "object": None}, {**FIRST, "id": "5"}),
        ({"choices": [CHOICE]}, {"choices": [CHOICE], "id": "", "object": FIRST["object"]}),
        (
            first_with(delta={"content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]}),
            first_with(delta={"content": "Hi!"}),
        ),
    ],
)
def test_a_chunk_at_which_sdks_fail_is_sent_as_they_read_it(
    came: dict[str, Any], sent: dict[str, Any]
) -> None:
    pass_through = new_pass_through(stream=True, wants_usage=True)
    out = passed_bytes(pass_through, [event(came), event(FIRST), event(came), event(chunk({}, "stop")), DONE])
    told = [json.loads(line[6:]) for line in out.split(b"\n") if line and b"[DONE]" not in line]
    assert (told[0], told[2]) == (sent, sent)


def test_what_is_no_number_in_json_is_null() -> None:
    odd = event(first_with(logprobs={"logprob": 0.5}))
    passed = new_pass_through(stream=True, wants_usage=True)
    out = passed_bytes(passed, [event(FIRST), odd.replace(b"0.5", b"-Infinity"), odd.replace(b"0.5", b"NaN")])
    assert out == event(FIRST) + odd.replace(b"0.5", b"null") * 2
    body = b'{"model":"m","cost":NaN,"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'
    for name in (None, "mine"):
        told = json.loads(
            passed_bytes(new_pass_through(stream=False, wants_usage=True, model_shown=name), [body])
        )
        assert (told["cost"], told["model"]) == (None, name or "m")


def test_usage_in_the_last_delta_is_taken_out_of_it() -> None:
    pass_through = new_pass_through(stream=True, wants_usage=False)
    out = pass_through.feed(event(chunk({"content": "Hi"}, "stop", usage=USAGE)) + DONE)
    assert out == event(chunk({"content": "Hi"}, "stop")) + DONE
    assert pass_through.usage == Usage(input=11, output=7)


@pytest.mark.usefixtures("each_spelling")
def test_each_choice_has_its_finish_reason() -> None:
    pass_through = new_pass_through(stream=True, wants_usage=True)
    for index, finish in ((1, "length"), (0, "stop")):
        made = chunk({"content": "a"}, finish)
        made["choices"][0]["index"] = index
        pass_through.feed(event(made))
    assert pass_through.finishes == {1: "length", 0: "stop"}


WHOLE = {
    "id": "x",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": USAGE,
}


@given(places=places)
def test_one_object_is_passed_on_as_it_is(places: list[int]) -> None:
    body = json.dumps(WHOLE, indent=1).encode()
    pass_through = new_pass_through(stream=False, wants_usage=False)
    assert passed_bytes(pass_through, cut(body, places)) == body
    assert pass_through.done
    assert pass_through.usage == Usage(input=11, output=7)


def test_one_object_gets_the_name_of_the_model_and_keeps_all_else() -> None:
    choices = b'[{"index":0,"message":{"role":"assistant","content":"Hi"}}]'
    body = b'{"model": "m", "seed": 1.50, "choices": %b}' % choices
    pass_through = new_pass_through(stream=False, wants_usage=False, model_shown="mine")
    assert passed_bytes(pass_through, [body]) == b'{"model":"mine","seed":1.50,"choices":%b}' % choices


def whole_with(choice: dict[str, Any]) -> bytes:
    return json.dumps(WHOLE | {"created": 1, "choices": [{"finish_reason": "stop", **choice}]}).encode()


PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
    {"type": "text", "text": "Hello"},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        event(message_chunk({"content": "Hello"}, "stop")) + DONE,
        event(message_chunk({"content": "Hel"}, None))
        + event(message_chunk({"content": "Hello"}, "stop"))
        + DONE,
        event(message_chunk({"content": "Hel"}, None))
        + event(message_chunk({"content": "lo"}, "stop"))
        + DONE,
        event(chunk({"content": "Hello"})) + event(message_chunk({"content": "Hello"}, "stop")) + DONE,
        whole_with({"delta": {"content": "Hello"}}),
        whole_with({"message": None, "delta": {"content": "Hello"}}),
        whole_with({"message": {"role": "assistant", "content": PARTS}}),
        whole_with({"index": "0", "message": {"content": "Hello", "tool_calls": None}}),
    ],
)
def test_a_message_and_a_delta_in_each_others_place_reach_sdks(body: bytes, stream: bool) -> None:
    out = passed_bytes(new_pass_through(stream=stream, wants_usage=True), [body])
    if stream:
        events = [each for each in out.split(b"\n\n") if each and b"[DONE]" not in each]
        chunks = [ChatCompletionChunk.model_validate(json.loads(each[6:]), strict=True) for each in events]
        said = [choice.delta.content or "" for each in chunks for choice in each.choices]
        assert "".join(said) == "Hello"
    else:
        (choice,) = ChatCompletion.model_validate(json.loads(out), strict=True).choices
        assert choice.message.content == "Hello"


def call_of(city: str, id: str) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    return {"id": id, "type": "function", "function": function}


OSLO, ROME = call_of("Oslo", "c0"), call_of("Rome", "c1")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("content", [None, "Hm."])
@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([[OSLO], [OSLO]], [OSLO]),
        ([[OSLO, ROME], [OSLO, ROME]], [OSLO, ROME]),
        ([[OSLO], [OSLO, ROME]], [OSLO, ROME]),
        ([[OSLO], [call_of("Oslo", "other")]], [OSLO]),
        ([[OSLO], None], [OSLO]),
        ([[OSLO, ROME]], [OSLO, ROME]),
    ],
)
def test_calls_that_the_last_message_repeats_are_passed_on_once(
    messages: list[Any], said: list[Any], content: str | None, stream: bool
) -> None:
    body = DONE
    for place, calls in enumerate(reversed(messages)):
        message = {"role": "assistant", "content": content, "tool_calls": calls}
        body = event(message_chunk(message, None if place else "tool_calls")) + body
    assert calls_passed_on(body, stream=stream) == [each["function"] for each in said]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_come_in_messages_of_their_own_are_apart(stream: bool) -> None:
    body = b"".join(
        event(message_chunk({"content": None, "tool_calls": calls}, finish))
        for calls, finish in (([OSLO], None), ([ROME], None), ([OSLO, ROME], "tool_calls"))
    )
    assert calls_passed_on(body + DONE, stream=stream) == [OSLO["function"], ROME["function"]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_last_message_ends_the_arguments_of_a_call_and_may_have_another_like_it(stream: bool) -> None:
    begun = indexed_call("a", 0, '{"x"')
    pieces = [([begun], None), ([indexed_call("a", 0, '{"x": 1}'), indexed_call("b", 1, "{}")], "tool_calls")]
    alike = [([indexed_call("a", 0, "{}")], None), ([indexed_call("b", 1, "{}")], "tool_calls")]
    for messages, said in ((pieces, ['{"x": 1}', "{}"]), (alike, ["{}", "{}"])):
        body = b"".join(
            event(message_chunk({"content": None, "tool_calls": calls}, finish)) for calls, finish in messages
        )
        functions = calls_passed_on(body + DONE, stream=stream)
        assert [each["arguments"] for each in functions] == said


def indexed_call(id: str, index: int, arguments: str) -> dict[str, Any]:
    return {
        "id": id,
        "index": index,
        "type": "function",
        "function": {"name": "get_time", "arguments": arguments},
    }


def calls_passed_on(body: bytes, *, stream: bool) -> list[dict[str, str]]:
    """The functions of the calls that an SDK reads."""
    out = passed_bytes(new_pass_through(stream=stream, wants_usage=True), [body])
    if not stream:
        (choice,) = ChatCompletion.model_validate(json.loads(out), strict=True).choices
        return [each["function"] for each in choice.message.model_dump()["tool_calls"]]
    calls: dict[int, dict[str, str]] = {}
    for each in out.split(b"\n\n"):
        for choice in json.loads(each[6:])["choices"] if each and b"[DONE]" not in each else ():
            for delta in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(delta["index"], {"name": "", "arguments": ""})
                for name, piece in delta["function"].items():
                    call[name] += piece
    return [calls[index] for index in sorted(calls)]


def test_choices_of_a_joined_stream_are_in_order() -> None:
    ends = [chunk({}) | {"choices": [{"index": n, "delta": {}, "finish_reason": "stop"}]} for n in (1, 0)]
    out = passed_bytes(new_pass_through(stream=False, wants_usage=True), [*map(event, ends), DONE])
    assert [choice["index"] for choice in json.loads(out)["choices"]] == [0, 1]


def test_only_the_first_event_keeps_a_byte_order_mark() -> None:
    words = [BOM + event(chunk({"content": "Hi"})) for _ in range(3)]
    out = passed_bytes(new_pass_through(stream=True, wants_usage=True), words)
    assert out.count(b"Hi") == 3
    assert BOM not in out.removeprefix(BOM)


def test_one_object_where_a_stream_was_asked_for_becomes_one() -> None:
    pass_through = new_pass_through(stream=True, wants_usage=True)
    lines = passed_bytes(pass_through, [json.dumps(WHOLE).encode()]).decode().split("\n\n")
    first, last = json.loads(lines[0][6:]), json.loads(lines[1][6:])
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"]["content"] == "Hi"
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert lines[2] == "data: [DONE]"


def test_a_stream_where_one_object_was_asked_for_becomes_one() -> None:
    pass_through = new_pass_through(stream=False, wants_usage=False)
    answer = json.loads(passed_bytes(pass_through, [text("Hello.")]))
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Hello."}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"] == USAGE


def test_a_field_that_a_later_chunk_has_as_null_keeps_its_value() -> None:
    pass_through = new_pass_through(stream=False, wants_usage=False)
    chunks = [chunk({"content": "Hello."}, "stop", usage=USAGE), chunk({}, usage=None)]
    answer = json.loads(passed_bytes(pass_through, [b"".join(map(event, chunks)) + DONE]))
    assert answer["usage"] == USAGE


def test_an_event_without_an_end_is_given_up() -> None:
    pass_through = new_pass_through(stream=True, wants_usage=True, max_event=100)
    assert pass_through.feed(b"data: " + b"x" * 200) == b""
    assert pass_through.fault is not None
    assert pass_through.fault.kind == "too_long"


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("shown", [None, "mine"])
@pytest.mark.parametrize("wants_usage", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.usefixtures("each_spelling")
def test_no_form_of_an_answer_raises_and_what_comes_of_it_is_json(
    stream: bool, wants_usage: bool, shown: str | None
) -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "H", "tool_calls": [call], "annotations": [{}]}
    made = chunk(message) | {"usage": USAGE}
    made["choices"][0]["logprobs"] = {"content": [{"token": "H"}], "refusal": None}
    whole = WHOLE | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    frames = [[event(each), event(made), event(chunk({}, "stop")), DONE] for each in each_change(made)]
    for pieces in [*frames, *([json.dumps(each).encode()] for each in each_change(whole))]:
        pass_through = new_pass_through(stream=stream, wants_usage=wants_usage, model_shown=shown)
        said = passed_bytes(pass_through, pieces)
        lines = said.splitlines() if stream else [said] if pass_through.fault is None else []
        for line in lines:
            assert line in (b"", b"data: [DONE]") or isinstance(
                json.loads(line.removeprefix(b"data: ")), dict
            )


@given(st.lists(st.binary(max_size=8), max_size=6), places, st.booleans(), st.booleans())
def test_bytes_that_are_no_utf_8_are_not_passed_on(
    words: list[bytes], places: list[int], stream: bool, whole: bool
) -> None:
    frames = [event(chunk({"content": "@"})).replace(b"@", word) for word in words]
    body = b"".join([*frames, event(chunk({}, "stop")), DONE])
    if whole:
        body = json.dumps(WHOLE).encode().replace(b"Hi", b"".join(words))
    pass_through = new_pass_through(stream=stream, wants_usage=True)
    passed_bytes(pass_through, cut(body, places)).decode("utf-8")
