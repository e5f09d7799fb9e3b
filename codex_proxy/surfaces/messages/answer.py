"""The answers of Anthropic's API: the message, its content blocks as frames and whole, lists of models, and errors.
SDKs need every frame's `event:` and every block's end. Source: docs/messages.md.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, Required, TypedDict

import msgspec

from codex_proxy.core.faults import Failure, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.surfaces.answers.fault_table import TABLE
from codex_proxy.surfaces.answers.renderer import (
    Count,
    JsonText,
    Object,
    Text,
    TextParts,
    json_bytes,
    json_text,
    message_with_param,
    one_of,
    raw_text,
)
from codex_proxy.surfaces.models import ModelCatalog, listed_names, model_of, with_claude_prefix
from codex_proxy.surfaces.requests.body import integer_in

SIGNATURE: Final = "cxp1"
"""The signature by which this server knows its thinking blocks."""

BLOCK_TYPES: Final = (
    "text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result",
)  # fmt: skip
"""The types of blocks that are ever sent: some SDKs fail on others."""
EVENT_TYPES: Final = (
    "message_start", "content_block_start", "content_block_delta", "content_block_stop",
    "message_delta", "message_stop", "ping", "error",
)  # fmt: skip
"""The types of events that are ever sent: some SDKs fail on others."""

STOP_REASONS: Final = ("end_turn", "tool_use", "max_tokens", "refusal", "stop_sequence")


class ContentBlock(TypedDict, total=False):
    type: Required[Annotated[str, one_of(BLOCK_TYPES)]]
    text: JsonText
    thinking: JsonText
    signature: str
    data: str
    id: JsonText
    name: JsonText
    input: Object
    tool_use_id: JsonText
    content: list[Any]


class OutputDetails(TypedDict):
    thinking_tokens: Count


class MessageUsage(TypedDict):
    """`input_tokens`: without tokens read from a cache or written to it; in `message_start`, an estimate.
    `output_tokens_details` is not in `message_start`.
    """

    input_tokens: Count
    output_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count
    output_tokens_details: NotRequired[OutputDetails]


class MessageEnd(TypedDict):
    stop_reason: Annotated[str, one_of(STOP_REASONS)] | None
    stop_sequence: JsonText | None


class Message(MessageEnd):
    id: JsonText
    type: Literal["message"]
    role: Literal["assistant"]
    model: JsonText
    content: list[ContentBlock]
    usage: MessageUsage


class MessageTokens(TypedDict):
    input_tokens: Count


class MessageEvent(TypedDict):
    """The `data:` of a stream's event; `event:` is its type. The last event is `message_stop` or `error`."""

    type: Annotated[str, one_of(EVENT_TYPES)]
    message: NotRequired[Message]
    index: NotRequired[Count]
    usage: NotRequired[MessageUsage]


def frame(type: str, fields: dict[str, Any]) -> bytes:
    """Returns a server-sent event whose data has `type` and `fields`."""
    return b"event: %b\ndata: %b\n\n" % (type.encode(), json_bytes({"type": type, **fields}))


PING: Final = frame("ping", {})


