"""Plays a recording of an agent that speaks ACP to our dialect, and answers what our side asks.

A recording holds what another client asked, under other request ids and in several sessions of one process. So each of
its sessions is played by itself: our requests get the recorded answers to the same methods, and what the agent said
after the recorded prompt comes after ours. Calls at the tool server come as our tool server tells them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from codex_proxy.agents.dialect import Decision, Step
from codex_proxy.core.events import (
    ApprovalRequested,
    Event,
    StepCompleted,
    TextDelta,
    ToolCallRequested,
    TurnEnded,
)
from codex_proxy.core.items import HistoryItem, HistoryMessage, HistoryOutput, TextPart, Tool
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.parts.acp.acp_dialect import AcpTurn
from codex_proxy.parts.acp.messages import (
    Input,
    Message,
    ModelCallFailed,
    ToolCalled,
    ToolDropped,
    ToolsListed,
    ToolsSettled,
    request_id,
    split_writes,
)
from codex_proxy.parts.acp.presets import (
    PRESETS,
    AcpPreset,
    DeclaredFeatures,
    Program,
    read_declared_features,
)
from codex_proxy.parts.acp.process import AcpConnection
from tests.captures import capture, names_of

NAMES = names_of("acp")
OTHER = AcpPreset(name="acp", title="The agent", argv=("agent",), usage="session", errors_as_text=True)
"""For recordings of programs without a preset."""
TOOLS = (Tool("get_weather", "Weather of a city"), Tool("add", "Adds"))


DIRECTIONS = {"to": "out", "from": "in"}
EVENTS = {
    each.__name__: each for each in (ToolsListed, ToolCalled, ToolsSettled, ToolDropped, ModelCallFailed)
}


@dataclass(frozen=True)
class Session:
    """One session of a recording: the answer to `session/new`, and what the agent sent for each prompt."""

    opened: dict[str, Any]
    prompts: tuple[tuple[dict[str, Any], ...], ...]
    """For each prompt the agent's messages, the last of which is the answer; calls at the tool server are among
    them."""


@cache
def lines_of_recording(name: str) -> tuple[dict[str, Any], ...]:
    """The lines of one recording: `dir` is `out` for what went to the agent, `in` for what came from it, `event` for a
    call at the tool server."""
    found: list[dict[str, Any]] = []
    for line in capture("acp", name).lines:
        if line.kind == "event":
            found.append({"dir": "event", "msg": line.value})
        else:
            found.append({"dir": DIRECTIONS[line.kind], "msg": json.loads(line.value)})
    return tuple(found)


def preset_of(name: str) -> AcpPreset:
    """The preset of the agent that was recorded."""
    return next((PRESETS[each] for each in PRESETS if name.startswith(f"{each}-")), OTHER)


def declared_by(name: str) -> DeclaredFeatures:
    """What the agent declared."""
    for line in lines_of_recording(name):
        result = line["msg"].get("result")
        if line["dir"] == "in" and isinstance(result, dict) and "protocolVersion" in result:
            return read_declared_features(result)
    return DeclaredFeatures()


@cache
def sessions_of(name: str) -> tuple[Session, ...]:
    """The recorded sessions that were prompted, or could not be opened."""
    lines = lines_of_recording(name)
    asked = {
        line["msg"]["id"]: line["msg"]
        for line in lines
        if line["dir"] == "out" and "method" in line["msg"] and "id" in line["msg"]
    }
    out = []
    for line in lines:
        message = line["msg"]
        if (
            line["dir"] != "in"
            or "method" in message
            or asked.get(message.get("id"), {}).get("method") != "session/new"
        ):
            continue
        session = (message.get("result") or {}).get("sessionId")
        prompts = tuple(_prompts(lines, session)) if session else ()
        if prompts or not session:
            out.append(Session(message, prompts))
    return tuple(out)


def _prompts(lines: Iterable[dict[str, Any]], session: str) -> Iterable[tuple[dict[str, Any], ...]]:
    open_id: Any = None
    said: list[dict[str, Any]] = []
    for line in lines:
        message, direction = line["msg"], line["dir"]
        params = message.get("params") or {}
        if (
            direction == "out"
            and message.get("method") == "session/prompt"
            and params.get("sessionId") == session
        ):
            open_id, said = message["id"], []
        elif open_id is None:
            continue
        elif direction == "event" or (direction == "in" and params.get("sessionId") == session):
            said.append(message)
        elif direction == "in" and "method" not in message and message.get("id") == open_id:
            yield (*said, message)
            open_id = None


@dataclass
class PlayedTurn:
    """What came of it. `events` are the dialect's own, `log` what the repair made of them, `requests` ours."""

    turn: AcpTurn
    connection: AcpConnection
    channel: int
    events: list[Event] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[tuple[str, Any]] = field(default_factory=list)
    repair: TurnRepair = field(default_factory=TurnRepair)
    allows: bool = False
    lost: str = ""
    """Why the process fails its turns, if it does."""

    def take(self, step: Step) -> None:
        """Keeps what a step says, and decides what it asks."""
        self.events += step.events
        self.log += self.repair.feed(step.events)
        to_agent, outputs = split_writes(step.writes)
        self.outputs += outputs
        for line in to_agent.splitlines():
            message = json.loads(line)
            (self.requests if "method" in message else self.answers).append(message)
        for event in step.events:
            if isinstance(event, ApprovalRequested):
                self.take(self.turn.answer(event.request_id, Decision(self.allows)))

    def receive(self, messages: Sequence[Any]) -> None:
        """Gives the dialect messages of the agent, by way of the connection, and of the tool server."""
        for message in messages:
            if isinstance(message, dict | bytes):
                line = message if isinstance(message, bytes) else json.dumps(message).encode()
                received = self.connection.receive([line])
                for channel, given in received.messages_by_channel:
                    if channel == self.channel:
                        self.take(self.turn.receive(given))
                self.lost = self.lost or received.lost
            else:
                self.take(self.turn.receive([message]))

    def has_asked(self, method: str) -> bool:
        return any(each.get("method") == method for each in self.requests)

    def last_request(self, method: str) -> dict[str, Any]:
        """Our newest request of this method. There must be one."""
        return next(each for each in reversed(self.requests) if each.get("method") == method)

    def answer_setup(self) -> None:
        """Answers the requests that set up the session, one after the other."""
        answered: set[int] = set()
        while True:
            waiting = [
                each
                for each in self.requests
                if str(each.get("method", "")).startswith("session/set_") and each["id"] not in answered
            ]
            if not waiting:
                return
            answered.add(waiting[0]["id"])
            self.receive([{"jsonrpc": "2.0", "id": waiting[0]["id"], "result": {}}])

    @property
    def unasked(self) -> bool:
        """Whether the agent has called tools that the client was not asked for."""
        return bool(self.turn.calls._new)

    @property
    def waits_for_outputs(self) -> bool:
        """Whether the client was asked for outputs that it has not given."""
        return self.turn.calls.is_waiting

    @property
    def end(self) -> TurnEnded:
        """The end of the client's last turn."""
        return next(event for event in reversed(self.events) if isinstance(event, TurnEnded))

    @property
    def text(self) -> str:
        """The text that the client has seen."""
        return "".join(event.text for event in self.log if isinstance(event, TextDelta))

    @property
    def calls(self) -> list[ToolCallRequested]:
        """The calls of the client's tools."""
        return [event for event in self.events if isinstance(event, ToolCallRequested)]


