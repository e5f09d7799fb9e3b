"""The lower part of the terminal: what goes on, the question of an agent with its keys, and the line where the user
types. Everything else is printed above it and stays.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app_or_none
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from rich.cells import chop_cells
from rich.console import Console, RenderableType

from codex_proxy.files.private import create, make_folder
from codex_proxy.parts.terminal.view import LiveLine

QUIET_SECONDS: Final = 0.5
"""A key answers a question only on an empty line, and if the question has been there, keys have been read, and no other
was pressed, for that long: what was typed before, or goes on being typed, is none."""
PRINT_SECONDS: Final = 0.02
"""What comes within that time is printed at once."""
MAX_LIVE_ROWS: Final = 16


class Screen:
    """Prints above the line where the user types, in the order of the calls."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._waiting: list[RenderableType | Callable[[], None]] = []

    def show(self, shown: RenderableType | Callable[[], None]) -> None:
        """Prints soon; a function is called when all before it is printed."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(PRINT_SECONDS, self.flush)
        self._waiting.append(shown)

    def flush(self) -> None:
        """Prints what waits. The terminal stays in the mode in which keys are read: in another one the Enter that is
        pressed meanwhile would be another key.
        """
        waiting, self._waiting = self._waiting, []
        app = get_app_or_none() if waiting else None
        if app is not None and (not app.is_running or app.is_done):
            app = None
        if app is not None:
            app.renderer.erase()
        for each in waiting:
            if callable(each):
                each()
            else:
                self._console.print(each, crop=False)
        if app is not None:
            app.renderer.request_absolute_cursor_position()
            app.invalidate()


class Prompt:
    """Reads what the user types. Functions say what is shown around it: `live` the lines of what goes on, `asking` the
    lines under a question and the keys that answer it, if one is open, and `status` the last line of the terminal.
    """

    def __init__(
        self,
        history: History,
        commands: Mapping[str, str],
        *,
        live: Callable[[], Iterable[LiveLine]],
        asking: Callable[[], tuple[str, str]],
        status: Callable[[], str],
        on_key: Callable[[str], None],
        on_interrupt: Callable[[], None],
    ) -> None:
        self._live = live
        self._asking = asking
        self._on_key = on_key
        self._on_interrupt = on_interrupt
        self._last_key = self._asked_at = 0.0
        self._quiet = False
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            history=history,
            completer=WordCompleter([*commands], meta_dict=commands, sentence=True),
            complete_while_typing=True,
            multiline=True,
            prompt_continuation="  ",
            bottom_toolbar=status,
            key_bindings=self._bindings(),
            erase_when_done=True,
            enable_open_in_editor=False,
        )
        self._session.app.min_redraw_interval = 0.05
        self._session.app.key_processor.before_key_press += self._before_key

    async def read(self, draft: str = "") -> str:
        """Returns what the user has typed. Raises `EOFError` when the user leaves."""
        typed: str = await self._session.prompt_async(
            default=draft, handle_sigint=False, pre_run=self._begin_reading
        )
        return typed

    async def read_line(self, label: str, *, hidden: bool = False) -> str:
        """Returns one line that answers a question of this program. `hidden`: it is not shown. Raises `EOFError`."""
        other: PromptSession[str] = PromptSession(label, is_password=hidden, erase_when_done=hidden)
        try:
            typed: str = await other.prompt_async(handle_sigint=False)
        except KeyboardInterrupt:
            return ""
        return typed.strip()

    def redraw(self) -> None:
        self._session.app.invalidate()

    def begin_question(self) -> None:
        """Notes that a question can be seen from now on."""
        self._asked_at = time.monotonic()
        self.redraw()

    def leave(self, draft: bool = False) -> str:
        """Ends a `read` that is waiting: with `draft` it returns what is typed so far, else it raises `EOFError`.
        Returns what is typed, also if no `read` is waiting.
        """
        app = self._session.app
        typed: str = self._session.default_buffer.text
        if app.is_running and not app.is_done:
            if draft:
                app.exit(result=typed)
            else:
                app.exit(exception=EOFError())
        return typed

    def clear(self) -> None:
        """Removes what is typed."""
        self._session.default_buffer.reset()

    def _begin_reading(self) -> None:
        """Has what was typed while nothing was read, and comes now, be typed now."""
        self._last_key = time.monotonic()

    def _before_key(self, _: Any) -> None:
        now = time.monotonic()
        self._quiet = now - max(self._last_key, self._asked_at) >= QUIET_SECONDS
        self._last_key = now

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        empty = Condition(lambda: not self._session.default_buffer.text)
        answers = Condition(lambda: self._quiet and bool(self._asking()[1])) & empty
        bindings.add("enter", filter=~answers)(_send)
        for keys in (("escape", "enter"), ("escape", "c-j")):
            bindings.add(*keys)(lambda event: event.current_buffer.insert_text("\n"))
        bindings.add("c-c")(lambda event: self._on_interrupt())
        bindings.add("c-d", filter=empty)(lambda event: self.leave())
        too_early = Condition(lambda: not self._quiet and bool(self._asking()[1])) & empty
        for key in ("enter", Keys.Any):
            bindings.add(key, filter=answers)(self._on_answer)
            bindings.add(key, filter=too_early)(lambda event: None)  # is neither an answer nor a message
        return bindings

    def _on_answer(self, event: KeyPressEvent) -> None:
        key = event.key_sequence[0].data
        if key in self._asking()[1]:
            self._on_key(key)

    def _message(self) -> StyleAndTextTuples:
        size = self._session.app.output.get_size()
        width, rows = max(size.columns - 1, 10), max(min(size.rows // 2, MAX_LIVE_ROWS), 1)
        lines = [(style, row) for style, line in self._live() for row in chop_cells(line, width) or [""]]
        shown: StyleAndTextTuples = [(style, f"{row}\n") for style, row in lines[-rows:]]
        asked, keys = self._asking()
        if keys and self._session.default_buffer.text:
            asked = f"clear the line (Ctrl-U) to answer:\n{asked}"
        if asked:
            rows_asked = [row for line in asked.split("\n") for row in chop_cells(line, width)]
            shown += [("ansiyellow bold", f"{row}\n") for row in rows_asked]
        return [*shown, ("bold", "> ")]


def _send(event: KeyPressEvent) -> None:
    """Takes the chosen completion, or sends what is typed."""
    buffer = event.current_buffer
    if buffer.complete_state and buffer.complete_state.current_completion:
        buffer.apply_completion(buffer.complete_state.current_completion)
    elif buffer.text.strip():
        buffer.validate_and_handle()


def history_in(folder: Path) -> History:
    """Returns the lines that were typed before, which are kept in a file of this folder that only its owner can read;
    in memory if there cannot be one.
    """
    file = folder / "chat-history"
    try:
        make_folder(folder)
        if not file.exists():
            os.close(create(file))
        if not os.access(file, os.R_OK | os.W_OK):
            return InMemoryHistory()
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))
