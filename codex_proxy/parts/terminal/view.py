"""What a terminal shows of a session: whole items are printed and stay, what goes on is shown below them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from rich.console import Group, RenderableType
from rich.text import Text

from codex_proxy.core.shown_text import escape, escape_lines, one_line
from codex_proxy.parts.terminal.text import Blocks, Safe, diff, folded, line, markdown

LIVE_LINES: Final = 8
"""Lines of each item that goes on."""
MAX_LIVE_OUTPUT: Final = 4000
"""Characters at the end of a running command's output that are kept to be shown."""
MORE: Final = "; /output shows them"

Shown: TypeAlias = Callable[[RenderableType], None]
"""Prints a renderable."""
LiveLine: TypeAlias = tuple[str, str]
"""A style and a line of what goes on."""


class Transcript:
    """Prints what a session's events and items tell, by a function that prints."""

    def __init__(self, show: Shown) -> None:
        self._print = show
        self._open: dict[str, _OpenItem] = {}
        self._done: set[str] = set()
        """Items of the turn that were printed as a whole."""
        self._subagents: dict[str, str] = {}
        self.output = ""
        """The whole output that was folded last."""

    def on_event(self, event: dict[str, Any]) -> None:
        """Takes an event of the session."""
        handler = _EVENTS.get(event["type"])
        if handler is not None:
            handler(self, event)

    def on_item(self, item: dict[str, Any]) -> None:
        """Prints a whole item, unless it was printed before."""
        if item["id"] in self._done:
            return
        self._done.add(item["id"])
        opened = self._open.pop(item["id"], None) or _OpenItem(item)
        if opened.is_text:
            self._show_blocks(opened, opened.finish(item))
            if item.get("status") == "incomplete":
                self._show(Text("(cut)", style="dim"))
        else:
            self._show(Group(*self._lines(item)))

    def _show(self, shown: RenderableType) -> None:
        self._print(Safe(shown))

    def drop_open(self) -> None:
        """Forgets what goes on: it will be told again as a whole, and what was printed of it stays."""
        self._open.clear()

    def live(self) -> Iterator[LiveLine]:
        """Yields the lines of what goes on."""
        for opened in self._open.values():
            yield from opened.live()

    def _on_added(self, event: dict[str, Any]) -> None:
        item = event["item"]
        if item.get("role") == "user" or item["type"] in ("agent_message", "function_call"):
            self.on_item(item)  # is whole at once
        elif item["id"] not in self._done:
            self._open[item["id"]] = _OpenItem(item)

    def _on_delta(self, event: dict[str, Any]) -> None:
        opened = self._open.get(event["item_id"])
        if opened is not None:
            self._show_blocks(opened, opened.feed(event["delta"], event.get("summary_index", 0)))

    def _show_blocks(self, opened: _OpenItem, blocks: Iterable[str]) -> None:
        for block in blocks:
            if opened.kind == "reasoning":
                self._show(Text(escape_lines(block.strip("\n")), style="dim italic"))
            else:
                self._show(markdown(block))

    def _on_ended(self, event: dict[str, Any]) -> None:
        self._open.clear()
        self._done.clear()
        if event["type"].endswith("failed"):
            error = event["turn"].get("error") or {}
            self._show(Text(f"Failed: {error.get('message') or 'no reason is known'}", style="red"))
        elif event["type"].endswith("cancelled"):
            self._show(Text("(stopped)", style="yellow"))

    def _on_subagent(self, event: dict[str, Any]) -> None:
        subagent, what = event["subagent"], event["type"].rpartition(".")[2]
        name = subagent.get("name") or f"{subagent['id'][:14]}"
        self._subagents[subagent["id"]] = name
        task = _plain(subagent["instructions"]) if what == "created" else ""
        self._show(Text(escape(f"[subagent {name}] {what}") + _after(": ", task), style="magenta"))

    # --- whole items ------------------------------------------------------------------------------

    def _lines(self, item: dict[str, Any]) -> Iterator[Text]:
        kind = item["type"]
        failed = "" if item.get("status") in (None, "completed", "in_progress") else f" ({item['status']})"
        if item.get("role") == "user":
            for each in _plain(item["content"]).split("\n"):
                yield line(f"> {each}", "bold blue")
        elif kind == "command_execution":
            yield from self._command(item, failed)
        elif kind == "web_search_call":
            yield Text(f"[search]{_after(' ', item['action'].get('query'))}{failed}", style="cyan")
        elif kind == "mcp_call":
            head = f"[mcp] {item['server_label']}.{item['name']} {_json(item['arguments'])}"
            yield Text(one_line(escape(head)) + failed, style="cyan")
            yield from self._output(_json(item.get("error") or item.get("output") or ""))
        elif kind == "function_call":
            head = f"[call] {item['name']} {_json(item['arguments'])}: another program answers it"
            yield Text(one_line(escape(head)), style="cyan")
        elif kind == "agent_message":
            sender = self._name(item["sender_agent_id"])
            yield Text(escape(f"[{sender}] ") + _after("", _plain(item["content"])), style="magenta")
        elif "subagent" in kind:
            names = [item.get("recipient_agent_id"), *(item.get("recipient_agent_ids") or ())]
            named = " ".join(self._name(name) for name in names if name)
            head = f"[{kind.removesuffix('_call').replace('_', ' ')}] {named}".rstrip()
            yield Text(escape(head) + failed + _after(": ", _plain(item.get("content"))), style="magenta")
        else:
            yield Text(one_line(escape(f"[{kind}] {_json(item)}")), style="dim")

    def _command(self, item: dict[str, Any], failed: str) -> Iterator[Text]:
        command, output = item["command"], item.get("output") or ""
        if command.startswith("apply_patch ") and item.get("cwd") is None:
            paths = command.removeprefix("apply_patch ")
            yield line(f"[files] {paths}{failed}", "bold")
            self._remember(output)
            yield from diff(output, paths, MORE)
            return
        first, *others = command.split("\n")
        code = item.get("exit_code")
        end = f" (exit {code})" if code else failed
        yield line(f"$ {first}", "bold cyan").append(end, style="red")
        for each in others:
            yield line(f"  {each}", "bold cyan")
        yield from self._output(output)

    def _output(self, output: str) -> Iterator[Text]:
        if output.strip():
            self._remember(output)
            for each in folded(output, MORE):
                yield line(f"  {each}", "dim")

    def _remember(self, output: str) -> None:
        if output:
            self.output = output

    def _name(self, id: str) -> str:
        return self._subagents.get(id, id[:14])


