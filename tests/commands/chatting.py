"""`codex-proxy chat` at a terminal, with a person who types."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.commands.codexes import environment
from tests.waiting import PATIENCE, eventually

ROWS, COLUMNS = 50, 200
WHERE, WHERE_ANSWER = b"\x1b[6n", b"\x1b[1;1R"
"""What asks a terminal where its cursor is, and its answer."""


@dataclass
class Terminal:
    """A chat at a terminal; what it has sent to it so far is in `shown`."""

    process: asyncio.subprocess.Process
    master: int
    shown: bytearray

    def type(self, line: str) -> None:
        os.write(self.master, line.encode() + b"\r")

    def press(self, key: str) -> None:
        os.write(self.master, key.encode())

    async def shows(self, text: str, times: int = 1) -> None:
        try:
            await eventually(lambda: self.shown.count(text.encode()) >= times)
        except AssertionError as error:
            raise AssertionError(
                f"{text!r} is not in {self.shown[-3000:].decode(errors='replace')!r}"
            ) from error

    async def press_until(self, key: str, seen: Callable[[], bool]) -> None:
        """Presses a key that may come too early, as a person would: again, a second later."""
        async with asyncio.timeout(PATIENCE):
            while not seen():
                self.press(key)
                with suppress(AssertionError):
                    await eventually(seen, within=1.0)

    async def ends(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


@asynccontextmanager
async def terminal(url: str, home: Path, *arguments: str, **more: str) -> AsyncIterator[Terminal]:
    """`codex-proxy chat` with these arguments and variables, in a terminal of its own in the folder `home`."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    variables = {"TERM": "xterm"} | more
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "codex_proxy", "chat", "--base-url", f"{url}/v1", *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=home,
        env=environment(home, variables),
    )
    os.close(slave)
    shown = bytearray()
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            shown.extend(data := os.read(master, 65536))
            os.write(master, WHERE_ANSWER * data.count(WHERE))
        except OSError:  # the other side is closed
            loop.remove_reader(master)

    loop.add_reader(master, read)
    try:
        yield Terminal(process, master, shown)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        loop.remove_reader(master)
        os.close(master)
