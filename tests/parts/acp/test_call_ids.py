"""Programs that speak ACP share ids between tool calls, leave them out, or give them again: the client gets each call
once, with its own arguments, and each activity has its own item.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pytest

from codex_proxy.core.events import ItemEnded, ItemStarted, OutputDelta, StepCompleted, ToolCallRequested
from codex_proxy.core.items import Activity, HistoryMessage, HistoryOutput, TextPart, Tool
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.parts.acp.calls import REFUSED
from codex_proxy.parts.acp.messages import ToolCalled, ToolsSettled
from tests.parts.acp.replayer import TOOLS, PlayedTurn, begin_and_open

Id = Callable[[int, int, int], str | None]
IDS: Final[dict[str, Id]] = {
    "own": lambda turn, step, place: f"t{turn}-{step}-{place}",
    "anew in each turn": lambda turn, step, place: f"t{step}-{place}",
    "anew in each step": lambda turn, step, place: f"t{place}",
    "shared": lambda turn, step, place: "t",
    "empty": lambda turn, step, place: "",
    "missing": lambda turn, step, place: None,
}
STEPS: Final = (
    (("get_weather", "Oslo"),),
    (("get_weather", "Oslo"), ("get_weather", "Rome")),
    (("add", "1"), ("get_weather", "Rome"), ("get_weather", "Oslo")),
)


def report(what: str, id: str | None, **fields: Any) -> dict[str, Any]:
    return {"sessionUpdate": what, **fields} | ({} if id is None else {"toolCallId": id})


class Talk:
    """A session with tools of the client."""

    def __init__(self, tools: tuple[Tool, ...] = TOOLS) -> None:
        self.played: PlayedTurn = begin_and_open("claude-acp-client_tool_parked", tools=tools)
        self._keys = itertools.count(1)

    def tell(self, update: dict[str, Any]) -> None:
        session = self.played.last_request("session/prompt")["params"]["sessionId"]
        self.played.receive(
            [{"method": "session/update", "params": {"sessionId": session, "update": update}}]
        )

    def ask_permission(self, id: str | None, **fields: Any) -> bool:
        """Asks for permission, and returns whether it was given at once."""
        options = [{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]
        session = self.played.last_request("session/prompt")["params"]["sessionId"]
        request = fields if id is None else fields | {"toolCallId": id}
        params = {"sessionId": session, "toolCall": request, "options": options}
        number = f"ask{next(self._keys)}"
        self.played.receive([{"id": number, "method": "session/request_permission", "params": params}])
        [answer] = [each for each in self.played.answers if each["id"] == number]
        return bool(answer["result"]["outcome"]["optionId"] == "y")

    def call(self, name: str, text: str, id: str) -> None:
        arguments = json.dumps({"city": text})
        self.played.receive([ToolCalled(str(next(self._keys)), id, name, arguments)])

    def end(self) -> None:
        id = self.played.last_request("session/prompt")["id"]
        self.played.receive([{"id": id, "result": {"stopReason": "end_turn", "usage": {}}}])

    def begin_next(self) -> None:
        self.played.repair = TurnRepair()
        self.played.log.clear()
        said = (HistoryMessage("user", (TextPart("next"),)),)
        self.played.take(self.played.turn.resume(Turn(model="", history=said, tools=TOOLS), said))

    def answer(self, asked: Sequence[ToolCallRequested]) -> None:
        outputs = tuple(HistoryOutput(each.call_id, (TextPart("warm"),)) for each in asked)
        self.played.take(self.played.turn.resume(Turn(model="", history=outputs, tools=TOOLS), outputs))

    def activities(self) -> list[tuple[str, str]]:
        """The items of the turn's activities: what each is, and its output."""
        log = self.played.log
        begun = {event.item.id: event.item for event in log if isinstance(event, ItemStarted)}
        ended = [event.id for event in log if isinstance(event, ItemEnded)]
        outputs = dict.fromkeys(begun, "")
        for event in log:
            if isinstance(event, OutputDelta):
                outputs[event.id] += event.text
        assert len(ended) == len(set(ended))
        return [(item.text, outputs[id]) for id, item in begun.items() if isinstance(item, Activity)]


@pytest.mark.parametrize("told", ["the model's ids", "no ids"])
@pytest.mark.parametrize("ids", IDS)
def test_each_call_of_a_clients_tool_is_asked_once(ids: str, told: str) -> None:
    talk = Talk()
    given: list[str] = []
    for turn, (number, step) in itertools.product(range(2), enumerate(STEPS)):
        if turn and not number:
            talk.end()
            talk.begin_next()
        names = [IDS[ids](turn, number, place) for place in range(len(step))]
        for (name, city), id in zip(step, names, strict=True):
            tool = f"mcp__client__{name}"
            call = report("tool_call", id, name=tool, title=tool, kind="other", rawInput={"city": city})
            talk.tell(call | {"status": "pending"})
        before = len(talk.played.calls)
        for (name, city), id in zip(step, names, strict=True):
            talk.call(name, city, (id or "") if told == "the model's ids" else "")
        talk.played.receive([ToolsSettled()])
        asked = talk.played.calls[before:]
        assert [(each.name, json.loads(each.arguments)["city"]) for each in asked] == [*step]
        given += (each.call_id for each in asked)
        talk.answer(asked)
        for id in names:
            talk.tell(report("tool_call_update", id, status="completed"))
    talk.end()
    assert len(given) == len(set(given)), "each call has an id of its own"
    assert REFUSED not in json.dumps(talk.played.outputs)
    assert talk.activities() == []


