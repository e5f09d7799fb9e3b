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
    old_names={
        "upstream_ca_file": "upstreams.*.ca_file",
        "upstream_connect_timeout": "upstreams.*.connect_timeout",
        "upstream_first_byte_timeout": "upstreams.*.first_byte_timeout",
        "upstream_retries": "upstreams.default.retries",
        "upstream_retry_wait": "upstreams.default.retry_wait",
        "upstream_breaker_failures": "upstreams.default.breaker_failures",
        "upstream_key_file": "upstreams.default.key_file",
        "upstream_idle_timeout": "upstreams.*.idle_timeout",
    },
    agent_tables={"upstreams": "codex_proxy.parts.upstream.upstream_setup:TABLES"},
    server="codex_proxy.parts.upstream.server_part:server_part",
)
