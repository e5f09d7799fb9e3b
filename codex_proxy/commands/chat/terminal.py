"""The terminal of `codex-proxy chat`; in a pipe it prints one answer as plain text. Ctrl-C ends the turn, or clears the
prompt's line.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import IO, TextIO

from rich.console import Console
from rich.text import Text

from codex_proxy.commands.chat.conversation import ChatSession, Piece
from codex_proxy.core.faults import UserError
from codex_proxy.core.shown_text import escape_lines, without_controls

HELP = """\
/new          start a new conversation
/model        list the models; /model NAME switches to that one
/quit         leave (so does Ctrl-D)
Ctrl-C stops the current answer."""

STYLES = {"text": "", "thought": "dim", "activity": "cyan"}
ACTIVITY = re.compile(r"\[\w+\] ")


class Screen:
    """Prints the pieces of an answer; a piece of another kind begins a new line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._kind = ""
        self._at_line_start = True

    def show(self, piece: Piece) -> None:
        text = without_controls(piece.text)
        if self._kind not in ("", piece.kind) and not self._at_line_start:
            text = "\n" + text
        self._kind = piece.kind
        for part, is_activity in self._parts(text, piece.kind == "thought"):
            style = STYLES["activity" if is_activity else piece.kind]
            self._console.print(Text(part, style=style), end="", soft_wrap=True)

    def end(self) -> None:
        if not self._at_line_start:
            self._console.print()
        self._kind, self._at_line_start = "", True

    def _parts(self, text: str, thought: bool) -> Iterator[tuple[str, bool]]:
        for line in text.splitlines(keepends=True):
            yield line, thought and self._at_line_start and ACTIVITY.match(line) is not None
            self._at_line_start = line.endswith("\n")


async def show_answer(conversation: ChatSession, text: str, screen: Screen) -> None:
    """Shows the answer as it arrives. Raises `UserError`."""
    try:
        async with contextlib.aclosing(conversation.ask(text)) as pieces:
            async for piece in pieces:
                screen.show(piece)
    finally:
        screen.end()


class Chat:
    def __init__(self, conversation: ChatSession, console: Console) -> None:
        self._conversation = conversation
        self._console = console
        self._screen = Screen(console)

    def run(self) -> int:
        """Answers lines until /quit or the end of input. Returns 0."""
        with contextlib.suppress(ImportError):  # not every Python has it; lines can then not be edited
            importlib.import_module("readline")
        self._print(f"{self._conversation.model} at {self._conversation.base_url}; /help lists the commands.")
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                self._console.print()
                return 0
            except KeyboardInterrupt:
                self._print("\n/quit leaves.")
                continue
            if line == "/quit":
                return 0
            if line:
                self._handle_line(line)

    def _handle_line(self, line: str) -> None:
        try:
            if line.startswith("/"):
                self._command(*line.split(maxsplit=1))
            else:
                asyncio.run(show_answer(self._conversation, line, self._screen))
        except UserError as error:
            self._console.print(Text(escape_lines(str(error)), style="red"))
        except KeyboardInterrupt:
            self._print("(interrupted)")

    def _command(self, name: str, argument: str = "") -> None:
        if name == "/new":
            self._conversation.forget()
            self._print("A new conversation.")
        elif name == "/model" and argument:
            self._conversation.model = argument.strip()
            self._print(f"Now using {self._conversation.model}.")
        elif name == "/model":
            self._print("\n".join(asyncio.run(self._conversation.models())))
        else:
            self._print(HELP)

    def _print(self, text: str) -> None:
        self._console.print(Text(escape_lines(text), style="dim"))


def answer_once(conversation: ChatSession, stdin: TextIO, console: Console, errors: Console) -> int:
    """Answers the question on stdin; messages go to `errors`. Returns the exit status: 0, 1 after an error, 130 after
    Ctrl-C.
    """
    try:
        question = stdin.read().strip()
    except UnicodeDecodeError:
        errors.print("codex-proxy: the input is not text.", markup=False)
        return 1
    if not question:
        errors.print("codex-proxy: there is no question: the input is empty.", markup=False)
        return 1
    try:
        if console.is_terminal:
            asyncio.run(show_answer(conversation, question, Screen(console)))
        else:
            asyncio.run(_print_text(conversation, question, console.file))
    except UserError as error:
        errors.print(escape_lines(f"codex-proxy: {error}"), markup=False, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


async def _print_text(conversation: ChatSession, question: str, out: IO[str]) -> None:
    last = "\n"
    async with contextlib.aclosing(conversation.ask(question)) as pieces:
        async for piece in pieces:
            if piece.kind == "text":
                last = piece.text
                print(piece.text, end="", flush=True, file=out)
    if not last.endswith("\n"):
        print(file=out)
