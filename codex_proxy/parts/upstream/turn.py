"""The base of dialects that send HTTP requests to a model server: one exchange after another, until there is an answer
or a failure. A request that is refused is sent again in other forms, which follow from the request, not from the words
of the refusal. A form is a name (`stream_options`, `system_messages`); the bodies of an API say what it changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from codex_proxy.agents.dialect import (
    MAX_UNANSWERED,
    NOTHING,
    Ended,
    Reply,
    SingleTurn,
    Step,
    ToolReply,
)
from codex_proxy.core.events import (
    Event,
    ItemEnded,
    ItemStarted,
    Notice,
    ToolCallRequested,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Part, TextPart, ToolKind
from codex_proxy.core.json_values import objects_in, text_at
from codex_proxy.core.options import OPTIONS
from codex_proxy.core.repair import MAX_ITEMS as MAX_STARTED
from codex_proxy.core.repair import MAX_OPEN_ITEMS
from codex_proxy.core.turn import Turn, after_a_call
from codex_proxy.parts.upstream.failures import (
    BROKEN_OFF,
    MAX_ERROR_BYTES,
    TOO_MANY_CALLS,
    TOO_MANY_ITEMS,
    ErrorReader,
)
from codex_proxy.parts.upstream.stream import (
    MAX_LINE_BYTES,
    AnswerReader,
    End,
    Head,
    Message,
    StreamEvent,
    is_json,
)

Forms: TypeAlias = frozenset[str]

TOOL_SCHEMAS: Final = "tool_schemas"
"""The parameters of tools in the form that every provider takes."""
JSON_SCHEMA: Final = "json_schema"
"""The schema of the answer, which is said in words where an upstream refuses it."""
ALTERNATING: Final = "alternating_roles"
"""No two messages of the user in a row."""
SYSTEM_ROLE: Final = "system_role"
"""Instructions as messages of the user. They weigh less there, so it is the last form, where little else is left."""
NAMED_TOOL: Final = "named_tool"
"""`required` in place of a tool's name, which is the only one."""
OPTION_FORMS: Final = tuple(option.chat_body for option in OPTIONS if option.chat_body)
"""Options of the request, which are left out."""
_WITHOUT_LOSS: Final = frozenset(
    {NAMED_TOOL, "max_tokens", "stream_options", "include", "store", "developer_role", "parts"}
)
"""Forms of higher ranks that change nothing of an answer."""
REMEMBERED_SECONDS: Final = 3600.0
"""How long an upstream gets a request's other form at once, after it took it."""
MAX_REMEMBERED: Final = 1000
"""Maximum clients and models whose forms are remembered."""


MAX_ITEMS: Final = 2000
"""The most items of a conversation that is sent in another form: to find the forms, it is written some ten times."""


def option_fields(turn: Turn, body: Literal["chat", "responses"], refused: Forms) -> dict[str, Any]:
    """Returns the fields of a body that have values of the turn as they are."""
    values, fields = msgspec.structs.asdict(turn), dict[str, Any]()
    for option in OPTIONS:
        path = option.chat_body if body == "chat" else option.responses_body
        value = values[option.field]
        if path and value is not None and value not in option.harmless and option.chat_body not in refused:
            outer, _, name = path.rpartition(".")
            (fields.setdefault(outer, {}) if outer else fields)[name] = value
    return fields


def schema_in_words(turn: Turn, refused: Forms) -> bool:
    """Whether the request says the answer's schema in words, since the upstream refuses schemas."""
    return turn.output_schema is not None and "json_schema" in refused


def text_of(content: Any) -> str:
    """Returns the text of a message's `content`: a text itself, or the texts of its parts."""
    if isinstance(content, str):
        return content
    return "\n\n".join(text_at(part, "text") for part in objects_in(content))


