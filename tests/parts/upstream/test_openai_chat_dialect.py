"""The dialect of Chat Completions servers: every way in which they are known to answer, cut anywhere."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.dialect import Ended, ToolReply
from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    Notice,
    RawItem,
    ReasoningDelta,
    RefusalDelta,
    StepCompleted,
    Stop,
    TextDelta,
    ToolCallRequested,
    TurnEnded,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import (
    HistoryCall,
    HistoryMessage,
    HistoryOutput,
    McpOrigin,
    RawHistoryItem,
    TextPart,
    Tool,
    ToolCall,
)
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.parts.upstream.failures import ErrorReader
from codex_proxy.parts.upstream.openai_chat.chat_dialects import OpenAIChat
from codex_proxy.parts.upstream.stream import End, Head, Message
from codex_proxy.parts.upstream.turn import (
    MAX_REMEMBERED,
    REMEMBERED_SECONDS,
    RememberedForms,
    UpstreamContext,
)
from tests.agents.damage import break_line, in_pieces
from tests.core.well_formed import arguments, violations
from tests.model_server import CASES, DONE, Case, call, chunk, event, stream, text

NAMES = st.sampled_from(sorted(CASES))
SEEDS = st.integers(0, 2**32)
WEATHER = Tool(name="get_weather")
CUT = Failure(
    kind=FaultKind.UPSTREAM_DISCONNECTED, message="The model server's answer ended before it was complete."
)
OK = Head(200)


def dialect(
    remembered: RememberedForms | None = None, *, reasoning_back: str = "", now: float = 1000.0
) -> OpenAIChat:
    numbers = itertools.count()
    context = UpstreamContext(
        errors=ErrorReader(("sk-secret", "upstream.example")),
        refused=(),
        new_id=lambda prefix: f"{prefix}{next(numbers)}",
        now=lambda: now,
        reasoning_back=reasoning_back,
        remembered=remembered or RememberedForms(),
    )
    return OpenAIChat("m", context)


def turn_with_tool(**more: Any) -> Turn:
    history = (HistoryMessage("user", (TextPart("weather?"),)),)
    return Turn(**{"model": "m", "history": history, "tools": (WEATHER,), **more})


STRICT_TURN = turn_with_tool(tools=(Tool(name="get_weather", strict=True),))
"""A turn whose calls have to be whole before the client hears of them."""


def messages_of(case: Case, pieces: Sequence[bytes]) -> Iterator[Message]:
    yield Head(case.status, case.headers)
    yield from pieces
    yield End(CUT if case.cut else None)


def events_of(turn: Turn, messages: Iterable[Message]) -> list[Event]:
    """What the dialect says when these messages come one by one, again for each form of a refused request."""
    made, again = dialect(), list(messages)
    events = list(made.begin(turn).events)
    refused = isinstance(again[0], Head) and again[0].status in (400, 422)
    for message in again * (3 if refused else 1):
        events += made.receive([message]).events
    return events


def summary_of(events: Sequence[Event]) -> dict[str, Any]:
    """Items with their texts, usage and end, in the form of the cases."""
    log = TurnRepair().feed(events)
    assert violations(log, ended=any(isinstance(event, TurnEnded) for event in log)) == []
    texts: dict[str, str] = {}
    kinds: dict[str, tuple[str, str | None]] = {}
    for each in log:
        if isinstance(each, ItemStarted):
            item = each.item
            kinds[item.id] = (type(item).__name__, item.name if isinstance(item, ToolCall) else None)
            texts[item.id] = ""
        elif isinstance(each, TextDelta | ReasoningDelta | RefusalDelta | ArgumentsDelta):
            texts[each.id] += each.text
    items = [[*kinds[id], said] for id, said in texts.items()]
    items += [["ToolCall", ask.name, ask.arguments] for ask in log if isinstance(ask, ToolCallRequested)]
    usage = [each.usage for each in log if isinstance(each, UsageReported)]
    end = log[-1] if isinstance(log[-1], TurnEnded) else None
    stop = str(end.stop) if end else "tool_calls"
    failure = end.failure if end else None
    return {
        "items": items,
        "usage": (usage[-1].input, usage[-1].output) if usage else None,
        "stop": stop,
        "fault": failure.kind.value if failure else None,
        "message": failure.message if failure else "",
    }


def decode_arguments(item: Sequence[Any]) -> list[Any]:
    """An item whose arguments are compared as what they say."""
    kind, name, said = item
    return [kind, name, json.loads(said) if kind == "ToolCall" else said]


def check(case: Case, found: dict[str, Any]) -> None:
    assert case.message in found.pop("message")
    found["items"] = list(map(decode_arguments, found["items"]))
    items = list(map(decode_arguments, case.items))
    assert found == {"items": items, "usage": case.usage, "stop": case.stop, "fault": case.fault}


@pytest.mark.parametrize("turn", [turn_with_tool(), STRICT_TURN], ids=["streamed calls", "held calls"])
@pytest.mark.parametrize("name", CASES)
def test_every_known_form_of_an_answer_becomes_the_expected_events(name: str, turn: Turn) -> None:
    case = CASES[name]
    check(case, summary_of(events_of(turn, messages_of(case, [case.body]))))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("turn", [turn_with_tool(), STRICT_TURN], ids=["streamed calls", "held calls"])
@pytest.mark.parametrize("name", CASES)
def test_an_answer_read_byte_by_byte_has_the_same_events(name: str, turn: Turn) -> None:
    case = CASES[name]
    pieces = [case.body[n : n + 1] for n in range(len(case.body))]
    check(case, summary_of(events_of(turn, messages_of(case, pieces))))


@given(NAMES, SEEDS)
def test_an_answer_read_in_any_pieces_has_the_same_events(name: str, seed: int) -> None:
    case = CASES[name]
    pieces = in_pieces(case.body, random.Random(seed))
    check(case, summary_of(events_of(turn_with_tool(), messages_of(case, pieces))))


@given(NAMES, st.floats(0, 1), SEEDS, st.booleans())
def test_a_cut_answer_is_a_failure_unless_its_finish_reason_had_come(
    name: str, share: float, seed: int, clean: bool
) -> None:
    case = CASES[name]
    cut = case.body[: int(len(case.body) * share)]
    made: list[Message] = [
        Head(case.status, case.headers),
        *in_pieces(cut, random.Random(seed)),
        End(None if clean else CUT),
    ]
    found = summary_of(events_of(turn_with_tool(), made))
    if case.stop == "failed" or b'"finish_reason"' not in cut.replace(b'"finish_reason": null', b""):
        assert found["stop"] == "failed" or b"[DONE]" in cut


@given(NAMES, SEEDS)
def test_broken_bytes_end_the_turn_once_and_raise_nothing(name: str, seed: int) -> None:
    case = CASES[name]
    events = events_of(turn_with_tool(), messages_of(case, [break_line(case.body, random.Random(seed))]))
    assert sum(isinstance(each, TurnEnded) for each in events) <= 1
    summary_of(events)


FIELDS = [
    *(
        "choices",
        "delta",
        "message",
        "content",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
        "index",
        "usage",
    ),
    *(
        "prompt_tokens",
        "error",
        "code",
        "type",
        "finish_reason",
        "reasoning",
        "reasoning_details",
        "text",
        "thinking",
    ),
    *("x_groq", "detail", "loc", "msg"),
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=25,
)


@given(ANYTHING)
def test_no_shape_of_a_chunk_raises(value: Any) -> None:
    events = events_of(
        turn_with_tool(), [OK, event(chunk({}) | {"choices": [value]}), event(value), DONE, End()]
    )
    assert sum(isinstance(each, TurnEnded) for each in events) == 1
    error = Head(400, {})
    assert isinstance(events_of(turn_with_tool(), [error, json.dumps(value).encode(), End()])[-1], TurnEnded)


def test_half_a_surrogate_pair_reaches_the_client_and_breaks_nothing() -> None:
    events = events_of(
        STRICT_TURN, [OK, b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n', DONE, End()]
    )
    assert [each.text for each in events if isinstance(each, TextDelta)] == ["\ud83d"]
    assert events[-1] == TurnEnded(Stop.STOP, "provider")


# --- the connection -------------------------------------------------------------------------------


def test_an_exchange_without_an_answer_fails_with_what_the_transport_says() -> None:
    nowhere = Failure(kind=FaultKind.UPSTREAM_UNREACHABLE, message="nobody is there")
    assert events_of(turn_with_tool(), [End(nowhere)])[-1] == TurnEnded(Stop.FAILED, "provider", nowhere)


def test_silence_behind_the_finish_reason_changes_nothing() -> None:
    late = Failure(kind=FaultKind.UPSTREAM_TIMEOUT, message="silence")
    events = events_of(turn_with_tool(), [OK, event(chunk({"content": "Hi"}, "stop")), End(late)])
    assert events[-1] == TurnEnded(Stop.STOP, "provider")


def test_a_line_without_an_end_is_refused_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codex_proxy.parts.upstream.turn.MAX_LINE_BYTES", 1000)
    for start in (b"data: ", b'{"a":"'):
        end = events_of(turn_with_tool(), [OK, start, b"x" * 600, b"x" * 600, b"x" * 600, End()])[-1]
        assert isinstance(end, TurnEnded)
        assert end.failure is not None
        assert "too long" in end.failure.message


def test_nothing_is_sent_after_the_end_and_the_transport_knows_that_it_is_over() -> None:
    made = dialect()
    made.begin(turn_with_tool())
    made.receive([OK])
    step = made.receive([text("Hi"), event(chunk({"content": "more"})), End()])
    assert isinstance(step.events[-1], TurnEnded)
    assert step.close_stdin
    assert made.receive([event(chunk({"content": "more"})), End()]).events == []
    assert made.eof(Ended()).events == []
    assert made.finished


SCHEMA = msgspec.Raw(b'{"type":"object","title":"city","properties":{"city":{"type":"string"}}}')
TWO_TEXTS = HistoryMessage("user", (TextPart("What"), TextPart("now?")))
REFUSAL: Final[list[Message]] = [Head(400), b'{"error":{"message":"No."}}', End()]


def bodies_around_refusal(turn: Turn) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first body, and the one behind a refusal."""
    made = dialect()
    first = json.loads(made.begin(turn).writes)
    step = made.receive(REFUSAL)
    assert step.events == []
    return first, json.loads(step.writes)


