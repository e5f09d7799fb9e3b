"""The events of a turn, in the order in which they happen.

A dialect (the parser of one agent's protocol) makes them from the agent's messages. The repair (`core/repair.py`)
makes any sequence of them well-formed. Renderers turn the repaired events into the answer of an API. A `Full*`
event has a whole text: the repair turns it into the deltas that are missing, so renderers never get one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from codex_proxy.core.empty_answers import EmptyReason
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import Item, ItemStatus


class Stop(StrEnum):
    """Why a turn ended. A provider's reason that has no member here is passed on as a plain `str`."""

    STOP = "stop"
    """The answer is complete, or a stop sequence of the client was reached."""
    LENGTH = "length"
    """The answer was cut at a limit of the client, the model or this server."""
    TOOL_CALLS = "tool_calls"
    """The client has to answer tool calls."""
    FUNCTION_CALL = "function_call"
    """The client has to answer a call of kind `legacy` (`items.ToolCall`), the predecessor of `tool_calls`."""
    CONTENT_FILTER = "content_filter"
    """The provider withheld the answer or a part of it."""
    INTERRUPTED = "interrupted"
    """The turn was cancelled before the answer was complete."""
    FAILED = "failed"
    """The turn failed; `TurnEnded.failure` says why."""


Trigger = Literal["token_count", "task_complete", "provider"]
ReasoningKind = Literal["summary", "raw"]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one or more model calls. `cached` is a part of `input`, and `reasoning` a part of `output`."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.reasoning + other.reasoning,
        )

    def __sub__(self, other: Usage) -> Usage:
        """Returns the tokens that were added since an earlier usage."""
        return Usage(
            self.input - other.input,
            self.cached - other.cached,
            self.output - other.output,
            self.reasoning - other.reasoning,
        )


class Spending(msgspec.Struct, frozen=True):
    """The tokens that a turn has used, as the agent reported them or (`estimated`) as an estimate; zero if neither
    is known. `failed`: the turn has failed."""

    tokens: Usage = Usage()
    estimated: bool = False
    failed: bool = False


class TurnStarted(msgspec.Struct, frozen=True, gc=False):
    thread_id: str = ""
    model: str = ""


class TurnEnded(msgspec.Struct, frozen=True):
    """The turn has ended. `stop` is a `Stop`, or a provider's reason that has no `Stop`. `failure` is set if `stop`
    is `failed`, and is None otherwise.

    `trigger` is the name of the agent's message that ended the turn. `choice_stops` has the reasons of those
    choices that ended for another reason than `stop`, by the index of the choice; None if there are none."""

    stop: str
    trigger: str = "task_complete"
    failure: Failure | None = None
    choice_stops: dict[int, str] | None = None
    cut: bool = False
    """Whether the server ended the turn by a limit while the agent was writing. The agent then does not report the
    tokens."""
    stop_sequence: str | None = None
    """The client's stop sequence that ended the turn; None if none did."""
    empty: EmptyReason = ""
    """Why the answer has no text, refusal or call, although it did not fail. Set by the repair and the run, or by the
    dialect of a `ForwardedRequest`."""


class ItemStarted(msgspec.Struct, frozen=True, gc=False):
    item: Item


class ItemEnded(msgspec.Struct, frozen=True, gc=False):
    id: str
    status: ItemStatus = "completed"


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    id: str
    text: str


class RefusalDelta(msgspec.Struct, frozen=True, gc=False):
    id: str
    text: str


class AnnotationAdded(msgspec.Struct, frozen=True, gc=False):
    """A source that the open message `id` cites. `json` is an annotation in the form of the Responses API: an
    object with `type`, and fields that depend on it. Its `start_index` and `end_index` are offsets in the text of
    this message."""

    id: str
    json: bytes


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of the text of a reasoning item. `part` is the index of the summary part within the item, from 0;
    with the kind `raw`, that of the content part."""

    id: str
    text: str
    part: int = 0
    kind: ReasoningKind = "summary"


class ArgumentsDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of the arguments of a tool call; for a custom tool, of its input."""

    id: str
    text: str


class OutputDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of the output of a command that the agent ran, or of an MCP call that this server ran."""

    id: str
    text: str


class FullText(msgspec.Struct, frozen=True, gc=False):
    """The whole text of a message, which the agent sends at the end of the message."""

    id: str
    text: str


class FullReasoning(msgspec.Struct, frozen=True, gc=False):
    id: str
    text: str
    part: int = 0
    kind: ReasoningKind = "summary"


class FullArguments(msgspec.Struct, frozen=True, gc=False):
    id: str
    text: str


class StepCompleted(msgspec.Struct, frozen=True, gc=False):
    """A step of the turn (one call of the model) has ended: no further item of this step follows. `usage` is the
    tokens of this call; None if the agent did not report them."""

    usage: Usage | None = None


class UsageReported(msgspec.Struct, frozen=True, gc=False):
    """The tokens of *this turn so far* (a total, not an increment). `trigger` is the name of the agent's message
    that reported them."""

    usage: Usage
    trigger: Trigger = "token_count"
    partial: bool = False
    """Whether `usage` is incomplete: for some of the turn's model calls the agent has not reported the tokens."""