def tries_of(
    fields_of: Callable[[Forms], Any], ranks: Mapping[str, int], used: Forms, *, items: int
) -> list[Forms]:
    """Returns the forms in which a refused request is sent again, at most two tries: first with those of the lowest
    rank that change the request, then with all; none for a request of more than `MAX_ITEMS` `items`. `fields_of`
    returns the request in given forms, to compare; `used`: the forms that it was sent in.
    """
    if items > MAX_ITEMS:
        return []
    changing = _changing(fields_of, ranks, used)
    if not changing:
        return []
    milder = changing - {SYSTEM_ROLE} or changing
    lowest = min(ranks[form] for form in milder)
    first = used | {form for form in milder if ranks[form] == lowest}
    is_rest = all(ranks[form] == 0 or form in _WITHOUT_LOSS for form in milder)
    last = used | (changing if is_rest else milder)
    if JSON_SCHEMA in changing:  # in words it is one more system message
        last |= _changing(fields_of, ranks, last) - {SYSTEM_ROLE}
    return list(dict.fromkeys(forms | _following(fields_of, ranks, forms) for forms in (first, last)))


def _following(fields_of: Callable[[Forms], Any], ranks: Mapping[str, int], forms: Forms) -> Forms:
    """Returns the form that is needed where other forms have put messages of the user side by side."""
    if ALTERNATING not in ranks or ALTERNATING in forms:
        return frozenset()
    following = frozenset({ALTERNATING})
    return following if fields_of(forms | following) != fields_of(forms) else frozenset()


def _changing(fields_of: Callable[[Forms], Any], ranks: Mapping[str, int], used: Forms) -> Forms:
    sent = fields_of(used)
    return frozenset(form for form in ranks.keys() - used if fields_of(used | {form}) != sent)


class RememberedForms:
    """The forms that an upstream took after it had refused others, by client and model: one client's wrong value must
    not change what another one sends.
    """

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], tuple[Forms, float]] = {}

    def of(self, owner: str, model: str, now: float) -> Forms:
        """Returns the forms to begin with. `now`: seconds of any clock that runs on."""
        forms, until = self._taken.get((owner, model), (frozenset(), 0.0))
        return forms if now < until else frozenset()

    def remember(self, owner: str, model: str, forms: Forms, now: float) -> None:
        self._taken.pop((owner, model), None)
        self._taken[owner, model] = (forms, now + REMEMBERED_SECONDS)
        if len(self._taken) > MAX_REMEMBERED:
            del self._taken[next(iter(self._taken))]


A = TypeVar("A")

_REFUSING = frozenset({400, 422})
"""Statuses with which upstreams refuse a form of a request."""
_TEMPORARY = frozenset({408, 429, 502, 503, 504})
"""Statuses that say nothing about the form of a request."""


class UpstreamContext(msgspec.Struct, frozen=True):
    errors: ErrorReader
    refused: Collection[str]
    """Forms that the upstream is known to refuse."""
    new_id: Callable[[str], str]
    now: Callable[[], float]
    reasoning_back: str = ""
    """The field in which its models get their reasoning back, if any."""
    remembered: RememberedForms = msgspec.field(default_factory=RememberedForms)
    """The forms that turns have found."""


