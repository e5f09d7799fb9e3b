"""The agent's side of a turn, by hand: what our side asks is kept, to be answered one by one."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from codex_proxy.agents.codex_app_server.app_server_dialect import AppServerTurn
from codex_proxy.agents.codex_app_server.wire import decode
from codex_proxy.agents.dialect import Reply, Step, ToolReply
from codex_proxy.core.events import Event, Stop, ToolCallRequested, TurnEnded
from codex_proxy.core.items import HistoryItem, HistoryMessage, HistoryOutput, TextPart, Tool
from codex_proxy.core.turn import Turn

THREAD, TURN = "T", "U"
HISTORY = (HistoryMessage("developer", (TextPart("Be brief."),)), HistoryMessage("user", (TextPart("Hi"),)))
WEATHER = Tool("get_weather", "w", msgspec.Raw(b'{"type":"object"}'))
ASK_1 = ToolCallRequested("call_1", "call_1", "get_weather", "{}", "fc_1")
SUNNY = ToolReply((TextPart("sunny"),))


def output(n: int, text: str = "sunny") -> HistoryOutput:
    """The client's answer to call `n`."""
    return HistoryOutput(f"call_{n}", (TextPart(text),))


def tool_output_line(id: int, text: str = "sunny", *, success: bool = True) -> dict[str, Any]:
    """The line with which an output goes to the agent."""
    content = [{"type": "inputText", "text": text}]
    return {"id": id, "result": {"contentItems": content, "success": success}}


class Dialogue:
    """A turn of ours, and the agent played by the test. Requests of ours are kept by method."""

    def __init__(self, *, keeps_thread: bool = False, reopens: str = "", **turn: Any) -> None:
        """`reopens`: the stored thread that has seen all of the turn but its last message."""
        self.turn = AppServerTurn(1)
        self.keeps_thread = keeps_thread
        """Our side keeps the thread when its turn is over; else it wants no more, as soon as it is."""
        self.methods: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self.ids: dict[str, str] = {}
        self.events: list[Event] = []
        given = {"model": "m", "history": HISTORY, "mode": "model", "tools": (WEATHER,)} | turn
        self.wanted = Turn(**given)
        if reopens:
            self.take(self.turn.reopen(self.wanted, reopens, self.wanted.history[-1:]))
        else:
            self.take(self.turn.begin(self.wanted))

    def take(self, step: Step) -> list[Event]:
        for line in step.writes.splitlines():
            message = json.loads(line)
            self.sent.append(message)
            if "method" in message:
                self.methods.append(message["method"])
                self.ids[message["method"]] = message["id"]
        self.events += step.events
        if any(isinstance(event, TurnEnded) for event in step.events) and not self.keeps_thread:
            self.take(self.turn.interrupt())
        return step.events

    def agent_sends(self, *messages: dict[str, Any]) -> list[Event]:
        decoded = [decode(json.dumps(message).encode()) for message in messages]
        return self.take(self.turn.receive([each for each in decoded if each is not None]))

    def agent_answers(self, method: str, result: Any = None) -> list[Event]:
        return self.agent_sends({"id": self.ids[method], "result": {} if result is None else result})

    def agent_refuses(self, method: str, message: str, code: int = -32600) -> list[Event]:
        return self.agent_sends({"id": self.ids[method], "error": {"code": code, "message": message}})

    def agent_notifies(self, method: str, **params: Any) -> list[Event]:
        return self.agent_sends({"method": method, "params": {"threadId": THREAD, "turnId": TURN} | params})

    def agent_requests(self, id: int, method: str, **params: Any) -> list[Event]:
        return self.agent_sends(
            {"id": id, "method": method, "params": {"threadId": THREAD, "turnId": TURN} | params}
        )

    def client_replies(self, request_id: str, reply: Reply) -> Any:
        """The line with which a reply goes out; None where it has to wait, or nobody wants it."""
        step = self.turn.answer(request_id, reply)
        self.take(step)
        return json.loads(step.writes) if step.writes else None

    def client_resumes(self, *new_items: HistoryItem, **turn: Any) -> list[Event]:
        """The client's next turn on the same thread, with `new_items` behind its history."""
        given = {"history": (*self.wanted.history, *new_items)} | turn
        self.wanted = msgspec.structs.replace(self.wanted, **given)
        return self.take(self.turn.resume(self.wanted, new_items))

    def wants_output(self, n: int, *, id: int | None = None, **params: Any) -> list[Event]:
        """The agent asks for the output of call `n`."""
        given = {"callId": f"call_{n}", "tool": "get_weather", "arguments": {}} | params
        return self.agent_requests(n if id is None else id, "item/tool/call", **given)

    def start_thread(self) -> None:
        self.agent_answers(
            "thread/start", {"thread": {"id": THREAD, "status": {"type": "idle"}}, "model": "m-1"}
        )

    def start(self) -> Dialogue:
        self.start_thread()
        self.agent_answers("thread/inject_items")
        self.agent_answers("turn/start", {"turn": {"id": TURN, "status": "inProgress"}})
        return self

    def agent_starts_turn(self, turn: str) -> None:
        """The agent has begun another turn on the thread."""
        if self.methods[-2] == "thread/inject_items":
            self.agent_answers("thread/inject_items")
        self.agent_answers("turn/start", {"turn": {"id": turn, "status": "inProgress"}})

    def calls(self, n: int, arguments: str = "{}", *, turn: str = TURN, **item: Any) -> list[Event]:
        call = {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": "get_weather"}
        return self.agent_notifies(
            "rawResponseItem/completed", turnId=turn, item=call | {"arguments": arguments} | item
        )

    def completes(self, *, turn: str = TURN) -> list[Event]:
        usage = {"inputTokens": 10, "cachedInputTokens": 4, "outputTokens": 2, "reasoningOutputTokens": 1}
        return self.agent_notifies("rawResponse/completed", turnId=turn, usage=usage)

    def ends(self, status: str = "completed", **turn: Any) -> list[Event]:
        return self.agent_notifies("turn/completed", turn={"id": TURN, "status": status} | turn)

    def step(self, *calls: int) -> list[Event]:
        """A whole response of the model with these calls; what our side asks for."""
        for n in calls:
            self.calls(n)
        return self.completes()

    @property
    def end(self) -> TurnEnded:
        [end] = [event for event in self.events if isinstance(event, TurnEnded)]
        return end

    def failure(self) -> str:
        assert self.end.stop == Stop.FAILED
        assert self.end.failure is not None
        return self.end.failure.kind


def idle(mode: str = "model") -> Dialogue:
    """A thread whose first turn has ended well."""
    dialogue = Dialogue(keeps_thread=True, mode=mode).start()
    dialogue.completes()
    dialogue.ends()
    assert dialogue.turn.can_resume
    return dialogue


def waiting_for_output(*, requested: bool = True, mode: str = "model") -> Dialogue:
    """A thread whose agent waits for the output of one call."""
    dialogue = Dialogue(keeps_thread=True, mode=mode).start()
    dialogue.step(1)
    if requested:
        dialogue.wants_output(1)
    assert dialogue.turn.can_resume
    return dialogue
