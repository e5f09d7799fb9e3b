"""Takes the pictures of the page in docs/images with the fake agent: `.venv/bin/python -m scripts.gen_pictures`."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, Page

from tests.http.serving import Proxy, fake_proxy
from tests.page.conftest import chromium
from tests.parts.sessions.approving import ASKING, KEY

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
BETA: Final = {"OpenAI-Beta": "agents=v1", "Authorization": f"Bearer {KEY}"}
OLDER: Final = ("What does this folder hold?", "Name three risks of the change")
HELD: Final = "[[fake:text hold=1]]"
"""A turn that waits behind its first word."""
TOOL: Final = {
    "name": "get_weather",
    "description": "Get the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


async def sessions(page: Page, proxy: Proxy) -> None:
    """The agent asks before a command; two older sessions at the left."""
    for title in OLDER:
        body = {
            "agent": {"model": "codex-5"},
            "environment": {"type": "none"},
            "input": "[[fake:text]]",
            "stream": True,
        }
        await proxy.send("POST", "/v1/agents/sessions", body, headers=BETA)
        listed = await proxy.send("GET", "/v1/agents/session_summaries?limit=1", headers=BETA)
        path = f"/v1/agents/sessions/{listed.body['data'][0]['id']}/summary"
        await proxy.send("POST", path, {"title": title}, headers=BETA)
    await page.goto(f"{proxy.url}/#key={KEY.replace(' ', '%20')}")
    message = page.get_by_role("textbox", name="Message")
    await message.fill("List the files, and say what is missing")
    await message.press("Enter")
    await page.get_by_role("button", name="Allow once").wait_for()
    await page.wait_for_selector("button[aria-disabled=false]")


async def now(page: Page, proxy: Proxy) -> None:
    """Two turns run."""
    chat = {"model": "codex-5", "stream": True, "messages": [{"role": "user", "content": HELD}]}
    responses = {"model": "codex-5", "stream": True, "input": HELD}
    for path, body in (("chat/completions", chat), ("responses", responses)):
        await proxy.session.post(f"{proxy.url}/v1/{path}", json=body)
    await page.goto(f"{proxy.url}/#now")
    await page.get_by_text("writing the answer").nth(1).wait_for()


async def playground(page: Page, proxy: Proxy) -> None:
    """The model calls a tool, and the calls have their outputs."""
    await page.goto(f"{proxy.url}/#playground")
    await page.get_by_label("Prompt", exact=True).fill("What is the weather in Rome?")
    details = page.get_by_text("System prompt, tools")
    await details.click()
    await page.get_by_label("Tools: a list").fill(json.dumps([TOOL]))
    await details.click()
    await page.get_by_role("button", name="Send").click()
    await page.get_by_text("Your output").nth(1).wait_for()
    for output in await page.get_by_text("Your output").all():
        await output.locator("xpath=..").get_by_role("textbox").fill("sunny")


async def take(browser: Browser, name: str, proxy: Proxy, *, height: int, scheme: str) -> None:
    """Writes one picture of what the function `name` shows."""
    scheme_of: Any = scheme
    size: Any = {"width": 1120, "height": height}
    window = await browser.new_context(viewport=size, color_scheme=scheme_of)
    page = await window.new_page()
    await globals()[name](page, proxy)
    await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=IMAGES / f"page-{name}.png")
    await window.close()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        async with chromium() as browser:
            for name, mode, height, scheme, more in (
                ("sessions", "approval", 860, "light", ASKING),
                ("now", "text", 690, "dark", {}),
                ("playground", "tool_calls", 890, "light", {}),
            ):
                own = home / name
                own.mkdir()
                environment = {"FAKE_CODEX_MODE": mode, "STREAM_RELEASE_FILE": str(home / "never")}
                async with fake_proxy(own, environment, ui=True, **more) as proxy:
                    await take(browser, name, proxy, height=height, scheme=scheme)


if __name__ == "__main__":
    asyncio.run(main())
