"""The agent `fake`: a program of this project with deterministic answers, driven by the dialect `codex proto` or
app-server.
"""

from __future__ import annotations

from typing import Final

from codex_proxy.agents.spec import AgentSpec, later
from codex_proxy.core.options import Capability

PROTO_CAPABILITIES: Final[frozenset[Capability]] = frozenset({
    "history", "client_tools", "structured_output", "images", "plain_model",
    "system_prompt", "exact_usage", "stop_reasons", "parallel_calls", "model_choice", "effort",
    "sandbox",  # it runs nothing
})  # fmt: skip
"""The capabilities with `codex proto`. Without `tool_replies`: a turn ends when it has calls."""
APP_SERVER_CAPABILITIES: Final[frozenset[Capability]] = PROTO_CAPABILITIES | {
    "tool_replies", "web_search", "verbosity", "service_tier",
}  # fmt: skip

ACP_CAPABILITIES: Final[frozenset[Capability]] = frozenset(
    {"client_tools", "tool_replies", "images", "model_choice"}
)

SPEC = AgentSpec(
    name="fake",
    summary="embedded; its answers are the same every time",
    make=later("codex_proxy.agents.fake.setup:make"),
    check=later("codex_proxy.agents.fake.setup:check"),
    capabilities=PROTO_CAPABILITIES,
    variants={"proto": PROTO_CAPABILITIES, "app-server": APP_SERVER_CAPABILITIES, "acp": ACP_CAPABILITIES},
    settings=frozenset({"fake_dialect"}),
    server_settings=frozenset({"enable_parallel_tool_calls"}),
    is_fake=True,
    confined=True,  # it runs nothing
)
