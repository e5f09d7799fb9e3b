"""The spec of the agent `claude-code`, by `claude -p` with JSON lines."""

from __future__ import annotations

from typing import Final

from codex_proxy.agents.spec import AgentSpec, later
from codex_proxy.parts.claude_code.launch import CAPABILITIES

NAME: Final = "claude-code"

SPEC = AgentSpec(
    name=NAME,
    summary="Claude Code, by `claude -p` with JSON lines both ways",
    make=later("codex_proxy.parts.claude_code.claude_setup:make"),
    check=later("codex_proxy.parts.claude_code.claude_setup:check"),
    installation=later("codex_proxy.parts.claude_code.claude_setup:installation"),
    capabilities=CAPABILITIES,
    settings=frozenset({"claude_bin", "child_env", "agent_confinement", "agent_state_folders"}),
)
