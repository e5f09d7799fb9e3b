"""The JSON lines of `claude -p --input-format stream-json --output-format stream-json`. Source: recordings of Claude
Code 2.1.330 (tests/golden/recordings/claude-code).
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, TypeVar

import msgspec

from codex_proxy.agents.shared.json_lines import UnreadableError, decode_line, decode_loosely, encode_line
from codex_proxy.core.json_values import UNREADABLE, value_at

T = TypeVar("T")
CLIENT_SERVER: Final = "client"
"""The MCP server with the client's tools, whose names are `mcp__client__NAME` for the model."""


class TokenDetails(msgspec.Struct, frozen=True, gc=False):
    thinking_tokens: int | None = None


class StreamTokens(msgspec.Struct, frozen=True, gc=False):
    """Token counts; `input_tokens` exclude the cache."""

    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: TokenDetails | None = None


class Delta(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class ContentBlock(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    id: str | None = None
    name: str | None = None
    data: str | None = None


class StreamHead(msgspec.Struct, frozen=True, gc=False):
    id: str = ""
    model: str = ""
    usage: StreamTokens | None = None


class StreamEvent(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    index: int = 0
    delta: Delta | None = None
    content_block: ContentBlock | None = None
    message: StreamHead | None = None
    usage: StreamTokens | None = None


class Message(msgspec.Struct, frozen=True):
    """A line from the program. Its raw fields: `message` is a `WholeMessage`, `request` a `ControlRequest`, `response`
    a `ControlResponse`, `error` an error's code.
    """

    type: str = ""
    subtype: str = ""
    event: StreamEvent | None = None
    parent_tool_use_id: str | None = None
    """The tool call that a sub-agent serves, if any."""
    session_id: str | None = None
    request_id: str | None = None
    model: str | None = None
    message: msgspec.Raw = msgspec.Raw()
    request: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    rate_limit_info: msgspec.Raw = msgspec.Raw()
    capabilities: list[str] = []
    """What the release does, by its own names."""
    command_uuid: str = ""
    """The `uuid` of a line of the user whose `state` has changed."""
    state: str = ""
    is_error: msgspec.Raw = msgspec.Raw()
    """Of a `result`, which always has it."""
    whole: bool = True
    """False: the other fields could not be read. No field of the program's."""

    @property
    def lacks_type(self) -> bool:
        """Whether it does not say what it is, and may be an answer, a part of one or a question."""
        if self.type:
            return False
        carried = self.event, self.message, self.request, self.response, self.is_error
        return not self.whole or any(carried)


class _Head(msgspec.Struct, frozen=True):
    """The fields of lines that cannot be decoded whole."""

    type: str = ""
    request_id: str | None = None


class Retry(msgspec.Struct, frozen=True):
    """A line `system/api_retry`: a failed model call is repeated."""

    attempt: int | None = None
    max_retries: int | None = None
    error_status: int | None = None
    error: str | None = None


class Result(msgspec.Struct, frozen=True):
    """The end of the program's turn, or the confirmation of a line of the history."""

    is_error: Any = False
    result: str = ""
    stop_reason: str | None = None
    terminal_reason: str | None = None
    api_error_status: int | None = None
    structured_output: msgspec.Raw = msgspec.Raw()
    usage: StreamTokens | None = None

    @property
    def failed(self) -> bool:
        """Whether it is an error, as far as can be read."""
        return self.is_error is not False


class WholeBlock(msgspec.Struct, frozen=True):
    """A block of a complete message, with the fields of all types."""

    type: str = ""
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    tool_use_id: str | None = None
    content: msgspec.Raw = msgspec.Raw()
    is_error: bool | None = None


class WholeMessage(msgspec.Struct, frozen=True):
    id: str = ""
    model: str = ""
    content: list[WholeBlock] | str = ""
    stop_reason: str | None = None
    """None in a message whose stream has not ended."""
    usage: StreamTokens | None = None

    @property
    def blocks(self) -> list[WholeBlock]:
        if isinstance(self.content, str):
            return [WholeBlock(type="text", text=self.content)] if self.content else []
        return self.content


class RpcParams(msgspec.Struct, frozen=True):
    protocol_version: str = msgspec.field(default="2025-06-18", name="protocolVersion")
    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw()
    meta: RpcMeta | None = msgspec.field(default=None, name="_meta")


class RpcMeta(msgspec.Struct, frozen=True):
    """The `_meta` with the model's id of a call."""

    call_id: str | None = msgspec.field(default=None, name="claudecode/toolUseId")


class RpcMessage(msgspec.Struct, frozen=True):
    method: str = ""
    id: int | str | None = None
    params: RpcParams | None = None


class ControlRequest(msgspec.Struct, frozen=True):
    """A request of the program (`mcp_message`, `can_use_tool`)."""

    subtype: str = ""
    server_name: str = ""
    message: RpcMessage | None = None
    tool_name: str = ""
    tool_use_id: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    description: str = ""
    """The model's words for a call that asks for permission."""
    agent_id: str = ""
    """The task whose call it is; empty for the agent's own."""


class ControlResponse(msgspec.Struct, frozen=True):
    """The answer to this server's control request: `response` after `success`, else `error`."""

    subtype: str = ""
    request_id: str = ""
    response: msgspec.Raw = msgspec.Raw()
    error: str | None = None


_decoder: Final = msgspec.json.Decoder(Message)
_head_decoder: Final = msgspec.json.Decoder(_Head)


def decode(line: bytes) -> Message:
    """Decodes a line; fields of an unexpected type count as missing. Of one that breaks off, or costs too much, only
    type and id are read, and `whole` is False. Raises `UnreadableError`.
    """
    try:
        return _decoder.decode(line)
    except UNREADABLE:
        found = decode_line(line, _decoder, _head_decoder)
    if isinstance(found, _Head):
        head, found = found, decode_loosely(line, Message)
        found = found or Message(head.type, request_id=head.request_id, whole=False)
    found = found or decode_loosely(line, Message)  # perhaps only its type is none
    if found is None:
        raise UnreadableError("it is no JSON of this protocol")
    return found


class _AnyEvent(msgspec.Struct, frozen=True):
    event: Any = None


def may_carry_text(message: Message, line: bytes) -> bool:
    """Whether a line that cannot be read may have a piece of a text, or begin a message."""
    if not message.whole:
        return message.type in ("stream_event", "assistant")
    if message.type != "stream_event":
        return False
    found = decode_loosely(line, _AnyEvent)
    return found is None or value_at(found.event, "type") == "message_start" or _has_text(found.event)


def _has_text(value: Any) -> bool:
    """Whether there is any text in a value but its types."""
    if isinstance(value, dict):
        return any(_has_text(inner) for name, inner in value.items() if name != "type")
    return any(map(_has_text, value)) if isinstance(value, list) else isinstance(value, str) and value != ""


def string_in(json: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(json, type=str) if json else None
    except UNREADABLE:
        return None


# --- what we write ------------------------------------------------------------------------------


def control_request(id: str, subtype: str, **fields: Any) -> bytes:
    return encode_line(
        {"type": "control_request", "request_id": id, "request": {"subtype": subtype, **fields}}
    )


def control_answer(request_id: str, answer: dict[str, Any]) -> bytes:
    response = {"subtype": "success", "request_id": request_id, "response": answer}
    return encode_line({"type": "control_response", "response": response})


def control_refusal(request_id: str) -> bytes:
    """Returns a refusal, without which the program would wait."""
    response = {"subtype": "error", "request_id": request_id, "error": "not supported"}
    return encode_line({"type": "control_response", "response": response})


def rpc_answer(request_id: str, rpc_id: int | str | None, result: dict[str, Any]) -> bytes:
    """Returns the answer to a JSON-RPC request (`rpc_id` None: a notification) in the control request `request_id`."""
    answer = {"jsonrpc": "2.0", "id": 0 if rpc_id is None else rpc_id, "result": result}
    return control_answer(request_id, {"mcp_response": answer})


def rpc_refusal(request_id: str, rpc_id: int | str | None) -> bytes:
    error = {"code": -32601, "message": "Method not found"}
    answer = {"jsonrpc": "2.0", "id": 0 if rpc_id is None else rpc_id, "error": error}
    return control_answer(request_id, {"mcp_response": answer})


def uuid_of(id: str) -> str:
    """Returns the `uuid` of a line with this id: no other line of a session may have it, also in another process."""
    digits = hashlib.sha256(id.encode()).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"


def user_line(
    content: list[dict[str, Any]], *, query: bool, takes_mark: bool = True, uuid: str = ""
) -> bytes:
    """Returns a line of the user. `query`: whether the model answers it. `takes_mark`: whether the release knows
    the mark of texts that nobody typed. With a `uuid` the program tells what becomes of the line.
    """
    if not takes_mark:  # a line break before it keeps a text from being a command
        content = [_escape_command(block) for block in content]
    line: dict[str, Any] = {
        "type": "user",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
        "session_id": "",
        # Else the program runs commands (`/help`), reads files (`@path`) and adds sentences for some words.
        "text_not_typed": True,
    }
    if uuid:
        line["uuid"] = uuid
    return encode_line(line if query else line | {"shouldQuery": False})


def _escape_command(block: dict[str, Any]) -> dict[str, Any]:
    begins = block["type"] == "text" and block["text"].startswith("/")
    return {**block, "text": "\n" + block["text"]} if begins else block


def assistant_line(content: list[dict[str, Any]], number: int, model: str = "") -> bytes:
    """Returns a line of the assistant. `number` is unique in a process. `model` signed the thinking blocks."""
    said = {"role": "assistant", "content": content}
    return encode_line(
        {
            "type": "assistant",
            "message": {**said, "model": model} if model else said,
            "parent_tool_use_id": None,
            "session_id": "",
            "uuid": f"00000000-0000-4000-8000-{number:012d}",
        }
    )
