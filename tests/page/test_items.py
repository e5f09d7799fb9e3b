"""The items of a conversation on the page: what each shows, how it grows, and what a hostile agent cannot do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Locator, Page, expect

from tests.page.items import done, renew, send, show_items, shown_page
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

expect.set_options(timeout=PATIENCE * 1000)

PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


def item(type: str, **fields: Any) -> dict[str, Any]:
    return {"type": type, "id": "i", "turn_id": "turn_1", "status": "completed", **fields}


def said(text: str, role: str = "assistant", **fields: Any) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return item("message", role=role, content=[{"type": kind, "text": text}] if text else [], **fields)


def ran(command: str = "ls", output: str | None = "", **fields: Any) -> dict[str, Any]:
    told = {"cwd": "/home/me", "exit_code": 0, "duration_ms": 1200, **fields}
    return item("command_execution", command=command, output=output, **told)


def delta(kind: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"agent.session.turn.{kind}", "item_id": "i", "delta": text, **fields}


def printed(text: str) -> dict[str, Any]:
    return {"type": "agent.output.command_execution_output.delta", "item_id": "i", "delta": text}


async def unfold(shown: Locator) -> None:
    await shown.locator("details").evaluate_all("(all) => all.forEach((each) => (each.open = true))")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    async with shown_page(browser, tmp_path_factory.mktemp("items")) as page:
        yield page


async def test_a_message_of_a_person_is_text_with_its_images(page: Page) -> None:
    image = {"type": "input_image", "image_url": PIXEL}
    web = {"type": "input_image", "image_url": "http://x.example/a.png"}
    message = said("*No* Markdown.\n <b>x</b>", "user")
    message["content"] += [image, web, {"type": "input_file", "filename": "a.pdf"}]
    shown = (await show_items(page, message)).get_by_role("article", name="You")
    await expect(shown.locator(".plain")).to_have_text("*No* Markdown.\n <b>x</b>")
    await expect(shown.get_by_role("img")).to_have_count(1)
    await expect(shown.locator(".attached")).to_have_text(["Image: http://x.example/a.png", "File: a.pdf"])
    await shown.get_by_role("button", name="Edit and send again").click()
    await shown.get_by_role("button", name="Fork from here").click()
    assert await done(page) == [["edit", "i", "*No* Markdown.\n <b>x</b>"], ["fork", "i"]]


async def test_a_message_of_the_agent_grows_as_markdown(page: Page) -> None:
    shown = (await show_items(page, said("", status="in_progress"))).get_by_role(
        "article", name="The agent", include_hidden=True
    )
    await expect(shown).to_be_hidden()
    await send(page, "i", *(delta("output_text.delta", each) for each in ("A *wo", "rd*", "\n\n- one")))
    await expect(shown.locator("em")).to_have_text("word")
    await expect(shown.locator("li")).to_have_text("one")
    await expect(shown).to_have_attribute("aria-busy", "true")
    await renew(page, said("A *word*\n\n- one\n- two"))
    await expect(shown.locator("li")).to_have_text(["one", "two"])
    await expect(shown).to_have_attribute("aria-busy", "false")
    await renew(page, said("A *word*", status="incomplete"))
    await expect(shown.get_by_text("cut")).to_be_visible()


async def test_deltas_are_drawn_once_a_frame(page: Page) -> None:
    await show_items(page, said("", status="in_progress"))
    drawn = await page.evaluate(
        """async () => {
          let drawn = 0;
          const observer = new MutationObserver(() => (drawn += 1));
          observer.observe(document.querySelector("#main"), { subtree: true, childList: true });
          for (let n = 0; n < 1000; n++) {
            window.views.i.delta({ type: "agent.session.turn.output_text.delta", delta: "word " });
            await null;
          }
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          return drawn;
        }"""
    )
    assert drawn == 1
    await expect(page.locator("article p")).to_have_text("word " * 1000)


async def test_a_command_shows_its_output_as_it_comes_and_how_it_ended(page: Page) -> None:
    running = ran("make test", None, status="in_progress", exit_code=None, duration_ms=None)
    shown = (await show_items(page, running)).get_by_role("article", name="Command make test")
    await expect(shown).to_contain_text("make test")
    await expect(shown.locator(".facts")).to_have_text("at work · in /home/me")
    await send(page, "i", printed("one\n"), printed("two\x1b[31m\n"))
    await expect(shown.get_by_label("Output")).to_have_text("one\ntwo␛[31m\n")
    await renew(page, ran("make test", "one\ntwo\nthree\n", status="failed", exit_code=2))
    await expect(shown.get_by_label("Output")).to_have_text("one\ntwo\nthree\n")
    await expect(shown.locator(".facts")).to_have_text("failed · exit code 2 · 1.2 s · in /home/me")


async def test_a_long_output_is_folded_to_its_end(page: Page) -> None:
    lines = [f"line {n}\n" for n in range(5000)]
    shown = await show_items(page, ran("x", None, status="in_progress", exit_code=None))
    output = shown.get_by_label("Output")
    await send(page, "i", *map(printed, lines))
    await expect(output).to_have_text("".join(lines[-20:]))
    await expect(shown.get_by_text("The last 20 of 5000 lines")).to_be_visible()
    await shown.get_by_role("button", name="Show all").click()
    await expect(output).to_have_text("".join(lines))
    await send(page, "i", printed("more\n"))
    await expect(output).to_have_text("".join([*lines, "more\n"]))
    await shown.get_by_role("button", name="Fold").click()
    await expect(output).to_have_text("".join([*lines[-19:], "more\n"]))
    await renew(page, ran("x", "short"))
    await expect(output).to_have_text("short")


async def test_a_change_of_files_is_a_diff_whose_lines_take_comments(page: Page) -> None:
    output = "update a b.py\n@@ -1 +1 @@\n-one\n+update b.py\nadd c\nd.txt\nupdate x\n"
    shown = await show_items(page, ran("apply_patch a b.py c\nd.txt", output, exit_code=None))
    await expect(shown.get_by_text("Changed 2 files")).to_be_visible()
    await expect(shown.locator(".path")).to_have_text(["a b.py", "c\nd.txt"])
    await expect(shown.locator(".counts")).to_have_text(["+1 −1", "+1 −0"])
    await shown.get_by_role("button", name="Comment on line 1, added").first.click()
    await page.keyboard.type("No.")
    await shown.get_by_role("button", name="Add to the next message").click()
    assert await done(page) == [["comment", "a b.py", 1, "+update b.py\nNo."]]


async def test_a_change_that_was_declined_is_shown_as_wanted(page: Page) -> None:
    shown = await show_items(page, ran("apply_patch a", None, status="in_progress"))
    await expect(shown.get_by_text("apply_patch a")).to_be_visible()
    await renew(page, ran("apply_patch a", "update a\n-one\n", status="failed"))
    await expect(shown.get_by_text("Wanted to change a file")).to_be_visible()


async def test_a_command_that_applies_a_patch_itself_is_a_command(page: Page) -> None:
    shown = await show_items(page, ran("apply_patch <<EOF", "Success. Updated the following files:\nM a\n"))
    await expect(shown.get_by_label("Output")).to_contain_text("Success.")


async def test_reasoning_is_folded_and_grows_in_parts(page: Page) -> None:
    shown = (await show_items(page, item("reasoning", summary=[], status="in_progress"))).locator("article")
    await expect(shown).to_be_hidden()
    kind = "reasoning_summary_text.delta"
    await send(page, "i", delta(kind, "**One**", summary_index=0), delta(kind, "Two", summary_index=1))
    await expect(shown.get_by_text("One")).to_be_hidden()
    await shown.get_by_text("Reasoning …").click()
    await expect(shown.locator("p")).to_have_text(["One", "Two"])
    await renew(page, item("reasoning", summary=[{"type": "summary_text", "text": "Three"}]))
    await expect(shown.locator("p")).to_have_text(["Three"])


CALLS = [
    (item("web_search_call", action={"type": "search", "query": "weather <b>"}), "Searched the web weather <b>"),
    (item("mcp_call", server_label="git", name="log", arguments={"n": 3}, output="abc", error=None), "abc"),
    (item("mcp_call", server_label="git", name="log", output=None, error="no", status="failed"), "failed"),
    (item("function_call", call_id="c", name="get_weather", arguments={"city": "Rome"}), '"city": "Rome"'),
    (item("function_call_output", call_id="c", output=[{"type": "input_text", "text": "sunny"}], error=None), "sunny"),
    (item("function_call_output", call_id="c", output="rain", error="late"), "late"),
    (item("create_subagent_call", agent_id="", content=[{"type": "output_text", "text": "Look."}], model="m"), "Look."),
    (item("interrupt_subagent_call", sender_agent_id="", recipient_agent_id="agent_1"), "Interrupted a subagent"),
    (item("agent_message", sender_agent_id="agent_1", content=[{"type": "output_text", "text": "Done."}]), "Done."),
    (item("from_the_future", what=["<b>"]), '"<b>"'),
    (item("constructor"), '"constructor"'),
]  # fmt: skip


@pytest.mark.parametrize(("call", "told"), CALLS, ids=[f"{call['type']}-{told}" for call, told in CALLS])
async def test_a_call_is_told(page: Page, call: dict[str, Any], told: str) -> None:
    shown = (await show_items(page, call)).locator("article")
    if await shown.locator("summary").count():
        await shown.locator("summary").click()
    await expect(shown).to_contain_text(told)
    await renew(page, call)
    await expect(shown.get_by_text(told).last).to_be_visible()


async def test_a_subagent_is_opened(page: Page) -> None:
    wait = item("wait_for_subagents_call", sender_agent_id="", recipient_agent_ids=["agent_1", "agent_2"])
    shown = await show_items(page, wait)
    await shown.get_by_role("button", name="Open agent_2").click()
    assert await done(page) == [["openSubagent", "agent_2"]]


HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>\x1b[2J\u202e\u200b " + "x" * 1_000_000


@pytest.mark.parametrize(
    "hostile",
    [
        said(HOSTILE),
        said(HOSTILE, "user"),
        ran(HOSTILE, HOSTILE),
        ran("apply_patch x", f"update x\n+{HOSTILE}\n"),
        item("reasoning", summary=[{"type": "summary_text", "text": HOSTILE}]),
        item(
            "mcp_call", server_label=HOSTILE, name=HOSTILE, arguments=HOSTILE, output=HOSTILE, error=HOSTILE
        ),
        item("web_search_call", action={"query": HOSTILE}),
        item(HOSTILE, x=HOSTILE),
        item("agent_message", content=[{"type": "output_text", "text": HOSTILE}], sender_agent_id=HOSTILE),
    ],
    ids=["agent", "person", "command", "diff", "reasoning", "mcp", "search", "unknown", "subagent"],
)
async def test_what_a_hostile_agent_says_is_text(page: Page, hostile: dict[str, Any]) -> None:
    shown = await show_items(page, hostile)
    await unfold(shown)
    await expect(shown.locator("img, script")).to_have_count(0)
    text = await shown.inner_text()
    assert "<script>alert(1)</script>␛[2J<U+202E><U+200B>" in text
    assert not {"\x1b", "\u202e", "\u200b"} & set(text)


SEVERAL = [
    said("Do *it*.", "user"),
    said("# Done\n\n| a |\n|---|\n| b |\n\n- [x] c\n\n```py\nd\n```\n\n[e](http://x.example/)"),
    ran("make", "one\n" * 100, exit_code=1, status="failed"),
    ran("apply_patch a", "update a\n@@ -1 +1 @@\n-one\n+two\n"),
    item("reasoning", summary=[{"type": "summary_text", "text": "Hm."}]),
    *(call for call, _ in CALLS),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_items_have_names_and_enough_contrast(page: Page, scheme: Any) -> None:
    await page.emulate_media(color_scheme=scheme)
    shown = await show_items(page, *({**each, "id": f"i{n}"} for n, each in enumerate(SEVERAL)))
    await unfold(shown)
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [360, 3840])
async def test_items_are_not_wider_than_the_window(page: Page, width: int) -> None:
    await page.set_viewport_size({"width": width, "height": 800})
    shown = await show_items(page, *({**each, "id": f"i{n}"} for n, each in enumerate(SEVERAL)))
    await unfold(shown)
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    await page.set_viewport_size({"width": 1280, "height": 800})
