"""Renders a turn as an Ollama answer, streamed or whole. Each delta and complete call is a line; the last has counts
and times. Source: docs/ollama.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, Unpack

import msgspec

from codex_proxy.core.events import (
    DECLINED_HEADER,
    EMPTY_HEADER,
    UNCERTAIN_HEADER,
    ApprovalRequested,
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    ReasoningDelta,
    TurnEnded,
    Usage,
)
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import Reasoning, ToolCall
from codex_proxy.surfaces.answers.renderer import (
    OneTextRenderer,
    RenderOptions,
    Text,
    activity_line,
    json_bytes,
    json_text,
    raw_text,
)
from codex_proxy.surfaces.ollama.answer import error_line
from codex_proxy.surfaces.requests.options import whole_input

Form: TypeAlias = Literal["chat", "generate"]

_LINE_ENDS: Final = re.compile(rb"\xe2\x80[\xa8\xa9]|\xc2\x85")
"""Line ends of Ollama's package for Python, which JSON need not escape."""


NO_COMPLETION: Final = Failure(FaultKind.UPSTREAM_ERROR, "The model server's answer has no completion.")


class TurnTimes(msgspec.Struct, frozen=True):
    """Nanoseconds: `total`; `load` until the agent began; `prompt` from then to the first visible part; `answer`
    from then to the end.
    """

    total: int = 0
    load: int = 0
    prompt: int = 0
    answer: int = 0


class OllamaRenderer(OneTextRenderer):
    """Renders an Ollama answer. `form`: `/api/chat` or `/api/generate`. `client_names`: see `ParsedOllama`.
    `show_activity`: whether the agent's actions are shown as thinking. `times` returns the turn's times at its end.
    """

    def __init__(
        self,
        *,
        form: Form,
        model: str,
        created_at: str,
        thinking: bool = True,
        client_names: Mapping[str, str] | None = None,
        show_activity: bool = True,
        times: Callable[[], TurnTimes] = TurnTimes,
        **options: Unpack[RenderOptions],
    ) -> None:
        super().__init__(**options)
        self._form = form
        self._head: dict[str, Any] = {"model": raw_text(model), "created_at": created_at}
        self._thinking = thinking
        self._client_names = client_names or {}
        self._show_activity = show_activity and thinking
        self._times = times
        self._content = self._text("content" if form == "chat" else "response")
        self._thoughts = self._text("thinking")
        self._reasoning: set[str] = set()
        self._calls: dict[str, tuple[ToolCall, list[str]]] = {}
        """Calls that are not sent yet, with their arguments' pieces."""
        self._sent_calls: list[dict[str, Any]] = []
        self._notes: dict[str, str] = {}
        """Why the answer is empty, and what was declined: JSON lines have no comments that could say it."""

    def _text(self, field: str) -> Text:
        delta = {field: ""}
        if self._form == "chat":
            line = {**self._head, "message": {"role": "assistant", "content": "", **delta}, "done": False}
        else:
            line = {**self._head, "response": "", **delta, "done": False}
        before, _, after = json_bytes(line).rpartition(b'"%b":""' % field.encode())
        return Text(before + b'"%b":' % field.encode(), after + b"\n")

    # --- what an exchange asks ------------------------------------------------------------------

    def pieces(self, events: Iterable[Event]) -> list[bytes]:
        return [_LINE_ENDS.sub(_escape, piece) for piece in super().pieces(events)]

    def empty_line(self) -> bytes:
        """Returns a line without text, to keep the stream alive."""
        return self._line({"content": ""}, {"response": ""}, done=False)

    def _whole(self) -> bytes:
        thoughts = {"thinking": self._thoughts.whole()} if self._thoughts else {}
        calls = {"tool_calls": self._sent_calls} if self._sent_calls else {}
        return self._line(
            {"content": self._content.whole(), **thoughts, **calls},
            {"response": self._content.whole(), **thoughts},
            done=True,
        ).rstrip(b"\n")

    # --- lines ----------------------------------------------------------------------------------

    def _line(self, message: dict[str, Any], fields: dict[str, Any], *, done: bool) -> bytes:
        said = {"message": {"role": "assistant", **message}} if self._form == "chat" else fields
        end: dict[str, Any] = {}
        if done:
            usage = usage_fields(self._tokens(), self._times())
            notes = {**self._notes, UNCERTAIN_HEADER: "usage"} if self.spent.is_estimated else self._notes
            end = {"done_reason": raw_text(self.finish_reason), **usage, **notes}
        return json_bytes({**self._head, **said, "done": done, **end}) + b"\n"

    # --- thinking -------------------------------------------------------------------------------

    def _on_reasoning(self, event: ReasoningDelta, out: list[bytes]) -> None:
        if event.kind == "summary" and event.id in self._reasoning:  # raw reasoning is not sent to clients
            self._add_thought((event.id, event.part), event.text, out)

    def _add_thought(self, part: tuple[str, int], text: str, out: list[bytes]) -> None:
        self.visible = True
        self._thoughts.add(self._thoughts.with_separator(part, text), out)

    # --- items ----------------------------------------------------------------------------------

    def _on_item_started(self, event: ItemStarted, out: list[bytes]) -> None:
        item = event.item
        if item.choice:  # one answer is all that a client of this API can ask for
            return
        super()._on_item_started(event, out)
        if isinstance(item, Reasoning):
            if self._thinking:
                self._reasoning.add(item.id)
        elif isinstance(item, ToolCall):
            self._calls[item.id] = (item, [])
        elif self._show_activity and (line := activity_line(item)) is not None:
            self._add_thought((item.id, 0), line, out)

    def _on_arguments(self, event: ArgumentsDelta, out: list[bytes]) -> None:
        if event.id in self._calls:
            self._calls[event.id][1].append(event.text)

    def _on_item_ended(self, event: ItemEnded, out: list[bytes]) -> None:
        self._reasoning.discard(event.id)
        super()._on_item_ended(event, out)
        if event.id in self._calls:
            item, pieces = self._calls.pop(event.id)
            self._send_call(item, "".join(pieces), out, complete=event.status == "completed")

    def _on_approval(self, event: ApprovalRequested, _: list[bytes]) -> None:
        if not (event.asked or event.allowed):
            known = self._notes.get(DECLINED_HEADER)
            kinds = dict.fromkeys([*(known.split(", ") if known else ()), event.kind])
            self._notes[DECLINED_HEADER] = ", ".join(kinds)

    def _send_call(self, item: ToolCall, text: str, out: list[bytes], *, complete: bool) -> None:
        arguments = whole_input(text, custom=item.kind == "custom", complete=complete)
        if arguments is None:
            return
        name = self._client_names.get(item.name, item.name)
        function = {
            "index": len(self._sent_calls),
            "name": raw_text(name),
            "arguments": msgspec.Raw(arguments.encode()),
        }
        call = {"id": raw_text(item.call_id), "function": function}
        self._sent_calls.append(call)
        self._arguments.append(json_text(arguments))
        self.visible = True
        out.append(self._line({"content": "", "tool_calls": [call]}, {"response": ""}, done=False))

    def _error(self, failure: Failure) -> bytes:
        return error_line(failure)

    def _on_turn_ended(self, event: TurnEnded, out: list[bytes]) -> None:
        if event.empty:
            self._notes[EMPTY_HEADER] = event.empty
        super()._on_turn_ended(event, out)

    def _end(self, out: list[bytes]) -> None:
        out.append(self._line({"content": ""}, {"response": ""}, done=True))