def begin_turn(
    name: str, *, tools: Sequence[Tool] = (), unconfined: bool = False, alone: bool = False, **changes: Any
) -> PlayedTurn:
    """A turn that has begun against the agent of a recording; the session is not open yet. `unconfined`: as the
    operator has it; `alone`: the process serves no other session; `changes`: other fields of the turn."""
    connection = AcpConnection({})
    channel = connection.open_channel()
    count = itertools.count(1)
    program = Program(preset_of(name), declared_by(name), unconfined)
    servers = (
        ({"type": "http", "name": "client", "url": "http://127.0.0.1:1/mcp", "headers": []},) if tools else ()
    )
    turn = AcpTurn(channel, program, lambda prefix: f"{prefix}{next(count)}", servers=servers, alone=alone)
    played = PlayedTurn(turn, connection, channel)
    history: tuple[HistoryItem, ...] = (HistoryMessage("user", (TextPart("go"),)),)
    wanted = {
        "model": "",
        "history": history,
        "tools": tuple(tools),
        "workdir": "/home/user/project",
        **changes,
    }
    played.take(turn.begin(Turn(**wanted)))
    return played


def begin_and_open(name: str, nth: int = 0, *, tools: Sequence[Tool] = (), **changes: Any) -> PlayedTurn:
    """The same, with its session opened and set up, and prompted."""
    played = begin_turn(name, tools=tools, **changes)
    session = sessions_of(name)[nth]
    played.receive([{**session.opened, "id": request_id(played.channel, 1)}])
    if tools:
        played.receive([ToolsListed()])
    played.answer_setup()
    return played


