"""Diffs on the page: the forms that agents use, comments by keyboard, and what a hostile one cannot do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Locator, Page, expect

from tests.page.items import done, show_diff, shown_page
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

expect.set_options(timeout=PATIENCE * 1000)

GIT = """diff --git a/src/a.py b/src/a.py
index 1..2 100644
--- a/src/a.py
+++ b/src/a.py
@@ -1,4 +1,5 @@ def f():
 one
--- a/header
+++ b/header
+two
 three
 four
diff --git a/new.txt b/new.txt
new file mode 100644
--- /dev/null
+++ b/new.txt
@@ -0,0 +1 @@
+hello
\\ No newline at end of file
diff --git a/old.txt b/older.txt
similarity index 100%
rename from old.txt
rename to older.txt
"""
PATCH = """*** Begin Patch
*** Update File: a.py
*** Move to: b.py
@@ def f():
 one
-two
+TWO
*** Add File: new.txt
+hello
*** Delete File: gone.txt
*** End Patch"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    async with shown_page(browser, tmp_path_factory.mktemp("diffs")) as page:
        yield page


ROWS = """(rows) => rows.map((row) => [...row.cells].map((cell) => {
  const part = (name) => cell.querySelector(name).textContent;
  return cell.classList.contains("number") ? cell.textContent : part(".mark") + part(".text");
}).join("|"))"""


async def rows_of(file: Locator) -> list[str]:
    """The rows of a file: their numbers, their signs and their text."""
    rows: list[str] = await file.locator("tbody tr").evaluate_all(ROWS)
    return rows


async def summaries(diff: Locator) -> list[str]:
    return [" ".join(text.split()) for text in await diff.locator("summary").all_inner_texts()]


async def test_a_diff_of_git_is_read_by_the_counts_of_its_headers(page: Page) -> None:
    diff = await show_diff(page, GIT)
    assert await summaries(diff) == [
        "Changed src/a.py +2 −1",
        "Added new.txt +1 −0",
        "Moved old.txt → older.txt +0 −0",
    ]
    assert await rows_of(diff.locator(".file").first) == [
        "|| @@ -1,4 +1,5 @@ def f():",
        "1|1| one",
        "2||--- a/header",
        "|2|+++ b/header",
        "|3|+two",
        "3|4| three",
        "4|5| four",
    ]


async def test_a_patch_is_read(page: Page) -> None:
    diff = await show_diff(page, PATCH)
    assert await summaries(diff) == [
        "Moved a.py → b.py +1 −1",
        "Added new.txt +1 −0",
        "Deleted gone.txt +0 −0",
    ]


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ({"kind": "add", "diff": "a\n\n+b\n"}, ["|1|+a", "|2|+", "|3|++b"]),
        ({"kind": "add", "diff": "+a\n+b\n"}, ["|1|++a", "|2|++b"]),
        ({"kind": "add", "diff": "@@ -1 +1 @@\n"}, ["|1|+@@ -1 +1 @@"]),
        ({"kind": "delete", "diff": "-a\n"}, ["1||--a"]),
        ({"kind": "add", "marked": True, "diff": "+a\n+b\n"}, ["|1|+a", "|2|+b"]),
        ({"kind": "add", "marked": True, "diff": "@@ -0,0 +1 @@\n+a\n"}, ["|| @@ -0,0 +1 @@", "|1|+a"]),
        ({"kind": "delete", "diff": "a\n"}, ["1||-a"]),
        ({"kind": None, "diff": "-a\n+b\n"}, ["·||-a", "|·|+b"]),
        ({"kind": None, "diff": "every occurrence:\n-a\n"}, ["|| every occurrence:", "·||-a"]),
        ({"kind": "update", "diff": "@@ -7 +7 @@\n-a\n+b\n"}, ["|| @@ -7 +7 @@", "7||-a", "|7|+b"]),
        (
            {"kind": "update", "diff": "@@ -1,9 +1,9 @@\n-a\n@@ -3 +3 @@\n-b"},
            ["|| @@ -1,9 +1,9 @@", "1||-a", "|| @@ -3 +3 @@", "3||-b"],
        ),
    ],
)
async def test_each_agents_form_of_a_change_is_read(
    page: Page, change: dict[str, Any], rows: list[str]
) -> None:
    diff = await show_diff(page, [{"path": "x", **change}])
    assert await rows_of(diff.locator(".file")) == rows