def _escape(found: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(found[0].decode())


def usage_fields(tokens: Usage, times: TurnTimes) -> dict[str, int]:
    """Returns the counts and times in an answer's last line."""
    return {
        "total_duration": times.total,
        "load_duration": times.load,
        "prompt_eval_count": tokens.input,
        "prompt_eval_duration": times.prompt,
        "eval_count": tokens.output,
        "eval_duration": times.answer,
    }


def preload_body(form: Form, model: str, created_at: str, reason: str) -> bytes:
    body: dict[str, Any] = {"response": ""}
    if form == "chat":
        body = {"message": {"role": "assistant", "content": ""}}
    head = {"model": raw_text(model), "created_at": created_at}
    return json_bytes({**head, **body, "done": True, "done_reason": reason})


NOT_AS_EXPECTED: Final = (
    msgspec.MsgspecError,
    RecursionError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)
"""The errors of reading a model server's answer that is not JSON, or has other fields and types."""


def fill_in_body(answer: bytes, model: str, created_at: str, times: TurnTimes) -> bytes:
    """Converts an upstream's `answer` of `/v1/completions` to `/api/generate`. Raises `Fault` UPSTREAM_ERROR."""
    try:
        value = msgspec.json.decode(answer)
        choice, usage = value["choices"][0], value.get("usage") or {}
        text, reason = str(choice["text"]), str(choice.get("finish_reason") or "stop")
        tokens = Usage(int(usage.get("prompt_tokens") or 0), output=int(usage.get("completion_tokens") or 0))
    except NOT_AS_EXPECTED as error:
        raise Fault(NO_COMPLETION) from error
    line = {
        "model": raw_text(model),
        "created_at": created_at,
        "response": raw_text(text),
        "done": True,
        "done_reason": raw_text(reason),
        **usage_fields(tokens, TurnTimes(total=times.total, answer=times.total)),
    }
    return json_bytes(line)
