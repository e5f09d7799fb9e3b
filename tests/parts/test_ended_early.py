"""Every word with which an agent or a model server ends a turn: none of them takes back what it has written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest

from codex_proxy.agents.dialect import Ended
from codex_proxy.core.events import Event, Stop, TextDelta, TurnEnded
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.parts.acp.turn_end import STOPS
from codex_proxy.parts.upstream.failures import ErrorReader
from codex_proxy.parts.upstream.openai_chat.chat_dialects import OpenAIChat
from codex_proxy.parts.upstream.openai_responses.responses_dialect import OpenAIResponses
from codex_proxy.parts.upstream.stream import End, Head, Message
from codex_proxy.parts.upstream.turn import UpstreamContext
from tests.agents.app_server_dialogue import Dialogue
from tests.agents.proto_child import begin_turn, event_line
from tests.model_server import event, stream
from tests.parts.acp.replayer import begin_and_open
from tests.parts.claude_code.replayer import begin_turn as begin_claude
from tests.parts.claude_code.replayer import output_lines

EARLY = ["abort", "aborted", "cancelled", "canceled", "interrupted"]
UNKNOWN = "out_of_luck"


def told(events: Iterable[Event]) -> tuple[str, str]:
    """Returns the text and the reason of the end; a failure is no end of these."""
    log = TurnRepair().feed(events)
    end = log[-1]
    assert isinstance(end, TurnEnded)
    assert end.failure is None
    return "".join(each.text for each in log if isinstance(each, TextDelta)), end.stop


@pytest.mark.parametrize("agent", ["copilot", "gemini", "qwen", "claude-acp", "codex-acp", "opencode"])
@pytest.mark.parametrize("word", [*sorted({*STOPS, *EARLY} - {"end_turn"}), UNKNOWN])
@pytest.mark.parametrize("text", ["Half an", "Error: half an"])
def test_a_program_of_acp(agent: str, word: str, text: str) -> None:
    played = begin_and_open(f"{agent}-text")
    prompt = played.last_request("session/prompt")
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    params = {"sessionId": prompt["params"]["sessionId"], "update": update}
    played.receive([{"jsonrpc": "2.0", "method": "session/update", "params": params}])
    played.receive([{"jsonrpc": "2.0", "id": prompt["id"], "result": {"stopReason": word}}])
    assert told(played.events) == (text, STOPS.get(word, Stop.INTERRUPTED))
    assert not played.turn.can_resume or STOPS.get(word) in (Stop.LENGTH, Stop.CONTENT_FILTER)


@pytest.mark.parametrize("word", [*EARLY, UNKNOWN])
def test_codex_app_server(word: str) -> None:
    dialogue = Dialogue().start()
    dialogue.agent_notifies("item/agentMessage/delta", itemId="m", delta="Half an")
    dialogue.ends(word)
    assert told(dialogue.events) == ("Half an", Stop.INTERRUPTED)


@pytest.mark.parametrize("kind", ["finish_reason", "choice_finish_reasons", "token_count", "turn_aborted"])
@pytest.mark.parametrize("word", EARLY)
def test_codex_proto(kind: str, word: str) -> None:
    lines = [event_line("agent_message_delta", delta="Half an")]
    match kind:
        case "finish_reason":
            lines.append(event_line("task_complete", finish_reason=word))
        case "choice_finish_reasons":
            lines.append(event_line("task_complete", choice_finish_reasons={"0": word}))
        case "token_count":
            lines += [event_line("token_count", finish_reason=word), event_line("task_complete")]
        case "turn_aborted":
            lines.append(event_line("turn_aborted", reason=word))
    assert told(begin_turn().receive(lines).events) == ("Half an", Stop.INTERRUPTED)


@pytest.mark.parametrize("word", ["aborted_streaming", "aborted_tools", "aborted_by_later_version"])
def test_claude_code(word: str) -> None:
    dialect = begin_claude("text")
    events: list[Event] = []
    for line in output_lines("text"):
        if json.loads(line)["type"] == "result":
            result = {"type": "result", "subtype": "error_during_execution", "terminal_reason": word}
            line = json.dumps({**result, "is_error": True}).encode()
        events += dialect.receive([line]).events
    text, stop = told(events)
    assert text
    assert stop == Stop.INTERRUPTED


def context() -> UpstreamContext:
    numbers = itertools.count()
    return UpstreamContext(ErrorReader(()), set(), lambda prefix: f"{prefix}{next(numbers)}", lambda: 1000.0)


def read(dialect: OpenAIChat | OpenAIResponses, data: bytes) -> list[Event]:
    dialect.begin(Turn(model="m", history=()))
    messages: list[Message] = [Head(200), data, End()]
    return [*dialect.receive(messages).events, *dialect.eof(Ended()).events]


@pytest.mark.parametrize("word", [*EARLY, "insufficient_system_resource"])
def test_a_server_of_chat_completions(word: str) -> None:
    data = stream({"content": "Half an"}, finish=word)
    assert told(read(OpenAIChat("m", context()), data)) == ("Half an", Stop.INTERRUPTED)


@pytest.mark.parametrize("stated", [True, False])
def test_a_server_of_responses(stated: bool) -> None:
    response: dict[str, Any] = {"object": "response", "error": None}
    delta = {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "delta": "Half an"}
    last = {"type": "response.cancelled", "response": response | ({"status": "cancelled"} if stated else {})}
    data = b"".join(event(each) for each in (delta, last))
    assert told(read(OpenAIResponses("m", context()), data)) == ("Half an", Stop.INTERRUPTED)
