"""Clients of a server (editors, SDKs, other programs): `codex-proxy connect` sets them up, `codex-proxy run` runs them
once, and the page shows what `connect` says.
"""

from typing import Final

from codex_proxy.parts import Part

PART: Final = Part(
    name="clients",
    page="clients.md",
    commands="codex_proxy.parts.clients.commands:commands",
    client_guides="codex_proxy.parts.clients.connect:guides",
)
