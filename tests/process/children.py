"""Real child processes, and a listener that records."""

import asyncio
import os
import sys
from pathlib import Path

from codex_proxy.process.child import Command, Exit
from tests.waiting import PATIENCE, eventually


def have_ended(pids: list[int]) -> bool:
    """Returns whether all these processes have ended, even if nobody has waited for them yet."""
    return not any(_lives(pid) for pid in pids)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def command(*argv: str, cwd: str = "/", eof_grace: float = 0.2, term_grace: float = 0.2) -> Command:
    """A command with short graces, since most of these children do not obey."""
    env = {"PATH": os.environ["PATH"]}
    return Command(argv=argv, env=env, cwd=cwd, eof_grace=eof_grace, term_grace=term_grace)


def python(source: str, *arguments: str, eof_grace: float = 0.2, term_grace: float = 0.2) -> Command:
    """A command that runs Python source."""
    argv = (sys.executable, "-I", "-S", "-c", source, *arguments)
    return command(*argv, eof_grace=eof_grace, term_grace=term_grace)


def shell(script: str, *arguments: str, eof_grace: float = 0.2, term_grace: float = 0.2) -> Command:
    """A command that runs a shell script; its arguments are $1 and so on."""
    return command("/bin/sh", "-c", script, "sh", *arguments, eof_grace=eof_grace, term_grace=term_grace)


class Recorder:
    """A listener that records a child's output and end."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.exits: list[Exit] = []
        self.received_after_end = False
        self._ended = asyncio.Event()

    def on_output(self, chunk: bytes) -> None:
        self.data += chunk
        self.received_after_end = self.received_after_end or bool(self.exits)

    def on_end(self, exit: Exit) -> None:
        self.exits.append(exit)
        self._ended.set()

    async def exit(self) -> Exit:
        """Waits for the child's end and returns how it ended."""
        async with asyncio.timeout(PATIENCE):
            await self._ended.wait()
        return self.exits[0]

    async def lines(self, count: int) -> list[str]:
        """Waits until the child has written so many lines, and returns them."""
        await eventually(lambda: self.data.count(b"\n") >= count)
        return self.data.decode().splitlines()[:count]


async def pid_in(file: Path) -> int:
    """Waits for the file, and returns the pid in it."""
    await eventually(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())