@pytest.mark.parametrize(
    ("field", "turn"),
    [
        ("stream_options", turn_with_tool()),
        ("parallel_tool_calls", turn_with_tool(parallel_tool_calls=False)),
        ("max_tokens", turn_with_tool(max_tokens=7)),
    ],
)
def test_a_field_that_is_refused_is_left_out_for_an_hour(field: str, turn: Turn) -> None:
    remembered = RememberedForms()
    made = dialect(remembered)
    assert field in json.loads(made.begin(turn).writes)
    step = made.receive(REFUSAL)
    assert step.events == []
    taken = json.loads(step.writes)
    assert field not in taken
    assert json.loads(dialect(remembered).begin(turn).writes) != taken, "the upstream has not taken it yet"
    made.receive([OK, text("Hi."), End()])
    assert made.changed == (field,)
    for seconds, is_sent in ((0.0, False), (REMEMBERED_SECONDS - 1, False), (REMEMBERED_SECONDS, True)):
        later = dialect(remembered, now=1000.0 + seconds)
        assert (field in json.loads(later.begin(turn).writes)) is is_sent


def test_a_form_is_remembered_for_the_client_and_model_that_found_it() -> None:
    remembered, turn = RememberedForms(), turn_with_tool(owner="anna")
    made = dialect(remembered)
    made.begin(turn)
    made.receive(REFUSAL)
    made.receive([OK, text("Hi."), End()])
    of_bert = msgspec.structs.replace(turn, owner="bert")
    sent = [json.loads(dialect(remembered).begin(each).writes) for each in (turn, of_bert)]
    assert ["stream_options" in body for body in sent] == [False, True]
    assert remembered.of("anna", "another", 1000.0) == frozenset()