@pytest.mark.parametrize("in_turn", [True, False], ids=["one after the other", "together"])
@pytest.mark.parametrize("ids", IDS)
def test_each_activity_is_an_item_of_its_own(ids: str, in_turn: bool) -> None:
    talk = Talk()
    for turn in range(2):
        if turn:
            talk.end()
            talk.begin_next()
        lines = [f"ls {name}" for name in ("a", "b", "a")]
        named = [(line, IDS[ids](turn, number, 0)) for number, line in enumerate(lines)]
        begins = [
            report("tool_call", id, title=line, kind="read", status="pending", rawInput={"file": line})
            for line, id in named
        ]
        content = [{"type": "content", "content": {"type": "text", "text": "out"}}]
        ends = [
            report("tool_call_update", id, status="completed", content=content if in_turn else [])
            for _, id in named
        ]
        together = [*begins, *ends]
        for update in (
            [each for pair in zip(begins, ends, strict=True) for each in pair] if in_turn else together
        ):
            talk.tell(update)
        assert talk.activities() == [(line, "out" if in_turn else "") for line in lines]


def test_a_line_that_comes_again_is_no_other_call() -> None:
    talk = Talk()
    for update in (
        report("tool_call", "t", title="ls", kind="read", status="pending"),
        report("tool_call_update", "t", rawInput={"path": "/"}),
        report("tool_call_update", "t", status="completed"),
    ):
        talk.tell(update)
        talk.tell(update)
    whole = report("tool_call", "u", title="pwd", kind="read", status="completed")
    talk.tell(whole)
    talk.tell(whole)
    talk.tell(report("tool_call_update", "t", status="in_progress", title="late"))
    assert [text for text, _ in talk.activities()] == ["ls", "pwd"]


def test_a_late_report_of_an_earlier_turns_call_is_no_activity_of_the_next() -> None:
    talk = Talk()
    talk.tell(report("tool_call", "ended", title="ls", kind="read", status="completed"))
    talk.tell(report("tool_call", "open", title="pwd", kind="read", status="pending"))
    talk.end()
    talk.begin_next()
    for id in ("ended", "open"):
        talk.tell(report("tool_call_update", id, status="completed", title="late"))
    assert talk.activities() == []


def test_an_update_without_an_id_is_of_the_only_open_call_or_of_none() -> None:
    talk = Talk()
    talk.tell(report("tool_call", "a", title="ls", kind="read", status="pending"))
    talk.tell(report("tool_call_update", None, status="completed"))
    talk.tell(report("tool_call_update", None, status="completed"))
    for id in ("b", "c"):
        talk.tell(report("tool_call", id, title=id, kind="read", status="pending"))
    talk.tell(report("tool_call_update", None, status="completed", title="which?"))
    talk.tell(report("tool_call_update", "b", status="completed"))
    ended = sum(isinstance(event, ItemEnded) for event in talk.played.log)
    assert (talk.activities(), ended) == ([("ls", ""), ("b", ""), ("c", "")], 2)


WEATHER: Final = "mcp__client__get_weather"
SAYS_THE_SAME: Final[dict[str, dict[str, Any]]] = {
    "its id": {},
    "the title that was reported": {"title": WEATHER},
    "as Claude Code's adapter": {
        "title": WEATHER,
        "rawInput": {"city": "Oslo"},
        "_meta": {"claudeCode": {"mcpServer": {"name": "client", "source": "dynamic"}}},
    },
    "its arguments": {"rawInput": {"city": "Oslo"}},
    "more of its arguments": {"title": WEATHER, "rawInput": {"city": "Oslo", "days": 2}},
    "its kind": {"kind": "other"},
    "its name": {"name": WEATHER, "title": "Oslo", "rawInput": {"anything": 1}},
    "its name as Qwen": {"_meta": {"toolName": WEATHER}, "title": '{"city":"Oslo"}', "kind": "read"},
}
SAYS_ANOTHER: Final[dict[str, dict[str, Any]]] = {
    "a command": {"title": "rm -r /"},
    "a command as arguments": {"rawInput": {"command": "rm -r /"}},
    "a command with its title": {"title": WEATHER, "rawInput": {"command": "rm -r /"}},
    "a command with its arguments": {"title": "rm -r /", "rawInput": {"city": "Oslo"}},
    "a command beside its arguments": {"rawInput": {"city": "Oslo", "command": "rm -r /"}},
    "a change of a file": {"content": [{"type": "diff", "path": "/a", "newText": ""}]},
    "other arguments": {"title": WEATHER, "rawInput": {"city": "Rome"}},
    "arguments that are no object": {"rawInput": "rm -r /"},
    "the kind of a command": {"title": WEATHER, "kind": "execute", "rawInput": {"city": "Oslo"}},
    "another name": {"name": "Bash", "title": WEATHER},
    "another name in _meta": {"_meta": {"claudeCode": {"toolName": "Bash"}}, "title": WEATHER},
    "another server's tool": {"_meta": {"is_mcp_tool_call": True}, "rawInput": {"server": "x", "tool": "y"}},
    "another tool of the client's, by title": {"title": "mcp__client__add"},
}


