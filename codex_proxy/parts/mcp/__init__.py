"""The MCP client: sessions with the MCP servers whose tools this server runs."""

from typing import Final

from codex_proxy.parts import Flag, Part

PART: Final = Part(
    name="mcp",
    page="mcp.md",
    settings="codex_proxy.parts.mcp.settings:McpSettings",
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
