"""Decodes and encodes the JSON lines of `claude -p --input-format stream-json --output-format stream-json`. Source:
recordings of Claude Code 2.1.330 (tests/golden/recordings/claude-code).
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from codex_proxy.agents.dialect import UNREADABLE
from codex_proxy.core.json_cost import LONG_JSON, has_too_many_values

T = TypeVar("T")
CLIENT_SERVER: Final = "client"
"""The name of the MCP server with the client's tools. The model sees their names as `mcp__client__NAME`."""


class TokenDetails(msgspec.Struct, frozen=True, gc=False):
    """The parts of the output tokens."""

    thinking_tokens: int | None = None


class StreamTokens(msgspec.Struct, frozen=True, gc=False):
    """The `usage` of an event in Anthropic's stream; None for counts that it lacks. `input_tokens` excludes
    the cache.
    """

    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: TokenDetails | None = None


class Delta(msgspec.Struct, frozen=True, gc=False):
    """The `delta` of a `content_block_delta` or `message_delta` event. A delta has the fields of its type; the
    others are None.
    """

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class ContentBlock(msgspec.Struct, frozen=True, gc=False):
    """The `content_block` of a `content_block_start` event. Fields that its type does not have are None."""

    type: str = ""
    id: str | None = None
    name: str | None = None
    data: str | None = None
    """The encrypted content of a `redacted_thinking` block."""


class StreamHead(msgspec.Struct, frozen=True, gc=False):
    """The `message` of a `message_start` event."""

    id: str = ""
    model: str = ""
    usage: StreamTokens | None = None


class StreamEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of Anthropic's stream, which Claude Code passes on unchanged. Fields that its type does not have are
    None.
    """

    type: str = ""
    index: int = 0
    delta: Delta | None = None
    content_block: ContentBlock | None = None
    message: StreamHead | None = None
    usage: StreamTokens | None = None


class Message(msgspec.Struct, frozen=True):
    """A line from the program; fields that it lacks are None or empty. Of the raw fields, `message` is a
    `WholeMessage`, `request` a `ControlRequest`, `response` a `ControlResponse`, `error` an error's code.
    """

    type: str = ""
    subtype: str = ""
    event: StreamEvent | None = None
    parent_tool_use_id: str | None = None
    """The tool call that a sub-agent serves; None for the conversation itself."""
    session_id: str | None = None
    request_id: str | None = None
    model: str | None = None
    message: msgspec.Raw = msgspec.Raw()
    request: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    rate_limit_info: msgspec.Raw = msgspec.Raw()


class Retry(msgspec.Struct, frozen=True):
    """The message `system/api_retry`: the program repeats a model call that failed with the HTTP status
    `error_status`.
    """

    attempt: int | None = None
    max_retries: int | None = None
    error_status: int | None = None
    error: str | None = None


class Result(msgspec.Struct, frozen=True):
    """The message `result`: the end of the program's turn, or the confirmation of a line of the history."""

    is_error: bool = False
    result: str = ""
    """The text of the answer, or of the error."""
    stop_reason: str | None = None
    terminal_reason: str | None = None
    """Why the program has ended its turn, such as `aborted_streaming`."""
    api_error_status: int | None = None
    """The HTTP status with which the provider refused a model call; None if it did not."""
    structured_output: msgspec.Raw = msgspec.Raw()
    """The answer as JSON, if it had to follow a schema."""
    usage: StreamTokens | None = None


class WholeBlock(msgspec.Struct, frozen=True):
    """A content block of a message that is sent complete. Fields that its type does not have are None or empty."""

    type: str = ""
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    tool_use_id: str | None = None
    content: msgspec.Raw = msgspec.Raw()
    is_error: bool | None = None


class WholeMessage(msgspec.Struct, frozen=True):
    """A message of the assistant or the user that the program sends complete, not as stream events."""

    id: str = ""
    model: str = ""
    content: list[WholeBlock] | str = ""
    usage: StreamTokens | None = None

    @property
    def blocks(self) -> list[WholeBlock]:
        """Returns the content as a list of blocks; a text becomes one block."""
        if isinstance(self.content, str):
            return [WholeBlock(type="text", text=self.content)] if self.content else []
        return self.content


class RpcParams(msgspec.Struct, frozen=True):
    """The parameters of any JSON-RPC message to that server, empty where a method has none; `meta` is the `_meta` of a
    call.
    """

    protocol_version: str = msgspec.field(default="2025-06-18", name="protocolVersion")
    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw()
    meta: RpcMeta | None = msgspec.field(default=None, name="_meta")


class RpcMeta(msgspec.Struct, frozen=True):
    """What Claude Code says about a call: the id that the model has given it."""

    call_id: str | None = msgspec.field(default=None, name="claudecode/toolUseId")


class RpcMessage(msgspec.Struct, frozen=True):
    """A JSON-RPC message from the program to the MCP server with the client's tools, whose part this server plays. `id`
    is None in a notification.
    """

    method: str = ""
    id: int | str | None = None
    params: RpcParams | None = None


