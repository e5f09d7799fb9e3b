"""A real Chromium without a window, and the servers that give it pages to run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web

from tests.missing import skip_unless_ci
from tests.stream_server import stream_server

SCRIPT = Path(__file__).with_name("attacks.js")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-default-apps", "--no-proxy-server"),
)

NAMES = ("chromium", "chromium-browser", "google-chrome")


def required_browser() -> str:
    """Returns the path of a Chromium. Without one it skips the test, but fails in CI."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or skip_unless_ci("needs a Chromium on PATH (Debian: apt-get install chromium)")


@asynccontextmanager
async def browser(program: str, folder: Path, url: str, hosts: Mapping[str, str]) -> AsyncIterator[None]:
    """Shows the page until the end of the block. `hosts` are names and the `address:port` that they lead to."""
    rules = ", ".join(f"MAP {name} {address}" for name, address in hosts.items())
    process = await asyncio.create_subprocess_exec(
        *(program, *FLAGS, f"--user-data-dir={folder}", f"--host-resolver-rules={rules}", url),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )
    try:
        yield
    finally:
        family = [psutil.Process(process.pid)]
        family += family[0].children(recursive=True)
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        await process.wait()


@dataclass
class Page:
    """One page of the tour: where it is shown, what it attacks, and what it found there."""

    url: str
    plan: dict[str, Any]
    may_be_shown: asyncio.Event = field(default_factory=asyncio.Event)
    found: asyncio.Future[list[dict[str, Any]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    async def findings(self, within: float) -> dict[str, dict[str, Any]]:
        """What it reports, by the deed's name."""
        async with asyncio.timeout(within):
            return {each["name"]: each for each in await self.found}


class Pages:
    """Serves pages at `/NAME`, takes their findings at `/found`, and redirects at `/redirect`."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.shown: Page | None = None

    async def show(self, request: web.Request) -> web.Response:
        page = self.pages[request.match_info["name"]]
        await page.may_be_shown.wait()
        self.shown = page
        plan = json.dumps(self.shown.plan)
        text = (
            f'<!doctype html><body><script type="application/json" id="plan">{plan}</script>'
            '<script src="/script"></script>'
        )
        return web.Response(text=text, content_type="text/html")

    async def script(self, _request: web.Request) -> web.Response:
        return web.Response(text=SCRIPT.read_text("utf-8"), content_type="text/javascript")

    async def take(self, request: web.Request) -> web.Response:
        assert self.shown is not None
        self.shown.found.set_result(json.loads(await request.text()))
        return web.Response()

    async def redirect(self, request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": request.query["to"]})

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/script", self.script)
        app.router.add_post("/found", self.take)
        app.router.add_route("*", "/redirect", self.redirect)
        app.router.add_get("/page/{name}", self.show)
        return app


OWN_PATHS = (b"GET /page/", b"GET /script", b"POST /found", b"GET /redirect", b"POST /redirect")


@asynccontextmanager
async def rebound(pages_port: int, victim_port: int) -> AsyncIterator[int]:
    """The port of a name that leads to the attacker's server for its page, and to the victim for all the rest.

    A browser sees one origin, as it does where a name's address is changed between two requests.
    """

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        port = pages_port if head.startswith(OWN_PATHS) else victim_port
        answers, asks = await asyncio.open_connection("127.0.0.1", port)
        # One request a connection: the next one may be for the other server.
        asks.write(head.replace(b"Connection: keep-alive", b"Connection: close"))
        await asyncio.gather(_pump(reader, asks), _pump(answers, writer))

    async with stream_server(relay) as port:
        yield port


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()
