"""A real Chromium, driven by Playwright, and a server with its page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from tests.access.browser import required_browser
from tests.http.serving import Proxy, fake_proxy
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright

    program, manager = required_browser(), async_playwright()
    async with manager as playwright:
        started = await playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield started
        await started.close()
    # Playwright does not always wait for its driver, whose end this event loop has to see.
    async with asyncio.timeout(PATIENCE):
        await attrgetter("_client._transport._proc")(manager).wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started


@asynccontextmanager
async def open_page(browser: Browser, proxy: Proxy, pane: str = "", **context: Any) -> AsyncIterator[Page]:
    """The page in a window of its own. Fails at its end where it broke its policy, or a script of it failed."""
    window = await browser.new_context(**context)
    window.set_default_timeout(PATIENCE * 1000)
    page = await window.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console", lambda said: faults.append(said.text) if "Content Security Policy" in said.text else None
    )
    await page.goto(f"{proxy.url}/#{pane}")
    try:
        yield page
        assert faults == []
    finally:
        await window.close()


@asynccontextmanager
async def page_server(
    folder: Path, environment: Mapping[str, str] | None = None, **settings: Any
) -> AsyncIterator[Proxy]:
    """A server on the fake agent that has a page."""
    async with fake_proxy(folder, environment, ui=True, **settings) as proxy:
        yield proxy
