"""What the part adds to a server: files for its clients and for requests that name them, and their removal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial

import structlog
from aiohttp import web

from codex_proxy.app.server_parts import ServerPart, ServerParts
from codex_proxy.core.own_errors import repeat
from codex_proxy.http.app_keys import CLOCK, FILE_SOURCE, IDS, SESSION_FILES
from codex_proxy.parts import own_settings
from codex_proxy.parts.files import FilesSettings
from codex_proxy.parts.files.contents import Contents, Folder, Pieces
from codex_proxy.parts.files.endpoints import FILES
from codex_proxy.parts.files.service import SWEEP_SECONDS, Files
from codex_proxy.settings.fields import Settings
from codex_proxy.store.store import Store
from codex_proxy.store.values import StoreUnavailable

log = structlog.get_logger(__name__)


class FilesPart(ServerPart):
    async def start(self, server: ServerParts) -> None:
        self._settings = server.settings
        self._store = None if server.store_lifecycle is None else server.store_lifecycle.store

    def add_to(self, app: web.Application) -> None:
        if self._store is None:
            return
        limits = own_settings(self._settings, FilesSettings).files
        contents = contents_of(self._settings, self._store)
        of_sessions = partial(app.get, SESSION_FILES)  # which another part may set later
        app[FILES] = files = Files(
            self._store, contents, limits, clock=app[CLOCK], ids=app[IDS], of_sessions=of_sessions
        )
        app[FILE_SOURCE] = files
        app.cleanup_ctx.append(partial(_keep_swept, files))


def contents_of(settings: Settings, store: Store) -> Contents:
    """Returns where the bytes of a store's files are."""
    if settings.in_file:
        return Folder(settings.uploads_folder)
    return Pieces(store, is_shared=settings.in_database)


async def _keep_swept(files: Files, _: web.Application) -> AsyncIterator[None]:
    async def sweep() -> None:
        try:
            await files.sweep()
        except StoreUnavailable as error:
            log.warning("files_not_swept", reason=str(error))

    async def run() -> None:
        await sweep()
        await repeat(sweep, after=partial(asyncio.sleep, SWEEP_SECONDS), failed="files_not_swept")

    task = asyncio.create_task(run())
    yield
    task.cancel()
    await asyncio.wait({task})


def server_part(_settings: Settings, _environ: Mapping[str, str]) -> ServerPart:
    """Returns what makes a server keep files."""
    return FilesPart()