async def test_a_toggle_shows_both_sides_beside_each_other(page: Page) -> None:
    diff = await show_diff(page, GIT)
    await diff.get_by_role("button", name="Split").click()
    await expect(diff.get_by_role("button", name="Split")).to_have_attribute("aria-pressed", "true")
    assert (await rows_of(diff.locator(".file").first))[1:4] == [
        "1| one|1| one",
        "2|--- a/header|2|+++ b/header",
        "| |3|+two",
    ]
    await diff.get_by_role("button", name="Unified").click()
    assert (await rows_of(diff.locator(".file").first))[1] == "1|1| one"


async def test_a_line_gets_a_comment_by_keyboard_alone(page: Page) -> None:
    diff = await show_diff(page, GIT)
    first = diff.get_by_role("button", name="Comment on line 1", exact=True).first
    await diff.get_by_role("region").first.focus()
    await page.keyboard.press("Tab")
    await expect(first).to_be_focused()
    for _ in range(3):
        await page.keyboard.press("ArrowDown")
    await expect(diff.get_by_role("button", name="Comment on line 3, added")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.type("Why?")
    await page.keyboard.press("Control+Enter")
    await expect(diff.get_by_role("button", name="Comment on line 3, added")).to_be_focused()
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Escape")
    await expect(diff.get_by_role("button", name="Comment on line 2, added")).to_be_focused()
    assert await done(page) == [["src/a.py", 3, "+two\nWhy?"]]
    await expect(diff.get_by_text("Your comment: Why?")).to_be_visible()


async def test_without_comments_there_are_no_buttons_for_them(page: Page) -> None:
    diff = await show_diff(page, GIT, comments=False)
    await expect(diff.get_by_role("button", name="Comment")).to_have_count(0)


async def test_a_hundred_thousand_lines_are_folded_and_come_in_steps(page: Page) -> None:
    lines = "\n".join(f"+line {n}" for n in range(100_000))
    diff = await show_diff(page, f"--- /dev/null\n+++ b/big\n@@ -0,0 +1,100000 @@\n{lines}")
    await expect(diff.locator("tr")).to_have_count(0)
    await expect(diff.locator("summary")).to_contain_text("100001 lines")
    await diff.locator("summary").click()
    await expect(diff.locator("tbody tr")).to_have_count(501)
    await diff.get_by_role("button", name="Show 500 more of 99501 lines").click()
    await expect(diff.locator("tbody tr")).to_have_count(1001)


async def test_many_files_come_in_steps_and_not_all_are_unfolded(page: Page) -> None:
    changes = [{"path": f"{n}", "kind": "add", "diff": "x\n" * 100} for n in range(1000)]
    diff = await show_diff(page, changes)
    await expect(diff.locator(".file")).to_have_count(100)
    await expect(diff.locator(".file[open]")).to_have_count(12)
    await diff.get_by_role("button", name="Show 100 more of 900 files").press("Enter")
    await expect(diff.locator(".file")).to_have_count(200)


async def test_text_and_names_of_files_are_text(page: Page) -> None:
    path = "a\nb/<b>x</b>\u202e\x1b[2J"
    changes = [
        {"path": path, "kind": "update", "diff": "-\u200b<script>alert(1)</script>\n+" + "y" * 1_000_000}
    ]
    diff = await show_diff(page, changes)
    await expect(diff.locator(".path")).to_have_text("a\nb/<b>x</b><U+202E>␛[2J")
    assert await rows_of(diff.locator(".file")) == [
        "·||-<U+200B><script>alert(1)</script>",
        "|·|+" + "y" * 2000 + "… (998000 more)",
    ]
    diff = await show_diff(page, changes, exact=True)
    await expect(diff.locator(".path mark")).to_have_text(["U+202E", "U+001B"])
    assert len((await rows_of(diff.locator(".file")))[1]) == 1_000_004


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_diff_has_enough_contrast_and_names(page: Page, scheme: Any) -> None:
    await page.emulate_media(color_scheme=scheme)
    diff = await show_diff(page, GIT)
    for form in ("Unified", "Split"):
        await diff.get_by_role("button", name=form).click()
        await diff.get_by_role("button", name="Comment on line 2, added").click()
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [360, 3840])
async def test_a_diff_is_not_wider_than_the_window(page: Page, width: int) -> None:
    await page.set_viewport_size({"width": width, "height": 800})
    diff = await show_diff(page, GIT.replace("hello", "h" * 5000))
    for form in ("Unified", "Split"):
        await diff.get_by_role("button", name=form).click()
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
    await page.set_viewport_size({"width": 1280, "height": 800})
