"""An MCP server at `/mcp`, through which another program's agent starts sessions of this server and follows them; and
the command `codex-proxy mcp`, which connects a program's stdin and stdout to it.
"""

from typing import Final

from codex_proxy.parts import Part

PART: Final = Part(
    name="mcp_server",
    page="mcp.md",
    uses=("sessions",),
    commands="codex_proxy.parts.mcp_server.commands:commands",
    endpoints="codex_proxy.parts.mcp_server.endpoints:ENDPOINTS",
    server="codex_proxy.parts.mcp_server.endpoints:server_part",
)
