"""The client's tools as Claude Code takes them: an MCP server's, whose names the model sees behind a prefix.

Names may have letters, digits, `_` and `-`; Claude Code silently replaces other characters, so that a name which has
some is changed here, in a way that can be taken back. It has no custom tools: one becomes a function with one string.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from codex_proxy.agents.claude_code.messages import CLIENT_SERVER, UNREADABLE
from codex_proxy.core.items import ImagePart, Part, TextPart, Tool

MODEL_PREFIX: Final = f"mcp__{CLIENT_SERVER}__"
MAX_CHARS: Final = 128 - len(MODEL_PREFIX)
"""The provider takes names of 128 characters, the prefix included."""
_VALID: Final = re.compile(r"[A-Za-z0-9_-]+")
_CHANGED: Final = re.compile(r"client_.*_[0-9a-f]{16}", re.DOTALL)
READ_ONLY: Final = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}
"""With these hints Claude Code asks for the outputs of all calls of a step at once; else for one after the other."""


def agent_name(name: str) -> str:
    """The name under which a tool is offered; always the same one for the same name, and no two for one."""
    if _VALID.fullmatch(name) and len(name) <= MAX_CHARS and not _CHANGED.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    kept = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: MAX_CHARS - 24]
    return f"client_{kept}_{digest}"


def model_name(name: str) -> str:
    """The name that the model sees."""
    return MODEL_PREFIX + agent_name(name)


class OfferedTools:
    """The tools of one turn, found by the name that the model calls them by."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {model_name(tool.name): tool for tool in tools}

    def __bool__(self) -> bool:
        return bool(self._tools)

    def find(self, name: str) -> Tool | None:
        """The client's tool that the model calls so; None where none was offered under that name."""
        return self._tools.get(name)

    def listed(self) -> list[dict[str, Any]]:
        """The answer to `tools/list`."""
        return [_definition(tool) for tool in self._tools.values()]


def _definition(tool: Tool) -> dict[str, Any]:
    if tool.kind == "custom":
        schema: Any = {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
            "additionalProperties": False,
        }
    else:
        schema = tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}
    return {
        "name": agent_name(tool.name),
        "description": tool.description,
        "inputSchema": schema,
        "annotations": READ_ONLY,
        "_meta": {"anthropic/alwaysLoad": True},
    }


def call_input(arguments: str, kind: str) -> dict[str, Any]:
    """The input of a call of the history, from its arguments (for a custom tool: its input)."""
    if kind == "custom":
        return {"input": arguments}
    try:
        value = msgspec.json.decode(arguments) if arguments.strip() else {}
    except UNREADABLE:
        return {"arguments": arguments}
    return value if isinstance(value, dict) else {"arguments": value}


def custom_input(arguments: str) -> str:
    """The input of a custom tool, from the arguments of the function that stands for it."""
    try:
        value = msgspec.json.decode(arguments, type=dict[str, Any])
    except UNREADABLE:
        return arguments
    given = value.get("input")
    return given if isinstance(given, str) else arguments


def output_content(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    """A tool's output as the result of `tools/call` has it."""
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": part.text})
        elif (image := image_data(part)) is not None:
            content.append({"type": "image", "mimeType": image[0], "data": image[1]})
    return content or [{"type": "text", "text": ""}]


def image_data(part: ImagePart) -> tuple[str, str] | None:
    """The media type and the Base64 data of a `data:` URL; None for another address."""
    head, comma, data = part.url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head[5:-7].split(";")[0], data
