"""The dialect of a Chat Completions request that is forwarded almost unchanged. Its events have the answer's bytes
(`ForwardedBytes`), usage, and how it ended.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import Dialect
from codex_proxy.agents.openai_chat.dialect import ERROR_WITHOUT_REASON, FAILURES, OpenAIChat
from codex_proxy.agents.openai_chat.pass_through import PassThrough
from codex_proxy.agents.upstream.failures import BROKEN_OFF
from codex_proxy.agents.upstream.stream import End, Message
from codex_proxy.agents.upstream.turn import ExchangeTurn, UpstreamContext
from codex_proxy.core.empty_answers import EmptyReason
from codex_proxy.core.events import (
    Event,
    ForwardedBytes,
    StepCompleted,
    Stop,
    TurnEnded,
    UsageReported,
)
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.turn import ForwardedRequest, Turn

_USAGE: Final = "stream_options"
_CUT_OFF_STOPS: Final = frozenset({Stop.LENGTH, Stop.CONTENT_FILTER})


def make_dialect(turn: Turn, model: str, context: UpstreamContext) -> Dialect[Message]:
    """Returns the dialect of a turn, forwarded or not. `model`: the upstream's name for it."""
    if turn.forwarded is not None:
        return ForwardedTurn(turn.forwarded, model, context)
    return OpenAIChat(model, context)


class ForwardedTurn(ExchangeTurn[PassThrough]):
    """A forwarded turn. Repeats the request if the upstream refuses `stream_options`, which asks for usage."""

    def __init__(self, request: ForwardedRequest, model: str, context: UpstreamContext) -> None:
        super().__init__(model, context)
        self._forwarded = request

    def _new_answer(self) -> PassThrough:
        request = self._forwarded
        named = None if request.model_asked == self._model else request.model_asked
        return PassThrough(stream=request.stream, wants_usage=request.include_usage, model_shown=named)

    def _request(self) -> bytes:
        return forwarded_body(self._forwarded, self._model, self._refused)

    def _read_body(self, answer: PassThrough, data: bytes, out: list[Event]) -> None:
        self._pass(answer, answer.feed(data), out)

    def _end(self, answer: PassThrough, end: End, out: list[Event]) -> None:
        """Ends the turn. The answer is complete after `[DONE]`, a whole JSON object, or a finish reason on a connection
        that did not fail.
        """
        self._pass(answer, answer.close(), out)
        if self._ended:
            return
        if answer.finishes and end.failure is None:
            out.append(ForwardedBytes(answer.finish()))
            self._complete(answer, out)
        else:
            out += self._fail(end.failure or BROKEN_OFF)

    def _refused_field(self, error: bytes) -> str | None:
        # Only a field that this server alone has added may be left out.
        request = self._forwarded
        ours = request.stream and _USAGE not in request.fields and _USAGE not in self._refused
        return _USAGE if ours and _USAGE.encode() in error else None

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
        if answer.has_output or stop in _CUT_OFF_STOPS:
            empty = ""
        ended = TurnEnded(stop, "provider", choice_stops=answer.finishes, empty=empty)
        out += [StepCompleted(answer.usage), ended]
        self._ended = True
        self._answer = None


def forwarded_body(request: ForwardedRequest, model: str, refused: Collection[str] = ()) -> bytes:
    """Returns the body for the upstream. A stream also asks for usage, unless that is `refused`. `developer` becomes
    `system`, which every server knows.
    """
    fields: dict[str, Any] = {**request.fields, "model": model}
    if request.stream and _USAGE not in refused:
        given = request.fields.get(_USAGE)
        options = msgspec.json.decode(given) if given is not None else None
        fields[_USAGE] = {**(options or {}), "include_usage": True}
    messages = request.fields["messages"]
    if b"developer" in bytes(messages):
        fields["messages"] = [
            message | {"role": "system"}
            if bytes(message.get("role", b"")).strip() == b'"developer"'
            else message
            for message in msgspec.json.decode(messages, type=list[dict[str, msgspec.Raw]])
        ]
    return encode_json(fields)
