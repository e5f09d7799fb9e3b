"""The agent `codex-proto`: older Codex, with a process for each turn."""

from __future__ import annotations

from typing import Final

from codex_proxy.agents.codex.agent_spec import CODEX_SETTINGS, codex_agent_spec
from codex_proxy.agents.dialect import Capability

CAPABILITIES: Final[frozenset[Capability]] = frozenset(
    {"images", "sandbox", "exact_usage", "stop_reasons", "model_choice"}
)

SPEC = codex_agent_spec(
    "codex-proto",
    summary="older Codex, by `codex proto` (JSON lines)",
    make="codex_proxy.agents.codex_proto.setup:make_proto",
    capabilities=CAPABILITIES,
    settings=CODEX_SETTINGS,
    server_settings=frozenset({"enable_parallel_tool_calls"}),
)
