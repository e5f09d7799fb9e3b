"""The settings of agents that speak ACP."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

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


class AcpSettings(BaseModel):
    acp: AcpTable = Field(AcpTable(), description="the program of an ACP agent")