def test_the_number_of_remembered_forms_has_a_limit() -> None:
    remembered = RememberedForms()
    for number in range(MAX_REMEMBERED + 1):
        remembered.remember(str(number), "m", frozenset({"strict"}), 0.0)
    kept = [bool(remembered.of(str(number), "m", 1.0)) for number in (0, 1, MAX_REMEMBERED)]
    assert kept == [False, True, True]


def test_a_form_whose_answer_fails_is_not_remembered() -> None:
    remembered = RememberedForms()
    made = dialect(remembered)
    made.begin(turn_with_tool())
    made.receive(REFUSAL)
    made.receive(
        [OK, event(chunk({"content": "Hi"})), event({"error": {"message": "Out of memory."}}), End()]
    )
    assert remembered.of("", "m", 1000.0) == frozenset()


def test_a_refused_request_is_sent_in_two_other_forms_and_then_fails_with_the_first_refusal() -> None:
    made = dialect()
    bodies = [made.begin(turn_with_tool(output_schema=SCHEMA, max_tokens=7)).writes]
    for status, words in ((422, "first"), (400, "second"), (500, "third")):
        step = made.receive([Head(status), json.dumps({"detail": words}).encode(), End()])
        bodies.append(step.writes)
    assert len(set(bodies[:3])) == 3
    assert bodies[3] == b""
    (end,) = step.events
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert (end.failure.kind, "first" in end.failure.message) == (FaultKind.REJECTED_BY_PROVIDER, True)


