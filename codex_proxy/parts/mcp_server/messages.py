"""Checks what MCP clients send, before the SDK reads it: that leaves some messages unanswered, and keeps a session for
a handshake that it refuses.
"""

from __future__ import annotations

import json
from typing import Any, Final

from mcp_types import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, InitializeRequestParams
from pydantic import ValidationError

from codex_proxy.core.json_values import UNREADABLE, is_too_costly, without_surrogates

MAX_BODY: Final = 8 << 20
"""Maximum bytes of a message. A prompt has at most 1,000,000 characters."""
_SURROGATE: Final = b"\\ud"
"""How the escape of a surrogate begins, in lower case."""


class MessageError(ValueError):
    """A message that cannot be taken; the text says why, with no value of the client's."""

    def __init__(self, code: int, text: str, id: int | str | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.id = id
        """The request's, if it has one."""

    def answer(self) -> dict[str, Any]:
        """Returns the JSON-RPC error."""
        return {"jsonrpc": "2.0", "id": self.id, "error": {"code": self.code, "message": str(self)}}


def checked(data: bytes) -> bytes:
    """Returns one message, with U+FFFD for lone surrogates. Raises `MessageError`."""
    if is_too_costly(data):
        raise MessageError(PARSE_ERROR, "The message is nested too deep, or has too many values.")
    try:
        message = json.loads(data.decode(), parse_constant=_refuse_constant)
    except UNREADABLE as error:
        raise MessageError(PARSE_ERROR, "The message is not valid JSON in UTF-8.") from error
    _check(message)
    if _SURROGATE in data.lower():
        return without_surrogates(json.dumps(message, ensure_ascii=False)).encode()
    return data


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check(message: Any) -> None:
    if not isinstance(message, dict):
        raise MessageError(
            INVALID_REQUEST, "A message is one JSON object: send the messages of a batch one by one."
        )
    given = message.get("id")
    usable = isinstance(given, str | int) and not isinstance(given, bool)
    id = given if usable else None
    if message.get("jsonrpc") != "2.0":
        raise MessageError(INVALID_REQUEST, 'A message has "jsonrpc": "2.0".', id)
    if "method" not in message:
        if "result" not in message and "error" not in message:
            raise MessageError(INVALID_REQUEST, "A message has `method`, or it is an answer.", id)
        return
    if "id" in message and not usable:
        raise MessageError(INVALID_REQUEST, "`id` is a string or an integer; a notification has none.")
    if not isinstance(message["method"], str):
        raise MessageError(INVALID_REQUEST, "`method` is a string.", id)
    if not isinstance(message.get("params", {}), dict | None):
        raise MessageError(INVALID_REQUEST, "`params` is an object.", id)
    if message["method"] == "initialize":
        try:
            InitializeRequestParams.model_validate(message.get("params"), by_name=False)
        except ValidationError as error:
            said = "`initialize` needs `protocolVersion`, `capabilities` and `clientInfo` in `params`."
            raise MessageError(INVALID_PARAMS, said, id) from error
