"""The page's sessions in a real browser: what a person does with them."""

from __future__ import annotations

import json
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, FilePayload, Locator, Page, Route, expect

from tests.access.keyed import key_of, keyed_proxy
from tests.http.serving import until
from tests.page.cards import press
from tests.page.conftest import browser, open_page, page_server
from tests.page.test_copied import CLIPBOARD, output_of
from tests.parts.sessions.approving import ASKING, KEY
from tests.parts.sessions.driving import CANCEL, AgentsClient, message
from tests.parts.sessions.test_subagents import enabled
from tests.waiting import PATIENCE

__all__ = ["browser"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

expect.set_options(timeout=PATIENCE * 1000)
SAYS = "Hello from the deterministic fake agent."
HANGS = "[[fake:text misbehave=hang]]"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f6"
    "45400000000049454e44ae426082"
)


def item(page: Page, text: str) -> Locator:
    return page.locator(".entry").get_by_text(text)


async def say(page: Page, text: str) -> None:
    """Writes a message, and sends it by the keyboard."""
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")


async def begin(page: Page, text: str = "Hello.", answer: str = SAYS) -> str:
    """Begins a session by a message, and waits for the answer. Returns the session's id."""
    await say(page, text)
    await expect(page).to_have_url(re.compile("#sessions/sess_"))
    await expect(page.locator(".entry").get_by_text(answer)).to_be_visible()
    id: str = page.url.rpartition("/")[2]
    return id


async def ended(page: Page, how: str = "completed") -> None:
    await expect(page.locator(".turn-end").last).to_contain_text(how)


def entry(page: Page, title: str) -> Locator:
    return page.get_by_role("navigation", name="Sessions").get_by_role("link", name=title)


