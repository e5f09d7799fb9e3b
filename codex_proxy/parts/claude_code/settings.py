"""The settings of Claude Code."""

from __future__ import annotations

from pydantic import AliasChoices, BaseModel, Field


class ClaudeCodeSettings(BaseModel):
    claude_bin: str | None = Field(
        None,
        validation_alias=AliasChoices("CLAUDE_BIN"),
        description="path of Claude Code's program; unset: `claude` on PATH",
    )
