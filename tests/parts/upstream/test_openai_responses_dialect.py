"""The dialect of Responses servers: calls are told as they arrive, whatever an upstream leaves out, cut anywhere."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.shared.conversions import object_text
from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    RawItem,
    RefusalDelta,
    StepCompleted,
    Stop,
    TextDelta,
    ToolCallRequested,
    TurnEnded,
)
from codex_proxy.core.items import HistoryMessage, McpOrigin, TextPart, Tool, ToolCall
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.parts.upstream.failures import ErrorReader
from codex_proxy.parts.upstream.openai_responses.responses_dialect import OpenAIResponses
from codex_proxy.parts.upstream.stream import End, Head, Message
from codex_proxy.parts.upstream.turn import UpstreamContext
from codex_proxy.tools.policy import ToolPolicy
from tests.agents.damage import break_line, in_pieces
from tests.core.well_formed import violations

WEATHER: Final = Tool(name="get_weather")
PATCH: Final = Tool(name="apply_patch", kind="custom")
OK: Final = Head(200)
SEEDS = st.integers(0, 2**32)
Form = Literal["openai", "bare", "placed", "done only", "last only"]
FORMS: Final[tuple[Form, ...]] = ("openai", "bare", "placed", "done only", "last only")
"""How much a server says of an item: all of it; no indexes and no items in the last event (llama.cpp); indexes and no
ids in deltas; no beginnings and no deltas; nothing before the last event."""


def dialect(refused: set[str] | None = None) -> OpenAIResponses:
    numbers = itertools.count()
    context = UpstreamContext(
        errors=ErrorReader(()),
        refused=set() if refused is None else refused,
        new_id=lambda prefix: f"{prefix}{next(numbers)}",
        now=lambda: 1000.0,
    )
    return OpenAIResponses("m", context)


def turn_with_tool(**more: Any) -> Turn:
    history = (HistoryMessage("user", (TextPart("weather?"),)),)
    return Turn(**{"model": "m", "history": history, "tools": (WEATHER, PATCH), **more})


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


class UpstreamCall:
    """A call as an upstream tells it: `pieces` are its text."""

    def __init__(self, number: int, name: str, pieces: Sequence[str]) -> None:
        self.custom = name == PATCH.name
        self.pieces = pieces
        self.field = "input" if self.custom else "arguments"
        self.item: dict[str, Any] = {
            "type": "custom_tool_call" if self.custom else "function_call",
            "id": f"fc_{number}",
            "call_id": f"call_{number}",
            "name": name,
            self.field: "".join(pieces),
            "status": "completed",
        }

    def frames(self, place: int, form: Form) -> list[bytes]:
        """Its events, the ends of which may be mixed with those of other calls."""
        if form == "last only":
            return []
        index = {} if form == "bare" else {"output_index": place}
        done = event("response.output_item.done", item=self.item, **index)
        if form == "done only":
            return [done]
        at = index if form == "placed" else {"item_id": self.item["id"], **index}
        kind = "custom_tool_call_input" if self.custom else "function_call_arguments"
        begun = {**self.item, self.field: "", "status": "in_progress"}
        return [
            event("response.output_item.added", item=begun, **index),
            *(event(f"response.{kind}.delta", delta=piece, **at) for piece in self.pieces),
            event(f"response.{kind}.done", **{self.field: self.item[self.field]}, **at),
            done,
        ]


def answer_with(calls: Sequence[UpstreamCall], form: Form, chance: random.Random) -> bytes:
    """A whole stream in which the events of the calls are interleaved by chance, and begin in their order."""
    queues = [call.frames(place, form) for place, call in enumerate(calls)]
    frames, begun = [], 1
    while any(queues):
        place = chance.choice([n for n, queue in enumerate(queues[:begun]) if queue] or [begun])
        begun = max(begun, place + 1)
        frames.append(queues[place].pop(0))
        if begun < len(queues) and (chance.random() < 0.5 or not any(queues[:begun])):
            frames.append(queues[begun].pop(0))
            begun += 1
    output = [] if form == "bare" else [call.item for call in calls]
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": output}
    return b"".join([*frames, event("response.completed", response=response)])


def logged_events(
    turn: Turn, messages: Iterable[Message], made: OpenAIResponses | None = None
) -> list[Event]:
    """What reaches the log when these messages come one by one."""
    made = made or dialect()
    policy, repair = ToolPolicy(turn), TurnRepair()
    log = repair.feed(policy.feed(made.begin(turn).events).events)
    for message in messages:
        log += repair.feed(policy.feed(made.receive([message]).events).events)
    assert violations(log, ended=any(isinstance(each, TurnEnded) for each in log)) == []
    return log


def stop_of(log: Sequence[Event]) -> str:
    """Why the turn ended; empty while it goes on."""
    return log[-1].stop if isinstance(log[-1], TurnEnded) else ""


def calls_in(log: Iterable[Event]) -> list[tuple[str, str, str, str]]:
    """Call id, kind, name and text of each call, in the order in which they began."""
    calls: dict[str, tuple[str, str, str, str]] = {}
    for each in log:
        if isinstance(each, ItemStarted) and isinstance(each.item, ToolCall):
            calls[each.item.id] = (each.item.call_id, each.item.kind, each.item.name, "")
        elif isinstance(each, ArgumentsDelta):
            *head, said = calls[each.id]
            calls[each.id] = (head[0], head[1], head[2], said + each.text)
    return list(calls.values())


def call_facts(calls: Sequence[UpstreamCall]) -> list[tuple[Any, ...]]:
    return [
        (
            call.item["call_id"],
            "custom" if call.custom else "function",
            call.item["name"],
            "".join(call.pieces) if call.custom else object_text("".join(call.pieces)),
        )
        for call in calls
    ]


PIECES = st.lists(st.text('ab {}"\\é\n', min_size=1, max_size=4), min_size=1, max_size=4)
CALLS = st.lists(st.tuples(st.sampled_from([WEATHER.name, PATCH.name]), PIECES), min_size=1, max_size=4).map(
    lambda made: [UpstreamCall(number, name, pieces) for number, (name, pieces) in enumerate(made)]
)


@given(CALLS, st.sampled_from(FORMS), SEEDS)
def test_interleaved_calls_keep_their_order_ids_and_texts_however_they_are_reported_and_cut(
    calls: list[UpstreamCall], form: Form, seed: int
) -> None:
    chance = random.Random(seed)
    body = answer_with(calls, form, chance)
    log = logged_events(turn_with_tool(), [OK, *in_pieces(body, chance), End()])
    assert calls_in(log) == call_facts(calls)
    assert stop_of(log) == Stop.TOOL_CALLS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pieces", [[" ", "\n"], ["nu", "ll"], ["null"]])
def test_arguments_that_are_none_are_an_empty_object(pieces: Sequence[str], form: Form) -> None:
    body = answer_with([UpstreamCall(0, WEATHER.name, pieces)], form, random.Random(0))
    ((*_, said),) = calls_in(logged_events(turn_with_tool(), [OK, body, End()]))
    assert said == "{}"


@given(CALLS, SEEDS, st.floats(0, 1))
def test_what_is_said_of_a_call_before_the_cut_is_the_beginning_of_it_and_the_turn_fails(
    calls: list[UpstreamCall], seed: int, share: float
) -> None:
    body = answer_with(calls, "openai", random.Random(seed))
    kept = body[: int(len(body) * share)]
    log = logged_events(turn_with_tool(), [OK, kept, End()])
    for (*head, said), (*whole_head, whole) in zip(calls_in(log), call_facts(calls), strict=False):
        assert head == whole_head
        assert whole.startswith(said)
    lacks_nothing = kept.rstrip() == body.rstrip()  # but perhaps the empty line behind the last event
    assert stop_of(log) == (Stop.TOOL_CALLS if lacks_nothing else Stop.FAILED)


@given(CALLS, st.sampled_from(FORMS), SEEDS)
def test_broken_bytes_end_the_turn_at_most_once(calls: list[UpstreamCall], form: Form, seed: int) -> None:
    chance = random.Random(seed)
    log = logged_events(turn_with_tool(), [OK, break_line(answer_with(calls, form, chance), chance), End()])
    assert sum(isinstance(each, TurnEnded) for each in log) <= 1


FIELDS = (
    "type",
    "item",
    "item_id",
    "output_index",
    "delta",
    "id",
    "call_id",
    "name",
    "arguments",
    "input",
    "content",
)
KINDS = (
    *("response.output_item.added", "response.output_item.done", "response.function_call_arguments.delta"),
    *("response.custom_tool_call_input.delta", "function_call", "custom_tool_call", "message", "get_weather"),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=20,
)


@given(st.lists(ANYTHING, max_size=5), ANYTHING)
def test_no_shape_of_an_event_raises(values: list[Any], output: Any) -> None:
    frames = [f"data: {json.dumps(value)}\n\n".encode() for value in values]
    response = {"object": "response", "status": "completed", "output": output}
    log = logged_events(
        turn_with_tool(), [OK, *frames, event("response.completed", response=response), End()]
    )
    assert sum(isinstance(each, TurnEnded) for each in log) <= 1


# --- one at a time --------------------------------------------------------------------------------


def test_a_piece_of_arguments_is_sent_when_it_arrives_and_not_at_the_end() -> None:
    made = dialect()
    made.begin(turn_with_tool())
    for place, name in enumerate((WEATHER.name, PATCH.name)):
        call = UpstreamCall(place, name, ['{"ci', 'ty":1}'])
        begun, first, *_ = call.frames(place, "openai")
        opened, said = made.receive([OK, begun, first]).events
        assert isinstance(opened, ItemStarted)
        assert isinstance(opened.item, ToolCall)
        assert (opened.item.call_id, opened.item.name) == (call.item["call_id"], name)
        assert said == ArgumentsDelta(call.item["id"], '{"ci')


@pytest.mark.parametrize(
    "turn",
    [
        turn_with_tool(tools=(Tool(name=WEATHER.name, strict=True),)),
        turn_with_tool(tools=(Tool(name=WEATHER.name, mcp=McpOrigin("sky", "weather")),)),
        turn_with_tool(parallel_tool_calls=False),
    ],
    ids=["strict", "run by this server", "one at a time"],
)
def test_a_call_that_this_server_may_answer_is_sent_to_no_client_before_it_is_complete(turn: Turn) -> None:
    made = dialect()
    made.begin(turn)
    body = answer_with([UpstreamCall(1, WEATHER.name, ["{", "}"])], "openai", random.Random(1))
    events = made.receive([OK, body, End()]).events
    assert not any(isinstance(each, ItemStarted | ArgumentsDelta) for each in events)
    [ask] = [each for each in events if isinstance(each, ToolCallRequested)]
    assert (ask.arguments, ask.item_reported) == ("{}", False)


def test_a_call_to_a_tool_that_is_not_offered_is_answered_here_and_those_beside_it_are_the_clients() -> None:
    calls = [UpstreamCall(1, "nonsense", ["{}"]), UpstreamCall(2, WEATHER.name, ["{}"])]
    log = logged_events(turn_with_tool(), [OK, answer_with(calls, "openai", random.Random(1)), End()])
    assert [call_id for call_id, *_ in calls_in(log)] == ["call_2"]
    outputs = [json.loads(each.json) for each in log if isinstance(each, RawItem) and "output" in each.type]
    assert [each["call_id"] for each in outputs] == ["call_1"]
    assert "not a registered MCP tool" in outputs[0]["output"]
    assert stop_of(log) == Stop.TOOL_CALLS


def test_a_call_without_a_name_is_no_item_of_the_answer() -> None:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "arguments": "{}"}
    response = {"object": "response", "status": "completed", "output": [item]}
    log = logged_events(turn_with_tool(), [OK, event("response.completed", response=response), End()])
    assert stop_of(log) == Stop.STOP
    assert not any(isinstance(each, RawItem | ToolCallRequested) for each in log)


@pytest.mark.parametrize("form", ["openai", "done only", "last only"])
def test_a_call_id_with_half_a_surrogate_pair_is_replaced(form: Form) -> None:
    call = UpstreamCall(1, WEATHER.name, ["{}"])
    call.item["call_id"] = "call_\ud800"
    log = logged_events(turn_with_tool(), [OK, answer_with([call], form, random.Random(0)), End()])
    [(call_id, *_)] = calls_in(log)
    [raw] = [each for each in log if isinstance(each, RawItem)]
    assert json.loads(raw.json)["call_id"] == call_id
    assert call_id.isascii()
    assert call_id


def test_a_call_that_the_length_cuts_off_is_incomplete_and_the_answer_too() -> None:
    begun, first, *_ = UpstreamCall(1, WEATHER.name, ['{"ci', "ty"]).frames(0, "openai")
    response = {
        "object": "response",
        "status": "incomplete",
        "output": [],
        "incomplete_details": {"reason": "max_output_tokens"},
    }
    log = logged_events(
        turn_with_tool(), [OK, begun, first, event("response.incomplete", response=response), End()]
    )
    assert [each for each in log if isinstance(each, ItemEnded)] == [ItemEnded("fc_1", "incomplete")]
    assert stop_of(log) == Stop.LENGTH


@pytest.mark.parametrize("form", FORMS)
def test_an_input_streams_from_the_arguments_of_the_function_that_a_custom_tool_travels_as(
    form: Form,
) -> None:
    call = UpstreamCall(1, WEATHER.name, ['{"input":', '"+x', "\\n", '+y"}'])
    call.item["name"] = PATCH.name
    made = dialect({"custom"})
    log = logged_events(turn_with_tool(), [OK, answer_with([call], form, random.Random(1)), End()], made)
    assert calls_in(log) == [("call_1", "custom", PATCH.name, "+x\n+y")]
    pieces = [each.text for each in log if isinstance(each, ArgumentsDelta)]
    assert pieces == (["+x\n+y"] if form in ("done only", "last only") else ["+x", "\n", "+y"])


def test_an_input_in_another_form_is_sent_when_it_is_complete() -> None:
    call = UpstreamCall(1, WEATHER.name, ["*** Beg", "in"])
    call.item["name"] = PATCH.name
    log = logged_events(
        turn_with_tool(), [OK, answer_with([call], "openai", random.Random(1)), End()], dialect({"custom"})
    )
    assert calls_in(log) == [("call_1", "custom", PATCH.name, "*** Begin")]


BARE: Final[dict[str, Any]] = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
PART: Final = {"type": "output_text", "text": "Hello."}
AT: Final[dict[str, Any]] = {"item_id": "msg_1", "output_index": 0, "content_index": 0}


def message_done(item: dict[str, Any]) -> bytes:
    return event("response.output_item.done", item=item, output_index=0)


@pytest.mark.parametrize(
    "said",
    [
        event("response.content_part.done", part=PART, **AT) + message_done(BARE),
        event("response.output_text.delta", delta="Hel", **AT)
        + event("response.content_part.done", part=PART, **AT),
        event("response.content_part.done", part={"type": "refusal", "refusal": "Hello."}, **AT),
        message_done(BARE | {"content": "Hello."}),
        message_done({"id": "msg_1", "role": "assistant", "content": [PART]}),
        message_done({"role": "assistant", "content": "Hello."}),
    ],
)
def test_a_text_that_is_in_one_place_alone_is_not_lost(said: bytes) -> None:
    begun = event("response.output_item.added", item=BARE, output_index=0)
    end = event("response.completed", response={"object": "response", "status": "completed", "output": []})
    log = logged_events(turn_with_tool(), [OK, begun + said + end, End()])
    assert "".join(each.text for each in log if isinstance(each, TextDelta | RefusalDelta)) == "Hello."
    (raw,) = [json.loads(each.json) for each in log if isinstance(each, RawItem)]
    assert [part.get("text") or part["refusal"] for part in raw["content"]] == ["Hello."]


def test_text_before_a_call_and_the_end_of_the_step_stay_where_they_are() -> None:
    message: dict[str, Any] = {"type": "message", "id": "msg_1", "content": []}
    whole = {**message, "content": [{"type": "output_text", "text": "Hm."}]}
    said = [
        event("response.output_item.added", item=message, output_index=0),
        event("response.output_text.delta", item_id="msg_1", output_index=0, delta="Hm."),
        event("response.output_item.done", item=whole, output_index=0),
    ]
    call = answer_with([UpstreamCall(1, WEATHER.name, ["{}"])], "openai", random.Random(1)).replace(
        b'"output_index": 0', b'"output_index": 1'
    )
    kinds = [type(each) for each in logged_events(turn_with_tool(), [OK, *said, call, End()])]
    order = [kinds.index(kind) for kind in (TextDelta, ArgumentsDelta, StepCompleted, TurnEnded)]
    assert order == sorted(order)
