"""The MCP client: sessions with the MCP servers whose tools this server runs."""

from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field

from codex_proxy.parts import Flag, Part
from codex_proxy.settings.tables import from_variables


class McpSettings(BaseModel, defer_build=True):
    mcp_config: Path | None = from_variables(
        "PROXY_MCP_CONFIG",
        "MCP_SERVERS_CONFIG_PATH",
        default=None,
        description="JSON file of MCP servers (`mcpServers`) whose tools are offered to every request",
    )
    mcp_allowed_urls: str = Field(
        "",
        description="URLs of MCP servers that requests may use, with all paths below them, separated by commas",
    )
    mcp_call_timeout: float = Field(60.0, gt=0, description="maximum seconds of an MCP tool call")
    mcp_tool_refresh_interval: float = from_variables(
        "MCP_TOOL_REFRESH_INTERVAL",
        default=10.0,
        gt=0,
        description="seconds between listings of an MCP server's tools",
    )


PART: Final = Part(
    name="mcp",
    page="mcp.md",
    settings="codex_proxy.parts.mcp:McpSettings",
    flags=(Flag("mcp_config", "mcp_config", "FILE"),),
    files={"mcp_config": "the list of MCP servers"},
    needs={
        "max_tool_call_iterations": ("mcp_config", "mcp_allowed_urls"),
        "mcp_call_timeout": ("mcp_config", "mcp_allowed_urls"),
        "mcp_tool_refresh_interval": ("mcp_config", "mcp_allowed_urls"),
    },
    capabilities={"mcp_config": "tool_replies", "mcp_allowed_urls": "tool_replies"},
    tools=("mcp",),
    checks="codex_proxy.parts.mcp.configured_servers:checks",
    server="codex_proxy.parts.mcp.configured_servers:server_part",
)
