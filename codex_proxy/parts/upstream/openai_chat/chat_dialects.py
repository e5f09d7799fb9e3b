"""The dialects of Chat Completions servers: of a turn, and of a request that is forwarded almost unchanged, whose
events have the answer's bytes (`ForwardedBytes`), usage, and how it ended. An answer is complete only with a
finish reason or `[DONE]`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import Dialect, Step
from codex_proxy.agents.shared.conversions import custom_input
from codex_proxy.agents.shared.history_items import raw_call, raw_message, raw_output
from codex_proxy.agents.shared.tool_schemas import plain_schema
from codex_proxy.core.events import (
    CUT_OFF_STOPS,
    AnswerDetails,
    EmptyReason,
    Event,
    ForwardedBytes,
    RawItem,
    StepCompleted,
    Stop,
    ToolCallRequested,
    TurnEnded,
    UsageReported,
    stop_of,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import (
    HistoryCall,
    HistoryMessage,
    HistoryOutput,
    Part,
    RawHistoryItem,
    TextPart,
    ToolKind,
)
from codex_proxy.core.json_values import encode_json, value_at
from codex_proxy.core.turn import ForwardedRequest, Turn
from codex_proxy.parts.upstream.failures import (
    BROKEN_OFF,
    CONTRADICTION,
    EMPTY_ANSWER,
    NO_ANSWER,
    NO_JSON,
    TOO_LONG,
)
from codex_proxy.parts.upstream.openai_chat.answer import ChatAnswer
from codex_proxy.parts.upstream.openai_chat.calls import Call
from codex_proxy.parts.upstream.openai_chat.pass_through import PassThrough
from codex_proxy.parts.upstream.openai_chat.request_body import (
    MESSAGE_FORMS,
    OPTIONAL,
    ChatMessages,
    request_body,
    request_fields,
    with_forms,
)
from codex_proxy.parts.upstream.stream import End, Message, StreamEvent, is_error
from codex_proxy.parts.upstream.turn import (
    SYSTEM_ROLE,
    TOOL_SCHEMAS,
    ExchangeTurn,
    Forms,
    UpstreamContext,
    UpstreamTurn,
    tries_of,
)

ERROR_WITHOUT_REASON: Final = Failure(
    FaultKind.UPSTREAM_ERROR, "The model server ended its answer with an error and no reason."
)
FAILURES: Final = {"done": EMPTY_ANSWER, "no_json": NO_JSON, "no_answer": NO_ANSWER, "too_long": TOO_LONG}
"""Failures by the kind of a `StreamEvent` that is no part of an answer."""
_WHOLE: Final = frozenset(
    {"", "stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "end_turn"}
)
"""Finish reasons of whole answers."""


class OpenAIChat(UpstreamTurn[ChatAnswer]):
    def __init__(self, model: str, context: UpstreamContext) -> None:
        super().__init__(model, context)
        self._reasoning_back = context.reasoning_back
        self._ends_with_calls = False
        """Whether the turn ends with an answer whose calls were all reported, because this server answers none."""
        self._conversation = ChatMessages()
        self._tokens: dict[str, dict[str, int]] = {}
        """Sums of `TOKEN_DETAILS`, for `AnswerDetails`."""

    def begin(self, turn: Turn) -> Step:
        self._conversation = ChatMessages(turn.history, reasoning_back=self._reasoning_back)
        step = super().begin(turn)
        # Reasoning that has to come back is remembered with the calls, as everything is that a client does not see.
        passes = turn.parallel_tool_calls and not self._reasoning_back
        self._ends_with_calls = passes and len(self._streamed) == len(turn.tools)
        self._turn = msgspec.structs.replace(turn, history=())
        return step

    # --- one exchange -----------------------------------------------------------------------------

    def _put_output(self, call: ToolCallRequested, parts: tuple[Part, ...]) -> Event:
        self._conversation.add(HistoryOutput(call.call_id, parts))
        return raw_output(call.call_id, parts)

    def _new_answer(self) -> ChatAnswer:
        taken = self._conversation.call_ids
        return ChatAnswer(self._context.new_id, streamed_kind=self._streamed.get, taken_ids=taken)

    def _request(self) -> bytes:
        return request_body(self._turn, self._model, self._conversation.messages(), self._refused)

    def _other_forms(self) -> list[Forms]:
        messages = self._conversation.messages()
        fields_of = partial(request_fields, self._turn, self._model, messages)
        return tries_of(fields_of, OPTIONAL, self._refused, items=len(messages))

    def _read(self, events: Sequence[StreamEvent], out: list[Event]) -> None:
        for event in events:
            answer = self._answer
            if answer is None:
                break
            if event.kind == "chunk":
                found = answer.feed(event.value)
                if found and answer.has_new_fields:
                    answer.has_new_fields = False
                    out.append(self._details_of(answer))
                out += found
                if answer.contradicts:
                    out += self._fail(CONTRADICTION)
                elif is_error(event.value):
                    out += self._fail(self._errors.of_event(event.value))
            elif event.kind == "error":
                out += self._fail(self._errors.of_event(event.value))
            elif event.kind == "done" and answer.begun:
                self._complete(answer, out)
            else:
                out += self._fail(FAILURES[event.kind])

    def _ends_without_last_event(self, answer: ChatAnswer, out: list[Event]) -> bool:
        if answer.finish is None:
            return False
        self._complete(answer, out)
        return True

    # --- the end of an answer -----------------------------------------------------------------------

    def _complete(self, answer: ChatAnswer, out: list[Event]) -> None:
        self._answer = None
        self._add_details(answer, out)  # before the first item, if the answer's items come only now
        finish = stop_of(answer.finish or "")
        is_cut_off = finish in CUT_OFF_STOPS  # then its calls are ignored
        out += answer.close(cut_off=is_cut_off)
        if answer.finish == "error":
            out += self._fail(ERROR_WITHOUT_REASON)
            return
        text = str(answer.text)
        if text:
            out.append(raw_message(answer.message_id, text))
            self._conversation.add(HistoryMessage("assistant", (TextPart(text),)))
        calls = [] if is_cut_off else answer.calls.named_calls()
        if self._fails_by_number_of(calls, out):
            return
        self._add_usage(answer.usage, out)
        is_known = all(call.item_id and not call.provider_fields for call in calls)
        ends = not calls or (self._ends_with_calls and is_known)
        if not ends:
            self._ends_with_calls = False  # what the client does not see is remembered with its calls
            self._request_outputs(self._add_calls(answer, calls, out), out)
        out.append(StepCompleted(answer.usage))
        if ends:
            self.ended = True
            stop = Stop.TOOL_CALLS if calls else Stop.STOP if finish in _WHOLE else finish
            out.append(TurnEnded(stop, "provider"))

    def _add_details(self, answer: ChatAnswer, out: list[Event]) -> None:
        for field, counts in answer.tokens.items():
            sums = self._tokens.setdefault(field, {})
            for name, count in counts.items():
                sums[name] = sums.get(name, 0) + count
        if answer.fields or answer.annotations or self._tokens:
            out.append(self._details_of(answer))

    def _details_of(self, answer: ChatAnswer) -> AnswerDetails:
        return AnswerDetails(
            {name: msgspec.Raw(encode_json(value)) for name, value in answer.fields.items()},
            encode_json(answer.annotations) if answer.annotations else b"",
            {field: dict(sums) for field, sums in self._tokens.items()},
        )

    def _add_calls(
        self, answer: ChatAnswer, calls: Sequence[Call], out: list[Event]
    ) -> list[ToolCallRequested]:
        asks: list[ToolCallRequested] = []
        if self._reasoning_back and answer.reasoning:
            content = [{"type": "reasoning_text", "text": "".join(answer.reasoning)}]
            item = {"type": "reasoning", "id": answer.reasoning_id, "summary": [], "content": content}
            out.append(RawItem("reasoning", encode_json(item)))
            self._conversation.add(RawHistoryItem(encode_json(item)))
        for call in calls:
            kind: ToolKind = "custom" if call.name in self._custom else "function"
            text = custom_input("".join(call.arguments)) if kind == "custom" else call.text
            ask = ToolCallRequested(
                *(call.id, call.id, call.name, text, call.id, kind),
                old_form=call.old_form,
                item_reported=bool(call.item_id),
                provider_fields=call.provider_fields,
            )
            out.append(raw_call(ask))
            self._conversation.add(
                HistoryCall(call.id, call.name, text, kind, provider_fields=call.provider_fields)
            )
            asks.append(ask)
        return asks


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
        return PassThrough(
            stream=request.stream,
            wants_usage=request.include_usage,
            model_shown=named,
            several=bytes(request.fields.get("n", b"1")) not in (b"1", b"null"),
            new_id=self._context.new_id,
        )

    def _request(self) -> bytes:
        return encode_json(self._fields(self._refused))

    def _read_body(self, answer: PassThrough, data: bytes, out: list[Event]) -> None:
        self._pass(answer, answer.feed(data), out)

    def _end(self, answer: PassThrough, end: End, out: list[Event]) -> None:
        """Ends the turn. The answer is complete after `[DONE]`, a whole JSON object, or a finish reason of each choice,
        whatever becomes of the connection then.
        """
        self._pass(answer, answer.close(), out)
        if self.ended:
            return
        if answer.has_ended:
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
        elif answer.has_output or stop_of(stop) in CUT_OFF_STOPS:
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
    schema = msgspec.Raw(encode_json(parameters))
    plain = plain_schema(schema)
    if plain == schema:
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
