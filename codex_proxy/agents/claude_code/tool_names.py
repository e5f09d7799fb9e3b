"""The client's tools as Claude Code takes them: tools of an MCP server, with the prefix `mcp__<server>__`. A name with
characters other than letters, digits, `_` and `-`, which Claude Code replaces, gets a generated one
(`agent_name`). Custom tools become functions with one string argument.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from codex_proxy.agents.claude_code.messages import CLIENT_SERVER
from codex_proxy.agents.dialect import UNREADABLE
from codex_proxy.agents.dialects.conversions import WHOLE_OUTPUTS, function_parameters, mcp_tool
from codex_proxy.agents.dialects.tool_names import generated_name
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
    return generated_name(name, "client_", kept=MAX_CHARS - 24, digits=16)


def model_name(name: str) -> str:
    """Returns the name that the model gets for the client's tool `name`: the result of `agent_name` with a prefix."""
    return MODEL_PREFIX + agent_name(name)


def listed_tool(tool: Tool) -> dict[str, Any]:
    """Returns the tool's entry in the result of MCP's `tools/list`."""
    meta = {"anthropic/alwaysLoad": True, **WHOLE_OUTPUTS}
    return mcp_tool(agent_name(tool.name), tool, function_parameters(tool), meta)


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