class ControlRequest(msgspec.Struct, frozen=True):
    """A control request of the program (`mcp_message`, `can_use_tool`). Fields that its subtype does not have are None
    or empty.
    """

    subtype: str = ""
    server_name: str = ""
    message: RpcMessage | None = None
    tool_name: str = ""
    input: msgspec.Raw = msgspec.Raw()


class ControlResponse(msgspec.Struct, frozen=True):
    """The program's answer to a control request of this server: `response` if the `subtype` is `success`, else the
    text of an `error`.
    """

    subtype: str = ""
    request_id: str = ""
    response: msgspec.Raw = msgspec.Raw()
    error: str | None = None


_DECODER: Final = msgspec.json.Decoder(Message)


def decode(line: bytes) -> Message:
    """Decodes a line from the program. Raises an exception of `UNREADABLE`."""
    return _DECODER.decode(line)


def decode_part(json: msgspec.Raw, type: type[T]) -> T:
    """Decodes a raw field of a message. Raises an exception of `UNREADABLE`, also for too many values."""
    if len(json) > LONG_JSON and has_too_many_values(bytes(json)):
        raise msgspec.DecodeError("it has too many values")
    return msgspec.json.decode(json, type=type)


def string_in(json: msgspec.Raw) -> str | None:
    """Returns the string that the JSON is; None for any other JSON, and for none."""
    try:
        return msgspec.json.decode(json, type=str) if json else None
    except UNREADABLE:
        return None


# --- what we write ------------------------------------------------------------------------------


def encoded(value: Any) -> bytes:
    """Returns the value as one line of JSON; line breaks in a client's raw JSON become spaces."""
    line = msgspec.json.encode(value)
    return line.replace(b"\n", b" ") + b"\n"  # between tokens only: in a string it would be escaped


def control_request(id: str, subtype: str, **fields: Any) -> bytes:
    """Returns the line of a control request to the program. `id` is the request's id; `fields` are its fields other
    than `subtype`.
    """
    return encoded({"type": "control_request", "request_id": id, "request": {"subtype": subtype, **fields}})


def control_answer(request_id: str, answer: dict[str, Any]) -> bytes:
    """Returns the line with this answer to the program's control request `request_id`."""
    response = {"subtype": "success", "request_id": request_id, "response": answer}
    return encoded({"type": "control_response", "response": response})


def control_refusal(request_id: str) -> bytes:
    """Returns the refusal of a control request that this server does not support; without it, the program
    would wait.
    """
    response = {"subtype": "error", "request_id": request_id, "error": "not supported"}
    return encoded({"type": "control_response", "response": response})


def rpc_answer(request_id: str, rpc_id: int | str | None, result: dict[str, Any]) -> bytes:
    """Returns the line with the result of a JSON-RPC message to the server of the client's tools. `request_id` is the
    id of the control request around it; `rpc_id` None: of a notification.
    """
    answer = {"jsonrpc": "2.0", "id": 0 if rpc_id is None else rpc_id, "result": result}
    return control_answer(request_id, {"mcp_response": answer})


def rpc_refusal(request_id: str, rpc_id: int | str | None) -> bytes:
    """Returns the line that refuses such a message: its method is not supported. The ids are those of `rpc_answer`."""
    error = {"code": -32601, "message": "Method not found"}
    answer = {"jsonrpc": "2.0", "id": 0 if rpc_id is None else rpc_id, "error": error}
    return control_answer(request_id, {"mcp_response": answer})


def user_line(content: list[dict[str, Any]], *, query: bool, takes_mark: bool = True) -> bytes:
    """Returns the line of a user's message. `query`: the model answers it; else it is history. `takes_mark`: the
    release knows the mark of texts that nobody typed.
    """
    if not takes_mark:  # a line break before it keeps a text from being a command
        content = [_no_command(block) for block in content]
    line: dict[str, Any] = {
        "type": "user",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
        "session_id": "",
        # Else the program runs commands (`/help`), reads files (`@path`) and adds sentences for some words.
        "text_not_typed": True,
    }
    return encoded(line if query else line | {"shouldQuery": False})


def _no_command(block: dict[str, Any]) -> dict[str, Any]:
    begins = block["type"] == "text" and block["text"].startswith("/")
    return {**block, "text": "\n" + block["text"]} if begins else block


def assistant_line(content: list[dict[str, Any]], number: int, model: str = "") -> bytes:
    """Returns the line of an assistant's message in the history. `number` differs for each such message of a process.
    `model` signed the thinking blocks.
    """
    said = {"role": "assistant", "content": content}
    return encoded(
        {
            "type": "assistant",
            "message": {**said, "model": model} if model else said,
            "parent_tool_use_id": None,
            "session_id": "",
            "uuid": f"00000000-0000-4000-8000-{number:012d}",
        }
    )
