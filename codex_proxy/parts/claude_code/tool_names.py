"""The client's tools in Claude Code's form: tools of an MCP server, with the prefix `mcp__<server>__`. Claude Code
replaces unusual characters, so a name with one is replaced by a generated name.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialects.conversions import WHOLE_OUTPUTS, mcp_tool
from codex_proxy.agents.dialects.tool_schemas import plain_parameters
from codex_proxy.core.items import Tool
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.tool_names import generated_name
from codex_proxy.parts.claude_code.messages import CLIENT_SERVER

MODEL_PREFIX: Final = f"mcp__{CLIENT_SERVER}__"
MAX_CHARS: Final = 128 - len(MODEL_PREFIX)
"""Maximum characters of a name: the provider accepts 128 with the prefix."""
_VALID: Final = re.compile(r"[A-Za-z0-9_-]+")
_GENERATED_NAME: Final = re.compile(r"client_.*_[0-9a-f]{16}", re.DOTALL)


def agent_name(name: str) -> str:
    """Returns the tool's own name if Claude Code keeps it, else a generated one."""
    if _VALID.fullmatch(name) and len(name) <= MAX_CHARS and not _GENERATED_NAME.fullmatch(name):
        return name
    return generated_name(name, "client_", kept=MAX_CHARS - 24, digits=16)


def model_name(name: str) -> str:
    return MODEL_PREFIX + agent_name(name)


def tool_entry(tool: Tool) -> dict[str, Any]:
    meta = {"anthropic/alwaysLoad": True, **WHOLE_OUTPUTS}
    return mcp_tool(agent_name(tool.name), tool, plain_parameters(tool), meta)


def call_input(arguments: str, kind: str) -> dict[str, Any]:
    """Returns the `input` of a `tool_use` block. Arguments that are no JSON object become its field `arguments`, a
    custom tool's `input`.
    """
    if kind == "custom":
        return {"input": arguments}
    try:
        value = msgspec.json.decode(arguments) if arguments.strip() else {}
    except UNREADABLE:
        return {"arguments": arguments}
    return value if isinstance(value, dict) else {"arguments": value}
