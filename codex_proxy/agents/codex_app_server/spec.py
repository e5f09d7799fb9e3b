"""The agent `codex-app-server`: Codex, in a few long-lived processes."""

from __future__ import annotations

from codex_proxy.agents.codex.agent_spec import PLAIN_CODEX_SETTINGS, codex_agent_spec
from codex_proxy.agents.codex_app_server.contract import CAPABILITIES

SPEC = codex_agent_spec(
    "codex-app-server",
    summary="Codex, by `codex app-server` (JSON-RPC)",
    make="codex_proxy.agents.codex_app_server.setup:make_app_server",
    capabilities=CAPABILITIES,
    settings=PLAIN_CODEX_SETTINGS,
    server_settings=frozenset({"enable_parallel_tool_calls"}),
)
