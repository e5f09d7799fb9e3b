"""One line of `codex proto`: bytes in, a `Msg` with the fields that we need out.

The real 0.42 says `{"id": submission, "msg": {"type", ...}}`. Older spellings have type and fields at the
top level, or `codex/event/` before the type; later ones renamed some types. What a line means is the
dialect's; here is only how it is written. The decoder is typed, so a line costs one decode.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

PREFIX = "codex/event/"
"""What older versions put before an event's name."""

ALIASES = {
    "agent_message_content_delta": "agent_message_delta",
    "reasoning_content_delta": "agent_reasoning_delta",
    "reasoning_raw_content_delta": "agent_reasoning_raw_content_delta",
    "turn_started": "task_started",
    "turn_complete": "task_complete",
}
"""Names of other versions. Some say the same thing twice, once under each name."""


class TokenUsage(msgspec.Struct, gc=False):
    """Tokens as 0.42 counts them."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0


class TokenInfo(msgspec.Struct, gc=False):
    """`total` is the session's sum, `last` the last model call's."""

    total_token_usage: TokenUsage
    last_token_usage: TokenUsage | None = None


class Function(msgspec.Struct, gc=False):
    """Name and argument text of a call, or pieces of them."""

    name: str | None = None
    arguments: str | None = None


class CallPiece(msgspec.Struct, gc=False):
    """A call of a client's tool, or a piece of one (the fake agent's extension of the dialect)."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: Function | None = None


class Invocation(msgspec.Struct, gc=False):
    """Which tool of which MCP server."""

    server: str = ""
    tool: str = ""


class McpContent(msgspec.Struct, gc=False):
    """What an MCP server answered, as far as we look."""

    isError: bool | None = None


class McpResult(msgspec.Struct, gc=False):
    """Rust's `Result`: `Err` is the text of a call that failed before the server answered."""

    Ok: McpContent | None = None
    Err: msgspec.Raw | None = None


class PlanStep(msgspec.Struct, gc=False):
    """One line of the agent's to-do list."""

    step: str = ""
    status: str = ""


class Msg(msgspec.Struct, gc=False):
    """The fields of every event that we read; each event has some of them."""

    type: str = ""
    # Text.
    delta: str | None = None
    message: str | None = None
    text: str | None = None
    last_agent_message: str | None = None
    # Session, usage, end.
    session_id: str | None = None
    model: str | None = None
    info: TokenInfo | None = None
    rate_limits: msgspec.Raw = msgspec.Raw()
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_output_tokens: int | None = None
    # What the agent does by itself.
    call_id: str = ""
    command: list[str] | str | None = None
    chunk: str | None = None
    exit_code: int | None = None
    changes: dict[str, dict[str, msgspec.Raw]] | None = None
    success: bool | None = None
    invocation: Invocation | None = None
    result: McpResult | None = None
    query: str | None = None
    path: str | None = None
    plan: list[PlanStep] | None = None
    reason: str | None = None
    # The fake agent's extensions.
    choice_index: int | None = None
    tool_calls: list[CallPiece] | None = None
    function_call: Function | None = None
    refusal: str | None = None
    finish_reason: str | None = None
    choice_finish_reasons: dict[int, str] | None = None


class _Envelope(msgspec.Struct, gc=False):
    id: str | int | None = None
    msg: Msg | None = None


class _HeadMsg(msgspec.Struct, gc=False):
    type: str = ""


class _Head(msgspec.Struct, gc=False):
    id: str | int | None = None
    type: str = ""
    msg: _HeadMsg | None = None


class _Delta(msgspec.Struct, gc=False):
    delta: str | None = None
    choice_index: int | None = None


class _DeltaLine(msgspec.Struct, gc=False):
    msg: _Delta


class Line(msgspec.Struct, gc=False):
    """A line that was JSON. `id` is None where the spelling has none.

    `flat`: type and fields are at the top level. `damaged`: a field that we read has another type than it
    should; then `msg` has its type and nothing else.
    """

    id: str | int | None
    msg: Msg
    flat: bool = False
    damaged: bool = False


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)
_FLAT: Final = msgspec.json.Decoder(Msg)
_HEAD: Final = msgspec.json.Decoder(_Head)
_DELTA: Final = msgspec.json.Decoder(_DeltaLine).decode
_DELTA_HEAD: Final = b'{"id":"1","msg":{"type":"agent_message_delta",'
# What the decoders raise on a child's nonsense; RecursionError: a line of nothing but brackets.
_NONSENSE: Final = (msgspec.DecodeError, ValueError, RecursionError)


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Every spelling of these events' names, and the name that it stands for."""
    plain = {name: name for name in names} | ALIASES
    return plain | {PREFIX + spelling: name for spelling, name in plain.items()}


def plain_delta(line: bytes) -> str | None:
    """The text of a delta that is spelled as the real agent spells it, and says nothing but that; else nothing.

    Such lines are most of what comes. To decode the two fields takes half the time of a whole `Msg`.
    """
    if not line.startswith(_DELTA_HEAD):
        return None
    try:
        msg = _DELTA(line).msg
    except _NONSENSE:
        return None
    return msg.delta if msg.choice_index is None else None


def decode(line: bytes) -> Line | None:
    """The line, or None when it is no JSON object of ours at all."""
    try:
        envelope = _ENVELOPE.decode(line)
        if envelope.msg is not None:
            return Line(envelope.id, envelope.msg)
        return Line(envelope.id, _FLAT.decode(line), flat=True)
    except msgspec.ValidationError:
        return _salvaged(line)
    except _NONSENSE:
        return None


def _salvaged(line: bytes) -> Line | None:
    try:
        head = _HEAD.decode(line)
    except _NONSENSE:
        return None
    if head.msg is not None:
        return Line(head.id, Msg(type=head.msg.type), damaged=True)
    return Line(head.id, Msg(type=head.type), flat=True, damaged=True)
