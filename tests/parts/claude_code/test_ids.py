"""Claude Code, or the provider behind it, shares ids between messages, blocks and calls, gives them again, renews them
or leaves them out: the client gets each text and each call once, and each call its own output.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pytest

from codex_proxy.agents.shared.conversions import call_ids_in
from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    TextDelta,
    ToolCallRequested,
)
from codex_proxy.core.items import (
    Activity,
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    RawHistoryItem,
    Reasoning,
    TextPart,
    Tool,
    ToolCall,
)
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Mode, Turn
from codex_proxy.parts.claude_code.claude_dialect import ClaudeCodeTurn
from tests.core.well_formed import violations

Block = tuple[str, str]
"""The type of a block, and what it says: a tool's block the argument of the call."""
CallId = Callable[[int, int, int, str], str | None]
"""The id in a turn, a step, at a place, in a line of this kind."""
CALL_IDS: Final[dict[str, CallId]] = {
    "own": lambda turn, step, place, line: f"t{turn}-{step}-{place}",
    "anew in each turn": lambda turn, step, place, line: f"t{step}-{place}",
    "anew in each step": lambda turn, step, place, line: f"t{place}",
    "renewed at the end": lambda turn, step, place, line: f"t{turn}-{step}-{place}{'e' * (line == 'whole')}",
    "renewed in each line": lambda turn, step, place, line: f"t{turn}-{step}-{place}-{line}",
    "shared": lambda turn, step, place, line: "t",
    "empty": lambda turn, step, place, line: "",
    "missing": lambda turn, step, place, line: None,
    "missing in requests": lambda turn, step, place, line: None if line == "request" else f"t{step}-{place}",
}
MESSAGE_IDS: Final[dict[str, Callable[[int, int, str], str]]] = {
    "own": lambda turn, step, line: f"m{turn}-{step}",
    "shared": lambda turn, step, line: "m",
    "missing": lambda turn, step, line: "",
    "renewed at the end": lambda turn, step, line: f"m{turn}-{step}-{line}",
}
INDEXES: Final[dict[str, Callable[[int], int]]] = {"own": lambda place: place, "all 0": lambda place: 0}
LINES: Final = ("all", "no stops", "no whole blocks")
ORDERS: Final = ("at once", "after the message", "backwards")
STEPS: Final[tuple[tuple[Block, ...], ...]] = (
    (("thinking", "Hm, "), ("text", "I ask."), ("get_weather", "Oslo")),
    (("get_weather", "Oslo"), ("get_weather", "Rome"), ("add", "Oslo")),
    (("get_weather", "Rome"), ("get_weather", "Rome")),
    (("text", "I ask."), ("add", "")),
    (("text", "It is "), ("text", "cold.")),
)
TOOLS: Final = tuple(Tool(name, "", msgspec.Raw(b'{"type":"object"}')) for name in ("get_weather", "add"))


