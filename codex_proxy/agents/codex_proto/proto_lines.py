"""The lines of `codex proto`, both ways: what it prints, decoded, and the operations that it is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeGuard

import msgspec

from codex_proxy.agents.shared.history_items import flatten, history_item
from codex_proxy.agents.shared.json_lines import decode_line, decode_loosely, encode_line
from codex_proxy.core.events import Usage
from codex_proxy.core.items import HistoryItem, HistoryMessage, Part, RawHistoryItem, TextPart, Tool
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.turn import NamedTools, Turn


class TokenCounts(msgspec.Struct, gc=False):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0
    cache_write_input_tokens: int = 0

    @property
    def usage(self) -> Usage:
        return Usage(
            self.input_tokens,
            self.cached_input_tokens,
            self.output_tokens,
            self.reasoning_output_tokens,
            self.cache_write_input_tokens,
        )


PREFIX = "codex/event/"
"""The prefix of events' names in older releases."""

ALIASES = {
    "agent_message_content_delta": "agent_message_delta",
    "reasoning_content_delta": "agent_reasoning_delta",
    "reasoning_raw_content_delta": "agent_reasoning_raw_content_delta",
    "turn_started": "task_started",
    "turn_complete": "task_complete",
}
"""Names in other releases, some of which write an event twice, under both names."""


class TokenInfo(msgspec.Struct, gc=False):
    total_token_usage: TokenCounts
    last_token_usage: TokenCounts | None = None


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class CallPiece(msgspec.Struct, gc=False):
    """A client's call, or a piece, in Chat's form. Only the fake agent writes these."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: Function | None = None


class Invocation(msgspec.Struct, gc=False):
    server: str = ""
    tool: str = ""


class McpContent(msgspec.Struct, gc=False):
    isError: bool | None = None


class McpResult(msgspec.Struct, gc=False):
    """Rust's `Result`: without `Ok` the call failed before the server answered."""

    Ok: McpContent | None = None


class PlanStep(msgspec.Struct, gc=False):
    """A step of a plan. `status` is `pending`, `in_progress` or `completed`."""

    step: str = ""
    status: str = ""


class Msg(msgspec.Struct, gc=False):
    """The `msg` of any event, with the fields that are read."""

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
    """The counts of 0.42; older releases have the fields `*_tokens`, for one model call."""
    rate_limits: msgspec.Raw = msgspec.Raw()
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_output_tokens: int | None = None
    # The agent's own activities.
    call_id: str = ""
    command: list[str] | str | None = None
    chunk: str | None = None
    """A piece of a command's output, in base64."""
    exit_code: int | None = None
    changes: dict[str, dict[str, msgspec.Raw]] | None = None
    """The changes by path: each is an object whose key is `add`, `update` or `delete`."""
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
    """The fields of lines that cannot be decoded whole."""

    id: str | int | None = None
    type: str = ""
    msg: _HeadMsg | None = None


class _Delta(msgspec.Struct, gc=False):
    delta: str | None = None
    choice_index: int | None = None


class _DeltaLine(msgspec.Struct, gc=False):
    msg: _Delta


class Line(msgspec.Struct, gc=False):
    """A decoded line. `flat`: whether type and fields are at the top level. `damaged`: whether fields of `msg` could
    not be read. `whole` False: all but its type.
    """

    id: str | int | None
    msg: Msg
    flat: bool = False
    damaged: bool = False
    whole: bool = True


_envelope_decoder: Final = msgspec.json.Decoder(_Envelope)
_msg_decoder: Final = msgspec.json.Decoder(Msg)
_head_decoder: Final = msgspec.json.Decoder(_Head)
_decode_delta: Final = msgspec.json.Decoder(_DeltaLine).decode
_DELTA_HEAD: Final = b'{"id":"1","msg":{"type":"agent_message_delta",'


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Returns the event's name by each of its spellings."""
    plain = {name: name for name in names} | ALIASES
    return plain | {PREFIX + spelling: name for spelling, name in plain.items()}


def plain_delta(line: bytes) -> str | None:
    """Returns the text of a line that is a delta in 0.42's form without `choice`; None for others. Most lines are such
    deltas, and this is twice as fast as decoding a `Msg`.
    """
    if not line.startswith(_DELTA_HEAD):
        return None
    try:
        msg = _decode_delta(line).msg
    except UNREADABLE:
        return None
    return msg.delta if msg.choice_index is None else None


