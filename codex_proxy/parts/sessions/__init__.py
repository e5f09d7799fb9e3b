"""OpenAI's Agents API (`/v1/agents`, `/v1/agents/sessions`) in front of every agent."""

from typing import Final

from codex_proxy.parts import Part

PART: Final = Part(
    name="sessions",
    page="agents-api.md",
    endpoints="codex_proxy.parts.sessions.endpoints:ENDPOINTS",
    server="codex_proxy.parts.sessions.endpoints:server_part",
)
