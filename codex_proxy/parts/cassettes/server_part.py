"""What a server has of cassettes. The modules that record and replay are imported only for a server that does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from codex_proxy.app.server_parts import ServerPart
from codex_proxy.core.checks import Check
from codex_proxy.parts.cassettes.faulty_answers import FaultyAnswers
from codex_proxy.parts.cassettes.settings import table_of
from codex_proxy.settings.fields import Settings


def server_part(settings: Settings, environ: Mapping[str, str]) -> ServerPart:
    """Returns the recorder and folder for a server's settings. Raises `CassetteError`."""
    own = table_of(settings)
    if own.record is None and own.replay is None:
        return FaultyAnswers()
    from codex_proxy.parts.cassettes.serving import cassettes_of

    return cassettes_of(settings, environ)


async def checks(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """Checks where turns are recorded, if they are: `failed` if the server would not start."""
    folder = table_of(settings).record
    if folder is None:
        return []
    from codex_proxy.parts.cassettes.serving import check_folder

    return [await asyncio.to_thread(check_folder, folder, settings, environ)]