class Talk:
    """A session with the program."""

    def __init__(self, mode: Mode = "model", *, parallel: bool = True) -> None:
        self.dialect = ClaudeCodeTurn()
        self.repair = TurnRepair()
        self.history: list[HistoryItem] = [_said("Hi")]
        self.mode: Mode = mode
        self.parallel = parallel
        self.log: list[Event] = []
        self.writes: list[dict[str, Any]] = []
        self._take(self.dialect.begin(self.turn))
        initialized = {"subtype": "success", "request_id": "initialize", "response": {}}
        self.tell({"type": "control_response", "response": initialized})
        self.request("tools/list", "list", {})

    @property
    def turn(self) -> Turn:
        history, parallel = tuple(self.history), self.parallel
        return Turn(model="", history=history, mode=self.mode, tools=TOOLS, parallel_tool_calls=parallel)

    def _take(self, step: Any) -> None:
        self.log += self.repair.feed(step.events)
        self.writes += map(json.loads, step.writes.splitlines())

    def tell(self, *lines: dict[str, Any]) -> None:
        self._take(self.dialect.receive([json.dumps(line).encode() for line in lines]))

    def stream(self, type: str, **fields: Any) -> None:
        self.tell({"type": "stream_event", "event": {"type": type, **fields}})

    def request(self, method: str, id: str, params: dict[str, Any]) -> None:
        message = {"method": method, "jsonrpc": "2.0", "id": 1, "params": params}
        request = {"subtype": "mcp_message", "server_name": "client", "message": message}
        self.tell({"type": "control_request", "request_id": id, "request": request})

    def resume(self, *items: HistoryItem) -> None:
        self.history += items
        self.repair = TurnRepair()
        self._take(self.dialect.resume(self.turn, items))

    @property
    def calls(self) -> list[ToolCallRequested]:
        return [event for event in self.log if isinstance(event, ToolCallRequested)]

    def give_outputs(self, calls: Sequence[ToolCallRequested]) -> None:
        self.history += [HistoryCall(call.call_id, call.name, call.arguments) for call in calls]
        self.resume(*(HistoryOutput(call.call_id, (TextPart(_output(call)),)) for call in calls))

    def answers(self) -> dict[str, list[str]]:
        """The outputs that the program got, by its request."""
        found: dict[str, list[str]] = {}
        for line in self.writes:
            response = line.get("response", {})
            result = response.get("response", {}).get("mcp_response", {}).get("result", {})
            texts = [part["text"] for part in result.get("content", ())]
            found.setdefault(response.get("request_id", ""), []).extend(texts)
        return found


def _said(text: str) -> HistoryMessage:
    return HistoryMessage("user", (TextPart(text),))


def _output(call: ToolCallRequested) -> str:
    return f"{call.name} of {json.loads(call.arguments).get('city', '')}"


def _with_id(block: dict[str, Any], id: str | None) -> dict[str, Any]:
    return block if id is None else block | {"id": id}


def _blocks(
    blocks: Sequence[Block], id_of: Callable[[int, str], str | None], line: str
) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for place, (kind, text) in enumerate(blocks):
        if kind in ("text", "thinking"):
            made.append({"type": kind, kind: "" if line == "stream" else text})
        else:
            arguments = {} if line == "stream" or not text else {"city": text}
            call = {"type": "tool_use", "name": f"mcp__client__{kind}", "input": arguments}
            made.append(_with_id(call, id_of(place, line)))
    return made


def _deltas(kind: str, text: str) -> Iterator[dict[str, Any]]:
    types = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}
    type, field = types.get(kind, ("input_json_delta", "partial_json"))
    said = text if kind in types else json.dumps({"city": text}) if text else ""
    for piece in filter(None, (said[:3], said[3:])):
        yield {"type": type, field: piece}


