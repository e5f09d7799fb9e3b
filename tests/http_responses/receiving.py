"""A receiver of webhooks on a real port."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tests.waiting import PATIENCE
from tests.web_application import serve_application

SECRET = "whsec_c2VjcmV0IGZvciB0ZXN0cw=="


@dataclass
class Receiver:
    """Answers with these statuses in turn, then with 200."""

    statuses: list[int]
    url: str = ""
    elsewhere: str = ""
    """Where a redirect leads."""
    webhooks: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def take(self, request: web.Request) -> web.Response:
        async with self.arrived:
            self.webhooks.append((await request.text(), dict(request.headers)))
            self.arrived.notify_all()
        status = self.statuses.pop(0) if self.statuses else 200
        return web.Response(status=status, headers={"Location": self.elsewhere} if self.elsewhere else {})

    async def deliveries(self, count: int) -> list[tuple[str, dict[str, str]]]:
        async with asyncio.timeout(PATIENCE), self.arrived:
            await self.arrived.wait_for(lambda: len(self.webhooks) >= count)
        return self.webhooks


@asynccontextmanager
async def receiver(*statuses: int) -> AsyncIterator[Receiver]:
    receiving = Receiver(list(statuses))
    application = web.Application()
    application.router.add_post("/hook", receiving.take)
    async with serve_application(application) as port:
        receiving.url = f"http://127.0.0.1:{port}/hook"
        yield receiving


def count_undelivered(store: Path) -> int:
    """How many webhooks are in the outbox of a store."""
    with closing(sqlite3.connect(store)) as connection:
        return int(connection.execute("SELECT count(*) FROM webhooks").fetchone()[0])
