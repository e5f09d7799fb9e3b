"""What the page's "Copy" buttons put into the clipboard is what can be pasted: code that runs, files that parse."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import Browser, Page, expect
from ruamel.yaml import YAML

from tests.http.serving import Proxy
from tests.page.conftest import open_page, page_server
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from codex_proxy.parts.clients.clients import ClientSetup

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLIPBOARD = ["clipboard-read", "clipboard-write"]
COMMANDS = ("claude", "cline", "codex", "copilot", "open-webui", "opencode", "pi", "qwen")
"""The programs that the shell blocks start: each is one that ends at once."""


async def output_of(*command: str, folder: Path, path: str = "") -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "NO_PROXY": "127.0.0.1", **({"PATH": path} if path else {})},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, said.decode()
    return said.decode()


async def paste(text: str, language: str, folder: Path) -> None:
    """Reads a text as its language does; a shell also runs it."""
    if language == "python":
        compile(text, "<pasted>", "exec")
    elif language == "js":
        program = folder / "pasted.mjs"
        program.write_text(text)
        if shutil.which("node"):
            await output_of("node", "--check", str(program), folder=folder)
    elif language == "sh":
        stubs = folder / "bin"
        stubs.mkdir(exist_ok=True)
        for name in COMMANDS:
            stub = stubs / name
            stub.write_text("#!/bin/sh\n")
            stub.chmod(0o755)
        await output_of("/bin/sh", "-euc", text, folder=folder, path=str(stubs))
    elif language == "toml":
        tomllib.loads(text)
    elif language == "yaml":
        assert isinstance(YAML(typ="safe").load(text), dict)
    else:
        assert language == "json"
        json.loads(text)


async def copied(page: Page, place: int = 0) -> str:
    """Clicks on a button "Copy" of the pane, by its place; returns what is in the clipboard then."""
    button = page.locator("main").get_by_role("button", name=re.compile("Cop")).nth(place)
    await button.click()
    await expect(button).to_have_text("Copied")
    return str(await page.evaluate("navigator.clipboard.readText()"))


def languages(client: ClientSetup) -> list[str]:
    return [*([client.file.format] if client.file else []), *([client.language] if client.text else [])]


@pytest.mark.part("clients")
async def test_each_block_of_each_client_is_copied_alone_and_can_be_pasted(
    browser: Browser, tmp_path: Path
) -> None:
    from codex_proxy.parts.clients.clients import CLIENTS  # it needs the part

    async with page_server(tmp_path) as proxy, open_page(browser, proxy, permissions=CLIPBOARD) as page:
        for client in CLIENTS:
            await page.goto(f"{proxy.url}/#connect/{client.name}")
            await expect(page.get_by_text(f"codex-proxy connect {client.name}", exact=True)).to_be_visible()
            wanted = languages(client)
            await expect(page.get_by_role("button", name="Copy")).to_have_count(len(wanted))
            for note in client.notes:
                await expect(
                    page.locator("main p").get_by_text(note.replace("`", ""), exact=True)
                ).to_be_visible()
            for place, language in enumerate(wanted):
                await paste(await copied(page, place), language, tmp_path)


@pytest.mark.part("clients")
async def test_a_copied_block_of_python_prints_the_answer(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, permissions=CLIPBOARD) as page:
        for name in ("openai-python", "anthropic-python"):
            await page.goto(f"{proxy.url}/#connect/{name}")
            await expect(page.get_by_text(f"codex-proxy connect {name}", exact=True)).to_be_visible()
            said = await output_of(sys.executable, "-c", await copied(page), folder=tmp_path)
            assert said.strip() == "Hello from the deterministic fake agent."


@pytest.mark.part("clients")
async def test_a_text_is_copied_where_the_address_is_not_a_secure_one(
    browser: Browser, tmp_path: Path
) -> None:
    """As at `http://192.168.0.2`: the browser has no `navigator.clipboard` there."""
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        await page.goto(f"{proxy.url}/?#connect/openai-python")
        await page.get_by_role("button", name="Copy").click()
        await expect(page.get_by_role("button", name="Copied")).to_be_visible()
        await page.goto(f"{proxy.url}/?#playground")
        await page.get_by_label("Prompt", exact=True).focus()
        await page.keyboard.press("Control+V")
        await expect(page.get_by_label("Prompt", exact=True)).to_have_value(
            await guide(proxy, "openai-python")
        )


async def guide(proxy: Proxy, name: str) -> str:
    listed = (await proxy.send("GET", "/ui/api/connect")).body["data"]
    (found,) = [each for each in listed if each["name"] == name]
    return str(found["blocks"][0]["text"])
