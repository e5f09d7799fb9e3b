"""The real Codex and the real Claude Code ask before a command, and a person who has the page open answers there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from codex_proxy.app.server import make_server
from codex_proxy.commands.serve import page_of
from codex_proxy.settings.fields import Settings
from tests.page.cards import press
from tests.page.conftest import chromium
from tests.real import claude_proxy
from tests.real.anthropic_model import anthropic_model, script
from tests.real.codex_home import CodexHome
from tests.real.model_plans import plan, say
from tests.real.proxy import settings_of
from tests.real.release import needs
from tests.real.test_approvals import shell
from tests.real.test_approvals_of_claude import tool
from tests.waiting import PATIENCE

pytestmark = pytest.mark.part("sessions")

KEY = "the key of the operator"


@asynccontextmanager
async def open_page(settings: Settings, environment: Mapping[str, str]) -> AsyncIterator[Page]:
    """The page of a server with these settings, in a browser that has given its key."""
    expect.set_options(timeout=PATIENCE * 1000)
    server = await make_server(settings, environment, page_of)
    try:
        await server.start()
        async with chromium() as browser:
            page = await browser.new_page()
            page.set_default_timeout(PATIENCE * 1000)
            await page.goto(f"http://127.0.0.1:{server.port}/#sessions")
            await page.get_by_label("Key", exact=True).fill(KEY)
            await page.keyboard.press("Enter")
            yield page
    finally:
        await server.stop()


async def say_on(page: Page, text: str) -> None:
    message = page.get_by_role("textbox", name="Message")
    await message.fill(text)
    await message.press("Enter")


async def answer(page: Page, button: str) -> None:
    """Presses a button of the card, as soon as it takes a press. Returns when the question is no longer open."""
    card = page.get_by_role("region", name="Question of the agent")
    await press(card, button)
    await expect(card).to_have_count(0)


async def is_asked(page: Page, command: str, folder: Path) -> None:
    card = page.get_by_role("region", name="Question of the agent")
    await expect(card.get_by_label("Command", exact=True)).to_contain_text(command)
    await expect(card.get_by_label("In the folder")).to_have_text(str(folder))


@needs("confined_reads")
@pytest.mark.parametrize(("button", "told"), [("Allow once", "exit code 0"), ("Decline", "failed")])
async def test_a_person_answers_on_the_page_whether_codex_may_run_a_command(
    codex_home: CodexHome, button: str, told: str
) -> None:
    settings = settings_of(codex_home, sandbox="workspace-write", approvals="ask", api_key=KEY)
    async with open_page(settings, codex_home.environment(None)) as page:
        steps = [shell("echo made > within; echo said")], [say("*Done* it.")]
        await say_on(page, f"{plan(*steps)} Do it.")
        await is_asked(page, "echo made > within; echo said", codex_home.workdir)
        assert not (codex_home.workdir / "within").exists()
        await answer(page, button)
        await expect(page.get_by_role("article", name="Command").get_by_text(told)).to_be_visible()
        await expect(page.get_by_role("article", name="The agent").locator("em")).to_have_text("Done")
        if button == "Decline":
            assert not (codex_home.workdir / "within").exists()
            return
        assert (codex_home.workdir / "within").read_text() == "made\n"
        await expect(page.get_by_label("Output")).to_contain_text("said")


@pytest.mark.exhaustive
async def test_a_person_allows_on_the_page_that_claude_code_runs_a_command(tmp_path: Path) -> None:
    async with anthropic_model() as model:
        settings = claude_proxy.settings_of(
            tmp_path, sandbox="danger-full-access", approvals="ask", api_key=KEY
        )
        async with open_page(settings, claude_proxy.environment_of(tmp_path, model)) as page:
            steps = (
                tool("Bash", command="echo said; touch made", description="Makes it."),
                {"text": "*Done*."},
            )
            await say_on(page, f"Do it. {script(*steps)}")
            await is_asked(page, "echo said; touch made", tmp_path / "work")
            assert not (tmp_path / "work" / "made").exists()
            await answer(page, "Allow once")
            await expect(page.get_by_role("article", name="The agent").locator("em")).to_have_text("Done")
            assert (tmp_path / "work" / "made").exists()
            await expect(page.get_by_label("Output")).to_contain_text("said")