class GrowingBlock(TextParts):
    """A message or reasoning that becomes a block of `text` or `thinking`. `kept`: the block's texts until it is
    opened. Methods append frames to `out`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_open = False
        self.kept: list[str] = []
        self.ended = False

    def open(self, index: int, out: list[bytes]) -> None:
        """Begins the block with the kept texts."""
        self.is_open = True
        self._index = index
        before = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
            b'{"type":"%b_delta","%b":' % (index, self.kind.encode(), self.kind.encode())
        )
        self._text = Text(before, b"}}\n\n")
        empty = {"type": self.kind, self.kind: ""} | ({"signature": ""} if self.kind == "thinking" else {})
        out.append(frame("content_block_start", {"index": index, "content_block": empty}))
        self.add(self.kept, out)
        self.kept = []

    def add(self, texts: list[str], out: list[bytes]) -> None:
        self._text.add_all(texts, out)

    def close(self, out: list[bytes]) -> None:
        if self.kind == "thinking":
            # Once and whole: SDKs overwrite what came before it.
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            out.append(frame("content_block_delta", {"index": self._index, "delta": delta}))
        out.append(_stop(self._index))

    @property
    def text(self) -> bytes:
        return bytes(self._text.whole())

    def whole(self) -> dict[str, Any]:
        text = {"type": self.kind, self.kind: self._text.whole()}
        return text | ({"signature": SIGNATURE} if self.kind == "thinking" else {})


class WholeBlock:
    """A block sent in one piece. `input`: the JSON text of an object, or None."""

    def __init__(self, kind: str, index: int, fields: dict[str, Any], input: str | None = None) -> None:
        self._head = {"type": kind, **fields}
        self._index = index
        self._input = input

    def send(self, out: list[bytes]) -> None:
        head = self._head | ({} if self._input is None else {"input": {}})
        out.append(frame("content_block_start", {"index": self._index, "content_block": head}))
        if self._input is not None:
            delta = {"type": "input_json_delta", "partial_json": raw_text(self._input)}
            out.append(frame("content_block_delta", {"index": self._index, "delta": delta}))
        out.append(_stop(self._index))

    @property
    def text(self) -> bytes:
        """The `input` as a JSON string, for counting tokens."""
        return json_text(self._input or "")

    def whole(self) -> dict[str, Any]:
        return self._head | ({} if self._input is None else {"input": msgspec.Raw(self._input.encode())})


def _stop(index: int) -> bytes:
    return frame("content_block_stop", {"index": index})


MAX_PAGE: Final = 1000
DEFAULT_PAGE: Final = 20


class AnthropicModel(TypedDict):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: Count | None
    max_tokens: None


class AnthropicModelList(TypedDict):
    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


def anthropic_names(catalog: ModelCatalog, env: str) -> list[str]:
    """Returns all names; one without `claude` or `anthropic` also with `claude-` in front."""
    names = listed_names(catalog, env)
    # Claude Code lists no other names.
    return list(dict.fromkeys([*names, *map(with_claude_prefix, names)]))


def model_body(name: str, catalog: ModelCatalog, created: int) -> AnthropicModel:
    """Returns the object of a model. `created`: seconds since 1970."""
    model = model_of(name, catalog)
    shown = (model.display_name if model is not None else "") or name
    return {
        "type": "model",
        "id": name,
        "display_name": shown,
        "created_at": datetime.datetime.fromtimestamp(created, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.context_window if model is not None else None,
        "max_tokens": None,
    }


def models_page(
    names: Sequence[str], query: Mapping[str, str], catalog: ModelCatalog, created: int
) -> AnthropicModelList:
    """Returns the page that `query` asks for: at most `limit` models after `after_id`, or before `before_id`.
    `created`: the time of each model.
    """
    limit = integer_in("limit", query["limit"], 1, MAX_PAGE) if "limit" in query else DEFAULT_PAGE
    after, before = query.get("after_id"), query.get("before_id")
    if after and before:
        raise bad_request("Give 'after_id' or 'before_id', not both.", "before_id")
    first, last = 0, len(names)
    if after:
        first = _place(names, after, "after_id") + 1
    if before:
        last = _place(names, before, "before_id")
        first = max(first, last - limit)
    shown = names[first : min(last, first + limit)]
    return {
        "data": [model_body(name, catalog, created) for name in shown],
        "has_more": first > 0 if before else last - first > limit,
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
    }


def _place(names: Sequence[str], cursor: str, param: str) -> int:
    try:
        return names.index(cursor)
    except ValueError:
        message = f"'{param}' is {excerpt(cursor)}, which is not a model of this list."
        raise bad_request(message, param) from None


STATUSES: Final = {kind: row.status for kind, row in TABLE.items()} | {
    FaultKind.UNSUPPORTED_MEDIA_TYPE: 400,
    FaultKind.INSUFFICIENT_QUOTA: 402,
    FaultKind.UPSTREAM_UNAUTHORIZED: 500,
    FaultKind.UPSTREAM_ERROR: 500,
    FaultKind.UPSTREAM_DISCONNECTED: 500,
    FaultKind.UPSTREAM_UNREACHABLE: 500,
    FaultKind.UNAVAILABLE: 529,
    FaultKind.STOPPING: 529,
}
"""The status by kind of fault. Those that are listed differ from OpenAI's."""
_TYPES: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Error types by status; others are `OTHER_TYPE`."""
OTHER_TYPE: Final = "invalid_request_error"
THREADS_UNSUPPORTED: Final = "thread_unsupported_request"
"""The code on which SDKs send the whole conversation."""


def status_of(failure: Failure) -> int:
    """Returns the status before the first byte of the answer."""
    return STATUSES[failure.kind]


def type_of(status: int) -> str:
    return _TYPES.get(status, OTHER_TYPE)


class ErrorDetails(TypedDict):
    error_code: str


class AnthropicErrorObject(TypedDict):
    type: Annotated[str, one_of(sorted({*_TYPES.values(), OTHER_TYPE}))]
    message: JsonText
    details: NotRequired[ErrorDetails]


class AnthropicError(TypedDict):
    """The body of an error in Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str


