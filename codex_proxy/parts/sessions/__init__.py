"""OpenAI's Agents API (`/v1/agents`, `/v1/agents/sessions`) in front of every agent."""

from typing import Final

from pydantic import BaseModel, Field

from codex_proxy.parts import Part


class SessionsSettings(BaseModel, defer_build=True):
    action_timeout: float = Field(
        86400.0,
        gt=0,
        description="maximum seconds that a session's turn waits for results of the client's functions, or for an "
        "answer to a question; then it fails",
    )
    session_max_bytes: int = Field(
        256 << 20, gt=0, description="bytes of a session's items above which it takes no further message"
    )


PART: Final = Part(
    name="sessions",
    page="agents-api.md",
    settings="codex_proxy.parts.sessions:SessionsSettings",
    endpoints="codex_proxy.parts.sessions.endpoints:ENDPOINTS",
    server="codex_proxy.parts.sessions.endpoints:server_part",
)
