"""The pydantic model of a Messages request. Contents and tools are not validated, because clients send their history
each time. Source: docs/messages.md, requests of Claude Code 2.1.330 and of Anthropic's SDKs.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

from codex_proxy.surfaces.messages.answer import THREADS_UNSUPPORTED
from codex_proxy.surfaces.requests.body import RequestModel, Share, StopSequence, TopK, UpToTwo
from codex_proxy.surfaces.requests.fields import ByKind, Ignored, Refused

Blocks: TypeAlias = list[Any]
"""Content blocks; not validated, since new types may come."""
Content: TypeAlias = Annotated[str | Blocks, ByKind()]


class MessageOutputConfig(RequestModel):
    """The `output_config` of a message, for its turn and later ones."""

    effort: str | None = None


class InputMessage(RequestModel):
    """One message. `role` is `user` or `assistant`, or `system` anywhere in the conversation."""

    role: str
    content: Content | None = None
    output_config: MessageOutputConfig | None = None
    clear_at: str | None = None
    """When an instruction ends: `next_user_message`, before the user's next message."""


class Thinking(RequestModel):
    """`type`: `enabled` with a budget, `adaptive`, `between_tools` or `disabled`."""

    type: str
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
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


class MessagesRequest(RequestModel, extra="allow"):
    """The body of `POST /v1/messages`. Optional fields may be null."""

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
    temperature: UpToTwo | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
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
        Any, Refused("containers and skills are Anthropic's own and are not available here: leave it out")
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
"""The served fields of each type of block; others are ignored and named, but for `cache_control`."""

TOOL_FIELDS: Final = frozenset({
    "type", "name", "description", "input_schema",
    "strict", "defer_loading", "allowed_callers", "cache_control",
})  # fmt: skip
"""The served fields of tools; others are ignored and named."""