def error_body(failure: Failure, request_id: str) -> bytes:
    """Returns an error, with `details` where SDKs act on them, and the field before the message."""
    message = raw_text(message_with_param(failure))
    error: AnthropicErrorObject = {"type": type_of(status_of(failure)), "message": message}
    if failure.code == THREADS_UNSUPPORTED:
        error["details"] = {"error_code": THREADS_UNSUPPORTED}
    body: AnthropicError = {"type": "error", "error": error, "request_id": request_id}
    return json_bytes(body)


def error_event(failure: Failure, request_id: str) -> bytes:
    """Returns the event that ends a stream."""
    return b"event: error\ndata: " + error_body(failure, request_id) + b"\n\n"


_NUMBER: Final = r"\d{1,9}\b"
_WITH_OUTPUT: Final = re.compile(
    rf"too large: (?P<output>{_NUMBER})\. This model's maximum context length is (?P<window>{_NUMBER}) tokens and your "
    rf"request has (?P<input>{_NUMBER}) input tokens"
)
"""What vLLM says where the prompt and `max_tokens` are too long together."""
_REQUESTED: Final = re.compile(
    rf"maximum context length (?:is|of) (?P<window>{_NUMBER}) tokens\. (?:However, )?you requested "
    rf"(?:about |a total of )?{_NUMBER} tokens(?:(?: \(|: )(?P<parts>[\w ,]{{0,300}}))?",
    re.IGNORECASE,
)
"""What OpenAI, OpenRouter and SGLang say of both together; some also tell the parts of the sum."""
_PART: Final = re.compile(rf"({_NUMBER}) (?:tokens )?(?:of|in|for|from) (?:the |your )?(\w+(?: \w+)?)")
_TOO_LONG: Final = re.compile(
    rf"maximum context length is (?P<window>{_NUMBER}) tokens\b.{{0,80}}? (?P<input>{_NUMBER}) (?:input )?tokens"
)
ROOM_FOR_OUTPUT: Final = 4000
"""The tokens of the window that a prompt must leave free for Claude Code to go on with a lower `max_tokens`: it sets
what is free less 1000, and gives up if that is below 3000.
"""


def prompt_too_long(failure: Failure, count_tokens: Callable[[], int], window: int | None) -> Failure:
    """Returns a failure of the kind CONTEXT_LENGTH_EXCEEDED in Anthropic's words, others unchanged: `prompt is too
    long: N tokens > M maximum`, on which Claude Code summarises, or, if the prompt alone fits and leaves
    `ROOM_FOR_OUTPUT`, that it leaves too little for `max_tokens`, which Claude Code then lowers. The numbers are the
    model server's own, if it tells them. `window`: the model's context window, if known.
    """
    if failure.kind is not FaultKind.CONTEXT_LENGTH_EXCEEDED:
        return failure
    tokens, output, most = _told_tokens(failure.message)
    if tokens is None:
        tokens = count_tokens()
    elif output is not None and most is not None and tokens + ROOM_FOR_OUTPUT <= most:
        message = f"input length and `max_tokens` exceed context limit: {tokens} + {output} > {most}"
        message += ", decrease input length or `max_tokens` and try again"
        return msgspec.structs.replace(failure, message=message, param=None)
    most = most or window or max(1, tokens - 1)
    message = f"prompt is too long: {max(tokens, most + 1)} tokens > {most} maximum"
    return msgspec.structs.replace(failure, message=message, param=None)


def _told_tokens(message: str) -> tuple[int | None, int | None, int | None]:
    """Returns the tokens of the prompt, of the output, and of the context window that a model server has told."""
    if (told := _WITH_OUTPUT.search(message)) is not None:
        return int(told["input"]), int(told["output"]), int(told["window"])
    if (told := _REQUESTED.search(message)) is not None:
        parts = _PART.findall(told["parts"] or "")
        outputs = [int(count) for count, what in parts if "output" in what or "completion" in what]
        inputs = [int(count) for count, what in parts if not ("output" in what or "completion" in what)]
        both = bool(inputs and outputs)  # the sum alone says nothing of the prompt
        return sum(inputs) if both else None, sum(outputs) if both else None, int(told["window"])
    if (told := _TOO_LONG.search(message)) is not None:
        return int(told["input"]), None, int(told["window"])
    return None, None, None