def decode(line: bytes) -> Line | None:
    """Decodes a line; None if it is not of this protocol. Fields of an unexpected type count as missing. Of a line that
    breaks off, or has too many values, decodes only id and type.
    """
    found = decode_line(line, _envelope_decoder, _head_decoder)
    if isinstance(found, _Envelope):
        if found.msg is not None:
            return Line(found.id, found.msg)
        flat = decode_line(line, _msg_decoder, _head_decoder)
        if isinstance(flat, Msg):
            return Line(found.id, flat, flat=True)
        found = flat
    if found is None:  # perhaps only id, `msg` or type have an unexpected type
        loose = decode_loosely(line, _Envelope)
        return None if loose is None else Line(loose.id, loose.msg or Msg(), damaged=True)
    is_flat = found.msg is None
    some = decode_loosely(line, Msg) if is_flat else (decode_loosely(line, _Envelope) or _Envelope()).msg
    msg = some or Msg(type=(found.msg or found).type)
    return Line(found.id, msg, flat=is_flat, damaged=True, whole=some is not None)


NO_USAGE = Usage()


class TurnUsage:
    """The tokens of one turn: the session's total less the total before. Each model call begins with the old total
    again, so counts of last calls must not be summed.
    """

    def __init__(self) -> None:
        self._session_before: Usage | None = None
        self._session_total = NO_USAGE

    @property
    def so_far(self) -> Usage:
        return self._session_total.since(self._session_before or NO_USAGE)

    def add_count(self, msg: Msg, *, has_output: bool) -> Usage | None:
        """Returns the tokens that the count adds, if any. `has_output`: the model has sent output since the previous
        count, so the last call of the first count belongs to this turn.
        """
        info = msg.info
        if info is None:
            self._session_before = self._session_before or NO_USAGE
            return self._add(msg)
        total = info.total_token_usage.usage
        if self._session_before is None:
            # The child has not reported the total before this turn: what the last call used is new.
            last = info.last_token_usage.usage if info.last_token_usage else total
            self._session_before = self._session_total = total.since(last) if has_output else total
        new = total.since(self._session_total)
        self._session_total = total
        return None if new == NO_USAGE else new

    def _add(self, msg: Msg) -> Usage | None:
        used = Usage(
            msg.input_tokens or 0,
            msg.cached_input_tokens or 0,
            msg.output_tokens or 0,
            msg.reasoning_output_tokens or 0,
        )
        self._session_total += used
        return None if used == NO_USAGE else used


EFFORTS = {
    "none": "minimal",
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""Codex's efforts by the request's: 0.42 silently drops a submission with an unknown one."""

SUMMARIES = frozenset({"auto", "concise", "detailed", "none"})


def submission_line(submission_id: str, op: dict[str, Any]) -> bytes:
    return encode_line({"id": submission_id, "op": op})


def turn_lines(turn: Turn, submission_id: str, model: str, *, extended: bool) -> bytes:
    """Returns the lines that start the turn. Without a `model` the child's default is used."""
    settings: dict[str, Any] = {
        "cwd": turn.workdir or ".",
        "approval_policy": "never",
        "sandbox_policy": {"mode": turn.sandbox},
    }
    summary = turn.summary if turn.summary in SUMMARIES else None
    effort = EFFORTS.get(turn.effort or "")
    input_fields = _extended_fields(turn) if extended else {"items": _input_items(turn)}
    if model:
        op = {"type": "user_turn", **input_fields, **settings, "model": model, "effort": effort}
        op["summary"] = summary or "auto"
        if turn.output_schema is not None:
            op["final_output_json_schema"] = turn.output_schema
        return submission_line(submission_id, op)
    if effort:
        settings["effort"] = effort
    if summary:
        settings["summary"] = summary
    context = submission_line(f"{submission_id}-context", {"type": "override_turn_context", **settings})
    return context + submission_line(submission_id, {"type": "user_input", **input_fields})


def _input_items(turn: Turn) -> list[dict[str, Any]]:
    if len(turn.history) == 1 and _is_user(turn.history[0]):
        return _inputs(turn.history[0].parts)
    text, images = flatten(turn.history)
    return _inputs([TextPart(text), *images])


def _inputs(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image", "image_url": part.url}
        for part in parts
    ]


def _extended_fields(turn: Turn) -> dict[str, Any]:
    history = list(turn.history)
    last = history.pop() if history and _is_user(history[-1]) else None
    return {
        "items": _inputs(last.parts) if isinstance(last, HistoryMessage) else [],
        "history": [_response_item(item) for item in history],
        "tools": [_tool(tool) for tool in turn.tools],
        "tool_choice": _tool_choice(turn),
        "choices": turn.choices,
        "parallel_tool_calls": turn.parallel_tool_calls,
    }


def _is_user(item: HistoryItem) -> TypeGuard[HistoryMessage]:
    return isinstance(item, HistoryMessage) and item.role == "user"


def _response_item(item: HistoryItem) -> object:
    if isinstance(item, RawHistoryItem):
        return msgspec.Raw(item.json)
    return history_item(item, detail_of=lambda image: image.detail)


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": tool.kind,
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def _tool_choice(turn: Turn) -> object:
    if isinstance(turn.tool_choice, NamedTools):
        return {"names": turn.tool_choice.names, "required": turn.tool_choice.required}
    return turn.tool_choice