class ExchangeTurn(SingleTurn, ABC, Generic[A]):
    """A turn that takes one or more exchanges. `A`: what reads or collects an answer. A refused request is sent in at
    most two other forms, if there are any.
    """

    def __init__(self, model: str, context: UpstreamContext) -> None:
        self._model = model
        self._errors = context.errors
        self._known: Forms = frozenset(context.refused)
        self._refused = self._known
        """The forms that this turn does without."""
        self._owner = ""
        self._refusal: Failure | None = None
        """The current exchange's first refusal, while other forms are tried."""
        self._tries: list[Forms] = []
        self._context = context
        self._now = context.now
        self._failed = False
        self._answer: A | None = None
        """The answer being read or waited for; None while tools run, and after the end."""
        self._error: Head | None = None
        self._error_body = bytearray()
        self._writes = b""
        """The next request's body, or empty."""

    @property
    def changed(self) -> tuple[str, ...]:
        """What the upstream has refused, so that it was left out or sent in another form."""
        return tuple(sorted(self._refused - self._known))

    def begin(self, turn: Turn) -> Step:
        self._owner = turn.owner
        self._refused |= self._context.remembered.of(turn.owner, self._model, self._now())
        return Step([TurnStarted(model=self._model)], self._next_request())

    def receive(self, messages: Sequence[Message]) -> Step:
        """Reads the current exchange. Messages after an answer's end are ignored."""
        out: list[Event] = []
        self._writes = b""
        for message in messages:
            answer = self._answer
            if answer is None:
                break
            if isinstance(message, Head):
                self._error = None if 200 <= message.status < 300 else message
            elif isinstance(message, End):
                if self._error is None:
                    self._end(answer, message, out)
                    self._note_taken(answer)
                else:
                    self._on_error_status(self._error, bytes(self._error_body), out)
            elif self._error is not None:
                self._error_body += message[: MAX_ERROR_BYTES - len(self._error_body)]
            else:
                self._read_body(answer, message, out)
                self._note_taken(answer)
        return Step(out, self._writes, close_stdin=self.ended)

    def eof(self, ended: Ended) -> Step:
        """Fails the turn if it has not ended."""
        return Step([] if self.ended else self._fail(BROKEN_OFF))

    # --- what a dialect fills in ------------------------------------------------------------------

    @abstractmethod
    def _new_answer(self) -> A: ...

    @abstractmethod
    def _request(self) -> bytes: ...

    @abstractmethod
    def _read_body(self, answer: A, data: bytes, out: list[Event]) -> None: ...

    @abstractmethod
    def _end(self, answer: A, end: End, out: list[Event]) -> None:
        """Handles the end of an exchange: completes the answer, or fails the turn."""

    @abstractmethod
    def _other_forms(self) -> list[Forms]:
        """Returns the other forms of the request that was refused (see `tries_of`)."""

    # --- one exchange -----------------------------------------------------------------------------

    def _next_request(self) -> bytes:
        self._answer = self._new_answer()
        self._error = None
        self._error_body.clear()
        return self._request()

    def _on_error_status(self, head: Head, body: bytes, out: list[Event]) -> None:
        """Sends the request in its next form, or fails with the first refusal, whose form is the usual one."""
        failure = self._errors.of_response(head.status, head.headers, body, self._now())
        if self._refusal is None and head.status in _REFUSING:
            self._refusal = failure
            # Less of the conversation may fit, but nobody asked for less.
            too_long = failure.kind is FaultKind.CONTEXT_LENGTH_EXCEEDED
            self._tries = [] if too_long else self._other_forms()
        elif self._refusal is None or head.status in _TEMPORARY:
            out += self._fail(failure)
            return
        if self._tries:
            self._refused = self._tries.pop(0)
            self._writes = self._next_request()
        else:
            out += self._fail(self._refusal)

    def _note_taken(self, answer: A) -> None:
        """Remembers the form of a request whose answer is complete, if others were refused."""
        if self._refusal is not None and self._answer is not answer and not self._failed:
            learned = self._refused - self._known
            self._context.remembered.remember(self._owner, self._model, learned, self._now())
            self._refusal = None

    def _fail(self, failure: Failure) -> list[Event]:
        self.ended = self._failed = True
        self._answer = None
        return [TurnEnded.with_failure(failure)]