def messages_of(name: str, nth: int = 0, prompt: int = 0) -> list[Any]:
    """What the agent sent for a prompt, as the dialect and its tool server get it; `ToolsSettled` behind calls."""
    said = sessions_of(name)[nth].prompts[prompt]
    return [_event_of(each) if "type" in each else each for each in said]


def _event_of(recorded: dict[str, Any]) -> Any:
    fields = dict(recorded)
    kind = EVENTS[fields.pop("type")]
    return msgspec.convert(fields, kind)


def play(
    name: str, nth: int = 0, *, tools: Sequence[Tool] = (), allows: bool = False, **changes: Any
) -> PlayedTurn:
    """Plays the first prompt of a recorded session to its end. The outputs of calls are given as soon as the step is
    over."""
    played = begin_and_open(name, nth, tools=tools, **changes)
    played.allows = allows
    session = sessions_of(name)[nth]
    if not session.prompts:
        return played
    messages = messages_of(name, nth)
    for index, message in enumerate(messages):
        if isinstance(message, dict) and (_is_answer(message) or _ends_a_call(message)):
            _ask(played, ToolsSettled(last=True))
        if isinstance(message, dict) and _is_answer(message) and played.has_asked("session/prompt"):
            message = {**message, "id": played.last_request("session/prompt")["id"]}
        played.receive([message])
        following = messages[index + 1] if index + 1 < len(messages) else None
        _ask(played, None if isinstance(following, ToolCalled) else ToolsSettled())
    return played


def _is_answer(message: dict[str, Any]) -> bool:
    return "method" not in message


def _ends_a_call(message: dict[str, Any]) -> bool:
    update = message.get("params", {}).get("update", {})
    return update.get("status") in ("completed", "failed")


def _ask(played: PlayedTurn, settled: ToolsSettled | None) -> None:
    """Lets the time pass that is waited for further calls (None: no time), and gives the outputs that are asked for."""
    if settled is not None and played.unasked:
        played.receive([settled])
    while played.turn.can_resume and played.waits_for_outputs:
        give_outputs(played)


def give_outputs(played: PlayedTurn, text: str = "minus 5 degrees") -> None:
    """Resumes a turn that waits for outputs, with one for each call of its last step."""
    steps = [index for index, event in enumerate(played.events) if isinstance(event, StepCompleted)]
    before = steps[-2] if len(steps) > 1 else 0
    calls = [event for event in played.events[before:] if isinstance(event, ToolCallRequested)]
    outputs = tuple(HistoryOutput(call.call_id, (TextPart(text),)) for call in calls)
    turn = Turn(model="", history=outputs, tools=TOOLS)
    played.take(played.turn.resume(turn, outputs))


__all__ = [
    "NAMES",
    "TOOLS",
    "Input",
    "Message",
    "PlayedTurn",
    "begin_and_open",
    "begin_turn",
    "messages_of",
    "play",
    "sessions_of",
]
