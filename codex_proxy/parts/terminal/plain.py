"""One message and its answer where input or output is no terminal: the answer's text alone on stdout."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import IO, Any, Final

from codex_proxy.core.faults import UserError
from codex_proxy.core.shown_text import one_line
from codex_proxy.parts.terminal.conversation import Conversation, Listener, Object
from codex_proxy.parts.terminal.turn_files import MAX_NAMED, file_line, headline, notes

STATUSES: Final = {"completed": 0, "failed": 1, "cancelled": 130}
"""The exit statuses, by the end of the turn."""
PATIENCE: Final = 60.0
"""The seconds for which a server may be away, as one is that is started anew."""


class PlainChat(Listener):
    """Sends one message. `write` gets the pieces of the answer's text, `tell` a line about anything else."""

    def __init__(
        self, conversation: Conversation, write: Callable[[str], None], tell: Callable[[str], None]
    ) -> None:
        self._conversation = conversation
        conversation.listener = self
        self._write = write
        self._tell = tell
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._told: dict[str, int] = {}
        """How many characters of each message were written."""
        self._at_line_start = True
        self._message = ""
        self._taken = self._stopping = False
        """Whether the message is in the session, and whether its turn is being stopped."""
        self._declined = set[str]()
        self._tasks = set[asyncio.Task[None]]()

    async def run(self, message: str, resume: str | None) -> int:
        """Returns the exit status. Raises `UserError`, and `OSError` where nobody reads what is written."""
        loop = asyncio.get_running_loop()
        connected: asyncio.Future[None] = loop.create_future()
        self._do(self._conversation.follow(connected, PATIENCE))
        await connected
        await self._conversation.begin(resume)
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        self._message = message
        try:
            await self._conversation.send(message)
            return await self._status
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            for task in self._tasks:
                task.cancel()

    def _do(self, work: Any) -> None:
        async def run() -> None:
            try:
                try:
                    await work
                except UserError as error:
                    self._end(1)
                    self._tell(str(error))
            except Exception as error:  # noqa: BLE001 - raised where the status is awaited
                self._fail(error)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_interrupt(self) -> None:
        if self._conversation.id and not self._stopping:
            self._stopping = True
            self._do(self._conversation.stop())
        else:
            self._end(130)

    def _end(self, status: int) -> None:
        if not self._status.done():
            try:
                self._end_line()
                self._status.set_result(status)
            except OSError as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._status.done():
            self._status.set_exception(error)

    # --- what the server tells --------------------------------------------------------------------

    def on_event(self, event: Object) -> None:
        kind = event["type"].removeprefix("agent.session.turn.")
        if not self._taken or self._status.done():
            self._taken = self._taken or (kind == "item.added" and self._is_ours(event["item"]))
            return
        if kind == "output_text.delta":
            self._write_piece(event["item_id"], event["delta"])
        elif kind == "item.done":
            self.on_item(event["item"])
        elif kind in STATUSES:
            self._do(self._finish(kind, event["turn"]))

    async def _finish(self, end: str, turn: Object) -> None:
        """Says which files the turn has changed, and why it has failed."""
        changes = None
        if self._conversation.may_write:
            changes = await self._conversation.changes_if_kept(turn["id"])
        self._end_line()
        if changes is not None and (words := headline(changes)):
            self._tell(words)
            for change in changes["data"][:MAX_NAMED]:
                self._tell(f"  {file_line(change)}")
            for note in notes(changes):
                self._tell(note)
        self._end(STATUSES[end])
        if end == "failed":
            self._tell((turn.get("error") or {}).get("message") or "The turn has failed.")

    def on_item(self, item: Object) -> None:
        if not self._taken:
            self._taken = self._is_ours(item)
        elif item.get("role") == "assistant":
            self._write_piece(item["id"], _text_of(item)[self._told.get(item["id"], 0) :])
            self._end_line()
        elif item["type"] == "command_execution":
            self._tell(one_line(f"$ {item['command']}"))

    def on_summary(self) -> None:
        for ask in self._conversation.summary["asks"]:
            if self._message and ask["request_id"] not in self._declined:
                self._declined.add(ask["request_id"])
                self._tell(f"Declined, because nobody can be asked: {one_line(ask['message'])}")
                if self._conversation.summary["may_approve"]:
                    self._do(self._conversation.answer(ask, "deny"))
                else:
                    self._do(self._conversation.stop())

    def on_lost(self, message: str) -> None:
        self._tell(message)
        if self._taken and not self._conversation.id:
            self._end(1)

    def _is_ours(self, item: Object) -> bool:
        return bool(self._message) and item.get("role") == "user" and _text_of(item) == self._message

    def _write_piece(self, id: str, text: str) -> None:
        if text:
            self._told[id] = self._told.get(id, 0) + len(text)
            self._at_line_start = text.endswith("\n")
            self._write(text)

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")
            self._at_line_start = True


def _text_of(item: Object) -> str:
    return "".join(part.get("text", "") for part in item["content"])


def question_from(stdin: IO[str]) -> str:
    """Returns the message on stdin. Raises `UserError` if there is none."""
    try:
        question = stdin.read().strip()
    except UnicodeDecodeError as error:
        raise UserError("the input is not text.") from error
    if not question:
        raise UserError("there is no question: the input is empty.")
    return question
