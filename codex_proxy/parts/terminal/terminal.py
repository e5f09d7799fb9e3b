"""A session at a terminal."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final

from prompt_toolkit.history import History
from rich.console import Console, Group
from rich.text import Text

from codex_proxy.commands.running_server import RefusedError
from codex_proxy.core.faults import UserError
from codex_proxy.core.shown_text import escape, escape_lines, one_line
from codex_proxy.parts.terminal.commands import COMMANDS, run_command
from codex_proxy.parts.terminal.conversation import (
    SHOWN_ITEMS,
    Conversation,
    Listener,
    Object,
    turn_that_ended,
)
from codex_proxy.parts.terminal.forms import fields_of, label_of, value_of
from codex_proxy.parts.terminal.prompt import Prompt, Screen
from codex_proxy.parts.terminal.text import Safe, ask_lines
from codex_proxy.parts.terminal.turn_files import headline
from codex_proxy.parts.terminal.view import LiveLine, Transcript

LEAVE_SECONDS: Final = 2.0
"""Seconds within which a second Ctrl-C leaves."""
CARD_LINES: Final = 30
CARD_CHARS: Final = 4000
"""The part of a question that is shown; a longer one can be allowed only when it was shown whole."""

_MARKS: Final = {"completed": "[x]", "in_progress": "[>]", "pending": "[ ]"}


class Terminal(Listener):
    """The conversation, what is printed of it, and what the user does."""

    def __init__(self, conversation: Conversation, console: Console, history: History) -> None:
        self.conversation = conversation
        conversation.listener = self
        self.screen = Screen(console)
        self.transcript = Transcript(self.screen.show)
        self.draft = ""
        self.prompt = Prompt(
            history,
            {f"/{name}": each.about for name, each in COMMANDS.items()},
            live=self._live,
            asking=self._asking,
            status=self._status,
            on_key=self._on_key,
            on_interrupt=self._on_interrupt,
        )
        self._tasks = set[asyncio.Task[None]]()
        self._following: asyncio.Task[None] | None = None
        self._ask: Object | None = None
        """The open question that is printed."""
        self._visible = self._viewed = False
        """Whether the user can see it, and whether all of it."""
        self._answered = set[str]()
        self._answering: tuple[Object, str] | None = None
        """A question for whose answer the user writes something, and the key."""
        self._interrupted = -LEAVE_SECONDS
        self.leaving = False

    async def run(self, message: str, resume: str | None) -> int:
        """Shows a session, an old one if `resume` is its id or `last`, until the user leaves. Returns the exit status.
        Raises `UserError` if the server cannot be used.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        try:
            await self._follow()
            if resume is not None:
                await self.resume(resume)
            else:
                await self.conversation.begin(None)
                self.say(f"{self.conversation.model} at {self.conversation.server.base_url}. {_HINT}")
            if message:
                self._spawn(self.conversation.send(message))
            while not self.leaving:
                await self._turn_of_user()
        except EOFError:
            pass
        finally:
            for task in self._tasks:
                task.cancel()
            if self.conversation.id:
                self.say(f"codex-proxy chat --resume {self.conversation.id} goes on here.")
            self.screen.flush()
            loop.remove_signal_handler(signal.SIGINT)
        return 0

    async def _follow(self) -> None:
        """Returns when the events of the session come. Asks for a key where the server wants one."""
        while True:
            connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._following = self._spawn(self.conversation.follow(connected))
            try:
                return await connected
            except RefusedError as error:
                if error.status != 401:
                    raise
                self.conversation.server.key = await self._read_key(str(error))

    async def _read_key(self, why: str) -> str:
        self.fail(why)
        key = await self.read_line("API key: ", hidden=True)
        if not key:
            raise UserError("No key was given.")
        return key

    async def _turn_of_user(self) -> None:
        draft, self.draft = self.draft, ""
        text = await self.prompt.read(draft)
        if self._answering is not None:
            (ask, key), self._answering, self.draft = self._answering, None, text
            if key == "d":
                words = await self.read_line("Words for the agent, or nothing: ")
                self._spawn(self._answer(ask, "d", words))
            elif (content := await self._fill_in(ask)) is not None:
                self._spawn(self._answer(ask, key, content=content))
        elif text.startswith("/"):
            try:
                await run_command(self, text)
            except UserError as error:
                self.fail(str(error))
        elif text.strip():
            self._spawn(self.conversation.send(text))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except UserError as error:
                self.fail(str(error))
            except Exception as error:  # noqa: BLE001 - nobody awaits the task: it would end without a word
                self.fail(f"This is a fault of codex-proxy: {error!r}. Leave, and go on with --resume.")

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def resume(self, id: str) -> None:
        """Shows another session by its id; `last` is the newest. Raises `UserError`."""
        await self.open(lambda: self.conversation.resume(id))

    async def open(self, opening: Callable[[], Coroutine[Any, Any, int]]) -> None:
        """Shows another session, which a function opens."""
        self._ask, self.transcript = None, Transcript(self.screen.show)
        before = await opening()
        if before:
            self.say(f"({'more than ' if before >= SHOWN_ITEMS else ''}{before} items before are not shown)")
        summary = self.conversation.summary
        self.say(f"{one_line(summary['title'])} ({summary['id']}), {summary['model']}. {_HINT}")

    async def read_line(self, label: str, *, hidden: bool = False) -> str:
        self.screen.flush()
        return await self.prompt.read_line(label, hidden=hidden)

    @property
    def output(self) -> str:
        return self.transcript.output

    def show_lines(self, lines: Iterable[Text], whole: str) -> None:
        """Prints lines, and keeps the whole text of which they may be a part for `/output`."""
        self.screen.show(Safe(Group(*lines)))
        self.transcript.output = whole

    def leave_session(self) -> None:
        """Leaves the session as it is; the next message begins a new one."""
        self.conversation.leave()
        self._ask, self.transcript = None, Transcript(self.screen.show)

    async def use_key(self, key: str) -> None:
        """Uses another key. Raises `UserError` if the server refuses it, or if it is not the session's."""
        conversation = self.conversation
        before, conversation.server.key = conversation.server.key, key
        try:
            await (conversation.refresh() if conversation.id else conversation.newest())
        except UserError:
            conversation.server.key = before
            raise
        if self._following is not None:  # what it tells is what the key may see and do
            self._following.cancel()
        await self._follow()
        await conversation.catch_up()
        self.say("This key is used from now on.")

    # --- what the server tells --------------------------------------------------------------------

    def on_event(self, event: Object) -> None:
        self.transcript.on_event(event)
        self.prompt.redraw()
        if (turn := turn_that_ended(event)) and self.conversation.may_write:
            self._spawn(self._tell_files(self.conversation.id, turn))

    async def _tell_files(self, session: str, turn: str) -> None:
        """Says how many files a turn has changed, if any."""
        found = await self.conversation.changes_if_kept(turn)
        if found is not None and (words := headline(found)) and session == self.conversation.id:
            self.say(f"{words}. /diff shows them.")

    def on_item(self, item: Object) -> None:
        self.transcript.on_item(item)

    def on_summary(self) -> None:
        asks = [ask for ask in self.conversation.summary["asks"] if ask["request_id"] not in self._answered]
        first = asks[0] if asks else None
        if self._ask is not None and (first is None or first["request_id"] != self._ask["request_id"]):
            self.say("(The question is closed.)")
            self._ask = None
        if first is not None and self._ask is None:
            self._ask, self._visible = first, False
            self._show_ask(first, CARD_LINES)
        self.prompt.redraw()

    def on_lost(self, message: str) -> None:
        self.transcript.drop_open()
        self.fail(message)

    # --- questions --------------------------------------------------------------------------------

    def _show_ask(self, ask: Object, most: int | None = None) -> None:
        """Prints a question, or its first lines. Its keys work when it can be seen."""
        lines, chars, shown = [*ask_lines(ask)], 0, 0
        for line in lines:
            if most is not None and (shown >= most or chars + len(line) > CARD_CHARS):
                break
            chars, shown = chars + len(line), shown + 1
            self.screen.show(Safe(line))
        if shown < len(lines):
            self.screen.show(Text(f"  ... {len(lines) - shown} more lines: v shows all", style="bold red"))

        def begin() -> None:
            if self._ask is ask:
                self._visible, self._viewed = True, shown == len(lines)
                self.prompt.begin_question()

        self.screen.show(begin)

    def _asking(self) -> tuple[str, str]:
        """Returns the line under the open question, and the keys that answer it; both empty without one."""
        ask = self._ask
        if ask is None or not self._visible:
            return "", ""
        if not self.conversation.summary.get("may_approve"):
            return (
                "This key may not answer: /key takes another one, or that which the server has shown at its start.",
                "",
            )
        if not self._viewed:
            return "v view all of it before it can be allowed · d decline", "vd"
        if fields_of(ask):
            return "a fill it in · d decline · v view", "adv"
        if not ask["rule"]:
            return "a allow once · d decline · v view", "adv"
        rule = f"s: {escape(ask['rule'])}"
        return f"{rule}\na allow once · s allow for this session · d decline · v view", "asdv"

    def _on_key(self, key: str) -> None:
        ask = self._ask
        if ask is None:
            return
        if key == "v":
            self._show_ask(ask)
        elif key == "d" or fields_of(ask):
            self._answering = ask, key
            self.prompt.leave(draft=True)
        else:
            self._spawn(self._answer(ask, key))

    async def _fill_in(self, ask: Object) -> Object | None:
        """Asks for the values of a form. Returns None if one is left out that the form needs, or is none."""
        content: Object = {}
        for field in fields_of(ask):
            try:
                value = value_of(field, await self.read_line(label_of(field)))
            except UserError as error:
                self.fail(f"{error} Nothing was sent.")
                return None
            if value is not None:
                content[field["name"]] = value
            elif field.get("required"):
                self.fail("The form needs this. Nothing was sent.")
                return None
        return content

    async def _answer(self, ask: Object, key: str, words: str = "", content: Object | None = None) -> None:
        self._ask = None
        self._answered.add(ask["request_id"])
        decision: Any = "deny" if key == "d" else "approve"
        try:
            await self.conversation.answer(
                ask, decision, for_session=key == "s", words=words, content=content
            )
        except UserError:
            self._answered.discard(ask["request_id"])
            await self.conversation.refresh()  # shows it again if it is still open
            raise
        self.say(
            {
                "a": "Allowed once." if content is None else "Sent.",
                "s": "Allowed for this session.",
                "d": "Declined.",
            }[key]
        )
        self.on_summary()

    # --- what the user sees and does ----------------------------------------------------------------

    def say(self, text: str) -> None:
        """Prints a text of this program."""
        self.screen.show(Text(escape_lines(text), style="dim"))

    def fail(self, text: str) -> None:
        """Prints an error."""
        self.screen.show(Text(escape_lines(text), style="red"))

    def _live(self) -> Iterator[LiveLine]:
        summary = self.conversation.summary
        if self.conversation.at_work:
            for step in summary.get("plan") or ():
                yield "ansicyan", escape(f"{_MARKS.get(step['status'], '[ ]')} {step['step'][:200]}")
            yield from self.transcript.live()
        for message in summary.get("queued") or ():
            yield "ansiblue", f"(waits) {one_line(escape(message['text']))}"

    def _status(self) -> str:
        return " · ".join(escape(each) for each in status_words(self.conversation))

    def _on_interrupt(self) -> None:
        now = time.monotonic()
        if now - self._interrupted < LEAVE_SECONDS:
            self.leaving = True
            self.prompt.leave()
            return
        self._interrupted = now
        if self.conversation.at_work:
            self.say("Stopping. Ctrl-C again leaves.")
            self._spawn(self.conversation.stop())
        else:
            self.prompt.clear()
            self.say("Ctrl-C again leaves. The session stays.")


_HINT: Final = "/help lists the commands."


def status_words(conversation: Conversation) -> Iterator[str]:
    """Yields what the last line of the terminal says."""
    summary = conversation.summary
    states = {"in_progress": "working", "requires_action": "waiting"}
    yield states.get(summary.get("status", ""), "ready")
    yield conversation.model
    if folder := summary.get("folder"):
        yield folder[-60:]
    if sandbox := summary.get("sandbox"):
        yield sandbox
    if usage := summary.get("usage"):
        yield f"{usage['total_tokens']:,} tokens"
    if (context := summary.get("context")) and context.get("window"):
        yield f"{max(100 - 100 * context['used'] // context['window'], 0)} % of context left"
