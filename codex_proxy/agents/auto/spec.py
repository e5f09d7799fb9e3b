"""The spec of the agent `auto`."""

from __future__ import annotations

from codex_proxy.agents.codex.agent_spec import PLAIN_CODEX_SETTINGS, codex_agent_spec

AUTO = codex_agent_spec(
    "auto",
    summary="the Codex that is found, by a protocol that it speaks",
    make="codex_proxy.agents.auto.setup:make",
    settings=PLAIN_CODEX_SETTINGS,
    server_settings=frozenset({"enable_parallel_tool_calls"}),
)
