"""The page stays smooth with as much as it may have to show. A frame takes 17 ms on a quiet machine; the bounds are
what a reader notices on a loaded one.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from codex_proxy.core.events import ItemStarted, TextDelta, TurnStarted
from codex_proxy.core.items import Message
from codex_proxy.core.turn import Turn
from tests.page.conftest import open_page, page_server
from tests.store.stored import response
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.exhaustive]

LONGEST_GAP = 2000.0
"""Milliseconds that may be between two frames."""
MEASURE = """() => {
  window.gaps = [];
  let last = performance.now();
  const frame = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""

LOAD_ALL = """async () => {
  const list = document.querySelector(".list");
  for (;;) {
    const more = list.querySelector(":scope > button");
    if (!more) return list.children.length;
    more.click();
    while (list.lastElementChild === more) await new Promise(requestAnimationFrame);
  }
}"""
"""Presses "More" until there is no more. Playwright itself would be slow in a large page."""
SCROLL = """async () => {
  for (let step = 0; step <= 20; step++) {
    scrollTo(0, document.documentElement.scrollHeight * step / 20);
    await new Promise(requestAnimationFrame);
  }
}"""


async def longest_gap(page: Page) -> float:
    """The longest time between two frames since the last look, in milliseconds."""
    gaps: list[float] = await page.evaluate("window.gaps.splice(0)")
    assert len(gaps) > 5, "frames were drawn"
    return max(gaps)


async def test_three_hundred_running_turns_that_all_write(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "now") as page:
        records = proxy.server.runs.records
        assert records is not None
        await page.evaluate(MEASURE)
        turns = [records.begin(Turn(model=f"m-{n}", history=(), owner="local"), "fake") for n in range(300)]
        for turn in turns:
            turn.add([TurnStarted(), ItemStarted(Message("m"))])
        await expect(page.get_by_role("button", name=re.compile("Cancel turn"))).to_have_count(300)
        for _ in range(20):
            for turn in turns:
                turn.add([TextDelta("m", "Ten letters. " * 4)])
            await page.evaluate("new Promise(requestAnimationFrame)")
        await expect(page.get_by_role("row").filter(has_text="m-299").get_by_text("~260")).to_be_visible()
        assert await longest_gap(page) < LONGEST_GAP


async def test_ten_thousand_stored_responses_in_one_list(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy:
        lifecycle = proxy.server.store_lifecycle
        assert lifecycle is not None
        for start in range(0, 10_000, 500):
            added = (response(f"resp_{n:05}", owner="local") for n in range(start, start + 500))
            await asyncio.gather(*map(lifecycle.store.add_response, added))
        async with open_page(browser, proxy, "stored") as page:
            await page.evaluate(MEASURE)
            rows = page.locator("article")
            await expect(page.get_by_role("button", name="More")).to_be_visible()
            assert await page.evaluate(LOAD_ALL) == 10_000
            await expect(rows.last).to_contain_text("resp_00000")
            assert await longest_gap(page) < LONGEST_GAP
            await page.evaluate(SCROLL)
            assert await longest_gap(page) < LONGEST_GAP
            await page.get_by_role("searchbox").fill("resp_07777")
            await page.get_by_role("button", name="Search").click()
            await expect(rows).to_have_count(1)


async def test_a_thousand_events_a_second_in_the_raw_view(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:
        await page.get_by_label("Prompt", exact=True).fill("[[fake:count n=20000]]")
        await page.evaluate(MEASURE)
        began = asyncio.get_running_loop().time()
        await page.get_by_role("button", name="Send").click()
        await page.get_by_text("Events:").click()
        await expect(page.get_by_text(re.compile(r"Events: 20,0\d\d"))).to_be_visible(timeout=PATIENCE * 1000)
        assert 20_000 / (asyncio.get_running_loop().time() - began) > 1000, "events came fast enough"
        assert await longest_gap(page) < LONGEST_GAP
