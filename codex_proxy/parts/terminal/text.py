"""Texts of agents as a terminal may show them: Markdown, diffs, outputs and questions, without a character that could
control the terminal. `Safe` holds whatever is printed to that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Markdown, MarkdownElement
from rich.segment import Segment
from rich.text import Text

from codex_proxy.core.shown_text import escape, escape_lines
from codex_proxy.parts.terminal.forms import fields_of

FOLDED_LINES: Final = 12
"""Lines of an output that are shown; the rest is folded."""
MAX_LINE: Final = 400
"""Characters of a line of an output that are shown."""
MAX_MARKDOWN: Final = 8000
"""Characters of a block that are rendered as Markdown, whose parser takes too long for longer ones."""


class Safe:
    """A renderable whose text and links cannot control the terminal, whatever it is made of."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = (segment for segment in console.render(self._inner, options) if not segment.control)
        for line in Segment.split_lines(shown):
            while line and not line[-1].text.strip(" "):  # what only fills the line would be copied with it
                line.pop()
            line[-1:] = [Segment(each.text.rstrip(" "), each.style) for each in line[-1:]]
            for text, style, _ in line:
                yield Segment(escape_lines(text), style.update_link(None) if style and style.link else style)
            yield Segment.line()


class _PlainCode(CodeBlock):
    """Code without colours: to find them takes a parser for each language, and some take very long."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(str(self.text).rstrip("\n"), style="cyan")


class _AgentMarkdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": _PlainCode,
        "code_block": _PlainCode,
    }


def markdown(block: str) -> RenderableType:
    """Returns a block of an answer."""
    text = escape_lines(block)
    if len(text) > MAX_MARKDOWN:
        return Text(text.strip("\n"))
    found = _AgentMarkdown("", hyperlinks=False)
    found.parsed = _PARSER.parse(text)
    return found


def line(text: str, style: str = "") -> Text:
    """Returns a line that the terminal wraps, so that it is copied as it is."""
    return Text(escape_lines(text), style, no_wrap=True, overflow="ignore")


_PARSER: Final = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
"""That of rich, but that HTML is text: rich leaves it out."""


_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_LIST: Final = re.compile(r"[ \t]|[-*+]|\d{1,9}[.)]")
"""What begins a line of a list, or what is indented: such lines belong together over empty lines."""


class Blocks:
    """Cuts a text that grows into blocks of Markdown that no later text can change."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rest: list[str] = []
        self._fence = ""
        self._is_list = False

    def feed(self, text: str) -> Iterator[str]:
        """Adds a piece of the text, and yields the blocks that are complete."""
        first, *others = text.split("\n")
        self._rest.append(first)
        for other in others:
            yield from self._end_line("".join(self._rest))
            self._rest = [other]

    def end(self) -> Iterator[str]:
        """Yields what is left at the end of the text."""
        yield from self._end_line("".join(self._rest))
        self._rest = []
        yield from self._take()

    def _end_line(self, line: str) -> Iterator[str]:
        opened = _FENCE.match(line)
        if self._fence:
            if opened and opened[1].startswith(self._fence) and not line[opened.end() :].strip():
                self._fence = ""
        elif line.strip():
            if self._lines and not self._lines[-1].strip() and not (self._is_list and _LIST.match(line)):
                yield from self._take()
            if not self._lines:
                self._is_list = _LIST.match(line) is not None
            self._fence = opened[1] if opened else ""
        elif not self._lines:
            return
        self._lines.append(line)

    def _take(self) -> Iterator[str]:
        lines, self._lines = self._lines, []
        if lines:
            yield "\n".join(lines)

    def tail(self, most: int) -> list[str]:
        """Returns at most so many of the last lines of what is not complete."""
        last, length = list[str](), 0
        for piece in reversed(self._rest):
            if length > MAX_LINE:
                break
            last.insert(0, piece)
            length += len(piece)
        return [*self._lines[-most:], "".join(last)[-MAX_LINE:]][-most:]


