"""The card of an agent's question: all that is asked can be seen, and nothing is answered by mistake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Locator, Page, expect

from tests.page.items import done, mount, shown_page
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

expect.set_options(timeout=PATIENCE * 1000)

COMMAND = {"command": "make clean", "cwd": "/home/me/project", "reason": "To begin anew."}
RULE = "Allowed without a question while this session exists: the command make clean."


def ask(name: str = "run_command", arguments: Any = COMMAND, **fields: Any) -> dict[str, Any]:
    return {
        "request_id": "mcpr_1",
        "turn_id": "turn_1",
        "name": name,
        "arguments": arguments,
        "message": "The agent wants to do it.",
        "server_label": "agent",
        "digest": "abc",
        "rule": None,
        "form": False,
        **fields,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    async with shown_page(browser, tmp_path_factory.mktemp("asks")) as page:
        await page.clock.install()
        yield page


async def show(page: Page, asked: dict[str, Any], *, status: int = 202) -> Locator:
    """Shows a card, whose answers the server takes, or refuses with a status."""
    place = await mount(page)
    await page.evaluate(
        """async ([asked, status]) => {
          const { askCard } = await import("/ui/asks.js");
          window.done = [];
          const answer = async (given) => {
            window.done.push(given);
            if (status >= 400) throw Object.assign(new Error("The server says no."), { status });
          };
          document.querySelector("#main").append(askCard(asked, answer));
        }""",
        [asked, status],
    )
    return place.get_by_role("region", name="Question of the agent")


async def ready(page: Page) -> None:
    await page.clock.run_for(1000)


async def press(card: Locator, name: str) -> None:
    """Presses a button, whether it takes the press or not."""
    await card.get_by_role("button", name=name, exact=True).click(force=True)


async def test_a_command_is_allowed_once_with_the_digest_of_what_was_shown(page: Page) -> None:
    card = await show(page, ask())
    await expect(card.get_by_label("Command", exact=True)).to_have_text("make clean")
    await expect(card.get_by_label("In the folder")).to_have_text("/home/me/project")
    await expect(card.get_by_label("The agent's reason")).to_have_text("To begin anew.")
    await expect(card.get_by_role("button", name="Allow this kind")).to_have_count(0)
    await ready(page)
    await press(card, "Allow once")
    await expect(card.get_by_role("status")).to_have_text("Allowed.")
    await press(card, "Decline")
    assert await done(page) == [{"decision": "approve", "digest": "abc"}]


async def test_a_rule_is_shown_before_it_is_made(page: Page) -> None:
    card = await show(page, ask(rule=RULE))
    await expect(card.get_by_text(RULE)).to_be_visible()
    await ready(page)
    await press(card, "Allow this kind for the session")
    assert await done(page) == [{"decision": "approve", "for_session": True, "digest": "abc"}]


async def test_a_question_is_declined_with_words(page: Page) -> None:
    card = await show(page, ask())
    await card.get_by_label("Words for the agent").fill("Use another folder.\n")
    await ready(page)
    await press(card, "Decline")
    await expect(card.get_by_role("status")).to_have_text("Declined.")
    assert await done(page) == [{"decision": "deny", "digest": "abc", "message": "Use another folder."}]


async def test_every_character_of_a_command_can_be_seen(page: Page) -> None:
    hidden = (
        "rm\u200b -rf\u00a0\u202e/\u2066 \x1b[8m\r\u200d\ufe0f \U000e0041\u00ad\u3164 <U+200B>\n\tend"
        + "x" * 1_000_000
    )
    card = await show(page, ask(arguments={**COMMAND, "command": hidden, "cwd": "/tmp/\u200bx"}))
    marks = [
        "U+200B",
        "U+00A0",
        "U+202E",
        "U+2066",
        "U+001B",
        "U+000D",
        "U+200D",
        "U+FE0F",
        "U+E0041",
        "U+00AD",
        "U+3164",
    ]
    command = card.get_by_label("Command", exact=True)
    await expect(command.locator("mark")).to_have_text(marks)
    text = str(await command.evaluate("(each) => each.textContent"))
    assert text.startswith("rmU+200B -rfU+00A0U+202E/U+2066 U+001B[8mU+000D")
    assert text.endswith(" <U+200B>\n\tend" + "x" * 1_000_000)
    await expect(card.get_by_label("In the folder").locator("mark")).to_have_text("U+200B")


async def test_more_hidden_characters_than_marks_can_be_seen_too(page: Page) -> None:
    card = await show(page, ask(arguments={"command": "a\u200b" * 100_000}))
    text = str(await card.get_by_label("Command", exact=True).evaluate("(each) => each.textContent"))
    assert "\u200b" not in text
    assert text.count("U+200B") == 100_000


async def test_a_patch_is_shown_as_the_diff_of_each_file(page: Page) -> None:
    changes = [{"path": "/p/\u202ea.py", "kind": "update", "diff": "@@ -1 +1 @@\n-one\u200b\n+two\n"}]
    card = await show(page, ask("apply_patch", {"changes": changes, "reason": None}))
    await expect(card.locator(".path")).to_have_text("/p/U+202Ea.py")
    await expect(card.locator(".text")).to_have_text(["@@ -1 +1 @@", "oneU+200B", "two"])
    await expect(card.get_by_role("button", name="Comment")).to_have_count(0)


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (ask("permissions", {"tool": "WebFetch", "arguments": {"url": "x"}, "reason": None}), ["Tool", "Arguments"]),
        (ask("drop", {"table": "x"}, server_label="db"), ["Tool of the MCP server db", "Arguments"]),
        (ask("run_command", {"command": "x"}, server_label="db"), ["Tool of the MCP server db", "Arguments"]),
    ],
)  # fmt: skip
async def test_any_other_tool_is_shown_with_its_arguments(
    page: Page, asked: dict[str, Any], names: list[str]
) -> None:
    card = await show(page, asked)
    for name in names:
        await expect(card.get_by_label(name, exact=True)).to_be_visible()
    await expect(card.get_by_label("Arguments")).to_contain_text('"x"')


async def test_the_card_takes_no_focus(page: Page) -> None:
    await mount(page)
    before = await page.evaluate("document.activeElement.tagName")
    await show(page, ask())
    await ready(page)
    assert await page.evaluate("document.activeElement.tagName") == before


async def test_a_press_within_half_a_second_after_it_appears_is_ignored(page: Page) -> None:
    await page.clock.pause_at(4_000_000_000)
    card = await show(page, ask())
    await page.clock.run_for(400)
    await press(card, "Allow once")
    button = card.get_by_role("button", name="Allow once")
    await button.focus()
    for key in ("Enter", "Space"):
        await page.keyboard.press(key)
    assert await done(page) == []
    await page.clock.run_for(200)
    await expect(button).to_have_attribute("aria-disabled", "false")
    await page.keyboard.press("Enter")
    await expect(card.get_by_role("status")).to_have_text("Allowed.")
    await page.clock.resume()


async def test_a_press_after_the_card_moved_or_its_tab_came_back_is_ignored(page: Page) -> None:
    await page.clock.pause_at(5_000_000_000)
    card = await show(page, ask())
    await page.clock.run_for(1000)
    await page.evaluate("document.querySelector('#main').prepend('One more line of the conversation.')")
    await press(card, "Allow once")
    assert await done(page) == []
    await page.clock.run_for(1000)
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await press(card, "Allow once")
    assert await done(page) == []
    await page.clock.run_for(1000)
    await press(card, "Allow once")
    await expect(card.get_by_role("status")).to_have_text("Allowed.")
    await page.clock.resume()


async def test_a_press_that_began_too_early_is_ignored(page: Page) -> None:
    await page.clock.pause_at(6_000_000_000)
    card = await show(page, ask())
    await card.get_by_role("button", name="Decline").focus()
    await page.clock.run_for(100)
    await page.keyboard.down("Space")
    await page.clock.run_for(1000)
    await page.keyboard.up("Space")
    box = await card.get_by_role("button", name="Decline").bounding_box()
    assert box is not None
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await page.mouse.move(box["x"] + 5, box["y"] + 5)
    await page.mouse.down()
    await page.clock.run_for(1000)
    await page.mouse.up()
    assert await done(page) == []
    await page.keyboard.press("Space")
    await expect(card.get_by_role("status")).to_have_text("Declined.")
    await page.clock.resume()


@pytest.mark.parametrize(
    ("status", "told"), [(409, "It may have been answered elsewhere"), (403, "This key may not answer")]
)
async def test_a_refused_answer_is_told_and_not_sent_again(page: Page, status: int, told: str) -> None:
    card = await show(page, ask(), status=status)
    await ready(page)
    await press(card, "Allow once")
    await expect(card.get_by_role("status")).to_contain_text(told)
    await expect(card.get_by_role("status")).to_contain_text("The server says no.")
    await ready(page)
    await press(card, "Decline")
    assert len(await done(page)) == 1


async def test_an_answer_that_did_not_arrive_can_be_sent_again(page: Page) -> None:
    card = await show(page, ask(), status=503)
    for sent in (1, 2):
        await ready(page)
        await press(card, "Allow once")
        await expect(card.get_by_role("status")).to_contain_text("The answer was not taken")
        assert len(await done(page)) == sent


async def test_an_answer_elsewhere_is_told_before_the_card_goes(page: Page) -> None:
    await page.clock.pause_at(7_000_000_000)
    card = await show(page, ask())
    await page.clock.run_for(1000)
    await card.evaluate("(card) => card.dispatchEvent(new Event('answered'))")
    await expect(card.get_by_role("status")).to_contain_text("answered elsewhere")
    await press(card, "Allow once")
    assert await done(page) == []
    await page.clock.run_for(10_000)
    await expect(card).to_have_count(0)
    await page.clock.resume()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_card_has_names_and_enough_contrast(page: Page, scheme: Any) -> None:
    await page.emulate_media(color_scheme=scheme)
    changes = [{"path": "a\u202e", "kind": "add", "diff": "one\n"}]
    for asked in (ask(rule=RULE, message="x\u200by"), ask("apply_patch", {"changes": changes})):
        card = await show(page, asked)
        await card.get_by_text("As JSON").click()
        await ready(page)
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [360, 3840])
async def test_a_card_is_not_wider_than_the_window(page: Page, width: int) -> None:
    await page.set_viewport_size({"width": width, "height": 800})
    await show(page, ask(rule=RULE, arguments={"command": "x" * 5000, "cwd": "/" + "y" * 500}))
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    await page.set_viewport_size({"width": 1280, "height": 800})


FIELDS = [
    {"name": "city", "type": "text", "title": "City <b>\u202e", "required": True, "default": "Rome"},
    {"name": "nights", "type": "integer", "title": "Nights", "minimum": 1},
    {"name": "class", "type": "choice", "title": "Class", "options": [{"value": "2", "title": "Second"}]},
    {"name": "meals", "type": "choices", "title": "Meals", "options": [{"value": "d", "title": "dinner"}]},
    {"name": "window", "type": "boolean", "title": "Window", "default": True},
]


async def test_a_form_is_filled_in_with_the_keyboard(page: Page) -> None:
    card = await show(page, ask("ask_user", {"message": "Where to?", "fields": FIELDS}, form=True))
    await ready(page)
    city = card.get_by_label("City")
    await expect(city).to_have_value("Rome")
    await expect(card.get_by_text("City <b>U+202E (required)")).to_be_visible()
    await city.focus()
    await page.keyboard.press("Control+A")
    await page.keyboard.type("Oslo")
    await page.keyboard.press("Tab")
    await page.keyboard.type("3")
    await page.keyboard.press("Tab")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Space")
    await expect(card.get_by_label("Class")).to_have_value("0")
    assert not (await Axe().run(page)).response["violations"]
    await card.get_by_role("button", name="Send").focus()
    await ready(page)
    await page.keyboard.press("Enter")
    await expect(card.get_by_role("status")).to_have_text("Sent.")
    content = {"city": "Oslo", "nights": 3, "class": "2", "meals": ["d"], "window": True}
    assert await page.evaluate("window.done") == [
        {"decision": "approve", "digest": "abc", "content": content}
    ]


async def test_what_is_left_empty_is_not_sent_and_a_refusal_can_be_mended(page: Page) -> None:
    card = await show(
        page, ask("ask_user", {"message": "Where to?", "fields": FIELDS[:3]}, form=True), status=400
    )
    await ready(page)
    await card.get_by_label("City").fill("")
    await press(card, "Send")
    await expect(card.get_by_role("status")).to_contain_text("The server says no.")
    assert (await page.evaluate("window.done"))[-1]["content"] == {}
    await ready(page)
    await press(card, "Decline")
    assert "content" not in (await page.evaluate("window.done"))[-1]


async def test_a_page_to_open_is_a_link_to_another_tab_that_knows_nothing_of_this_one(page: Page) -> None:
    card = await show(
        page, ask("open_url", {"message": "Sign in.", "url": "https://example.com/?a=1"}, form=True)
    )
    await expect(card.get_by_label("Address")).to_have_text("https://example.com/?a=1")
    link = card.get_by_role("link")
    assert await link.get_attribute("href") == "https://example.com/?a=1"
    assert (await link.get_attribute("target"), await link.get_attribute("rel")) == (
        "_blank",
        "noopener noreferrer",
    )
    card = await show(page, ask("open_url", {"message": "Sign in.", "url": "javascript:alert(1)"}, form=True))
    await expect(card.get_by_role("link")).to_have_count(0)


async def test_the_call_of_a_tool_that_is_named_as_a_form_is_shown_with_its_arguments(page: Page) -> None:
    arguments = {"message": "Where to?", "fields": FIELDS, "command": "rm"}
    card = await show(page, ask("ask_user", arguments))
    await expect(card.get_by_role("button", name="Send")).to_have_count(0)
    await expect(card.get_by_label("Arguments")).to_contain_text('"command": "rm"')
