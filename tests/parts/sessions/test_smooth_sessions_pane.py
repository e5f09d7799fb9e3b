"""The page's sessions stay smooth with as much as a session may have to show."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from codex_proxy.parts.sessions.records import records_of
from codex_proxy.parts.sessions.service import SESSIONS
from codex_proxy.parts.sessions.sessions import Entry, UserMessage
from tests.http.serving import Proxy
from tests.page.conftest import browser, open_page, page_server
from tests.page.test_smoothness import MEASURE, longest_gap
from tests.parts.sessions.driving import AgentsClient
from tests.waiting import PATIENCE

__all__ = ["browser"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.exhaustive]

LONGEST_FRAME = 100.0
"""Milliseconds that may be between two frames while an agent writes."""
LONGEST_LOADING = 1000.0
"""The same while ten thousand items are loaded, which a test's machine has to store, send and lay out at once."""
ITEMS = 10_000
TURNS = 450
MOST_LAID_OUT = 100
"""Elements that may lie beside each other, which the browser lays out together."""
MOST_CHILDREN = """() => Math.max(...Array.from(
  document.querySelectorAll(".talk, .talk *"), (each) => each.childElementCount))"""


async def test_a_thousand_events_a_second_drop_no_frame(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await page.get_by_role("textbox", name="Message").fill("[[fake:count n=12000]]")
        await page.evaluate(MEASURE)
        began = asyncio.get_running_loop().time()
        await page.keyboard.press("Enter")
        await expect(page.locator(".turn-end")).to_contain_text("completed", timeout=PATIENCE * 1000)
        assert 12_000 / (asyncio.get_running_loop().time() - began) > 1000, "events came fast enough"
        assert await longest_gap(page) < LONGEST_FRAME
        assert await page.evaluate("document.querySelector('.talk').textContent.length") > 4 * 12_000


async def test_many_short_turns_are_laid_out_a_chunk_at_a_time(browser: Browser, tmp_path: Path) -> None:
    """A list with all turns in it would be laid out anew for each page that is loaded: ten times as many turns would
    take a hundred times as long.
    """
    async with page_server(tmp_path) as proxy:
        id = await AgentsClient(proxy).idle_session("The beginning.")
        await add_items(proxy, id, TURNS, in_each=1)
        async with open_page(browser, proxy, f"sessions/{id}") as page:
            await expect(page.locator(".turn")).to_have_count(TURNS + 1, timeout=PATIENCE * 1000)
            assert await page.evaluate(MOST_CHILDREN) <= MOST_LAID_OUT
            texts = await page.evaluate(
                "Array.from(document.querySelectorAll('.said'), (each) => each.textContent)"
            )
            assert texts == ["The beginning.", *(f"Message {n}." for n in range(TURNS))]


async def test_ten_thousand_items_are_loaded_and_found(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy:
        id = await AgentsClient(proxy).idle_session("The beginning.")
        await add_items(proxy, id, ITEMS, in_each=10)
        async with open_page(browser, proxy, f"sessions/{id}") as page:
            await page.evaluate(MEASURE)
            await expect(page.get_by_text(f"Message {ITEMS - 1}.")).to_be_in_viewport(timeout=PATIENCE * 1000)
            await expect(page.locator(".entry")).to_have_count(ITEMS + 2, timeout=PATIENCE * 1000)
            assert await longest_gap(page) < LONGEST_LOADING
            await expect(page.get_by_text(f"Message {ITEMS - 1}.")).to_be_in_viewport()
            await page.evaluate("window.gaps.length = 0")  # Playwright itself looks at all of it
            await page.evaluate(SCROLL)
            assert await longest_gap(page) < LONGEST_LOADING
            await expect(page.locator(".entry").get_by_text("The beginning.")).to_be_in_viewport()


async def add_items(proxy: Proxy, id: str, count: int, *, in_each: int) -> None:
    """Stores so many messages in a session, and `in_each` of them in each turn."""
    sessions = proxy.app[SESSIONS]
    session = await sessions.session("local", id)
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        entries = [Entry(f"msg_x_{n}", f"turn_{n // in_each}", UserMessage(content(n))) for n in numbers]
        await sessions.store.write("local", records_of(session, entries, sessions.now(), session.storage)[0])


def content(number: int) -> tuple[dict[str, str], ...]:
    return ({"type": "input_text", "text": f"Message {number}."},)


SCROLL = """async () => {
  const talk = document.querySelector(".talk");
  for (let step = 20; step >= 0; step--) {
    talk.scrollTo(0, talk.scrollHeight * step / 20);
    await new Promise(requestAnimationFrame);
  }
}"""
