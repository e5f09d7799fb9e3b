"""The client's tools as Claude Code takes them: tools of an MCP server, with the prefix `mcp__<server>__`. A name with
characters other than letters, digits, `_` and `-`, which Claude Code replaces, gets a generated one
(`OfferedTools.find`). Custom tools become functions with one string argument.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from codex_proxy.agents.claude_code.messages import CLIENT_SERVER
from codex_proxy.agents.dialect import UNREADABLE
from codex_proxy.agents.dialects.conversions import READ_ONLY, WHOLE_OUTPUTS, function_parameters
from codex_proxy.core.items import Tool

MODEL_PREFIX: Final = f"mcp__{CLIENT_SERVER}__"
MAX_CHARS: Final = 128 - len(MODEL_PREFIX)
"""The most characters of a name: the provider accepts 128, prefix included."""
_VALID: Final = re.compile(r"[A-Za-z0-9_-]+")
_CHANGED: Final = re.compile(r"client_.*_[0-9a-f]{16}", re.DOTALL)


def agent_name(name: str) -> str:
    """Returns the name under which the client's tool is offered: its own if Claude Code keeps it, else `client_`, its
    first characters and a digest.
    """
    if _VALID.fullmatch(name) and len(name) <= MAX_CHARS and not _CHANGED.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    kept = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: MAX_CHARS - 24]
    return f"client_{kept}_{digest}"


def model_name(name: str) -> str:
    """Returns the name that the model gets for the client's tool `name`: the result of `agent_name` with a prefix."""
    return MODEL_PREFIX + agent_name(name)


class OfferedTools:
    """The client's tools in one turn, found by the names that the model gets for them."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {model_name(tool.name): tool for tool in tools}

    def __bool__(self) -> bool:
        return bool(self._tools)

    def find(self, name: str) -> Tool | None:
        """Returns the client's tool that the model calls `name`; None if none was offered under this name."""
        return self._tools.get(name)

    def listed(self) -> list[dict[str, Any]]:
        """Returns the entries of `tools` in the result of MCP's `tools/list`."""
        return [_definition(tool) for tool in self._tools.values()]


def _definition(tool: Tool) -> dict[str, Any]:
    return {
        "name": agent_name(tool.name),
        "description": tool.description,
        "inputSchema": function_parameters(tool),
        "annotations": READ_ONLY,
        "_meta": {"anthropic/alwaysLoad": True, **WHOLE_OUTPUTS},
    }


def call_input(arguments: str, kind: str) -> dict[str, Any]:
    """Returns the `input` (an object) of a `tool_use` block for a call in the history. `arguments` that are no JSON
    object are in its only field `arguments`; those of a custom tool in `input`.
    """
    if kind == "custom":
        return {"input": arguments}
    try:
        value = msgspec.json.decode(arguments) if arguments.strip() else {}
    except UNREADABLE:
        return {"arguments": arguments}
    return value if isinstance(value, dict) else {"arguments": value}
