"""What the panes say of turns, agents and what is stored, in windows of any width."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from tests.http.serving import Proxy, user
from tests.model_server import NOWHERE, ask, upstream
from tests.page.conftest import open_page, page_server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEVERAL = {"fake": {}, "other": {"agent": "fake"}}
CUT = """() => [...document.querySelectorAll('.scroll, .card, main, td')]
  .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.className || each.tagName)"""


@asynccontextmanager
async def two_running_turns(folder: Path) -> AsyncIterator[Proxy]:
    """A server of two agents, each with a turn that runs and one that has ended."""
    async with page_server(folder, agents=SEVERAL) as proxy:
        for model in ("codex-5-high", "other"):
            await proxy.ask(user(model=model))
        running = [
            asyncio.create_task(proxy.ask(user("[[fake:text misbehave=hang]]", model=model)))
            for model in ("codex-5-high", "other")
        ]
        try:
            yield proxy
        finally:
            for each in running:
                each.cancel()
            await asyncio.wait(running)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("width", [380, 700, 1000, 1400])
async def test_no_table_is_cut_and_turns_have_all_their_words(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    async with (
        two_running_turns(tmp_path) as proxy,
        open_page(browser, proxy, "now", viewport={"width": width, "height": 800}) as page,
    ):
        await expect(
            page.get_by_role("table", name="Processes of other").get_by_role("row")
        ).not_to_have_count(0)
        await expect(page.get_by_text("writing the answer")).to_have_count(2)
        await has_all(page, "Running turns", 2)
        assert await page.evaluate(CUT) == []
        await page.get_by_role("link", name="Turns").click()
        await has_all(page, "Turns", 4)
        assert await page.evaluate(CUT) == []
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


async def has_all(page: Page, table: str, turns: int) -> None:
    rows = page.get_by_role("table", name=table, exact=True).get_by_role("row")
    rows = rows.filter(has=page.get_by_role("link"))
    await expect(rows).to_have_count(turns)
    shown = [text.split() for text in await rows.all_inner_texts()]  # what is hidden has no inner text
    asked = [("other", "other"), ("fake", "codex-5-high")]
    for words, (agent, model) in zip(shown, asked * (turns // 2), strict=True):
        assert {"Chat", "Completions", agent, model, "agent"} <= set(words)


@pytest.mark.exhaustive
async def test_one_agent_is_not_named_in_each_row(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "turns") as page:
        await proxy.ask(user())
        await page.reload()
        await expect(page.get_by_role("columnheader", name="Model")).to_be_visible()
        await expect(page.get_by_role("columnheader", name="Agent")).to_have_count(0)


@pytest.mark.part("upstream")
async def test_a_breaker_is_named_where_requests_are_held_back(browser: Browser, tmp_path: Path) -> None:
    async with upstream() as served:
        tables = {"good": {"url": served.url}, "gone": {**NOWHERE, "breaker_failures": 1}}
        async with page_server(tmp_path, agent="good", upstreams=tables) as proxy:
            await proxy.ask(ask("good/small"))
            await proxy.ask(ask("gone/small"))
            async with open_page(browser, proxy, "now") as page:
                gone = page.locator(".card").filter(has=page.get_by_role("heading", name="gone"))
                await expect(gone).to_contain_text("no request is sent to it for a moment")
                await expect(gone).not_to_contain_text("upstreamopen")
                good = page.locator(".card").filter(has=page.get_by_role("heading", name="good"))
                await expect(good).to_have_text("good healthready", use_inner_text=False)


@pytest.mark.part("upstream")
async def test_a_turn_whose_bytes_are_passed_on_is_not_waiting_while_words_come(
    browser: Browser, tmp_path: Path
) -> None:
    async with upstream() as served:
        served.held.clear()
        tables = {"good": {"url": served.url}}
        async with (
            page_server(tmp_path, agent="good", upstreams=tables) as proxy,
            open_page(browser, proxy, "now") as page,
        ):
            asked = asyncio.create_task(proxy.ask(ask("good/small", stream=True)))
            await expect(page.get_by_role("row").filter(has_text="small")).to_contain_text(
                "writing the answer"
            )
            served.held.set()
            await asyncio.wait_for(asked, PATIENCE)


async def test_what_is_stored_is_headed_by_what_it_says(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "stored") as page:
        stored = await proxy.send("POST", "/v1/responses", {"model": "codex-5", "input": "Hello."})
        for metadata in ({"topic": "weather"}, {}):
            await proxy.send("POST", "/v1/conversations", {"metadata": metadata})
        await page.reload()
        await (
            page.get_by_role("heading", name="Hello from the deterministic fake agent.")
            .get_by_role("link")
            .click()
        )
        await expect(page.get_by_role("heading", level=2)).to_have_text(
            "Hello from the deterministic fake agent."
        )
        await expect(page.get_by_text(f"completed · {stored.body['id']}")).to_be_visible()
        await page.goto(f"{proxy.url}/#stored/conversations")
        await expect(page.get_by_role("heading", name="topic: weather")).to_be_visible()
        await expect(page.get_by_role("heading", name="A conversation of")).to_be_visible()
        assert await page.get_by_role("heading", name="conv_").count() == 0
