"""The types of a message of Anthropic's API, whole and as events. Source: docs/messages.md."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired, Required, TypedDict

from codex_proxy.surfaces.answer_types import Count, JsonText, Object, one_of
from codex_proxy.surfaces.messages.content import BLOCK_TYPES, EVENT_TYPES

STOP_REASONS: Final = ("end_turn", "tool_use", "max_tokens", "refusal", "stop_sequence")
"""All values of `stop_reason` that are ever sent."""


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


class MessageUsage(TypedDict):
    """`input_tokens`: without tokens read from a cache; in `message_start`, an estimate."""

    input_tokens: Count
    output_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count


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