_TURN: Final = "agent.session.turn."
_EVENTS: Final[dict[str, Callable[[Transcript, dict[str, Any]], None]]] = {
    f"{_TURN}item.added": Transcript._on_added,
    f"{_TURN}item.done": lambda self, event: self.on_item(event["item"]),
    f"{_TURN}output_text.delta": Transcript._on_delta,
    f"{_TURN}reasoning_summary_text.delta": Transcript._on_delta,
    "agent.output.command_execution_output.delta": Transcript._on_delta,
    **{f"{_TURN}{end}": Transcript._on_ended for end in ("completed", "failed", "cancelled")},
    **{f"agent.session.subagent.{what}": Transcript._on_subagent for what in ("created", "active", "closed")},
}


class _OpenItem:
    """An item that goes on: what was told of it, and the blocks of its text that are not complete."""

    def __init__(self, item: dict[str, Any]) -> None:
        self.kind: str = item["type"]
        self.is_text = self.kind == "reasoning" or item.get("role") == "assistant"
        self._title = item.get("command") or ""
        self._blocks = Blocks()
        self._told: list[str] = []
        self._part = 0
        self._tail = ""

    def feed(self, delta: str, part: int = 0) -> Iterator[str]:
        """Adds a piece, and yields the blocks that are complete now. `part`: the part of a reasoning summary."""
        if not self.is_text:
            self._tail = (self._tail + delta)[-MAX_LIVE_OUTPUT:]
            return
        if part != self._part:
            self._part, delta = part, f"\n\n{delta}"
        self._told.append(delta)
        yield from self._blocks.feed(delta)

    def finish(self, item: dict[str, Any]) -> Iterator[str]:
        """Yields the blocks that were not printed yet. What was not told before, or otherwise, is printed whole."""
        parts = item["summary"] if self.kind == "reasoning" else item["content"]
        whole, told = "\n\n".join(part.get("text", "") for part in parts), "".join(self._told)
        if not whole.startswith(told):
            self._blocks, told = Blocks(), ""
        yield from self._blocks.feed(whole[len(told) :])
        yield from self._blocks.end()

    def live(self) -> Iterator[LiveLine]:
        """Yields the last lines."""
        if self.is_text:
            style = "ansibrightblack italic" if self.kind == "reasoning" else ""
            for line in self._blocks.tail(LIVE_LINES):
                yield style, escape(line.expandtabs(4))
            return
        yield "ansicyan bold", one_line(escape(f"$ {self._title}" if self._title else f"[{self.kind}]"))
        for line in self._tail.rstrip("\n").split("\n")[-LIVE_LINES:] if self._tail else ():
            yield "ansibrightblack", escape(f"  {line.expandtabs(4)}"[-MAX_LIVE_OUTPUT:])


def _plain(parts: Any) -> str:
    """Returns the text of content parts; images are named."""
    return "\n".join(part.get("text") or f"[{part.get('type')}]" for part in parts or ())


def _after(mark: str, text: str | None) -> str:
    """Returns the first line of a text behind a mark; nothing without a text."""
    return f"{mark}{one_line(escape_lines(text))}" if text else ""


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
