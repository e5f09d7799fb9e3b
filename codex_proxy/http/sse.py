"""A stream of server-sent events over one response: headers come late, and every write has a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

from codex_proxy.http import stalled
from codex_proxy.http.tellers import TELL

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """Begins with the first write, so that until then a fault can still be a plain status."""

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        self.response = web.StreamResponse(headers={**HEADERS, **headers})
        self._request = request
        self._tell = request.get(TELL)
        self._writing_since: float | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def begun(self) -> bool:
        return self._timer is not None

    async def write(self, data: bytes) -> None:
        """One write. `ConnectionError` where the client is gone."""
        if self._timer is None:
            self._timer = self._loop.call_later(stalled.LOOK_SECONDS, self._check)
            await self.response.prepare(self._request)
        self._writing_since = self._loop.time()
        if self._tell is not None:
            self._tell("answer", data)
        await self.response.write(data)
        self._writing_since = None

    async def close(self) -> web.StreamResponse:
        """The regular end."""
        self._writing_since = self._loop.time()
        await self.response.write_eof()
        self.stop()
        return self.response

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        since = self._writing_since
        if since is not None and self._loop.time() - since >= stalled.STALL_SECONDS:
            if self._request.transport is not None:
                self._request.transport.abort()
            return
        self._timer = self._loop.call_later(stalled.LOOK_SECONDS, self._check)
