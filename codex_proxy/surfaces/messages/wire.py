"""The pydantic model of a request of Anthropic's Messages API. Types are strict; unknown fields are accepted, and the
marks of `field_lists` say which fields change nothing or are refused.

Input: the bytes of the body. Output: `MessagesRequest`, and the notes of the marks. Raises `Fault` INVALID_REQUEST
with `param`. The content of messages and tools is not validated here: a client sends its history again with every
request, so content that is invalid must not be refused. The fields of blocks and tools are in `BLOCK_FIELDS` and
`TOOL_FIELDS`. Source: docs/messages.md, requests of Claude Code 2.1.330 and of Anthropic's SDKs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

from pydantic import ConfigDict, Field, Tag

from codex_proxy.surfaces.body import RequestModel, StopSequence, by_kind, parse_as
from codex_proxy.surfaces.field_lists import FieldNotes, Ignored, Refused
from codex_proxy.surfaces.messages.errors import THREADS_UNSUPPORTED

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
    clear_at: str | None = None
    """`next_user_message`: the model is not shown this instruction any more after a later message of the user."""


class Thinking(RequestModel):
    """`type`: `enabled` with a budget, `adaptive`, `between_tools` or `disabled`."""

    type: str
    budget_tokens: int | None = None
    display: Annotated[Any, Ignored("thinking")] = None
    block_binding: Annotated[Any, Ignored("thinking")] = None


class AnswerFormat(RequestModel):
    type: str
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class OutputConfig(RequestModel):
    effort: str | None = None
    format: AnswerFormat | None = None
    task_budget: Annotated[Any, Ignored("output_config")] = None


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
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    cache_control: Annotated[Any, Ignored()] = None
    context_management: Annotated[Any, Ignored()] = None
    diagnostics: Annotated[Any, Ignored()] = None
    service_tier: Annotated[Any, Ignored()] = None
    speed: Annotated[Any, Ignored()] = None
    inference_geo: Annotated[Any, Ignored()] = None
    fallbacks: Annotated[Any, Ignored()] = None
    fallback_credit_token: Annotated[Any, Ignored()] = None
    billing_policy: Annotated[Any, Ignored()] = None
    thread: Annotated[
        Any,
        Refused(
            "this server keeps no threads of messages: send the whole conversation in 'messages', with 'system' and "
            "'tools', and leave 'thread' out",
            THREADS_UNSUPPORTED,
        ),
    ] = None
    compaction: Annotated[
        Any,
        Refused("this server makes no compaction blocks: ask for a summary in a message, and go on from it"),
    ] = None
    container: Annotated[
        Any,
        Refused("containers and skills are Anthropic's own and are not available here: leave it out"),
    ] = None
    mcp_servers: Annotated[
        Any,
        Refused(
            "MCP servers of a request are not available in this API: have the operator name them "
            "(PROXY_MCP_CONFIG), or send the request to /v1/responses"
        ),
    ] = None


BLOCK_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset(("type", "cache_control", *fields.split()))
    for kind, fields in {
        "text": "text",
        "image": "source",
        "document": "source title context citations",
        "search_result": "source title content",
        "thinking": "thinking signature",
        "redacted_thinking": "data",
        "tool_use": "id name input",
        "tool_result": "tool_use_id content is_error",
        "tool_reference": "tool_name",
        "tool_addition": "tool",
        "tool_removal": "tool",
        "compaction": "content",
    }.items()
}
"""The fields of each type of content block that are served; all others of a block are ignored, and the answer names
them. `cache_control` is not named in blocks and tools: every cache here works without it."""

TOOL_FIELDS: Final = frozenset(
    {
        *("type", "name", "description", "input_schema"),
        *("strict", "defer_loading", "allowed_callers", "cache_control"),
    }
)
"""The fields of a tool of the client that are served; all others are ignored, and the answer names them."""


def parse_body(body: bytes, notes: FieldNotes | None = None) -> MessagesRequest:
    """Returns the body as a `MessagesRequest`, and adds to `notes` which of its fields are ignored. Raises `Fault`
    INVALID_REQUEST; its `param` names the invalid or refused field.
    """
    return parse_as(MessagesRequest, body, notes)
