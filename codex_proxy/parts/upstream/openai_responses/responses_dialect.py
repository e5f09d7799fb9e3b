"""The dialect of servers with the Responses API. An answer ends only with `response.completed`, `.incomplete`,
`.failed` or `.cancelled`. The model's items are sent back unchanged.

"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import Step
from codex_proxy.agents.shared.conversions import custom_input
from codex_proxy.core.events import Event, RawItem, StepCompleted, Stop, ToolCallRequested, TurnEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryOutput, Part
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.turn import Turn
from codex_proxy.parts.upstream.failures import CONTRADICTION, NO_JSON, TOO_LONG
from codex_proxy.parts.upstream.openai_responses.answer import Call, ResponsesAnswer
from codex_proxy.parts.upstream.openai_responses.request_body import (
    CUSTOM,
    input_item,
    input_items,
    optional_forms,
    request_fields,
    with_forms,
)
from codex_proxy.parts.upstream.stream import StreamEvent, is_error
from codex_proxy.parts.upstream.turn import Forms, UpstreamContext, UpstreamTurn, tries_of

NO_ANSWER: Final = Failure(
    FaultKind.UPSTREAM_ERROR,
    "The model server's answer is not in the format of the Responses API. The operator must "
    "check the address of the upstream (it usually ends with /v1), or use --agent openai-chat.",
)
_FAULTS: Final = {"no_json": NO_JSON, "no_answer": NO_ANSWER, "too_long": TOO_LONG}
_STOPS: Final = {"completed": Stop.STOP, "incomplete": Stop.LENGTH, "cancelled": Stop.INTERRUPTED}
"""How a turn ends, by the response's status."""


class OpenAIResponses(UpstreamTurn[ResponsesAnswer]):
    def __init__(self, model: str, context: UpstreamContext) -> None:
        super().__init__(model, context)
        self._items: list[Any] = []
        """The items of the conversation: its history, the model's items of this turn, and the outputs of its calls."""

    def begin(self, turn: Turn) -> Step:
        self._items = input_items(turn.history)
        step = super().begin(turn)
        self._turn = msgspec.structs.replace(turn, history=())
        return step

    # --- one exchange -----------------------------------------------------------------------------

    def _new_answer(self) -> ResponsesAnswer:
        hosted = () if self._turn.hosted is None else self._turn.hosted.tools
        types = frozenset(f"{tool}_call" for tool in hosted)
        return ResponsesAnswer(self._context.new_id, streamed=self._streamed, hosted=types)

    def _request(self) -> bytes:
        return encode_json(self._fields(self._refused))

    def _fields(self, refused: Forms) -> dict[str, Any]:
        return request_fields(self._turn, self._model, self._items, refused)

    def _other_forms(self) -> list[Forms]:
        forms = optional_forms(self._turn)
        return tries_of(self._fields, forms, self._refused, items=len(self._items))

    def _put_output(self, call: ToolCallRequested, parts: tuple[Part, ...]) -> Event:
        given = input_item(HistoryOutput(call.call_id, parts, call.kind))
        (item,) = with_forms([given], self._refused & {CUSTOM})  # of the type of its call
        self._items.append(item)
        return RawItem(item["type"], encode_json(item))

    def _read(self, events: Sequence[StreamEvent], out: list[Event]) -> None:
        for event in events:
            answer = self._answer
            if answer is None:
                break
            if event.kind == "chunk" and not _is_error(event.value):
                out += answer.feed(event.value)
                if answer.contradicts:
                    out += self._fail(CONTRADICTION)
                elif answer.status:
                    self._complete(answer, out)
            elif event.kind in ("chunk", "error"):
                out += self._fail(self._errors.of_event(event.value))
            elif event.kind != "done":  # `[DONE]` stands behind the last event, where there is one
                out += self._fail(_FAULTS[event.kind])

    # --- the end of an answer -----------------------------------------------------------------------

    def _complete(self, answer: ResponsesAnswer, out: list[Event]) -> None:
        self._answer = None
        self._add_usage(answer.usage, out)
        if answer.status == "failed" or (answer.status == "cancelled" and answer.error):
            out += self._fail(self._errors.of_event({"error": answer.error or {"message": ""}}))
            return
        self._items += answer.items
        stop = _STOPS[answer.status]
        if stop is Stop.LENGTH and answer.reason == "content_filter":
            stop = Stop.CONTENT_FILTER
        calls = answer.calls if stop is Stop.STOP else []
        if self._fails_by_number_of(calls, out):
            return
        if calls:
            self._request_outputs(list(map(self._output_request, calls)), out)
        out.append(StepCompleted(answer.usage))
        if not calls:
            self.ended = True
            out.append(TurnEnded(stop, "provider"))

    def _output_request(self, call: Call) -> ToolCallRequested:
        kind, text = call.kind, call.text
        if kind == "function" and call.name in self._custom:  # it travelled as a function
            kind, text = "custom", custom_input(text)
        id = call.call_id
        return ToolCallRequested(id, id, call.name, text, id, kind, item_reported=bool(call.item_id))


def _is_error(event: dict[str, Any]) -> bool:
    if event.get("type") in ("error", "response.error"):
        return True
    is_answer = event.get("object") == "response" or str(event.get("type", "")).startswith("response.")
    return not is_answer and is_error(event)


def make_dialect(turn: Turn, model: str, context: UpstreamContext) -> OpenAIResponses:
    """Returns the dialect of a turn. `model`: the upstream's name for it."""
    return OpenAIResponses(model, context)
