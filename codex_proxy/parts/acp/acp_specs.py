"""The specs of the agents that speak ACP: one for each preset, `acp` for any other program, and the fake agent."""

from __future__ import annotations

from typing import Final

from codex_proxy.agents.spec import AgentSpec, later
from codex_proxy.parts.acp.presets import (
    CAPABILITIES,
    CLAUDE_ACP,
    CODEX_ACP,
    COPILOT,
    GEMINI,
    KILO,
    KIMI,
    OPENCODE,
    QWEN,
    AcpPreset,
)


def _spec(preset: AcpPreset, summary: str) -> AgentSpec:
    return AgentSpec(
        name=preset.name,
        summary=summary,
        make=later("codex_proxy.parts.acp.acp_setup:make", preset),
        check=later("codex_proxy.parts.acp.acp_setup:check", preset),
        installation=later("codex_proxy.parts.acp.acp_installation:installation", preset),
        capabilities=CAPABILITIES,
        family="ACP",
        confined=preset.sandboxed,
        settings=frozenset({"acp", "agent_confinement", "agent_state_folders", "child_env"}),
    )


GEMINI_SPEC: Final = _spec(GEMINI, "Gemini CLI, by `gemini --acp`")
QWEN_SPEC: Final = _spec(QWEN, "Qwen Code, by `qwen --acp`")
OPENCODE_SPEC: Final = _spec(OPENCODE, "opencode, by `opencode acp`")
COPILOT_SPEC: Final = _spec(COPILOT, "GitHub Copilot CLI, by `copilot --acp`")
CLAUDE_ACP_SPEC: Final = _spec(CLAUDE_ACP, "Claude Code, by its ACP adapter `claude-agent-acp`")
CODEX_ACP_SPEC: Final = _spec(CODEX_ACP, "Codex, by its ACP adapter `codex-acp`")
KIMI_SPEC: Final = _spec(KIMI, "Kimi Code, by `kimi acp`")
KILO_SPEC: Final = _spec(KILO, "Kilo, by `kilo acp`")
ACP_SPEC: Final = _spec(
    AcpPreset(name="acp", title="The agent", argv=()),
    "any program that speaks the Agent Client Protocol, as `--agent-command` names it",
)
FAKE_SPEC: Final = AgentSpec(
    name="fake",
    summary="embedded, by ACP",
    make=later("codex_proxy.parts.acp.acp_setup:make_fake"),
    check=later("codex_proxy.agents.fake.fake_setup:check"),
    capabilities=frozenset({"client_tools", "tool_replies", "images", "model_choice"}),
    is_fake=True,
)
