"""Renderers of items on the page: the module of the server, in the browser, under the page's policy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.page.conftest import open_page, page_server

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page


@asynccontextmanager
async def shown_page(browser: Browser, folder: Path) -> AsyncIterator[Page]:
    """The page of a server of its own, when it shows something."""
    async with page_server(folder) as proxy, open_page(browser, proxy) as page:
        await page.locator("main > *").first.wait_for()
        yield page


async def mount(page: Page) -> Locator:
    """Empties the page; returns the place for elements."""
    await page.evaluate(
        """() => {
          const main = document.querySelector("main");
          const place = document.createElement("main");
          place.id = "main";
          place.append(Object.assign(document.createElement("h2"), { textContent: "A conversation" }));
          main.replaceWith(place);
        }"""
    )
    return page.locator("#main")


async def show_items(page: Page, *items: dict[str, Any]) -> Locator:
    """Shows items; `window.views` has their views by id, and `window.done` what was done with them."""
    place = await mount(page)
    await page.evaluate(
        """async (items) => {
          const { itemView } = await import("/ui/items.js");
          window.views = {};
          window.done = [];
          const told = (name) => (...given) => window.done.push([name, ...given]);
          const names = ["comment", "fork", "edit", "openSubagent"];
          const actions = Object.fromEntries(names.map((name) => [name, told(name)]));
          for (const item of items) {
            const view = itemView(item, actions);
            window.views[item.id] = view;
            document.querySelector("#main").append(view.element);
          }
        }""",
        list(items),
    )
    return place


async def show_markdown(page: Page, text: str) -> Locator:
    place = await mount(page)
    await page.evaluate(
        """async (text) => {
          const { markdownView } = await import("/ui/markdown.js");
          window.view = markdownView();
          document.querySelector("#main").append(window.view.element);
          window.view.update(text);
        }""",
        text,
    )
    return place.locator(".markdown")


async def show_diff(page: Page, diff: Any, *, comments: bool = True, exact: bool = False) -> Locator:
    place = await mount(page)
    await page.evaluate(
        """async ([diff, comments, exact]) => {
          const { diffView } = await import("/ui/diff.js");
          window.done = [];
          const comment = comments ? (...given) => window.done.push(given) : undefined;
          document.querySelector("#main").append(diffView(diff, { comment, exact }));
        }""",
        [diff, comments, exact],
    )
    return place.locator(".diff")


async def send(page: Page, id: str, *events: dict[str, Any]) -> None:
    """Gives events to the view of an item, and waits for the frame after them."""
    await page.evaluate(
        """async ([id, events]) => {
          for (const event of events) window.views[id].delta(event);
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        }""",
        [id, list(events)],
    )


async def renew(page: Page, item: dict[str, Any]) -> None:
    await page.evaluate("(item) => window.views[item.id].update(item)", item)


async def done(page: Page) -> list[Any]:
    """What the person has done so far."""
    found: list[Any] = json.loads(await page.evaluate("JSON.stringify(window.done)"))
    return found
