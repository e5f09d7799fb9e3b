"""The page in a real browser: every pane, and what is done in it."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Route, expect

from codex_proxy.core.keys import NO_KEY_OWNER
from tests.http.serving import Proxy, fake_agent, proxy_of, user, worker_proxy
from tests.page.conftest import open_page, page_server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

expect.set_options(timeout=PATIENCE * 1000)
PANES = ("now", "turns", "stored", "playground", "usage", "connect", "connect/zed", "stored/conversations")
APIS = {"Chat Completions": "chat", "Responses": "responses", "Messages": "messages"}


async def store(proxy: Proxy, **fields: str) -> str:
    """Stores a response, and returns its id."""
    answer = await proxy.send("POST", "/v1/responses", {"model": "codex-5", "input": "Hello.", **fields})
    return str(answer.body["id"])


async def is_drawn(page: Page) -> None:
    await expect(page.locator("main > *").first).to_be_visible()


async def ask(page: Page, prompt: str, api: str = "chat") -> None:
    """Sends a prompt in the playground."""
    await page.get_by_label("API").select_option(api)
    await page.get_by_label("Prompt", exact=True).fill(prompt)
    await page.get_by_role("button", name="Send").click()


@pytest.mark.sampled(every=19)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("pane", PANES)
async def test_a_pane_has_names_for_screen_readers_and_enough_contrast(
    browser: Browser, tmp_path: Path, pane: str, scheme: str
) -> None:
    async with page_server(tmp_path) as proxy:
        await proxy.ask(user())
        await store(proxy)
        async with open_page(browser, proxy, pane, color_scheme=scheme) as page:
            await is_drawn(page)
            found = await Axe().run(page)
            assert found.violations_count == 0, found.generate_report()


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [360, 3840])
async def test_no_pane_is_wider_than_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    async with page_server(tmp_path) as proxy:
        await store(proxy)
        async with open_page(browser, proxy, viewport={"width": width, "height": 800}) as page:
            for pane in PANES:
                await page.goto(f"{proxy.url}/#{pane}")
                await is_drawn(page)
                assert await page.evaluate("document.documentElement.scrollWidth") <= width, pane


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("title", APIS)
async def test_the_playground_streams_an_answer_of_each_api(
    browser: Browser, tmp_path: Path, title: str
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:
        await ask(page, "Hello.", APIS[title])
        await expect(page.locator(".answer[aria-busy=false]")).to_have_text(
            "Hello from the deterministic fake agent."
        )
        await expect(page.get_by_role("status").last).to_contain_text("tokens in")
        await page.get_by_text("Events:").click()
        await expect(page.get_by_label("Events")).to_contain_text("deterministic")


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("title", APIS)
async def test_a_call_of_a_tool_is_answered_by_hand(
    browser: Browser, tmp_path: Path, title: str, stream: bool
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:
        await page.get_by_text("System prompt, tools").click()
        await page.get_by_role("button", name="Example tool").click()
        await page.get_by_label("Stream").set_checked(stream)
        await ask(page, "What is the weather in Rome?", APIS[title])
        await page.get_by_label("Output of get_weather").fill("sunny")
        await page.get_by_role("button", name="Answer the call").click()
        await expect(page.locator(".answer").get_by_text("The tool said: sunny")).to_be_visible()


@pytest.mark.exhaustive
async def test_two_columns_answer_one_prompt(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:
        await page.get_by_role("button", name="Add a column").click()
        await page.get_by_label("Prompt", exact=True).fill("Hello.")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_text("Hello from the deterministic fake agent.", exact=True)).to_have_count(
            2
        )


async def test_a_running_turn_is_a_row_and_can_be_cancelled(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "now") as page:
        await expect(page.get_by_text("No turn is running.")).to_be_visible()
        asked = asyncio.create_task(proxy.ask(user("[[fake:text misbehave=hang]]")))
        row = page.get_by_role("row").filter(has_text="Chat Completions")
        await expect(row).to_contain_text("writing the answer")
        await page.get_by_role("button", name="Cancel turn 1").click()
        await asyncio.wait_for(asked, PATIENCE)
        await expect(row).to_have_count(0)
        await expect(page.get_by_text("No turn is running.")).to_be_visible()
        await page.goto(f"{proxy.url}/#turns/1")
        await expect(page.get_by_text("turn ended")).to_be_visible()


@pytest.mark.exhaustive
async def test_the_processes_are_those_of_the_turns_that_run(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "now") as page:
        await expect(page.get_by_text("none runs")).to_be_visible()
        asked = asyncio.create_task(proxy.ask(user("[[fake:text misbehave=hang]]")))
        table = page.get_by_role("table", name="Processes of fake")
        await expect(table.get_by_role("row")).to_have_count(2)
        await page.get_by_role("button", name="Cancel turn 1").click()
        await asyncio.wait_for(asked, PATIENCE)
        await expect(page.get_by_text("none runs")).to_be_visible()


async def test_a_turn_has_the_name_of_the_model_that_was_asked_for_and_of_the_one_that_answered(
    browser: Browser, tmp_path: Path
) -> None:
    nameless = fake_agent({"FAKE_CODEX_MODE": "text"})  # it lists no model
    async with proxy_of(nameless, tmp_path, ui=True) as proxy, open_page(browser, proxy, "now") as page:
        asked = asyncio.create_task(proxy.ask(user("[[fake:text misbehave=hang]]", model="codex-5-high")))
        await expect(page.get_by_role("cell", name="codex-5-high gpt-5")).to_be_visible()
        await page.get_by_role("button", name="Cancel turn 1").click()
        await asyncio.wait_for(asked, PATIENCE)
        await page.goto(f"{proxy.url}/#turns")
        await expect(page.get_by_role("cell", name="codex-5-high gpt-5")).to_be_visible()


async def test_a_turn_opens_as_a_timeline(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await proxy.ask(user("[[fake:activity]]"))
        await page.get_by_role("link", name="Turns").click()
        await page.get_by_role("link", name="1", exact=True).click()
        for event in ("first word", "item started", "model call completed", "turn ended"):
            await expect(page.locator(".timeline").get_by_text(event).first).to_be_visible()


@pytest.mark.exhaustive
async def test_with_several_workers_the_page_says_whose_turns_it_shows_and_finds_the_turn_of_another(
    browser: Browser, tmp_path: Path
) -> None:
    async with worker_proxy(tmp_path, 2) as proxy, open_page(browser, proxy, "now") as page:
        await expect(page.get_by_text("the turns of worker 2 alone")).to_be_visible()
        await expect(page.get_by_text("Agents of worker 2")).to_be_visible()
        await proxy.ask(user())
        misses = 3

        async def of_any_worker(route: Route) -> None:
            nonlocal misses
            misses -= 1
            await (route.continue_() if misses < 0 else route.fulfill(status=404, json={"error": {}}))

        await page.route("**/ui/api/turns/2000001", of_any_worker)
        await page.get_by_role("link", name="Turns").click()
        await expect(page.get_by_text("the turns of worker 2 alone")).to_be_visible()
        await page.get_by_role("link", name="2-1", exact=True).click()
        await expect(page.get_by_role("heading", name="Timeline")).to_be_visible()


async def test_a_wrong_key_is_asked_for_again_and_the_right_one_stays_in_the_tab(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path, api_key="the-key") as proxy, open_page(browser, proxy, "now") as page:
        for given in ("wrong", "the-key"):
            await page.get_by_label("Key").fill(given)
            await page.get_by_role("button", name="Use this key").click()
            if given == "wrong":
                await expect(page.get_by_role("alert")).to_be_visible()
        await expect(page.get_by_role("heading", name="Agents")).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("heading", name="Agents")).to_be_visible()
        assert await page.evaluate("localStorage.length + document.cookie.length") == 0


@pytest.mark.exhaustive
async def test_a_server_that_goes_and_comes_back_is_found_again(browser: Browser, tmp_path: Path) -> None:
    async with AsyncExitStack() as window:
        async with page_server(tmp_path) as proxy:
            page = await window.enter_async_context(open_page(browser, proxy, "now"))
            await expect(page.get_by_text("live", exact=True)).to_be_visible()
        await expect(page.get_by_text("no connection, trying again")).to_be_visible()
        async with page_server(tmp_path, port=proxy.server.port):
            await expect(page.get_by_text("live", exact=True)).to_be_visible()


HOSTILE = (
    "<script>document.title='x'</script><img src=x onerror=document.title='x'>\u202edesrever\u202c\u0007"
)


async def test_a_hostile_answer_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:
        say = HOSTILE.replace('"', '\\"').replace("\u0007", "\\u0007")
        await ask(page, f'[[fake:text say="{say}"]]')
        answer = page.locator(".answer[aria-busy=false]")
        await expect(answer).to_contain_text("<script>")
        await expect(answer).to_contain_text("<U+202E>desrever<U+202C>\u2407")
        assert await answer.locator("*").count() == 0
        await expect(page).to_have_title(re.compile("Playground"))


@pytest.mark.exhaustive
async def test_a_fast_stream_of_thousands_of_events_does_not_freeze_the_page(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:
        await ask(page, "[[fake:count n=5000]]")
        await page.get_by_text("Events:").click()
        await expect(page.locator(".answer[aria-busy=false]")).to_be_visible()
        await expect(page.get_by_text(re.compile(r"Events: 5,0\d\d"))).to_be_visible()
        assert (
            await page.evaluate("document.querySelector('pre[aria-label=Events]').childNodes.length") <= 1000
        )


@pytest.mark.exhaustive
async def test_a_hidden_tab_asks_for_nothing(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "now") as page:
        await expect(page.get_by_text("live", exact=True)).to_be_visible()
        hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
        change = "document.dispatchEvent(new Event('visibilitychange'))"
        async with page.expect_event("requestfailed", lambda request: request.url.endswith("/ui/api/live")):
            await page.evaluate(hide % "true" + change)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await proxy.ask(user())
        assert asked == []
        async with page.expect_request("**/ui/api/live"):
            await page.evaluate(hide % "false" + change)


async def test_a_stored_response_is_found_by_its_text_and_deleted(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "stored") as page:
        first = await store(proxy)
        second = await store(proxy, input='[[fake:text say="A rare word."]]', previous_response_id=first)
        await page.get_by_role("searchbox").fill("rare WORD")
        await page.get_by_role("button", name="Search").click()
        await expect(page.get_by_role("article")).to_have_count(1)
        await page.get_by_role("link", name=second).click()
        await expect(page.get_by_role("link", name=first)).to_be_visible()
        page.once("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("article")).to_have_count(1)
        assert (await proxy.send("GET", f"/v1/responses/{second}")).status == 404


@pytest.mark.exhaustive
async def test_a_conversation_is_found_by_its_metadata_read_and_deleted(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "stored") as page:
        ids = [
            (await proxy.send("POST", "/v1/conversations", {"metadata": {"topic": topic}})).body["id"]
            for topic in ("a trip", "a meal")
        ]
        await store(proxy, conversation=ids[0])
        await page.get_by_role("link", name="Conversations").click()
        await expect(page.get_by_role("article")).to_have_count(2)
        await page.get_by_role("searchbox").fill("TRIP")
        await page.get_by_role("button", name="Search").click()
        await expect(page.get_by_role("article")).to_have_count(1)
        await page.get_by_role("link", name=ids[0]).click()
        for text in ("Hello.", "Hello from the deterministic fake agent."):
            await expect(page.get_by_text(text, exact=True)).to_be_visible()
        page.once("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("link", name=ids[1])).to_be_visible()
        assert (await proxy.send("GET", f"/v1/conversations/{ids[0]}")).status == 404


@pytest.mark.exhaustive
async def test_the_recording_of_a_turn_is_copied(browser: Browser, tmp_path: Path) -> None:
    allowed = ["clipboard-read", "clipboard-write"]
    async with (
        page_server(tmp_path) as proxy,
        open_page(browser, proxy, permissions=allowed) as page,
    ):
        await proxy.ask(user())
        file = tmp_path / "recording.jsonl"
        file.write_text('{"cassette":2}\n')
        records = proxy.server.runs.records
        assert records is not None
        (record,) = records.of_owner(NO_KEY_OWNER)
        record.recording = file
        await page.goto(f"{proxy.url}/#turns/1")
        await page.get_by_role("button", name="Copy as cassette").click()
        await expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert await page.evaluate("navigator.clipboard.readText()") == file.read_text()


@pytest.mark.exhaustive
async def test_the_page_works_by_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:
        await is_drawn(page)
        await page.keyboard.press("Tab")
        await expect(page.get_by_text("Skip to content")).to_be_focused()
        await page.get_by_label("Prompt", exact=True).focus()
        await page.keyboard.type("Hello.")
        await page.keyboard.press("Control+Enter")
        await expect(page.locator(".answer[aria-busy=false]")).to_contain_text("deterministic")
