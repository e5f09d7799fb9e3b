"""The files of turns on the page, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Locator, Page, expect

from tests.page.conftest import browser, open_page
from tests.page.test_diffs import rows_of, summaries
from tests.parts.snapshots.test_alone import proxy_at, writing
from tests.parts.snapshots.test_worktrees import git
from tests.parts.snapshots.working import Worker, snapshot_proxy
from tests.waiting import PATIENCE, eventually

__all__ = ["browser"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

expect.set_options(timeout=PATIENCE * 1000)


def files_of_turns(page: Page) -> Locator:
    return page.locator(".turn-files")


async def opened(page: Page, line: str) -> Locator:
    """Opens the files of a turn by its line."""
    await page.get_by_text(line).click()
    return page.locator(".turn-files", has_text=line)


async def test_below_a_turn_is_a_line_that_opens_what_it_has_done_to_the_files(
    browser: Browser, tmp_path: Path
) -> None:
    async with snapshot_proxy(tmp_path, ui=True) as (client, folder):
        (folder / "changed.txt").write_text("one\ntwo\n")
        (folder / "gone.txt").write_text("gone\n")
        (folder / "script").write_text("")
        worker = Worker(client, folder)

        def work() -> None:
            (folder / "changed.txt").write_text("one\n2\n<b>three</b>\n")
            (folder / "gone.txt").unlink()
            (folder / "script").chmod(0o700)
            (folder / "new.bin").write_bytes(b"\0\1")
            (folder / "link").symlink_to("changed.txt")

        await worker.turn(work)
        await worker.turn(lambda: None)
        async with open_page(browser, client.proxy, f"sessions/{worker.session}") as page:
            files = await opened(page, "5 files changed (+3 −2)")
            assert await summaries(files.locator(".diff")) == [
                "Changed changed.txt +2 −1",
                "Deleted gone.txt +0 −1",
                "Link link +1 −0",
                "Added new.bin +0 −0",
                "Permissions script +0 −0",
            ]
            assert await rows_of(files.locator(".file").first) == [
                "|| @@ -1,2 +1,3 @@",
                "1|1| one",
                "2||-two",
                "|2|+2",
                "|3|+<b>three</b>",
            ]
            for words in ("A new link", "Binary: 2 bytes", "Permissions 644 → 700"):
                await expect(files.get_by_text(words)).to_be_visible()
            await expect(page.locator(".turn-files details")).to_have_count(2 + 5 - 1)
            found = await Axe().run(page)
            assert found.violations_count == 0, found.generate_report()


async def test_a_turn_is_taken_back_after_a_question(browser: Browser, tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, ui=True) as (client, folder):
        (folder / "a").write_text("old")
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("new"))
        async with open_page(browser, client.proxy, f"sessions/{worker.session}") as page:
            files = await opened(page, "1 file changed (+1 −1)")
            await files.get_by_role("button", name="Revert").click()
            await files.get_by_role("button", name="Cancel").click()
            await expect(files.get_by_role("button", name="Cancel")).to_have_count(0)
            assert (folder / "a").read_text() == "new"
            await files.get_by_role("button", name="Revert").click()
            await files.locator(".main", has_text="Revert").click()
            await expect(files.get_by_text("One file is as before this turn.")).to_be_visible()
            assert (folder / "a").read_text() == "old"


async def test_files_that_were_changed_since_are_named_and_overwritten_when_that_is_wanted(
    browser: Browser, tmp_path: Path
) -> None:
    async with snapshot_proxy(tmp_path, ui=True) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "<b>a").write_text("by the turn"))
        (folder / "<b>a").write_text("by its user")
        async with open_page(browser, client.proxy, f"sessions/{worker.session}") as page:
            files = await opened(page, "1 file changed (+1 −0)")
            await files.get_by_role("button", name="Revert").click()
            await files.locator(".main", has_text="Revert").click()
            await expect(files.get_by_role("alert")).to_contain_text(": <b>a. ")
            await expect(files.get_by_text("the server keeps what is there now")).to_be_visible()
            assert (folder / "<b>a").read_text() == "by its user"
            await files.get_by_role("button", name="Revert anyway").click()
            await expect(files.get_by_text("What was overwritten is kept as")).to_be_visible()
            assert not (folder / "<b>a").exists()


async def test_a_turn_without_a_snapshot_says_why_and_one_that_changed_nothing_says_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    async with snapshot_proxy(tmp_path, ui=True, snapshot_max_files=2) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: None)
        for name in "abc":
            (folder / name).write_text("")
        await worker.turn(lambda: None)
        async with open_page(browser, client.proxy, f"sessions/{worker.session}") as page:
            await expect(
                page.get_by_text("The files of this turn are not kept: there are more than 2 files")
            ).to_have_count(1)
            await expect(page.locator(".turn-files").first).to_be_empty()


async def test_a_copy_of_the_session_after_a_turn_gets_the_files_of_then(
    browser: Browser, tmp_path: Path
) -> None:
    async with snapshot_proxy(tmp_path, ui=True) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("first\n"))
        await worker.turn(lambda: (folder / "b").write_text("second\n"))
        async with open_page(browser, client.proxy, f"sessions/{worker.session}") as page:
            files = page.locator(".turn-files").first
            await files.get_by_text("1 file changed").click()
            await files.get_by_role("button", name="Fork with files").click()
            new = files.get_by_role("textbox", name="New folder")
            await new.fill("/no/such/place")
            await page.keyboard.press("Enter")
            await expect(files.get_by_role("alert")).to_be_visible()
            await files.get_by_role("button", name="Fork with files").click()
            await expect(new).to_be_focused()
            await expect(new).to_have_value(f"{folder}/fork")
            await new.fill(f"{folder}/copy")
            await page.keyboard.press("Enter")
            await expect(page.get_by_text("a copy of another session")).to_be_visible()
            await expect(page.get_by_text(f"{folder}/copy · workspace-write")).to_be_visible()
            await expect(page.locator(".turn-files details > summary")).to_have_count(1)
            assert [path.name for path in (folder / "copy").iterdir()] == ["a"]


async def test_a_session_says_once_whether_files_are_kept_and_how_to_have_that(
    browser: Browser, tmp_path: Path
) -> None:
    async with snapshot_proxy(tmp_path, ui=True, snapshots="off") as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("1"))
        async with open_page(browser, client.proxy, f"sessions/{worker.session}") as page:
            await page.locator(".menu > summary", has_text="Files").click()
            await expect(page.get_by_text("Started with PROXY_SNAPSHOTS=sessions it does")).to_be_visible()
            await expect(page.locator(".turn-files")).to_be_empty()


async def test_what_a_session_has_done_to_the_files_is_saved_as_a_patch(
    browser: Browser, tmp_path: Path
) -> None:
    async with snapshot_proxy(tmp_path, ui=True) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("first\n"))
        async with open_page(browser, client.proxy, f"sessions/{worker.session}") as page:
            await page.locator(".turn-files > details").wait_for()
            await page.locator(".menu > summary", has_text="Files").click()
            async with page.expect_download() as saved:
                await page.get_by_role("button", name="Save the patch").click()
            file = await (await saved.value).path()
            assert "+first\n" in file.read_text()
            await expect(page.get_by_role("button", name="Copy all changes as a patch")).to_be_visible()


async def test_a_session_in_a_worktree_is_made_and_merged_on_the_page(
    browser: Browser, tmp_path: Path
) -> None:
    async with snapshot_proxy(tmp_path, ui=True) as (client, folder):
        git(folder, "init", "-q")
        (folder / "a").write_text("1")
        async with open_page(browser, client.proxy, "sessions") as page:
            await page.get_by_role("checkbox", name="In a worktree").check()
            await page.get_by_role("textbox", name="Message").fill("Hello.")
            await page.get_by_role("button", name="Send").click()
            await expect(page.get_by_text("Hello.").first).to_be_visible()

            def made() -> list[Path]:
                return [*tmp_path.glob("state-worktrees/*/*/*/a")]

            [copy] = await eventually(made)
            await page.locator("summary", has_text="Files").click()
            await expect(page.get_by_text(f"a copy of {folder}.")).to_be_visible()
            await expect(page.get_by_label("New branch")).to_be_visible()
            found = await Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            copy.write_text("2")
            await page.get_by_role("button", name="Merge", exact=True).click()
            await expect(page.get_by_text(f"One file is merged into {folder}.")).to_be_visible()
            assert (folder / "a").read_text() == "2"
            copy.write_text("3")
            (folder / "a").write_text("4")
            await page.get_by_role("button", name="Merge", exact=True).click()
            await expect(page.get_by_text("Changed otherwise in")).to_be_visible()
            assert (folder / "a").read_text() == "4"


async def test_a_turn_outside_of_sessions_is_looked_at_and_taken_back(
    browser: Browser, tmp_path: Path
) -> None:
    async with proxy_at(tmp_path, ui=True) as (proxy, folder):
        (folder / "a").write_text("0\n")
        body = {"model": "codex-5", "input": writing(a="1\n")}
        (folder / "other").mkdir()
        same = {"x-request-id": "request-1"}
        for headers in (same | {"x-codex-workdir": str(folder / "other")}, same):
            assert (await proxy.send("POST", "/v1/responses", body, headers=headers)).status == 200
        async with open_page(browser, proxy, "turns") as page:
            await page.locator("td a").first.click()
            files = await opened(page, "1 file changed (+1 −1)")
            await expect(files_of_turns(page)).to_have_count(1)
            assert await rows_of(files.locator(".file")) == ["|| @@ -1 +1 @@", "1||-0", "|1|+1"]
            await expect(files.get_by_role("button", name="Fork with files")).to_have_count(0)
            await files.get_by_role("button", name="Revert").click()
            await files.get_by_role("button", name="Revert").last.click()
            await expect(files.get_by_role("status")).to_have_text("One file is as before this turn.")
            assert (folder / "a").read_text() == "0\n"
