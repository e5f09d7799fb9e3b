"""The events of a turn: dialects make them, the repair (`core/repair.py`) makes their sequence well-formed, renderers
turn them into answers. The repair replaces whole texts (`Full*`) by the missing deltas.

An answer without text, refusal and call has a reason for `x-codex-empty`, or becomes a failure. That the agent itself
has ended its turn early is a reason too, also behind a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import repeat
from operator import add, sub
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import astuple

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import ActionDetails, HistoryMessage, Item, ItemStatus, ToolKind

UNCERTAIN_HEADER: Final = "x-codex-uncertain"
EMPTY_HEADER: Final = "x-codex-empty"
"""The header, comment or field with an `EmptyReason`."""
DECLINED_HEADER: Final = "x-codex-declined"
"""The header, comment or field with the kinds of what the agent was not permitted."""

EmptyReason: TypeAlias = Literal[
    "", "no-output", "reasoning-only", "activity-only", "stop-sequence", "cancelled"
]
"""Why a successful answer is empty; "" if it is not. `cancelled`: the agent itself ended its turn early; what it had
written is in the answer.
"""

NO_MODEL_CALL: Final = Failure(
    FaultKind.UPSTREAM_ERROR,
    "The agent ended its turn without an answer, and reported no call of its model. Try again.",
)
PERMISSION_DECLINED: Final = Failure(
    FaultKind.NOT_ALLOWED,
    "The agent asked for a permission that this server does not give, and then ended its turn without "
    "another word. Ask for something that needs no permission, or let the operator allow it (docs/agents.md).",
)


class TurnSigns(msgspec.Struct):
    """Signs in a turn, beside its items, that explain an empty answer."""

    has_asked: bool = False
    """Whether the agent has asked for a permission or for input, which is declined."""
    model_answered: bool = False
    """Whether the agent has reported a completed model call, or output tokens."""


def explain_empty_answer(signs: TurnSigns, *, reasoned: bool, acted: bool) -> EmptyReason | Failure:
    """Returns why a turn that ended well is empty, or its failure. `reasoned`, `acted`: whether the turn has
    reasoning, and activities.
    """
    if signs.has_asked:
        return PERMISSION_DECLINED
    if acted:
        return "activity-only"
    if reasoned:
        return "reasoning-only"
    return "no-output" if signs.model_answered else NO_MODEL_CALL


class Stop(StrEnum):
    """Why a turn ended. A provider's other reasons stay plain `str`."""

    STOP = "stop"
    """The answer is complete, or ended at a stop sequence of the client."""
    LENGTH = "length"
    """The answer was cut at a limit of the client, the model or this server."""
    TOOL_CALLS = "tool_calls"
    """The client has to answer tool calls."""
    FUNCTION_CALL = "function_call"
    """The client has to answer a `function_call`, the predecessor of tool calls (`ToolCall.kind` is `legacy`)."""
    CONTENT_FILTER = "content_filter"
    """The provider withheld some or all of the answer."""
    INTERRUPTED = "interrupted"
    """The turn was cancelled before it was complete."""
    FAILED = "failed"
    """The turn failed; `TurnEnded.failure` says why."""


CUT_OFF_STOPS: Final = frozenset({Stop.LENGTH, Stop.CONTENT_FILTER, Stop.INTERRUPTED})
"""Ends of answers that are not whole."""
_CUT_OFF_WORDS: Final[Mapping[Stop, str]] = {
    Stop.LENGTH: "length max_length max_tokens max_output_tokens max_completion_tokens model_length token_limit"
    " model_context_window_exceeded",
    Stop.CONTENT_FILTER: "content_filter content_filtered sensitive safety recitation blocklist"
    " prohibited_content spii guardrail_intervened",
    Stop.INTERRUPTED: "abort aborted cancelled canceled interrupted insufficient_system_resource network_error"
    " timeout",
}
"""The words of agents and model servers (SGLang, vLLM, DeepSeek, Mistral, Z.ai, Gemini, Bedrock), in any case."""
_CUT_OFF: Final = {word: stop for stop, words in _CUT_OFF_WORDS.items() for word in words.split()}


def stop_of(word: str) -> str:
    """Returns one of `CUT_OFF_STOPS` for a word that says that an answer was cut off, else the word."""
    return _CUT_OFF.get(word.lower().replace(" ", "_").replace("-", "_"), word)