async def test_a_new_user_sees_a_conversation_first_and_gets_an_answer(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await expect(page.get_by_text("What shall the agent do?")).to_be_visible()
        await expect(page.get_by_text("There is no session yet.")).to_be_visible()
        await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
        id = await begin(page)
        await ended(page)
        await expect(entry(page, "Hello.")).to_have_attribute("aria-current", "page")
        await expect(page.get_by_text(f"fake · default · {tmp_path} · read-only")).to_be_visible()
        session = (await AgentsClient(proxy).get(f"/sessions/{id}"))["environment"]
        assert session["workspace_directory"] == str(tmp_path)
        await expect(page.get_by_text("tokens in", exact=False).first).to_be_visible()


async def test_an_answer_is_shown_while_it_is_written(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await begin(page, HANGS, "Hello")
        await expect(entry(page, "fake:text")).to_contain_text("working")
        await expect(page.get_by_text("working for")).to_be_visible()
        await page.get_by_role("button", name="Stop").click()
        await ended(page, "cancelled")
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        await until(lambda: proxy.server.runs.running == 0)


async def test_a_message_to_an_agent_at_work_goes_into_its_turn(browser: Browser, tmp_path: Path) -> None:
    release = tmp_path / "release"
    environment = {"STREAM_RELEASE_FILE": str(release)}
    async with (
        page_server(tmp_path, environment=environment, fake_dialect="app-server") as proxy,
        open_page(browser, proxy) as page,
    ):
        await begin(page, "[[fake:text hold=1]]", "Hello")
        await expect(page.get_by_role("button", name="Steer")).to_be_visible()
        await say(page, "Use another word.")
        await expect(page.get_by_role("button", name="Steer")).to_be_enabled()  # it has been taken
        release.write_text("")
        await expect(page.locator(".entry").get_by_text("Use another word.")).to_be_visible()
        await ended(page)
        await expect(page.locator(".turn")).to_have_count(1)


async def test_messages_that_wait_are_shown_until_their_turn_begins(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await begin(page, HANGS, "Hello")
        await say(page, "What comes next?")
        waiting = page.get_by_role("heading", name="Not read by the agent yet")
        await expect(waiting).to_be_visible()
        await expect(page.locator(".queued").get_by_text("What comes next?")).to_be_visible()
        await page.get_by_role("button", name="Stop").click()
        await expect(waiting).to_be_hidden()
        await expect(page.locator(".turn")).to_have_count(2)
        await ended(page)


async def test_a_session_is_renamed_found_archived_and_restored(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await begin(page, "The first one.")
        await page.get_by_role("link", name="New session").click()
        await begin(page, "The second one.")
        await page.get_by_role("button", name="Rename").click()
        await page.get_by_label("Title").fill("About <b>whales</b>")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=2)).to_have_text("About <b>whales</b>")
        await page.get_by_role("searchbox").fill("whales")
        await expect(entry(page, "The first one.")).to_have_count(0)
        await expect(entry(page, "whales")).to_be_visible()
        await page.get_by_role("searchbox").fill("")
        await expect(entry(page, "The first one.")).to_be_visible()
        await page.get_by_role("button", name="Archive").click()
        await expect(entry(page, "whales")).to_have_count(0)
        await expect(page.get_by_role("textbox", name="Message")).to_be_disabled()
        await page.get_by_label("Archived").check()
        await expect(entry(page, "whales")).to_be_visible()
        await page.get_by_role("button", name="Restore").click()
        await expect(entry(page, "whales")).to_have_count(0)
        await page.get_by_label("Archived").uncheck()
        await expect(entry(page, "whales")).to_be_visible()


async def test_a_reload_finds_the_session_and_what_was_written_again(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await begin(page, "The first one.")
        await page.get_by_role("textbox", name="Message").fill("Not sent yet.")
        await page.reload()
        await expect(page.locator(".entry").get_by_text(SAYS)).to_be_visible()
        await expect(page.get_by_role("textbox", name="Message")).to_have_value("Not sent yet.")
        await page.get_by_role("link", name="New session").click()
        await expect(page.get_by_role("textbox", name="Message")).to_have_value("")
        await page.go_back()
        await expect(page.get_by_role("textbox", name="Message")).to_have_value("Not sent yet.")


async def test_what_another_program_and_another_tab_do_appears_at_once(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        client = AgentsClient(proxy)
        id = await client.idle_session("From a program.")
        await entry(page, "From a program.").click()
        await expect(page.locator(".entry").get_by_text(SAYS)).to_be_visible()
        second = await page.context.new_page()
        await second.goto(f"{proxy.url}/#sessions/{id}")
        await expect(second.locator(".entry").get_by_text(SAYS)).to_be_visible()
        await client.send(id, message("[[fake:text say='Once more.']]"))
        for each in (page, second):
            await expect(each.locator(".entry").get_by_text("Once more.", exact=True)).to_be_visible()
        await say(second, "From the second tab.")
        await expect(page.locator(".entry").get_by_text("From the second tab.")).to_be_visible()
        assert await connections(page) == 1


async def test_a_tab_that_is_opened_during_an_answer_shows_its_beginning(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        id = await begin(page, HANGS, "Hello")
        second = await page.context.new_page()
        await second.goto(f"{proxy.url}/#sessions/{id}")
        await expect(second.locator(".entry").get_by_text("Hello", exact=True)).to_be_visible()


async def test_an_item_at_work_is_not_shown_as_cut(browser: Browser, tmp_path: Path) -> None:
    """The server stores it as incomplete when a later one is stored."""
    async with page_server(tmp_path) as proxy:
        client = AgentsClient(proxy)
        id = (await client.new_session(HANGS))["id"]

        async def with_open_item(route: Route) -> None:
            answer = await (await route.fetch()).json()
            text = {"type": "output_text", "text": "As far as it is."}
            for first in answer["data"][-1:]:
                opened = {**first, "id": "msg_open", "role": "assistant", "content": [text]}
                answer["data"].insert(0, {**opened, "status": "incomplete"})
            await route.fulfill(json=answer)

        async with open_page(browser, proxy) as page:
            await page.route("**/items?*", with_open_item)
            await page.goto(f"{proxy.url}/#sessions/{id}")
            shown = page.locator(".entry[data-id=msg_open] .item")
            await expect(shown).to_contain_text("As far as it is.")
            await expect(shown).to_have_attribute("aria-busy", "true")
            await client.send(id, CANCEL)
            await ended(page, "cancelled")
            await expect(shown.get_by_text("cut")).to_be_visible()


async def test_a_session_that_is_deleted_elsewhere_leaves_the_page(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        id = await begin(page)
        await ended(page)
        await AgentsClient(proxy).delete(f"/sessions/{id}")
        await expect(page.get_by_text("What shall the agent do?")).to_be_visible()
        await expect(page.get_by_text("There is no session yet.")).to_be_visible()


async def test_what_another_worker_does_in_the_open_session_is_shown(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:

        async def of_a_worker(route: Route) -> None:
            await route.fulfill(json={**await (await route.fetch()).json(), "worker": 1})

        await page.add_init_script("delete window.SharedWorker")  # its stream could not be cut off
        await page.route("**/ui/api/choices", of_a_worker)
        await page.route("**/session_events?*", lambda route: route.abort())
        client = AgentsClient(proxy)
        id = await client.idle_session()
        await page.goto(f"{proxy.url}/#sessions/{id}")
        await page.reload()
        await expect(item(page, SAYS)).to_be_visible()
        await client.send(id, message("At another worker."))
        await expect(item(page, "At another worker.")).to_be_visible()
        await expect(item(page, SAYS)).to_have_count(2)


async def connections(page: Page) -> int:
    """How many tabs and workers of the browser have opened the stream themselves: tabs have none."""
    own = 0
    for each in page.context.pages:
        entries = "performance.getEntriesByType('resource').filter(({name}) => name.includes('session_events')).length"
        own += await each.evaluate(entries)
    return own + 1


async def test_after_a_restart_of_the_server_what_was_missed_is_read(
    browser: Browser, tmp_path: Path
) -> None:
    async with AsyncExitStack() as window:
        async with page_server(tmp_path) as proxy:
            page = await window.enter_async_context(open_page(browser, proxy))
            id = await begin(page)
        broken = page.get_by_text(re.compile("The server (does not answer|has closed)")).first
        await expect(broken).to_be_visible()
        async with page_server(tmp_path, port=proxy.server.port) as proxy:
            await AgentsClient(proxy).send(id, message("While nobody looked."))
            await expect(page.locator(".entry").get_by_text("While nobody looked.")).to_be_visible()
            await expect(broken).to_be_hidden()
            await say(page, "Go on.")
            await expect(page.locator(".entry").get_by_text("Go on.")).to_be_visible()


async def test_a_prompt_is_edited_and_sent_again_in_a_copy(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        first = await begin(page, "One.")
        await say(page, "Two.")
        await expect(page.locator(".entry").get_by_text("Two.")).to_be_visible()
        await ended(page)
        await page.locator(".entry").filter(has_text="Two.").get_by_role("button", name="Edit").click()
        await expect(page.get_by_role("textbox", name="Message")).to_have_value("Two.")
        await say(page, "Three.")
        await expect(page).not_to_have_url(re.compile(first))
        await expect(page.locator(".entry").get_by_text("Three.")).to_be_visible()
        await expect(page.locator(".entry").get_by_text("One.")).to_be_visible()
        await expect(page.locator(".entry").get_by_text("Two.")).to_have_count(0)
        await page.get_by_role("link", name="a copy of another session").click()
        await expect(page.locator(".entry").get_by_text("Two.")).to_be_visible()


async def test_a_copy_ends_with_the_message_from_which_it_was_made(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        first = await begin(page, "One.")
        await say(page, "Two.")
        await expect(page.locator(".entry").get_by_text("Two.")).to_be_visible()
        await ended(page)
        await page.locator(".entry").filter(has_text=SAYS).first.get_by_role("button", name="Fork").click()
        await expect(page).not_to_have_url(re.compile(first))
        await expect(page.locator(".entry").get_by_text(SAYS)).to_have_count(1)
        await expect(page.locator(".entry").get_by_text("Two.")).to_have_count(0)


async def test_a_message_is_sent_once_and_what_is_written_meanwhile_is_kept(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        id = await begin(page)
        await ended(page)
        held: list[Route] = []
        await page.route("**/events", lambda route: held.append(route))  # noqa: PLW0108  # it takes no built-in
        box = page.get_by_role("textbox", name="Message")
        await say(page, "Only once.")
        await until(lambda: len(held) == 1)
        await page.evaluate(RENAME, id)
        await expect(page.get_by_role("heading", level=2)).to_have_text("A new summary.")
        await say(page, "Meanwhile.")
        await expect(box).to_have_value("Meanwhile.")
        await held[0].abort()
        await expect(box).to_have_value("Only once.\n\nMeanwhile.")
        await expect(page.get_by_role("alert")).to_contain_text("does not answer")
        await say(page, "Only once.")
        await until(lambda: len(held) == 2)
        keys = [each.request.headers["idempotency-key"] for each in held]
        assert keys[0] == keys[1]
        await page.get_by_role("link", name="New session").click()
        await held[1].continue_()
        await expect(entry(page, "A new summary.")).to_contain_text("idle")
        await expect(page).to_have_url(re.compile("#sessions/new"))
        await entry(page, "A new summary.").click()
        await expect(item(page, "Only once.")).to_have_count(1)
        await expect(box).to_have_value("")


RENAME = """(id) => fetch(`/v1/agents/sessions/${id}/summary`, {
  method: "POST", headers: { "OpenAI-Beta": "agents=v1", "Content-Type": "application/json" },
  body: JSON.stringify({ title: "A new summary." }),
})"""


async def test_images_and_texts_go_with_a_message(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        files: list[FilePayload] = [
            {"name": "dot.png", "mimeType": "image/png", "buffer": PNG},
            {"name": "notes.txt", "mimeType": "text/plain", "buffer": "Ähnlich".encode()},
            {"name": "program", "mimeType": "application/x-elf", "buffer": b"\x7fELF\0\0"},
        ]
        await page.locator("input[type=file]").set_input_files(files)
        await expect(page.get_by_role("alert")).to_have_text("program is neither an image nor a text.")
        await expect(
            page.get_by_role("list", name="Goes with the message").get_by_role("listitem")
        ).to_have_count(2)
        id = await begin(page, "Look.")
        (first, *_) = await AgentsClient(proxy).all(f"/sessions/{id}/items")
        kinds = [part["type"] for part in first["content"]]
        assert kinds == ["input_text", "input_image", "input_text"]
        assert first["content"][2]["text"] == "The file notes.txt:\n\nÄhnlich"
        await expect(page.get_by_role("list", name="Goes with the message")).to_be_hidden()


async def test_a_session_is_one_of_the_plain_model_where_that_is_chosen(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await page.get_by_label("Mode", exact=True).select_option("plain model")
        await expect(page.get_by_label("Folder")).to_be_hidden()
        id = await begin(page)
        assert (await AgentsClient(proxy).get(f"/sessions/{id}"))["environment"] == {"type": "none"}


async def test_a_folder_that_is_not_allowed_is_told_and_nothing_written_is_lost(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await page.get_by_label("Folder").fill("/")
        await say(page, "Hello.")
        await expect(page.get_by_role("alert")).to_contain_text("workspace")
        await expect(page.get_by_role("textbox", name="Message")).to_have_value("Hello.")


async def test_leaving_the_pane_ends_nothing(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await begin(page, HANGS, "Hello")
        for pane in ("Turns", "Now"):
            await page.get_by_role("link", name=pane, exact=True).click()
        await expect(page.get_by_role("row").filter(has_text="writing the answer")).to_be_visible()
        await page.go_back()
        await page.go_back()
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        assert proxy.server.runs.running == 1
        await page.get_by_role("button", name="Stop").click()
        await ended(page, "cancelled")


async def test_a_subagent_opens_as_a_conversation_within_the_other(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path, fake_dialect="app-server") as proxy:
        client = AgentsClient(proxy)
        id = (await client.post("/sessions", enabled(tmp_path)))["id"]
        await client.turn(id, message("[[fake:subagent args='[[fake:text say=Nested.]]']]"))
        async with open_page(browser, proxy, f"sessions/{id}") as page:
            await page.get_by_role("button", name="Open subagent").first.click()
            await expect(
                page.locator(".subagent .entry").get_by_text("Nested.", exact=True).first
            ).to_be_visible()
            await page.get_by_role("button", name="Open subagent").first.click()
            await expect(page.locator(".subagent")).to_have_count(0)


async def test_a_stored_response_is_continued_as_a_session(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "stored") as page:
        answer = await proxy.send("POST", "/v1/responses", {"model": "codex-5", "input": "Remember me."})
        await page.goto(f"{proxy.url}/#stored/{answer.body['id']}")
        await page.get_by_role("button", name="Continue").click()
        await expect(page).to_have_url(re.compile("#sessions/sess_"))
        await expect(page.locator(".entry").get_by_text("Remember me.")).to_be_visible()
        await say(page, "Go on.")
        await expect(page.locator(".entry").get_by_text("Go on.")).to_be_visible()
        await ended(page)


async def test_the_plan_of_the_agent_is_shown_with_its_steps(browser: Browser, tmp_path: Path) -> None:
    async with (
        page_server(tmp_path, fake_dialect="app-server") as proxy,
        open_page(browser, proxy) as page,
    ):
        await say(page, "[[fake:activity]]")
        await ended(page)
        await expect(page.get_by_text("Plan: 1 of 3 steps")).to_be_visible()
        await expect(page.locator(".plan li")).to_have_text(["✓ look", "▸ change", "○ check"])


async def test_the_copied_code_makes_such_a_session(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, permissions=CLIPBOARD) as page:
        await begin(page, 'Say "it\'s".')
        for name, program in (("Python", (sys.executable, "-c")), ("curl", ("/bin/sh", "-c"))):
            await page.get_by_text("Copy as …").click()
            await page.get_by_role("button", name=f"Copy as {name}").click()
            await expect(page.get_by_role("button", name="Copied")).to_be_visible()
            code = str(await page.evaluate("navigator.clipboard.readText()"))
            assert SAYS in await output_of(*program, code, folder=tmp_path)
            await page.get_by_text("Copy as …").click()
        await expect(page.get_by_role("navigation", name="Sessions").get_by_role("link")).to_have_count(3)


async def test_the_recording_of_a_turn_is_copied_where_the_server_records(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        page_server(tmp_path, cassettes={"record": str(tmp_path / "cassettes")}) as proxy,
        open_page(browser, proxy, permissions=CLIPBOARD) as page,
    ):
        await begin(page)
        await ended(page)
        await page.get_by_text("Copy as …").click()
        await page.get_by_role("button", name="Copy the last turn as cassette").click()
        await expect(page.get_by_role("button", name="Copied")).to_be_visible()
        copied = str(await page.evaluate("navigator.clipboard.readText()"))
        assert SAYS.split()[-2] in copied
        for line in copied.splitlines():
            assert isinstance(json.loads(line), dict)


async def test_files_are_dropped_and_pasted(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy) as page:
        await begin(page)
        await page.evaluate(DROP)
        attached = page.get_by_role("list", name="Goes with the message")
        await expect(attached.get_by_role("listitem")).to_have_text(re.compile("dropped.txt"))
        await attached.get_by_role("button", name="Remove dropped.txt").click()
        await expect(attached).to_be_hidden()
        await page.evaluate(PASTE)
        await expect(attached.get_by_role("listitem")).to_have_text(re.compile("pasted.png"))


def dropped(kind: str, make: str, name: str, type: str) -> str:
    """A script that drops or pastes a file on the input."""
    return f"""() => {{
      const data = new DataTransfer();
      data.items.add(new File(["text"], "{name}", {{ type: "{type}" }}));
      const about = {{ bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data }};
      const event = new {make}("{kind}", about);
      document.querySelector(".composer textarea").dispatchEvent(event);
    }}"""


DROP = dropped("drop", "DragEvent", "dropped.txt", "text/plain")
PASTE = dropped("paste", "ClipboardEvent", "pasted.png", "image/png")


async def test_a_hidden_tab_notifies_of_what_has_ended(browser: Browser, tmp_path: Path) -> None:
    async with (
        page_server(tmp_path) as proxy,
        open_page(browser, proxy, permissions=["notifications"]) as page,
    ):
        await expect(page.get_by_text("What shall the agent do?")).to_be_visible()
        await page.evaluate(HIDE)
        client = AgentsClient(proxy)
        id = (await client.new_session(HANGS))["id"]
        await expect(entry(page, HANGS)).to_contain_text("working")
        await client.send(id, CANCEL)
        ended = f"{HANGS} has ended its turn."
        await expect(page.get_by_text(ended)).to_have_count(1)
        assert await page.evaluate("window.notices") == [[HANGS, ended]]


HIDE = """() => {
  window.notices = [];
  window.Notification = class extends EventTarget {
    static permission = "granted";
    constructor(title, { body }) { super(); window.notices.push([title, body]); }
  };
  Object.defineProperty(document, "hidden", { value: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_a_key_in_the_address_is_used_and_removed(browser: Browser, tmp_path: Path) -> None:
    async with (
        keyed_proxy(tmp_path, {"a": {}, "b": {}}, ui=True) as proxy,
        open_page(browser, proxy, f"key={key_of('a')}") as page,
    ):
        await expect(page.get_by_text("What shall the agent do?")).to_be_visible()
        assert key_of("a") not in page.url
        await begin(page, "A secret of the first.")
        id = page.url.rpartition("/")[2]
        page.once("dialog", lambda asked: asked.dismiss())
        await page.goto(f"{proxy.url}/#key={key_of('b')}")
        await expect(entry(page, "A secret of the first.")).to_be_visible()
        assert key_of("b") not in page.url
        await page.goto(f"{proxy.url}/#sessions/{id}")
        await expect(item(page, "A secret of the first.")).to_be_visible()
        page.once("dialog", lambda asked: asked.accept())
        await page.goto(f"{proxy.url}/#key={key_of('b')}")
        await expect(page.get_by_text("There is no session yet.")).to_be_visible()
        assert key_of("b") not in page.url


async def test_a_question_of_the_agent_is_answered_on_its_card(browser: Browser, tmp_path: Path) -> None:
    async with (
        page_server(tmp_path, **ASKING) as proxy,
        open_page(browser, proxy, f"key={quote(KEY)}") as page,
    ):
        await say(page, "[[fake:approvals]]")
        cards = page.get_by_role("region", name="Question of the agent")
        await expect(cards).to_have_count(2)
        await expect(entry(page, "fake:approvals")).to_contain_text("waits for you")
        await expect(page.get_by_text("[[fake:approvals]] asks: ")).to_have_attribute("aria-live", "polite")
        await press(cards.first, "Allow once")
        await expect(cards).to_have_count(1)
        await press(cards.last, "Decline")
        await ended(page)
        await expect(cards).to_have_count(0)


async def test_without_a_store_the_page_says_so(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path, store="off") as proxy, open_page(browser, proxy) as page:
        await expect(page.get_by_text("This server keeps no sessions.")).to_be_visible()
        await page.get_by_role("link", name="playground", exact=True).click()
        await expect(page.get_by_label("Prompt", exact=True)).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_sessions_have_names_for_screen_readers_and_enough_contrast(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, color_scheme=scheme) as page:
        await expect(page.get_by_text("There is no session yet.")).to_be_visible()
        for _ in range(2):
            found = await Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            await say(page, "[[fake:activity]]")
            await ended(page)


async def test_on_a_phone_a_new_user_sees_a_conversation_first_and_later_the_list(
    browser: Browser, tmp_path: Path
) -> None:
    view = {"width": 360, "height": 740}
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, viewport=view) as page:
        await expect(page.get_by_text("What shall the agent do?")).to_be_visible()
        await expect(page.get_by_text("There is no session yet.")).to_be_hidden()
        await page.goto(f"{proxy.url}/#sessions")
        await page.reload()
        await expect(page.get_by_text("What shall the agent do?")).to_be_visible()
        await page.locator(".back").click()
        await expect(page.get_by_text("There is no session yet.")).to_be_visible()
        await page.get_by_role("link", name="New session").click()
        await begin(page)
        await ended(page)
        await say(page, HANGS)
        for name in ("Attach", "Stop", "Steer"):
            box = await page.get_by_role("button", name=name).bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= 360, name
        talk = await page.locator(".talk").bounding_box()
        assert talk is not None
        assert talk["height"] > 740 * 0.45
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
        await page.locator(".back").click()
        await expect(entry(page, "Hello.")).to_be_visible()
        await expect(page.get_by_role("textbox", name="Message")).to_be_hidden()
        await page.reload()
        await expect(entry(page, "Hello.")).to_be_visible()


@pytest.mark.parametrize("width", [360, 3840])
async def test_the_sessions_fit_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    view = {"width": width, "height": 700}
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, viewport=view) as page:
        await begin(page, "W" * 300)
        size = "[document.documentElement.scrollWidth, document.querySelector('.talk').scrollWidth]"
        assert max(await page.evaluate(size)) <= width
        await page.goto(f"{proxy.url}/#sessions")
        await expect(entry(page, "WWW")).to_be_visible()
        assert max(await page.evaluate("[document.documentElement.scrollWidth]")) <= width
