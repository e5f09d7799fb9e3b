"""Agents that speak the Agent Client Protocol (ACP)."""

from typing import Final, Literal

from pydantic import BaseModel, Field

from codex_proxy.parts import Flag, Part
from codex_proxy.settings.tables import SettingsTable


class AcpTable(SettingsTable):
    """`[acp]`: the program of an ACP agent."""

    command: str | None = Field(None, description="program and arguments of an ACP agent")
    env: str = Field(
        "",
        description="environment variables that an ACP agent gets, separated by commas: names, or `NAME=value`",
    )
    usage: Literal["turn", "last", "session", "chunks"] | None = Field(
        None, description="what an ACP agent's token counts cover (docs/agents.md)"
    )
    unconfined: bool = Field(
        False, description="serve an ACP agent that acts without asking for permission (docs/agents.md)"
    )


class AcpSettings(BaseModel, defer_build=True):
    acp: AcpTable = Field(AcpTable(), description="the program of an ACP agent")


PART: Final = Part(
    name="acp",
    page="agents.md",
    agents={
        "gemini": "codex_proxy.parts.acp.acp_specs:GEMINI_SPEC",
        "qwen": "codex_proxy.parts.acp.acp_specs:QWEN_SPEC",
        "opencode": "codex_proxy.parts.acp.acp_specs:OPENCODE_SPEC",
        "copilot": "codex_proxy.parts.acp.acp_specs:COPILOT_SPEC",
        "claude-acp": "codex_proxy.parts.acp.acp_specs:CLAUDE_ACP_SPEC",
        "codex-acp": "codex_proxy.parts.acp.acp_specs:CODEX_ACP_SPEC",
        "kimi": "codex_proxy.parts.acp.acp_specs:KIMI_SPEC",
        "kilo": "codex_proxy.parts.acp.acp_specs:KILO_SPEC",
        "acp": "codex_proxy.parts.acp.acp_specs:ACP_SPEC",
    },
    settings="codex_proxy.parts.acp:AcpSettings",
    flags=(
        Flag("agent_command", "acp.command", "COMMAND"),
        Flag("agent_env", "acp.env", "NAMES"),
        Flag("agent_usage", "acp.usage"),
        Flag("agent_unconfined", "acp.unconfined"),
    ),
    fake_dialects={"acp": "codex_proxy.parts.acp.acp_specs:FAKE_SPEC"},
    programs="codex_proxy.parts.acp.acp_setup:program_of_client",
)
