"""Ids and errors of MCP items. The id of a call or request contains the model's call id, which has no field: prefix,
twelve random characters, a dash, the call id.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from codex_proxy.core.interfaces import IdSource
from codex_proxy.core.json_values import UNREADABLE, value_at
from codex_proxy.surfaces.base import json_bytes, json_text

_RANDOM_DIGITS: Final = 12
"""Number of random hexadecimal digits in an id."""
_OWN_ID: Final = re.compile(rf"mcpr?_[0-9a-z]{{{_RANDOM_DIGITS}}}-(.+)", re.DOTALL)
_MAX_CHARS: Final = 64
"""Maximum characters of a call id that models accept."""


def new_item_id(prefix: str, call_id: str, ids: IdSource) -> str:
    return f"{prefix}{ids.new('')[:_RANDOM_DIGITS]:0>{_RANDOM_DIGITS}}-{call_id}"


def call_id_of(id: str) -> str:
    """Returns the call id (at most 64 characters) in an item's id; `id` itself if a client made it."""
    found = _OWN_ID.fullmatch(id)
    return (found[1] if found else id)[:_MAX_CHARS]


LIST_TYPE: Final = "mcp_list_tools"
CALL_TYPE: Final = "mcp_call"
REQUEST_TYPE: Final = "mcp_approval_request"
RESPONSE_TYPE: Final = "mcp_approval_response"

CUT_OFF: Final = (
    "The call was cut off before it was answered. It may have had its effect: look before you make it again."
)


def error_text(error: Any) -> str:
    """Returns the text of an error: a string, or one of OpenAI's objects."""
    if isinstance(error, dict):
        content = error.get("content")
        if isinstance(content, list):
            texts = [value_at(part, "text") for part in content]
            if all(isinstance(text, str) for text in texts):
                return "\n".join(texts)
        error = error.get("message", error)
    return error if isinstance(error, str) else json_bytes(error).decode()


def texts_as_array(text: str) -> str:
    """Returns a JSON array of strings (docs/contract.md#mcp-calls), which several texts already are."""
    try:
        msgspec.json.decode(text, type=list[str])
    except UNREADABLE:
        return f"[{json_text(text).decode()}]"
    return text