def _tell_step(
    talk: Talk, turn: int, step: int, call_ids: str, message_ids: str, indexes: str, lines: str, order: str
) -> None:
    """Tells what the program says in a step, and gives the client's outputs."""

    def id_of(place: int, line: str) -> str | None:
        return CALL_IDS[call_ids](turn, step, place, line)

    blocks = STEPS[step]
    head, late = (MESSAGE_IDS[message_ids](turn, step, line) for line in ("stream", "whole"))
    talk.stream("message_start", message={"id": head, "model": "opus"})
    wholes = _blocks(blocks, id_of, "whole")
    requests: list[tuple[str, dict[str, Any]]] = []
    for place, begun in enumerate(_blocks(blocks, id_of, "stream")):
        kind, text = blocks[place]
        index = INDEXES[indexes](place)
        talk.stream("content_block_start", index=index, content_block=begun)
        for delta in _deltas(kind, text):
            talk.stream("content_block_delta", index=index, delta=delta)
        if lines != "no whole blocks":
            message = {"id": late, "model": "opus", "content": [wholes[place]], "stop_reason": None}
            talk.tell({"type": "assistant", "message": message})
        if lines != "no stops":
            talk.stream("content_block_stop", index=index)
        if begun["type"] == "tool_use":
            meta = {} if (id := id_of(place, "request")) is None else {"claudecode/toolUseId": id}
            params = {"name": kind, "arguments": wholes[place]["input"], "_meta": meta}
            requests.append((f"{turn}-{step}-{place}", params))
            if order == "at once":
                talk.request("tools/call", *requests[-1])
    before = len(talk.calls)
    talk.stream("message_delta", delta={"stop_reason": "tool_use" if requests else "end_turn"})
    talk.stream("message_stop")
    if order != "at once":
        for name, params in requests if order == "after the message" else reversed(requests):
            talk.request("tools/call", name, params)
    asked = talk.calls[before:]
    known = [(kind, text) for kind, text in blocks if kind not in ("text", "thinking")]
    assert [(call.name, json.loads(call.arguments).get("city", "")) for call in asked] == known
    if requests:
        assert talk.dialect.can_resume
        talk.give_outputs(asked)
        answers = talk.answers()
        for name, params in requests:
            assert answers[name] == [f"{params['name']} of {params['arguments'].get('city', '')}"]
        results = [
            {"type": "tool_result", "tool_use_id": id_of(place, "result"), "content": "x"} for place in (0, 1)
        ]
        talk.tell({"type": "user", "message": {"role": "user", "content": results}})


def _shown(log: Sequence[Event]) -> list[Block]:
    """The texts and calls that the client gets."""
    items = {event.item.id: event.item for event in log if isinstance(event, ItemStarted)}
    texts = dict.fromkeys(items, "")
    for event in log:
        if isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta):
            texts[event.id] += event.text
    shown = []
    for id, item in items.items():
        if isinstance(item, ToolCall):
            shown.append((item.name, json.loads(texts[id] or "{}").get("city", "")))
        else:
            shown.append(("thinking" if isinstance(item, Reasoning) else "text", texts[id]))
    return shown


CASES: Final = [
    (call_ids, message_ids, "own", "all", "at once")
    for call_ids, message_ids in itertools.product(CALL_IDS, MESSAGE_IDS)
] + [
    (call_ids, "own", indexes, lines, order)
    for call_ids, indexes, lines, order in itertools.product(CALL_IDS, INDEXES, LINES, ORDERS)
]


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(("call_ids", "message_ids", "indexes", "lines", "order"), CASES)
def test_each_text_and_call_comes_once_and_each_call_gets_its_output(
    call_ids: str, message_ids: str, indexes: str, lines: str, order: str
) -> None:
    talk = Talk()
    for turn in range(2):
        if turn:
            talk.resume(_said("And now?"))
        for step in range(len(STEPS)):
            _tell_step(talk, turn, step, call_ids, message_ids, indexes, lines, order)
        talk.tell({"type": "result", "subtype": "success", "stop_reason": "end_turn", "result": ""})
        assert talk.dialect.can_resume
    assert len({call.call_id for call in talk.calls}) == len(talk.calls)
    assert all(call.call_id for call in talk.calls)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("indexes", INDEXES)
@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("message_ids", MESSAGE_IDS)
@pytest.mark.parametrize("call_ids", CALL_IDS)
def test_a_step_is_shown_as_it_was_said(call_ids: str, message_ids: str, lines: str, indexes: str) -> None:
    for step, blocks in enumerate(STEPS):
        talk = Talk()
        _tell_step(talk, 0, step, call_ids, message_ids, indexes, lines, "at once")
        calls = [block for block in blocks if block[0] not in ("text", "thinking")]
        if not calls:
            talk.tell({"type": "result", "subtype": "success", "stop_reason": "end_turn", "result": ""})
            assert violations(talk.log) == []
        assert _shown(talk.log) == [*blocks]


