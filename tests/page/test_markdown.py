"""An agent's Markdown on the page: elements for what it means, text for all else, at a cost linear in its length."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.page.items import show_markdown, shown_page
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

expect.set_options(timeout=PATIENCE * 1000)

MEGABYTE = 1_000_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    async with shown_page(browser, tmp_path_factory.mktemp("markdown")) as page:
        yield page


HTML = [
    ("# One\n## Two #", '<h3 class="level-1">One</h3><h3 class="level-2">Two</h3>'),
    ("Title\n=====\ntext", '<h3 class="level-1">Title</h3><p>text</p>'),
    ("a *b **c** d* e", "<p>a <em>b <strong>c</strong> d</em> e</p>"),
    (
        "***both*** ~~gone~~ snake_case_name",
        "<p><em><strong>both</strong></em> <del>gone</del> snake_case_name</p>",
    ),
    ("2 * 3 * 4 and **not closed", "<p>2 * 3 * 4 and **not closed</p>"),
    ("`` a ` b `` and \\*c\\*", "<p><code>a ` b</code> and *c*</p>"),
    ("one  \ntwo\nthree", "<p>one  <br>two\nthree</p>"),
    ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"),
    ("- a\n  - b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"),
    ("3. a\n4. b\n\ntext", '<ol start="3"><li>a</li><li>b</li></ol><p>text</p>'),
    ("* * *\n- - -", "<hr><hr>"),
    ("<b onclick=x>&amp;&lt;</b>", "<p>&lt;b onclick=x&gt;&amp;&lt;&lt;/b&gt;</p>"),
]


@pytest.mark.parametrize(("text", "html"), HTML, ids=[text.partition("\n")[0] for text, _ in HTML])
async def test_markdown_becomes_elements(page: Page, text: str, html: str) -> None:
    shown = await show_markdown(page, text)
    assert await shown.evaluate("(each) => each.innerHTML") == html


async def test_code_is_named_by_its_language_and_copied(page: Page) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown = await show_markdown(page, "```python title=x\nif a:\n    b()\n```\nafter")
    await expect(shown.get_by_label("Code in python")).to_have_text("if a:\n    b()")
    await expect(shown.locator("p")).to_have_text("after")
    await shown.get_by_role("button", name="Copy").click()
    await expect(shown.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == "if a:\n    b()"


async def test_tasks_and_tables_are_read(page: Page) -> None:
    shown = await show_markdown(
        page, "- [x] one\n- [ ] two\n\n| a | b |\n|---|--:|\n| `c` | d \\| e |\n\nend"
    )
    await expect(shown.get_by_role("checkbox", name="Done")).to_be_checked()
    await expect(shown.get_by_role("checkbox", name="To do")).not_to_be_checked()
    await expect(shown.get_by_role("columnheader")).to_have_text(["a", "b"])
    await expect(shown.get_by_role("cell")).to_have_text(["c", "d | e"])


async def test_a_link_shows_where_it_leads_and_tells_the_other_side_nothing(page: Page) -> None:
    shown = await show_markdown(
        page, "[bank](http://evil.example/a_(b)) <http://x.example/> http://y.example."
    )
    links = shown.get_by_role("link")
    await expect(links).to_have_text(["bank", "http://x.example/", "http://y.example"])
    await expect(shown.locator(".address")).to_have_text(" (http://evil.example/a_(b))")
    for link in await links.all():
        assert await link.get_attribute("rel") == "noopener noreferrer"
        assert await link.get_attribute("target") == "_blank"


@pytest.mark.parametrize(
    "text",
    [
        "[a](javascript:alert(1))",
        "[a](JaVaScRiPt:alert)",
        "[a](data:text/html,x)",
        "[a](//x.example)",
        "<javascript:alert(1)>",
        "[a](vbscript:x)",
        "[a](http://)",
    ],
)
async def test_any_other_address_stays_text(page: Page, text: str) -> None:
    shown = await show_markdown(page, text)
    await expect(shown).to_have_text(text)
    await expect(shown.locator("a")).to_have_count(0)


async def test_nothing_is_loaded_and_nothing_runs(page: Page) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    hostile = (
        "![x](http://evil.example/x.png) <img src=x onerror=alert(1)><script>alert(1)</script>\n\n"
        "<iframe src=//evil.example></iframe>\n\n```html\n<script>alert(1)</script>\n```"
    )
    shown = await show_markdown(page, hostile)
    await expect(shown.locator("img, script, iframe")).to_have_count(0)
    await expect(shown).to_contain_text("<script>alert(1)</script>")
    await expect(shown.get_by_role("link")).to_have_text(["Image: x"])
    assert not [url for url in requested if "evil" in url]


async def test_what_is_not_seen_is_shown(page: Page) -> None:
    shown = await show_markdown(page, "a\u202eb\u200bc\x1b[31md `e\u2066` \U000e0041 👩\u200d🚀")
    await expect(shown).to_have_text("a<U+202E>b<U+200B>c␛[31md e<U+2066> <U+E0041> 👩\u200d🚀")


HOSTILE = {
    **{char: char * MEGABYTE for char in "[*>`_~#|<-(!\\"},
    "links": "[a](" * (MEGABYTE // 4),
    "mixed": "*a _b " * (MEGABYTE // 6),
    "closers": "*a b_ " * (MEGABYTE // 6),
    "ticks": "".join("`" * n + "a" for n in range(1, 1400)),
    "items": "- " * (MEGABYTE // 2),
    "lines of items": "- a\n" * (MEGABYTE // 4),
    "lines of strokes": "|-\n" * (MEGABYTE // 3),
    "emphasis": "*a* " * (MEGABYTE // 4),
    "strokes": "|-" * 2000 + "\n" + ("|" + "-|" * 2000 + "\n") * 240,
    "spaces": ("-" + " " * 4000 + "x\n") * 250,
    "addresses": "http://a" * (MEGABYTE // 8),
    "brackets": "http://a" + ")" * MEGABYTE,
    "titles": '[](a "' * (MEGABYTE // 6),
    "both": "*" * (MEGABYTE // 2) + "a" + "*" * (MEGABYTE // 2),
    "a line": "a" * MEGABYTE,
    "a long way to an address": "[a](" + " " * 190_000 + "(x",
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
async def test_a_megabyte_is_read_in_linear_time(page: Page, text: str) -> None:
    """Most of them take less than a tenth of a second; what is not linear takes minutes."""
    took, kept, depth = await page.evaluate(
        """async (text) => {
          const { markdown } = await import("/ui/markdown.js");
          const began = performance.now();
          const nodes = markdown(text);
          const took = performance.now() - began;
          const depthOf = (node) => (node ? 1 + depthOf(node.firstElementChild) : 0);
          const kept = nodes.reduce((sum, node) => sum + node.textContent.length, 0);
          return [took, kept, Math.max(...nodes.map(depthOf))];
        }""",
        text,
    )
    assert took < 5000
    assert depth < 50
    assert kept >= len(text) / 8


async def test_a_growing_text_keeps_the_blocks_that_are_whole(page: Page) -> None:
    whole = "# Title\n\nA paragraph.\n\n- one\n- two\n\n```js\nlet a;\nlet b;\n```\n\n| a |\n|---|\n| *b* |\n\nend"
    shown = await show_markdown(page, "")
    same = await page.evaluate(
        """async (whole) => {
          const { markdown } = await import("/ui/markdown.js");
          let title, code;
          for (let end = 1; end <= whole.length; end++) {
            window.view.update(whole.slice(0, end));
            if (whole.slice(0, end).endsWith("A par")) title = window.view.element.firstChild;
            if (whole.slice(0, end).endsWith("let a")) code = window.view.element.querySelector("pre");
          }
          const once = document.createElement("div");
          once.append(...markdown(whole));
          const { element } = window.view;
          return [element.innerHTML === once.innerHTML, element.contains(title), element.contains(code)];
        }""",
        whole,
    )
    assert same == [True, True, True]
    await expect(shown.get_by_label("Code in js")).to_have_text("let a;\nlet b;")


async def test_what_is_beyond_the_limit_is_shown_as_it_is_written(page: Page) -> None:
    shown = await show_markdown(page, "x " * 100_000 + "\n\n*end*")
    await expect(shown.get_by_label("Rest of the text")).to_have_text("*end*")
    await page.evaluate("window.view.update('y *z*')")
    await expect(shown.locator("em")).to_have_text("z")
    await expect(shown).to_have_text("y z")
