"""The interfaces that the MCP client needs from its caller: a function that starts a program, and the running
program. Also the report in which a transport says how it failed.

This package starts no process itself. `mcp_tools` implements `Spawn` with child processes that end with the proxy,
even if it is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from codex_proxy.mcp.values import McpFault


class ProgramStartError(Exception):
    """The program could not be started. The message has its name, and what the user can do."""


class ProcessExit(Protocol):
    """How a process has ended: its exit code, or the number of the signal that ended it. The other one is None."""

    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stderr_tail(self) -> str:
        """The last part of what the process wrote to stderr."""
        ...


class ProcessListener(Protocol):
    """The interface of an object that receives the output of a process. Its methods are called on the event loop;
    `ended` is called exactly once, and last.
    """

    def received(self, chunk: bytes) -> None:
        """Handles a chunk of the process's stdout."""

    def ended(self, exit: ProcessExit) -> None:
        """Called when the process has ended and all its output was received."""


class Process(Protocol):
    """The interface of a running program with a pipe to its stdin. `process.child.Child` implements it."""

    @property
    def unsent(self) -> int:
        """The number of bytes that were written and that the process has not yet read from its stdin."""
        ...

    def write(self, data: bytes) -> None:
        """Writes bytes to the process's stdin. Neither blocks nor raises, also if the process has ended."""

    def pause(self) -> None:
        """Stops reading the process's stdout until `resume` is called."""

    def resume(self) -> None:
        """Continues to read the process's stdout after `pause`."""

    async def end(self, *, grace: float | None = None) -> ProcessExit:
        """Ends the process, within a bounded time, and returns how it ended. `grace` is the number of seconds in
        which it may end by itself before it is killed; None for the default. If the call is cancelled, the process
        is ended all the same.
        """
        ...


class Spawn(Protocol):
    """The interface of a function that starts a program."""

    async def __call__(
        self, argv: tuple[str, ...], env: Mapping[str, str], cwd: str | None, listener: ProcessListener
    ) -> Process:
        """Starts the program `argv` and returns it running. `env` is added to the environment that every child
        gets; `cwd` is the folder in which it starts, None for a default. `listener` receives its output. Raises
        `ProgramStartError` if it cannot be started.
        """
        ...


class TransportReport:
    """How a transport has failed, which the `mcp` package does not report. The transport writes it, and the
    `McpConnection` reads it. `fault` is the last failure; None if there is none, or the server has accepted a
    message since.
    """

    def __init__(self) -> None:
        self.fault: McpFault | None = None
        self.refused_status: int | None = None
        """The HTTP status with which the server refused the last message; None if it accepted it."""
        self.session_lost = False
        """Whether the server no longer knows the session, and so has not processed the last message."""
        self.ended = asyncio.Event()
        """Set when the server will send nothing more."""