@pytest.mark.parametrize("known", ["begun", "with its arguments"])
@pytest.mark.parametrize("says", [*SAYS_THE_SAME, *SAYS_ANOTHER])
def test_permission_is_given_to_a_clients_call_and_to_no_other_with_its_id(says: str, known: str) -> None:
    talk = Talk()
    talk.tell(
        report("tool_call", "t", name=WEATHER, title=WEATHER, kind="other", status="pending", rawInput={})
    )
    if known != "begun":
        talk.tell(report("tool_call_update", "t", rawInput={"city": "Os"}))
        talk.tell(report("tool_call_update", "t", rawInput={"city": "Oslo"}))
    elif "rawInput" in (SAYS_THE_SAME | SAYS_ANOTHER)[says]:
        return  # nobody knows yet which arguments it has
    allowed = talk.ask_permission("t", **(SAYS_THE_SAME | SAYS_ANOTHER)[says])
    assert allowed == (says in SAYS_THE_SAME)
    talk.call("get_weather", "Oslo", "t")
    talk.played.receive([ToolsSettled(last=True)])
    assert [each.name for each in talk.played.calls] == ["get_weather"]


@pytest.mark.parametrize(
    ("request_fields", "allowed"),
    [
        ({"title": WEATHER}, True),
        ({"title": "Bash"}, False),
        ({"title": "mcp__client__missing"}, False),
        ({"title": WEATHER, "kind": "execute"}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("trusted", [True, False])
def test_a_title_gives_permission_only_where_the_programs_own_code_writes_it(
    trusted: bool, request_fields: dict[str, Any], allowed: bool
) -> None:
    talk = Talk()
    program = talk.played.turn.program
    preset = msgspec.structs.replace(program.preset, titles_name_tools=trusted)
    talk.played.turn.program = msgspec.structs.replace(program, preset=preset)
    talk.tell(report("tool_call", "t", title=WEATHER, kind="other", status="pending"))
    assert talk.ask_permission("t", **request_fields) == (trusted and allowed)


def test_permission_that_is_asked_before_the_arguments_are_known_is_given_by_title_or_declared_names() -> (
    None
):
    schema = msgspec.Raw(b'{"type":"object","properties":{"city":{}}}')
    talk = Talk(tools=(Tool("get_weather", "", schema),))
    talk.tell(
        report("tool_call", "t", name=WEATHER, title=WEATHER, kind="other", status="pending", rawInput={})
    )
    assert talk.ask_permission("t", rawInput={"city": "Oslo"})
    talk = Talk(tools=(Tool("get_weather", "", schema),))
    talk.tell(
        report("tool_call", "t", name=WEATHER, title=WEATHER, kind="other", status="pending", rawInput={})
    )
    assert not talk.ask_permission("t", rawInput={"command": "rm -r /"})


@pytest.mark.parametrize("id", [None, ""])
@pytest.mark.parametrize("says", SAYS_THE_SAME)
def test_permission_that_is_asked_without_an_id_is_given_by_the_tools_name_alone(
    id: str | None, says: str
) -> None:
    talk = Talk()
    talk.tell(report("tool_call", id, name=WEATHER, title=WEATHER, kind="other", status="pending"))
    assert talk.ask_permission(id, **SAYS_THE_SAME[says]) == says.startswith("its name")


def test_permission_for_one_of_two_calls_with_an_id_is_given_to_the_clients() -> None:
    talk = Talk()
    talk.tell(report("tool_call", "t", name=WEATHER, title=WEATHER, kind="other", rawInput={"city": "Oslo"}))
    talk.tell(report("tool_call", "t", name="Bash", title="ls", kind="execute", rawInput={"command": "ls"}))
    assert talk.ask_permission("t", title=WEATHER, rawInput={"city": "Oslo"})
    assert not talk.ask_permission("t", title="ls", rawInput={"command": "ls"})
    assert not talk.ask_permission("t")


def test_a_step_completes_although_a_call_was_reported_twice() -> None:
    talk = Talk()
    tool = "mcp__client__add"
    for _ in range(2):
        talk.tell(report("tool_call", "t", name=tool, kind="other", status="pending", rawInput={"city": "1"}))
    talk.call("add", "1", "t")
    talk.played.receive([ToolsSettled()])
    assert [each.name for each in talk.played.calls] == ["add"]
    assert isinstance(talk.played.events[-1], StepCompleted)