@pytest.mark.parametrize("status", [401, 404, 413, 429, 500, 503])
def test_only_a_400_or_422_is_a_refusal_of_the_form(status: int) -> None:
    made = dialect()
    made.begin(turn_with_tool())
    (end,) = made.receive([Head(status), b"{}", End()]).events
    assert isinstance(end, TurnEnded)


def test_a_prompt_that_is_too_long_is_not_sent_in_another_form() -> None:
    made = dialect()
    made.begin(turn_with_tool())
    words = {"error": {"message": "maximum context length is 8192 tokens", "code": "context_length_exceeded"}}
    (end,) = made.receive([Head(400), json.dumps(words).encode(), End()]).events
    assert isinstance(end, TurnEnded)


def test_a_limit_that_another_form_meets_is_reported_as_it_is() -> None:
    made = dialect()
    made.begin(turn_with_tool())
    made.receive(REFUSAL)
    (end,) = made.receive([Head(429, {"retry-after": "7"}), b"{}", End()]).events
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert (end.failure.kind, end.failure.retry_after) == (FaultKind.AGENT_RATE_LIMITED, 7.0)


def test_a_server_without_schemas_gets_one_in_words_and_any_object_as_the_format() -> None:
    first, again = bodies_around_refusal(turn_with_tool(output_schema=SCHEMA))
    assert first["response_format"]["type"] == "json_schema"
    assert again["response_format"] == {"type": "json_object"}
    assert again["messages"][:-1] == first["messages"]
    assert again["messages"][-1]["role"] == "system"
    assert '"city":{"type":"string"}' in again["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("schema", "is_object"),
    [
        ({"type": "object"}, True),
        ({"type": ["object"]}, True),
        ({"properties": {"a": {}}}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, True),
        ({"anyOf": [{"type": "object"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "object"}}}, True),
        ({"allOf": [{}, {"type": "object"}]}, True),
        ({"enum": [{"a": 1}]}, True),
        ({}, False),
        ({"type": "array", "items": {"type": "object"}}, False),
        ({"type": "string"}, False),
        ({"type": ["object", "null"]}, False),
        ({"enum": ["a", "b"]}, False),
        ({"const": 1}, False),
        ({"anyOf": [{"type": "object"}, {"type": "array"}]}, False),
        ({"oneOf": [{"type": "object"}] * 40}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}}, False),
        ({"$ref": "#/$defs/nowhere"}, False),
        ({"$ref": "#"}, False),
        ({"$ref": "https://elsewhere.example/schema"}, False),
        ({"title": "t", "description": "d"}, False),
    ],
)
def test_no_object_is_demanded_where_the_schema_in_words_allows_another_answer(
    schema: dict[str, Any], is_object: bool
) -> None:
    _, again = bodies_around_refusal(turn_with_tool(output_schema=msgspec.Raw(json.dumps(schema).encode())))
    assert again.get("response_format") == ({"type": "json_object"} if is_object else None)


