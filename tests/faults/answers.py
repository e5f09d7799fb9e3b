"""What an answer has to be where something went wrong: to the letter, on each surface, whole and streamed."""

from __future__ import annotations

from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.surfaces.answers.fault_table import FaultRow
from codex_proxy.surfaces.errors import row_of
from tests.faults.scene import Mode
from tests.http.serving import Answer
from tests.http_responses.asking import events_of

OPENS = {"response.output_item.added": 1, "response.output_item.done": -1}


def is_good(answer: Answer, mode: Mode, text: str | None, beside: str = "") -> None:
    """The whole text (None: whatever it is), with `beside` somewhere in it or as another message, and a good end."""
    assert answer.status == 200, answer.text

    def is_text(said: str | None) -> bool:
        assert beside in (said or "")
        return (said or "").replace(beside, "", 1).strip() == text if beside else said == (text or said)

    if not mode.stream:
        if mode.surface == "chat":
            [choice] = ChatCompletion.model_validate_json(answer.text).choices
            said, end = choice.message.content, choice.finish_reason
            assert is_text(said)
            assert end == "stop"
        else:
            response = Response.model_validate_json(answer.text)
            assert is_text(response.output_text)
            assert response.status == "completed"
    elif mode.surface == "chat":
        *chunks, done = answer.frames
        assert done == "[DONE]"
        choices = [ChatCompletionChunk.model_validate(chunk).choices[0] for chunk in chunks]
        said = "".join(choice.delta.content or "" for choice in choices)
        assert is_text(said)
        assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    else:
        events = events_of(answer.text)
        assert events[-1]["type"] == "response.completed"
        assert sum(OPENS.get(event["type"], 0) for event in events) == 0
        said = Response.model_validate(events[-1]["response"]).output_text
        assert is_text(said)


def is_call(answer: Answer, mode: Mode, name: str) -> None:
    """A good end with one call of this tool of the client's."""
    assert answer.status == 200, answer.text
    if mode.surface == "responses":
        events = events_of(answer.text) if mode.stream else []
        whole = events[-1]["response"] if mode.stream else answer.body
        response = Response.model_validate(whole)
        assert response.status == "completed"
        assert [item.name for item in response.output if item.type == "function_call"] == [name]
        assert sum(OPENS.get(event["type"], 0) for event in events) == 0
    elif mode.stream:
        *chunks, done = answer.frames
        assert done == "[DONE]"
        choices = [ChatCompletionChunk.model_validate(chunk).choices[0] for chunk in chunks]
        assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["tool_calls"]
        calls = [call.function for choice in choices for call in choice.delta.tool_calls or ()]
        assert [call.name for call in calls if call is not None and call.name] == [name]
    else:
        [choice] = ChatCompletion.model_validate_json(answer.text).choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        assert len(choice.message.tool_calls) == 1


def is_status(answer: Answer, mode: Mode, kind: FaultKind) -> None:
    """A plain error, since nothing had been said before."""
    row = _row(mode, kind)
    assert answer.status == row.status, answer.text
    assert answer.headers["Content-Type"].startswith("application/json")
    assert set(answer.body) == {"error"}
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert (answer.error["type"], answer.error["code"]) == (row.type, row.code)
    assert answer.error["message"]
    assert row.wait is None or int(answer.headers["Retry-After"]) >= row.wait


def is_broken_stream(answer: Answer, mode: Mode, kind: FaultKind, text: str) -> None:
    """A stream that had begun: what was said stays, then comes the fault, then the end."""
    row = _row(mode, kind)
    assert answer.status == 200
    if mode.surface == "chat":
        *chunks, failed, done = answer.frames
        assert done == "[DONE]"
        assert set(failed) == {"error"}
        assert (failed["error"]["type"], failed["error"]["code"]) == (row.type, row.code)
        said = [ChatCompletionChunk.model_validate(chunk).choices[0] for chunk in chunks]
        assert text.startswith("".join(choice.delta.content or "" for choice in said))
        assert not any(choice.finish_reason for choice in said), "nothing ended well"
        return
    *told, failed, ended = events_of(answer.text)
    assert (failed["type"], failed["code"]) == ("error", row.code)
    assert (ended["type"], ended["response"]["status"]) == ("response.failed", "failed")
    assert ended["response"]["error"]["message"] == failed["message"]
    assert text.startswith("".join(e["delta"] for e in told if e["type"] == "response.output_text.delta"))
    assert sum(OPENS.get(event["type"], 0) for event in told) == 0, "an item is left open"


def _row(mode: Mode, kind: FaultKind) -> FaultRow:
    return row_of(Failure(kind=kind, message=""), mode.surface)
