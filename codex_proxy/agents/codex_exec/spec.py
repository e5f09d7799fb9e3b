"""The agent `codex-exec`: Codex, with a process for each turn."""

from __future__ import annotations

from typing import Final

from codex_proxy.agents.codex.agent_spec import PLAIN_CODEX_SETTINGS, codex_agent_spec
from codex_proxy.agents.dialect import Capability

CAPABILITIES: Final[frozenset[Capability]] = frozenset(
    {
        *("images", "structured_output", "plain_model", "web_search", "verbosity", "service_tier"),
        *("sandbox", "exact_usage", "stop_reasons", "model_choice"),
    }
)

SPEC = codex_agent_spec(
    "codex-exec",
    summary="Codex, by `codex exec --json`, if the other two are not available",
    make="codex_proxy.agents.codex_exec.setup:make_exec",
    capabilities=CAPABILITIES,
    settings=PLAIN_CODEX_SETTINGS,
)
