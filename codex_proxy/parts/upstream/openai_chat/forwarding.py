"""The dialect of a Chat Completions request that is forwarded almost unchanged. Its events have the answer's bytes
(`ForwardedBytes`), usage, and how it ended.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import Dialect
from codex_proxy.agents.shared.tool_schemas import plain_schema
from codex_proxy.core.events import (
    EmptyReason,
    Event,
    ForwardedBytes,
    StepCompleted,
    Stop,
    TurnEnded,
    UsageReported,
    stop_of,
)
from codex_proxy.core.json_values import encode_json, value_at
from codex_proxy.core.turn import ForwardedRequest, Turn
from codex_proxy.parts.upstream.failures import BROKEN_OFF
from codex_proxy.parts.upstream.forms import SYSTEM_ROLE, TOOL_SCHEMAS, Forms, tries_of
from codex_proxy.parts.upstream.openai_chat.dialect import ERROR_WITHOUT_REASON, FAILURES, OpenAIChat
from codex_proxy.parts.upstream.openai_chat.forms import MESSAGE_FORMS, with_forms
from codex_proxy.parts.upstream.openai_chat.pass_through import PassThrough
from codex_proxy.parts.upstream.stream import End, Message
from codex_proxy.parts.upstream.turn import ExchangeTurn, UpstreamContext

_USAGE: Final = "stream_options"
_OPTIONAL: Final = {
    **dict.fromkeys((*MESSAGE_FORMS, TOOL_SCHEMAS), 0),
    "max_tokens": 1,
    _USAGE: 2,
    SYSTEM_ROLE: 3,
}
"""The forms of a forwarded request, as `body.OPTIONAL`. No field of the client is left out, unless it says nothing."""
_OTHER_NAMES: Final = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}
_NOTHING: Final = (b"null", b"[]")
_CUT_OFF_STOPS: Final = frozenset({Stop.LENGTH, Stop.CONTENT_FILTER})


def make_dialect(turn: Turn, model: str, context: UpstreamContext) -> Dialect[Message]:
    """Returns the dialect of a turn, forwarded or not. `model`: the upstream's name for it."""
    if turn.forwarded is not None:
        return ForwardedTurn(turn.forwarded, model, context)
    return OpenAIChat(model, context)


class ForwardedTurn(ExchangeTurn[PassThrough]):
    """A forwarded turn."""

    def __init__(self, request: ForwardedRequest, model: str, context: UpstreamContext) -> None:
        super().__init__(model, context)
        self._forwarded = request
        self._decoded: list[Any] | None = None
        """The messages, once another form of them is looked for."""

    def _new_answer(self) -> PassThrough:
        request = self._forwarded
        named = None if request.model_asked == self._model else request.model_asked
        return PassThrough(stream=request.stream, wants_usage=request.include_usage, model_shown=named)

    def _request(self) -> bytes:
        return encode_json(self._fields(self._refused))

    def _read_body(self, answer: PassThrough, data: bytes, out: list[Event]) -> None:
        self._pass(answer, answer.feed(data), out)

    def _end(self, answer: PassThrough, end: End, out: list[Event]) -> None:
        """Ends the turn. The answer is complete after `[DONE]`, a whole JSON object, or a finish reason on a connection
        that did not fail.
        """
        self._pass(answer, answer.close(), out)
        if self.ended:
            return
        if answer.finishes and end.failure is None:
            out.append(ForwardedBytes(answer.finish()))
            self._complete(answer, out)
        else:
            out += self._fail(end.failure or BROKEN_OFF)

    def _fields(self, refused: Forms) -> dict[str, Any]:
        return forwarded_fields(self._forwarded, self._model, refused, self._decoded)

    def _other_forms(self) -> list[Forms]:
        self._decoded = messages = msgspec.json.decode(self._forwarded.fields["messages"])
        return tries_of(self._fields, _OPTIONAL, self._refused, items=len(messages))

    def _pass(self, answer: PassThrough, data: bytes, out: list[Event]) -> None:
        if data:
            out.append(ForwardedBytes(data, answer.deltas))
            answer.deltas = 0
        if answer.fault is not None:
            kind, value = answer.fault.kind, answer.fault.value
            out += self._fail(FAILURES[kind] if kind in FAILURES else self._errors.of_event(value))
        elif answer.is_over:
            self._complete(answer, out)

    def _complete(self, answer: PassThrough, out: list[Event]) -> None:
        if answer.failed:
            out += self._fail(ERROR_WITHOUT_REASON)
            return
        if answer.usage is not None:
            out.append(UsageReported(answer.usage, "provider"))
        stop = answer.finishes.get(0) or next(iter(answer.finishes.values()), Stop.STOP)
        empty: EmptyReason = "reasoning-only" if answer.begun else "no-output"
        if Stop.INTERRUPTED in map(stop_of, answer.finishes.values()):
            empty = "cancelled"
        elif answer.has_output or stop in _CUT_OFF_STOPS:
            empty = ""
        ended = TurnEnded(stop, "provider", choice_stops=answer.finishes, empty=empty)
        out += [StepCompleted(answer.usage), ended]
        self.ended = True
        self._answer = None


