"""What a client says while Claude Code works on a turn: written while tools run, taken when Claude Code says so."""

from __future__ import annotations

import json
from typing import Any

from codex_proxy.agents.dialect import Ended, Step
from codex_proxy.core.events import Event, InputTaken, ItemStarted, Stop, TextDelta, TurnEnded
from codex_proxy.core.items import HistoryMessage, HistoryOutput, TextPart, Tool
from codex_proxy.core.turn import Turn
from codex_proxy.parts.claude_code.claude_dialect import ClaudeCodeTurn

TELLS = ("msg_lifecycle_v1",)
ASK = (HistoryMessage("user", (TextPart("Do it."),)),)


class Spoken:
    """A turn of ours that has asked, and Claude Code played by the test."""

    def __init__(self, *capabilities: str, tools: tuple[Tool, ...] = ()) -> None:
        self.turn = ClaudeCodeTurn()
        self.events: list[Event] = []
        self.lines: list[dict[str, Any]] = []
        self._messages = 0
        self.take(self.turn.begin(Turn(model="", history=ASK, mode="agent", tools=tools)))
        response = {"subtype": "success", "request_id": "initialize", "response": {}}
        self.says({"type": "control_response", "response": response})
        self.begins(*capabilities)

    def take(self, step: Step) -> None:
        self.events += step.events
        self.lines += map(json.loads, step.writes.splitlines())

    def says(self, *lines: dict[str, Any]) -> None:
        self.take(self.turn.receive([json.dumps(line).encode() for line in lines]))

    def begins(self, *capabilities: str) -> None:
        """Claude Code begins a turn of its own."""
        self.says({"type": "system", "subtype": "init", "session_id": "s", "capabilities": capabilities})

    def streams(self, type: str, **fields: Any) -> None:
        self.says({"type": "stream_event", "event": {"type": type, **fields}})

    def begins_message(self) -> None:
        self._messages += 1
        self.streams("message_start", message={"id": f"msg_{self._messages}", "model": "m"})

    def writes(self, text: str) -> None:
        self.streams("content_block_start", index=0, content_block={"type": "text"})
        self.streams("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def calls(self, name: str = "Bash") -> None:
        """The model's message is a call, and ends."""
        self.begins_message()
        block = {"type": "tool_use", "id": f"toolu_{self._messages}", "name": name, "input": {}}
        self.streams("content_block_start", index=0, content_block=block)
        said = {"id": f"msg_{self._messages}", "role": "assistant", "model": "m", "content": [block]}
        self.says({"type": "assistant", "message": said})
        self.streams("content_block_stop", index=0)
        self.streams("message_delta", delta={"stop_reason": "tool_use"})

    def answers(self, text: str) -> None:
        """The model's message is a text, and ends the turn of Claude Code."""
        self.begins_message()
        self.writes(text)
        self.streams("content_block_stop", index=0)
        self.streams("message_delta", delta={"stop_reason": "end_turn"})
        self.says({"type": "result", "subtype": "success", "is_error": False, "result": text})

    def tells(self, state: str, uuid: str) -> None:
        self.says({"type": "command_lifecycle", "command_uuid": uuid, "state": state})

    def steer(self, id: str, *texts: str) -> None:
        messages = [HistoryMessage("user", (TextPart(text),)) for text in texts]
        self.take(self.turn.steer(id, messages))

    @property
    def written(self) -> dict[str, str]:
        """The texts of the user's lines with a `uuid`, by that."""
        return {
            line["uuid"]: "\n".join(block["text"] for block in line["message"]["content"])
            for line in self.lines
            if line["type"] == "user" and "uuid" in line
        }

    @property
    def taken(self) -> list[str]:
        return [event.id for event in self.events if isinstance(event, InputTaken)]

    @property
    def end(self) -> TurnEnded | None:
        ends = [event for event in self.events if isinstance(event, TurnEnded)]
        return ends[0] if ends else None


def test_an_input_while_a_tool_runs_is_written_and_taken_behind_it() -> None:
    spoken = Spoken(*TELLS)
    spoken.calls()
    spoken.steer("1", "Shorter.", "Please.")
    [(uuid, text)] = spoken.written.items()
    assert text == "Shorter.\nPlease."
    spoken.tells("queued", uuid)
    assert spoken.taken == []
    spoken.tells("started", uuid)
    assert spoken.taken == ["1"]
    spoken.answers("Yes.")
    spoken.tells("completed", uuid)
    assert spoken.end is not None
    assert spoken.end.stop == Stop.STOP
    assert spoken.turn.can_resume


def test_an_input_while_the_model_writes_is_written_when_it_has_called_a_tool() -> None:
    spoken = Spoken(*TELLS)
    spoken.begins_message()
    spoken.steer("1", "Shorter.")
    assert spoken.written == {}
    spoken.calls()
    assert list(spoken.written.values()) == ["Shorter."]


def test_an_input_while_the_model_writes_its_answer_is_left_to_the_client() -> None:
    spoken = Spoken(*TELLS)
    spoken.begins_message()
    spoken.steer("1", "Shorter.")
    spoken.answers("Yes.")
    assert spoken.written == {}
    assert spoken.end is not None
    assert spoken.turn.can_resume
    again = (*ASK, *ASK)
    spoken.take(spoken.turn.resume(Turn(model="", history=again, mode="agent"), ASK))
    spoken.begins(*TELLS)
    spoken.calls()
    assert spoken.written == {}


def test_inputs_are_written_in_their_order_under_ids_of_their_own() -> None:
    spoken = Spoken(*TELLS)
    spoken.steer("1", "One.")
    spoken.steer("2", "Two.")
    spoken.calls()
    assert list(spoken.written.values()) == ["One.", "Two."]
    for uuid in spoken.written:
        spoken.tells("started", uuid)
    assert spoken.taken == ["1", "2"]


def test_a_tool_that_was_quicker_than_the_input_has_the_turn_go_on_behind_its_answer() -> None:
    spoken = Spoken(*TELLS)
    spoken.calls()
    spoken.steer("1", "Shorter.")
    [uuid] = spoken.written
    spoken.answers("A long answer.")
    assert spoken.end is None
    spoken.tells("started", uuid)
    spoken.begins(*TELLS)
    spoken.answers("Yes.")
    assert spoken.end is not None
    told = [event for event in spoken.events if isinstance(event, TextDelta | InputTaken)]
    assert [getattr(event, "text", "input") for event in told] == ["A long answer.", "input", "Yes."]


def test_a_line_that_claude_code_throws_away_does_not_hold_up_the_turns_end() -> None:
    spoken = Spoken(*TELLS)
    spoken.calls()
    spoken.steer("1", "Shorter.")
    [uuid] = spoken.written
    spoken.answers("Yes.")
    spoken.tells("discarded", uuid)
    assert spoken.taken == []
    assert spoken.end is not None
    assert spoken.end.failure is None


def test_a_release_that_does_not_tell_what_it_takes_is_given_no_input() -> None:
    spoken = Spoken()
    spoken.calls()
    spoken.steer("1", "Shorter.")
    assert spoken.written == {}
    spoken.answers("Yes.")
    assert spoken.end is not None


def test_an_input_behind_a_call_of_the_client_is_taken_in_its_next_request() -> None:
    spoken = Spoken(*TELLS, tools=(Tool("get_weather", "w", None),))
    list_tools = {"jsonrpc": "2.0", "id": 0, "method": "tools/list"}
    asked = {"subtype": "mcp_message", "server_name": "client", "message": list_tools}
    spoken.says({"type": "control_request", "request_id": "r", "request": asked})
    spoken.begins(*TELLS)
    spoken.calls("mcp__client__get_weather")
    spoken.steer("1", "Shorter.")
    [uuid] = spoken.written
    assert spoken.turn.can_resume
    output = HistoryOutput("toolu_1", (TextPart("sunny"),))
    spoken.take(spoken.turn.resume(Turn(model="", history=(*ASK, output), mode="agent"), (output,)))
    spoken.tells("started", uuid)
    assert spoken.taken == ["1"]


def test_an_input_after_the_turns_end_is_not_written() -> None:
    spoken = Spoken(*TELLS)
    spoken.calls()
    spoken.take(spoken.turn.interrupt())
    spoken.steer("1", "Shorter.")
    assert spoken.written == {}
    spoken.take(spoken.turn.eof(Ended(0)))
    assert spoken.taken == []
    assert [event for event in spoken.events if isinstance(event, ItemStarted)]