@pytest.mark.parametrize("index", [None, 7])
def test_a_delta_at_an_index_without_a_block_is_of_the_open_one(index: int | None) -> None:
    talk = Talk()
    talk.stream("message_start", message={"id": "m", "model": "opus"})
    where = {} if index is None else {"index": index}
    for place, (kind, text) in enumerate(
        blocks := (("thinking", "Hm, well"), ("text", "I ask."), ("add", "Oslo"))
    ):
        [begun] = _blocks([(kind, text)], lambda place, line: "t", "stream")
        talk.stream("content_block_start", index=place, content_block=begun)
        for delta in _deltas(kind, text):
            talk.stream("content_block_delta", **where, delta=delta)
        talk.stream("content_block_stop", index=place)
    talk.stream("message_delta", delta={"stop_reason": "tool_use"})
    assert _shown(talk.log) == [*blocks]
    assert [json.loads(call.arguments) for call in talk.calls] == [{"city": "Oslo"}]


@pytest.mark.parametrize("index", [1, 7])
def test_arguments_of_the_programs_own_call_are_in_no_call_of_the_clients(index: int) -> None:
    talk = Talk("agent")
    talk.stream("message_start", message={"id": "m", "model": "opus"})
    for place, (name, text) in enumerate(
        (("mcp__client__add", '{"city":"Oslo"}'), ("Bash", '{"command":"ls"}'))
    ):
        block = {"type": "tool_use", "id": "t", "name": name}
        talk.stream("content_block_start", index=place, content_block=block)
        delta = {"type": "input_json_delta", "partial_json": text}
        talk.stream("content_block_delta", index=index if place else 0, delta=delta)
    talk.stream("message_delta", delta={"stop_reason": "tool_use"})
    assert [call.arguments for call in talk.calls] == ['{"city":"Oslo"}']


def test_texts_of_several_kinds_at_one_index_without_blocks_are_items_of_their_own() -> None:
    talk = Talk()
    talk.stream("message_start", message={"id": "m", "model": "opus"})
    for delta in (*_deltas("thinking", "Hm, well"), *_deltas("text", "I see.")):
        talk.stream("content_block_delta", index=0, delta=delta)
    talk.stream("message_delta", delta={"stop_reason": "end_turn"})
    assert _shown(talk.log) == [("thinking", "Hm, well"), ("text", "I see.")]


@pytest.mark.parametrize("id", ["m", "n", ""])
def test_a_message_that_comes_whole_after_the_stream_broke_off_is_the_answer(id: str) -> None:
    talk = Talk()
    talk.stream("message_start", message={"id": "m", "model": "opus"})
    talk.stream("content_block_start", index=0, content_block={"type": "text"})
    talk.stream("content_block_delta", index=0, delta={"type": "text_delta", "text": "One "})
    talk.stream("content_block_stop", index=0)
    content = [
        {"type": "text", "text": "One two."},
        {"type": "tool_use", "name": "mcp__client__add", "id": "t"},
    ]
    whole = {"id": id, "model": "opus", "content": content, "stop_reason": "tool_use"}
    talk.tell({"type": "assistant", "message": whole})
    assert _shown(talk.log)[0] == ("text", "One two.")
    assert [call.name for call in talk.calls] == ["add"]


def test_a_whole_message_with_the_id_of_one_before_is_another() -> None:
    talk = Talk()
    _tell_step(talk, 0, 4, "own", "shared", "own", "all", "at once")
    content = [{"type": "text", "text": "And now whole."}]
    talk.tell({"type": "assistant", "message": {"id": "m", "content": content, "stop_reason": "end_turn"}})
    late = {"id": "m", "content": [{"type": "text", "text": "And now"}], "stop_reason": None}
    talk.tell({"type": "assistant", "message": late})
    assert _shown(talk.log) == [*STEPS[4], ("text", "And now whole.")]


def test_a_whole_message_behind_its_own_stream_is_said_once() -> None:
    talk = Talk()
    _tell_step(talk, 0, 3, "own", "shared", "own", "all", "at once")
    content = [{"type": "text", "text": "I ask."}]
    talk.tell({"type": "assistant", "message": {"id": "m", "content": content, "stop_reason": "tool_use"}})
    assert _shown(talk.log) == list(STEPS[3])


