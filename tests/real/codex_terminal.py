"""The real Codex as a person uses it: its screen in a pseudoterminal, with keys that are pressed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tests.real.codex_home import CodexHome
from tests.real.release import codex_path
from tests.waiting import PATIENCE, eventually

REPLIES: Final = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?1;2c", b"\x1b[?u": b"\x1b[?0u"}
"""What a terminal says to the questions that Codex asks at its start: where the cursor is, and what it can do."""
SEQUENCE: Final = re.compile(
    rb"\x1b\[[0-9;?<>=:]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b."
)


class CodexTerminal:
    """A screen of Codex. Text is what was ever written to it, without colours and places."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._written = b""
        asyncio.get_running_loop().add_reader(terminal, self._read)

    def _read(self) -> None:
        try:
            read = os.read(self._terminal, 65536)
        except OSError:  # the program has ended
            read = b""
        if not read:
            asyncio.get_running_loop().remove_reader(self._terminal)
            return
        self._written += read
        for question, reply in REPLIES.items():
            for _ in range(read.count(question)):
                os.write(self._terminal, reply)

    @property
    def text(self) -> str:
        return SEQUENCE.sub(b"", self._written).decode(errors="replace")

    def shows(self, words: str) -> bool:
        """Whether the words were ever on the screen; blanks do not count, since Codex moves over them."""
        return "".join(words.split()) in "".join(self.text.split())

    async def until(self, words: str) -> None:
        await eventually(lambda: self.shows(words))

    async def say(self, text: str) -> None:
        """Types a message, and sends it: as pasted text, so that the Enter behind it is none of the message."""
        os.write(self._terminal, b"\x1b[200~" + text.encode() + b"\x1b[201~")
        await self.until(text)
        os.write(self._terminal, b"\r")

    async def leave(self) -> None:
        """Closes Codex as a person does, by Ctrl-D."""
        os.write(self._terminal, b"\x04")
        await self.until("To continue this session")


@asynccontextmanager
async def codex_terminal(home: CodexHome, *arguments: str) -> AsyncIterator[CodexTerminal]:
    """`codex` with these arguments in the home's folder. It is killed where it has not ended."""
    own, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *(str(codex_path()), *arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=home.workdir,
        env=home.environment({"TERM": "xterm-256color"}),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    terminal = CodexTerminal(own)
    try:
        yield terminal
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        asyncio.get_running_loop().remove_reader(own)
        os.close(own)
