"""The dialect of servers with the Responses API, for one turn: one request, or several if codex-proxy runs tools.

An answer ends only with `response.completed`, `.incomplete`, `.failed` or `.cancelled`; otherwise the turn fails. The
model's items are sent back to it unchanged, encrypted reasoning included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import NOTHING, Reply, Step, ToolReply
from codex_proxy.agents.dialects.conversions import custom_input
from codex_proxy.agents.openai_responses.answer import Call, Kind, ResponsesAnswer
from codex_proxy.agents.openai_responses.body import input_items, output_item, refused_field, request_body
from codex_proxy.agents.upstream.failures import NO_JSON, TOO_LONG
from codex_proxy.agents.upstream.stream import StreamEvent, encoded
from codex_proxy.agents.upstream.turn import UpstreamContext, UpstreamTurn
from codex_proxy.core.events import (
    Event,
    Notice,
    RawItem,
    StepCompleted,
    Stop,
    ToolCallRequested,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryOutput, TextPart
from codex_proxy.core.turn import Turn

NO_ANSWER: Final = Failure(
    kind=FaultKind.UPSTREAM_ERROR,
    message="The model server's answer is not in the format of the Responses API. The operator must "
    "check the address of the upstream (it usually ends with /v1), or use --agent openai-chat.",
)
_FAULTS: Final = {"no_json": NO_JSON, "no_answer": NO_ANSWER, "too_long": TOO_LONG}
_CUT: Final = {
    "max_output_tokens": Stop.LENGTH,
    "max_tokens": Stop.LENGTH,
    "content_filter": Stop.CONTENT_FILTER,
}


class OpenAIResponses(UpstreamTurn[ResponsesAnswer]):
    """The `Dialect` of servers with the Responses API. Methods return a `Step`: events, and the body of the next
    request, if any.
    """

    def __init__(self, model: str, context: UpstreamContext) -> None:
        """`model`: the upstream's name for the model. `context`: what all turns of this upstream share."""
        super().__init__(model, context)
        self._said: list[Any] = []
        """The items of this turn: those of the model, and the outputs of its calls."""
        self._streamed: frozenset[tuple[Kind, str]] = frozenset()
        """The tools whose calls become items while they arrive."""
        self._asked: dict[str, Call] = {}
        """Calls that wait for outputs, by id."""

    def begin(self, turn: Turn) -> Step:
        """Returns the step that starts the turn and sends the first request."""
        self._turn = turn
        self._custom = frozenset(tool.name for tool in turn.tools if tool.kind == "custom")
        # What the server checks, runs or hides has to be whole before the client hears of it.
        self._streamed = frozenset(
            (tool.kind, tool.name)
            for tool in turn.tools
            if turn.parallel_tool_calls and not tool.strict and tool.mcp is None
        )
        return Step([TurnStarted(model=self._model)], self._next_request())

    def answer(self, request_id: str, reply: Reply) -> Step:
        """Adds the output of a call to the conversation. The step sends the next request if no call of the last answer
        lacks its output.
        """
        if request_id not in self._asked or not isinstance(reply, ToolReply) or self._ended:
            return NOTHING
        output = self._put_output(self._asked.pop(request_id), reply)
        return Step([output], b"" if self._asked else self._next_request())

    # --- one exchange -----------------------------------------------------------------------------

    def _new_answer(self) -> ResponsesAnswer:
        return ResponsesAnswer(self._new_id, streamed=self._streamed)

    def _request(self) -> bytes:
        items = [*input_items(self._turn.history, self._refused), *self._said]
        return request_body(self._turn, self._model, items, self._refused)

    def _put_output(self, call: Call, reply: ToolReply) -> Event:
        as_function = "custom" in self._refused
        item = output_item(HistoryOutput(call.call_id, reply.parts, call.kind), as_function=as_function)
        self._said.append(item)
        return RawItem(item["type"], encoded(item))

    def _read(self, events: Sequence[StreamEvent], out: list[Event]) -> None:
        for event in events:
            answer = self._answer
            if answer is None:
                break
            if event.kind == "chunk" and not _is_error(event.value):
                out += answer.feed(event.value)
                if answer.status:
                    self._complete(answer, out)
            elif event.kind in ("chunk", "error"):
                out += self._failed(self._errors.of_event(event.value))
            elif event.kind != "done":  # `[DONE]` stands behind the last event, where there is one
                out += self._failed(_FAULTS[event.kind])

    def _ends_without_last_event(self, answer: ResponsesAnswer, out: list[Event]) -> bool:
        return False

    def _refused_field(self, status: int, body: bytes) -> str | None:
        return refused_field(self._turn, self._refused, status, body)

    # --- the end of an answer -----------------------------------------------------------------------

    def _complete(self, answer: ResponsesAnswer, out: list[Event]) -> None:
        """Handles an answer with a final status: fails the turn (`failed`, `cancelled`), requests the outputs of its
        calls, or ends the turn.
        """
        self._answer = None
        self._add_usage(answer.usage, out)
        if answer.status in ("failed", "cancelled"):
            out += self._failed(self._errors.of_event({"error": answer.error or {"message": ""}}))
            return
        self._said += answer.items
        stop = _CUT.get(answer.reason, Stop.LENGTH) if answer.status == "incomplete" else Stop.STOP
        calls = answer.calls if stop is Stop.STOP else []
        self._check_number_of(calls)
        if calls:
            self._request_outputs(calls, out)
        out.append(StepCompleted(answer.usage))
        if not calls:
            self._ended = True
            out.append(TurnEnded(stop, "provider"))

    def _request_outputs(self, calls: Sequence[Call], out: list[Event]) -> None:
        """Requests the output of each call. An invalid call gets an error text as its output at once; if all are
        invalid, `_writes` is the next request.
        """
        for made in calls:
            call = made
            if made.kind == "function" and made.name in self._custom:  # it travelled as a function
                call = msgspec.structs.replace(made, kind="custom", text=custom_input(made.text))
            item_reported = bool(call.item_id)
            wrong = None if item_reported else self._fault_in_call(call.name, call.kind, call.text)
            if wrong is None:
                self._asked[call.call_id] = call
                id = call.call_id
                out.append(
                    ToolCallRequested(
                        id, id, call.name, call.text, id, call.kind, item_reported=item_reported
                    )
                )
            else:
                out += [Notice(wrong[0], call.name), self._put_output(call, ToolReply((TextPart(wrong[1]),)))]
        if not self._asked:
            self._writes = self._next_request()


def _is_error(event: dict[str, Any]) -> bool:
    """Returns whether the decoded JSON of an event or a whole body is an error, in any of the forms that servers
    use.
    """
    if event.get("type") == "error" or event.get("object") == "error":
        return True
    is_answer = event.get("object") == "response" or str(event.get("type", "")).startswith("response.")
    return not is_answer and any(event.get(name) for name in ("error", "detail", "message"))
