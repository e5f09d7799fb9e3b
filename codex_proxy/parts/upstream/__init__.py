"""Model servers: the agents that drive them, and requests that are sent on to them."""

from typing import Final

from codex_proxy.parts import Flag, Part

PART: Final = Part(
    name="upstream",
    page="upstreams.md",
    agents={
        "openai-chat": "codex_proxy.parts.upstream.upstream_specs:CHAT_SPEC",
        "openai-responses": "codex_proxy.parts.upstream.upstream_specs:RESPONSES_SPEC",
    },
    settings="codex_proxy.parts.upstream.upstream_specs:UpstreamSettings",
    flags=(Flag("upstream_url", "upstream_url", "URL"),),
    agent_tables={"upstreams": "codex_proxy.parts.upstream.upstream_setup:TABLES"},
    endpoints="codex_proxy.parts.upstream.endpoints:ENDPOINTS",
    server="codex_proxy.parts.upstream.server_part:server_part",
)
