"""What the page for browsers shows that only commands know: what `doctor` finds in a running server, and how clients
are configured for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from codex_proxy.commands.checks import folder_checks, mcp_checks, spawner_check
from codex_proxy.core.checks import Check
from codex_proxy.http.page import ClientGuide, Page
from codex_proxy.settings.fields import Settings


def page_of(settings: Settings, environ: Mapping[str, str]) -> Page:
    """Returns what the page of a server with these settings shows."""
    return Page(findings=partial(_findings, settings, environ), clients=partial(_guides, settings))


async def _findings(settings: Settings, environ: Mapping[str, str]) -> Sequence[Check]:
    """Runs the checks of `doctor` but those of the agents, whose state the server itself knows, and of the port."""
    folders = await asyncio.to_thread(folder_checks, settings, environ)
    servers = await asyncio.to_thread(mcp_checks, settings, environ)
    return [await spawner_check(), *folders, *servers]


def _guides(settings: Settings, base_url: str) -> Sequence[ClientGuide]:
    # Imported here: only who opens this pane needs the formats of some twenty clients.
    from codex_proxy.commands.connect import command, table

    key = command.KEY_TO_BE_GIVEN if settings.wants_key else command.NO_KEY
    target = command.ServerAccess(base_url=base_url, model="codex-5", key=key)
    return [
        ClientGuide(each.name, each.title, each.about, command.instructions(each, target))
        for each in table.CLIENTS
    ]
