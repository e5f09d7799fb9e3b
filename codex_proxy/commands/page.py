"""What the page for browsers shows that only commands know."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from codex_proxy.core.checks import Check
from codex_proxy.http.page import PageContent
from codex_proxy.settings.fields import Settings

FRESH_SECONDS: Final = 60.0
"""Seconds until the checks are run again; one of them starts a process."""


def page_of(settings: Settings, environ: Mapping[str, str]) -> PageContent:
    return PageContent(findings=Findings(settings, environ).newest, clients=partial(_guides, settings))


class Findings:
    """The checks of `doctor` but for the agents and the port, for a running server."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._found: Sequence[Check] = ()
        self._when = -math.inf
        self._lock = asyncio.Lock()

    async def newest(self) -> Sequence[Check]:
        """Returns the checks, at most `FRESH_SECONDS` old."""
        # Imported here: who never opens the page does not need the formats of MCP servers.
        from codex_proxy.commands.checks import machine_checks

        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._when >= FRESH_SECONDS:
                self._found, self._when = await machine_checks(self._settings, self._environ, runs=True), now
            return self._found


def _guides(settings: Settings, base_url: str) -> Sequence[dict[str, Any]]:
    # Imported here: only who opens this pane needs the formats of some twenty clients.
    from codex_proxy.commands.connect import clients, command

    key = command.KEY_TO_BE_GIVEN if settings.wants_key else command.NO_KEY
    target = command.ServerAccess(base_url=base_url, model="codex-5", key=key)
    return [
        {
            "name": each.name,
            "title": each.title,
            "about": each.about,
            "blocks": msgspec.to_builtins(command.blocks(each, target)),
            "notes": each.notes,
        }
        for each in clients.CLIENTS
    ]
