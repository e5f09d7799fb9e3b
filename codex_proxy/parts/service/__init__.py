"""The server as a service of the user, by systemd or launchd: the command `codex-proxy service`."""

from typing import Final

from codex_proxy.parts import Part

PART: Final = Part(
    name="service",
    page="operations.md#start",  # Start at login
    commands="codex_proxy.parts.service.commands:commands",
)
