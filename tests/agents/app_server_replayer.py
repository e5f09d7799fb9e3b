"""Plays a recording of `codex app-server` to our side of the conversation, and answers what our side asks.

A recording holds what another client asked, under other request ids. So an answer is given to our own request
of the same method, a recorded interrupt is our interrupt, and what our side asks beyond the recording (it
interrupts and unsubscribes when a turn is over) is answered in the end as the real agent would.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from codex_proxy.agents.codex_app_server.app_server_dialect import AppServerTurn
from codex_proxy.agents.codex_app_server.connection import AppServerConnection
from codex_proxy.agents.dialect import Decision, Step
from codex_proxy.core.events import ApprovalRequested, Event, InputRequested, TurnEnded
from codex_proxy.core.items import HistoryMessage, HistoryOutput, TextPart, Tool
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.tools.policy import ToolPolicy
from tests.captures import lines_of, names_of

NAMES = names_of("app-server")


@dataclass(frozen=True)
class Line:
    """One recorded line: `in` went to the agent, `out` came from it."""

    dir: str
    data: bytes

    @property
    def json(self) -> dict[str, Any]:
        try:
            value = json.loads(self.data)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


@cache
def lines_of_recording(name: str) -> tuple[Line, ...]:
    """The lines of one recording, both ways; not the notes about its process."""
    return tuple(Line("in" if kind == "to" else "out", line) for kind, line in lines_of("app-server", name))


def recorded_turn(lines: Sequence[Line], nth: int) -> Turn:
    """The turn that we would ask for to get what the recording's `nth` thread did."""
    starts = [line.json["params"] for line in lines if line.json.get("method") == "thread/start"]
    params = starts[nth] if nth < len(starts) else {}
    programs = any(b'"name":"exec"' in line.data for line in lines)  # a model with a tool of the agent's own
    tools = tuple(
        Tool(tool["name"], tool["description"], msgspec.Raw(json.dumps(tool["inputSchema"]).encode()))
        for tool in params.get("dynamicTools", ())
    )
    model_mode = not programs and ("dynamicTools" in params or params.get("baseInstructions") == "")
    history = (HistoryMessage("user", (TextPart("go"),)),)
    return Turn(model="mock-model", history=history, mode="model" if model_mode else "agent", tools=tools)


@dataclass
class PlayedTurn:
    """What came of it. `events` are the dialect's own, `log` what the repair made of them."""

    connection: AppServerConnection
    turn: AppServerTurn
    policy: ToolPolicy
    request: Turn
    resumes: bool = False
    """The client brings the outputs of its calls while the agent still waits for them."""
    lost: str = ""
    """Why the process fails its turns, if it does."""
    limits: bytes = b""
    """What was told last of the account's limits."""
    earlier: list[list[Event]] = field(default_factory=list)
    """The logs of the turns before the last one, where it does."""
    repair: TurnRepair = field(default_factory=TurnRepair)
    closed: bool = False
    """The turn is over and not kept: our side has said that it wants no more."""
    events: list[Event] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Everything that we wrote, decoded."""
    waiting: list[tuple[str, str]] = field(default_factory=list)
    """Our requests without an answer: method and id."""

    def take_writes(self, writes: bytes) -> None:
        for line in writes.splitlines():
            message = json.loads(line)
            self.messages.append(message)
            if "method" in message and "id" in message:
                self.waiting.append((message["method"], message["id"]))

    def take_step(self, step: Step) -> None:
        self.events += step.events
        self.log += self.repair.feed(self.policy.feed(step.events).events)
        self.take_writes(self.connection.send(1, step.writes))
        for event in step.events:
            if isinstance(event, ApprovalRequested | InputRequested):
                self.take_step(self.turn.answer(event.request_id, Decision()))
        if not self.repair.ended or self.closed:
            return
        if self.resumes and self.turn.can_resume and self.policy.visible:
            self.client_resumes()
        else:
            self.closed = True
            self.take_step(self.turn.interrupt())

    def client_resumes(self) -> None:
        """The client's next turn: the outputs that the agent waits for."""
        outputs = tuple(HistoryOutput(ask.call_id, (TextPart("sunny"),)) for ask in self.policy.visible)
        self.request = msgspec.structs.replace(self.request, history=self.request.history + outputs)
        self.earlier.append(self.log)
        self.log, self.repair, self.policy = [], TurnRepair(), ToolPolicy(self.request)
        self.take_step(self.turn.resume(self.request, outputs))

    def agent_sends(self, data: bytes) -> None:
        received = self.connection.receive([data])
        self.limits = received.limits or self.limits
        self.take_writes(received.writes)
        for channel, messages in received.messages_by_channel:
            if channel == 1:
                self.take_step(self.turn.receive(messages))
        self.lost = self.lost or received.lost

    def answers(self, method: str, answer: dict[str, Any]) -> bool:
        """Answers our oldest request of this method; False if there is none."""
        found = next((each for each in self.waiting if each[0] == method), None)
        if found is None:
            return False
        self.waiting.remove(found)
        self.agent_sends(json.dumps(answer | {"id": found[1]}).encode())
        return True

    @property
    def methods(self) -> list[str]:
        """The methods of our requests about the turn, in order."""
        own = ("initialize", "initialized", "account/read", "model/list")
        return [each["method"] for each in self.messages if "method" in each and each["method"] not in own]

    @property
    def end(self) -> TurnEnded:
        assert self.log
        last = self.log[-1]
        assert isinstance(last, TurnEnded)
        return last


def begin_turn(turn: Turn, *, resumes: bool = False) -> PlayedTurn:
    """Our side, with the connection open and the turn begun."""
    connection = AppServerConnection()
    channel = connection.open_channel()
    played = PlayedTurn(connection, AppServerTurn(channel), ToolPolicy(turn), turn, resumes)
    played.take_writes(connection.open())
    played.take_step(played.turn.begin(turn))
    return played


def play(lines: Iterable[Line], turn: Turn, nth: int = 0, *, resumes: bool = False) -> PlayedTurn:
    """Plays the recording's `nth` thread, and what came before any thread."""
    played = begin_turn(turn, resumes=resumes)
    methods: dict[Any, str] = {}
    threads = -1
    for line in lines:
        message = line.json
        method = message.get("method")
        if line.dir == "in":
            if method is not None and "id" in message:
                methods[str(message["id"])] = method
            threads += method == "thread/start"
            if method == "turn/interrupt" and threads == nth:
                played.take_step(played.turn.interrupt())
        elif method is None and "id" in message and str(message["id"]) in methods:
            asked = methods[str(message["id"])]
            if asked in ("thread/start", "thread/inject_items", "turn/start") and threads != nth:
                continue
            if asked == "turn/start":  # we inject where the recording's client did not
                played.answers("thread/inject_items", {"result": {}})
            played.answers(asked, message)
        else:
            played.agent_sends(line.data)
    return played


ENDING = ("thread/inject_items", "turn/interrupt", "thread/backgroundTerminals/clean", "thread/unsubscribe")


def finish(played: PlayedTurn) -> None:
    """Answers what our side still asks, until it asks no more."""
    while played.waiting:
        if not any(played.answers(method, {"result": {}}) for method in ENDING):
            method, _ = played.waiting[0]
            played.answers(method, {"error": {"code": -32600, "message": "thread not found: 0"}})
