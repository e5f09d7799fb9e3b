"""The dialect of servers of the Responses API: one turn, in one request or in several where tools are run in it.

In: `Head`, bytes and `End` of each exchange. Out: events of the common vocabulary, and the bodies of requests. Only
`response.completed` and its siblings are the end of an answer: a connection that ends before has broken off, however
cleanly. Items go back to the model as they came from it, its encrypted reasoning among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.base import NOTHING, Ended, Reply, Step, ToolReply
from codex_proxy.agents.openai_chat.body import custom_input, encoded
from codex_proxy.agents.openai_chat.calls import is_json
from codex_proxy.agents.openai_chat.exchange import End, Head, Message
from codex_proxy.agents.openai_chat.failures import (
    BROKEN_OFF,
    MAX_ERROR_BYTES,
    NO_JSON,
    TOO_LONG,
    ErrorReader,
)
from codex_proxy.agents.openai_chat.stream import MAX_LINE_BYTES, AnswerReader, StreamEvent
from codex_proxy.agents.openai_responses.answer import Answer, Call
from codex_proxy.agents.openai_responses.body import input_items, output_item, refused_field, request_body
from codex_proxy.core.events import (
    Event,
    Notice,
    RawItem,
    StepCompleted,
    Stop,
    ToolCallRequested,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryItem, HistoryOutput, TextPart
from codex_proxy.core.turn import Turn

NO_ANSWER: Final = Failure(
    kind=FaultKind.UPSTREAM_ERROR,
    message="The model server's answer is not one of the Responses API: check the address of the upstream (it usually "
    "ends with /v1), or use --agent openai-chat.",
)
_FAULTS: Final = {"no_json": NO_JSON, "no_answer": NO_ANSWER, "too_long": TOO_LONG}
_CUT: Final = {
    "max_output_tokens": Stop.LENGTH,
    "max_tokens": Stop.LENGTH,
    "content_filter": Stop.CONTENT_FILTER,
}


class OpenAIResponses:
    """A `Dialect` whose transport carries HTTP exchanges. Each of its writes is the body of a request."""

    def __init__(
        self,
        model: str,
        *,
        errors: ErrorReader,
        refused: set[str],
        new_id: Callable[[str], str],
        now: Callable[[], float],
    ) -> None:
        """`model`: the upstream's name of the model. `refused`: the optional fields that this upstream does not take,
        shared by all turns. `new_id`: a prefix in, a new name out. `now`: seconds since 1970."""
        self._model = model
        self._errors = errors
        self._refused = refused
        self._new_id = new_id
        self._now = now
        self._turn = Turn(model=model, history=())
        self._custom: frozenset[str] = frozenset()
        self._said: list[Any] = []
        """Items of this turn: what the model put out, and the outputs of its calls."""
        self._answer: Answer | None = None
        """The answer that is being read or waited for; None while tools are run, and after the end."""
        self._reader: AnswerReader | None = None
        self._error: Head | None = None
        self._error_body: list[bytes] = []
        self._spent: Usage | None = None
        self._asked: dict[str, Call] = {}
        """Calls that wait for outputs, by id."""
        self._writes = b""
        self._ended = False

    @property
    def finished(self) -> bool:
        """Whether the turn has ended."""
        return self._ended

    @property
    def can_resume(self) -> bool:
        """Always False: the server is asked to store nothing."""
        return False

    def begin(self, turn: Turn) -> Step:
        """Returns the step that sends the first request."""
        self._turn = turn
        self._custom = frozenset(tool.name for tool in turn.tools if tool.kind == "custom")
        return Step([TurnStarted(model=self._model)], self._ask())

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> Step:
        """Never called: `can_resume` is False."""
        return NOTHING

    def receive(self, messages: Sequence[Message]) -> Step:
        """Reads messages of the current exchange. Those after the end of an answer are ignored."""
        out: list[Event] = []
        self._writes = b""
        for message in messages:
            if self._answer is None:
                break
            if isinstance(message, Head):
                if 200 <= message.status < 300:
                    self._reader = AnswerReader(MAX_LINE_BYTES)
                else:
                    self._error = message
            elif isinstance(message, End):
                self._end(message, out)
            elif self._error is not None:
                if sum(map(len, self._error_body)) < MAX_ERROR_BYTES:
                    self._error_body.append(message)
            elif self._reader is not None:
                self._read(self._reader.feed(message), out)
        return Step(out, self._writes, close_stdin=self._ended)

    def answer(self, ask_id: str, reply: Reply) -> Step:
        """Adds the output of a call. The last output of a step sends the next request."""
        if ask_id not in self._asked or not isinstance(reply, ToolReply) or self._ended:
            return NOTHING
        output = self._put_output(self._asked.pop(ask_id), reply)
        return Step([output], b"" if self._asked else self._ask())

    def interrupt(self) -> Step:
        """Does nothing: closing the connection is how the upstream learns that the client has left."""
        return NOTHING

    def eof(self, ended: Ended) -> Step:
        """Fails the turn if it has not ended. `ended` is not used: an upstream has no process."""
        return Step([] if self._ended else self._failed(BROKEN_OFF))

    # --- one exchange -----------------------------------------------------------------------------

    def _ask(self) -> bytes:
        """Starts the next answer. Returns the body of its request."""
        self._answer = Answer(self._new_id)
        self._reader = self._error = None
        self._error_body = []
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

    def _end(self, end: End, out: list[Event]) -> None:
        """Handles the end of the exchange."""
        if self._error is not None:
            self._refused_by_upstream(self._error, b"".join(self._error_body), out)
            return
        if self._reader is not None:
            self._read(self._reader.close(), out)
        if self._answer is not None:
            out += self._failed(end.failure or BROKEN_OFF)

    def _refused_by_upstream(self, head: Head, body: bytes, out: list[Event]) -> None:
        """Handles an answer with an error status: fails the turn or, if the error names an optional field, repeats
        the request without it. That field is left out from then on."""
        field = refused_field(self._turn, self._refused, head.status, body)
        if field is not None:
            self._refused.add(field)
            self._writes = self._ask()
        else:
            out += self._failed(self._errors.of_response(head.status, head.headers, body, self._now()))

    # --- the end of an answer -----------------------------------------------------------------------

    def _complete(self, answer: Answer, out: list[Event]) -> None:
        """Handles the end of the answer: complete, cut off, or failed."""
        self._answer = None
        if answer.usage is not None:
            self._spent = answer.usage if self._spent is None else self._spent + answer.usage
            out.append(UsageReported(self._spent, "provider"))
        if answer.status in ("failed", "cancelled"):
            out += self._failed(self._errors.of_event({"error": answer.error or {"message": ""}}))
            return
        self._said += answer.items
        stop = _CUT.get(answer.reason, Stop.LENGTH) if answer.status == "incomplete" else Stop.STOP
        calls = answer.calls if stop is Stop.STOP else []
        if calls:
            self._hold(calls, out)
        out.append(StepCompleted(answer.usage))
        if not calls:
            self._ended = True
            out.append(TurnEnded(stop, "provider"))

    def _hold(self, calls: Sequence[Call], out: list[Event]) -> None:
        """Adds the calls of a step, which wait for their outputs. A call that cannot be made gets an error as its
        output at once."""
        for made in calls:
            call = made
            if made.kind == "function" and made.name in self._custom:  # it travelled as a function
                call = msgspec.structs.replace(made, kind="custom", text=custom_input(made.text))
            wrong = self._wrong_with(call)
            if wrong is None:
                self._asked[call.call_id] = call
                out.append(
                    ToolCallRequested(
                        call.call_id, call.call_id, call.name, call.text, call.call_id, call.kind
                    )
                )
            else:
                out += [Notice(wrong[0], call.name), self._put_output(call, ToolReply((TextPart(wrong[1]),)))]
        if not self._asked:
            self._writes = self._ask()

    def _wrong_with(self, call: Call) -> tuple[str, str] | None:
        """Returns why a call cannot be made: the code of a notice, and the error text for the model. None if it can
        be made."""
        if all(tool.name != call.name for tool in self._turn.tools):
            return (
                "unoffered_call",
                f"Error: {call.name} is not a registered MCP tool, and no other tool that is offered.",
            )
        if call.kind == "function" and not is_json(call.text):
            return "unreadable_arguments", "Error: the arguments are not JSON. Make the call again."
        return None

    def _failed(self, failure: Failure) -> list[Event]:
        self._ended = True
        self._answer = None
        return [TurnEnded(Stop.FAILED, "provider", failure)]


def _is_error(event: dict[str, Any]) -> bool:
    """Returns whether an event or a body is an error, in any of the shapes that servers use."""
    if event.get("type") == "error" or event.get("object") == "error":
        return True
    is_answer = event.get("object") == "response" or str(event.get("type", "")).startswith("response.")
    return not is_answer and any(event.get(name) for name in ("error", "detail", "message"))
