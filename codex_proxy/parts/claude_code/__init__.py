"""The agent `claude-code`: Claude Code, by `claude -p` with JSON lines."""

from typing import Final

from codex_proxy.parts import Flag, Part

PART: Final = Part(
    name="claude_code",
    page="agents.md",
    agents={"claude-code": "codex_proxy.parts.claude_code.claude_spec:SPEC"},
    settings="codex_proxy.parts.claude_code.settings:ClaudeCodeSettings",
    flags=(Flag("claude_bin", "claude_bin", "PATH"),),
    programs="codex_proxy.parts.claude_code.claude_setup:program_of_client",
)
