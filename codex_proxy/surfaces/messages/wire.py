"""The pydantic model of a request of Anthropic's Messages API. Types are strict; unknown fields are accepted.

Input: the bytes of the body. Output: `MessagesRequest`. Raises `Fault` INVALID_REQUEST with `param`. The content of
messages and tools is not validated here: a client sends its history again with every request, so content that is
invalid must not be refused. Source: docs/messages.md, requests of Claude Code 2.1.330 and of Anthropic's SDKs.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import ConfigDict, Field, Tag

from codex_proxy.surfaces.body import RequestModel, StopSequence, by_kind, parse_as

Blocks: TypeAlias = list[Any]
"""Content blocks; not validated, since new types may come."""
Content: TypeAlias = Annotated[
    Annotated[str, Tag("~string")] | Annotated[Blocks, Tag("~blocks")],
    by_kind("type", {}, text="~string", array="~blocks"),
]


class MessageOutputConfig(RequestModel):
    """The `output_config` of one message. It applies to the turn of that message and to later turns."""

    effort: str | None = None


class InputMessage(RequestModel):
    """One message. `role` is `user` or `assistant`, or `system` anywhere in the conversation."""

    role: str
    content: Content | None = None
    output_config: MessageOutputConfig | None = None


class Thinking(RequestModel):
    """`type`: `enabled` with a budget, `adaptive` or `disabled`."""

    type: str
    budget_tokens: int | None = None


class AnswerFormat(RequestModel):
    type: str
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class OutputConfig(RequestModel):
    effort: str | None = None
    format: AnswerFormat | None = None


class GivenToolChoice(RequestModel):
    """`type`: `auto`, `any`, `tool` (with a `name`) or `none`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesRequest(RequestModel):
    """The body of `POST /v1/messages`. Each optional field may be null. Unknown fields are kept in `model_extra`."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, defer_build=True)

    messages: Annotated[list[InputMessage], Field(min_length=1)]
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    system: Content | None = None
    stream: bool | None = None
    stop_sequences: Annotated[list[StopSequence], Field(max_length=64)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: GivenToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: AnswerFormat | None = None
    metadata: dict[str, Any] | None = None


def parse_body(body: bytes) -> MessagesRequest:
    """Returns the body as a `MessagesRequest`. Raises `Fault` INVALID_REQUEST; its `param` names the invalid field."""
    return parse_as(MessagesRequest, body)
