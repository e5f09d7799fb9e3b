"""The client's tools as tools of an MCP server, and their calls in the agent's reports. Agents prefix names, each in
another way, and many change long or unusual ones: such a tool gets a generated name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from codex_proxy.agents.acp.messages import Update
from codex_proxy.agents.dialects.conversions import WHOLE_OUTPUTS, mcp_content, mcp_tool
from codex_proxy.agents.dialects.tool_names import ToolsByAgentName
from codex_proxy.agents.dialects.tool_schemas import declares, object_parameters, plain_parameters
from codex_proxy.core.items import Part, Tool
from codex_proxy.core.json_values import encode_json, object_at, text_at, value_at
from codex_proxy.core.tool_names import generated_name

SERVER: Final = "client"

PLAIN_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
"""Names that every agent passes on unchanged."""
RENAMED_PREFIX: Final = "tool_"
"""The prefix of generated names. A client's name with it is replaced, too."""

CALLED_BY_META: Final = ("toolName", "claudeCode", "is_mcp_tool_call")
ACTING_KINDS: Final[Mapping[str, Literal["command", "file_change"]]] = {
    "execute": "command",
    "edit": "file_change",
    "delete": "file_change",
    "move": "file_change",
}
"""ACP's kinds of tool calls that run a command or change a file. Calls of the client's tools never have these kinds,
except in Codex's adapter.
"""


def agent_name(name: str) -> str:
    """Returns the tool's own name if every agent accepts it, else a generated one."""
    if PLAIN_NAME.fullmatch(name) and not name.startswith(RENAMED_PREFIX):
        return name
    return generated_name(name, RENAMED_PREFIX, kept=20, digits=12)


def tool_entry(tool: Tool, *, for_claude: bool = False) -> dict[str, Any]:
    schema = plain_parameters(tool) if for_claude else object_parameters(tool)
    return mcp_tool(agent_name(tool.name), tool, schema, WHOLE_OUTPUTS)


def call_result(parts: Sequence[Part], *, success: bool) -> dict[str, Any]:
    return {"content": mcp_content(parts), "isError": not success}


def arguments_in(report: Update) -> Any:
    """Returns a reported call's arguments; None or empty if not known yet."""
    given = report.raw_input
    of_mcp = value_at(report.meta, "is_mcp_tool_call") is True and isinstance(given, dict)
    return given.get("arguments") if of_mcp else given


def without_arguments(arguments: str, names: Collection[str], tool: Tool) -> str:
    """Returns a call's arguments without these, unless the tool has parameters of such a name."""
    if not any(name in arguments for name in names):
        return arguments
    given = object_at(msgspec.json.decode(arguments))
    own = {name: value for name, value in given.items() if name not in names or declares(tool, name)}
    return arguments if own == given else encode_json(own).decode()


class ClientTools(ToolsByAgentName):
    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        super().__init__(tools, agent_name)

    def find_called_tool(self, call: Update, *, titles: bool = True) -> Tool | None:
        """Returns the client's tool that a reported call uses, if any. `titles`: also looks at the call's title,
        which the model may have written.
        """
        meta = call.meta
        for name in (call.name, value_at(meta, "toolName"), value_at(meta, "claudeCode", "toolName")):
            if isinstance(name, str):
                # The agent's own name of the tool says it all: a title beside it counts for nothing.
                return self._tool_without_prefix(name, f"mcp__{SERVER}__")
        if value_at(meta, "is_mcp_tool_call") is True and isinstance(call.raw_input, dict):
            is_ours = call.raw_input.get("server") == SERVER
            return self.find(text_at(call.raw_input, "tool")) if is_ours else None
        # Gemini CLI makes the id of a call from the name of the registered tool.
        id, title = call.tool_call_id or "", call.title or ""
        prefix, suffix = f"mcp_{SERVER}_", f" ({SERVER} MCP Server)"
        if id.startswith(prefix) and title.endswith(suffix):
            name = title.removesuffix(suffix)
            return self.find(name) if id.startswith(f"{prefix}{name}__") else None
        if not titles:
            return None
        named = (
            self._tool_without_prefix(title, prefix)
            for prefix in (f"mcp__{SERVER}__", f"{SERVER}_", f"{SERVER}-")
        )
        return next((tool for tool in named if tool is not None), None)

    def may_be_allowed(self, call: Update) -> bool:
        """Whether a call is certainly one of a client's tool: only what the agent's own code has reported counts."""
        return call.kind not in ACTING_KINDS and self.find_called_tool(call, titles=False) is not None

    def _tool_without_prefix(self, name: str, prefix: str) -> Tool | None:
        return self.find(name.removeprefix(prefix)) if name.startswith(prefix) else None