def test_a_schema_that_is_wrong_is_the_clients_affair() -> None:
    words = "Invalid schema for response_format 'city': 'x' is no type."
    refusal: list[Message] = [Head(400), json.dumps({"error": {"message": words}}).encode(), End()]
    [end] = events_of(turn_with_tool(output_schema=SCHEMA), refusal)[1:]
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert words in end.failure.message


def test_a_server_that_refuses_strict_tools_gets_them_without_strict() -> None:
    first, again = bodies_around_refusal(STRICT_TURN)
    assert first["tools"][0]["function"].pop("strict") is True
    assert again == first


def test_a_server_that_takes_no_parts_gets_texts_as_one_string() -> None:
    first, again = bodies_around_refusal(turn_with_tool(history=(TWO_TEXTS,)))
    assert [part["text"] for part in first["messages"][0]["content"]] == ["What", "now?"]
    assert again["messages"] == [{"role": "user", "content": "What\n\nnow?"}]


def test_the_upstreams_wait_is_reported_as_seconds_or_as_a_date() -> None:
    for value, seconds in (("17", 17.0), ("Thu, 01 Jan 1970 00:17:10 GMT", 30.0)):
        end = events_of(turn_with_tool(), [Head(429, {"retry-after": value}), b"{}", End()])[-1]
        assert isinstance(end, TurnEnded)
        assert end.failure is not None
        assert end.failure.retry_after == seconds


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("litellm_")])
def test_a_status_in_the_place_of_a_code_is_reported_as_no_code(name: str) -> None:
    case = CASES[name]
    end = events_of(turn_with_tool(), messages_of(case, [case.body]))[-1]
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert end.failure.code is None


def test_secrets_and_addresses_are_cut_out_of_the_upstreams_words() -> None:
    words = "sk-secret at upstream.example, see https://elsewhere.example/x?key=1"
    refusals: list[list[Message]] = [
        [Head(400), json.dumps({"error": {"message": words}}).encode(), End()],
        [OK, event({"error": {"message": words}}), End()],
    ]
    for messages in refusals:
        end = events_of(turn_with_tool(), messages)[-1]
        assert isinstance(end, TurnEnded)
        assert end.failure is not None
        assert not {"sk-secret", "example"} & set(end.failure.message.replace(".", " ").split())


# --- tools ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [turn_with_tool(), STRICT_TURN], ids=["streamed calls", "held calls"])
@pytest.mark.parametrize("pieces", [[""], [" ", "\n"], ["nu", "ll"], [" null "]])
def test_arguments_that_are_none_are_an_empty_object(pieces: Sequence[str], turn: Turn) -> None:
    body = stream(*(call("get_weather", piece) for piece in pieces), finish="tool_calls")
    found = summary_of(events_of(turn, [OK, body, End()]))
    assert found["items"] == [["ToolCall", "get_weather", "{}"]]


