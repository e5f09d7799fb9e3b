"""The events of a turn. A dialect makes them, the repair (`core/repair.py`) makes their sequence well-formed, and
renderers turn them into the answer of an API. The repair replaces a `Full*` event, a whole text, by the missing deltas.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from operator import add, sub
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import astuple

from codex_proxy.core.empty_answers import EmptyReason
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import Item, ItemStatus


class Stop(StrEnum):
    """Why a turn ended. Other reasons of a provider are passed on as plain `str`."""

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
        return Usage(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Usage) -> Usage:
        """Returns the tokens that were added since an earlier usage."""
        return Usage(*map(sub, astuple(self), astuple(other)))

    def since(self, earlier: Usage) -> Usage:
        """Returns the tokens that were added since an earlier usage; 0 for a count that has become smaller."""
        return Usage(*(max(0, count) for count in astuple(self - earlier)))


class Spending(msgspec.Struct, frozen=True):
    """The tokens of a turn, reported or (`estimated`) estimated; zero if unknown. `failed`: the turn has failed."""

    tokens: Usage = Usage()
    estimated: bool = False
    failed: bool = False


class TurnStarted(msgspec.Struct, frozen=True, gc=False):
    thread_id: str = ""
    model: str = ""


class TurnEnded(msgspec.Struct, frozen=True):
    """The turn has ended. `stop` is a `Stop` or a provider's own reason, `trigger` the agent's message that ended the
    turn; `choice_stops` has the reasons of choices that differ, by index.
    """

    stop: str
    trigger: str = "task_complete"
    failure: Failure | None = None
    choice_stops: dict[int, str] | None = None
    cut: bool = False
    """Whether the server ended the turn by a limit; the agent then does not report the tokens."""
    stop_sequence: str | None = None
    """The client's stop sequence that ended the turn; None if none did."""
    empty: EmptyReason = ""
    """Why a successful answer is empty."""


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
    """A source that the open message `id` cites, as JSON of the Responses API; offsets are in this message's text."""

    id: str
    json: bytes


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a reasoning item. `part` is the index of the summary part, or with the kind `raw` of the content
    part.
    """

    id: str
    text: str
    part: int = 0
    kind: ReasoningKind = "summary"


class ArgumentsDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of the arguments of a tool call, or of the input of a custom tool."""

    id: str
    text: str


class OutputDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of the output of an agent's command, or of an MCP call that this server ran."""

    id: str
    text: str


class FullText(msgspec.Struct, frozen=True, gc=False):
    """The whole text of a message, sent at its end."""

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
    """A model call has ended, with its items. `usage` is None if the agent did not report its tokens."""

    usage: Usage | None = None


class UsageReported(msgspec.Struct, frozen=True, gc=False):
    """The tokens of *this turn so far* (a total). `trigger` is the agent's message that reported them."""

    usage: Usage
    trigger: Trigger = "token_count"
    partial: bool = False
    """Whether the tokens of some model calls are missing in `usage`."""


class Retrying(msgspec.Struct, frozen=True, gc=False):
    """The agent repeats its model call and all events of this step. `http_status` is that of the failed call, if
    known.
    """

    message: str
    http_status: int | None = None
    failure: Failure | None = None
    """Why the earlier call failed, if known; the turn's failure if a deadline passes during the retry."""


class ToolCallRequested(msgspec.Struct, frozen=True, gc=False):
    """The agent waits for the output of a tool call, under `request_id`. All requests of a step come before its
    `StepCompleted`. `name` is the client's name of the tool.
    """

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
    """Whether the call's item was already reported. Only the client answers such a call."""


class ApprovalRequested(msgspec.Struct, frozen=True, gc=False):
    """The agent waits for a permission, to be answered under `request_id`; `text` describes it in one line."""

    request_id: str
    kind: Literal["command", "file_change", "permission", "mcp"]
    text: str


class InputRequested(msgspec.Struct, frozen=True, gc=False):
    request_id: str
    text: str


class RequestClosed(msgspec.Struct, frozen=True, gc=False):
    request_id: str


class RawItem(msgspec.Struct, frozen=True, gc=False):
    """An output item as the model gave it (JSON), to be sent back with its next call."""

    type: str
    json: bytes


class AccountLimitsReported(msgspec.Struct, frozen=True, gc=False):
    """The agent has reported the limits of its account. `json` is in the agent's own format."""

    json: bytes


class ForwardedBytes(msgspec.Struct, frozen=True, gc=False):
    """A piece of the answer to a `ForwardedRequest`, unchanged: whole server-sent events, or a part of a JSON body.
    `deltas` counts the events with content.
    """

    data: bytes
    deltas: int = 0


class AnswerDetails(msgspec.Struct, frozen=True):
    """Fields of a Chat Completions server's answer beside its items. A later event replaces an earlier one."""

    fields: Mapping[str, msgspec.Raw] = {}
    """Fields of the answer, as JSON: `service_tier` and `system_fingerprint`."""
    annotations: bytes = b""
    """The message's `annotations` as the server gave them (a JSON array, or empty), for Chat Completions."""
    tokens: Mapping[str, Mapping[str, int]] = {}
    """Further counts of tokens, by their field of `usage`: `prompt_tokens_details` or `completion_tokens_details`."""


class ServedBy(msgspec.Struct, frozen=True, gc=False):
    """The upstream that answered (empty if there is only one), and the number of requests to all upstreams for this
    answer.
    """

    upstream: str
    attempts: int = 1


class Notice(msgspec.Struct, frozen=True, gc=False):
    """A note for the log. `text` never contains a part of a prompt or an answer."""

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
"""The events that begin an answer: before the first of them a failure can still be an HTTP status."""
