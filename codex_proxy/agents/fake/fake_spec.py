"""The agent `fake`: a program of this project with deterministic answers, driven by the dialect `codex proto`,
app-server, or one of a part.

"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Final

from codex_proxy.agents.spec import AgentSpec, later
from codex_proxy.core.options import Capability
from codex_proxy.parts import parts

PROTO_CAPABILITIES: Final[frozenset[Capability]] = frozenset({
    "history", "client_tools", "structured_output", "images", "plain_model",
    "system_prompt", "exact_usage", "stop_reasons", "parallel_calls", "model_choice", "effort",
    "sandbox",  # it runs nothing, and writes where a turn may write alone
})  # fmt: skip
"""The capabilities with `codex proto`. Without `tool_replies`: a turn ends when it has calls."""
APP_SERVER_CAPABILITIES: Final[frozenset[Capability]] = PROTO_CAPABILITIES | {
    "tool_replies", "web_search", "verbosity", "service_tier", "stored_sessions", "subagents",
}  # fmt: skip

OF_PARTS: Final[Mapping[str, AgentSpec]] = {
    name: pkgutil.resolve_name(spec) for part in parts() for name, spec in part.fake_dialects.items()
}
"""The protocols that it speaks by a part."""

SPEC = AgentSpec(
    name="fake",
    summary="embedded; its answers are the same every time",
    make=later("codex_proxy.agents.fake.fake_setup:make"),
    check=later("codex_proxy.agents.fake.fake_setup:check"),
    installation=later("codex_proxy.agents.fake.fake_setup:installation"),
    capabilities=PROTO_CAPABILITIES,
    variants={
        "proto": PROTO_CAPABILITIES,
        "app-server": APP_SERVER_CAPABILITIES,
        **{name: spec.capabilities for name, spec in OF_PARTS.items()},
    },
    settings=frozenset({"fake_dialect"}),
    server_settings=frozenset({"enable_parallel_tool_calls"}),
    is_fake=True,
    confined=True,  # it runs nothing
)