@pytest.mark.parametrize("finish", ["length", "content_filter", "abort"])
@pytest.mark.parametrize(
    ("arguments", "status"),
    [('{"city":"Ro', "incomplete"), ("", "incomplete"), ('{"city":"R"}', "completed")],
)
def test_a_call_whose_arguments_are_cut_off_is_incomplete(arguments: str, status: str, finish: str) -> None:
    body = stream({"content": "Hi"}, call("get_weather", arguments), finish=finish)
    ends = [each for each in events_of(turn_with_tool(), [OK, body, End()]) if isinstance(each, ItemEnded)]
    assert [each.status for each in ends] == ["completed", status]


def test_arguments_are_streamed_where_nobody_has_to_look_at_them_first() -> None:
    made = dialect()
    made.begin(turn_with_tool())
    first = {"index": 0, "id": "call_a", "function": {"name": "get_weather", "arguments": '{"ci'}}
    got = made.receive([OK, event(chunk({"tool_calls": [first]}))]).events
    assert list(arguments(TurnRepair().feed(got)).values()) == ['{"ci']


MCP = turn_with_tool(tools=(WEATHER, Tool(name="files__read", mcp=McpOrigin("files", "read"))))


def test_a_call_of_the_clients_streams_beside_tools_that_run_here() -> None:
    made = dialect()
    made.begin(MCP)
    for place, (name, streams) in enumerate((("get_weather", True), ("files__read", False))):
        function = {"name": name, "arguments": '{"ci'}
        got = made.receive(
            [OK, event(chunk({"tool_calls": [{"index": place, "id": name, "function": function}]}))]
        )
        assert ('{"ci' in arguments(TurnRepair().feed(got.events)).values()) == streams


def test_a_turn_goes_on_with_the_outputs_of_its_calls() -> None:
    made = dialect()
    made.begin(MCP)
    step = made.receive(
        [OK, stream({"content": "Let me see."}, call("files__read", "{}"), finish="tool_calls"), End()]
    )
    [ask] = [each for each in step.events if isinstance(each, ToolCallRequested)]
    assert isinstance(step.events[-1], StepCompleted)
    assert not step.writes
    step = made.answer(ask.request_id, ToolReply((TextPart("hello.txt"),)))
    said = json.loads(step.writes)["messages"][1:]
    assert said == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "files__read", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "hello.txt"},
    ]
    done = made.receive([OK, text("It is hello.txt."), End()]).events
    assert done[-1] == TurnEnded(Stop.STOP, "provider")
    usage = [each for each in done if isinstance(each, UsageReported)]
    assert usage[0].usage.input == 22, "of both requests"


THOUGHT = {"reasoning_content": "Hm."}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_with_its_calls_where_the_operator_says_so(field: str) -> None:
    for name, expected in (("", None), (field, "Hm.")):
        made = dialect(reasoning_back=name)
        made.begin(MCP)
        step = made.receive([OK, stream(THOUGHT, call("files__read", "{}"), finish="tool_calls"), End()])
        raw = [json.loads(each.json) for each in step.events if isinstance(each, RawItem)]
        assert [item["type"] for item in raw] == [*(["reasoning"] if name else []), "function_call"]
        asked = made.answer("call_a", ToolReply((TextPart("x"),)))
        made_call = json.loads(asked.writes)["messages"][1]
        assert made_call.get(field) == expected


def test_reasoning_does_not_go_back_once_the_user_has_said_something_new() -> None:
    content = [{"type": "reasoning_text", "text": "Hm."}]
    reasoning = RawHistoryItem(json.dumps({"type": "reasoning", "summary": [], "content": content}).encode())
    called = (HistoryCall("call_a", "files__read", "{}"), HistoryOutput("call_a", (TextPart("x"),)))
    for later, expected in (((), "Hm."), ((TWO_TEXTS,), None)):
        made = dialect(reasoning_back="reasoning_content")
        step = made.begin(turn_with_tool(history=(TWO_TEXTS, reasoning, *called, *later)))
        assert json.loads(step.writes)["messages"][1].get("reasoning_content") == expected


