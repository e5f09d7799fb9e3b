"""The agent `claude-code`: Claude Code, by `claude -p` with JSON lines."""

from typing import Final

from pydantic import BaseModel

from codex_proxy.parts import Flag, Part
from codex_proxy.settings.tables import from_variables


class ClaudeCodeSettings(BaseModel, defer_build=True):
    claude_bin: str | None = from_variables(
        "CLAUDE_BIN", default=None, description="path of Claude Code's program; unset: `claude` on PATH"
    )


PART: Final = Part(
    name="claude_code",
    page="agents.md",
    agents={"claude-code": "codex_proxy.parts.claude_code.claude_spec:SPEC"},
    settings="codex_proxy.parts.claude_code:ClaudeCodeSettings",
    flags=(Flag("claude_bin", "claude_bin", "PATH"),),
    programs="codex_proxy.parts.claude_code.claude_setup:program_of_client",
)