class UpstreamTurn(ExchangeTurn[A]):
    """Reads an API's answers, and makes further requests with the outputs of calls."""

    def __init__(self, model: str, context: UpstreamContext) -> None:
        super().__init__(model, context)
        self._turn = Turn(model=model, history=())
        self._custom: frozenset[str] = frozenset()
        self._streamed: dict[str, ToolKind] = {}
        """The kinds of tools whose calls are reported while they arrive, by name."""
        self._reader = AnswerReader(MAX_LINE_BYTES)
        self._spent: Usage | None = None
        self._started = self._open = 0
        """The turn's items, and those of them that have not ended."""
        self._waiting_calls: dict[str, ToolCallRequested] = {}
        """The calls that wait for outputs."""

    def begin(self, turn: Turn) -> Step:
        self._turn = turn
        self._custom = frozenset(tool.name for tool in turn.tools if tool.kind == "custom")
        # What the server checks, runs or hides has to be whole before the client hears of it.
        if turn.parallel_tool_calls:
            shown = (tool for tool in turn.tools if not tool.is_checked and tool.mcp is None)
            self._streamed = {tool.name: tool.kind for tool in shown}
        return super().begin(turn)

    def answer(self, request_id: str, reply: Reply) -> Step:
        """Adds a call's output. Sends the next request if no output is missing."""
        if request_id not in self._waiting_calls or not isinstance(reply, ToolReply) or self.ended:
            return NOTHING
        output = self._put_output(self._waiting_calls.pop(request_id), reply.parts)
        if reply.success:
            self._turn = after_a_call(self._turn)
        return Step([output], b"" if self._waiting_calls else self._next_request())

    # --- what an API fills in ---------------------------------------------------------------------

    @abstractmethod
    def _read(self, events: Sequence[StreamEvent], out: list[Event]) -> None: ...

    @abstractmethod
    def _put_output(self, call: ToolCallRequested, parts: tuple[Part, ...]) -> Event:
        """Adds a call's output to the conversation; returns it as a raw item."""

    def _ends_without_last_event(self, answer: A, out: list[Event]) -> bool:
        """If the API allows a body without its last event, completes the answer and returns True."""
        return False

    # --- one exchange -----------------------------------------------------------------------------

    def _next_request(self) -> bytes:
        self._reader = AnswerReader(MAX_LINE_BYTES)
        return super()._next_request()

    def _read_body(self, answer: A, data: bytes, out: list[Event]) -> None:
        events: list[Event] = []
        self._read(self._reader.feed(data), events)
        self._count_items(events)
        out += events

    def _end(self, answer: A, end: End, out: list[Event]) -> None:
        events: list[Event] = []
        self._read(self._reader.close(), events)
        self._count_items(events)
        out += events
        if self._answer is not None and not self._ends_without_last_event(self._answer, out):
            out += self._fail(end.failure or BROKEN_OFF)

    def _request_outputs(self, calls: Sequence[ToolCallRequested], out: list[Event]) -> None:
        """Asks for the outputs of valid calls. An invalid one gets an error as its output; if all are invalid,
        `_writes` is the next request.
        """
        for call in calls:
            wrong = None if call.item_reported else self._fault_in_call(call)
            if wrong is None:
                self._waiting_calls[call.request_id] = call
            else:
                code, text = wrong
                out += [Notice(code, call.name), self._put_output(call, (TextPart(text),))]
        out += self._waiting_calls.values()
        if not self._waiting_calls:
            self._writes = self._next_request()

    def _add_usage(self, usage: Usage | None, out: list[Event]) -> None:
        if usage is not None:
            self._spent = usage if self._spent is None else self._spent + usage
            out.append(UsageReported(self._spent, "provider"))

    def _fails_by_number_of(self, calls: Sequence[object], out: list[Event]) -> bool:
        """Whether there are too many calls; then it fails the turn."""
        if len(calls) <= MAX_UNANSWERED:
            return False
        out += self._fail(TOO_MANY_CALLS)
        return True

    def _count_items(self, out: list[Event]) -> None:
        """Counts the items in an answer's next events. If they are too many, fails the turn in place of them."""
        for event in out:
            if isinstance(event, ItemStarted):
                self._started += 1
                self._open += 1
                if self._open > MAX_OPEN_ITEMS or self._started > MAX_STARTED:
                    out[:] = self._fail(TOO_MANY_ITEMS)
                    return
            elif isinstance(event, ItemEnded):
                self._open -= 1

    def _fault_in_call(self, call: ToolCallRequested) -> tuple[str, str] | None:
        """Returns why a call cannot be run, as a `Notice`'s code and an error for the model; None if it can."""
        if all(tool.name != call.name for tool in self._turn.tools):
            return (
                "unoffered_call",
                f"Error: {call.name} is not a registered MCP tool, and no other tool that is offered.",
            )
        if call.kind == "function" and not is_json(call.arguments):
            return "unreadable_arguments", "Error: the arguments are not JSON. Make the call again."
        return None