def test_what_the_model_has_to_see_again_is_reported_as_items() -> None:
    made = dialect()
    made.begin(MCP)
    events = made.receive(
        [OK, stream({"content": "Hm."}, call("files__read", "{}"), finish="tool_calls")]
    ).events
    events += made.answer("call_a", ToolReply((TextPart("x"),))).events
    raw = [json.loads(each.json) for each in events if isinstance(each, RawItem)]
    assert [item["type"] for item in raw] == ["message", "function_call", "function_call_output"]
    assert raw[1]["call_id"] == raw[2]["call_id"] == "call_a"


@pytest.mark.parametrize(
    ("name", "given", "code", "words"),
    [
        ("nothing_like_it", "{}", "unoffered_call", "is not a registered MCP tool"),
        ("files__read", '{"a":', "unreadable_arguments", "not JSON"),
        pytest.param("files__read", "[" * 100_000, "unreadable_arguments", "not JSON", id="nested too deep"),
    ],
)
def test_the_model_gets_an_error_for_a_call_that_cannot_be_made(
    name: str, given: str, code: str, words: str
) -> None:
    made = dialect()
    made.begin(MCP)
    step = made.receive([OK, stream(call(name, given), finish="tool_calls"), End()])
    assert [each.code for each in step.events if isinstance(each, Notice)] == [code]
    assert not any(isinstance(each, ToolCallRequested) for each in step.events)
    assert words in json.loads(step.writes)["messages"][-1]["content"]


def test_a_custom_tool_travels_as_a_function_with_one_string() -> None:
    made = dialect()
    tools = (Tool(name="patch", kind="custom"), Tool(name="get_weather", strict=True))
    body = json.loads(made.begin(turn_with_tool(tools=tools, parallel_tool_calls=False)).writes)
    assert body["tools"][0]["function"]["parameters"]["required"] == ["input"]
    events = made.receive([OK, stream(call("patch", '{"input":"*** x"}'), finish="tool_calls"), End()]).events
    [ask] = [each for each in events if isinstance(each, ToolCallRequested)]
    assert (ask.kind, ask.arguments) == ("custom", "*** x")


PATCH = Tool(name="patch", kind="custom")


@pytest.mark.parametrize(
    "tools", [(PATCH,), (PATCH, Tool(name="files__read", mcp=McpOrigin("files", "read")))]
)
@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (['{"in', 'put":"+a', "\\", 'n+b"', "}"], ["+a", "\n+b"]),
        (["*** x", "y"], ["*** xy"]),
        ([""], []),
    ],
)
def test_the_input_of_a_custom_tool_streams_out_of_its_arguments(
    pieces: list[str], said: list[str], tools: tuple[Tool, ...]
) -> None:
    made = dialect()
    made.begin(turn_with_tool(tools=tools))
    first, *others = pieces
    further = [{"tool_calls": [{"index": 0, "function": {"arguments": each}}]} for each in others]
    received: list[Message] = [OK, *(event(chunk(delta)) for delta in (call("patch", first), *further))]
    events = [each for data in received for each in made.receive([data]).events]
    told = [each.text for each in events if isinstance(each, ArgumentsDelta)]
    assert told == (said if len(pieces) > 2 else [])
    last = made.receive([event(chunk({}, "tool_calls")), DONE, End()]).events
    log = TurnRepair().feed([*events, *last])
    assert violations(log, ended=made.finished) == []
    [item] = [each.item for each in log if isinstance(each, ItemStarted)]
    assert isinstance(item, ToolCall)
    assert (item.kind, item.name) == ("custom", "patch")
    assert [each.text for each in log if isinstance(each, ArgumentsDelta)] == said
    asks = [each.arguments for each in log if isinstance(each, ToolCallRequested)]
    assert asks == ([] if len(tools) == 1 else ["".join(said)])
