"""The dialect of Chat Completions servers. An answer is complete only with a finish reason or `[DONE]`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from codex_proxy.agents.dialect import Step
from codex_proxy.agents.shared.conversions import custom_input
from codex_proxy.agents.shared.response_items import raw_call, raw_message, raw_output
from codex_proxy.core.events import (
    AnswerDetails,
    Event,
    RawItem,
    StepCompleted,
    Stop,
    ToolCallRequested,
    TurnEnded,
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
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.turn import Turn
from codex_proxy.parts.upstream.failures import CONTRADICTION, EMPTY_ANSWER, NO_ANSWER, NO_JSON, TOO_LONG
from codex_proxy.parts.upstream.forms import Forms, tries_of
from codex_proxy.parts.upstream.openai_chat.answer import ChatAnswer
from codex_proxy.parts.upstream.openai_chat.body import OPTIONAL, request_body, request_fields
from codex_proxy.parts.upstream.openai_chat.calls import Call
from codex_proxy.parts.upstream.openai_chat.messages import ChatMessages
from codex_proxy.parts.upstream.stream import StreamEvent, is_error
from codex_proxy.parts.upstream.turn import UpstreamContext, UpstreamTurn

ERROR_WITHOUT_REASON: Final = Failure(
    FaultKind.UPSTREAM_ERROR, "The model server ended its answer with an error and no reason."
)
FAILURES: Final = {"done": EMPTY_ANSWER, "no_json": NO_JSON, "no_answer": NO_ANSWER, "too_long": TOO_LONG}
"""Failures by the kind of a `StreamEvent` that is no part of an answer."""
_CUT_OFF_STOPS: Final[dict[str, Stop]] = {
    "length": Stop.LENGTH,
    "content_filter": Stop.CONTENT_FILTER,
    Stop.INTERRUPTED: Stop.INTERRUPTED,
}
"""Finish reasons of answers that were cut off, whose calls are ignored."""


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
        out += answer.close()
        if answer.finish == "error":
            out += self._fail(ERROR_WITHOUT_REASON)
            return
        text = "".join(answer.text)
        if text:
            out.append(raw_message(answer.message_id, text))
            self._conversation.add(HistoryMessage("assistant", (TextPart(text),)))
        finish = stop_of(answer.finish or "")
        stop = _CUT_OFF_STOPS.get(finish, Stop.STOP)
        calls = answer.calls.named_calls() if stop is Stop.STOP else []
        self._check_number_of(calls)
        self._add_usage(answer.usage, out)
        ends = not calls or (self._ends_with_calls and all(call.item_id for call in calls))
        if not ends:
            self._ends_with_calls = False  # what the client does not see is remembered with its calls
            self._request_outputs(self._add_calls(answer, calls, out), out)
        out.append(StepCompleted(answer.usage))
        if ends:
            self.ended = True
            out.append(TurnEnded(Stop.TOOL_CALLS if calls else stop, "provider"))

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
            )
            out.append(raw_call(ask))
            self._conversation.add(HistoryCall(call.id, call.name, text, kind))
            asks.append(ask)
        return asks
