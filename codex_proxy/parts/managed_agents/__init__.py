"""Anthropic's Managed Agents API (`/v1/agents`, `/v1/environments`, `/v1/sessions`) on the part `sessions`."""

from typing import Final

from codex_proxy.parts import Part

PART: Final = Part(
    name="managed_agents",
    page="managed-agents.md",
    uses=("sessions",),
    endpoints="codex_proxy.parts.managed_agents.endpoints:ENDPOINTS",
)