class Retrying(msgspec.Struct, frozen=True, gc=False):
    """The agent repeats its call of the model, and sends all events of this step (model call) again. `message` is
    the agent's text about the reason, `http_status` the status of the call that failed; None if the agent does not
    report it.
    """

    message: str
    http_status: int | None = None
    failure: Failure | None = None
    """Why the earlier call failed; None if the kind is not known. If a deadline ends the turn before the model
    answers, the turn ends with this failure.
    """


class ToolCallRequested(msgspec.Struct, frozen=True, gc=False):
    """The agent waits for the output of a tool call; the answer refers to `request_id`. All requests of a step come
    before its `StepCompleted`. `call_id` is the model's id of the call, `name` the client's name of the tool, and
    `arguments` the model's exact text."""

    request_id: str
    call_id: str
    name: str
    arguments: str
    item_id: str = ""
    kind: Literal["function", "custom"] = "function"
    old_form: bool = False
    """Whether the model server gave the call as `function_call`, the predecessor of `tool_calls` (see
    `ToolCall.old_form`)."""
    item_reported: bool = False
    """Whether the call's `ItemStarted`, arguments and `ItemEnded` were already among the events, because the
    arguments were passed on while they arrived. Such a call is always answered by the client, never by this server.
    """


class ApprovalRequested(msgspec.Struct, frozen=True, gc=False):
    """The agent waits for permission to do something. `text` describes it in one line for a person; the answer
    refers to `request_id`."""

    request_id: str
    kind: Literal["command", "file_change", "permission", "mcp"]
    text: str


class InputRequested(msgspec.Struct, frozen=True, gc=False):
    request_id: str
    text: str


class RequestClosed(msgspec.Struct, frozen=True, gc=False):
    request_id: str


class RawItem(msgspec.Struct, frozen=True, gc=False):
    """An output item exactly as the model gave it, which has to be sent back to the model with its next call.
    `type` is the item's `type`, and `json` the whole item.
    """

    type: str
    json: bytes


class AccountLimitsReported(msgspec.Struct, frozen=True, gc=False):
    """The agent has reported the limits of its account. `json` is in the agent's own format."""

    json: bytes


class ForwardedBytes(msgspec.Struct, frozen=True, gc=False):
    """A piece of the answer to a `ForwardedRequest`, which is sent to the client unchanged: complete server-sent
    events, or a part of a JSON body. `deltas` is the number of events in it that carry content."""

    data: bytes
    deltas: int = 0


class AnswerDetails(msgspec.Struct, frozen=True):
    """Fields of a Chat Completions server's answer that are not part of its items. A later event of this type in
    the same turn replaces an earlier one."""

    fields: Mapping[str, msgspec.Raw] = {}
    """Fields of the answer, as JSON: `service_tier` and `system_fingerprint`."""
    annotations: bytes = b""
    """The `annotations` of the message exactly as the server gave them, as a JSON array; empty if it has none. In
    Chat Completions they replace those of `AnnotationAdded`, which have the same sources in another form."""
    tokens: Mapping[str, Mapping[str, int]] = {}
    """Further counts of the turn's tokens, by the field of `usage` that has them: `prompt_tokens_details` or
    `completion_tokens_details`."""


class ServedBy(msgspec.Struct, frozen=True, gc=False):
    """Which upstream (model server) gave this answer. `upstream` is its name, empty if only one is configured;
    `attempts` is the number of requests that were made for this answer, to all upstreams together."""

    upstream: str
    attempts: int = 1


class Notice(msgspec.Struct, frozen=True, gc=False):
    """A note for the log: `code` is its kind, and `text` more about it. `text` never contains a part of a prompt or
    an answer."""

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
    | StepCompleted
    | UsageReported
    | Retrying
    | ToolCallRequested
    | ApprovalRequested
    | InputRequested
    | RequestClosed
    | RawItem
    | AccountLimitsReported
    | ForwardedBytes
    | AnswerDetails
    | ServedBy
    | Notice
)

VISIBLE: frozenset[type] = frozenset(
    {TextDelta, RefusalDelta, ReasoningDelta, ArgumentsDelta, ItemStarted, TurnEnded, ForwardedBytes}
)
"""The events that begin an answer. Before the first of them a failure can still be answered with an HTTP error
status."""
