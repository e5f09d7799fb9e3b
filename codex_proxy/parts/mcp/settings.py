"""The settings of MCP servers."""

from pathlib import Path

from pydantic import BaseModel, Field

from codex_proxy.settings.sources import from_variables


class McpSettings(BaseModel):
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
