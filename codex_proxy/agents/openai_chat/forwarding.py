"""The dialect of a Chat Completions request that is forwarded, almost unchanged, to a server with the same API. Its
events have the answer's bytes (`ForwardedBytes`), usage, and how it ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import Ended, SingleTurn, Step
from codex_proxy.agents.openai_chat.dialect import FAILURES, UNEXPLAINED
from codex_proxy.agents.openai_chat.pass_through import PassThrough
from codex_proxy.agents.upstream.failures import BROKEN_OFF, MAX_ERROR_BYTES
from codex_proxy.agents.upstream.stream import End, Head, Message, encoded
from codex_proxy.agents.upstream.turn import UpstreamContext
from codex_proxy.core.empty_answers import EmptyReason
from codex_proxy.core.events import (
    Event,
    ForwardedBytes,
    StepCompleted,
    Stop,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.turn import ForwardedRequest, Turn

_USAGE: Final = "stream_options"
_CUT: Final = frozenset({Stop.LENGTH, Stop.CONTENT_FILTER})
"""Finish reasons that explain an answer without content."""
_REFUSING: Final = frozenset({400, 422, 500})


class Forwarding(SingleTurn):
    """Forwards the client's request. Sends it again if the upstream refuses `stream_options`, which asks for usage."""

    def __init__(self, request: ForwardedRequest, model: str, context: UpstreamContext) -> None:
        """`request` is the client's request; `model` is the upstream's name for its model. `context`: what all
        turns of this upstream share.
        """
        self._request = request
        self._model = model
        self._errors = context.errors
        self._refused = context.refused
        self._now = context.now
        self._pass_through = self._new_pass_through()
        self._error: Head | None = None
        self._error_body = bytearray()

    def begin(self, turn: Turn) -> Step:
        """Returns the step that starts the turn and sends the request."""
        return Step(
            [TurnStarted(model=self._model)], forwarded_body(self._request, self._model, self._refused)
        )

    def receive(self, messages: Sequence[Message]) -> Step:
        """Reads messages of the exchange, and returns a step with the resulting events. Messages after the end of
        the answer are ignored.
        """
        out: list[Event] = []
        writes = b""
        for message in messages:
            if self._ended:
                break
            if isinstance(message, bytes):
                if self._error is None:
                    self._pass(self._pass_through.feed(message), out)
                else:
                    self._error_body += message[: MAX_ERROR_BYTES - len(self._error_body)]
            elif isinstance(message, Head):
                if not 200 <= message.status < 300:
                    self._error = message
            else:
                writes = self._end(message, out)
        return Step(out, writes, close_stdin=self._ended)

    def eof(self, ended: Ended) -> Step:
        """Fails the turn with a broken connection if it has not ended."""
        out: list[Event] = []
        if not self._ended:
            self._fail(BROKEN_OFF, out)
        return Step(out)

    # --- the answer -----------------------------------------------------------------------------------

    def _new_pass_through(self) -> PassThrough:
        request = self._request
        named = None if request.model_asked == self._model else request.model_asked
        return PassThrough(stream=request.stream, wants_usage=request.include_usage, model_shown=named)

    def _pass(self, data: bytes, out: list[Event]) -> None:
        pass_through = self._pass_through
        if data:
            out.append(ForwardedBytes(data, pass_through.deltas))
            pass_through.deltas = 0
        if pass_through.fault is not None:
            kind, value = pass_through.fault.kind, pass_through.fault.value
            self._fail(FAILURES[kind] if kind in FAILURES else self._errors.of_event(value), out)
        elif pass_through.over:
            self._complete(out)

    def _end(self, end: End, out: list[Event]) -> bytes:
        """Handles the end of the exchange: returns the body of a second request if the upstream refused the usage
        option; else ends the turn. It is complete with `[DONE]`, a whole JSON object, or a finish reason (other than
        `error`) on a connection that did not fail.
        """
        if self._error is not None:
            return self._refused_by_upstream(self._error, bytes(self._error_body), out)
        self._pass(self._pass_through.close(), out)
        if self._ended:
            return b""
        if self._pass_through.finishes and end.failure is None:
            out.append(ForwardedBytes(self._pass_through.finish()))
            self._complete(out)
        else:
            self._fail(end.failure or BROKEN_OFF, out)
        return b""

    def _refused_by_upstream(self, head: Head, body: bytes, out: list[Event]) -> bytes:
        """Handles an answer with an error status: repeats the request if the upstream refused the usage option that
        only this server had added; otherwise fails the turn.
        """
        ours = self._request.stream and _USAGE not in self._request.fields and _USAGE not in self._refused
        if ours and head.status in _REFUSING and _USAGE.encode() in body:
            self._refused.add(_USAGE)
            self._error = None
            self._error_body.clear()
            self._pass_through = self._new_pass_through()
            return forwarded_body(self._request, self._model, self._refused)
        self._fail(self._errors.of_response(head.status, head.headers, body, self._now()), out)
        return b""

    def _complete(self, out: list[Event]) -> None:
        finishes = self._pass_through.finishes
        if self._pass_through.failed:
            self._fail(UNEXPLAINED, out)
            return
        usage = self._pass_through.usage
        if usage is not None:
            out.append(UsageReported(usage, "provider"))
        stop = finishes.get(0) or next(iter(finishes.values()), Stop.STOP)
        empty: EmptyReason = "reasoning-only" if self._pass_through.begun else "no-output"
        if self._pass_through.said or stop in _CUT:
            empty = ""
        out += [StepCompleted(usage), TurnEnded(stop, "provider", choice_stops=finishes, empty=empty)]
        self._ended = True

    def _fail(self, failure: Failure, out: list[Event]) -> None:
        self._ended = True
        out.append(TurnEnded(Stop.FAILED, "provider", failure))


def forwarded_body(request: ForwardedRequest, model: str, refused: Collection[str] = ()) -> bytes:
    """Returns the client's request with `model`. A stream also asks for usage, unless `stream_options` is `refused`.
    `developer` becomes `system`, which every server knows.
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
    return encoded(fields)
