"""The playground: what a turn is, chosen and told; its code, pasted; its answers, kept."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.access.keyed import key_of, keyed_proxy, write_keys
from tests.http.serving import Proxy, until
from tests.page.conftest import open_page, page_server
from tests.page.test_copied import CLIPBOARD, output_of
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAYS = "Hello from the deterministic fake agent."
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": ["null", "boolean"], "default": None}},
    "additionalProperties": False,
}
APIS = ("chat", "responses", "messages")


async def ask(page: Page, prompt: str = "Hello.", api: str = "chat") -> None:
    await page.get_by_label("API").select_option(api)
    await page.get_by_label("Prompt", exact=True).fill(prompt)
    await page.get_by_role("button", name="Send").click()


async def open_options(page: Page) -> None:
    await page.get_by_text("System prompt, tools").click()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("api", APIS)
async def test_an_answer_names_its_mode_agent_folder_and_turn(
    browser: Browser, tmp_path: Path, api: str
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:
        await ask(page, api=api)
        await expect(page.get_by_text(f"agent turn of fake in {tmp_path} · turn 1")).to_be_visible()
        await open_options(page)
        for field, value in (("System prompt", "Be brief."), ("Response format", json.dumps(SCHEMA))):
            await page.get_by_label(field).fill(value)
            await ask(page, api=api)
            await expect(page.get_by_text("plain model of fake")).to_be_visible()
            await page.get_by_label(field).fill("")
        await page.get_by_role("button", name="Example tool").click()
        await ask(page, api=api)
        await expect(page.get_by_text("plain model of fake")).to_be_visible()
        await page.get_by_role("link", name="turn 4").click()
        await expect(page.get_by_role("heading", name="Turn 4")).to_be_visible()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_mode_and_folder_are_chosen(browser: Browser, tmp_path: Path, api: str, stream: bool) -> None:
    folder = tmp_path / "the földer"
    folder.mkdir()
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:
        await page.get_by_label("Stream").set_checked(stream)
        await page.get_by_label("Mode", exact=True).select_option("plain model")
        await ask(page, api=api)
        await expect(page.get_by_text("plain model of fake · turn 1")).to_be_visible()
        await open_options(page)
        await page.get_by_label("System prompt").fill("Be brief.")
        await page.get_by_label("Mode", exact=True).select_option("agent")
        await page.get_by_label("Folder").fill(str(folder))
        await ask(page, api=api)
        await expect(page.get_by_text(f"agent turn of fake in {folder} · turn 2")).to_be_visible()
        await page.get_by_label("Folder").fill("/")
        await ask(page, api=api)
        await expect(page.get_by_role("alert")).to_contain_text("outside of this server's workspaces")


async def test_where_a_key_has_the_plain_model_alone_no_mode_is_offered(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        keyed_proxy(tmp_path, {"a": {"plain_model": True}}, ui=True) as proxy,
        open_page(browser, proxy, "playground") as page,
    ):
        await page.get_by_label("Key").fill(key_of("a"))
        await page.get_by_role("button", name="Use this key").click()
        await expect(page.get_by_text("agent turns are off here, or for this key")).to_be_visible()
        assert await page.get_by_label("Mode", exact=True).count() == 0
        await ask(page)
        await expect(page.get_by_text("plain model of fake · turn 1")).to_be_visible()


async def test_what_one_key_has_asked_is_not_shown_to_the_next(browser: Browser, tmp_path: Path) -> None:
    async with (
        keyed_proxy(tmp_path, {"a": {}, "b": {}}, ui=True) as proxy,
        open_page(browser, proxy, "playground") as page,
    ):
        await page.get_by_label("Key").fill(key_of("a"))
        await page.get_by_role("button", name="Use this key").click()
        await ask(page, "A secret of the first.")
        await expect(page.locator(".answer[aria-busy=false]")).to_be_visible()
        write_keys(tmp_path, b={})
        async with asyncio.timeout(PATIENCE):
            while await page.get_by_label("Key").count() == 0:
                await page.get_by_role("link", name="Now", exact=True).click()
                await page.get_by_role("link", name="Playground", exact=True).click()
        await page.get_by_label("Key").fill(key_of("b"))
        await page.get_by_role("button", name="Use this key").click()
        await expect(page.get_by_label("Prompt", exact=True)).to_have_value("")
        await expect(page.locator(".answer")).to_have_count(0)


async def test_the_models_of_several_agents_are_in_groups_by_agent(browser: Browser, tmp_path: Path) -> None:
    agents = {"fake": {}, "other": {"agent": "fake"}}
    async with page_server(tmp_path, agents=agents) as proxy, open_page(browser, proxy, "playground") as page:
        await page.get_by_label("Model").select_option("other/fake-model")
        groups = await page.locator("optgroup").evaluate_all("all => all.map((each) => each.label)")
        assert groups == ["fake", "other"]
        await ask(page)
        await expect(page.get_by_text("agent turn of other in")).to_be_visible()


# --- answers that go on ---------------------------------------------------------------------------


async def test_an_answer_goes_on_while_another_pane_is_shown(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:
        await ask(page, "[[fake:text misbehave=hang]]")
        await expect(page.get_by_role("status").last).to_have_text("answering…")
        for pane in ("Now", "Turns", "Playground"):
            await page.get_by_role("link", name=pane, exact=True).click()
        await expect(page.get_by_role("status").last).to_have_text("answering…")
        await page.get_by_role("button", name="Add a column").click()
        await expect(page.get_by_role("status").last).to_have_text("answering…")
        assert proxy.server.runs.running == 1
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("status").last).to_have_text("cancelled")
        await until(lambda: proxy.server.runs.running == 0)


async def test_a_new_question_and_a_removed_column_end_the_answer(browser: Browser, tmp_path: Path) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:
        await ask(page, "[[fake:text misbehave=hang]]")
        await expect(page.get_by_text("answering…")).to_be_visible()
        await ask(page)
        await expect(page.locator(".answer[aria-busy=false]")).to_have_text(SAYS)
        await until(lambda: proxy.server.runs.running == 0)
        await page.get_by_role("button", name="Add a column").click()
        await ask_first(page, "[[fake:text misbehave=hang]]")
        await expect(page.get_by_text("answering…")).to_have_count(2)
        await page.get_by_role("button", name="Remove this column").last.click()
        await until(lambda: proxy.server.runs.running == 1)


async def test_a_call_of_a_tool_that_was_cut_off_is_not_to_be_answered(
    browser: Browser, tmp_path: Path
) -> None:
    async with page_server(tmp_path) as proxy, open_page(browser, proxy, "playground") as page:

        async def half_a_call(route: Route) -> None:
            call = {"index": 0, "id": "c", "function": {"name": "old_tool", "arguments": '{"half": '}}
            chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
            await route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\n")

        await page.route("**/v1/chat/completions", half_a_call, times=1)
        await page.evaluate(ENDLESS)
        await ask(page)
        await expect(page.get_by_text("answering…")).to_be_visible()
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_text("cancelled")).to_be_visible()
        await expect(page.get_by_text("The model calls")).to_have_count(0)


ENDLESS = """() => {
  const real = window.fetch;
  window.fetch = async (...given) => {
    const reply = await real(...given);
    if (!String(given[0]).includes("/chat/completions")) return reply;
    const said = new Uint8Array(await reply.arrayBuffer());
    const body = new ReadableStream({ start(stream) {
      stream.enqueue(said);
      given[1].signal.addEventListener("abort", () => stream.error(given[1].signal.reason));
    } });
    return new Response(body, { headers: reply.headers });
  };
}"""
"""Lets an answer go on for ever behind what came."""


async def ask_first(page: Page, prompt: str) -> None:
    await page.get_by_label("Prompt", exact=True).fill(prompt)
    await page.get_by_role("button", name="Send").click()


# --- the same request as code ---------------------------------------------------------------------

NODE_SDK = """\
export default class Client {
  constructor({ baseURL }) {
    const create = (path) => (body, options) => send(baseURL + path, body, options);
    this.chat = { completions: { create: create("/chat/completions") } };
    this.responses = { create: create("/responses") };
    this.messages = { create: create("/v1/messages") };
  }
}
async function send(url, body, { headers = {} } = {}) {
  const sent = { "Content-Type": "application/json", "anthropic-version": "2023-06-01", ...headers };
  const answer = await fetch(url, { method: "POST", headers: sent, body: JSON.stringify(body) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(text);
  if (!body.stream) {
    const whole = JSON.parse(text);
    whole.output_text = whole.output?.flatMap((item) => item.content ?? []).map((part) => part.text).join("");
    return whole;
  }
  const lines = text.split("\\n").filter((line) => line.startsWith("data: {"));
  return lines.map((line) => JSON.parse(line.slice(6)));
}
"""
"""What the SDKs of JavaScript do, in short."""


async def run_code(language: str, text: str, folder: Path) -> str:
    if language == "curl":
        return await output_of("/bin/sh", "-c", f"{text.rstrip()} -sS", folder=folder)
    if language == "Python":
        return await output_of(sys.executable, "-c", text, folder=folder)
    for name in ("openai", "@anthropic-ai/sdk"):
        package = folder / "node_modules" / name
        package.mkdir(parents=True, exist_ok=True)
        (package / "package.json").write_text('{"type": "module", "exports": "./index.js"}')
        (package / "index.js").write_text(NODE_SDK)
    (folder / "pasted.mjs").write_text(text)
    return await output_of("node", "pasted.mjs", folder=folder)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("with_tools", [False, True])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("language", ["curl", "Python", "TypeScript"])
@pytest.mark.parametrize("api", APIS)
async def test_copied_code_runs_and_prints_the_answer(
    browser: Browser, tmp_path: Path, api: str, language: str, stream: bool, with_tools: bool
) -> None:
    program = {"curl": "curl", "TypeScript": "node"}.get(language)
    if program and not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    async with (
        page_server(tmp_path) as proxy,
        open_page(browser, proxy, "playground", permissions=CLIPBOARD) as page,
    ):
        await page.get_by_label("Stream").set_checked(stream)
        await page.get_by_label("Mode", exact=True).select_option("plain model")
        await open_options(page)
        await page.get_by_label("System prompt").fill('It\'s "quoted" \\n, true, null and\nlong: «ü» 🙂.')
        if with_tools:
            tool = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
            await page.get_by_label("Tools: a list").fill(json.dumps([tool]))
        await ask(page, "Hello.", api)
        await expect(page.locator(".answer[aria-busy=false]")).to_have_text(SAYS)
        await page.get_by_role("button", name=f"as {language}").click()
        await expect(page.get_by_role("button", name="Copied")).to_be_visible()
        text = str(await page.evaluate("navigator.clipboard.readText()"))
        said = await run_code(language, text, tmp_path)
        assert modes(proxy) == ["model", "model"]
    if language == "curl" or with_tools:
        assert "deterministic" in said
        assert "[Object]" not in said
    else:
        assert said.strip() == SAYS
    if language == "Python":
        assert "json.loads" not in text
        assert with_tools == ("None" in text)


def modes(proxy: Proxy) -> list[str]:
    records = proxy.server.runs.records
    assert records is not None
    return [record.summary().mode for record in records.of_owner("local")]