Trigger = Literal["token_count", "task_complete", "provider"]
ReasoningKind = Literal["summary", "raw"]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Counts of tokens. `cached` (read from caches) and `cache_written` are in `input`, `reasoning` is in `output`."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    cache_written: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*map(sub, astuple(self), astuple(other)))

    def since(self, earlier: Usage) -> Usage:
        """Returns the tokens added since an earlier usage; 0 for a count that has become smaller."""
        return Usage(*map(max, map(sub, astuple(self), astuple(earlier)), repeat(0)))


class Spending(msgspec.Struct, frozen=True):
    """The tokens of a turn; zero if unknown."""

    tokens: Usage = Usage()
    estimated: bool = False
    failed: bool = False


class _Event(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event"):
    """An event with a stored form (`core/event_rows.py`), so that neither its tag nor a field may be renamed."""


class TurnStarted(_Event, tag="turn_started", frozen=True, gc=False):
    thread_id: str = ""
    model: str = ""
    stored: bool = False
    """Whether the agent stores its session `thread_id`, as the turn asks for."""
    subagents: tuple[str, ...] = ()
    """The subagents of earlier turns that are still open."""


class TurnEnded(_Event, tag="turn_ended", frozen=True):
    """The end of a turn. `stop` is a `Stop` or a provider's own reason; `choice_stops` has the `stop` of each choice
    for which it differs; `trigger` is the type of the agent's message that ended the turn.
    """

    stop: str
    trigger: str = "task_complete"
    failure: Failure | None = None
    choice_stops: dict[int, str] | None = None
    cut: bool = False
    """Whether this server ended the turn at a limit; the agent then reports no tokens."""
    stop_sequence: str | None = None
    """The client's stop sequence that ended it, if one did."""
    empty: EmptyReason = ""

    @classmethod
    def with_failure(cls, failure: Failure) -> TurnEnded:
        """Returns the end of a failed turn with the `trigger` `provider`: no message of the agent has ended it."""
        return cls(Stop.FAILED, "provider", failure)


class ItemStarted(_Event, tag="item_started", frozen=True, gc=False):
    item: Item


class ItemEnded(_Event, tag="item_ended", frozen=True, gc=False):
    id: str
    status: ItemStatus = "completed"
    details: ActionDetails | None = None
    """An activity's details at its end, if the agent tells any: they replace those of its beginning."""


class TextDelta(_Event, tag="text_delta", frozen=True, gc=False):
    id: str
    text: str


class RefusalDelta(_Event, tag="refusal_delta", frozen=True, gc=False):
    id: str
    text: str


class AnnotationAdded(_Event, tag="annotation_added", frozen=True, gc=False):
    """A source that the open message `id` cites: JSON of the Responses API, with offsets in this message's text."""

    id: str
    json: bytes


class ReasoningDelta(_Event, tag="reasoning_delta", frozen=True, gc=False):
    """A piece of reasoning; `part` is the index of its summary part (`raw`: content part)."""

    id: str
    text: str
    part: int = 0
    kind: ReasoningKind = "summary"


class ArgumentsDelta(_Event, tag="arguments_delta", frozen=True, gc=False):
    """A piece of a tool call's arguments, or of a custom tool's input."""

    id: str
    text: str


class OutputDelta(_Event, tag="output_delta", frozen=True, gc=False):
    """A piece of the output of an agent's command, or of an MCP call that this server ran."""

    id: str
    text: str


class FullText(_Event, tag="full_text", frozen=True, gc=False):
    """A message's whole text, at its end."""

    id: str
    text: str


class FullReasoning(_Event, tag="full_reasoning", frozen=True, gc=False):
    id: str
    text: str
    part: int = 0
    kind: ReasoningKind = "summary"


class FullArguments(_Event, tag="full_arguments", frozen=True, gc=False):
    id: str
    text: str


class HostedEvent(_Event, tag="hosted_event", frozen=True, gc=False):
    """What the model server says of a tool that it runs, in the open `Activity` `id`: an event of the Responses API, or
    with an empty `type` the item as it is now. `json` is an object without the numbers and ids of the server's answer.
    """

    id: str
    type: str
    json: bytes


class StepCompleted(_Event, tag="step_completed", frozen=True, gc=False):
    """A model call has ended, with its items. `usage`: None if not reported."""

    usage: Usage | None = None


class UsageReported(_Event, tag="usage_reported", frozen=True, gc=False):
    """The tokens of this turn so far."""

    usage: Usage
    trigger: Trigger = "token_count"
    partial: bool = False
    """Whether some model calls' tokens are missing."""


class Retrying(_Event, tag="retrying", frozen=True, gc=False):
    """The agent repeats its model call, and all events of this step. `http_status` is the failed call's, if known."""

    message: str
    http_status: int | None = None
    failure: Failure | None = None
    """Why the call failed, if known; the turn's failure if a deadline passes meanwhile."""


class ToolCallRequested(_Event, tag="tool_call_requested", frozen=True, gc=False):
    """The agent waits for a tool call's output, under `request_id`. A step's requests come before its `StepCompleted`.
    `name` is the client's.
    """

    request_id: str
    call_id: str
    name: str
    arguments: str
    item_id: str = ""
    kind: ToolKind = "function"
    old_form: bool = False
    """Whether the model server gave the call as `function_call`."""
    item_reported: bool = False
    """Whether the call's item was already reported; only the client answers such a call."""
    provider_fields: str = ""
    """See `items.provider_fields`."""


ApprovalKind: TypeAlias = Literal["command", "file_change", "permission", "mcp", "form"]


class ApprovalRequested(_Event, tag="approval_requested", frozen=True, gc=False):
    """The agent waits for a permission; `text` describes it in one line. A `form` is one to fill in, or a page to open:
    its details have the tool `ask_user` or `open_url`.
    """

    request_id: str
    kind: ApprovalKind
    text: str
    details: ActionDetails | None = None
    """What is to be permitted, in full; None: the agent does not tell it, so that nobody can be asked."""
    reason: str = ""
    """Why the agent wants it, in its own words."""
    beyond: str = ""
    """Why the turn's sandbox would not confine what is to be permitted; empty if it would."""
    asked: bool = False
    """Whether the client is asked; else this server has answered at once."""
    allowed: bool = False
    """Whether this server has allowed it at once, as the turn's toolset says; else it has declined."""
    declined: str = ""
    """Why this server has declined it, in a sentence."""
    item_id: str = ""
    """The item of the call that is asked for, if it is told."""
    of_server: bool = False
    """Whether this server asks, before it calls an MCP server, and not the agent."""
    subagent: str = ""
    """The subagent that asks, as the agent calls it; empty: it is the agent itself."""


class InputRequested(_Event, tag="input_requested", frozen=True, gc=False):
    request_id: str
    text: str


class RequestClosed(_Event, tag="request_closed", frozen=True, gc=False):
    request_id: str


class InputTaken(_Event, tag="input_taken", frozen=True, gc=False):
    """The agent has taken a further input of the client, which it was given under this id (`SteerableDialect`), into
    the turn: what the model was writing is over, and it goes on with the input.
    """

    id: str


class HistoryCompacted(_Event, tag="history_compacted", frozen=True, gc=False):
    """The agent has replaced what it knew of the conversation by a summary: its window was full."""


class ContextReported(_Event, tag="context_reported", frozen=True, gc=False):
    """The tokens that the conversation takes in the model's window now, and the size of that window if it is told.
    `cost`: what the agent says that it has cost since it last said so, in `currency`.
    """

    used: int
    window: int = 0
    cost: float = 0.0
    currency: str = ""


class SubagentOpened(_Event, tag="subagent_opened", frozen=True, gc=False):
    """The agent has made a subagent, or opened a closed one again. `id` is the agent's own; `parent` is the subagent
    that made it, or empty. `name` and `task` are empty if they are not told.
    """

    id: str
    parent: str = ""
    name: str = ""
    task: str = ""


class SubagentClosed(_Event, tag="subagent_closed", frozen=True, gc=False):
    id: str


class TaskGiven(_Event, tag="task_given", frozen=True, gc=False):
    """A message to a subagent, among the events of its turn."""

    text: str


class OfSubagent(msgspec.Struct, frozen=True):
    """An event of a turn of the subagent `id`. Its turns come one after the other, each with a start and an end."""

    id: str
    event: Event


class RawItem(_Event, tag="raw_item", frozen=True, gc=False):
    """An output item as the model gave it, to be sent back with its next call."""

    type: str
    json: bytes


class AccountLimitsReported(_Event, tag="account_limits_reported", frozen=True, gc=False):
    """New account limits; `json` is in the agent's format."""

    json: bytes


class ForwardedBytes(msgspec.Struct, frozen=True, gc=False):
    """A piece of the answer to a `ForwardedRequest`: whole server-sent events, or a part of a JSON body. `deltas`
    counts the events with content.
    """

    data: bytes
    deltas: int = 0


class AnswerDetails(_Event, tag="answer_details", frozen=True):
    """What a Chat Completions server's answer has beside its items. A later event replaces an earlier one."""

    fields: Mapping[str, msgspec.Raw] = {}
    """`service_tier` and `system_fingerprint`, as JSON."""
    annotations: bytes = b""
    """The message's `annotations` (a JSON array, or empty)."""
    tokens: Mapping[str, Mapping[str, int]] = {}
    """Further counts, by their field of `usage`: `prompt_tokens_details`, `completion_tokens_details`."""


class ServedBy(_Event, tag="served_by", frozen=True, gc=False):
    """The upstream that answered (empty: the only one), the number of requests to all upstreams, and what it had
    refused, so that it was left out or sent in another form.
    """

    upstream: str
    attempts: int = 1
    changed: tuple[str, ...] = ()


class Notice(_Event, tag="notice", frozen=True, gc=False):
    """A note for the log, without any part of a prompt or an answer."""

    code: str
    text: str = ""


Event: TypeAlias = (
    TurnStarted
    | TurnEnded
    | ItemStarted
    | ItemEnded
    | TextDelta
    | RefusalDelta
    | AnnotationAdded
    | ReasoningDelta
    | ArgumentsDelta
    | OutputDelta
    | FullText
    | FullReasoning
    | FullArguments
    | HostedEvent
    | StepCompleted
    | UsageReported
    | Retrying
    | ToolCallRequested
    | ApprovalRequested
    | InputRequested
    | RequestClosed
    | InputTaken
    | HistoryCompacted
    | ContextReported
    | SubagentOpened
    | SubagentClosed
    | TaskGiven
    | OfSubagent
    | RawItem
    | AccountLimitsReported
    | ForwardedBytes
    | AnswerDetails
    | ServedBy
    | Notice
)


class TurnElsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of an agent's stored session that another program has run. Times: seconds since 1970."""

    id: str
    """The agent's id of the turn."""
    stop: str
    parts: tuple[HistoryMessage | tuple[Event, ...], ...]
    """What the user said, and the events of what the agent did, in their order."""
    started_at: int | None = None
    completed_at: int | None = None


OF_SUBAGENTS: Final[frozenset[type]] = frozenset({SubagentOpened, SubagentClosed, OfSubagent})
"""What is told of subagents, besides the items of the agent's own calls."""
MODEL_DELTAS: Final[frozenset[type]] = frozenset({TextDelta, RefusalDelta, ReasoningDelta, ArgumentsDelta})
"""Pieces of what the model writes."""
DELTAS: Final = MODEL_DELTAS | {OutputDelta}
"""Pieces of a text of an item."""
VISIBLE_OUTPUT: Final = MODEL_DELTAS | {ItemStarted, ForwardedBytes}
"""Events from which the client sees something."""
VISIBLE: Final = VISIBLE_OUTPUT | {TurnEnded}
"""Events that begin an answer: before them a failure can still be an HTTP status."""


class ItemTexts:
    """The items that were started so far, and their pieces of text."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        """The items by id, in order."""
        self.pieces: dict[str, list[str]] = {}
        """The pieces of each item's text or arguments, by its id."""
        self.outputs: dict[str, list[str]] = {}
        """The pieces of each activity's output, by its id."""

    def add(self, events: Sequence[Event]) -> None:
        """Adds what events say."""
        for event in events:
            if isinstance(event, ItemStarted):
                self.items[event.item.id] = event.item
            elif isinstance(event, TextDelta | RefusalDelta | ReasoningDelta | ArgumentsDelta):
                self.pieces.setdefault(event.id, []).append(event.text)
            elif isinstance(event, OutputDelta):
                self.outputs.setdefault(event.id, []).append(event.text)

    def text(self, id: str) -> str:
        """Returns the text or the arguments of an item so far."""
        return "".join(self.pieces.get(id, ()))

    def output(self, id: str) -> str:
        return "".join(self.outputs.get(id, ()))