def folded(text: str, more: str, most: int = FOLDED_LINES) -> Iterator[str]:
    """Yields the lines of an output, the middle ones folded. `more`: how to see them."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) > most:
        head, tail = most // 3, most - most // 3
        lines = [*lines[:head], f"... {len(lines) - most} more lines{more} ...", *lines[-tail:]]
    for line in lines:
        yield (
            line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]} ... {len(line) - MAX_LINE} more characters"
        )


def diff_line(text: str, kind: str = "update") -> Text:
    """Returns a line of a diff, or of the text of a file that is added or deleted (`kind`)."""
    mark, style = _mark_and_style(text, kind)
    return line(mark + text, style)


def _mark_and_style(text: str, kind: str) -> tuple[str, str]:
    """Returns what a line of a diff lacks at its beginning, and its style."""
    lacking = {"add": "+", "delete": "-"}.get(kind, "")
    style = {"+": "green", "-": "red", "@": "cyan"}.get(lacking or text[:1], "dim")
    return lacking, style


_CHANGE: Final = re.compile(r"(add|delete|update) (\S.*)")


def diff(text: str, paths: str, more: str) -> Iterator[Text]:
    """Yields the lines of a change of files as a session's items have it: before each file's diff the kind and the
    path, which is one of `paths`.
    """
    kind = "update"
    for each in folded(text, more, 4 * FOLDED_LINES):
        header = _CHANGE.fullmatch(each)
        if header and header[2] in paths:
            kind = header[1]
            yield line(each, "bold")
        else:
            yield diff_line(each, kind)


def exact(text: str, style: str = "", before: str = "") -> Iterator[Text]:
    """Yields the lines of a text with every character that cannot be seen as its escape, in reverse colours. `before`:
    what each line begins with.
    """
    for each in text.split("\n"):
        shown = line(before)
        for piece, hidden in _visible(each):
            shown.append(escape(piece), style="reverse" if hidden else style)
        yield shown


def _visible(text: str) -> Iterator[tuple[str, bool]]:
    """Yields the pieces of a line, and whether each is a character that cannot be seen."""
    start = 0
    for place, char in enumerate(text):
        if not char.isprintable():
            yield text[start:place], False
            yield char, True
            start = place + 1
    yield text[start:], False


def ask_lines(ask: dict[str, Any]) -> Iterator[Text]:
    """Yields all that a question of an agent is about, exactly as it is."""
    name, arguments = ask["name"], ask["arguments"]
    fields = dict(arguments) if isinstance(arguments, dict) else {"arguments": arguments}
    label = "" if ask["server_label"] == "agent" else f" of the MCP server {ask['server_label']}"
    yield from exact(name + label, "bold yellow", "The agent asks: ")
    is_patch = ask["server_label"] == "agent" and name == "apply_patch"
    for change in fields.pop("changes") if is_patch and _are_changes(fields.get("changes")) else ():
        kind = change.get("kind") or "update"
        yield from exact(f"{kind} {change['path']}", "bold", "  ")
        if change.get("moved_to"):
            yield from exact(change["moved_to"], "bold", "  moved to ")
        for each in change["diff"].rstrip("\n").split("\n"):
            mark, style = _mark_and_style(each, kind)
            yield from exact(mark + each, style, "  ")
    for asked in fields_of(ask):
        needed = " (required)" if asked.get("required") else ""
        yield from exact(asked["title"] + needed, "bold", "  asks for: ")
        yield from exact(asked.get("description", ""), "bold", "    ") if asked.get("description") else ()
    for field, value in fields.items():
        if value is not None and not (field == "fields" and fields_of(ask)):
            first, *others = (value if isinstance(value, str) else _json(value)).split("\n")
            yield from exact(first, "bold", f"  {field}: ")
            for each in others:
                yield from exact(each, "bold", "    ")


_CHANGE_FIELDS: Final = {"path": str, "kind": str | None, "diff": str, "moved_to": str | None}


def _are_changes(value: Any) -> bool:
    """Tells whether a value is changes of files with nothing else in them, which would not be shown."""
    return isinstance(value, list) and all(
        isinstance(each, dict)
        and each.keys() <= _CHANGE_FIELDS.keys()
        and all(isinstance(each.get(name), kind) for name, kind in _CHANGE_FIELDS.items())
        for each in value
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