def forwarded_fields(
    request: ForwardedRequest, model: str, refused: Forms = frozenset(), decoded: list[Any] | None = None
) -> dict[str, Any]:
    """Returns the fields for the upstream. A stream also asks for usage, and `developer` becomes `system`, which every
    server knows. `refused`: the forms that the upstream refuses; `decoded`: the messages, if they are decoded already.
    """
    fields: dict[str, Any] = {**request.fields, "model": model}
    given = request.fields.get(_USAGE)
    if request.stream and (_USAGE not in refused or given is not None):
        options = msgspec.json.decode(given) if given is not None else None
        fields[_USAGE] = {**(options or {}), "include_usage": True}
    fields["messages"] = _messages_in(request.fields["messages"], refused, decoded)
    if "max_tokens" in refused:
        fields = {_OTHER_NAMES.get(name, name): value for name, value in fields.items()}
    if TOOL_SCHEMAS in refused:
        fields |= {name: _tools_in(fields[name]) for name in ("tools", "functions") if name in fields}
    if "nulls" in refused:
        fields = {name: value for name, value in fields.items() if not _says_nothing(value)}
    return fields


def _messages_in(given: msgspec.Raw, refused: Forms, decoded: list[Any] | None) -> Any:
    if not refused.isdisjoint(MESSAGE_FORMS):
        messages = list(map(_as_system, msgspec.json.decode(given) if decoded is None else decoded))
        if (told := with_forms(messages, refused)) != messages:
            return told
    if b"developer" not in bytes(given):
        return given
    # Not decoded further: numbers stay as they were written.
    return list(map(_raw_as_system, msgspec.json.decode(given, type=list[dict[str, msgspec.Raw]])))


def _tools_in(given: msgspec.Raw) -> Any:
    tools = msgspec.json.decode(given)
    told = list(map(_with_plain_schema, tools)) if isinstance(tools, list) else tools
    return given if told is tools or all(map(operator.is_, told, tools)) else told


def _with_plain_schema(tool: Any) -> Any:
    function = value_at(tool, "function")
    inner = tool if function is None else function
    if not isinstance(parameters := value_at(inner, "parameters"), dict):
        return tool
    plain = plain_schema(msgspec.Raw(encode_json(parameters)))
    if isinstance(plain, msgspec.Raw):
        return tool
    told = {**inner, "parameters": plain}
    return told if function is None else {**tool, "function": told}


def _raw_as_system(message: dict[str, Any]) -> dict[str, Any]:
    is_developer = bytes(message.get("role", b"")).strip() == b'"developer"'
    return message | {"role": "system"} if is_developer else message


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"role": "system"} if message.get("role") == "developer" else message


def _says_nothing(value: Any) -> bool:
    return isinstance(value, msgspec.Raw) and b"".join(bytes(value).split()) in _NOTHING
