"""The artifacts of a session as files of the Files API: of each path the newest, unless a later turn has removed it.
Source: docs/snapshots.md#artifacts.
"""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from codex_proxy.core.interfaces import SessionFile
from codex_proxy.core.shown_text import escape
from codex_proxy.parts.sessions.records import TURN
from codex_proxy.parts.sessions.service import SESSIONS
from codex_proxy.parts.snapshots.artifacts import BYTES, PATTERNS, Found, content_of, found_in, sizes_of
from codex_proxy.parts.snapshots.handlers import KEEPER

_TURN: Final = "turn_"
_ID: Final = re.compile(r"file-([0-9a-f]{32})([0-9a-f]{16})")
"""Matches the id of a file: the id of its turn, and the beginning of that of the artifact."""


class FilesOfSessions:
    """See `core.interfaces.SessionFiles`."""

    def __init__(self, app: web.Application) -> None:
        self._app = app

    async def of_session(self, owner: str, session: str) -> Sequence[SessionFile]:
        turns = await self._app[SESSIONS].store.all_turns(owner, session)
        newest: dict[bytes, Found] = {}
        for found in await found_in(self._app[KEEPER], self._app[PATTERNS], owner, turns):
            newest.setdefault(found.path, found)
        return await self._shown([each for each in reversed(newest.values()) if each.digest])

    async def find(self, owner: str, id: str) -> SessionFile | None:
        found = await self._found(owner, id)
        return None if found is None else (await self._shown([found]))[0]

    async def read(self, owner: str, id: str) -> bytes | None:
        found = await self._found(owner, id)
        return None if found is None else await content_of(self._app[KEEPER], found)

    async def _found(self, owner: str, id: str) -> Found | None:
        parts = _ID.fullmatch(id)
        if parts is None:
            return None
        turn = await self._app[SESSIONS].store.find(owner, TURN, f"{_TURN}{parts[1]}")
        if turn is None:
            return None
        found = await found_in(self._app[KEEPER], self._app[PATTERNS], owner, [turn])
        return next((each for each in found if each.digest and _id_of(each) == id), None)

    async def _shown(self, found: Sequence[Found]) -> list[SessionFile]:
        sizes = await sizes_of(self._app[KEEPER], found) if found else {}
        return [
            SessionFile(
                id=_id_of(each),
                session=each.about["session_id"],
                name=(name := escape(os.path.basename(os.fsdecode(each.path)))),
                media_type=mimetypes.guess_type(name)[0] or BYTES,
                size=sizes[each.digest],
                created_at=each.about["created_at"],
            )
            for each in found
        ]


def _id_of(found: Found) -> str:
    turn = found.about["turn_id"].removeprefix(_TURN)
    return f"file-{turn}{found.about['id'].removeprefix('artifact_')[:16]}"