def test_the_calls_of_a_conversation_are_known_by_their_ids_also_where_their_items_are_raw() -> None:
    call = {"type": "function_call", "call_id": "b", "name": "add", "arguments": "{}"}
    raw = [
        RawHistoryItem(text.encode()) for text in (json.dumps(call), '{"type":"reasoning"}', '{"call_id":5}')
    ]
    assert set(call_ids_in([_said("Hi"), HistoryCall("a", "add", "{}"), *raw])) == {"a", "b", ""}


def test_a_step_that_is_repeated_has_the_same_call_ids() -> None:
    talk = Talk(parallel=False)
    for _ in range(2):
        talk.stream("message_start", message={"id": "m", "model": "opus"})
        for index in range(2):
            block = {"type": "tool_use", "id": "t", "name": "mcp__client__add"}
            talk.stream("content_block_start", index=index, content_block=block)
    talk.stream("message_delta", delta={"stop_reason": "tool_use"})
    assert [call.call_id for call in talk.calls] == ["t", "t_2"]


@pytest.mark.parametrize("id", ["t", "u"])
def test_a_sub_agents_call_is_another_than_the_models(id: str) -> None:
    talk = Talk("agent")
    talk.stream("message_start", message={"id": "m", "model": "opus"})
    block = {"type": "tool_use", "id": "t", "name": "mcp__client__add", "input": {"city": "Oslo"}}
    talk.stream("content_block_start", index=0, content_block=block)
    talk.stream(
        "content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": '{"city":"Oslo"}'}
    )
    talk.stream("message_delta", delta={"stop_reason": "tool_use"})
    for name, city in (("first", "Oslo"), ("second", "Rome"), ("third", "Bern")):
        own = "t" if name == "first" else id
        if name != "first":
            told = {"content": [block | {"id": id, "input": {"city": city}}]}
            talk.tell({"type": "assistant", "message": told, "parent_tool_use_id": "task"})
        params = {"name": "add", "arguments": {"city": city}, "_meta": {"claudecode/toolUseId": own}}
        talk.request("tools/call", name, params)
    assert [json.loads(call.arguments)["city"] for call in talk.calls] == ["Oslo", "Rome", "Bern"]
    talk.give_outputs(talk.calls)
    answers = talk.answers()
    outputs = {name: answers[name] for name in ("first", "second", "third")}
    assert outputs == {"first": ["add of Oslo"], "second": ["add of Rome"], "third": ["add of Bern"]}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("ids", ["own", "anew in each turn", "shared", "empty", "missing"])
def test_each_activity_is_an_item_of_its_own(ids: str, together: bool) -> None:
    talk = Talk("agent")
    talk.stream("message_start", message={"id": "m", "model": "opus"})
    told: list[dict[str, Any]] = []
    for place, line in enumerate(lines := ("ls a", "ls b", "ls c")):
        id = CALL_IDS[ids](0, 0, place, "whole")
        call = _with_id({"type": "tool_use", "name": "Bash", "input": {"command": line}}, id)
        result = {"type": "tool_result", "tool_use_id": id, "content": f"out of {line}"}
        told.append({"type": "assistant", "message": {"id": "m", "content": [call], "stop_reason": None}})
        told.append({"type": "user", "message": {"role": "user", "content": [result]}})
    talk.tell(*(told[::2] + told[1::2] if together else told))
    log = talk.log
    begun = {event.item.id: event.item for event in log if isinstance(event, ItemStarted)}
    outputs = {event.id: event.text for event in log if isinstance(event, OutputDelta)}
    shown = [(item.text, outputs[id]) for id, item in begun.items() if isinstance(item, Activity)]
    assert shown == [(line, f"out of {line}") for line in lines]
    assert sum(isinstance(event, ItemEnded) for event in log) == 3
