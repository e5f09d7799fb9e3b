"""The settings of Claude Code."""

from __future__ import annotations

from pydantic import BaseModel

from codex_proxy.settings.sources import from_variables


class ClaudeCodeSettings(BaseModel):
    claude_bin: str | None = from_variables(
        "CLAUDE_BIN", default=None, description="path of Claude Code's program; unset: `claude` on PATH"
    )
